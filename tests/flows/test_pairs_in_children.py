"""Calls and results that could get out of pair, in a lead, in a child and in a grandchild: strict servers of both
dialects take every request that follows."""

import asyncio
import json
from typing import Any

import pytest

from tests.flows.after_faults import holds
from tests.flows.depths import Case, Depths, Met
from tests.service import WAIT_S
from tests.stubs.anthropic_stub import message, thinking, tool, words
from tests.stubs.openai_stub import Answer, call_chunk, calls, chunk, refusal, stream, text

pytestmark = [pytest.mark.asyncio(loop_scope="module")]

STOP, CALLED = chunk({}, "stop"), chunk({}, "tool_calls")
DONE, SAID_DONE = text("Done."), message(words("Done."))
GLOB, TEXTS = ("glob", {"pattern": "*.py"}), ("glob", {"pattern": "*.txt"})
PY, TXT = ("ok", "c.py"), ("ok", "b.txt")
SIGNATURE = {"google": {"thought_signature": "abc"}}
BROKEN = '{"path": "a'
MAKES = ({"command": "make all"}, {"command": "make test"})
COMMANDS = ("run_command", "glob")


def asked(name: str, arguments: Any) -> dict[str, Any]:
    """A call in the dialect of Anthropic."""
    return tool(name, json.dumps(arguments))


def ids(*pairs: tuple[str, Any]) -> Answer:
    """One turn with calls of `glob` under these ids."""
    chunks = [
        call_chunk(at, id=given, type="function", name="glob", arguments=json.dumps({"pattern": pattern}))
        for at, (given, pattern) in enumerate(pairs)
    ]
    return stream(*chunks, CALLED)


# ── pairing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def answering(*answers: dict[str, Any]) -> Any:
    """Somebody who answers the questions of a session like this, in their order."""

    async def during(world: Depths, session_id: str) -> None:
        left = list(answers)
        async with asyncio.timeout(WAIT_S):
            async for frame in world.client.events(f"/v1/sessions/{session_id}/events"):
                if frame.type == "permission.requested":
                    where = f"/v1/permissions/{frame.data['data']['approval_id']}"
                    await world.client.request("POST", where, left.pop(0))
                if not left:
                    return

    return during


def shortened(summaries: int) -> Any:
    """The context was shortened, and every step was asked for once."""

    def check(met: Met) -> None:
        done = met.own("compaction")
        assert [data["method"] for data in done].count("summary") >= summaries
        assert {data["origin"] for data in done} == {"subagent" if met.depth else "lead"}
        assert len(met.requests[-1].raw) < 16_000
        tools = [row for row in met.rows if row["role"] == "tool"]
        assert len(tools) == len(met.case.ran), "the log keeps all of it"

    return check


def raw_ids(*given: str) -> Any:
    """The log has the ids that the provider gave; what is sent has ids that differ."""

    def check(met: Met) -> None:
        calls = [call for row in met.replies for call in row["tool_calls"] or ()]
        assert [call["provider_call_id"] for call in calls] == list(given)
        sent = [call["id"] for m in met.again[-1].messages for call in m.get("tool_calls") or ()]
        assert len(set(sent)) == len(sent) >= len(given)
        assert all(sent)

    return check


def made(met: Met) -> None:
    assert list(met.notes) == [given["command"] for given in MAKES]


def no_file(met: Met) -> None:
    assert met.notes == ()


def read(at: int) -> tuple[str, dict[str, Any]]:
    """A call whose result has some 300 tokens, another one for each number."""
    return "read_file", {"path": "long.txt", "offset": at, "limit": 20}


def reading(numbers: list[list[int]], *, dialect: str, summaries: int = 3, thinks: bool = False) -> Case:
    """One turn for each list of numbers, in a window that cannot hold them all."""
    turns = [[read(at) for at in turn] for turn in numbers]
    answers: list[Answer] = []
    signed = [thinking("Next.")] if thinks else []
    for turn in turns:
        if dialect == "openai":
            answers.append(calls(*((name, json.dumps(arguments)) for name, arguments in turn), usage=None))
        else:
            answers.append(message(*signed, *(asked(*call) for call in turn)))
    done = [call for turn in turns for call in turn]
    return Case(
        model=f"small-{dialect}",
        tools=("read_file",),
        thinking="on" if thinks else None,
        answers=(*answers, DONE if dialect == "openai" else message(*signed, words("Done."))),
        ran=done,
        results=[("ok", "sixty characters")] * len(done),
        check=shortened(summaries),
    )


