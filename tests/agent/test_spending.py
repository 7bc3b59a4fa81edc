"""Budgets of whole trees: never a call above the limit, always an end, and an answer wherever one was kept back."""

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.agent.tools import ToolContext
from tests.agent.probes import Probe, Stage
from tests.longer import times
from tests.plan import FORCED_TEXT, ask, call, task
from tests.world import WAIT_S, World, world

pytestmark = [pytest.mark.slow, pytest.mark.spec("4.8")]
SCHEDULES = times(60, 200)
AT_ONCE = 10


def spoken(chance: random.Random, **turn: Any) -> dict[str, Any]:
    """A turn that takes a random number of turns of the event loop."""
    length = chance.randrange(1, 9)
    return {"text": "x" * length, "chunks": length, **turn}


async def _work(arguments: Mapping[str, Any], _context: ToolContext) -> str:
    for _ in range(arguments["moments"]):
        await asyncio.sleep(0)
    return f"found {arguments['what']}"


def work() -> Probe:
    """A tool that takes `moments` turns of the event loop."""
    return Probe("work", _work, read_only=True, concurrency_safe=True)


def busy_child(chance: random.Random, name: str, calls: int = 3) -> str:
    """A child that wants that many model calls and one more for its answer."""
    steps = [
        spoken(chance, calls=[call("work", what=f"{name}{at}", moments=chance.randrange(6))]) for at in range(calls)
    ]
    return task(*steps, f"{name} is done")


async def runs_of(w: World, session_id: str, depth: int | None = None) -> list[dict[str, Any]]:
    """The rows of a session's runs, or those of one depth."""
    return [row for row in await w.rows("runs", session_id=session_id) if depth in (None, row["depth"])]


async def one_tree(w: World, seed: int, limit: int) -> tuple[str, ...]:
    """Play one random schedule under a limit of model calls and look at everything; in which order things ended."""
    chance = random.Random(seed)
    children = [ask(busy_child(chance, name)) for name in "abcd"]
    plan = task(spoken(chance, calls=children), "not reached", final="forced")
    run = await w.run(plan, budget={"model_calls": limit})
    row = await w.finished(run)
    where = f"seed {seed}, limit {limit}"
    runs = await runs_of(w, run.session_id)
    made = [e["run_id"] for e in await w.events(run.session_id, "step.started")]
    assert len(made) == limit, f"{where}: {len(made)} model calls"
    assert row["usage_total"]["model_calls"] == limit, where
    assert (row["status"], row["stop_reason"], row["output"]) == ("completed", "budget", "forced"), (where, row)
    assert (row["forced"], row["partial"]) == (True, True), where
    assert len(runs) == 5, where
    for child in runs[1:]:
        calls = made.count(child["id"])
        if child["status"] == "completed":
            assert (calls, child["stop_reason"]) == (4, "answer"), (where, child)
            continue
        assert (child["status"], child["stop_reason"]) == ("failed", "budget"), (where, child)
        assert child["error"]["code"] == "budget_exhausted", (where, child)
        assert f"model_calls {limit}" in child["error"]["message"], (where, child)
        assert (child["steps"], child["usage"]["model_calls"]) == (calls, calls), (where, child)
        assert child["output"].count("found") == calls, (where, "a digest of what was collected")
    ends = await w.events(run.session_id, "step.completed", "run.failed", "run.completed")
    return tuple(f"{e['type']} {e['path']}" for e in ends)


@pytest.mark.case("B091")
@pytest.mark.parametrize(("limit", "least_orders"), [(3, 1), (5, 6), (9, 40)])
async def test_children_side_by_side_never_make_a_call_above_the_limit_and_the_tree_answers(
    tmp_path: Path, limit: int, least_orders: int
) -> None:
    orders: list[tuple[str, ...]] = []
    async with world(tmp_path, tools=[work()]) as w:
        for first in range(0, SCHEDULES, AT_ONCE):
            async with asyncio.timeout(2 * WAIT_S):
                orders += await asyncio.gather(*(one_tree(w, seed, limit) for seed in range(first, first + AT_ONCE)))
        assert len(w.requests) == SCHEDULES * limit
    assert len(set(orders)) >= least_orders, "the schedules differ"


