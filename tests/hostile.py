"""A server that answers as badly as it is told, byte for byte, on a port of its own."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.net.listening import listening

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
Answer = Callable[[int], bytes]  # the cursor that was sent → the bytes of the answer


def chunked(body: bytes, *, ended: bool) -> bytes:
    """An answer with a body that is complete, or that is cut off."""
    return CHUNKED + (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + (b"0\r\n\r\n" if ended else b"")


def refusal(status: int, headers: str = "", **problem: Any) -> bytes:
    """An answer with a problem."""
    body = json.dumps(problem).encode()
    head = f"HTTP/1.1 {status} No\r\nContent-Type: application/problem+json\r\nConnection: close\r\n{headers}"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


NOTHING_MORE = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"


@dataclass
class Hostile:
    """Its address, and what it was asked: the cursors in order. `silent`: connections are left open."""

    answer: Answer
    silent: bool = False
    url: str = ""
    asked: list[int] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            cursor = next((line[15:] for line in head.split("\r\n") if line.startswith("last-event-id: ")), "0")
            self.asked.append(int(cursor))
            writer.write(self.answer(int(cursor)))
            await writer.drain()
            if self.silent and len(self.asked) == 1:
                await reader.read()
        writer.close()


@contextlib.asynccontextmanager
async def hostile(answer: Answer, *, silent: bool = False) -> AsyncIterator[Hostile]:
    """Serve such answers; `silent`: the first connection stays open when it has been answered."""
    made = Hostile(answer, silent)
    async with listening(made.serve) as port:
        made.url = f"http://127.0.0.1:{port}"
        yield made
