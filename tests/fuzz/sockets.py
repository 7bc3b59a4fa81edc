"""What clients do to a connection that is no use of HTTP: broken framing, endless heads, bytes that come one by one,
connections that are opened and left. Each as bytes and pauses, with what may come back.

Knows the wire, not the service.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import httptools

from tests.fuzz.checks import answer_faults

HOST = b"Host: 127.0.0.1\r\n"
JSON = b"Content-Type: application/json\r\n"
EOF, RESET = "eof", "reset"  # half a close · gone without a word
ANY = frozenset({None, 200, 400, 403, 404, 405, 408, 413, 415, 422, 431})
GET = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
POST = b"POST /v1/runs HTTP/1.1\r\n" + HOST + JSON
STREAM = b"GET /v1/sessions/%s/events HTTP/1.1\r\n" + HOST + b"Accept: text/event-stream\r\n\r\n"
HELLO = bytes.fromhex("16030100c8010000c40303") + b"\x5a" * 190  # how TLS begins


@dataclass(frozen=True)
class Abuse:
    """One connection: what is sent (a number: a pause in s), and the statuses that may come back first (None: none).
    `last`: the server has to end it."""

    name: str
    steps: Sequence[bytes | float | str]
    allowed: frozenset[int | None] = ANY
    last: bool = True


@dataclass(kw_only=True)
class _Answers:
    """Answers as they are read from a connection."""

    found: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    _headers: dict[str, str] = field(default_factory=dict)
    _body: bytes = b""
    parser: httptools.HttpResponseParser | None = None
    answered: asyncio.Event = field(default_factory=asyncio.Event)  # a last one, no `100 Continue`

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        assert self.parser is not None
        self.found.append((self.parser.get_status_code(), self._headers, self._body))
        self._headers, self._body = {}, b""
        if self.found[-1][0] >= 200:
            self.answered.set()


def _one(name: str, *steps: bytes | float | str, allowed: set[int | None] | None = None, last: bool = True) -> Abuse:
    return Abuse(name, steps, ANY if allowed is None else frozenset(allowed), last)


def _head(*lines: bytes) -> bytes:
    return b"GET /healthz HTTP/1.1\r\n" + HOST + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def _chunked(*pieces: bytes) -> bytes:
    return POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(pieces)


def abuses(rng: Random, slow_s: float, session_id: str) -> list[Abuse]:
    """One of each kind. `slow_s`: longer than a head, and than a body, may take."""
    drip: list[bytes | float] = [step for byte in GET[:30] for step in (bytes([byte]), slow_s / 25)]
    stream = STREAM % session_id.encode()
    return [
        _one("garbage", rng.randbytes(rng.choice((1, 100, 70_000))), allowed={None, 400, 408, 431}),
        _one("HTTP/0.9", b"GET /\r\n", allowed={None, 400, 408}),
        _one("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", allowed={None, 400}),
        _one("HTTP/9.9", b"GET /healthz HTTP/9.9\r\n" + HOST + b"\r\n", allowed={None, 200, 400}, last=False),
        _one("TLS", HELLO, allowed={None, 400}),
        _one("a giant field", b"GET / HTTP/1.1\r\nX: " + b"x" * (1 << 20), allowed={None, 431}),
        _one("endless fields", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200_000, allowed={None, 431}),
        _one("a giant target", b"GET /" + b"x" * (1 << 20), allowed={None, 431}),
        _one("a field without a name", _head(b": x"), allowed={None, 400}),
        _one("NUL in a field", _head(b"X: a\x00b"), allowed={None, 400}),
        _one("a folded field", _head(b"X: a", b" b"), allowed={None, 200, 400}, last=False),
        _one("bare line feeds", b"GET /healthz HTTP/1.1\nHost: 127.0.0.1\n\n", allowed={None, 200, 400, 408}),
        _one("no host", b"GET /v1/sessions HTTP/1.1\r\n\r\n", allowed={400, 403}, last=False),
        _one("two hosts", _head(b"Host: evil.example"), last=False),
        _one("a target that is none", b"GET \xff\xfe HTTP/1.1\r\n" + HOST + b"\r\n", allowed={None, 400}),
        _one("an absolute target", b"GET http://evil.example/v1/runs/x HTTP/1.1\r\n" + HOST + b"\r\n", last=False),
        _one("CONNECT", b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\n", allowed={None, 400, 404, 405}, last=False),
        _one("OPTIONS *", b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", allowed={400, 404, 405}, last=False),
        _one("a method that is none", b"get /healthz HTTP/1.1\r\n" + HOST + b"\r\n", allowed={None, 400, 405}),
        _one("two lengths", POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", allowed={400}),
        _one("a negative length", POST + b"Content-Length: -1\r\n\r\n", allowed={400}),
        _one("a length that is none", POST + b"Content-Length: 1e3\r\n\r\n", allowed={400}),
        _one("a length without an end", POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", allowed={400, 413}),
        _one("a large length", POST + b"Content-Length: 99999999999\r\n\r\n{", allowed={413}),
        _one(
            "a length and chunks", _chunked().replace(JSON, b"Content-Length: 2\r\n") + b"0\r\n\r\n", allowed={400, 415}
        ),
        _one("a length that lies", POST + b"Content-Length: 500\r\n\r\n{}", allowed={408}),
        _one("no chunk size", _chunked(b"zz\r\n{}\r\n0\r\n\r\n"), allowed={400}),
        _one("a chunk size that is too large", _chunked(b"FFFFFFFFFFFFFFFFF\r\n{}"), allowed={400}),
        _one("a chunk that lies", _chunked(b"2\r\n{}}}}}\r\n0\r\n\r\n"), allowed={400}),
        _one("a chunk without an end", _chunked(b"500\r\n{}"), allowed={408}),
        _one("an endless chunk extension", _chunked(b"2;" + b"x" * 300_000 + b"\r\n{}\r\n0\r\n\r\n"), last=False),
        _one("endless trailers", _chunked(b"2\r\n{}\r\n0\r\n" + b"a: b\r\n" * 100_000), allowed={None, 408, 422}),
        _one("an unknown coding", POST + b"Transfer-Encoding: gzip\r\n\r\n{}", allowed={400, 408}),
        _one("chunks twice", POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", last=False),
        _one(
            "a socket of the web", _head(b"Upgrade: websocket", b"Connection: Upgrade"), allowed={200, 400}, last=False
        ),
        _one("h2c", _head(b"Upgrade: h2c", b"Connection: Upgrade, HTTP2-Settings"), b"more", allowed={200, 400}),
        _one(
            "an upgrade with a body",
            POST + b"Upgrade: x\r\nConnection: Upgrade\r\nContent-Length: 2\r\n\r\n{}",
            last=False,
        ),
        _one("a promised body", POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n", allowed={408}),
        _one("a head byte by byte", *drip, allowed={408}),
        _one("a body byte by byte", POST + b"Content-Length: 99\r\n\r\n", *[b"{", slow_s / 25] * 30, allowed={408}),
        _one("a second head that stays away", GET, b"GET ", slow_s, allowed={200}),
        _one("nothing at all", slow_s, allowed={None}),
        _one("empty lines", b"\r\n", b"\n", allowed={None}),
        _one("empty lines after an answer", GET, 0.05, b"\r\n", slow_s, allowed={200}),
        _one("half a close", GET, EOF, allowed={None, 200}),
        _one("half a close within a head", GET[:20], EOF, allowed={None, 400}),
        _one("half a close within a body", POST + b"Content-Length: 9\r\n\r\n{", EOF, allowed={None, 400}),
        _one("a pipeline", GET * 50, last=False, allowed={200}),
        _one("a pipeline that breaks", GET * 20 + b"\x00\x01", allowed={None, 200, 400}),
        _one("gone at once", RESET, allowed={None}),
        _one("gone after asking", GET, RESET, allowed={None}),
        _one("gone within a body", POST + b"Content-Length: 99\r\n\r\n{", RESET, allowed={None}),
        _one("gone from a stream", stream, 0.02, RESET, allowed={None, 200}),
        _one("garbage into a stream", stream, 0.02, b"\x00\x01\r\n", allowed={None, 200}),
        _one("half a request into a stream", stream, 0.02, b"GET /", slow_s, allowed={None, 200}),
    ]


async def suffered(abuse: Abuse, port: int, bound_s: float) -> list[str]:
    """Do it; what was wrong with what came back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = _Answers()
    parser = answers.parser = httptools.HttpResponseParser(answers)
    reading = asyncio.create_task(_read(reader, parser))
    ended = True
    try:
        await _send(abuse.steps, writer)
        if RESET not in abuse.steps:
            enough = asyncio.create_task(answers.answered.wait())
            wanted = {reading} if abuse.last else {reading, enough}
            await asyncio.wait(wanted, timeout=bound_s, return_when=asyncio.FIRST_COMPLETED)
            enough.cancel()
            ended = reading.done()
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        writer.transport.abort()
    return [f"{abuse.name}: {fault}" for fault in _faults(abuse, answers.found, ended=ended)]


