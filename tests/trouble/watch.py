"""Looks at a server from outside while it works: readiness, memory, whether it can be read. Knows no trouble."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

LOOK_S = 0.1
PAGE = 4096


@dataclass(slots=True)
class Watch:
    """`pid`: whose memory is looked at; `read`: a path that can be read before there is trouble."""

    url: str
    pid: int
    read: str
    turns: list[tuple[float, str]] = field(default_factory=list)  # of readiness: when, and the reasons ("" is ready)
    memory: list[tuple[float, int]] = field(default_factory=list)  # bytes
    reads: list[tuple[float, float, int]] = field(default_factory=list)  # when it was asked, s, status
    alive: list[tuple[float, float]] = field(default_factory=list)  # when /healthz was asked, s
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _http: aiohttp.ClientSession = field(init=False)

    async def __aenter__(self) -> "Watch":
        timeout = aiohttp.ClientTimeout(total=60)
        self._http = aiohttp.ClientSession(timeout=timeout, trust_env=False)
        looks = (self._ready(), self._memory(), self._read(), self._alive())
        self._tasks = [asyncio.create_task(look) for look in looks]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.close()

    async def _ready(self) -> None:
        while True:
            try:
                async with self._http.get(f"{self.url}/readyz") as answer:
                    checks = (await answer.json())["checks"]
                    told = "; ".join(f"{name}: {why}" for name, why in sorted(checks.items()) if why != "ok")
            except (aiohttp.ClientError, TimeoutError):
                told = "no answer"
            if not self.turns or told != self.turns[-1][1]:
                self.turns.append((time.monotonic(), told))
            await asyncio.sleep(LOOK_S)

    async def _memory(self) -> None:
        statm = Path(f"/proc/{self.pid}/statm")
        while statm.exists():
            try:
                self.memory.append((time.monotonic(), int(statm.read_text().split()[1]) * PAGE))
            except OSError:
                return
            await asyncio.sleep(LOOK_S)

    async def _read(self) -> None:
        while True:
            began = time.monotonic()
            try:
                async with self._http.get(self.url + self.read) as answer:
                    await answer.read()
                    status = answer.status
            except (aiohttp.ClientError, TimeoutError):
                status = 0
            self.reads.append((began, time.monotonic() - began, status))
            await asyncio.sleep(LOOK_S)

    async def _alive(self) -> None:
        while True:
            began = time.monotonic()
            try:
                async with self._http.get(f"{self.url}/healthz") as answer:
                    await answer.read()
            except (aiohttp.ClientError, TimeoutError):
                pass
            self.alive.append((began, time.monotonic() - began))
            await asyncio.sleep(LOOK_S)

    async def until(self, ready: bool, within_s: float, since: float = 0.0) -> float | None:
        """The first moment after `since` when readiness is (not) green; None when it does not come in time."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            moment, told = self.turns[-1] if self.turns else (0.0, "?")
            if (not told) is ready:
                return max(moment, since)
            await asyncio.sleep(LOOK_S / 2)
        return None

    def was_red(self, since: float, until: float) -> bool:
        """Whether it was not ready at any moment of that time."""
        ends = [at for at, _ in self.turns[1:]] + [until]
        return any(why and at <= until and end >= since for (at, why), end in zip(self.turns, ends, strict=True))

    def growth(self, since: float, until: float) -> int:
        """By how many bytes memory was larger at most in that time than at its begin."""
        inside = [size for at, size in self.memory if since <= at <= until]
        return max(inside, default=0) - (inside[0] if inside else 0)

    def read_statuses(self, since: float, until: float) -> tuple[Counter[int], float]:
        """What readers were answered in that time, and the longest wait in s."""
        inside = [(s, status) for at, s, status in self.reads if since <= at <= until]
        return Counter(status for _, status in inside), max((s for s, _ in inside), default=0.0)
