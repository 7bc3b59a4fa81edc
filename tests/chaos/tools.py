"""An operator's tools that leave a witness outside the database, and the way in which a server ends itself.

Named by import path in the settings of the server, so that it is imported before anything is recovered. Knows neither
who asks nor who kills. `CHAOS_WITNESS` is a file: one line for each time that a tool really ran, written in one system
call, so that it outlives the process. `CHAOS_FAULT` is `<fault point>:<count>`: the process kills itself when it passes
the point for that time.
"""

import asyncio
import os
import signal
import subprocess
import threading

from app.agent import faults
from app.agent.tools import ToolContext
from app.tools.function import tool

_lock = threading.Lock()


def _witness(kind: str, context: ToolContext) -> None:
    """State that the effect has happened."""
    run = context.run
    line = f"{kind} {context.call_id} {run.id} {run.attempt} {os.getpid()}\n"
    where = os.open(os.environ["CHAOS_WITNESS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(where, line.encode())
    finally:
        os.close(where)


@tool(read_only=True)
async def look(number: int, context: ToolContext) -> str:
    """Read something."""
    _witness("look", context)
    await asyncio.sleep(number % 20 / 1000)
    return f"seen {number}"


@tool(concurrency_safe=True)
async def mark(number: int, context: ToolContext) -> str:
    """Change something outside; others may do so at the same time."""
    _witness("mark", context)
    await asyncio.sleep(number % 20 / 1000)
    return f"marked {number}"


@tool
async def alone(number: int, context: ToolContext) -> str:
    """Change something outside while nothing runs beside it."""
    _witness("alone", context)
    await asyncio.sleep(0)
    return f"marked {number} alone"


@tool(concurrency_safe=True)
def command(number: int, context: ToolContext) -> str:
    """Change something outside in a thread, with a process."""
    _witness("command", context)
    subprocess.run(["sleep", f"0.0{number % 10}"], stdin=subprocess.DEVNULL, check=False)
    return f"commanded {number}"


@tool(concurrency_safe=True)
async def guarded(number: int, context: ToolContext) -> str:
    """Change something outside; a person is asked first."""
    _witness("guarded", context)
    await asyncio.sleep(0)
    return f"allowed {number}"


everything = [look, mark, alone, command, guarded]


class _Countdown:
    """Ends the process without a word at the `count`th time."""

    def __init__(self, count: int) -> None:
        self._left = count

    def __call__(self) -> None:
        with _lock:  # the writer has a thread of its own
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def _arm() -> None:
    """Arm what the environment names."""
    point, _, count = os.environ.get("CHAOS_FAULT", "").partition(":")
    if point:
        faults.arm(point, _Countdown(int(count)))


_arm()
