"""MCP servers of ours behind real owner tasks, in this process."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.agent.tools import Tool, ToolContext, ToolResult, ToolShelf
from app.masking import ValueMasker
from app.tools.mcp_config import McpServer
from app.tools.mcp_pins import Forgetful, Pins
from app.tools.mcp_servers import McpServers, Owner
from tests.processes import until
from tests.service import ROOT

WAIT_S = 20.0
PROGRAM = str(Path(__file__).with_name("mcp_program.py"))


class Standing:
    """One server of ours on a shelf."""

    def __init__(self, folder: Path, shelf: ToolShelf, servers: McpServers, owner: Owner) -> None:
        self.folder = folder
        self.shelf = shelf
        self.servers = servers
        self.owner = owner
        self.shown: list[str] = []

    def tool(self, name: str) -> Tool:
        """A tool by the server's own name for it."""
        return self.shelf[f"mcp__{self.owner.server.name}__{name}"]

    async def call(self, name: str, context: ToolContext, **arguments: Any) -> ToolResult:
        """Call a tool."""
        async with asyncio.timeout(WAIT_S):
            return await self.tool(name).call(arguments, replace(context, progress=self.shown.append))

    @property
    def pid(self) -> int:
        """Its process."""
        return int((self.folder / "pid").read_text())

    def kill(self) -> None:
        """kill -9."""
        os.kill(self.pid, signal.SIGKILL)

    def calls(self) -> list[str]:
        """What it was called with."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something is so."""
        await until(true)


def config(folder: Path, name: str = "ours", **fields: Any) -> McpServer:
    """Our server, over stdio."""
    environment = {"MCP_TEST": str(folder), "PYTHONPATH": str(ROOT)}
    given = {"command": sys.executable, "args": (PROGRAM,), "environment": environment, **fields}
    return McpServer(name=name, **given)


@contextlib.asynccontextmanager
async def standing(
    folder: Path, *, pins: Pins | None = None, settle: bool = True, secrets: Sequence[str] = (), **fields: Any
) -> AsyncIterator[Standing]:
    """A running server; afterwards nothing of it may be left."""
    shelf = ToolShelf()
    servers = McpServers(shelf, pins or Forgetful(), masker=ValueMasker(secrets), first_pause_s=0.02)
    owner = servers.add(config(folder, **fields))
    found = Standing(folder, shelf, servers, owner)
    try:
        await shelf.ready([f"mcp__{owner.server.name}"])
        yield found
    finally:
        async with asyncio.timeout(WAIT_S):
            await servers.close()
        if (folder / "pid").exists():
            assert not alive(found.pid)


def alive(number: int) -> bool:
    """Whether there is a process, or a group, of that number."""
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True
