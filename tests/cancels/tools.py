"""An operator's tools and hooks that take long: what is under way in a server when its runs are cancelled.

Named by import path in the settings of the server; know nothing of who cancels.
"""

import asyncio
import json
import os
import subprocess
import time
from pathlib import Path

from app.agent.hooks import HookCall, HookPoint
from app.tools.function import tool

LONG_S = 120
FINISHING_S = 1.0  # less than the grace
DEAF_S = 4.0  # more than the grace
SLEEPER = ["sleep", str(LONG_S)]
AT_START, AT_STOP = "hook-waits-at-the-start", "hook-waits-at-the-stop"  # of a task, of an answer


@tool(concurrency_safe=True, timeout_ms=0)
async def child() -> str:
    """Wait for a process."""
    process = await asyncio.create_subprocess_exec(*SLEEPER, stdin=subprocess.DEVNULL)
    try:
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return "ended"


@tool(concurrency_safe=True, timeout_ms=0)
def thread() -> str:
    """Wait for a process, and one below it, in a thread."""
    subprocess.run(["sh", "-c", "sleep 120 & sleep 120; wait"], stdin=subprocess.DEVNULL, check=False)
    return "ended"


@tool(timeout_ms=0)
def alone() -> str:
    """Wait for a process in a thread; nothing else runs beside this."""
    subprocess.run(SLEEPER, stdin=subprocess.DEVNULL, check=False)
    return "ended"


@tool(concurrency_safe=True, interrupt="block")
async def finishing() -> str:
    """Must not be broken off, and is done soon."""
    await asyncio.sleep(FINISHING_S)
    return "finished"


@tool(concurrency_safe=True, interrupt="block")
def finishing_thread() -> str:
    """Must not be broken off, and is done soon, in a thread."""
    time.sleep(FINISHING_S)
    return "finished"


async def _deaf() -> str:
    until = time.monotonic() + DEAF_S
    while (left := until - time.monotonic()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue
    return "never heard"


@tool(concurrency_safe=True)
async def deaf() -> str:
    """Does not hear that it is cancelled."""
    return await _deaf()


@tool(concurrency_safe=True, interrupt="block")
async def deaf_block() -> str:
    """Must not be broken off, takes longer than the grace, and does not hear that it is cancelled."""
    return await _deaf()


@tool(concurrency_safe=True)
def guarded() -> str:
    """A person is asked first."""
    return "allowed"


@tool(concurrency_safe=True)
def watched() -> str:
    """A Python hook is asked first, and takes long."""
    return "seen"


@tool(concurrency_safe=True)
def commanded() -> str:
    """A command is asked first, and takes long."""
    return "seen"


@tool(concurrency_safe=True)
def checked() -> str:
    """A hook in a thread is asked afterwards, and takes a while."""
    return "seen"


@tool(concurrency_safe=True, read_only=True)
def quick() -> str:
    """Is done at once."""
    return "done"


@tool(concurrency_safe=True, read_only=True)
async def census() -> str:
    """The names of what is in flight in this process."""
    own = asyncio.current_task()
    return json.dumps(sorted(task.get_name() for task in asyncio.all_tasks() if task is not own))


everything = [
    child, thread, alone, finishing, finishing_thread, deaf, deaf_block, guarded, watched, commanded, checked, quick,
    census,
]  # fmt: skip


async def diary(call: HookCall) -> None:
    """Writes down what hooks are told."""
    line = json.dumps([call.point.value, call.run_id, call.call_id, call.tool])
    with Path(os.environ["CANCELS_DIARY"]).open("a") as file:
        file.write(line + "\n")


async def slow(call: HookCall) -> None:
    """Takes long about one tool, and about subagents whose task or answer asks for it."""
    at = {
        HookPoint.PRE_TOOL_USE: call.tool == "watched",
        HookPoint.SUBAGENT_START: f'"note": "{AT_START}"' in (call.prompt or ""),  # not of one below it
        HookPoint.SUBAGENT_STOP: AT_STOP in (call.result or "") and not call.is_error,
    }
    if at.get(call.point):
        await asyncio.sleep(LONG_S)


def slow_after(call: HookCall) -> None:
    """Takes a while about one tool, in a thread; for longer than hooks of a cancelled run are waited for."""
    if call.tool == "checked":
        time.sleep(2)
