"""Requests at random against the real service in this process, and what must be so while they come and afterwards.

    report = await fuzz(folder, requests=500, seed=7)
    assert report.violations == []

Used by a test (a short form) and by `python -m bench.fuzz`.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
from fastapi import FastAPI

from app.main import create_app
from app.sessions.access import SCOPES, new_key
from app.settings import load
from app.wiring import Wired, build
from tests.cancels.leftovers import store_problems
from tests.fuzz.asking import Asking, Tenant
from tests.fuzz.checks import Listening, faults
from tests.fuzz.document import Document
from tests.fuzz.playing import Exchange
from tests.fuzz.seeded import TENANTS, Known, environment, seed, start

SIDE_BY_SIDE = 8
PATIENCE_S = 0.1  # of a client whose answer does not come; it goes away, and the application has to go on by itself
END_S = 90.0  # for requests that wait: the longest wait is a minute, and what it waits for is cancelled
WARM = 2_000  # requests, after which memory is what a service under load has
OPEN_WAITS = 50
BASE = "http://127.0.0.1:8080"


@dataclass(kw_only=True)
class Report:
    """What was done and found."""

    seed: int
    requests: int = 0
    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    left: int = 0
    memory: list[int] = field(default_factory=list)  # KiB: warm, now and then, at the end
    violations: list[str] = field(default_factory=list)

    @property
    def grown_kib(self) -> int:
        """By how much the process has grown since it was warm."""
        return self.memory[-1] - self.memory[0] if self.memory else 0

    def told(self) -> str:
        """For people."""
        groups = ", ".join(f"{count} x {status}" for status, count in sorted(self.statuses.items()))
        memory = " ".join(f"{kib / 1024:.0f}" for kib in self.memory)
        lines = [
            f"seed {self.seed}: {self.requests} requests in {self.seconds:.0f} s; {self.left} clients left early",
            f"answers: {groups}",
            f"memory: {memory} MiB, grown by {self.grown_kib / 1024:.1f} MiB",
            f"{len(self.violations)} violations",
        ]
        return "\n".join([*lines, *self.violations[:100]])


class Fuzz:
    """One service in this process, and the requests to it."""

    def __init__(self, app: FastAPI, wired: Wired, tenants: list[Tenant], report: Report) -> None:
        self._app = app
        self._wired = wired
        self._tenants = tenants
        self._report = report
        self._asking = Asking(app.openapi())
        self._document = Document(app.openapi())
        self._waiting: set[asyncio.Task[None]] = set()

    def http(self, tenant: Tenant) -> httpx.AsyncClient:
        """A client that behaves."""
        headers = {} if tenant.key is None else {"Authorization": f"Bearer {tenant.key}"}
        return httpx.AsyncClient(transport=httpx.ASGITransport(self._app), base_url=BASE, headers=headers, timeout=60)

    async def run(self, requests: int) -> None:
        """All requests, some at a time, then the end of all that they have begun."""
        for tenant in self._tenants:
            async with self.http(tenant) as http:
                await seed(http, tenant.known)
        numbers = iter(range(requests))
        began = time.monotonic()
        await asyncio.gather(*(self._work(numbers, requests) for _ in range(SIDE_BY_SIDE)))
        self._report.seconds += time.monotonic() - began
        await self._settle()

    async def _work(self, numbers: Any, requests: int) -> None:
        for number in numbers:
            rng = Random(f"{self._report.seed}-{len(self._tenants)}-{number}")
            tenant = self._tenants[number % len(self._tenants)]
            await self._one(rng, tenant)
            if number and number % WARM == 0:
                self._report.memory.append(resident_kib())
            if number % (WARM // 2) == 0:  # some of everything, again: much of it was cancelled or deleted
                async with self.http(tenant) as http:
                    await seed(http, tenant.known)

    async def _one(self, rng: Random, tenant: Tenant) -> None:
        exchange = Exchange(self._app, self._asking.next(rng, tenant))
        task = asyncio.create_task(self._checked(exchange, tenant), name="exchange")
        await asyncio.wait({task}, timeout=PATIENCE_S)
        if not task.done():
            exchange.gone.set()
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
            if len(self._waiting) > OPEN_WAITS:
                await asyncio.wait(self._waiting, timeout=END_S, return_when=asyncio.FIRST_COMPLETED)

    async def _checked(self, exchange: Exchange, tenant: Tenant) -> None:
        await exchange.run()
        left, answered = exchange.gone.is_set(), exchange.answered
        self._report.requests += 1
        self._report.statuses[answered.status] += 1
        self._report.left += left
        asked = exchange.asked
        found = faults(asked, answered, left=left)
        if not left and not found:
            kind = answered.headers.get("content-type", "")
            found = self._document.faults(asked.method, asked.route, answered.status, kind, answered.body)
        self._report.violations += [f"{fault}\n    {asked.told()}" for fault in found]
        if answered.status < 300:
            tenant.known.learn(answered.body.decode("utf-8", "replace"))

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _settle(self) -> None:
        """Cancel everything, wait for every request, and see that the service works as before."""
        for tenant in self._tenants:
            async with self.http(tenant) as http:
                await _cancel_all(http)
        if self._waiting:
            await asyncio.wait(set(self._waiting), timeout=END_S)
        self._report.violations += [f"a request does not end: {task!r}" for task in self._waiting]
        for tenant in self._tenants:
            async with self.http(tenant) as http:
                run = (await http.post("/v1/runs", json=start("boss"))).json()
                ended = (await http.get(f"/v1/runs/{run['id']}", params={"wait_ms": 30_000})).json()
                if ended["status"] != "completed":
                    self._report.violations.append(f"a normal run ended {ended['status']}: {ended['error']}")
        self._report.memory.append(resident_kib())
        busy = self._wired.services.supervisor.in_flight
        if busy:
            self._report.violations.append(f"runs are left in flight: {busy}")


async def _cancel_all(http: httpx.AsyncClient) -> None:
    cursor: str | None = None
    while True:
        page = (await http.get("/v1/sessions", params={"limit": 500} | ({"cursor": cursor} if cursor else {}))).json()
        for session in page["items"]:
            if session["status"] == "active":
                await http.post(f"/v1/sessions/{session['id']}/cancel")
        cursor = page["next"]
        if cursor is None:
            return


def resident_kib() -> int:
    """The memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


