"""Requests to the few hosts that settings allow: one POST, a bounded answer, nothing followed.

Knows nothing of what is sent. No message of it repeats a URL, since paths and parameters may hold secrets.
"""

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TypeVar

import aiohttp
from yarl import URL

from app.net.dialler import DialError, Dialler
from app.net.urls import Target

T = TypeVar("T")
Exchange = Callable[[URL, bytes, Mapping[str, str], str], Awaitable[T]]

MAX_ANSWER_BYTES = 1 << 20  # room for the output of a tool that comes back changed


class OutgoingError(Exception):
    """No usable answer came; the text says why and names the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A complete answer with a status of 200 to 299. `content_type` in lower case, without parameters."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What was answered, without the body. `retry_after_s`: None if it does not say."""

    status: int
    retry_after_s: float | None


class Outgoing:
    """A client without state: no cookies, no proxies of the environment, no kept connections.

    A kept connection may be closed by the other side at any moment, and a message must not be lost to that.
    """

    def __init__(
        self, hosts: Iterable[str], *, max_answer_bytes: int = MAX_ANSWER_BYTES, dialler: Dialler | None = None
    ) -> None:
        """`hosts`: `host` (any port), `host:port`, `[v6]:port`. `dialler` None: each of them may have any address,
        since an operator has named it."""
        self._hosts = frozenset(host.strip().lower() for host in hosts)
        self._dialler = dialler or Dialler(anywhere=True)
        self._max_answer_bytes = max_answer_bytes

    def allowed(self, url: str) -> URL:
        """The URL as it will be asked, by the same parser. Raises ValueError that says why it may not be."""
        try:
            parsed = URL(url)
            host, port = _host(parsed), parsed.port
        except ValueError:
            raise ValueError("the URL cannot be read") from None
        if parsed.scheme not in ("http", "https") or not host:
            raise ValueError("the URL must begin with https:// or http:// and name a host")
        if self._hosts.isdisjoint((host, f"{host}:{port}")):
            raise ValueError(f"the host {host} is not among those that settings allow; add {host} or {host}:{port}")
        return parsed

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float) -> Answer:
        """Send JSON. `timeout_s` bounds everything, the reading of the answer too. Raises `OutgoingError`."""
        return await self._bounded(self._exchange, url, body, headers, timeout_s)

    async def tell(self, url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float) -> Reply:
        """Send JSON to somebody whose status is all that matters; the body of the answer is not read. Raises
        `OutgoingError` when there is no answer."""
        return await self._bounded(self._tell, url, body, headers, timeout_s)

    async def _bounded(
        self, exchange: Exchange[T], url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> T:
        try:
            target = self.allowed(url)
        except ValueError as error:
            raise OutgoingError(str(error)) from None
        host = f"{_host(target)}:{target.port}"
        sent = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        try:
            async with asyncio.timeout(timeout_s):
                return await exchange(target, body, {**sent, **headers}, host)
        except TimeoutError:
            raise OutgoingError(f"no answer from {host} within {timeout_s:g} s") from None
        except DialError as error:
            raise OutgoingError(f"no answer from {host}: {error}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise OutgoingError(f"no answer from {host}: {_reason(error)}") from None

    async def _tell(self, target: URL, body: bytes, headers: Mapping[str, str], host: str) -> Reply:
        async with (
            self._dialler.session(_dialled(target)) as session,
            session.post(target, data=body, headers=headers, allow_redirects=False) as response,
        ):
            return Reply(status=response.status, retry_after_s=_seconds(response.headers.get("Retry-After", "")))

    async def _exchange(self, target: URL, body: bytes, headers: Mapping[str, str], host: str) -> Answer:
        async with (
            self._dialler.session(_dialled(target)) as session,
            session.post(target, data=body, headers=headers, allow_redirects=False) as response,
        ):
            if 300 <= response.status < 400:
                raise OutgoingError(f"{host} redirects with status {response.status}; redirects are not followed")
            if not 200 <= response.status < 300:
                raise OutgoingError(f"{host} answered with status {response.status}")
            content = await self._read(response, host)
            return Answer(status=response.status, content_type=response.content_type.lower(), body=content)

    async def _read(self, response: aiohttp.ClientResponse, host: str) -> bytes:
        pieces: list[bytes] = []
        size = 0
        async for piece in response.content.iter_any():
            size += len(piece)
            if size > self._max_answer_bytes:
                raise OutgoingError(f"{host} answered with more than {self._max_answer_bytes} bytes")
            pieces.append(piece)
        return b"".join(pieces)


def _host(url: URL) -> str:
    host = (url.host or "").lower().rstrip(".")
    return f"[{host}]" if ":" in host else host


def _dialled(url: URL) -> Target:
    host = (url.raw_host or "").lower().rstrip(".")
    try:
        return Target(url=url, host=host, port=url.port or 0, address=ipaddress.ip_address(host))
    except ValueError:
        return Target(url=url, host=host, port=url.port or 0)


def _seconds(text: str) -> float | None:
    """A `Retry-After`: seconds or a date; None for anything else."""
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _reason(error: Exception) -> str:
    """In words; not `str(error)`, which may hold the whole URL."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect ({error.os_error.strerror or type(error.os_error).__name__})"
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError | ConnectionError):
        return "the connection broke"
    if isinstance(error, aiohttp.ClientResponseError):
        return "what came is not HTTP"
    return type(error).__name__
