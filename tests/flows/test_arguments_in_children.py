"""Wrong arguments and nearly right names, sent by the model of a lead, of a child and of a grandchild: each is the
result of its own call, and nothing runs on a guess."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.flows.after_faults import holds
from tests.flows.depths import DEPTHS, SUMMED_UP, Case, Depths, Met, session_of
from tests.flows.odd_models import odd_service
from tests.service import events_of, finished
from tests.stubs import anthropic_stub as messages
from tests.stubs.openai_stub import Answer, call_chunk, calls, chunk, stream, text

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("13.2")]

DONE = text("Done.")
SAID_DONE = messages.message(messages.words("Done."))
TOOLS = ("read_file", "glob", "write_note", "list_skills", "pick")
GLOB = ("glob", {"pattern": "*.py"})
GOOD = ("glob", '{"pattern": "*.py"}')
PY, SKILLS = ("ok", "c.py"), ("ok", "skills: none")
INVALID = "invalid_arguments"
NOTHING: tuple[str, dict[str, Any]] = ("list_skills", {})
BROKEN = {
    "no end": '{"path": "a.txt"',
    "trailing comma": '{"path": "a.txt",}',
    "text after it": '{"path": "a.txt"} and go',
    "single quotes": "{'path': 'a.txt'}",
}
LOOKS_LIKE_JSON = ('[label]: {"a":1}', '{"a":1}', '["x"]', '"quoted"', "null")


def told_of(raw: str) -> Any:
    """The model was told what is wrong with its text, and what is wanted instead."""

    def check(met: Met) -> None:
        told = [m["content"] for m in met.requests[1].messages if m["role"] == "tool"][-1]
        assert raw[:60] in told
        assert "{path: string" in told, "with the schema"
        kept = next(call for row in met.replies for call in row["tool_calls"] or () if call["name"] == "read_file")
        assert kept["arguments"] == raw, "the log has what was sent"

    return check


def nothing_written(met: Met) -> None:
    assert met.notes == ()
    assert met.own("tool.start") == []


def written_as_sent(met: Met) -> None:
    assert list(met.notes) == list(LOOKS_LIKE_JSON)


def stored_as_json(met: Met) -> None:
    sent = [call for m in met.again[0].messages for call in m.get("tool_calls") or ()]
    assert [call["function"]["arguments"] for call in sent] == ["{}"]


def missing_named(met: Met) -> None:
    assert "path" in met.own("tool.result")[0]["content"]


def delegated(tool: str, key: str, task: str, *names: str) -> Answer:
    """One turn that asks an agent under each of these names."""
    more = {"description": "help"} if tool == "execute_task" else {}
    return calls(*((tool, json.dumps({key: name, task: f"As {name}.", **more})) for name in names))


def helped(met: Met) -> None:
    children = [e for e in met.events if e["type"] == "run.queued" and e.get("parent_run_id") == met.run["id"]]
    assert [e["agent"] for e in children] == ["helper"] * 4, "the unknown one started nobody"
    assert [e["depth"] for e in children] == [met.depth + 1] * 4


NAMES = ("Helper ", '"helper"', "['helper']", "HELPER", "nobody")


def named(tool: str, key: str, task: str, status: str) -> Case:
    """An agent under names that are nearly its own, and under one that is nobody's."""
    more = {"description": "help"} if tool == "execute_task" else {}
    return Case(
        tools=("Agent(helper)",),
        answers=(delegated(tool, key, task, *NAMES), DONE),
        ran=[(tool, {key: name, task: f"As {name}.", **more}) for name in NAMES],
        results=[("ok", SUMMED_UP)] * 4 + [(status, "helper")],
        check=helped,
    )


def no_arguments(arguments: Any) -> Case:
    """A tool that takes nothing is called with this."""
    call = call_chunk(0, id="c", type="function", name="list_skills", arguments=arguments)
    answers = (stream(call, chunk({}, "tool_calls")), DONE)
    return Case(tools=TOOLS, answers=answers, ran=[NOTHING], results=[SKILLS], check=stored_as_json)


def no_input(*pieces: str) -> Case:
    """The same in the other dialect."""
    block = messages.tool("list_skills")
    deltas = [messages.delta(0, "input_json_delta", partial_json=piece) for piece in pieces]
    events = [messages.start(), messages.opened(0, {**block, "input": {}}), *deltas, messages.closed(0)]
    answer = messages.stream(*events, messages.ending("tool_use"), messages.STOP)
    return Case(model="anthropic", tools=TOOLS, answers=(answer, SAID_DONE), ran=[NOTHING], results=[SKILLS])


