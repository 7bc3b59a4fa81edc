"""`subagentd run`: starts a session's turn over HTTP, shows the tree live and ends with the answer."""

import asyncio
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from app.cli import DONE, FAILED, UNREACHABLE, USAGE, echo_json
from app.cli.tree import TreeView, printable
from app.client import Client, ServiceError, Unreachable


def run(url: str, key: str | None, *, agent: str, task: str, model: str | None, as_json: bool) -> int:
    """Run to the end; returns the exit code."""
    try:
        return asyncio.run(_run(url, key, agent=agent, task=task, model=model, as_json=as_json))
    except Unreachable as error:
        click.echo(f"{error}. Start it with `subagentd serve`, or name another with --url.", err=True)
        return UNREACHABLE
    except ServiceError as error:
        click.echo(str(error), err=True)
        return USAGE if error.status < 500 else FAILED


async def _run(url: str, key: str | None, *, agent: str, task: str, model: str | None, as_json: bool) -> int:
    body = {"agent": agent, "input": task}
    if model:
        body["model"] = model
    async with Client(url, key) as client:
        started = await client.request("POST", "/v1/runs", body)
        await follow(client, f"/v1/runs/{started['id']}/events", as_json=as_json)
        ended = await client.request("GET", f"/v1/runs/{started['id']}")
    show(ended, as_json=as_json)
    return DONE if ended["status"] == "completed" else FAILED


async def follow(client: Client, path: str, *, as_json: bool) -> None:
    """Show the events of a view until it ends: as a tree, or one JSON line for each durable event."""
    if as_json:
        async for frame in client.events(path, deltas="false"):
            if frame.id is not None:
                echo_json(frame.data)
        return
    view, console = TreeView(), Console()
    try:
        with Live(view, console=console, refresh_per_second=8):
            async for frame in client.events(path):
                view.feed(frame)
    finally:
        if not console.is_terminal:
            console.line()  # there the last state is printed without the end of its line


def show(ended: dict[str, Any], *, as_json: bool) -> None:
    """The answer, or why there is none."""
    if as_json:
        echo_json(ended)
        return
    usage = ended["usage_total"] or {}
    click.echo()
    if ended["output"] or not ended["error"]:
        click.echo(printable(ended["output"] or "(no output)"))
    if ended["error"]:
        click.echo(f"error: {printable(ended['error']['message'])}", err=True)
    tokens = usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
    click.echo(f"— {ended['status']} ({ended['stop_reason']}), {ended['steps']} steps, {tokens} tokens in the tree")
