"""Public MCP servers as tools: list, call, progress, cancel, kill -9 and back, each with its time.

    python -m bench.mcp_servers SERVERS.json

SERVERS.json holds for each name an entry of the setting `mcp.servers` with three keys more: `call` ({tool, arguments,
expect?}), `slow` (one that takes seconds, to be cancelled) and `reports` (true: `slow` reports progress). Servers are
not downloaded here: give commands of ones that are installed. Exit code 1 when one of them does not do as it should.
"""

import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.agent.runs import Run, Session
from app.agent.tools import Tool, ToolContext, ToolShelf
from app.masking import ValueMasker
from app.settings_mcp import McpServerEntry
from app.tools.mcp_names import tool_name
from app.tools.mcp_pins import Forgetful
from app.tools.mcp_servers import McpServers, State
from app.wiring_mcp import server_of

WAIT_S = 60.0
SETTLE_S = 1.0  # how long a slow call runs before it is cancelled
SENT_S = 0.001  # the same for an ordinary one: on its way, and not answered yet
OWN = ("call", "slow", "reports")


def _context() -> ToolContext:
    session = Session(id="ses_1", tenant="default", memory_id="mem_1", agent="x", created_at=0)
    run = Run(
        id="run_1", session_id="ses_1", tenant="default", memory_id="mem_1", turn=0, ordinal=1, depth=0, path=(1,),
        agent="x",
    )  # fmt: skip
    return ToolContext(
        session=session, run=run, step=1, call_id="call_1", workspace=Path(), deadline=None, progress=lambda text: None
    )


class Trial:
    """One server, tried out."""

    def __init__(self, name: str, given: dict[str, Any]) -> None:
        self.name = name
        self.given = given
        self.shelf = ToolShelf()
        self.servers = McpServers(self.shelf, Forgetful(), masker=ValueMasker(), first_pause_s=0.1)
        entry = McpServerEntry(**{key: value for key, value in given.items() if key not in OWN})
        self.server = server_of(name, entry, os.environ)
        self.figures: dict[str, str] = {}

    def tool(self, which: str) -> tuple[Tool, dict[str, Any]]:
        """A tool of the entry with its arguments."""
        wanted = self.given[which]
        return self.shelf[tool_name(self.name, wanted["tool"])], wanted.get("arguments", {})

    async def run(self) -> None:
        """All steps; an exception says which one failed."""
        began = time.perf_counter()
        owner = self.servers.add(self.server)
        try:
            await owner.settled()
            assert owner.state is State.UP, owner.why
            self.figures["start"] = f"{time.perf_counter() - began:.2f} s"
            self.figures["tools"] = str(len(self.shelf))
            self.figures["call"] = await self._call()
            self.figures["cancel"] = await self._cancel()
            self.figures["parallel"] = await self._parallel()
            for _ in range(3):
                self.figures["back"] = await self._kill(owner)
        finally:
            await self.servers.close()
        assert not _children(), f"{self.name} left processes behind"

    async def _call(self) -> str:
        tool, arguments = self.tool("call")
        began = time.perf_counter()
        result = await tool.call(arguments, _context())
        took = time.perf_counter() - began
        assert not result.is_error, result.content
        assert self.given["call"].get("expect", "") in result.content, result.content[:500]
        return f"{took * 1000:.1f} ms"

    async def _parallel(self) -> str:
        began = time.perf_counter()
        await asyncio.gather(*(self._call() for _ in range(100)))
        return f"100 in {time.perf_counter() - began:.2f} s"

    async def _cancel(self) -> str:
        slow = "slow" in self.given
        tool, arguments = self.tool("slow" if slow else "call")
        said: list[str] = []
        call = asyncio.create_task(tool.call(arguments, replace(_context(), progress=said.append)))
        done, _ = await asyncio.wait({call}, timeout=SETTLE_S if slow else SENT_S)
        assert not done, "the slow call was too fast to be cancelled"
        began = time.perf_counter()
        call.cancel()
        await asyncio.wait({call})
        took = time.perf_counter() - began
        assert call.cancelled()
        await self._call()  # the same conversation goes on
        if self.given.get("reports"):
            assert said, "no progress was reported"
            self.figures["progress"] = f"{len(said)}: {said[0].strip()}"
        return f"{took * 1000:.1f} ms"

    async def _kill(self, owner: Any) -> str:
        (number,) = _children()
        os.kill(number, signal.SIGKILL)
        began = time.perf_counter()
        async with asyncio.timeout(WAIT_S):
            while set(_children()) <= {number} or owner.state is not State.UP:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await self._call()
        return f"{time.perf_counter() - began:.2f} s"


def _children() -> list[int]:
    path = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return [int(number) for number in path.read_text().split()]


async def _all(given: dict[str, Any]) -> int:
    failed = 0
    for name, entry in given.items():
        trial = Trial(name, entry)
        try:
            async with asyncio.timeout(4 * WAIT_S):
                await trial.run()
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001  the others are tried all the same
            failed += 1
            trial.figures["FAILED"] = f"{type(error).__name__}: {error}"
        print(f"{name}: " + ", ".join(f"{what} {figure}" for what, figure in trial.figures.items()))
    return 1 if failed else 0


def main() -> int:
    """Try all servers of the file."""
    return asyncio.run(_all(json.loads(Path(sys.argv[1]).read_text())))


if __name__ == "__main__":
    sys.exit(main())