ARGUMENTS = {
    **{
        f"B038 {name}": Case(
            tools=TOOLS,
            answers=(calls(GOOD, ("read_file", raw)), DONE),
            ran=[GLOB],
            results=[PY, (INVALID, "not valid JSON")],
            check=told_of(raw),
        )
        for name, raw in BROKEN.items()
    },
    "B038 other dialect": Case(
        model="anthropic",
        tools=TOOLS,
        answers=(
            messages.message(messages.tool(*GOOD), messages.tool("read_file", BROKEN["no end"])),
            SAID_DONE,
        ),
        ran=[GLOB],
        results=[PY, (INVALID, "not valid JSON")],
    ),
    "B039": Case(
        tools=TOOLS,
        answers=(calls(("write_note", "{bad"), ("list_skills", "{bad")), DONE),
        results=[(INVALID, "{content: string"), (INVALID, "not valid JSON")],
        check=nothing_written,
    ),
    "B040": Case(
        tools=TOOLS,
        answers=(calls(*(("glob", raw) for raw in ("null", "[]", "42", '"x"', "true")), ("list_skills", "null")), DONE),
        ran=[NOTHING],
        results=[(INVALID, "pattern"), *[(INVALID, "must be a JSON object")] * 4, SKILLS],
    ),
    "B041 empty": no_arguments(""),
    "B041 blank": no_arguments(" "),
    "B041 null": no_arguments("null"),
    "B041 left out": no_arguments(None),
    "B041 other dialect, nothing": no_input(),
    "B041 other dialect, empty": no_input(""),
    "B041 something is required": Case(
        tools=TOOLS,
        answers=(calls(("read_file", "")), DONE),
        results=[(INVALID, "path")],
        check=missing_named,
    ),
    "B043 encoded twice": Case(
        tools=TOOLS,
        answers=(calls(("read_file", json.dumps(json.dumps({"path": "a.txt"})))), DONE),
        ran=[("read_file", {"path": "a.txt"})],
        results=[("ok", "alpha")],
    ),
    "B043 a list as a text": Case(
        tools=TOOLS,
        answers=(calls(("pick", json.dumps({"items": '[{"a": 1}]'})), ("pick", json.dumps({"items": "a"}))), DONE),
        ran=[("pick", {"items": [{"a": 1}]})],
        results=[("ok", "picked [{'a': 1}]"), (INVALID, "items")],
    ),
    "B044": Case(
        tools=TOOLS,
        answers=(calls(*(("write_note", json.dumps({"content": said})) for said in LOOKS_LIKE_JSON)), DONE),
        ran=[("write_note", {"content": said}) for said in LOOKS_LIKE_JSON],
        results=[("ok", f"wrote {said}") for said in LOOKS_LIKE_JSON],
        check=written_as_sent,
    ),
    "B046 task": named("execute_task", "name", "prompt", "error"),
    "B046 dispatch": named("dispatch_subagent", "agent_type", "task", INVALID),
}


@pytest.mark.spec("5.1")
@pytest.mark.case("B038", "B039", "B040", "B041", "B043", "B044", "B046")
@pytest.mark.parametrize("name", ARGUMENTS)
async def test_wrong_arguments_are_the_result_of_their_own_call_at_every_depth(
    faulty_models: Depths, name: str
) -> None:
    for met in await faulty_models.met(ARGUMENTS[name], name):
        holds(met)


@pytest.mark.spec("12.7")
@pytest.mark.case("B042", "B030")
@pytest.mark.parametrize("raw", ["", '{"path": "a'])
async def test_empty_and_broken_arguments_are_no_obstacle_after_a_restart_at_any_depth(
    tmp_path: Path, raw: str
) -> None:
    tool = "read_file" if raw else "list_skills"
    case = Case(tools=TOOLS, answers=(calls((tool, raw)), DONE))
    async with odd_service(tmp_path) as odd:
        world = Depths(odd)
        keys = {depth: f"restart/{depth}" for depth in DEPTHS}
        sessions: dict[int, str] = {}
        for depth, key in keys.items():
            world.play(case, key, depth)
            run = await world.client.request("POST", "/v1/runs", {**session_of(case, key, depth), "input": "Begin."})
            sessions[depth] = run["session_id"]
            assert (await finished(world.client, run["id"]))["status"] == "completed"
        await world.service.kill()
        await world.service.start()
        async with world.service.client() as client:
            for key in keys.values():
                world.play(Case(answers=(DONE,)), key, int(key[-1]))
            starts = [client.request("POST", f"/v1/sessions/{s}/runs", {"input": "Go on."}) for s in sessions.values()]
            ends = await asyncio.gather(*(finished(client, run["id"]) for run in await asyncio.gather(*starts)))
            assert [end["status"] for end in ends] == ["completed"] * 3
            for depth, session in sessions.items():
                sent = [c for m in world.requests(case, keys[depth])[-1].messages for c in m.get("tool_calls") or ()]
                assert len(sent) == 1
                assert isinstance(json.loads(sent[0]["function"]["arguments"]), dict)
                rows = (await client.page("/v1/audit", session_id=session, agent="subject", limit=100))["items"]
                kept = [call["arguments"] for row in rows for call in row["tool_calls"] or ()]
                assert kept == [raw], "the audit log has the text that was sent"
                events = await events_of(client, f"/v1/sessions/{session}/events")
                assert [e["data"]["tool"] for e in events if e["type"] == "tool.start"].count(tool) == (not raw)
        assert odd.refused() == []
