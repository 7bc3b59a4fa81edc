"""What an operator adds to the service for the cases at several depths: tools that leave traces, hooks that object.

The tools of the names `run_command`, `write_file`, `edit_file` and `web_fetch` stand in for built-in ones: rules judge
a call by its name and arguments. They do nothing but write down what they were to do.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.service import ROOT

TOOLS = (
    "run_command", "web_fetch", "write_file", "edit_file", "put", "page", "poke", "boom", "sleeper", "deaf", "leaver",
    "slow", "meet",
)  # fmt: skip
HOOKS: tuple[dict[str, Any], ...] = (
    {"name": "tell", "points": ["OnSubagentStart", "PreToolUse", "PostToolUse", "OnSubagentStop"]},
    {"name": "guard", "points": ["PreToolUse"], "matcher": "Write"},
    {"name": "fence", "points": ["PreToolUse"], "matcher": "Agent"},
    {"name": "never", "points": ["PreToolUse"], "matcher": "poke", "timeout_s": 0.3},
    {"name": "change", "points": ["PreToolUse", "PostToolUse"], "matcher": "put"},
    {"name": "brief", "points": ["OnSubagentStart"]},
)
_MODULE = '''
"""Own tools and hooks of an operator."""

import asyncio
import json
import pathlib
import subprocess
import threading

from app.agent.hooks import Verdict
from app.agent.tools import ToolContext
from app.tools.function import tool

HERE = pathlib.Path(__file__).parent


def note(context: ToolContext, line: str) -> None:
    with open(context.workspace / "ran.txt", "a") as file:
        file.write(f"{context.session.id} {line}\\n")


@tool(name="run_command", concurrency_safe=True)
def run_command(command: str, context: ToolContext) -> str:
    """Writes down what it was to run."""
    note(context, command)
    return f"ran {command}"


@tool(concurrency_safe=True, read_only=True)
def web_fetch(url: str, context: ToolContext) -> str:
    """Writes down what it was to fetch."""
    note(context, url)
    return f"fetched {url}"


@tool
def write_file(path: str, context: ToolContext) -> str:
    """Writes a file."""
    (context.workspace / path).write_text("written")
    return "ok"


@tool
def edit_file(path: str, context: ToolContext) -> str:
    """Writes a file."""
    return write_file(path, context)


@tool
def put(path: str, context: ToolContext) -> str:
    """Says ok."""
    return "ok"


@tool(read_only=True)
def page(number: int, lines: int = 20) -> str:
    """A page of many words."""
    return "\\n".join(f"page {number} line {n}: the quick brown fox jumps over the dog" for n in range(lines))


@tool
def poke(text: str = "") -> str:
    """A tool that a hook never lets through."""
    return "poked"


@tool
def boom(text: str = "") -> str:
    """Fails."""
    raise LookupError("no such thing")


@tool
def sleeper(name: str) -> str:
    """Sleeps for long, in a process of its own."""
    subprocess.run(f"echo $$ >> {name}.pids; sleep 1000 & echo $! >> {name}.pids; wait", shell=True, cwd=HERE)
    return "slept"


@tool
async def deaf(name: str) -> str:
    """Never ends, whatever it is told."""
    while not (HERE / f"{name}.end").exists():
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue
    return "at last"


@tool(timeout_ms=200)
async def slow(text: str = "") -> str:
    """Takes longer than it may."""
    await asyncio.Event().wait()
    return "never"


@tool(concurrency_safe=True)
async def meet(name: str, context: ToolContext) -> str:
    """Waits until two are there at the same time."""
    there = MET.setdefault(context.run.id, set())
    there.add(name)
    while len(there) < 2:
        await asyncio.sleep(0.01)
    return f"{name} met the other"


@tool
def leaver(name: str) -> str:
    """Leaves a detached process behind that holds its output."""
    LEFT.append(subprocess.Popen("sleep 1000", shell=True, start_new_session=True))
    (HERE / f"{name}.pids").write_text(str(LEFT[-1].pid))
    return "started"


def tell(call):
    names = ("session_id", "run_id", "agent", "name", "depth", "tool", "parent_run_id", "result", "is_error", "steps")
    told = {name.removesuffix("_id"): getattr(call, name) for name in names}
    told |= {"point": call.point.value, "lineage": list(call.lineage), "path": list(call.path)}
    with LOCK, open(HERE / "told.jsonl", "a") as file:
        file.write(json.dumps(told) + "\\n")


LOCK = threading.Lock()
LEFT = []
MET = {}


def guard(call):
    return Verdict(block="nobody writes here") if call.agent == "guarded" else None


def fence(call):
    return Verdict(block="nobody starts anybody here") if call.agent == "fenced" else None


def change(call):
    if call.agent != "changed":
        return None
    return Verdict(arguments={"path": "safe"}) if call.point == "PreToolUse" else Verdict(output="[checked]")


def brief(call):
    return Verdict(context="Be brief.") if call.agent == "briefed" else None


async def never(call):
    await asyncio.Event().wait()
'''


def own_things(folder: Path, tools: Iterable[str], hooks: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Write the module; the environment that brings its tools and hooks into a service."""
    (folder / "operated.py").write_text(_MODULE)
    entries = [{"kind": "function", "path": f"operated:{hook['name']}", **hook} for hook in hooks]
    return {
        "PYTHONPATH": f"{ROOT}:{folder}",
        "SUBAGENTD_TOOLS__WITHOUT": json.dumps(["write_file", "edit_file", "web_fetch"]),
        "SUBAGENTD_TOOLS__FUNCTIONS": json.dumps([f"operated:{name}" for name in tools]),
        "SUBAGENTD_HOOKS__ENTRIES": json.dumps(entries),
    }
