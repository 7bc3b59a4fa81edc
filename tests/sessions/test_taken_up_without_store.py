"""A store that cannot be read for a while, while what another process has left is taken up: nothing ends of that."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.agent import patience
from app.agent.errors import Unavailable
from app.agent.tools import ToolContext
from tests.agent.probes import Probe
from tests.plan import ask, behind, call, execute, task
from tests.sessions.lives import Story, row_problems, still
from tests.sessions.test_continuing import all_events, outcome
from tests.strict import FINAL
from tests.world import WAIT_S, World

pytestmark = pytest.mark.spec("12.3", "12.7")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "READ_FIRST_S", 0.001)
    monkeypatch.setattr(patience, "READ_MAX_S", 0.01)


def away(read: Callable[..., Awaitable[Any]], times: int, error: Exception | None = None) -> Any:
    """A read that fails so many times, and is itself then."""
    left = [times]

    async def reading(*arguments: Any, **named: Any) -> Any:
        if left[0]:
            left[0] -= 1
            await asyncio.sleep(0)
            raise error or Unavailable("the store cannot be read at the moment", code="store_unavailable")
        return await read(*arguments, **named)

    return reading


READS: dict[str, Callable[[World], Any]] = {
    "runs": lambda w: w.store,
    "handoffs": lambda w: w.store,
    "session": lambda w: w.store,
    "counters": lambda w: w.store,
    "page": lambda w: w.journal.log,
    "open": lambda w: w.journal,
    "load": lambda w: w.memories,
}


@pytest.mark.parametrize("read", READS)
async def test_a_read_that_fails_for_a_while_ends_no_run(tmp_path: Path, read: str) -> None:
    async def begin(w: World) -> None:
        child = task({"calls": [call("look", key="a")]}, {"calls": [call("look", key="b")]}, "child")
        await w.run(task({"calls": [ask(child)]}, "The end."))

    story = Story(begin)
    whole = await story.whole(tmp_path)
    async with story.ends(tmp_path / "whole") as w:
        expected = await outcome(w)
    await story.after(tmp_path / "died", whole // 2)
    async with story.begun(tmp_path / "died", take_up=False) as w:
        (session,) = await w.rows("sessions")
        target = READS[read](w)
        setattr(target, read, away(getattr(target, read), 3))
        await w.recovery.run()
        async with asyncio.timeout(WAIT_S):
            await w.recovery.ready(session["id"])
            assert w.supervisor.in_flight, "the gate opens when the run is gone on with"
        await still(w)
        assert await row_problems(w) == []
        assert await outcome(w) == expected


@pytest.mark.parametrize("read", READS)
async def test_a_stop_during_a_slow_read_says_nothing_of_the_session_and_the_next_process_goes_on(
    tmp_path: Path, read: str
) -> None:
    async def begin(w: World) -> None:
        await w.run(task({"calls": [ask(task({"calls": [call("look", key="b")]}, "child"))]}, "The end."))

    story = Story(begin)
    whole = await story.whole(tmp_path)
    async with story.ends(tmp_path / "whole") as w:
        expected = await outcome(w)
    await story.after(tmp_path / "died", whole // 2)
    reached = asyncio.Event()

    async def slow(*_arguments: Any, **_named: Any) -> Any:
        reached.set()
        await asyncio.Event().wait()

    async with story.begun(tmp_path / "died", take_up=False, verify=False) as w:
        before = await all_events(w)
        target = READS[read](w)
        good = getattr(target, read)
        setattr(target, read, slow)
        if read in ("runs", "handoffs"):  # read before anything is taken up: the start itself waits
            starting = asyncio.create_task(w.recovery.run())
        else:
            starting = None
            await w.recovery.run()
        async with asyncio.timeout(WAIT_S):
            await reached.wait()
            await w.recovery.stop()
        if starting is not None:
            starting.cancel()
        setattr(target, read, good)
        await asyncio.sleep(0)
        assert [e["type"] for e in await all_events(w)] == [e["type"] for e in before]
    async with story.ends(tmp_path / "died") as w:
        assert await row_problems(w) == []
        assert await outcome(w) == expected


async def ends_once(w: World, *statuses: str) -> None:
    """Everything has one end, the runs with these statuses."""
    await still(w)
    assert await row_problems(w) == []
    events = await all_events(w)
    ends = Counter(e["data"].get("handoff_id") or e["run_id"] for e in events if e["type"] in (*FINAL, "handoff.end"))
    assert set(ends.values()) == {1}, ends
    assert tuple(row["status"] for row in await w.rows("runs")) == statuses


def task_and_turn(below: int = 0) -> tuple[Story, asyncio.Event]:
    """A process that dies while a task of an earlier turn goes on beside a turn; both wait for the event. `below`: in
    the task it is a subagent so deep that does."""
    gate = asyncio.Event()

    async def hold(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        await gate.wait()
        return "held"

    async def begin(w: World) -> None:
        session = await w.session(surfaces=["task"])
        child = task({"calls": [call("hold", key="task")]}, "done")
        for _ in range(below):
            child = task({"calls": [execute(child)]}, "done")
        await w.finished(await w.turn(session, task({"calls": [behind(child)]}, "first")))
        await w.turn(session, task({"calls": [call("hold", key="turn")]}, "second"))
        for key in ("task", "turn"):
            await w.until(session, "tool.start", where=lambda data, key=key: data["data"]["tool"] == "hold")
        story.die()

    story = Story(begin, (Probe("hold", hold, read_only=True),))
    return story, gate


@pytest.mark.parametrize("where", ["memory", "first close", "second close"])
async def test_what_goes_on_is_not_closed_when_the_rest_of_its_session_has_a_problem(
    tmp_path: Path, where: str
) -> None:
    story, gate = task_and_turn()
    await story.dies(tmp_path, 1_000_000, first=True)
    async with story.begun(tmp_path, take_up=False) as w:
        if where == "memory":
            w.memories.load = away(w.memories.load, 1)  # type: ignore[method-assign]
        else:
            good = [None] * (where == "second close")
            failing = away(w.recovery._close, 1, RuntimeError("a fault"))
            w.recovery._close = after(good, w.recovery._close, failing)  # type: ignore[method-assign]
        await w.recovery.run()
        await w.recovery.settled()
        gate.set()
        await ends_once(w, *(["completed"] + ["interrupted"] * 2 if where == "first close" else ["completed"] * 3))


async def test_what_a_task_has_taken_up_while_its_session_is_read_is_not_closed(tmp_path: Path) -> None:
    story, gate = task_and_turn(below=1)
    await story.dies(tmp_path, 1_000_000, first=True)
    async with story.begun(tmp_path, take_up=False) as w:
        (session,) = await w.rows("sessions")
        lead, load, taken = (await w.rows("runs"))[0]["memory_id"], w.memories.load, asyncio.Event()

        async def slow(tenant: str, memory_id: str) -> Any:
            if memory_id == lead:
                await taken.wait()
            return await load(tenant, memory_id)

        w.memories.load = slow  # type: ignore[method-assign]
        await w.recovery.run()
        await w.until(session["id"], "run.resumed", where=lambda data: data["depth"] == 2)
        taken.set()
        await w.recovery.settled()
        gate.set()
        await ends_once(w, *["completed"] * 4)


def after(skipped: list[None], good: Callable[..., Awaitable[Any]], then: Callable[..., Awaitable[Any]]) -> Any:
    """As many good calls as there are in the list, then the other."""

    async def calling(*arguments: Any) -> Any:
        if skipped:
            skipped.pop()
            return await good(*arguments)
        return await then(*arguments)

    return calling


@pytest.mark.parametrize("read", ["page", "load"])
async def test_what_is_read_until_the_service_has_ended_is_left_to_the_next_one(tmp_path: Path, read: str) -> None:
    async def begin(w: World) -> None:
        child = task({"calls": [call("look", key="a")]}, {"calls": [call("look", key="b")]}, "child")
        await w.run(task({"calls": [ask(child)]}, "The end."))

    story = Story(begin)
    whole = await story.whole(tmp_path)
    async with story.ends(tmp_path / "whole") as w:
        expected = await outcome(w)
    await story.after(tmp_path / "died", whole // 2)
    async with story.begun(tmp_path / "died", take_up=False, verify=False) as w:
        before, begun, gate, target = len(await w.rows("events")), asyncio.Event(), asyncio.Event(), READS[read](w)
        real = getattr(target, read)

        async def slow(*arguments: Any, **named: Any) -> Any:
            begun.set()
            await gate.wait()
            return await real(*arguments, **named)

        setattr(target, read, slow)
        await w.recovery.run()
        await begun.wait()
        (session,) = await w.rows("sessions")
        opened = asyncio.create_task(w.recovery.ready(session["id"]))
        await w.sessions.close(0)
        gate.set()
        async with asyncio.timeout(WAIT_S):
            await w.recovery.settled()
            with pytest.raises(Unavailable, match="next process"):
                await opened
        assert (w.supervisor.in_flight, len(await w.rows("events"))) == (0, before)
    async with story.begun(tmp_path / "died") as w:
        await still(w)
        assert await row_problems(w) == []
        assert await outcome(w) == expected
