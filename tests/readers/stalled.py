"""Readers that stop reading, beside others that go on, while agents say a lot: what each gets, and what it costs."""

import asyncio
import socket
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from app.client import Client, Received
from app.frames import FrameParser
from tests.readers.followers import Shown
from tests.readers.judging import Verdict, stored
from tests.readers.talking import InUse
from tests.service import WAIT_S, Service, agent, script, serving

PLAY = """
defaults: {chunks: 60, delay_ms: DELAY}
agents:
  - turns:
      - {text: "{{ task }}{{ task }}", calls: [{tool: glob, arguments: {pattern: "*"}}], repeat: true}
    final: {text: "{{ task }}"}
"""
STEPS = 10
SEND_TIMEOUT_S = 3.0  # long enough for a busy machine
HEARTBEAT_S = 1.0  # what is left in buffers when nothing happens any more is noticed when a heartbeat cannot be sent
RECEIVE_BUFFER = 32 << 10
SAID = 50_000  # characters of a task, so that the stream of a session has more than any buffer takes
SPARE_S = 2.0


@dataclass
class Found:
    """Of one round. Times in ms and s, sizes in bytes. `unsent`: most that the kernel held for one who stalled, `left`:
    what it held for all of them when they had been cut off."""

    delays_ms: list[float] = field(default_factory=list)
    rss: int = 0
    unsent: int = 0
    left: int = 0
    closed_after_s: float = 0.0
    closed: int = 0
    resumed: Verdict = field(default_factory=Verdict)

    @property
    def p99_ms(self) -> float:
        """Of the time between an event and its receipt."""
        return sorted(self.delays_ms)[int(len(self.delays_ms) * 0.99)] if self.delays_ms else 0.0


class Stalled:
    """One who reads the beginning and then nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        self.port = port
        self.shown: list[Received] = []
        self._reader = reader
        self._writer = writer

    @classmethod
    async def at(cls, url: str, path: str) -> "Stalled":
        """Begin, and stop at once."""
        address = urlsplit(url)
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, (address.hostname, address.port))
        reader, writer = await asyncio.open_connection(sock=raw, limit=1 << 12)
        made = cls(reader, writer, raw.getsockname()[1])
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {address.netloc}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        made.shown = list(FrameParser().feed(await reader.read(600)))
        return made

    async def rest(self) -> int:
        """Read what is left in buffers, to the cut; how much that was."""
        size = 0
        try:
            while piece := await self._reader.read(1 << 16):
                size += len(piece)
        except ConnectionError:
            pass
        self._writer.close()
        return size


def unsent(port: int) -> dict[int, int]:
    """What the kernel holds for the connections of a server's port, by the port of the other side."""
    found = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, here, there, _, queues, *_ = line.split()
        if int(here.partition(":")[2], 16) == port:
            found[int(there.partition(":")[2], 16)] = int(queues.partition(":")[0], 16)
    return found


async def round_of(service: Service, *, sessions: int, stalled: int, healthy: int) -> Found:
    """So many sessions that say a lot, each with so many readers of both kinds."""
    assert service.process is not None
    found, pid = Found(), service.process.pid
    async with service.client() as client, aiohttp.ClientSession() as http:
        body = {"agent": "solo", "agents": [agent("solo", mode="all", tools=["glob"])]}
        ids = [(await client.request("POST", "/v1/sessions", body))["id"] for _ in range(sessions)]
        paths = [f"/v1/sessions/{session}/events" for session in ids]
        stuck = [(path, await Stalled.at(service.url, path)) for path in paths for _ in range(stalled)]
        reading = [asyncio.create_task(_healthy(service, path, found)) for path in paths for _ in range(healthy)]
        looking = {asyncio.create_task(_look(service, pid, {one.port for _, one in stuck}, found))}
        for session in ids:
            await client.request("POST", f"/v1/sessions/{session}/runs", {"input": "x" * SAID, "max_steps": STEPS})
        await asyncio.gather(*reading)
        began = time.monotonic()
        async with asyncio.timeout(WAIT_S):
            while open_now := await _open(client):
                await asyncio.sleep(0.05)
        port = int(service.url.rpartition(":")[2])
        found.left = sum(unsent(port).get(one.port, 0) for _, one in stuck)
        found.closed_after_s, found.closed = time.monotonic() - began, len(stuck) - open_now
        for task in looking:
            task.cancel()
        await asyncio.wait(looking)
        logs = {path: await stored(http, service.url + path) for path in paths}
        for path, one in stuck:
            await one.rest()
            await _resume(client, path, one, logs[path], found.resumed)
    return found


async def _healthy(service: Service, path: str, found: Found) -> None:
    async with service.client() as client:
        async for frame in client.events(path, until="idle"):
            if frame.id is not None:
                found.delays_ms.append((time.time() - datetime.fromisoformat(frame.data["ts"]).timestamp()) * 1000)


async def _look(service: Service, pid: int, ports: set[int], found: Found) -> None:
    port = int(service.url.rpartition(":")[2])
    while True:
        found.rss = max(found.rss, InUse.of(pid).rss)
        found.unsent = max(found.unsent, *(size for there, size in unsent(port).items() if there in ports), 0)
        await asyncio.sleep(0.1)


async def _open(client: Client) -> int:
    lines = "".join([piece.decode() async for piece in client.download("/metrics")]).splitlines()
    return next(int(float(line.split()[1])) for line in lines if line.startswith("subagentd_open_streams "))


async def _resume(client: Client, path: str, one: Stalled, log: list[str], verdict: Verdict) -> None:
    """Go on behind the last event that was shown whole."""
    last = max((frame.id for frame in one.shown if frame.id is not None), default=0)
    rest = [frame async for frame in client.events(path, last, until="idle", deltas="false")]
    verdict.look([Shown(f.type, f.text) for f in (*one.shown, *rest) if f.type], log)


def stalling(folder: Path, *, delay_ms: int) -> dict[str, str]:
    """The environment of such a service; `delay_ms`: between two pieces of a text."""
    stream = {"SEND_TIMEOUT_S": SEND_TIMEOUT_S, "HEARTBEAT_S": HEARTBEAT_S}
    return {
        **script(folder, PLAY.replace("DELAY", str(delay_ms))),
        **{f"SUBAGENTD_STREAM__{name}": str(value) for name, value in stream.items()},
    }


async def both(folder: Path, *, sessions: int, stalled: int, healthy: int) -> tuple[Found, Found]:
    """The same load twice: without readers that stall, and with them."""
    async with serving(folder, env=stalling(folder, delay_ms=12)) as service:
        without = await round_of(service, sessions=sessions, stalled=0, healthy=healthy)
        return without, await round_of(service, sessions=sessions, stalled=stalled, healthy=healthy)
