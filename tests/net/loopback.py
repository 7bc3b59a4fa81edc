"""A loopback server that answers with the bytes that a test gives it, right or wrong."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.net.listening import listening

WAIT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked; header names in lower case."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


@dataclass(kw_only=True)
class Loopback:
    """The server. `came`, `left`: set when a client has asked, and has gone without an answer."""

    answer: bytes
    hang: bool
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def host(self) -> str:
        """As settings allow it."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Where it listens, with a parameter that nobody should read."""
        return f"http://{self.host}/hook?token=url-secret-1234"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        try:
            async with asyncio.timeout(WAIT_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.rstrip().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers["content-length"]))
                self.requests.append(Request(path=first.split(" ")[1], headers=headers, body=body))
                self.came.set()
                writer.write(self.answer)
                if self.hang:
                    while await reader.read(1024):
                        pass
                    self.left.set()
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def loopback(answer: bytes = b"", *, hang: bool = False) -> AsyncIterator[Loopback]:
    """A server that gives every request this answer and closes; `hang`: it waits for the client to go."""
    server = Loopback(answer=answer, hang=hang)
    async with listening(server.serve) as server.port:
        yield server


def http(body: bytes = b"", *, status: str = "200 OK", kind: str = "application/json", **headers: str) -> bytes:
    """An answer with a length."""
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    kind = f"Content-Type: {kind}\r\n" if kind else ""
    return f"HTTP/1.1 {status}\r\n{kind}Content-Length: {len(body)}\r\n{named}\r\n".encode() + body


def says(value: Any) -> bytes:
    """A good answer with this JSON."""
    return http(json.dumps(value).encode())


def unused_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
