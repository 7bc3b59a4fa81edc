"""One GET after another, along redirects of one host, with a bound on everything that comes back.

A redirect to another host is not followed but reported: a permission for one host is none for another. Knows nothing
of what a body means.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import aiohttp

from app.net.dialler import DialError, Dialler
from app.net.urls import BadUrl, Target, read_location, read_url

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_BLOCK = 64 * 1024  # unpacked at once
_PIECE = 4 * 1024  # taken in at once: in small pieces a bomb shows early
_RATIO = 200  # what a page unpacks to, over what was sent; real text stays below a tenth of the format's 1,000
_MAX_PARTS = 1_000  # of a gzip stream: empty ones cost time and add nothing to what is counted
_RATIO_FROM = 1 << 20  # bytes unpacked before that is looked at
_HEADERS = {
    "User-Agent": "subagentd",
    "Accept": "text/html, application/xhtml+xml, text/*;q=0.9, application/json;q=0.9, */*;q=0.5",
    "Accept-Encoding": "gzip, deflate",
}


class FetchError(Exception):
    """There is no answer that can be used; the text says why and names no path, which may hold secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much of an answer is taken. `body_bytes`: unpacked. `head_s`: until status and headers of one answer have
    come, `total_s`: for everything, all redirects together."""

    redirects: int = 5
    body_bytes: int = 5 << 20
    head_s: float = 15.0
    total_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """An answer. `kind`: its content type in lower case, `charset` as its header has it, or empty. `body` None: its
    kind was not wanted. `size`: bytes it says it has, None if it does not say. `cut`: there was more than the bound.
    `elsewhere`: it redirects there, and that is not followed."""

    url: str
    status: int
    kind: str = ""
    charset: str = ""
    body: bytes | None = None
    size: int | None = None
    cut: bool = False
    elsewhere: Target | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetcher:
    """Fetches over `dialler`, which decides where anything may go; it is asked anew for every redirect."""

    dialler: Dialler
    bounds: Bounds = Bounds()

    async def get(self, url: str, wanted: Callable[[str], bool]) -> Fetched:
        """The answer at the end of all redirects of this host. `wanted`: whether a body of this content type is to be
        read. Raises `FetchError`."""
        target = _usable(url)
        try:
            async with asyncio.timeout(self.bounds.total_s):
                return await self._follow(target, wanted)
        except TimeoutError:
            raise FetchError(f"{target.host} did not send everything within {self.bounds.total_s:g} s") from None
        except DialError as error:
            raise FetchError(str(error)) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise FetchError(f"no answer from {target.host}: {reason_of(error)}") from None

    async def _follow(self, target: Target, wanted: Callable[[str], bool]) -> Fetched:
        seen = {target.url}
        for _ in range(self.bounds.redirects + 1):
            found = await self._once(target, wanted)
            following = found.elsewhere
            if following is None:
                return found
            if following.host != target.host or (target.secure and not following.secure):
                await self._check(following, target)
                return found
            if following.url in seen:
                raise FetchError(f"{target.host} redirects in a circle")
            seen.add(following.url)
            target = following
        raise FetchError(f"{target.host} redirects more than {self.bounds.redirects} times")

    async def _check(self, following: Target, target: Target) -> None:
        """Nobody is told to go on to a place that is refused for what its URL says. A name is not looked up."""
        if following.address is None and not following.inner:
            return
        try:
            await self.dialler.addresses(following)
        except DialError as error:
            raise FetchError(f"{target.host} redirects to a place that is not open: {error}") from None

    async def _once(self, target: Target, wanted: Callable[[str], bool]) -> Fetched:
        async with self.dialler.session(target) as session:
            try:
                async with asyncio.timeout(self.bounds.head_s):
                    response = await session.get(target.url, headers=_HEADERS, allow_redirects=False)
            except TimeoutError:
                raise FetchError(f"{target.host} did not begin to answer within {self.bounds.head_s:g} s") from None
            async with response:
                location = response.headers.get("Location")
                if response.status in _REDIRECTS and location is not None:
                    return Fetched(url=str(target.url), status=response.status, elsewhere=_redirected(location, target))
                return await self._read(response, target, wanted)

    async def _read(self, response: aiohttp.ClientResponse, target: Target, wanted: Callable[[str], bool]) -> Fetched:
        kind = response.content_type.lower() if "Content-Type" in response.headers else ""
        body, cut = None, False
        if wanted(kind):
            body, cut = await self._body(response, target.host)
        return Fetched(
            url=str(target.url),
            status=response.status,
            kind=kind,
            charset=response.charset or "",
            body=body,
            size=response.content_length,
            cut=cut,
        )

    async def _body(self, response: aiohttp.ClientResponse, host: str) -> tuple[bytes, bool]:
        """What was sent, unpacked, up to the bound; and whether there was more."""
        unpacker = _unpacker(response.headers.get("Content-Encoding", ""), host)
        body = bytearray()
        sent = 0
        try:
            async for piece in _pieces(response):
                sent += len(piece)
                for unpacked in unpacker(piece):
                    body += unpacked
                    if len(body) > _RATIO_FROM and len(body) > sent * _RATIO:
                        raise FetchError(f"{host} sent something that unpacks to far more than it is")
                    if len(body) > self.bounds.body_bytes:
                        return bytes(body[: self.bounds.body_bytes]), True
                if sent > self.bounds.body_bytes:
                    return bytes(body), True
        except zlib.error:
            raise FetchError(f"{host} sent a body that cannot be unpacked") from None
        return bytes(body), False


def reason_of(error: Exception) -> str:
    """In words; not `str(error)`, which may hold the whole URL or an address."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
        return "its certificate is not valid for it"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "it cannot be connected to"
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError | ConnectionError):
        return "the connection broke"
    if isinstance(error, aiohttp.ClientResponseError):
        return "what came is not HTTP, or its headers are too long"
    return type(error).__name__