@contextlib.contextmanager
def _surroundings(env: Mapping[str, str]) -> Any:
    """The settings as a server process would get them."""
    before = dict(os.environ)
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.asynccontextmanager
async def _service(folder: Path, *, keys: bool) -> AsyncIterator[tuple[FastAPI, Wired, list[Tenant]]]:
    with _surroundings({**environment(folder), "SUBAGENTD_DB": str(folder / "service.db")}):
        settings = load(**({"http": {"key": "a bootstrap key of some length"}} if keys else {}))
    wired = await build(settings)
    try:
        tenants = [Tenant(None, Known())]
        if keys:
            made = [new_key(tenant=name, name="fuzz", scopes=sorted(SCOPES)) for name in TENANTS]
            for key in made:
                for write in key.writes:
                    await wired.services.journal.write(write)
            left, right = (Known(key.id) for key in made)
            tenants = [Tenant(made[0].text, left, right), Tenant(made[1].text, right, left)]
        yield create_app(wired.services, settings), wired, tenants
    finally:
        await wired.drain(0)
        await wired.close()


async def fuzz(folder: Path, *, requests: int, seed: int) -> Report:
    """Half of the requests to a service without keys, half to one with two tenants."""
    report, listening = Report(seed=seed), Listening()
    logging.getLogger().addHandler(listening)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: listening.heard.append(f"the event loop: {context}"))
    before = asyncio.all_tasks()
    try:
        for keys in (False, True):
            place = folder / ("keys" if keys else "open")
            place.mkdir()
            async with _service(place, keys=keys) as (app, wired, tenants):
                await Fuzz(app, wired, tenants, report).run(requests // 2)
            report.violations += store_problems(place / "service.db")
            report.violations += [f"a task is left: {task!r}"[:300] for task in asyncio.all_tasks() - before]
    finally:
        logging.getLogger().removeHandler(listening)
        loop.set_exception_handler(None)
    report.violations += [f"in the log: {text}" for text in listening.heard]
    return report
