"""Seed 003 (dispatch_subagent) over HTTP: one result comes back, whitelists are the boundary, the five identities, and
what can be checked afterwards."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.flows import surface_world
from tests.flows.surface_world import World, once
from tests.service import agent, events_of
from tests.stubs.openai_stub import Answer, Request, calls, text

READ_ONLY = ["read_file", "grep", "glob"]
LATER = ["write_file", "edit_file", "run_command", "web_fetch", "load_skill"]
WRITER = """---
name: writer
description: Writes as it likes.
tools: Read, Zap!, Grep
---
You may write, delete and execute everything.
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """One service with a directory of an operator's agents, and one model server."""
    (tmp_path / "subagentd.toml").write_text('agents = ["agents"]\n')
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "writer.md").write_text(WRITER)
    async with surface_world.surface_world(tmp_path) as made:
        for name in ("one.txt", "two.txt"):
            (made.service.workspace / name).write_text(f"The long content of {name}.\n")
        yield made


def boss(**fields: Any) -> dict[str, Any]:
    """The parent; it dispatches."""
    return surface_world.boss(**{"surfaces": ["dispatch"], **fields})


def dispatch(name: str, task: str = "Work.") -> tuple[str, str]:
    """A call of `dispatch_subagent`."""
    return "dispatch_subagent", json.dumps({"agent_type": name, "task": task})


def results(request: Request) -> list[str]:
    """The tool results in a history."""
    return [m["content"] for m in request.messages if m["role"] == "tool"]


def names_of(request: Request) -> list[str]:
    """The names of the tools that a model was shown."""
    return [tool["function"]["name"] for tool in request.body.get("tools", [])]


async def tree_of(world: World, run: dict[str, Any]) -> dict[str, Any]:
    """The root of a run's tree."""
    tree = await world.client.request("GET", f"/v1/sessions/{run['session_id']}/tree")
    root: dict[str, Any] = tree["runs"][0]
    return root


async def rows_of(world: World, run_id: str) -> list[dict[str, Any]]:
    """What was kept of a run, the oldest first."""
    rows: list[dict[str, Any]] = (await world.client.page(f"/v1/runs/{run_id}/messages"))["items"]
    return rows


@pytest.mark.spec("2.1", "3.3", "7.2")
@pytest.mark.seed("003", 99, 100, 107, 117)
async def test_the_dirty_work_stays_below_and_one_result_for_each_dispatch_comes_back(world: World) -> None:
    def decide(request: Request) -> Answer:
        prompt, told = request.messages[0]["content"], results(request)
        if prompt == "You are boss.":
            return (
                text(" + ".join(told)) if told else calls(dispatch("reader", "one.txt"), dispatch("reader", "two.txt"))
            )
        path = request.messages[1]["content"]
        return text(f"Sum of {path}") if told else calls(("read_file", json.dumps({"path": path})))

    run = await world.run(decide, [boss(tools=["read_file", "Agent"]), agent("reader", tools=["read_file"])])
    first, last = world.of("You are boss.")
    assert sorted(names_of(first)) == ["dispatch_subagent", "read_file"], "one tool beside the ordinary ones"
    assert run["output"] == "Sum of one.txt + Sum of two.txt"
    assert [m["role"] for m in last.messages] == ["system", "user", "assistant", "tool", "tool"]
    assert "long content" not in json.dumps(last.body)
    children = (await tree_of(world, run))["children"]
    assert len({child["memory_id"] for child in children} | {run["memory_id"]}) == 3, "a history for each"
    for child, name in zip(children, ("one.txt", "two.txt"), strict=True):
        rows = await rows_of(world, child["id"])
        assert [row["role"] for row in rows] == ["system", "user", "assistant", "tool", "assistant"]
        assert [row["content"] for row in rows[:2]] == ["You are reader.", name]
        assert f"The long content of {name}." in rows[3]["content"]
        assert child["output"] == rows[-1]["content"] == f"Sum of {name}"


@pytest.mark.spec("3.3", "3.5", "5.9")
@pytest.mark.seed("003", 103, 114)
@pytest.mark.parametrize(
    ("language", "order", "together"),
    [
        (
            "en",
            "complete work order (goal, scope, output format, limits)",
            "Issue independent delegations together in one turn; they run at the same time.",
        ),
        ("zh", "完整工单（目标、范围、输出格式、边界条件）", "相互独立的委派请在同一轮中一起发出，它们会并行执行。"),
    ],
)
async def test_the_description_asks_for_a_complete_work_order_and_for_fanning_out(
    world: World, language: str, order: str, together: str
) -> None:
    task = "目标：比较两个文件。\n范围：one.txt、two.txt。\n格式：三条结论。\n不要修改文件。"
    await world.run(once(dispatch("helper", task)), [boss(), agent("helper", tools=[])], texts=language)
    shown = world.shown()["dispatch_subagent"]
    assert order in shown["description"]
    assert together in shown["description"]
    assert shown["parameters"]["required"] == ["agent_type", "task"]
    (child,) = world.of("You are helper.")
    assert child.messages[1]["content"] == task, "the whole order, and only that"


