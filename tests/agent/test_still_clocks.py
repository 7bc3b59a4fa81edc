"""While a person is asked, the clocks of handoffs and attempts above the question stand still, and they go on after."""

import asyncio
from pathlib import Path

import pytest

from app.agent.approvals import AnswerKind
from app.agent.control import Control
from app.agent.open_handoff import HandoffClock
from app.agent.runs import StopReason
from tests.agent.guarded import commands, give, questions, ruled, time_passes
from tests.agent.probes import Stage
from tests.plan import ask, call, task
from tests.world import WAIT_S, world

pytestmark = pytest.mark.slow

ASK_ALL = ruled(ask=["Bash"])
SHORT_MS = 700  # less than what `time_passes` lets pass
LIMITS = {
    "deadline_ms": {"policy": {"max_depth": 4, "deadline_ms": SHORT_MS}},
    "timeout_ms": {"policy": {"max_depth": 4, "timeout_ms": SHORT_MS}},
}


def nested(depth: int, innermost: str) -> str:
    """That task, handed down so often."""
    for _ in range(depth):
        innermost = task({"calls": [ask(innermost)]}, "up")
    return innermost


@pytest.mark.spec("4.4", "4.7", "8.2")
@pytest.mark.case("B118", "B119")
@pytest.mark.parametrize("below", [0, 1, 2])
@pytest.mark.parametrize("limit", LIMITS)
async def test_a_question_below_a_handoff_stops_its_clock_however_deep_it_is_asked(
    tmp_path: Path, limit: str, below: int
) -> None:
    stage, asks = Stage(), task({"calls": [call("run_command", command="ls")]}, "asked")
    async with world(tmp_path, tools=[commands(), *stage.tools], permissions=ASK_ALL) as w:
        run = await w.run(nested(1 + below, asks), **LIMITS[limit])
        (question,) = await questions(w, run.session_id, 1)
        await time_passes(w)
        await give(w, question["approval_id"])
        assert (await w.finished(run))["output"] == "up"
        ended = [event["data"]["status"] for event in await w.events(run.session_id, "handoff.end")]
        assert ended == ["completed"] * (1 + below)


@pytest.mark.spec("4.4", "4.7", "8.2")
@pytest.mark.parametrize("limit", LIMITS)
async def test_of_several_questions_the_last_one_lets_the_clock_go_on_and_it_does(tmp_path: Path, limit: str) -> None:
    stage = Stage()
    two = {"calls": [call("run_command", command=line) for line in ("a", "b")]}
    plan = task({"calls": [ask(task(two, {"calls": [call("hold", key="never")]}, "no"))]}, "end")
    async with world(tmp_path, tools=[commands(), *stage.tools], permissions=ASK_ALL) as w:
        run = await w.run(plan, **LIMITS[limit])
        first, second = await questions(w, run.session_id, 2)
        await give(w, first["approval_id"])
        await time_passes(w)
        assert (await w.row(run))["status"] == "waiting"
        await give(w, second["approval_id"], AnswerKind.DENY)
        await stage.reached("+never")
        await w.finished(run)
        (end,) = await w.events(run.session_id, "handoff.end")
        assert end["data"]["status"] == "timed_out", "what it works is counted again"


@pytest.mark.spec("4.7", "8.2")
async def test_the_time_in_which_attempts_may_begin_stands_still_as_well(tmp_path: Path) -> None:
    stage = Stage()
    error = {"error": {"code": "model_overloaded", "message": "busy", "retryable": True}}
    asks = task({"calls": [call("run_command", command="ls")]}, error)
    async with world(tmp_path, tools=[commands(), *stage.tools], permissions=ASK_ALL) as w:
        policy = {"deadline_ms": SHORT_MS, "max_retries": 1}
        run = await w.run(task({"calls": [ask(asks)]}, "end"), policy=policy)
        for count in (1, 2):
            question = (await questions(w, run.session_id, count))[-1]
            await time_passes(w)
            await give(w, question["approval_id"])
        await w.finished(run)
        (end,) = await w.events(run.session_id, "handoff.end")
        assert (end["data"]["attempts"], end["data"]["status"]) == (2, "failed")


async def test_an_alarm_rings_after_the_time_that_the_clock_has_gone_and_never_while_it_stands_still() -> None:
    clock, loop = HandoffClock(), asyncio.get_running_loop()
    rung = asyncio.Event()
    clock.hold()
    clock.hold()
    began = clock.time()
    with clock.alarm(began + 0.01, rung.set):
        passed = asyncio.Event()
        loop.call_later(0.03, passed.set)
        await passed.wait()
        clock.go_on()
        assert (rung.is_set(), clock.time()) == (False, began)
        clock.go_on()
        async with asyncio.timeout(WAIT_S):
            await rung.wait()
        assert clock.time() >= began + 0.01
    with clock.alarm(clock.time(), rung.clear):
        pass
    passed.clear()
    loop.call_later(0.01, passed.set)
    await passed.wait()
    assert rung.is_set(), "an alarm that is off does not ring"


@pytest.mark.spec("4.8", "8.2", "5.5")
async def test_the_wall_time_of_a_budget_goes_on_while_a_person_is_asked_also_behind_a_shorter_deadline(
    tmp_path: Path,
) -> None:
    asks = task({"calls": [call("run_command", command="ls")]}, "no", final="so far")
    async with world(tmp_path, tools=[commands()], permissions=ASK_ALL) as w:
        run = await w.run(asks, limits={"deadline_ms": 500}, budget={"wall_ms": 1000})
        await questions(w, run.session_id, 1)
        row = await w.finished(run)
        assert (row["stop_reason"], row["output"]) == ("budget", "so far")


async def test_a_deadline_stands_still_and_the_nearer_of_two_clocks_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    control = Control()
    assert (control.soft_at, control.hard_at) == (None, None)
    control.start(10_000, 30_000)
    assert (control.soft_at, control.hard_at, control.soft_reason) == (8.0, 10.0, StopReason.DEADLINE)
    control.hold()
    control.hold()
    now = 5.0
    control.go_on()
    now = 6.0
    assert (control.soft_at, control.hard_at) == (14.0, 16.0)
    control.go_on()
    now = 9.0
    assert (control.soft_at, control.hard_at, control.soft_reason) == (14.0, 16.0, StopReason.DEADLINE)
    control.hold()
    now = 29.0
    assert (control.soft_at, control.hard_at, control.soft_reason) == (24.0, 30.0, StopReason.BUDGET)
