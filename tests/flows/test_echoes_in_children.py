"""What a provider wants back as it was, and never gets empty, sent to a lead, to a child and to a grandchild: strict
servers of both dialects take every request that follows."""

import asyncio
import json
from typing import Any

import pytest

from tests.flows.after_faults import holds
from tests.flows.depths import DEPTHS, Case, Depths, Met, session_of
from tests.service import finished
from tests.stubs.anthropic_stub import message, redacted, thinking, tool, words
from tests.stubs.openai_stub import Answer, Request, call_chunk, calls, chunk, stream, text

pytestmark = [pytest.mark.asyncio(loop_scope="module")]

STOP, CALLED = chunk({}, "stop"), chunk({}, "tool_calls")
DONE, SAID_DONE = text("Done."), message(words("Done."))
GLOB, TEXTS = ("glob", {"pattern": "*.py"}), ("glob", {"pattern": "*.txt"})
PY, TXT = ("ok", "c.py"), ("ok", "b.txt")
SIGNATURE = {"google": {"thought_signature": "sig-of-google"}}
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


# ── echo ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def goes_back(met: Met) -> None:
    for request in (met.requests[1], met.again[0]):
        (sent,) = [call for m in request.messages for call in m.get("tool_calls") or ()]
        assert sent["extra_content"] == SIGNATURE


def signed_blocks(request: Request) -> list[dict[str, Any]]:
    """All signed blocks of a history."""
    kinds = ("thinking", "redacted_thinking")
    return [block for m in request.messages for block in m["content"] if block["type"] in kinds]


def signed_as_sent(*blocks: dict[str, Any]) -> Any:
    """The first turn's signed blocks stand first in its message, byte for byte."""

    def check(met: Met) -> None:
        for request in (met.requests[1], met.again[0]):
            (turn, *_) = [m for m in request.messages if m["role"] == "assistant"]
            assert turn["content"][: len(blocks)] == list(blocks)

    return check


def marked_empty(met: Met) -> None:
    (sent,) = [m["content"] for m in met.requests[1].messages if m["role"] == "tool"]
    assert sent.strip()


def what_was_found(met: Met) -> None:
    assert "c.py" in met.run["output"]


def task_sent(met: Met) -> None:
    (first,) = [m["content"] for m in met.requests[0].messages if m["role"] == "user"]
    assert first == "(empty task)"


THOUGHT, HIDDEN = thinking("First, 中文 \u2028 «x»"), redacted("EvAB+/==")
ECHO = {
    "B033": Case(
        answers=(
            stream(
                call_chunk(0, id="c", type="function", name="glob", arguments='{"pattern":', extra_content=SIGNATURE),
                call_chunk(0, arguments='"*.py"}'),
                CALLED,
            ),
            DONE,
        ),
        ran=[GLOB],
        results=[PY],
        check=goes_back,
    ),
    "B034 thinking": Case(
        model="anthropic",
        thinking="on",
        answers=(message(THOUGHT, asked(*GLOB)), message(thinking("Second."), words("Done."))),
        again=(message(thinking("Third."), words("Said again.")),),
        ran=[GLOB],
        results=[PY],
        check=signed_as_sent(THOUGHT),
    ),
    "B034 redacted": Case(
        model="anthropic",
        thinking="on",
        answers=(message(HIDDEN, THOUGHT, words("I look."), asked(*GLOB)), message(HIDDEN, words("Done."))),
        ran=[GLOB],
        results=[PY],
        check=signed_as_sent(HIDDEN, THOUGHT),
    ),
    "B035 a call that is repaired": Case(
        model="anthropic",
        thinking="on",
        answers=(
            message(thinking("One."), asked(*GLOB), tool("read_file", BROKEN)),
            message(thinking("Two."), words("Done.")),
        ),
        ran=[GLOB],
        results=[PY, ("invalid_arguments", "JSON")],
    ),
    "B036 empty text before a call": Case(
        model="anthropic", answers=(message(words(""), asked(*GLOB)), SAID_DONE), ran=[GLOB], results=[PY]
    ),
    "B036 blank text before a call": Case(
        answers=(
            stream(
                chunk({"content": "  \n"}), call_chunk(0, id="c", name="glob", arguments='{"pattern": "*.py"}'), CALLED
            ),
            DONE,
        ),
        ran=[GLOB],
        results=[PY],
    ),
    "B036 a tool without output": Case(
        tools=COMMANDS,
        answers=(calls(("run_command", '{"command": "true"}')), DONE),
        ran=[("run_command", {"command": "true"})],
        results=[("ok", "")],
        check=marked_empty,
    ),
    "B036 the same in the other dialect": Case(
        model="anthropic",
        tools=COMMANDS,
        answers=(message(asked("run_command", {"command": "true"})), SAID_DONE),
        ran=[("run_command", {"command": "true"})],
        results=[("ok", "")],
    ),
    "B036 an empty answer": Case(
        answers=(ids(("c", "*.py")), stream(chunk({"content": ""}), STOP)),
        told="c.py",
        ran=[GLOB],
        results=[PY],
        check=what_was_found,
    ),
    "B036 the same answer in the other dialect": Case(
        model="anthropic",
        answers=(message(asked(*GLOB)), message(words(" "))),
        told="c.py",
        ran=[GLOB],
        results=[PY],
        check=what_was_found,
    ),
    "B036 a blank task": Case(task="   ", answers=(DONE,), check=task_sent),
}


