"""A small internet on loopback: scripted answers of the resolver, sites behind public addresses, and a trap.

Everything above the socket is the real thing. A connection to an address with a site goes to that site; one to loopback
is made as it was asked for, so that the trap counts it; any other goes nowhere.
"""

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.net.addresses import Address, Openings
from app.net.dialler import Dialler, SystemLookup
from app.net.fetching import Bounds, Fetcher

PUBLIC = "93.184.216.34"
PUBLIC_TOO = "151.101.1.69"
PUBLIC_V6 = "2606:2800:220:1::1"
WAIT_S = 20.0
TRIES = 20  # to find a port that is free on both addresses

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass(kw_only=True)
class Site:
    """A server. `answers`: by path with its query; `requests`: path and headers of each; `left`: clients that went
    before they had everything."""

    answers: dict[str, Answer] = field(default_factory=dict)
    requests: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    connections: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)
    where: tuple[str, int] = ("", 0)
    serving: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)

    @property
    def paths(self) -> list[str]:
        """What was asked for, in order."""
        return [path for path, _ in self.requests]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: as many requests as the client sends over it."""
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.serving[task] = writer
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    self.heads.append(head)
                    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
                    headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}
                    path = first.split(" ")[1]
                    self.requests.append((path, headers))
                    answer = self.answers.get(path, page(b"nothing here", status="404 Not Found", kind="text/plain"))
                    if isinstance(answer, bytes):
                        writer.write(answer)
                    else:
                        await answer(writer)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        except (asyncio.LimitOverrunError, asyncio.CancelledError, TimeoutError):
            pass
        finally:
            writer.close()
            del self.serving[task]

    async def close(self) -> None:
        """End what is left."""
        tasks = list(self.serving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(kw_only=True)
class Net:
    """`names`: for each name the answers to lookups, one after another, the last for ever. `dialled`: every address and
    port that a connection was tried to."""

    sites: dict[str, Site] = field(default_factory=dict)
    names: dict[str, list[list[str]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    dialled: list[tuple[str, int]] = field(default_factory=list)
    trap: Site = field(default_factory=Site)
    trap_v6: Site = field(default_factory=Site)
    port: int = 0

    @property
    def trapped(self) -> int:
        """Connections that reached this machine."""
        return self.trap.connections + self.trap_v6.connections

    async def lookup(self, host: str) -> Sequence[Address]:
        """The scripted answer, else that of the system."""
        self.asked.append(host)
        answers = self.names.get(host)
        if answers is None:
            return await SystemLookup()(host)
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ipaddress.ip_address(address) for address in answer]

    def sockets(self, family: int, kind: int, protocol: int) -> socket.socket:
        """A socket of this net."""
        return _Socket(self, family, kind, protocol)

    def dialler(self, openings: Openings | None = None, *, anywhere: bool = False) -> Dialler:
        """The guarded dialler in this net."""
        openings = openings or Openings()
        return Dialler(openings=openings, anywhere=anywhere, lookup=self.lookup, sockets=self.sockets)

    def fetcher(self, openings: Openings | None = None, **bounds: Any) -> Fetcher:
        """A fetcher in this net."""
        return Fetcher(dialler=self.dialler(openings), bounds=replace(Bounds(), **bounds))


class _Socket(socket.socket):
    def __init__(self, net: Net, family: int, kind: int, protocol: int) -> None:
        super().__init__(family, kind, protocol)
        self._net = net

    def connect(self, address: Any) -> None:
        """To a site, to loopback, or nowhere."""
        host, port = address[:2]
        if (host, port) not in self._net.dialled:  # asked again until it is connected
            self._net.dialled.append((host, port))
        site = self._net.sites.get(host)
        if site is not None:
            super().connect(site.where)
        elif ipaddress.ip_address(host).is_loopback:
            super().connect(address)
        else:
            raise OSError(errno.ENETUNREACH, "no way there")


@contextlib.asynccontextmanager
async def net(**names: Any) -> AsyncIterator[Net]:
    """A net with sites at `PUBLIC`, `PUBLIC_TOO`, `PUBLIC_V6`, named `page.example`, `other.example`, `six.example`."""
    made = Net(
        names={"page.example": [[PUBLIC]], "other.example": [[PUBLIC_TOO]], "six.example": [[PUBLIC_V6]]},
        sites={PUBLIC: Site(), PUBLIC_TOO: Site(), PUBLIC_V6: Site()},
    )
    async with contextlib.AsyncExitStack() as stack:
        for address, site in made.sites.items():
            await stack.enter_async_context(_listening(site, "::1" if ":" in address else "127.0.0.1"))
        made.port = await _trapped(stack, made)
        for site in (made.trap, made.trap_v6):
            site.answers["/"] = page(b"INNER MARKER", kind="text/plain")
        yield made


async def _trapped(stack: contextlib.AsyncExitStack, made: Net) -> int:
    """The port at which both traps listen: one that is free on one address may be taken on the other."""
    for tried in range(1, TRIES + 1):
        async with contextlib.AsyncExitStack() as both:
            await both.enter_async_context(_listening(made.trap, "127.0.0.1"))
            port = made.trap.where[1]
            try:
                await both.enter_async_context(_listening(made.trap_v6, "::1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE or tried == TRIES:
                    raise
                continue
            stack.push_async_exit(both.pop_all())
            return port
    raise AssertionError("the last try returns or raises")


@contextlib.asynccontextmanager
async def _listening(site: Site, host: str, port: int = 0) -> AsyncIterator[None]:
    server = await asyncio.start_server(site.serve, host, port)
    site.where = server.sockets[0].getsockname()[:2]
    try:
        yield
    finally:
        server.close()
        await site.close()
        await server.wait_closed()


def page(body: bytes = b"", *, status: str = "200 OK", kind: str = "text/html", **headers: str) -> bytes:
    """An answer with a length; no content type if `kind` is empty."""
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    kind = f"Content-Type: {kind}\r\n" if kind else ""
    return f"HTTP/1.1 {status}\r\n{kind}Content-Length: {len(body)}\r\n{named}\r\n".encode("latin-1") + body


def redirect(location: str, status: str = "302 Found") -> bytes:
    """An answer that sends elsewhere."""
    return page(status=status, kind="", Location=location)
