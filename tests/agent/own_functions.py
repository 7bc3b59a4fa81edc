"""What operators may put in place of the loop: functions that a definition names by their import path."""

import asyncio
import contextlib
import threading
from typing import Any

from app.agent.own_runner import RunnerContext
from tests.world import WAIT_S

HERE = "tests.agent.own_functions"
SECRET = "sk-very-secret-value-0123456789"
SEEN: list[tuple[str, RunnerContext]] = []
DIARY: list[str] = []
GATES: dict[str, threading.Event] = {}
ERRORS: dict[str, BaseException] = {}
TRIES: list[str] = []


async def echo(task: str, context: RunnerContext) -> str:
    """Says what it was asked."""
    SEEN.append((task, context))
    await asyncio.sleep(0)
    return f"done: {task}"


def blocking(task: str, context: RunnerContext) -> str:
    """Blocks its thread until the test lets it go."""
    DIARY.append("main" if threading.current_thread() is threading.main_thread() else "thread")
    context.progress("working ")
    assert GATES["go"].wait(WAIT_S)
    context.progress("nearly")
    return f"after {task}"


def wrapped(task: str, context: RunnerContext) -> Any:
    """A plain function around an async one."""
    return echo(task, context)


class Answering:
    """An object that is an async function."""

    async def __call__(self, task: str, context: RunnerContext) -> str:
        return await echo(task, context)


an_object = Answering()


async def raising(task: str, _context: RunnerContext) -> str:
    """Raises what the test has put there."""
    TRIES.append(task)
    raise ERRORS["error"]


def raising_in_a_thread(task: str, _context: RunnerContext) -> str:
    """The same, not async."""
    TRIES.append(task)
    raise ERRORS["error"]


async def cancelling_itself(_task: str, _context: RunnerContext) -> str:
    """Cancels the task that it runs in."""
    own = asyncio.current_task()
    assert own is not None
    own.cancel()
    await asyncio.sleep(0)
    return "never"


async def cancelling_itself_last(_task: str, _context: RunnerContext) -> str:
    """The same, and then gives an answer as if nothing were."""
    own = asyncio.current_task()
    assert own is not None
    own.cancel()
    return "all the same"


async def second_time_lucky(task: str, _context: RunnerContext) -> str:
    """Fails once."""
    TRIES.append(task)
    if len(TRIES) == 1:
        raise ConnectionError("not yet")
    return "now"


async def returning(_task: str, _context: RunnerContext) -> Any:
    """Returns what is no text."""
    return {"answer": 1}


async def hanging(_task: str, _context: RunnerContext) -> str:
    """Waits for ever, and says how it was ended."""
    DIARY.append("begun")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        DIARY.append("cancelled")
        raise
    return "never"


async def deaf(_task: str, context: RunnerContext) -> str:
    """Does not take a cancellation for an answer."""
    DIARY.append("begun")
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    context.progress("still here")
    return "an answer that nobody waits for"


async def talking(_task: str, context: RunnerContext) -> str:
    """Shows its work."""
    await asyncio.to_thread(GATES["go"].wait, WAIT_S)
    for piece in ("one ", "two ", SECRET[:12], SECRET[12:], " end"):
        context.progress(piece)
    return "told"


async def saying(task: str, _context: RunnerContext) -> str:
    """Its task is its answer."""
    return task