@pytest.mark.spec("13.4", "13.2")
@pytest.mark.case("B033", "B034", "B035", "B036")
@pytest.mark.parametrize("name", ECHO)
async def test_what_a_provider_wants_back_goes_back_whole_or_not_at_all_at_every_depth(
    faulty_models: Depths, name: str
) -> None:
    for met in await faulty_models.met(ECHO[name], name):
        holds(met)


# ── from one dialect to the other ───────────────────────────────────────────────────────────────────────────────────

FOREIGN = ("toolu_", "signature", '"thinking', "First, ", "extra_content", "sig-of-google", "reasoning", "caller")
TURNS = {
    "anthropic": (
        message(THOUGHT, words("I look."), tool("glob", '{"pattern": "*.py"}', caller={"type": "direct"})),
        message(thinking("Second."), words("Done.")),
    ),
    "openai": (
        stream(
            chunk({"reasoning_content": "First, "}),
            call_chunk(0, id="functions.glob:0", type="function", name="glob", arguments="", extra_content=SIGNATURE),
            call_chunk(0, arguments='{"pattern": "*.py"}'),
            CALLED,
        ),
        DONE,
    ),
}


async def handed_over(world: Depths, depth: int, first: str, second: str) -> tuple[list[Request], list[str]]:
    """A memory that an agent leaves on one dialect goes on under the other: what the second model was sent."""
    key, lasting = f"B037/{first}/{depth}", {"session_mode": "reuse_session", "session_scope": "user"}
    before = Case(model=first, answers=TURNS[first], thinking="on", more=lasting)
    after = Case(model=second, answers=TURNS[second][1:], thinking="on", more=lasting)
    outputs = [await handed(world, case, key, depth) for case in (before, after)]
    return world.requests(after, key), outputs


async def handed(world: Depths, case: Case, key: str, depth: int) -> str:
    """The output of one turn; at depth 0 that of a delegation without a parent, whose memory can last as well."""
    world.play(case, key, depth)
    body = session_of(case, key, depth)
    if depth:
        run = await world.client.request("POST", "/v1/runs", {**body, "user": key, "input": "Begin."})
        return str((await finished(world.client, run["id"]))["output"])
    given = {"agent": body["agents"][0], "task": "Begin.", "user": key, "thinking": "on"}
    return str((await world.client.request("POST", "/v1/delegations", given))["output"])


@pytest.mark.spec("13.4", "4.9")
@pytest.mark.case("B037")
@pytest.mark.parametrize(("first", "second"), [("anthropic", "openai"), ("openai", "anthropic")])
async def test_a_memory_goes_on_with_a_model_of_the_other_dialect_at_every_depth(
    faulty_models: Depths, first: str, second: str
) -> None:
    found = await asyncio.gather(*(handed_over(faulty_models, depth, first, second) for depth in DEPTHS))
    for (request,), outputs in found:
        assert len(outputs) == 2
        assert all("Done." in output for output in outputs)
        history = json.dumps(request.messages, ensure_ascii=False)
        assert [part for part in FOREIGN if part in history] == []
        assert "functions.glob:0" not in history
        assert "*.py" in history, "the call itself goes with it"
        assert "c.py" in history
    assert faulty_models.refused() == []
