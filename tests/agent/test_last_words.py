"""What hooks are told of runs and calls that were ended: how long that may take for a whole tree, and what is left of
a deadline after it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.agent.hooks import FunctionHook, HookCall, HookPoint, HookRegistry
from app.agent.interruption import CLEAN_UP_S, GRACE_MS, LEAST_WORD_S, LastWords
from app.agent.supervisor import INTERRUPT_S, SHUTDOWN_WORDS_S
from tests.agent.probes import Stage
from tests.plan import ask, call, task
from tests.world import WAIT_S, world

START, STOP, POST = HookPoint.SUBAGENT_START, HookPoint.SUBAGENT_STOP, HookPoint.POST_TOOL_USE
HELD = task({"calls": [call("hold", key="never")]}, "no")


async def mute(_told: HookCall) -> None:
    """A hook that never answers."""
    await asyncio.Event().wait()


def hook(function: Any, *points: HookPoint, name: str = "mute", **more: Any) -> FunctionHook:
    return FunctionHook(name=name, function=function, points=frozenset(points), **more)


def nested(depth: int, innermost: str = HELD) -> str:
    """That task, handed down so often."""
    for _ in range(depth):
        innermost = task({"calls": [ask(innermost)]}, "up", final="so far")
    return innermost


@pytest.mark.spec("5.7", "6.4")
@pytest.mark.case("B103")
async def test_a_whole_tree_has_one_time_for_its_last_words_and_each_hook_of_each_run_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[LastWords]()

    def words(seconds: float) -> LastWords:
        made.append(LastWords(seconds))
        return made[-1]

    monkeypatch.setattr("app.agent.supervisor.LastWords", words)
    monkeypatch.setattr("app.agent.supervisor.LAST_WORD_S", WAIT_S / 8)  # eleven times as long would be too long
    stage, told = Stage(), list[tuple[HookPoint, int]]()
    registry = HookRegistry(
        [hook(mute, STOP, POST), hook(lambda c: told.append((c.point, c.depth)), STOP, POST, name="diary")]
    )
    async with world(tmp_path, tools=stage.tools, hooks=registry) as w:
        run = await w.run(nested(5), policy={"max_depth": 6})
        await stage.reached("+never")
        async with asyncio.timeout(WAIT_S):
            await w.sessions.cancel(w.tenant, run.id)
        assert len(made) == 1
        stops, posts = ([depth for point, depth in told if point is each] for each in (STOP, POST))
        assert (stops, posts) == ([5, 4, 3, 2, 1], [5, 4, 3, 2, 1, 0])
        broken = [e["data"] for e in await w.events(run.session_id, "hook.decision")]
        assert {(each["decision"], each["hook"], each["effect"]) for each in broken} == {("failed", "mute", "allow")}
        assert len(broken) == 11, "each hook that was given up has left a trace"


@pytest.mark.spec("5.7", "9.6", "6.4")
async def test_a_service_that_stops_does_not_leave_runs_behind_whose_hooks_are_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.agent.supervisor.INTERRUPT_S", INTERRUPT_S - GRACE_MS / 1000)  # tools take the grace
    stage = Stage()
    async with world(tmp_path, tools=stage.tools, hooks=HookRegistry([hook(mute, STOP, POST)])) as w:
        run = await w.run(nested(2))
        await stage.reached("+never")
        await w.supervisor.close(0)
        assert w.supervisor.in_flight == 0
        assert (await w.finished(run))["status"] == "interrupted"
    assert GRACE_MS / 1000 + CLEAN_UP_S + SHUTDOWN_WORDS_S < INTERRUPT_S


@pytest.mark.spec("5.7", "5.5")
@pytest.mark.parametrize("point", [STOP, POST], ids=["stop", "post"])
async def test_a_hook_that_does_not_answer_leaves_its_run_and_those_above_time_for_a_forced_answer(
    tmp_path: Path, point: HookPoint
) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools, hooks=HookRegistry([hook(mute, point)])) as w:
        row = await w.finished(await w.run(nested(1), limits={"deadline_ms": 3000}))
        assert (row["stop_reason"], row["forced"], row["output"]) == ("deadline", True, "so far")


@pytest.mark.spec("5.7", "6.3")
@pytest.mark.parametrize(("point", "status"), [(START, "failed"), (STOP, "completed")])
async def test_a_hook_that_does_not_answer_by_the_deadline_of_its_run_has_failed(
    tmp_path: Path, point: HookPoint, status: str
) -> None:
    async with world(tmp_path, hooks=HookRegistry([hook(mute, point, timeout_s=600)])) as w:
        delegated = await w.delegate("work", deadline_ms=300)
        async with asyncio.timeout(WAIT_S):
            result = await delegated.result
        assert result.status == status
        (event,) = await w.events(delegated.session.id, "hook.decision")
        assert event["data"]["reason"] == "no answer before the run's deadline"


@pytest.mark.spec("6.1", "6.4", "5.7")
async def test_of_hooks_at_a_start_that_is_cancelled_those_that_were_asked_are_told_of_the_end(tmp_path: Path) -> None:
    is_asked, told = asyncio.Event(), list[tuple[str, HookPoint]]()

    def diary(name: str) -> FunctionHook:
        return hook(lambda c: told.append((name, c.point)), START, STOP, name=name)

    async def slow(c: HookCall) -> None:
        if c.point is START:
            is_asked.set()
            await asyncio.Event().wait()

    registry = HookRegistry([diary("first"), hook(slow, START, STOP, name="slow"), diary("later")])
    async with world(tmp_path, hooks=registry) as w, asyncio.timeout(WAIT_S):
        run = await w.run(nested(1, "work"))
        await is_asked.wait()
        await w.sessions.cancel(w.tenant, run.id)
        assert told == [("first", START), ("first", STOP)]


async def test_last_words_side_by_side_take_their_time_once_and_those_after_them_share_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    words = LastWords(6.0)
    with words.said(3) as one:
        now = 1.0
        with words.said(5) as other:
            now = 2.0
    assert (one, other) == (2.0, 1.0)
    now = 100.0  # tools are waited for meanwhile
    with words.said(2) as last:
        now = 200.0
    assert last == 2.0
    with words.said(1) as least:
        assert least == LEAST_WORD_S
