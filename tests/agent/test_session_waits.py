"""Agents that remember and call each other: whoever would wait for itself is refused, and everything ends."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.agent.handoff_events import told
from tests.agent.probes import Stage
from tests.agent.test_session_modes import asked, ended, keeper
from tests.plan import ask, call, task
from tests.world import world

REFUSED = ("failed", "memory_busy")


@pytest.mark.spec("4.9")
@pytest.mark.parametrize("levels", [0, 1, 2])
async def test_an_agent_that_calls_itself_directly_or_through_others_is_refused_and_nothing_hangs(
    tmp_path: Path, levels: int
) -> None:
    async with world(tmp_path) as w:
        plan = task({"calls": [ask(task("never"), agent="keeper")]}, "refused")
        for _ in range(levels):
            plan = task({"calls": [ask(plan)]}, "between")
        plan = task({"calls": [ask(plan, agent="keeper")]}, "top")
        run = await w.run(plan, agents=[w.node(), keeper(w)], policy={"max_depth": 9})
        assert (await w.finished(run))["output"] == "top"
        statuses = await ended(w, run.session_id)
        assert statuses == [("completed", None)] * (levels + 1) + [REFUSED]
        refused = [e for e in await w.events(run.session_id, "handoff.end") if e["data"]["status"] == "failed"]
        assert [(e["data"]["attempts"], e["data"]["run_ids"]) for e in refused] == [(0, [])]
        (result,) = await told(w, run.session_id, levels + 1)
        assert result["is_error"]
        assert "would never end" in result["content"]


@pytest.mark.spec("4.9")
@pytest.mark.parametrize("between", [0, 1])
async def test_of_two_branches_that_want_each_other_s_memory_one_is_refused(tmp_path: Path, between: int) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:

        def branch(key: str, other: str) -> str:
            wants = ask(task(f"{key} for {other}"), agent=other)
            for _ in range(between):
                wants = ask(task({"calls": [wants]}, "between"))
            return task({"calls": [call("hold", key=key)]}, {"calls": [wants]}, f"{key} ended")

        calls = [ask(branch("r1", "r2"), agent="r1"), ask(branch("r2", "r1"), agent="r2")]
        agents = [w.node(), keeper(w, "r1"), keeper(w, "r2")]
        run = await w.run(task({"calls": calls}, "end"), agents=agents, policy={"max_depth": 9})
        await stage.reached("+r1", "+r2")
        stage.open("r1", "r2")
        assert (await w.finished(run))["output"] == "end"
        assert [r["content"] for r in await told(w, run.session_id)] == ["r1 ended", "r2 ended"]
        statuses = await ended(w, run.session_id)
        assert statuses.count(REFUSED) == 1
        assert statuses.count(("completed", None)) == len(statuses) - 1


@pytest.mark.spec("4.9")
async def test_two_sessions_whose_agents_want_each_other_s_memory_do_not_hang_either(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        agents = [w.node(), keeper(w, "r1", session_scope="user"), keeper(w, "r2", session_scope="user")]
        runs = []
        for key, other in (("r1", "r2"), ("r2", "r1")):
            inner = task({"calls": [call("hold", key=key)]}, {"calls": [ask(task("x"), agent=other)]}, f"{key} ended")
            plan = task({"calls": [ask(inner, agent=key)]}, "end")
            runs.append(await w.run(plan, agents=agents, user="ann"))
        await stage.reached("+r1", "+r2")
        stage.open("r1", "r2")
        rows = await asyncio.gather(*(w.finished(run) for run in runs))
        assert [row["output"] for row in rows] == ["end", "end"]
        statuses = [status for run in runs for status in await ended(w, run.session_id)]
        assert sorted(statuses) == sorted([("completed", None)] * 3 + [REFUSED])


# ── whatever they ask of each other ─────────────────────────────────────────────────────────────────────────────

NAMES = ("node", "r1", "r2", "r3")


def tangle(dice: random.Random, levels: int) -> str:
    """A task whose agents, most of which remember, ask each other in parallel and one after the other."""
    if levels == 0 or dice.random() < 0.2:
        return task({"text": "leaf", "delay_ms": dice.choice([0, 0, 1, 3])})
    turns: list[dict[str, Any]] = []
    for _ in range(dice.choice([1, 1, 2])):
        calls = [ask(tangle(dice, levels - 1), agent=dice.choice(NAMES)) for _ in range(dice.choice([1, 2, 3]))]
        turns.append({"calls": calls, "delay_ms": dice.choice([0, 0, 1])})
    return task(*turns, "end")


@pytest.mark.spec("4.9", "4.8", "5.7")
@pytest.mark.parametrize("seed", range(12))
async def test_whatever_they_ask_of_each_other_nothing_hangs_and_no_place_is_left_taken(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    async with world(tmp_path) as w:
        agents = [w.node(), *(keeper(w, name, session_scope=dice.choice(["session", "user"])) for name in NAMES[1:])]
        policy = {"max_depth": 5, "max_retries": seed % 2, "timeout_ms": 20 if seed % 4 == 3 else 0}
        budget = {"max_concurrent": seed % 3} if seed % 3 else None
        runs = [await w.run(tangle(dice, 4), agents=agents, user="ann", policy=policy, budget=budget) for _ in range(2)]
        if seed % 2:  # somebody in the middle of it all is cancelled
            await w.until(runs[0].session_id, "run.queued")
            rows = await w.rows("runs", session_id=runs[0].session_id)
            await w.sessions.cancel(w.tenant, dice.choice(rows)["id"])
        for run in runs:
            assert (await w.finished(run))["status"] in ("completed", "cancelled")
        allowed = {None, "memory_busy", "cancelled", "timed_out", "parent_ending"}
        assert {code for run in runs for _, code in await ended(w, run.session_id)} <= allowed


@pytest.mark.spec("4.9", "14.2")
async def test_a_run_that_waits_for_a_memory_does_not_get_what_is_erased_meanwhile(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        agents = [w.node(), keeper(w, session_scope="user")]
        held = task({"text": "erased", "calls": [call("hold", key="x")]}, "never")
        one = await w.run(task({"calls": [ask(held, agent="keeper")]}, "end"), agents=agents, user="ann")
        await stage.reached("+x")
        two = await w.run(task({"calls": [ask(task("two"), agent="keeper")]}, "end"), agents=agents, user="ann")
        await w.until(two.session_id, "run.queued", 2)
        await w.sessions.delete(w.tenant, one.session_id)
        assert (await w.finished(two))["output"] == "end"
        assert [m.content for m in asked(w)[-1].messages] == ["You are keeper.", task("two")]