# ── whose budget ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("5.5")
async def test_the_only_call_of_a_budget_is_the_forced_answer(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        row = await w.finished(
            await w.run(task({"calls": [ask(task("x"))]}, final="all I know"), budget={"model_calls": 1})
        )
        assert (row["status"], row["stop_reason"], row["output"]) == ("completed", "budget", "all I know")
        (request,) = w.requests
        assert (request.tools, request.messages[-1].content, request.temperature) == ((), FORCED_TEXT, 0.2)


@pytest.mark.spec("5.5")
async def test_a_budget_of_a_session_spans_its_turns_and_a_restart(tmp_path: Path) -> None:
    plan = task({"calls": [ask(task("child"))]}, "end", final="forced")
    async with world(tmp_path) as w:
        session = await w.session(budget={"model_calls": 6, "delegations": 2})
        first = await w.finished(await w.turn(session, plan))
        assert (first["stop_reason"], first["usage_total"]["model_calls"]) == ("answer", 3)
        again = await w.finished(await w.turn(session, task("short")))
        assert (again["stop_reason"], again["output"]) == ("answer", "short")
    async with world(tmp_path) as w:
        third = await w.finished(await w.turn(session, plan))
        assert (third["status"], third["stop_reason"], third["output"]) == ("completed", "budget", "forced")
        assert len(w.requests) == 2, "six in all: a turn, and what was kept back"
        *_, child = await runs_of(w, session, 1)
        assert (child["status"], child["stop_reason"], child["steps"]) == ("failed", "budget", 0)
        last = await w.finished(await w.turn(session, plan))
        assert (last["status"], last["stop_reason"], last["forced"]) == ("completed", "budget", False)
        assert len(w.requests) == 2, "nothing is left for any call"


async def test_a_delegation_into_a_session_spends_from_the_same_budget(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.session(budget={"model_calls": 2})
        for _ in range(2):
            delegated = await w.delegate(task("done"), session_id=session, agent="node")
            await delegated.result
        delegated = await w.delegate(task("done"), session_id=session, agent="node")
        result = await delegated.result
        assert len(w.requests) == 2
        assert result.outcome is not None
        assert (result.outcome.stop_reason, result.outcome.usage.model_calls) == ("budget", 0)


PLACES = ["session", "run", "definition", "policy"]


def limiting(place: str, limits: dict[str, Any], w: World) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of a session and of its turn that set a budget at that place."""
    if place == "session":
        return {"budget": limits}, {}
    if place == "run":
        return {}, {"budget": limits}
    if place == "policy":
        return {"policy": {"max_depth": 3, "budget": limits}}, {}
    return {"agent": "lead", "agents": [w.node(), w.node("lead", budget=limits)]}, {}


@pytest.mark.parametrize("place", PLACES)
async def test_a_budget_bounds_the_tree_below_it_wherever_it_is_set(tmp_path: Path, place: str) -> None:
    deep = task({"calls": [ask(task({"calls": [ask(task("leaf"))]}, "middle"))]}, "top", final="forced")
    async with world(tmp_path) as w:
        session, turn = limiting(place, {"model_calls": 4}, w)
        run = await w.run(deep, limits=turn, **session)
        row = await w.finished(run)
        assert (row["status"], row["stop_reason"], row["output"]) == ("completed", "budget", "forced")
        assert len(w.requests) == row["usage_total"]["model_calls"] == 4
        middle = (await runs_of(w, run.session_id, 1))[0]
        assert (middle["status"], middle["error"]["code"]) == ("failed", "budget_exhausted")
        assert "leaf" in middle["output"]


async def test_a_budget_of_a_child_bounds_it_and_what_is_below_and_leaves_the_rest_to_others(tmp_path: Path) -> None:
    busy = task({"calls": [ask(task("leaf"))]}, {"calls": [ask(task("leaf"))]}, "middle")
    plan = task({"calls": [ask(busy, "small"), ask(busy)]}, "end")
    async with world(tmp_path) as w:
        agents = [w.node(), w.node("small", budget={"model_calls": 3})]
        run = await w.run(plan, agents=agents, budget={"model_calls": 50})
        row = await w.finished(run)
        assert (row["status"], row["stop_reason"], row["output"]) == ("completed", "answer", "end")
        small, free = await runs_of(w, run.session_id, 1)
        assert (small["agent"], small["status"], small["usage_total"]["model_calls"]) == ("small", "failed", 3)
        assert "model_calls 3" in small["error"]["message"], "the innermost is told"
        assert (free["status"], free["usage_total"]["model_calls"]) == ("completed", 5)


async def test_the_budget_of_every_attempt_is_its_own_and_those_above_bound_them_all(tmp_path: Path) -> None:
    failing = task({"calls": [call("glob", pattern="*")]}, {"error": {"code": "overloaded", "retryable": True}})
    async with world(tmp_path) as w:
        agents = [w.node(), w.node("small", budget={"model_calls": 2})]
        run = await w.run(
            task({"calls": [ask(failing, "small")]}, "end"),
            agents=agents,
            policy={"max_depth": 1, "max_retries": 5},
            budget={"model_calls": 7},
        )
        row = await w.finished(run)
        assert row["output"] == "end" or row["stop_reason"] == "budget"
        tried = await runs_of(w, run.session_id, 1)
        assert [r["usage"]["model_calls"] for r in tried] == [2, 2, 1]
        assert [r["error"]["code"] for r in tried] == ["overloaded", "overloaded", "budget_exhausted"]
        assert len(w.requests) == 7, "what cannot be paid is not tried again"


# ── children at a time ──────────────────────────────────────────────────────────────────────────────────────────────


async def most_at_work(w: World, session_id: str, below: int = 0) -> int:
    """How many runs below a depth were at work at the same time: started, not ended, not waiting for children."""
    working: set[str] = set()
    most = 0
    for event in await w.events(session_id):
        kind, who = event["type"], event.get("run_id")
        if event.get("depth", 0) <= below or not who:
            continue
        if kind in ("run.started", "run.resumed"):
            working.add(who)
        elif kind == "run.waiting" or kind in ("run.completed", "run.failed", "run.cancelled", "run.timed_out"):
            working.discard(who)
        most = max(most, len(working))
    return most


def nest(depth: int, fan: int) -> str:
    """A tree of that depth in which everybody works, delegates `fan` times and works again."""
    own = {"calls": [call("pause", key=f"{depth}")]}
    if depth == 0:
        return task(own, "leaf")
    return task(own, {"calls": [ask(nest(depth - 1, fan)) for _ in range(fan)]}, own, "inner")


async def _pause(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
    for _ in range(3):
        await asyncio.sleep(0)
    return "paused"


@pytest.mark.spec("9.8")
@pytest.mark.case("B091")
@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("place", ["session", "inner"])
async def test_never_more_children_work_at_a_time_than_allowed_and_a_nested_tree_gets_to_its_end(
    tmp_path: Path, limit: int, place: str
) -> None:
    tool = Probe("pause", _pause, read_only=True, concurrency_safe=True)
    async with world(tmp_path, tools=[tool]) as w:
        limits = {"max_concurrent": limit}
        given: dict[str, Any] = {"budget": limits}
        if place == "inner":
            given = {"agents": [w.node(budget=limits)], "budget": {"max_concurrent": 5}}
        run = await w.run(nest(3, 4), **given)
        async with asyncio.timeout(6 * WAIT_S):
            while (row := await w.row(run, WAIT_S))["ended_at"] is None:
                pass
        assert (row["status"], row["output"]) == ("completed", "inner")
        runs = await w.rows("runs", session_id=run.session_id)
        assert ([r["status"] for r in runs], len(runs)) == (["completed"] * 85, 85)
        assert await most_at_work(w, run.session_id) == (limit if place == "session" else min(limit, 5))


@pytest.mark.spec("9.8")
async def test_a_place_is_given_back_by_children_that_fail_or_are_cancelled(tmp_path: Path) -> None:
    stage = Stage()
    failing = task({"error": {"code": "quota", "message": "no"}})
    holding = [task({"calls": [call("hold", key=key)]}, key) for key in "abc"]
    async with world(tmp_path, tools=stage.tools) as w:
        plan = task({"calls": [ask(failing), *(ask(child) for child in holding)]}, "end")
        run = await w.run(plan, budget={"max_concurrent": 1})
        await stage.reached("+a")
        _, first, second, _ = await runs_of(w, run.session_id, 1)
        assert second["started_at"] is None
        await w.supervisor.cancel(second["id"])
        await w.supervisor.cancel(first["id"])
        await stage.reached("+c")
        stage.open("c")
        assert (await w.finished(run))["output"] == "end"
        assert [r["status"] for r in await runs_of(w, run.session_id, 1)] == [
            "failed",
            "cancelled",
            "cancelled",
            "completed",
        ]
        assert "+b" not in stage.diary
