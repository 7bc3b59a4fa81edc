"""Depth is data on the run: what nests how deep on every surface, and what goes down from run to run."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.agent.handoff_events import told
from tests.plan import ask, call, task
from tests.world import world

SURFACES = pytest.mark.parametrize("surface", ["dispatch", "per_agent", "task", "subagent"])
TOOLS = {"dispatch": "dispatch_subagent", "per_agent": "subagent_node", "task": "execute_task", "subagent": "subagent"}


def to_itself(surface: str, plan: str) -> dict[str, Any]:
    """A delegation to `node` on a surface."""
    if surface == "dispatch":
        return ask(plan)
    if surface == "per_agent":
        return call("subagent_node", task=plan)
    if surface == "task":
        return call("execute_task", name="node", description="one level down", prompt=plan)
    return call("subagent", research_prompt=plan)


def nested(surface: str, levels: int, width: int = 1) -> str:
    """A task that goes down so many levels, with as many calls in one turn at each of them."""
    if levels == 0:
        return task("bottom")
    return task(
        {"calls": [to_itself(surface, nested(surface, levels - 1, width))] * width}, f"{levels} above the bottom"
    )


@SURFACES
@pytest.mark.spec("4.5", "4.2")
@pytest.mark.seed("000", 8, 9, 34, 48)
async def test_an_agent_that_calls_itself_goes_exactly_as_deep_as_the_policy_says(tmp_path: Path, surface: str) -> None:
    async with world(tmp_path) as w:
        policy = {"max_depth": 3, "on_denied": "report"}
        row = await w.finished(await w.run(nested(surface, 5), surfaces=[surface], policy=policy))
        assert (row["status"], row["output"]) == ("completed", "5 above the bottom")
        rows = await w.rows("runs", session_id=row["session_id"])
        assert sorted((r["depth"], r["status"]) for r in rows) == [(depth, "completed") for depth in range(4)]
        assert len(w.requests) == 8, "two for each level: nothing is spent on what is denied"
        for request in w.requests:
            depth = 5 - int(nested_levels(request.messages[1].content))
            names = {spec.name for spec in request.tools}
            assert (TOOLS[surface] in names) == (depth < 3), "at the limit the tools are not shown"
            assert {"read_file", "glob", "grep"} <= names
        (denied,) = await told(w, row["session_id"], 3)
        assert denied["status"] == "denied"
        assert "handoff depth 4 exceeds max_depth 3" in denied["content"]
        ends = [e["data"] for e in await w.events(row["session_id"], "handoff.end")]
        assert sorted((e["depth"], e["status"], e["attempts"]) for e in ends) == [
            (1, "completed", 1), (2, "completed", 1), (3, "completed", 1), (4, "denied", 0),
        ]  # fmt: skip


def nested_levels(plan: str) -> str:
    """How many levels a task of `nested` goes down."""
    return plan.rpartition('"text": "')[2].partition(" above")[0] if " above" in plan else "0"


@SURFACES
@pytest.mark.spec("4.5", "3.5")
@pytest.mark.seed("000", 8, 9)
async def test_two_calls_in_one_turn_of_every_level_are_counted_right(tmp_path: Path, surface: str) -> None:
    async with world(tmp_path) as w:
        policy = {"max_depth": 3, "on_denied": "report"}
        row = await w.finished(await w.run(nested(surface, 4, 2), surfaces=[surface], policy=policy))
        assert row["output"] == "4 above the bottom"
        rows = await w.rows("runs", session_id=row["session_id"])
        assert Counter(r["depth"] for r in rows) == {0: 1, 1: 2, 2: 4, 3: 8}
        assert len(w.requests) == 2 * 15
        by_id = {r["id"]: r for r in rows}
        for r in rows:
            parent = by_id.get(r["parent_id"])
            assert r["depth"] == (parent["depth"] + 1 if parent else 0)
            assert r["path"] == [*(parent["path"] if parent else ()), r["ordinal"]]
        ends = [e["data"] for e in await w.events(row["session_id"], "handoff.end")]
        assert Counter((e["depth"], e["status"]) for e in ends) == {
            (1, "completed"): 2, (2, "completed"): 4, (3, "completed"): 8, (4, "denied"): 16,
        }  # fmt: skip
        events = await w.events(row["session_id"], "run.started", "message", "tool.result")
        assert all(event["depth"] == by_id[event["run_id"]]["depth"] for event in events)


@SURFACES
@pytest.mark.spec("4.5")
@pytest.mark.seed("000", 45)
async def test_one_level_is_the_default_and_none_and_no_limit_can_be_said(tmp_path: Path, surface: str) -> None:
    for policy, deepest in (({}, 1), ({"max_depth": 0}, 0), ({"max_depth": None}, 4)):
        folder = tmp_path / str(deepest)
        folder.mkdir()
        async with world(folder) as w:
            given = {**policy, "on_denied": "report"}
            row = await w.finished(await w.run(nested(surface, 4), surfaces=[surface], policy=given))
            rows = await w.rows("runs", session_id=row["session_id"])
            assert sorted(r["depth"] for r in rows) == list(range(deepest + 1))
            assert len(w.requests) == 2 * deepest + (1 if deepest == 4 else 2)


@pytest.mark.spec("4.5", "4.10")
async def test_a_definition_in_between_can_only_lower_how_deep_it_goes(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        agents = [w.node(), w.node("low", handoff={"max_depth": 2}), w.node("high", handoff={"max_depth": 9})]
        for name, deepest in (("low", 2), ("high", 3)):
            plan = task({"calls": [ask(nested("dispatch", 5), agent=name)]}, "end")
            row = await w.finished(await w.run(plan, agents=agents, policy={"max_depth": 3}))
            rows = await w.rows("runs", session_id=row["session_id"])
            assert max(r["depth"] for r in rows) == deepest


@SURFACES
@pytest.mark.spec("4.5", "7.2")
@pytest.mark.seed("003", 118)
async def test_a_child_whose_whitelist_leaves_delegation_out_ends_the_chain_whatever_depth_is_allowed(
    tmp_path: Path, surface: str
) -> None:
    async with world(tmp_path) as w:
        leaf = w.node(tools=["read_file", "glob"])
        lead = w.node("boss")
        row = await w.finished(
            await w.run(nested(surface, 2), agent="boss", agents=[lead, leaf], surfaces=[surface],
                        policy={"max_depth": None})
        )  # fmt: skip
        assert row["output"] == "2 above the bottom"
        assert [[spec.name for spec in request.tools] for request in w.requests[1:3]] == [["read_file", "glob"]] * 2
        (result,) = await told(w, row["session_id"], 1)
        assert result["status"] == "unknown_tool"
        assert "Available tools: read_file, glob." in result["content"]


@pytest.mark.spec("4.5", "3.6")
async def test_a_direct_delegation_is_at_depth_one(tmp_path: Path) -> None:
    for limit in (1, 2, 3):
        folder = tmp_path / str(limit)
        folder.mkdir()
        async with world(folder) as w:
            delegated = await w.delegate(nested("dispatch", 5), policy={"max_depth": limit})
            assert (await w.delegations.result(w.tenant, delegated))["status"] == "completed"
            rows = await w.rows("runs", session_id=delegated.session.id)
            assert sorted(r["depth"] for r in rows) == list(range(1, limit + 1))


# ── model, effort and thinking ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("5.9")
@pytest.mark.case("B198")
async def test_model_effort_and_thinking_come_from_the_parent_run_unless_a_definition_sets_them(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        for name in ("lead", "other"):
            (tmp_path / "scripts" / f"{name}.py").write_text("from tests.plan import reply\n")
        agents = [
            w.node(model="scripted:lead", effort="high", thinking="on"),
            w.node("plain"),
            w.node("own", model="scripted:other", effort="low", thinking="off"),
            w.node("half", effort="medium"),
        ]
        chains = (("plain", "plain"), ("own", "plain"), ("plain", "own"), ("half", "plain"))
        calls = [ask(task({"calls": [ask(task("leaf"), agent=low)]}, high), agent=high) for high, low in chains]
        row = await w.finished(await w.run(task({"calls": calls}, "end"), agents=agents))
        assert row["output"] == "end"
        started = {
            tuple(event["path"]): event["data"]["model"] for event in await w.events(row["session_id"], "run.started")
        }
        rows = await w.rows("runs", session_id=row["session_id"])
        names = {tuple(r["path"]): r["agent"] for r in rows}
        models = sorted(
            (names[path[:2]], names[path], started[path[:2]], started[path]) for path in started if len(path) == 3
        )
        assert models == [
            ("half", "plain", "scripted:lead", "scripted:lead"),
            ("own", "plain", "scripted:other", "scripted:other"),
            ("plain", "own", "scripted:lead", "scripted:other"),
            ("plain", "plain", "scripted:lead", "scripted:lead"),
        ]
        told_to = {
            (r.messages[0].content.removeprefix("You are ").rstrip("."), r.effort, r.thinking) for r in w.requests
        }
        assert told_to == {
            ("node", "high", True), ("plain", "high", True), ("own", "low", False), ("half", "medium", True),
            ("plain", "low", False), ("plain", "medium", True),
        }  # fmt: skip


@pytest.mark.spec("5.9")
@pytest.mark.parametrize("thinking", [None, True, False])
async def test_a_session_s_thinking_goes_to_all_whose_definition_says_nothing(
    tmp_path: Path, thinking: bool | None
) -> None:
    async with world(tmp_path) as w:
        agents = [w.node(), w.node("plain"), w.node("own", thinking="off")]
        inner = task({"calls": [ask(task("leaf"), agent="plain")]}, "x")
        calls = [ask(inner, agent="plain"), ask(inner, agent="own")]
        await w.finished(await w.run(task({"calls": calls}, "end"), agents=agents, thinking=thinking))
        found = {(r.messages[0].content, r.thinking) for r in w.requests}
        assert found == {
            ("You are node.", thinking), ("You are plain.", thinking), ("You are own.", False),
            ("You are plain.", False),
        }  # fmt: skip


LOOKS = {"calls": [call("glob", pattern="*")]}


@pytest.mark.spec("5.9")
async def test_the_forced_answer_is_asked_for_with_the_same_effort_and_thinking(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        agents = [w.node(effort="high", thinking="on")]
        await w.finished(await w.run(task(LOOKS, LOOKS, final="f"), agents=agents, limits={"max_steps": 1}))
        assert [(r.effort, r.thinking) for r in w.requests] == [("high", True)] * 2
