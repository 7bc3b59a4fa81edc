"""A real server process on a real database, for tests: what the command that users start runs, forked ready-made."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from app.client import Client, Received
from tests.forked import ForkedProcess, forked
from tests.migrated import migrated

WAIT_S = 30.0
ROOT = Path(__file__).resolve().parent.parent


INTERRUPT = {"SUBAGENTD_RECOVERY__MODE": "interrupt"}  # closes what another process left open


class Service:
    """One server process after another on one database file."""

    def __init__(self, folder: Path, *, args: tuple[str, ...] = (), env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.database = folder / "service.db"
        self.where = str(self.database)
        self.workspace = folder / "workspace"
        self.workspace.mkdir(exist_ok=True)
        self.args = args
        self.env = dict(env or {})
        self.key: str | None = self.env.get("SUBAGENTD_KEY")
        self.url = ""
        self.process: ForkedProcess | None = None

    @property
    def log(self) -> str:
        """What the server wrote."""
        path = self.folder / "service.log"
        return path.read_text() if path.exists() else ""

    def command(self) -> tuple[list[str], dict[str, str]]:
        """What is started: its arguments and its environment."""
        base = {k: v for k, v in os.environ.items() if not k.startswith(("SUBAGENTD_", "OPENAI_", "ANTHROPIC_"))}
        args = ["serve", "--json", "--port", "0", "--db", self.where]
        args += ["--workspace", str(self.workspace), *self.args]
        return args, {**base, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", **self.env}

    async def start(self) -> "Service":
        """Start and wait for the address. A first start finds a database that is made; tests/cli and tests/store make
        their own."""
        if self.where == str(self.database):
            await asyncio.to_thread(migrated, self.database)
        args, env = self.command()
        self.process = forked(args, self.folder, env)
        async with asyncio.timeout(WAIT_S):
            line = await self.process.first_line()
        assert line, f"the server did not start:\n{self.log}"
        self.url = json.loads(line)["listening"]
        return self

    async def ended(self) -> int:
        """Wait for the end of the process; its exit code."""
        assert self.process is not None
        async with asyncio.timeout(WAIT_S):
            return await self.process.wait()

    async def stop(self) -> int:
        """SIGTERM, and wait."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.terminate()
        return await self.ended()

    async def kill(self) -> None:
        """SIGKILL, and wait."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        await self.ended()

    def client(self, key: str | None = None) -> Client:
        """A client of the server as it runs now."""
        return Client(self.url, key or self.key)


@contextlib.asynccontextmanager
async def serving(
    folder: Path, *args: str, env: Mapping[str, str] | None = None, where: str | None = None, check_log: bool = True
) -> AsyncIterator[Service]:
    """A running service, on the database `where`; afterwards it must end well and must not have logged a traceback."""
    service = Service(folder, args=args, env=env)
    service.where = where or service.where
    await service.start()
    try:
        yield service
    finally:
        code = await service.stop()
    if check_log:
        assert code == 0, service.log
        assert "Traceback" not in service.log, service.log


def script(folder: Path, text: str, name: str = "play") -> dict[str, str]:
    """Write a script of the scripted model; returns the environment that makes it the default model."""
    scripts = folder / "scripts"
    scripts.mkdir(exist_ok=True)
    (scripts / f"{name}.yaml").write_text(text)
    return {"SUBAGENTD_MODELS__SCRIPTS": str(scripts), "SUBAGENTD_MODEL": f"scripted:{name}"}


def agent(name: str, *, prompt: str = "", **fields: Any) -> dict[str, Any]:
    """An inline definition."""
    return {"name": name, "description": f"The {name}.", "prompt": prompt or f"You are {name}.", **fields}


async def received(client: Client, path: str, after: int = 0, **query: Any) -> list[Received]:
    """All frames of a view until it ends."""
    async with asyncio.timeout(WAIT_S):
        return [frame async for frame in client.events(path, after, **query)]


async def events_of(client: Client, path: str, **query: Any) -> list[dict[str, Any]]:
    """All durable events of a view as JSON pages give them."""
    items: list[dict[str, Any]] = []
    after = 0
    async with asyncio.timeout(WAIT_S):
        while True:
            page = await client.page(path, after=after, limit=100, **query)
            items += page["items"]
            if not page["items"]:
                return items
            after = page["items"][-1]["id"]


async def finished(client: Client, run_id: str) -> dict[str, Any]:
    """Wait until a run is final."""
    async with asyncio.timeout(WAIT_S):
        while True:
            run: dict[str, Any] = await client.request("GET", f"/v1/runs/{run_id}", wait_ms=5000)
            if run["ended_at"] is not None:
                return run