@pytest.mark.spec("7.2", "10.2", "10.3")
@pytest.mark.seed("003", 105, 106, 110)
async def test_a_childs_registry_is_its_whitelist_over_the_servers_tools_whatever_its_prompt_says(
    world: World,
) -> None:
    def decide(request: Request) -> Answer:
        told = results(request)
        if request.messages[0]["content"] == "You are boss.":
            return text(told[0]) if told else calls(dispatch("writer"))
        return text("I was not able to.") if told else calls(("write_file", '{"path": "x", "content": "y"}'))

    # A name that the server does not have is skipped with a warning. Other than in the seed the parent's own list is
    # no ceiling (spec 7.2): this parent has only `glob`, its child has not even that.
    agents: list[Any] = [boss(tools=["glob", "Agent"]), "writer"]
    run = await world.run(decide, agents)
    assert run["output"] == "I was not able to."
    child, last = world.of("You may write, delete and execute everything.")
    assert names_of(child) == ["read_file", "grep"]
    assert results(last) == ["There is no tool 'write_file' here. Available tools: read_file, grep."]
    assert sorted(path.name for path in world.service.workspace.iterdir()) == ["one.txt", "two.txt"]
    listed = await world.client.request("GET", "/v1/agents")
    (warning,) = [item for item in listed["warnings"] if item["path"].endswith("writer.md")]
    assert "Zap!" in warning["message"]
    assert "writer" in [item["name"] for item in listed["items"]]


@pytest.mark.spec("10.4")
@pytest.mark.seed("003", 108, 109, 110, 111)
async def test_five_identities_are_shipped_whose_lists_are_graded_and_whose_prompts_are_apart(world: World) -> None:
    listed = await world.client.request("GET", "/v1/agents")
    agents = {item["name"]: item for item in listed["items"] if item["source"]["kind"] == "library"}
    granted = {name: item["tools"] for name, item in agents.items() if item["mode"] != "primary"}
    assert {name: sorted(tools) for name, tools in granted.items()} == {
        "scout": sorted(READ_ONLY),
        "reviewer": sorted(READ_ONLY),
        "researcher": sorted([*READ_ONLY, "web_fetch"]),
        "checker": sorted([*READ_ONLY, "run_command"]),
        "builder": sorted([*READ_ONLY, *LATER]),
    }
    assert granted["builder"] == [
        "run_command", "web_fetch", "load_skill", "read_file", "write_file", "edit_file", "glob", "grep",
    ]  # fmt: skip
    aliases = {name: agents[name]["metadata"]["alias"] for name in granted}
    assert aliases == {
        "scout": "xiaohuangmen",
        "reviewer": "sili_suitang",
        "researcher": "dongchang_tanshi",
        "checker": "shangbao_dianbu",
        "builder": "neiguan_yingzao",
    }
    assert agents["lead"]["mode"] == "primary"
    assert len({item["prompt"] for item in agents.values()}) == 6


@pytest.mark.spec("7.2", "10.4")
@pytest.mark.seed("003", 110, 118)
@pytest.mark.parametrize("name", ["scout", "reviewer", "researcher", "checker", "builder"])
async def test_no_shipped_identity_can_dispatch_and_each_gets_its_own_prompt(world: World, name: str) -> None:
    agents: list[Any] = [boss(), name]
    shipped = await world.client.request("GET", f"/v1/agents/{name}")
    await world.run(once(dispatch(name)), agents, policy={"max_depth": None})
    (child,) = [request for request in world.stub.requests if request.messages[0]["content"] != "You are boss."]
    assert child.messages[0]["content"].strip() == shipped["prompt"].strip()
    assert sorted(names_of(child)) == sorted(shipped["effective_tools"])
    assert shipped["delegation_tools"] == []
    assert set(READ_ONLY) <= set(names_of(child))


