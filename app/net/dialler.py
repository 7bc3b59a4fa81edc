"""Connections to hosts that somebody else named: resolved once, every address checked, only a checked one dialled.

Knows no redirects and no answers. A session that it gives belongs to one request: no cookies, no proxies of the
environment, no connection that is kept for a later request, which would then go unchecked.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from app.net.addresses import WEB_PORTS, Address, Openings, why_not_public
from app.net.urls import Target

LOOKUP_S = 5.0
MAX_DIALLED = 6  # of the addresses of one name; all of them are checked
MAX_HEADER_BYTES = 16_384  # of one field
MAX_HEADERS = 200

Lookup = Callable[[str], Awaitable[Sequence[Address]]]
"""The addresses of a name. Raises OSError when there are none."""

Sockets = Callable[[int, int, int], socket.socket]
"""Makes a socket of a family, type and protocol."""


class DialError(Exception):
    """The host is not dialled; the text says why, with the name of the host and without its addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemLookup:
    """Asks the resolver of the system, in `threads` (None: those of the event loop), since it blocks."""

    threads: Executor | None = None

    async def __call__(self, host: str) -> Sequence[Address]:
        """Every address once, in the order of the resolver."""
        found = await asyncio.get_running_loop().run_in_executor(
            self.threads, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(ipaddress.ip_address(str(where[0])) for *_, where in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialler:
    """`openings`: what may be dialled besides the public internet. `anywhere`: no address and no port is refused; for
    hosts that an operator named one by one. `sockets`: who makes sockets for addresses that were checked."""

    openings: Openings = field(default_factory=Openings)
    anywhere: bool = False
    lookup: Lookup = field(default_factory=SystemLookup)
    sockets: Sockets = socket.socket

    @contextlib.asynccontextmanager
    async def session(self, target: Target) -> AsyncIterator[aiohttp.ClientSession]:
        """For one request to `target`, which must not be redirected by itself. Raises `DialError`."""
        addresses = (await self.addresses(target))[:MAX_DIALLED]
        connector = aiohttp.TCPConnector(
            resolver=_Pinned(addresses),
            socket_factory=self._gate(frozenset((address, target.port) for address in addresses)),
            use_dns_cache=False,
            force_close=True,
            limit=0,
        )
        async with aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),  # one clock, that of whoever asks
            auto_decompress=False,  # a small body can become a huge one: whoever reads it unpacks it within bounds
            trust_env=False,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            max_headers=MAX_HEADERS,
        ) as session:
            yield session

    async def addresses(self, target: Target) -> list[Address]:
        """What may be dialled for `target`; one address that may not be is enough to refuse all. Raises `DialError`."""
        host, named = target.host, self.anywhere or self.openings.has_name(target.host, target.port)
        if not named and target.inner and not self.openings.addresses:
            raise DialError(f"{host} is a name of this machine or its network, and only the public internet is open")
        found = [target.address] if target.address is not None else await self._resolved(host)
        for address in found:
            if named or self.openings.has_address(address, target.port):
                continue
            reason = why_not_public(address) or ("this machine" if _is_own(address) else None)
            if reason is not None:
                where = "is" if target.address is not None else "resolves to"
                raise DialError(f"{host} {where} an address for {reason}, and only the public internet is open")
            if target.port not in WEB_PORTS:
                ports = ", ".join(map(str, sorted(WEB_PORTS)))
                raise DialError(f"port {target.port} of {host} is not open; the ports {ports} are")
        return found

    async def _resolved(self, host: str) -> list[Address]:
        try:
            async with asyncio.timeout(LOOKUP_S):
                found = list(await self.lookup(host))
        except TimeoutError:
            raise DialError(f"the name {host} was not resolved within {LOOKUP_S:g} s; try again later") from None
        except (OSError, ValueError):  # ValueError: a name that the resolver's encoding refuses
            found = []
        if not found:
            raise DialError(f"there is no host of the name {host}; check how it is written")
        return found

    def _gate(self, checked: frozenset[tuple[Address, int]]) -> Callable[[Any], socket.socket]:
        """The last word: whatever the client has made of the URL, nothing but a checked address gets a socket."""

        def opened(info: Any) -> socket.socket:
            family, kind, protocol, _, where = info
            if (ipaddress.ip_address(where[0]), where[1]) not in checked:
                raise OSError("an address that was not checked")
            return self.sockets(family, kind, protocol)

        return opened


class _Pinned(AbstractResolver):
    """Answers with the addresses that were checked, whatever it is asked."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The same each time; nothing is asked of the network."""
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        """Nothing is held."""


def _is_own(address: Address) -> bool:
    """Whether a public address is one of this machine, where services may listen that are closed to the outside.

    The kernel is asked which way it would take; nothing is sent.
    """
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
            return bool(ipaddress.ip_address(probe.getsockname()[0]) == address)
        except OSError:  # there is no way there at all
            return False
