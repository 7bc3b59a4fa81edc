"""The delegation tools as a model sees them: their names, what they take, which of them there are."""

import json
from pathlib import Path

import pytest

from app.agent.errors import InvalidRequest
from tests.agent.handoff_events import child_call, kinds, told
from tests.agent.probes import Probe, echo
from tests.plan import ask, raw_call, task
from tests.world import agent, world


@pytest.mark.spec("3.7", "7.2")
async def test_an_ordinary_tool_of_a_delegations_name_is_hidden(tmp_path: Path) -> None:
    impostors = (Probe("dispatch_subagent", echo), Probe("subagent_node", echo))
    for surface in ("dispatch", "per_agent"):
        folder = tmp_path / surface
        folder.mkdir()
        async with world(folder, tools=impostors) as w:
            definition = agent("node", tools=["Agent", "glob", *(i.spec.name for i in impostors)][:3])
            row = await w.finished(
                await w.run(task({"calls": [child_call(task("child"), surface)]}, "end"), agents=[definition],
                            surfaces=[surface])
            )  # fmt: skip
            (result,) = await told(w, row["session_id"])
            assert "child" in result["content"]
            assert [len(probe.arguments) for probe in impostors] == [0, 0]


@pytest.mark.spec("3.1")
async def test_a_per_agent_tool_takes_what_the_model_sends_as_it_is(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        sent = ["plain words", "", '{"task": "t", "context": "c"}', '{"input": "i"}', "{}", '{"task": "cut']
        run = await w.run(
            task({"calls": [raw_call("subagent_node", raw) for raw in sent]}, "end"), surfaces=["per_agent"]
        )
        row = await w.finished(run)
        assert row["status"] == "completed"
        inputs = [e["data"]["input"] for e in await w.events(row["session_id"], "handoff.start")]
        assert inputs == ["plain words", "", "t\n\nContext:\nc", "i", '{"task": "cut']
        results = await told(w, row["session_id"])
        assert (results[4]["is_error"], "task" in results[4]["content"]) == (True, True)
        assert json.loads(results[1]["content"])["output"] == "echo: (empty task)"


@pytest.mark.spec("3.1")
async def test_an_agent_with_an_input_schema_takes_its_fields_as_canonical_json(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}, "required": ["a"]}
    async with world(tmp_path) as w:
        calls = [raw_call("subagent_node", ' {"b": 2, "a": "é"} '), raw_call("subagent_node", '{"b": 1}')]
        row = await w.finished(
            await w.run(task({"calls": calls}, "end"), agents=[w.node(input_schema=schema)], surfaces=["per_agent"])
        )
        assert [e["data"]["input"] for e in await w.events(row["session_id"], "handoff.start")] == ['{"a":"é","b":2}']
        assert [r["status"] for r in await told(w, row["session_id"])] == ["ok", "invalid_arguments"]


@pytest.mark.spec("3.1")
@pytest.mark.parametrize("surfaces", [["per_agent"], ["dispatch", "per_agent"], ["per_agent", "dispatch"]])
async def test_two_delegation_tools_of_one_name_are_refused_when_the_session_is_made(
    tmp_path: Path, surfaces: list[str]
) -> None:
    names = {"tool_name": "subagent_a"} if len(surfaces) == 1 else {"tool_name": "dispatch_subagent"}
    async with world(tmp_path) as w:
        with pytest.raises(InvalidRequest, match="duplicate subagent tool name"):
            await w.session(agents=[w.node(), agent("a"), agent("b", **names)], surfaces=surfaces)
        assert await w.rows("sessions") == [], "what is refused leaves nothing behind"


@pytest.mark.spec("3.3", "4.2")
@pytest.mark.case("B046")
async def test_an_unknown_agent_is_an_error_that_lists_the_valid_ones_and_no_handoff(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        calls = [ask(task("x"), agent="nobody"), ask(task("found"), agent=" 'NODE' ")]
        row = await w.finished(await w.run(task({"calls": calls}, "end")))
        first, second = await told(w, row["session_id"])
        assert (first["is_error"], "Valid types: node" in first["content"]) == (True, True)
        assert second["content"] == "found"
        assert await kinds(w, row["session_id"]) == ["start", "completed"]


@pytest.mark.spec("2.4", "12.6")
async def test_names_are_normalised_unique_in_the_session_and_hold_no_secret(tmp_path: Path) -> None:
    secret = "sk-0123456789"
    async with world(tmp_path, secrets=[secret]) as w:
        wanted = ["Finder One", "Finder One", None, None, "研究员", f"for {secret}", "  ", "x" * 500]
        calls = [ask(task("x"), **({} if name is None else {"subagent_name": name})) for name in wanted]
        session = await w.session()
        await w.finished(await w.turn(session, task({"calls": calls}, "end")))
        await w.finished(await w.turn(session, task({"calls": [ask(task("y"), subagent_name="Finder One")]}, "end")))
        names = [e["data"]["name"] for e in await w.events(session, "handoff.start")]
        assert names[:2] == ["Finder_One", "Finder_One_2"]
        assert names[-1] == "Finder_One_3"
        assert names[4] == "研究员"
        assert [name.startswith("sub_") and len(name) == 12 for name in names] == [
            False, False, True, True, False, False, True, False, False,
        ]  # fmt: skip
        assert len(set(names)) == len(names)
        assert max(map(len, names)) <= 64
        everything = json.dumps(await w.events(session)) + json.dumps(await w.rows("runs"), default=str)
        assert secret not in everything


@pytest.mark.spec("7.2", "3.3")
async def test_a_delegation_tool_that_a_definition_disallows_is_not_there(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        definition = w.node(disallowed_tools=["dispatch_subagent", "grep"])
        row = await w.finished(await w.run(task({"calls": [ask(task("x"))]}, "end"), agents=[definition]))
        assert [spec.name for spec in w.requests[0].tools] == ["read_file", "glob"]
        assert (await told(w, row["session_id"]))[0]["status"] == "unknown_tool"
