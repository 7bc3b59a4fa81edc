"""Random schedules: clients start, stop, change, close and watch the same sessions at once, and the log is true."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.agent import supervisor as supervisor_module
from app.agent.errors import SubagentdError
from app.sessions import streams as streams_module
from app.sessions.feed import View
from tests.agent.probes import Stage
from tests.longer import examples
from tests.plan import ask, call, task
from tests.world import WAIT_S, World, frames, world

DEEP = task({"calls": [ask(task({"calls": [call("hold", key="3")]}, "c"))]}, "d")
WORK = task(
    {"text": "a", "calls": [call("hold", key="1"), ask(task({"calls": [call("solo", key="2")]}, "b"))]},
    {"calls": [ask(DEEP), call("glob", pattern="*")]},
    "e",
)
OPS = ["turn", "turn", "delegate", "cancel", "cancel", "cancel all", "title", "close", "delete", "watch", "look"]
SCHEDULES = st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 1), st.integers(0, 12)), max_size=25)


def forget_everything(patch: pytest.MonkeyPatch) -> None:
    """The numbers of a session are forgotten as soon as they may be, so that they have to be read again."""
    patch.setattr(streams_module, "IDLE_STREAMS", 0)
    patch.setattr(supervisor_module, "IDLE_SESSIONS", 0)


async def perform(w: World, op: str, session: str, number: int) -> Any:
    """One request of a client."""
    match op:
        case "turn":
            return await w.turn(session, WORK)
        case "delegate":
            return await w.delegate(WORK, session_id=session, policy={"max_depth": 3})
        case "cancel":
            runs = sorted(flight for flight in w.supervisor._flights)
            return await w.sessions.cancel(w.tenant, runs[number % len(runs)]) if runs else None
        case "cancel all":
            return await w.sessions.cancel_session(w.tenant, session)
        case "title":
            return await w.sessions.update(w.tenant, session, {"title": str(number)})
        case "close":
            return await w.sessions.update(w.tenant, session, {}, close=True)
        case "delete":
            return await w.sessions.delete(w.tenant, session)
        case "look":
            return await w.sessions.tree(w.tenant, session)
    return None


async def watch(w: World, session: str) -> list[int]:
    """The numbers that a reader is shown until the session is closed."""
    view = View(tenant=w.tenant, session_id=session)
    return [frame["id"] async for frame in frames(w.feed, view) if frame["id"] is not None]


@given(SCHEDULES, st.booleans())
@settings(max_examples=examples(40), deadline=None)
@pytest.mark.spec("5.7", "11.1", "11.3", "11.6", "14.2", "14.3", "14.8")
@pytest.mark.case("B064", "B153")
async def test_whatever_clients_do_at_once_the_log_is_true_and_nothing_is_left_over(
    schedule: list[tuple[str, int, int]], forgetful: bool
) -> None:
    stage = Stage()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if forgetful:
            forget_everything(patch)
        async with asyncio.timeout(WAIT_S), world(Path(folder), tools=stage.tools) as w:
            sessions = [await w.session(), await w.session()]
            jobs: list[asyncio.Task[Any]] = []
            readers: list[asyncio.Task[list[int]]] = []
            deleted: set[str] = set()
            for op, which, number in schedule:
                session = sessions[which]
                deleted |= {session} if op == "delete" else set()
                if op == "watch" and session not in deleted:
                    readers.append(asyncio.create_task(watch(w, session)))
                jobs.append(asyncio.create_task(perform(w, op, session, number)))
                if number == 12:
                    stage.open("1", "2", "3")
                for _ in range(number):
                    await asyncio.sleep(0)
            stage.open("1", "2", "3")
            answers = await asyncio.gather(*jobs, return_exceptions=True)
            unexpected = [a for a in answers if isinstance(a, BaseException) and not isinstance(a, SubagentdError)]
            assert unexpected == []
            await w.delegations.close()
            ends = [perform(w, "close", session, 0) for session in sessions]
            answers += await asyncio.gather(*ends, return_exceptions=True)  # they may be closed or deleted already
            for numbers in await asyncio.gather(*readers):
                assert numbers == sorted(set(numbers)), "each event once and in order"
            for session in set(sessions) - deleted:
                row = await w.sessions.session(w.tenant, session)
                assert (row["status"], w.supervisor.busy(session)) == ("closed", False), answers
