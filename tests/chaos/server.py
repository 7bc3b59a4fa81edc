"""A server that is started again and again on one database and one port, and what it can do.

Knows how it is started, ended and killed, not what it is asked.
"""

import asyncio
import contextlib
import random
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from app.sessions.access import SCOPES, new_key
from app.settings import Settings
from app.store.database import writing_connection
from app.store.location import locate
from app.store.migrate import upgrade
from app.store.statements import store_write
from tests.chaos.recorder import Recorder
from tests.forked import forked
from tests.service import WAIT_S, Service

GRACE_S = 0.5
DRAINED_S = 2.0  # beyond the grace: how long an end in order may take
AUDIT_KEY = "chaos-audit-key-chaos-audit-key-00"
TENANTS = ("left", "right")
# Below the numbers that Linux gives to connections: nobody gets the port while no server has it.
PORTS = range(20_000, 32_000)


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """What the service at hand can do; what is missing is left out of the load and of the rules."""

    background: bool  # children that nobody waits for
    idempotent: bool  # the header Idempotency-Key
    recovery: str  # of runs in flight: interrupt or continue


class ColdProcess:
    """A server that was started from nothing, with what tests need of `ForkedProcess`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid
        self.wait = process.wait

    def send_signal(self, number: int) -> None:
        """Send one, unless it has ended at this moment: a fault may have been quicker."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    @classmethod
    async def start(cls, args: list[str], folder: Path, env: Mapping[str, str]) -> "ColdProcess":
        """Start `subagentd` with these arguments in a folder. As where it is installed, it has its bytecode."""
        command = [sys.executable, "-m", "app", *args]
        env = {name: value for name, value in env.items() if name != "PYTHONDONTWRITEBYTECODE"}
        with (folder / "service.log").open("ab") as log:
            return cls(
                await asyncio.create_subprocess_exec(
                    *command, cwd=folder, env=env, stdout=asyncio.subprocess.PIPE, stderr=log
                )
            )

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._process.returncode

    async def first_line(self) -> bytes:
        """What it says first; empty when it ended without a word."""
        assert self._process.stdout is not None
        return await self._process.stdout.readline()


class Server(Service):
    """One process after another. `cold`: each starts from nothing, as users start it; otherwise it is forked."""

    def __init__(
        self, folder: Path, recorder: Recorder, *, model_url: str, cold: bool = False, recovery: str | None = None
    ) -> None:
        self.port = free_port()
        env = {
            "OPENAI_BASE_URL": model_url,
            "OPENAI_API_KEY": "test",
            "SUBAGENTD_MODEL": "openai:test",
            "SUBAGENTD_TOOLS__FUNCTIONS": '["tests.chaos.tools:everything"]',
            "SUBAGENTD_PERMISSIONS__RULES__ASK": '["guarded"]',
            "SUBAGENTD_HTTP__GRACE_S": str(GRACE_S),
            "SUBAGENTD_AUDIT__KEY": AUDIT_KEY,
            "SUBAGENTD_TOOLS__INTERRUPT_GRACE_MS": "300",
            "SUBAGENTD_STREAM__MAX_PER_OWNER": "2000",
            "CHAOS_WITNESS": str(folder / "witness"),
            **({"SUBAGENTD_RECOVERY__MODE": recovery} if recovery else {}),
        }
        super().__init__(folder, args=("--port", str(self.port)), env=env)
        self._recorder = recorder
        self._cold = cold
        self.boots = 0
        self.there = asyncio.Event()
        self.recovery = recovery
        self.ready_ms: list[float] = []
        self.drained_ms: list[float] = []
        self.url = f"http://127.0.0.1:{self.port}"
        self.keys = _keys(self.where)

    async def begin(self, fault: str = "") -> bool:
        """Start, armed with a fault; whether it came so far as to say that it is ready."""
        self.env["CHAOS_FAULT"] = fault
        args, env = self.command()
        self.boots += 1
        began = time.monotonic()
        self._recorder.note("start", boot=self.boots, fault=fault)
        process: Any = await ColdProcess.start(args, self.folder, env) if self._cold else forked(args, self.folder, env)
        self.process = process
        async with asyncio.timeout(WAIT_S):
            ready = bool(await process.first_line()) and await self._ready()
        if ready:
            self.there.set()
            self.ready_ms.append((time.monotonic() - began) * 1000)
            self._recorder.note("ready", boot=self.boots, ms=self.ready_ms[-1])
        elif not self._ended():
            raise AssertionError(f"the server does not become ready:\n{self.log[-4000:]}")
        return ready

    async def _ready(self) -> bool:
        async with aiohttp.ClientSession() as http:
            while not self._ended():
                try:
                    async with http.get(f"{self.url}/readyz") as answer:
                        if answer.status == 200:
                            return True
                except (aiohttp.ClientError, ConnectionError):
                    pass
                await asyncio.sleep(0.01)
        return False

    def _ended(self) -> bool:
        """Whether the process is gone; one that dies is gone soon after its address does not answer."""
        return self.process is None or not Path(f"/proc/{self.process.pid}").exists() or _zombie(self.process.pid)

    async def killed(self, within_s: float, *, aimed: bool) -> bool:
        """Wait for a while, then kill; whether it ended by itself before, as one does that was `aimed` at."""
        assert self.process is not None
        ending = asyncio.ensure_future(self.process.wait())
        await asyncio.wait({ending}, timeout=within_s)
        by_itself = ending.done()
        if not by_itself:
            self.process.send_signal(signal.SIGKILL)
        self.there.clear()
        async with asyncio.timeout(WAIT_S):
            code = await ending
        self._recorder.note("dead", boot=self.boots, code=code, how="fault" if by_itself else "kill")
        if by_itself and (not aimed or code != -signal.SIGKILL):
            raise AssertionError(f"the server ended by itself with {code}:\n{self.log[-4000:]}")
        return by_itself

    async def terminated(self) -> None:
        """End in order."""
        began = time.monotonic()
        self._recorder.note("term", boot=self.boots)
        code = await self.stop()
        self.there.clear()
        self.drained_ms.append((time.monotonic() - began) * 1000)
        self._recorder.note("dead", boot=self.boots, code=code, how="term", ms=self.drained_ms[-1])

    async def abilities(self) -> Abilities:
        """Find out what it can do, and write it down for the checker."""
        headers = {"Authorization": f"Bearer {self.keys[TENANTS[0]]}"}
        async with aiohttp.ClientSession(headers=headers) as http:
            async with http.get(f"{self.url}/openapi.json") as answer:
                paths = (await answer.json())["paths"]
            keyed = {**headers, "Idempotency-Key": "probe"}
            async with http.post(f"{self.url}/v1/sessions", json={}, headers=keyed) as answer:
                idempotent = answer.status == 201
        continues = "recovery" in Settings.model_fields
        found = Abilities(
            background="/v1/tasks" in paths,
            idempotent=idempotent,
            recovery=(self.recovery or "continue") if continues else "interrupt",
        )
        self._recorder.note("abilities", **asdict(found))
        return found


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has."""
    dice = random.Random()
    while True:
        port = dice.choice(PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _keys(where: str) -> Mapping[str, str]:
    """A fresh database with a key for each tenant."""
    upgrade(where)
    made = {tenant: new_key(tenant=tenant, name="chaos", scopes=sorted(SCOPES)) for tenant in TENANTS}
    connection = writing_connection(locate(where), "FULL", 5000)
    with connection.begin():
        for key in made.values():
            for write in key.writes:
                store_write(connection, write)
    connection.close()
    return {tenant: key.text for tenant, key in made.items()}
