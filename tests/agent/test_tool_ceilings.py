"""`inherit_tools: intersect`: nobody has a tool that whoever delegates to it does not have, on every surface."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.agent.definition import AgentDefinition, ToolCeiling
from app.agent.delegation import ceiling_of, whitelist_of
from app.agent.policy import NO_POLICY, HandoffPolicy, PolicyFields, ToolInherit
from app.agent.tools import ToolShelf
from tests.agent.guarded import commands
from tests.agent.probes import Probe, echo
from tests.plan import ask, call, task
from tests.world import World, agent, world

pytestmark = pytest.mark.spec("7.2")
CEILING = {"max_depth": 4, "inherit_tools": "intersect"}
SURFACES = {
    "dispatch": ("dispatch_subagent", {"agent_type": "{agent}", "task": "{task}"}),
    "task": ("execute_task", {"name": "{agent}", "description": "a short one", "prompt": "{task}"}),
    "per_agent": ("subagent_{agent}", {"task": "{task}"}),
    "subagent": ("subagent", {"research_prompt": "{task}"}),
}


def handed(surface: str, plan: str, to: str) -> dict[str, Any]:
    """A call of that surface."""
    tool, arguments = SURFACES[surface]
    filled = {key: value.replace("{agent}", to).replace("{task}", plan) for key, value in arguments.items()}
    return call(tool.replace("{agent}", to), **filled)


def definition(name: str, *tools: str) -> AgentDefinition:
    return AgentDefinition(name=name, description="d", prompt="p", tools=tools)


def ceiling(names: tuple[str, ...]) -> ToolCeiling:
    return ceiling_of(names, (), None, (), None)


async def tools_of(w: World, session_id: str) -> dict[str, list[str]]:
    """What each agent was shown when it started."""
    return {e["agent"]: e["data"]["tools"] for e in await w.events(session_id, "run.started")}


@pytest.mark.spec("7.2", "3.1", "3.2", "3.3", "3.4")
@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("policy", [CEILING, {"max_depth": 4}])
async def test_a_child_has_no_ordinary_tool_that_its_parent_lacks_on_any_surface(
    tmp_path: Path, surface: str, policy: dict[str, Any]
) -> None:
    lead = agent("lead", tools=["Agent", "read_file", "glob"])
    worker = agent("worker", tools=["read_file", "grep", "run_command"])
    async with world(tmp_path, tools=[commands()], default_subagent="worker") as w:
        plan = task({"calls": [handed(surface, task("done"), "worker")]}, "end")
        row = await w.finished(
            await w.run(plan, agent="lead", agents=[lead, worker], surfaces=[surface], policy=policy)
        )
        found = await tools_of(w, row["session_id"])
        assert found["worker"] == (["read_file"] if policy is CEILING else ["read_file", "grep", "run_command"])
        assert {"read_file", "glob"} <= set(found["lead"])


@pytest.mark.spec("7.2", "7.7")
@pytest.mark.case("B203")
def test_tools_of_a_server_that_is_down_are_no_delegation_that_agent_covers() -> None:
    lead, child = definition("lead", "read_file", "Agent"), definition("child", "mcp__x", "read_file", "Agent")
    granted = definition("granted", "mcp__x", "subagent_y", "Agent")
    shelf = ToolShelf([Probe("read_file", echo)])
    below = ceiling(whitelist_of(lead, shelf))
    assert whitelist_of(child, shelf, ceiling=below) == ("read_file", "Agent")
    shelf.put("mcp__x", [Probe("mcp__x__delete", echo)])
    assert whitelist_of(child, shelf, ceiling=below) == ("read_file", "Agent")
    has = ceiling(whitelist_of(granted, shelf))
    assert has.tools == ("mcp__x__delete", "subagent_y", "Agent")
    shelf.put("mcp__x", [])
    assert whitelist_of(definition("leaf", "Agent"), shelf, ceiling=replace(has, tools=has.tools[:2])) == (
        "subagent_y",
    )


async def test_the_ceiling_is_that_of_all_above_and_a_tool_that_one_of_them_lacks_is_unknown_below(
    tmp_path: Path,
) -> None:
    tool = commands()
    agents = [
        agent("lead", tools=["Agent", "read_file", "run_command"]),
        agent("middle", tools=["Agent", "read_file"], handoff={"inherit_tools": "own"}),
        agent("leaf", tools=["read_file", "run_command"]),
    ]
    leaf = task({"calls": [call("run_command", command="ls")]}, "leaf")
    plan = task({"calls": [ask(task({"calls": [ask(leaf, "leaf")]}, "middle"), "middle")]}, "end")
    async with world(tmp_path, tools=[tool]) as w:
        row = await w.finished(await w.run(plan, agent="lead", agents=agents, policy=CEILING))
        assert (await tools_of(w, row["session_id"]))["leaf"] == ["read_file"]
        statuses = [event["data"]["status"] for event in await w.events(row["session_id"], "tool.result")]
        assert (statuses[0], tool.arguments) == ("unknown_tool", [])


@pytest.mark.parametrize(
    ("above", "below", "shown"),
    [
        (["Agent"], ["Agent"], {"dispatch_subagent"}),
        (["Agent(node, leaf)"], ["Agent"], {"dispatch_subagent"}),
        (["dispatch_subagent"], ["execute_task"], set()),
        (["dispatch_subagent"], ["Agent"], {"dispatch_subagent"}),
        (["execute_task"], ["Agent"], {"execute_task", "get_task_output", "cancel_task", "list_tasks"}),
        (["subagent_node"], ["Agent"], {"subagent_node"}),
        (["Agent"], ["subagent_leaf"], {"subagent_leaf"}),
        (["Agent(node)"], ["subagent_leaf"], set()),
    ],
)
async def test_ways_to_delegate_are_bounded_like_tools(
    tmp_path: Path, above: list[str], below: list[str], shown: set[str]
) -> None:
    agents = [agent("lead", tools=above), agent("node", tools=[*below]), agent("leaf", tools=[])]
    surface = {"execute_task": "task", "subagent_node": "per_agent"}.get(above[0], "dispatch")
    async with world(tmp_path) as w:
        plan = task({"calls": [handed(surface, task("done"), "node")]}, "end")
        row = await w.finished(await w.run(plan, agent="lead", agents=agents, policy=CEILING))
        assert row["output"] == "end"
        assert set((await tools_of(w, row["session_id"]))["node"]) == shown


async def test_whom_a_child_may_ask_is_bounded_as_well(tmp_path: Path) -> None:
    agents = [agent("lead", tools=["Agent(node)"]), agent("node", tools=["Agent"]), agent("leaf", tools=[])]
    async with world(tmp_path) as w:
        inner = task({"calls": [ask(task("x"), "leaf")]}, "inner")
        plan = task({"calls": [ask(inner, "node")]}, "end")
        row = await w.finished(await w.run(plan, agent="lead", agents=agents, policy=CEILING))
        first = next(event["data"] for event in await w.events(row["session_id"], "tool.result"))
        assert (first["is_error"], set(await tools_of(w, row["session_id"]))) == (True, {"lead", "node"})
        open_policy = {"max_depth": 4}
        row = await w.finished(await w.run(plan, agent="lead", agents=agents, policy=open_policy))
        assert "leaf" in await tools_of(w, row["session_id"])


@pytest.mark.spec("7.2", "8.4")
async def test_patterns_by_which_tools_were_granted_above_bind_those_below(tmp_path: Path) -> None:
    tool = commands()
    agents = [
        agent("lead", tools=["Agent", "Bash(git *)", "Read"]),
        agent("node", tools=["Agent", "Bash"]),
        agent("leaf", tools=["Bash(git log *)", "Read"]),
    ]

    def runs(*lines: str) -> list[dict[str, Any]]:
        return [call("run_command", command=line) for line in lines]

    leaf = task({"calls": runs("git log x", "git status")}, "leaf")
    node = task({"calls": [*runs("git status", "ls"), ask(leaf, "leaf")]}, "node")
    async with world(tmp_path, tools=[tool]) as w:
        plan = task({"calls": [ask(node, "node")]}, "end")
        await w.finished(await w.run(plan, agent="lead", agents=agents, policy=CEILING))
        assert sorted(given["command"] for given in tool.arguments) == ["git log x", "git status"]
        tool.arguments.clear()
        await w.finished(await w.run(plan, agent="lead", agents=agents))
        assert sorted(given["command"] for given in tool.arguments) == ["git log x", "git status", "ls"]


async def test_the_agent_that_stands_in_has_the_same_ceiling(tmp_path: Path) -> None:
    agents = [
        agent("lead", tools=["Agent", "read_file"]),
        agent("node", tools=["read_file"]),
        agent("spare", tools=["read_file", "grep"]),
    ]
    fails = task({"error": {"code": "quota", "message": "none left", "retryable": False}})
    async with world(tmp_path) as w:
        policy = {**CEILING, "on_error": {"agent": "spare"}}
        plan = task({"calls": [ask(fails, "node")]}, "end")
        await w.finished(run := await w.run(plan, agent="lead", agents=agents, policy=policy))
        assert (await tools_of(w, run.session_id))["spare"] == ["read_file"]


def test_a_policy_that_intersects_is_not_widened_below() -> None:
    policy = HandoffPolicy(inherit_tools=ToolInherit.INTERSECT)
    own = PolicyFields(inherit_tools=ToolInherit.OWN)
    assert policy.narrowed(own).inherit_tools is policy.narrowed(NO_POLICY).inherit_tools is ToolInherit.INTERSECT
    assert HandoffPolicy().narrowed(PolicyFields(inherit_tools=ToolInherit.INTERSECT)) == policy
    assert policy.replaced(own).inherit_tools is ToolInherit.OWN
