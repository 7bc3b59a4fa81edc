"""Clients that others wrote, each with the few lines that make it come back, as somebody who follows a view with it
would write them. Each gives the frames that it shows, over all its connections.
"""

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import httpx
from httpx_sse import SSEError, aconnect_sse

from app.client import Client
from app.frames import FrameParser

CURL = shutil.which("curl")
AGAIN = frozenset({429, 502, 503, 504})
PAUSE_S = 0.1
Follow = Callable[[str, str], AsyncGenerator["Shown", None]]  # address, path of the view


@dataclass(frozen=True, slots=True)
class Shown:
    """An event as a client shows it: its type and its data as text."""

    type: str
    text: str

    @property
    def data(self) -> dict[str, Any]:
        """The data, decoded."""
        value: dict[str, Any] = json.loads(self.text)
        return value


def over(kind: str) -> bool:
    """Whether a view with `until=idle` is over after an event of this type, in a session with one run."""
    return kind in ("session.idle", "session.closed")


async def with_own_client(url: str, path: str) -> AsyncGenerator[Shown, None]:
    """`app.client`."""
    async with Client(url, reconnect_s=PAUSE_S) as client:
        async for frame in client.events(path, until="idle"):
            yield Shown(frame.type, frame.text)
        assert (client.gaps, client.repeats) == (0, 0)


async def with_httpx_sse(url: str, path: str) -> AsyncGenerator[Shown, None]:
    """httpx-sse. It repeats the last id at frames that have none, so the cursor may be taken from any."""
    last, ended = "", False
    async with httpx.AsyncClient(timeout=httpx.Timeout(10, read=45), trust_env=False) as http:
        while not ended:
            headers = {"Last-Event-ID": last} if last else {}
            try:
                async with aconnect_sse(http, "GET", f"{url}{path}?until=idle", headers=headers) as source:
                    if source.response.status_code == 204:
                        return
                    if source.response.status_code not in AGAIN:
                        source.response.raise_for_status()
                        async for frame in source.aiter_sse():
                            last = frame.id or last
                            ended = over(frame.event)
                            if frame.data:  # it shows frames that only move the cursor as well
                                yield Shown(frame.event, frame.data)
            except (httpx.TransportError, SSEError):
                pass
            if not ended:
                await asyncio.sleep(PAUSE_S)


async def with_curl(url: str, path: str) -> AsyncGenerator[Shown, None]:
    """`curl -N` in a loop; what it prints is read like any stream."""
    assert CURL is not None
    last, ended = 0, False
    while not ended:
        process = await asyncio.create_subprocess_exec(
            CURL, "-sfN", "--noproxy", "*", "-w", "%{stderr}%{http_code}", "-H", f"Last-Event-ID: {last}",
            "-H", "Accept: text/event-stream", f"{url}{path}?until=idle",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        parser = FrameParser()
        try:
            while piece := await process.stdout.read(1 << 14):
                for frame in parser.feed(piece):
                    last = frame.id or last
                    ended = over(frame.type) or ended
                    if frame.type:
                        yield Shown(frame.type, frame.text)
            ended = ended or await process.stderr.read() == b"204"
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if not ended:
            await asyncio.sleep(PAUSE_S)