def _usable(url: str) -> Target:
    try:
        return read_url(url)
    except BadUrl as error:
        raise FetchError(f"the URL cannot be fetched: {error}") from None


def _redirected(location: str, base: Target) -> Target:
    try:
        return read_location(location, base)
    except BadUrl as error:
        raise FetchError(f"{base.host} redirects to a URL that cannot be fetched: {error}") from None


async def _pieces(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async for piece in response.content.iter_any():
        for at in range(0, len(piece), _PIECE):
            yield piece[at : at + _PIECE]


def _unpacker(encoding: str, host: str) -> Callable[[bytes], Iterator[bytes]]:
    """Unpacks piece by piece, in blocks of bounded size."""
    match encoding.strip().lower():
        case "" | "identity":
            return lambda piece: iter((piece,))
        case "gzip" | "x-gzip":
            return _Inflate(gzip=True)
        case "deflate":
            return _Inflate(gzip=False)
    raise FetchError(f"{host} packed its answer in a way that was not asked for")


class _Inflate:
    """The body of a gzip or deflate stream; gzip may have several parts one after another."""

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._parts = 1
        self._stream = zlib.decompressobj(16 + zlib.MAX_WBITS) if gzip else None

    def __call__(self, piece: bytes) -> Iterator[bytes]:
        """Blocks of what the piece unpacks to. Raises `zlib.error`."""
        full = False  # then there may be more, though all of the piece was taken in
        while piece or full:
            if self._stream is None:
                # Some send zlib's form, as they should, and some the bare stream; the first byte tells.
                self._stream = zlib.decompressobj(zlib.MAX_WBITS if piece[0] & 0x0F == 8 else -zlib.MAX_WBITS)
            unpacked = self._stream.decompress(piece, _BLOCK)
            full = len(unpacked) == _BLOCK
            if unpacked:
                yield unpacked
            piece = self._stream.unconsumed_tail
            if self._stream.eof:
                piece = self._stream.unused_data
                if not self._gzip or piece[:1] != b"\x1f":  # what follows the end is padding
                    return
                self._parts += 1
                if self._parts > _MAX_PARTS:
                    raise zlib.error("too many parts")
                self._stream = zlib.decompressobj(16 + zlib.MAX_WBITS)
                full = False
