"""`subagentd demo`: the real service with a real small model; a parent and two subagents work on real files.

Nothing in it is canned: every delegation, tool call and answer comes from the model at run time. Where the small
model cannot be had, the scripted one takes its place, and that is said.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import click

import app
from app.cli import DONE, FAILED, USAGE, echo_json
from app.cli.running import follow, show
from app.cli.tree import TOOL_LABEL, one_line
from app.client import Client, ServiceError, Unreachable
from app.llm.local import missing

START_S = 60.0
STOP_S = 15.0
# A model of this size copies better than it plans: the request has the form of the examples in the lead's prompt.
TASK = "What is this project? Find the YAML files and read the file README.md."
AGENTS = ("demo-lead", "demo-finder", "demo-reader")
ROWS = 8
LOG_LINES = 5
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Ended(Exception):
    """The service's process is gone while it was needed."""


def run(*, model: str | None, workspace: Path, as_json: bool) -> int:
    """Run the demonstration; returns the exit code."""
    lacking = [name for name in AGENTS if not (workspace / "agents" / f"{name}.md").is_file()]
    if lacking:
        click.echo(
            f"there is no {lacking[0]}.md in {workspace / 'agents'}: start the demo in a checkout of subagentd, or "
            "name one with --workspace",
            err=True,
        )
        return USAGE
    chosen, note = _model(model)
    if as_json:
        echo_json({"model": chosen, "note": note})
    else:
        click.echo(note)
    try:
        return asyncio.run(_demo(chosen, workspace.resolve(), as_json=as_json))
    except asyncio.CancelledError:
        click.echo("interrupted: the service was stopped", err=True)
        return FAILED


def _model(wanted: str | None) -> tuple[str, str]:
    if wanted:
        return wanted, f"Model: {wanted}."
    reason = missing()
    if reason is None:
        return "local:smollm2", (
            "Model: SmolLM2, 135 million parameters, on this machine, no network.\n"
            "It delegates and calls tools for real; its prose is poor."
        )
    return "scripted:demo", (
        "Model: SCRIPTED. The service, the tools and the files are real; what the agents say is not.\n"
        f"The small local model cannot run here: {reason}."
    )


async def _demo(model: str, workspace: Path, *, as_json: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="subagentd-demo-") as name:
        folder = Path(name)
        try:
            async with _service(model, workspace, folder) as service:
                return await _unless_ended(service, _work(service, as_json=as_json))
        except (_Ended, ServiceError, Unreachable, TimeoutError) as error:
            reason = str(error) or f"the service did not start within {START_S:g} s"
            click.echo(f"{reason}\n{_tail(folder)}".rstrip(), err=True)
            return FAILED


@contextlib.asynccontextmanager
async def _service(model: str, workspace: Path, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """The service's process, which ends with this block: also when a signal ends it."""
    command = [sys.executable, "-m", "app", "serve", "--json", "--port", "0", "--db", str(folder / "demo.db")]
    command += ["--model", model, "--workspace", str(workspace), "--agents", str(workspace / "agents")]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SUBAGENTD_")}
    environment["SUBAGENTD_HTTP__GRACE_S"] = "0"  # who interrupts a demo does not want to wait for its answer
    paths = [str(Path(app.__file__).parent.parent), os.environ.get("PYTHONPATH")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    work = asyncio.current_task()
    assert work is not None
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, work.cancel)
    with (folder / "service.log").open("wb") as log:
        service = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=environment,
            cwd=folder,  # no subagentd.toml of somebody's applies
            start_new_session=True,  # signals of the terminal are for us; we end it ourselves
        )
    try:
        yield service
    finally:
        for number in _SIGNALS:
            loop.add_signal_handler(number, _kill, service)  # a second one does not wait
        await _stop(service)


def _kill(service: asyncio.subprocess.Process) -> None:
    if service.returncode is None:
        service.kill()


async def _stop(service: asyncio.subprocess.Process) -> None:
    if service.returncode is None:
        service.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await service.wait()
    except TimeoutError:
        _kill(service)
        await service.wait()


async def _unless_ended(service: asyncio.subprocess.Process, work: Coroutine[Any, Any, int]) -> int:
    """The value of the work, which is given up when the service ends. Raises `_Ended`."""
    working = asyncio.create_task(work)
    ending = asyncio.create_task(service.wait())
    try:
        await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise _Ended(f"the service ended unexpectedly, with code {ending.result()}")
        return working.result()
    finally:
        working.cancel()
        ending.cancel()
        await asyncio.gather(working, ending, return_exceptions=True)


async def _work(service: asyncio.subprocess.Process, *, as_json: bool) -> int:
    async with Client(await _address(service)) as client:
        body = {"agent": AGENTS[0], "input": TASK, "title": "demo"}
        started = await client.request("POST", "/v1/runs", body)
        await follow(client, f"/v1/runs/{started['id']}/events", as_json=as_json)
        ended = await client.request("GET", f"/v1/runs/{started['id']}", wait_ms=1000)
        page = await client.request("GET", f"/v1/sessions/{started['session_id']}/messages", limit=ROWS, order="oldest")
        tree = await client.request("GET", f"/v1/sessions/{started['session_id']}/tree")
    show(ended, as_json=as_json)
    _rows(page["items"], as_json=as_json)
    children = [run for root in tree["runs"] for run in root["children"]]
    worked = len(children) == 2 and all(child["status"] == "completed" for child in children)
    return DONE if worked and ended["status"] == "completed" else FAILED


async def _address(service: asyncio.subprocess.Process) -> str:
    assert service.stdout is not None
    async with asyncio.timeout(START_S):
        line = await service.stdout.readline()
    if not line:
        raise _Ended(f"the service did not start; it ended with code {await service.wait()}")
    return str(json.loads(line)["listening"])


def _tail(folder: Path) -> str:
    """The end of what the service wrote, for people."""
    path = folder / "service.log"
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return "\n".join(f"  service: {_message(line)}" for line in lines[-LOG_LINES:])


def _message(line: str) -> str:
    try:
        return one_line(str(json.loads(line)["message"]))
    except (ValueError, LookupError, TypeError):
        return one_line(line)


def _rows(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            echo_json(row)
        return
    width = max(20, shutil.get_terminal_size().columns - 36)
    click.echo("\nThe first rows of the audit log:")
    for row in rows:
        text = row["content"] or ", ".join(f"{call['name']} {call['arguments']}" for call in row["tool_calls"])
        label = f"{TOOL_LABEL} " if row["is_subagent"] else ""
        click.echo(f"{row['seq']:>4}  {label + row['agent']:<17} {row['role']:<9} {one_line(text)[:width]}")
