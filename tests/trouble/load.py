"""What clients do while the store is in trouble: runs that follow each other, each watched to its end, and readers.

Knows the service by its routes only. `check` compares what was received with what the service says afterwards.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.strict import FINAL

PAUSE_S = 0.2  # after a refusal that does not say how long
GIVE_UP_S = 60.0
SCRIPT = """
defaults: {chunks: 6, delay_ms: %(delay)d}
agents:
  - turns:
%(turns)s
      - text: "This is what was found, in a few words, and it is the end."
"""
TURN = """      - text: "I look at number %d of what there is to be seen."
        calls: [{tool: look, arguments: {number: %d}}]"""


def play(steps: int, delay_ms: int) -> str:
    """A script of so many steps with one call each."""
    return SCRIPT % {"delay": delay_ms, "turns": "\n".join(TURN % (n, n) for n in range(steps - 1))}


@dataclass(slots=True)
class Seen:
    """A run that was accepted, and the durable events of it that were received: number → data, with their moments."""

    run_id: str
    session_id: str
    events: dict[int, str] = field(default_factory=dict)
    ended: bool = False
    retry_s: float = 0.0  # how long to wait before the stream is opened again, as it said last


@dataclass(slots=True)
class Load:
    """`width` runs at a time, until `finish`."""

    url: str
    width: int
    seen: list[Seen] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)  # of every durable event
    accepted: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)  # s for an answer to a POST
    http: aiohttp.ClientSession = field(init=False)
    _going_on: bool = True
    _workers: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> "Load":
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        self.http = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0), trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        await self.http.close()

    def begin(self) -> None:
        """Start the runs."""
        self._workers = [asyncio.create_task(self._work(), name=f"client {n}") for n in range(self.width)]

    def stop(self) -> None:
        """Start no more runs."""
        self._going_on = False

    async def finish(self, within_s: float) -> None:
        """Start no more runs; wait for those that there are."""
        self.stop()
        done, late = await asyncio.wait(self._workers, timeout=within_s)
        for worker in done:
            worker.result()
        if late:
            self.wrong.append(f"{len(late)} clients still wait for the end of their run after {within_s:g} s")

    async def _work(self) -> None:
        while self._going_on:
            started = await self.post("/v1/runs", {"input": "look at everything"})
            if started is not None:
                seen = Seen(started["id"], started["session_id"])
                self.seen.append(seen)
                await self._watch(seen)

    async def post(self, path: str, body: Any) -> dict[str, Any] | None:
        """Ask once; None when it was refused, after the pause that the answer asks for."""
        began = time.monotonic()
        try:
            async with self.http.post(self.url + path, json=body) as answer:
                told = await answer.json()
                self.waits.append(time.monotonic() - began)
                self.statuses[f"POST {answer.status}"] += 1
                if answer.status < 300:
                    self.accepted.append(time.monotonic())
                    return dict(told)
                if answer.status != 503:
                    self.wrong.append(f"POST {path} was answered with {answer.status}: {told}")
                elif "Retry-After" not in answer.headers:
                    self.wrong.append(f"POST {path}: 503 without Retry-After")
                await asyncio.sleep(float(answer.headers.get("Retry-After", PAUSE_S)))
        except aiohttp.ClientError:
            self.statuses["POST broken off"] += 1
            await asyncio.sleep(PAUSE_S)
        return None

    async def ask(self, path: str, body: Any) -> tuple[int, str]:
        """Ask once, whatever is answered: the status and the text."""
        async with self.http.post(self.url + path, json=body) as answer:
            return answer.status, await answer.text()

    async def _watch(self, seen: Seen) -> None:
        """Follow a run to its end, however often the stream breaks off."""
        while not seen.ended:
            try:
                async for number, kind, data in self._frames(seen):
                    if number is not None:
                        self.moments.append(time.monotonic())
                        if seen.events.setdefault(number, data) != data:
                            self.wrong.append(f"event {number} of {seen.session_id} came in two forms")
                        seen.ended = seen.ended or (kind in FINAL and json.loads(data)["run_id"] == seen.run_id)
                if not seen.ended:
                    await asyncio.sleep(seen.retry_s)
            except aiohttp.ClientError:
                self.statuses["stream broken off"] += 1
                await asyncio.sleep(PAUSE_S)

    async def _frames(self, seen: Seen) -> AsyncIterator[tuple[int | None, str, str]]:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(max(seen.events, default=0))}
        path = f"/v1/runs/{seen.run_id}/events"
        async with self.http.get(self.url + path, headers=headers) as answer:
            if answer.status == 204:
                seen.ended = True
                return
            if answer.status != 200:
                self.statuses[f"stream {answer.status}"] += 1
                if answer.status != 503:
                    self.wrong.append(f"GET {path} was answered with {answer.status}: {await answer.text()}")
                await asyncio.sleep(PAUSE_S)
                return
            buffer = b""
            async for chunk in answer.content.iter_any():
                *frames, buffer = (buffer + chunk).split(b"\n\n")
                for frame in frames:
                    fields = dict(line.split(": ", 1) for line in frame.decode().split("\n") if ": " in line)
                    if "retry" in fields:
                        seen.retry_s = int(fields["retry"]) / 1000
                    number = int(fields["id"]) if "id" in fields and "data" in fields else None
                    yield number, fields.get("event", ""), fields.get("data", "")

    # ── afterwards ──────────────────────────────────────────────────────────────────────────────────────────────

    async def check(self) -> int:
        """Compare everything received with the log; how many events were received. What is wrong goes to `wrong`."""
        return sum([await self._check(seen) for seen in self.seen])

    async def _check(self, seen: Seen) -> int:
        log = await self._log(seen.session_id)
        if sorted(log) != list(range(1, len(log) + 1)):
            self.wrong.append(f"the numbers of session {seen.session_id} have gaps: {sorted(log)}")
        lost = [n for n, data in seen.events.items() if n not in log or log[n] != _stored(data)]
        if lost:
            self.wrong.append(f"lost of session {seen.session_id}: events {lost} were received and are not stored so")
        ends = [event["type"] for event in log.values() if event["type"] in FINAL and event["run_id"] == seen.run_id]
        if len(ends) != 1:
            self.wrong.append(f"run {seen.run_id} was accepted and has the ends {ends}")
        return len(seen.events)

    async def _log(self, session_id: str) -> dict[int, Any]:
        log: dict[int, Any] = {}
        while True:
            path = f"/v1/sessions/{session_id}/events"
            query = {"after": str(max(log, default=0)), "limit": "500"}
            headers = {"Accept": "application/json"}
            async with self.http.get(self.url + path, params=query, headers=headers) as answer:
                page = await answer.json()
                if answer.status != 200:
                    self.wrong.append(f"the log of {session_id} cannot be read: {answer.status} {page}")
                    return log
            if not page["items"]:
                return log
            log.update((event["id"], event) for event in page["items"])


def _stored(data: str) -> Any:
    """An event as it stands in the log: `prev` is the stream's own."""
    return {key: value for key, value in json.loads(data).items() if key != "prev"}
