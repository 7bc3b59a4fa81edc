"""The store away for a while: runs go on or pause, can be stopped, and lose nothing."""

import asyncio
from pathlib import Path

import pytest

from app.sessions import committing
from tests.agent.probes import Stage
from tests.plan import ask, call, task
from tests.sessions.asking import LOOK, moments
from tests.sessions.writers import Wrapped
from tests.world import WAIT_S, World, world


async def filled(w: World, more_than: int = 0) -> None:
    """Wait until so many bytes wait to be stored."""
    async with asyncio.timeout(WAIT_S):
        while w.journal.waiting_bytes <= more_than:
            await asyncio.sleep(0)


@pytest.mark.spec("12.3", "11.2")
@pytest.mark.case("B171")
async def test_runs_go_on_and_lose_nothing_while_the_store_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "RETRY_FIRST_S", 0.001)
    held = Wrapped()
    async with world(tmp_path, wrap=held) as w:
        session = await w.session()
        held.writer.before = 6
        run = await w.turn(session, task(LOOK, {"calls": [ask(task(LOOK, "deep"))]}, "end"))
        row = await w.finished(run)
        assert (row["output"], w.journal.failures, w.journal.problem) == ("end", 6, None)


@pytest.mark.spec("4.8", "12.7")
async def test_no_model_is_asked_before_the_log_says_that_it_is(tmp_path: Path) -> None:
    stage = Stage()
    held = Wrapped()
    async with world(tmp_path, tools=stage.tools, wrap=held) as w:
        run = await w.run(task({"calls": [call("hold", key="x")]}, "end"))
        await stage.reached("+x")
        asked = len(w.requests)
        held.writer.gate.clear()
        stage.open("x")
        await filled(w)
        await moments(200)
        assert len(w.requests) == asked
        held.writer.gate.set()
        assert (await w.finished(run))["output"] == "end"
        assert len(w.requests) == asked + 1


@pytest.mark.spec("4.8", "5.7")
async def test_a_call_that_is_not_made_since_its_time_is_over_before_it_is_stored_keeps_nothing_of_a_budget(
    tmp_path: Path,
) -> None:
    stage = Stage()
    held = Wrapped()
    async with world(tmp_path, tools=stage.tools, wrap=held) as w:
        session = await w.session(budget={"model_calls": 10})
        run = await w.turn(session, task({"calls": [call("hold", key="x")]}, "end"), deadline_ms=2000)
        await stage.reached("+x")
        held.writer.gate.clear()
        stage.open("x")
        async with asyncio.timeout(WAIT_S):
            await w.supervisor.wait(run.id)
        held.writer.gate.set()
        row = await w.finished(run)
        assert (row["stop_reason"], row["usage"]["model_calls"], len(w.requests)) == ("deadline", 1, 1)
        budget = w.supervisor.budget(session)
        assert budget is not None
        assert budget.left("model_calls") == 9


@pytest.mark.spec("12.3")
async def test_loops_pause_at_a_step_boundary_while_too_much_waits_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "SILENT_S", 0.02)
    held = Wrapped()
    async with world(tmp_path, wrap=held, max_bytes=2500) as w:
        session = await w.session()
        await w.journal.flush()
        held.writer.gate.clear()
        starting = asyncio.create_task(w.turn(session, task(LOOK, LOOK, LOOK, LOOK, LOOK, "end")))
        await filled(w, 2500)
        await moments(200)
        asked = len(w.requests)
        assert asked < 6, "the run did not wait"
        held.writer.gate.set()
        row = await w.finished(await starting)
        assert (row["output"], row["steps"]) == ("end", 6)


@pytest.mark.spec("5.7", "12.3", "14.8")
async def test_a_run_is_stopped_at_once_while_the_store_is_away_and_answered_when_it_is_back(tmp_path: Path) -> None:
    stage = Stage()
    held = Wrapped()
    async with world(tmp_path, tools=stage.tools, wrap=held) as w:
        run = await w.run(task({"calls": [call("hold", key="x")]}, "never"))
        await stage.reached("+x")
        held.writer.gate.clear()
        cancelling = asyncio.create_task(w.sessions.cancel(w.tenant, run.id))
        async with asyncio.timeout(WAIT_S):
            while w.supervisor.in_flight:
                await asyncio.sleep(0.001)
        assert stage.diary == ["+x", "!x"]
        assert not cancelling.done(), "what is answered must be stored"
        held.writer.gate.set()
        assert (await cancelling)["status"] == "cancelled"


@pytest.mark.spec("12.3", "14.8")
async def test_a_run_that_waits_for_room_can_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "SILENT_S", 0.02)
    held = Wrapped()
    async with world(tmp_path, wrap=held, max_bytes=2500) as w:
        session = await w.session()
        await w.journal.flush()
        held.writer.gate.clear()
        starting = asyncio.create_task(w.turn(session, task(LOOK, LOOK, LOOK, LOOK, "end")))
        await filled(w, 2500)
        await w.supervisor.cancel_session(session)
        held.writer.gate.set()
        assert (await w.finished(await starting))["status"] == "cancelled"


@pytest.mark.spec("11.3", "12.3")
async def test_a_session_of_an_earlier_process_is_read_while_others_wait_to_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "SILENT_S", 0.1)
    async with world(tmp_path) as w:
        old = await w.session()
        await w.finished(await w.turn(old, task("end")))
    held = Wrapped()
    async with world(tmp_path, wrap=held) as w:
        held.writer.gate.clear()
        creating = asyncio.create_task(w.session())
        await filled(w)
        async with asyncio.timeout(WAIT_S):
            view = await w.sessions.session_stream(w.tenant, old, until_idle=True)
        assert (view.ended_seq is not None, creating.done()) == (True, False)
        held.writer.gate.set()
        await creating