BORDER = [[1], [2], [3], [4, 5, 6], [7], [8], [9, 10, 11], [12], [13], [14], [15], [16]]
OVERFLOW = refusal(400, {"message": "maximum context length exceeded", "code": "context_length_exceeded"})
TWICE = "functions.glob:0"
PAIRS = {
    "B022": Case(
        tools=COMMANDS,
        answers=(calls(("run_command", '{"command": "make all"}'), ("glob", '{"pattern": "*.py"}')), DONE),
        ran=[("run_command", {"command": "make all"}), GLOB],
        results=[("denied", "Not now."), PY],
        during=answering({"decision": "deny", "message": "Not now."}),
        check=no_file,
    ),
    "a tool behind a question, twice": Case(  # as in B031, whose tool is one of an MCP server
        tools=COMMANDS,
        answers=(*(calls(("run_command", json.dumps(given))) for given in MAKES), DONE),
        ran=[("run_command", given) for given in MAKES],
        results=[("ok", "")] * 2,
        during=answering(*[{"decision": "allow_once"}] * 2),
        check=made,
    ),
    "B023": Case(
        answers=(ids((TWICE, "*.py"), (TWICE, "*.txt")), DONE),
        again=(ids((TWICE, "*.py")), DONE),
        ran=[GLOB, TEXTS],
        results=[PY, TXT],
        check=raw_ids(TWICE, TWICE),
    ),
    "B024": Case(
        answers=(ids(("", "*.py"), ("", "*.txt")), DONE), ran=[GLOB, TEXTS], results=[PY, TXT], check=raw_ids("", "")
    ),
    "B025": Case(
        answers=(calls(("grep", '{"pattern": "alpha"}'), ("grep", '{"pattern": "beta"}')), DONE),
        ran=[("grep", {"pattern": "alpha"}), ("grep", {"pattern": "beta"})],
        results=[("ok", "a.txt"), ("ok", "b.txt")],
    ),
    "B026": Case(
        model="anthropic",
        answers=(message(words("I look."), asked(*GLOB), words("Then I read.")), SAID_DONE),
        ran=[GLOB],
        results=[PY],
    ),
    "B026 signed": Case(
        model="anthropic",
        thinking="on",
        answers=(
            message(thinking("One."), words("I look."), thinking("Two."), asked(*GLOB), words("And."), asked(*TEXTS)),
            message(thinking("Three."), words("Done.")),
        ),
        ran=[GLOB, TEXTS],
        results=[PY, TXT],
    ),
    "B027": reading(BORDER, dialect="openai", summaries=2),
    "B027 B035 signed": reading(BORDER, dialect="anthropic", summaries=2, thinks=True),
    "B028": reading([[at] for at in range(1, 41)], dialect="openai"),
    "B028 other dialect": reading([[at] for at in range(1, 41)], dialect="anthropic"),
    "B029": Case(
        tools=("read_file",),
        answers=(
            *(calls((name, json.dumps(given)), usage=None) for name, given in (read(1), read(2), read(3))),
            OVERFLOW,
            DONE,
        ),
        ran=[read(1), read(2), read(3)],
        results=[("ok", "sixty characters")] * 3,
        check=shortened(1),
    ),
    "B030": Case(answers=(calls(("read_file", BROKEN)), DONE), results=[("invalid_arguments", "JSON")]),
    "B030 other dialect": Case(
        model="anthropic",
        answers=(message(tool("read_file", BROKEN)), SAID_DONE),
        results=[("invalid_arguments", "JSON")],
    ),
}


@pytest.mark.spec("13.2", "5.4")
@pytest.mark.case("B022", "B023", "B024", "B025", "B026", "B027", "B028", "B029", "B030", "B035")
@pytest.mark.parametrize("name", PAIRS)
async def test_every_call_has_its_result_directly_after_it_at_every_depth(faulty_models: Depths, name: str) -> None:
    for met in await faulty_models.met(PAIRS[name], name):
        holds(met)