@pytest.mark.spec("3.5", "5.2")
@pytest.mark.seed("003", 112, 113)
async def test_dispatches_of_one_turn_are_all_under_way_before_the_first_one_ends(world: World) -> None:
    all_here = asyncio.Event()
    names = ["a", "b", "c"]

    def decide(request: Request) -> Answer:
        prompt = request.messages[0]["content"]
        if prompt == "You are boss.":
            told = results(request)
            return text("|".join(told)) if told else calls(*(dispatch(name) for name in names))
        if len(world.stub.requests) > len(names):
            all_here.set()
        late = text(prompt)
        return replace(late, writes=(all_here, *late.writes))

    run = await world.run(decide, [boss(), *(agent(name, tools=[]) for name in names)])
    assert run["output"] == "You are a.|You are b.|You are c."
    events = await events_of(world.client, f"/v1/runs/{run['id']}/events")
    kinds = [e["type"] for e in events if e["type"].startswith("handoff.")]
    assert kinds == ["handoff.start"] * 3 + ["handoff.end"] * 3


@pytest.mark.spec("3.3", "7.2")
@pytest.mark.seed("003", 115)
async def test_a_model_that_takes_an_ordinary_tool_instead_is_served_and_starts_nobody(world: World) -> None:
    run = await world.run(
        once(("read_file", '{"path": "one.txt"}')), [boss(tools=["read_file", "Agent"]), agent("helper")]
    )
    assert run["status"] == "completed"
    assert "The long content of one.txt." in run["output"]
    root = await tree_of(world, run)
    assert (root["children"], root["handoffs"]) == ([], [])


@pytest.mark.spec("2.1", "4.9")
@pytest.mark.seed("003", 116)
async def test_a_dispatched_child_is_gone_afterwards_and_the_next_one_remembers_nothing(world: World) -> None:
    def decide(request: Request) -> Answer:
        told = results(request)
        if request.messages[0]["content"] == "You are boss.":
            return calls(dispatch("helper", f"Round {len(told)}.")) if len(told) < 2 else text("done")
        return text(f"Said in {request.messages[1]['content']}")

    run = await world.run(decide, [boss(), agent("helper", tools=[])])
    first, second = world.of("You are helper.")
    assert [m["content"] for m in first.messages] == ["You are helper.", "Round 0."]
    assert [m["content"] for m in second.messages] == ["You are helper.", "Round 1."]
    children = (await tree_of(world, run))["children"]
    assert [child["turn"] for child in children] == [0, 0]
    assert len({child["memory_id"] for child in children}) == 2
    events = await events_of(world.client, f"/v1/sessions/{run['session_id']}/events")
    assert events[-1]["type"] == "session.idle", "nobody is left"


@pytest.mark.spec("4.2", "7.2", "12.4")
@pytest.mark.seed("003", 118, 119, 120)
async def test_a_child_without_dispatch_in_its_list_fails_whatever_it_tries_and_each_try_is_on_record(
    world: World,
) -> None:
    tried = [
        ("dispatch_subagent", dispatch("other")[1]),
        ("execute_task", '{"name": "other", "description": "go on", "prompt": "Work."}'),
        ("subagent", '{"research_prompt": "Work."}'),
        ("subagent_other", '{"task": "Work."}'),
        ("Agent", '{"prompt": "Work."}'),
        ("get_task_output", '{"task_id": "ho_1"}'),
        ("write_file", '{"path": "x", "content": "y"}'),
        ("glob", '{"pattern": "*"}'),
    ]

    def decide(request: Request) -> Answer:
        told = results(request)
        if request.messages[0]["content"] == "You are boss.":
            return text("done") if told else calls(dispatch("helper"))
        return text("I gave up.") if told else calls(*tried)

    agents = [boss(), agent("helper", tools=["glob"]), agent("other")]
    run = await world.run(decide, agents, policy={"max_depth": None}, default_subagent="other")
    assert world.of("You are other.") == []
    (child,) = (await tree_of(world, run))["children"]
    assert (child["tools"], child["children"], child["handoffs"]) == (["glob"], [], [])
    rows = await rows_of(world, child["id"])
    asked = [call["name"] for row in rows for call in row["tool_calls"] or ()]
    assert asked == [name for name, _ in tried], "what it asked for, in the audit log"
    answers = {row["tool"]: row for row in rows if row["role"] == "tool"}
    for name in asked:
        outside = name not in child["tools"]
        assert answers[name]["is_error"] is outside, name
        assert answers[name]["content"].startswith(f"There is no tool '{name}' here.") is outside, name
    events = await events_of(world.client, f"/v1/runs/{child['id']}/events")
    carried_out = [e["data"]["tool"] for e in events if e["type"] == "tool.start"]
    assert carried_out == ["glob"], "nothing outside the list was ever begun"
    statuses = {e["data"]["tool"]: e["data"]["status"] for e in events if e["type"] == "tool.result"}
    assert statuses == {name: "ok" if name == "glob" else "unknown_tool" for name in asked}
