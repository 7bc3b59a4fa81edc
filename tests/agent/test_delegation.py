"""Which delegation tools a run has: what its whitelist brings, whose names collide, what hides what."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.agent import supervisor
from app.agent.definition import AgentDefinition, AgentMode, Surface, SurfaceKind
from app.agent.delegation import DEFAULT_SURFACES, Roster, chosen, registry_with, surfaces_of, tool_names
from app.agent.errors import InvalidRequest
from app.agent.tools import ToolRegistry
from tests.agent import desk as at
from tests.agent.desk import SESSION, Desk
from tests.agent.handoff_events import child_call, kinds, told
from tests.agent.probes import Probe, echo
from tests.agent.steps import lines_of
from tests.plan import ask, raw_call, task
from tests.world import agent, world

DISPATCH, PER_AGENT, TASK, SUBAGENT = (
    SurfaceKind.DISPATCH, SurfaceKind.PER_AGENT, SurfaceKind.TASK, SurfaceKind.SUBAGENT,
)  # fmt: skip


def lead(**fields: Any) -> AgentDefinition:
    """The definition of a parent."""
    return at.agent("boss", **fields)


@pytest.mark.spec("7.2")
def test_where_nobody_chose_a_surface_it_is_task() -> None:
    assert [surface.kind for surface in chosen(None, None)] == [TASK]
    assert chosen(None, (), DEFAULT_SURFACES) == ()


@pytest.mark.spec("7.2", "3.2")
def test_a_surface_is_brought_by_its_tools_name_as_it_was_set_and_companions_bring_nothing() -> None:
    applying = [Surface(kind=TASK, agents=("a", "b"), templates={"execute_task": "Mine."}), Surface(kind=PER_AGENT)]
    assert surfaces_of(lead(), ["Agent"], applying) == applying
    assert surfaces_of(lead(), ["execute_task"], applying) == applying[:1]
    assert surfaces_of(lead(), ["dispatch_subagent", "subagent"], applying) == [
        Surface(kind=DISPATCH), Surface(kind=SUBAGENT),
    ]  # fmt: skip
    assert surfaces_of(lead(), ["get_task_output", "cancel_task", "list_tasks", "grep"], applying) == []
    assert surfaces_of(lead(), None, applying) == []


@pytest.mark.spec("7.2")
def test_agent_with_names_narrows_every_surface_and_keeps_its_templates() -> None:
    applying = [
        Surface(kind=TASK, agents=("a", "b"), templates={"execute_task": "Mine."}),
        Surface(kind=SUBAGENT, templates={"heading": None}),
    ]
    assert surfaces_of(lead(agents=("b", "c")), ["Agent"], applying) == [
        Surface(kind=TASK, agents=("b",), templates={"execute_task": "Mine."}),
        Surface(kind=SUBAGENT, agents=("b", "c"), templates={"heading": None}),
    ]


@pytest.mark.spec("7.2", "3.1")
def test_the_tool_name_of_an_agent_brings_its_own_tool_and_nothing_comes_twice() -> None:
    agents = [at.agent("x"), at.agent("y", tool_name="ask_y"), at.agent("研究员")]
    names = tool_names(agents)
    assert names == {"subagent_x": ("x",), "ask_y": ("y",)}
    wanted = surfaces_of(lead(agents=("nobody",)), ["subagent_x", "ask_y", "grep", "subagent_x"], [], names)
    assert wanted == [Surface(kind=PER_AGENT, agents=("x", "y"))]
    both = surfaces_of(lead(), ["Agent", "ask_y"], [Surface(kind=PER_AGENT, agents=("x", "y"))], names)
    tools = Desk().offer(*both, agents=agents).tools
    assert [tool.spec.name for tool in tools] == ["subagent_x", "ask_y"]


class Agents:
    """A catalog."""

    def __init__(self, *found: AgentDefinition) -> None:
        self._found = {each.name: each for each in found}

    def get(self, tenant: str, name: str) -> AgentDefinition | None:
        """One of them."""
        return self._found.get(name)

    def names(self, tenant: str) -> list[str]:
        """All of them."""
        return sorted(self._found)


@pytest.mark.spec("3.4", "14.1")
def test_the_default_subagent_is_one_that_the_session_may_delegate_to() -> None:
    roster = Roster(Agents(at.agent("a"), at.agent("b"), at.agent("boss", mode=AgentMode.PRIMARY)))

    def found(fallback: str | None, **fields: Any) -> str | None:
        definition = roster.default_subagent(replace(SESSION, **fields), fallback)
        return definition.name if definition else None

    assert found("b") == "b"
    assert found("b", default_subagent="a") == "a"
    assert found("b", default_subagent="boss") is None
    assert found("b", agents=("a",)) == "a"
    assert found("b", agents=("a",), default_subagent="b") is None
    assert found(None) is None


@pytest.mark.spec("3.1", "3.2")
@pytest.mark.parametrize("name", ["execute_task", "get_task_output", "dispatch_subagent", "subagent"])
def test_an_agents_tool_may_not_have_the_name_of_another_surfaces_tool(name: str) -> None:
    for kinds_of in ((PER_AGENT, TASK, DISPATCH, SUBAGENT), (SUBAGENT, DISPATCH, TASK, PER_AGENT)):
        with pytest.raises(InvalidRequest, match="duplicate subagent tool name") as refused:
            Desk().offer(*kinds_of, agents=[at.agent(tool_name=name)], default=at.agent())
        assert refused.value.code == "duplicate_tool_name"


@pytest.mark.spec("3.1")
def test_an_agent_without_a_tool_name_is_in_the_way_only_where_its_tool_is_wanted() -> None:
    agents = [at.agent("研究员"), at.agent("x")]
    only = Surface(kind=PER_AGENT, agents=("x",))
    assert [tool.spec.name for tool in Desk().offer(only, agents=agents).tools] == ["subagent_x"]
    with pytest.raises(InvalidRequest, match="set tool_name"):
        Desk().offer(PER_AGENT, agents=agents)


@pytest.mark.spec("3.2", "7.2")
def test_what_a_definition_disallows_is_not_there_and_execute_task_takes_its_companions_along() -> None:
    assert Desk().offer(TASK, disallowed=["execute_task"]).tools == ()
    fewer = Desk().offer(TASK, SUBAGENT, disallowed=["cancel_task", "subagent"], default=at.agent()).tools
    assert [tool.spec.name for tool in fewer] == ["execute_task", "get_task_output", "list_tasks"]


@pytest.mark.spec("3.7", "4.1")
def test_a_hidden_ordinary_tool_is_kept_as_the_primary_of_its_name() -> None:
    hidden, other = Probe("subagent_helper", echo), Probe("grep", echo)
    registry = registry_with(ToolRegistry([hidden, other]), Desk(surface=PER_AGENT).delegation)
    assert list(registry) == ["subagent_helper", "grep"]
    assert registry["subagent_helper"] is not hidden
    assert registry.primaries == {"subagent_helper": hidden}


# ── in a running service ────────────────────────────────────────────────────────────────────────────────────────


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


@pytest.mark.spec("2.4")
async def test_thousands_who_want_one_name_get_one_each_and_nobody_tries_all_that_are_taken(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.sessions.known(w.tenant, await w.session())
        async with w.sessions.opened(session):
            names: list[str] = []

            def take(count: int) -> None:
                names.extend(w.supervisor.name(session, "scout") for _ in range(count))

            few = lines_of(supervisor, lambda: take(400))
            many = lines_of(supervisor, lambda: take(3_600))
        assert names == ["scout", *(f"scout_{number}" for number in range(2, 4_001))]
        assert many <= 10 * few


@pytest.mark.spec("7.2", "3.3")
async def test_a_delegation_tool_that_a_definition_disallows_is_not_there(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        definition = w.node(disallowed_tools=["dispatch_subagent", "grep"])
        row = await w.finished(await w.run(task({"calls": [ask(task("x"))]}, "end"), agents=[definition]))
        assert [spec.name for spec in w.requests[0].tools] == ["read_file", "glob"]
        assert (await told(w, row["session_id"]))[0]["status"] == "unknown_tool"
