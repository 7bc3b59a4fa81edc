"""Whom a run may delegate to and by which tool: surfaces name agents, whitelists name tools, a fallback is neither."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.agent.definition import Surface, SurfaceKind
from app.agent.errors import InvalidRequest
from app.agent.orders import HandoffOrder
from app.agent.policy import HandoffPolicy
from app.agent.runs import HandoffStatus
from app.agent.tools import ToolContext, ToolResult
from tests.agent.desk import PARENT, WAIT_S, Desk, agent, done
from tests.agent.handoff_events import told
from tests.agent.probes import Probe
from tests.agent.test_fallbacks import FAILING, call_of, end_of
from tests.plan import ask, call, task
from tests.world import world

NAMED = {"execute_task": "name", "dispatch_subagent": "agent_type"}


def names_of(desk: Desk, *surfaces: Surface, **fields: Any) -> list[str]:
    """The tools that surfaces come to."""
    return [tool.spec.name for tool in desk.offer(*surfaces, **fields).tools]


# ── agents by name, tools by name ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("3.1", "14.1")
def test_a_surface_names_agents_and_never_one_whose_tool_is_called_so() -> None:
    agents = [agent("x"), agent("spy", tool_name="y"), agent("z", tool_name="x")]
    desk = Desk()
    for wanted, offered in ((("y",), []), (("x",), ["subagent_x"]), (("spy", "z"), ["y", "x"]), (("subagent_x",), [])):
        surface = Surface(kind=SurfaceKind.PER_AGENT, agents=wanted)
        assert names_of(desk, surface, agents=agents) == offered


@pytest.mark.spec("3.1", "7.2")
@pytest.mark.parametrize(("listed", "agent_name"), [("y", "spy"), ("subagent_plain", "plain")])
async def test_a_whitelist_that_names_an_agent_s_tool_offers_it_and_nobody_else_s(
    tmp_path: Path, listed: str, agent_name: str
) -> None:
    async with world(tmp_path) as w:
        agents = [w.node(tools=[listed]), w.node("spy", tool_name="y"), w.node("plain"), w.node("y")]
        plan = task({"calls": [call(listed, task=task("found"))]}, "end")
        row = await w.finished(await w.run(plan, agents=agents, surfaces=["dispatch"]))
        assert row["output"] == "end"
        assert [spec.name for spec in w.requests[0].tools] == [listed]
        assert [r["agent"] for r in await w.rows("runs", depth=1)] == [agent_name]


@pytest.mark.spec("3.1", "7.2")
@pytest.mark.seed("000", 23)
async def test_a_whitelist_that_names_a_tool_of_two_agents_is_refused_and_not_decided_by_chance(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        twins = [w.node("one", tool_name="ask"), w.node("two", tool_name="ask")]
        with pytest.raises(InvalidRequest, match="duplicate subagent tool name 'ask'") as refused:
            await w.session(agents=[w.node(tools=["ask"]), *twins])
        assert refused.value.code == "duplicate_tool_name"
        await w.session(agents=[w.node(tools=["Agent"]), *twins]), "where nobody asks for the tool they do no harm"


@pytest.mark.spec("3.2", "3.3", "7.2")
@pytest.mark.parametrize("kind", [SurfaceKind.TASK, SurfaceKind.DISPATCH])
async def test_two_surfaces_of_one_tool_allow_together_what_each_of_them_allows(kind: SurfaceKind) -> None:
    agents = [agent(name) for name in ("a", "b", "c")]
    desk = Desk(done("x"), agents=agents)
    both = (Surface(kind=kind, agents=("a",)), Surface(kind=kind, agents=("b",)))
    desk.delegation = desk.offer(*both, agents=agents)
    tool = desk.delegation.tools[0]
    assert names_of(desk, *both, agents=agents).count(tool.spec.name) == 1
    shown = tool.spec.description + str(tool.spec.parameters)
    assert [f"The {name}." in shown for name in "abc"] == [True, True, False]
    texts: Any = {"description": "d", "prompt": "p"} if kind is SurfaceKind.TASK else {"task": "p"}
    results = [await desk.raw(tool.spec.name, {NAMED[tool.spec.name]: name, **texts}) for name in "ab"]
    assert [result.is_error for result in results] == [False, False]
    assert [request.definition.name for request in desk.runs.requests] == ["a", "b"]
    open_to_all = desk.offer(both[0], Surface(kind=kind), agents=agents).tools[0]
    assert "The c." in open_to_all.spec.description + str(open_to_all.spec.parameters)


@pytest.mark.spec("3.3", "7.1")
@pytest.mark.parametrize("sent", [["none"], {"none": 1}, 1, True, "all of it"], ids=str)
@pytest.mark.parametrize(
    ("kind", "inherits"),  # a tool of an agent that inherits nothing passes over keys that it does not know
    [
        (kind, inherits)
        for kind in SurfaceKind
        for inherits in ("last:1", None)
        if inherits or kind.value != "per_agent"
    ],
)
async def test_an_inheritance_that_is_no_word_of_the_tool_is_an_error_that_names_it(
    tmp_path: Path, kind: SurfaceKind, inherits: str | None, sent: Any
) -> None:
    async with world(tmp_path) as w:
        agents = [w.node(**({"inherit_context": inherits} if inherits else {}))]
        calls = [
            call(made["tool"], **made["arguments"], inherit_context=wanted)
            for made in [call_of(kind.value, task("x"))]
            for wanted in (sent, "none")
        ]
        row = await w.finished(await w.run(task({"calls": calls}, "end"), agents=agents, surfaces=[kind.value]))
        assert row["output"] == "end"
        wrong, right = await told(w, row["session_id"])
        assert (wrong["status"], wrong["is_error"]) == ("invalid_arguments", True)
        assert "inherit_context" in wrong["content"]
        assert (right["is_error"], "x" in right["content"]) == (False, True)


# ── what stands in ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("4.1", "7.2", "14.1")
@pytest.mark.parametrize("own", [False, True])
async def test_an_agent_outside_the_list_of_a_run_stands_in_only_where_its_own_definition_says_so(
    tmp_path: Path, own: bool
) -> None:
    async with world(tmp_path) as w:
        reaction = {"on_error": {"agent": "helper"}}
        lead = w.node(tools="Agent(failing)", handoff=reaction if own else {})
        agents = [lead, w.node("failing"), w.node("helper")]
        plan = task({"calls": [ask(FAILING, "failing")]}, "end")
        row = await w.finished(await w.run(plan, agents=agents, policy={} if own else reaction))
        assert row["output"] == "end"
        end = await end_of(w, row)
        asked = [r["agent"] for r in await w.rows("runs", session_id=row["session_id"], depth=1)]
        if own:
            assert asked == ["failing", "helper"]
            assert end["fallback"] == {"kind": "agent", "target": "helper"}
        else:
            assert (asked, end["status"], end.get("fallback")) == (["failing"], "failed", None)
            assert "'helper' is none of those that the run may delegate to" in end["error"]["message"]


@pytest.mark.spec("3.7", "4.1", "5.2")
@pytest.mark.parametrize("safe", [False, True])
async def test_an_ordinary_tool_that_stands_in_runs_side_by_side_with_itself_only_if_it_may(
    tmp_path: Path, safe: bool
) -> None:
    inside, most = 0, 0

    async def body(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        for _ in range(20):
            await asyncio.sleep(0)
        inside -= 1
        return "by hand"

    primary = Probe("dispatch_subagent", body, read_only=True, concurrency_safe=safe)
    async with world(tmp_path, tools=[primary]) as w:
        policy = {"max_depth": 0, "on_denied": "fallback_to_primary"}
        calls = [ask(task(str(number))) for number in range(4)]
        row = await w.finished(await w.run(task({"calls": calls}, "end"), policy=policy))
        assert [result["content"] for result in await told(w, row["session_id"])] == ["by hand"] * 4
        assert (most, len(primary.arguments)) == (4 if safe else 1, 4)


@pytest.mark.spec("4.5", "13.3")
@pytest.mark.parametrize("choice", ["dispatch_subagent", "required", "glob"])
async def test_a_tool_that_is_hidden_at_the_limit_of_depth_is_not_asked_for(tmp_path: Path, choice: str) -> None:
    async with world(tmp_path) as w:
        plan = task({"calls": [ask(task("bottom"))]}, "end")
        row = await w.finished(await w.run(plan, agents=[w.node(tool_choice=choice)], policy={"max_depth": 1}))
        assert row["output"] == "end"
        bottom = next(r for r in w.requests if r.messages[1].content == task("bottom"))
        assert "dispatch_subagent" not in [spec.name for spec in bottom.tools]
        assert (w.requests[0].tool_choice, bottom.tool_choice) == (
            choice,
            None if choice == "dispatch_subagent" else choice,
        )


# ── tasks that one works on ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("3.2")
async def test_nobody_waits_for_a_task_that_it_works_on_nor_for_one_above_it() -> None:
    desk = Desk(None, surface=SurfaceKind.TASK, policy=HandoffPolicy(max_depth=3))
    child = replace(PARENT, id="run_1", parent_id=PARENT.id, depth=1, handoff_id="")
    order: dict[str, Any] = {"name": "helper", "description": "look at things", "prompt": "Work."}
    above = asyncio.create_task(desk.call("execute_task", **order))
    child = replace(child, handoff_id=await desk.notes.started())
    below = HandoffOrder(tool="execute_task", surface="task", definition=agent(), task="Work.")
    under_way = asyncio.create_task(desk.handoffs.delegate(replace(desk.by, run=child), below))
    grandchild = replace(PARENT, id="run_2", depth=2, handoff_id=await desk.notes.started())
    desk.runs.above = {"run_1": (PARENT.id,), "run_2": (PARENT.id, "run_1")}

    async def output(asking: Any, task_id: str | None) -> ToolResult:
        context = ToolContext(
            session=desk.by.session, run=asking, step=1, call_id="call_2", workspace=Path(), deadline=None,
            progress=lambda _: None,
        )  # fmt: skip
        async with asyncio.timeout(WAIT_S):
            given = {"task_id": task_id, "timeout": 600_000}
            result = await desk.tool("get_task_output").call(given, context)
        assert isinstance(result, ToolResult)
        return result

    for asking, of in ((child, child), (grandchild, child), (grandchild, grandchild)):
        result = await output(asking, of.handoff_id)
        assert "Status: Running" in result.content
        assert "Task still running..." in result.content
    await desk.runs.cancel("run_1")
    async with asyncio.timeout(WAIT_S):
        await above
        ended = await under_way
    assert ended.status is HandoffStatus.CANCELLED