async def _send(steps: Sequence[bytes | float | str], writer: asyncio.StreamWriter) -> None:
    try:
        for step in steps:
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            elif isinstance(step, str) and step == EOF:
                writer.write_eof()
            elif isinstance(step, str):
                sock: socket.socket = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            else:
                await asyncio.sleep(step)  # what is slow here is what is sent
    except (ConnectionError, OSError):
        pass  # the server has hung up


async def _read(reader: asyncio.StreamReader, parser: httptools.HttpResponseParser) -> None:
    try:
        while data := await reader.read(1 << 16):
            parser.feed_data(data)
    except (ConnectionError, httptools.HttpParserUpgrade):
        return


def _faults(abuse: Abuse, found: Sequence[tuple[int, dict[str, str], bytes]], *, ended: bool) -> list[str]:
    final = [each for each in found if each[0] >= 200]
    faults = [fault for status, headers, body in final for fault in answer_faults(status, headers, body, head=False)]
    first = final[0][0] if final else None
    if first not in abuse.allowed:
        faults.append(f"answered {first}")
    if abuse.last and not ended:
        faults.append("the connection stays open")
    return faults


async def all_suffered(
    rng: Random, port: int, session_id: str, count: int, *, slow_s: float, at_once: int, told: Callable[[int], None]
) -> list[str]:
    """So many connections, some at a time."""
    gate, faults, done = asyncio.Semaphore(at_once), [], 0  # type: ignore[var-annotated]

    async def one(abuse: Abuse) -> None:
        nonlocal done
        async with gate:
            faults.extend(await suffered(abuse, port, slow_s * 4 + 5))
            done += 1
            told(done)

    wanted: list[Abuse] = []
    while len(wanted) < count:
        wanted += abuses(rng, slow_s, session_id)
    await asyncio.gather(*map(one, wanted[:count]))
    return faults
