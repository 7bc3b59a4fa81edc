"""What every request on a line hears of it: a client that leaves is gone for all that it asked for."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from app.cli.connection import LOOK_EVERY_S
from app.settings import Http
from tests.service import WAIT_S, Service, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOON_S = 10.0  # for a slow machine; the next heartbeat, which would find out as well, is half as far again
assert SOON_S > 8 * LOOK_EVERY_S


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """A server that two streams fill."""
    folder = tmp_path_factory.mktemp("service")
    async with serving(
        folder, env={"SUBAGENTD_STREAM__MAX_READERS": "2", "SUBAGENTD_MODEL": "scripted:echo"}
    ) as running:
        yield running


class Line:
    """One connection, byte by byte."""

    def __init__(self, url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.host = urlsplit(url).netloc
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, service: Service) -> "Line":
        address = urlsplit(service.url)
        return cls(service.url, *await asyncio.open_connection(address.hostname, address.port))

    def ask(self, *heads: str, version: str = "1.1", then: bytes = b"") -> None:
        """Send requests in one piece."""
        texts = "".join(f"{head} HTTP/{version}\r\nHost: {self.host}\r\n\r\n" for head in heads)
        self.writer.write(texts.encode() + then)

    async def until(self, text: bytes) -> bytes:
        """All up to this text."""
        async with asyncio.timeout(WAIT_S):
            return await self.reader.readuntil(text)

    def leave(self, how: str) -> None:
        """Go away, one of three ways."""
        if how == "half":
            self.writer.write_eof()
            return
        if how == "reset":
            raw = self.writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.close()


async def quiet_session(service: Service) -> str:
    """The events of a session in which nothing happens."""
    async with service.client() as client:
        made = await client.request("POST", "/v1/sessions", {})
    return f"/v1/sessions/{made['id']}/events"


async def shown(service: Service, name: str) -> str:
    """A metric's value."""
    async with service.client() as client:
        text = b"".join([piece async for piece in client.download("/metrics")]).decode()
    return next(line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(f"subagentd_{name} "))


async def becomes(service: Service, open_streams: int, within_s: float = SOON_S) -> None:
    """Wait until so many streams are open."""
    async with asyncio.timeout(within_s):
        while float(await shown(service, "open_streams")) != open_streams:
            await asyncio.sleep(0.02)


@pytest.mark.spec("11.5")
@pytest.mark.case("B168")
@pytest.mark.parametrize("how", ["close", "half", "reset"])
@pytest.mark.parametrize("behind", ["none", "one", "later", "several", "body", "large body", "half a head"])
async def test_who_leaves_a_stream_is_missed_at_once_whatever_was_asked_behind_it(
    service: Service, how: str, behind: str
) -> None:
    path = await quiet_session(service)
    line = await Line.to(service)
    health = f"GET /healthz HTTP/1.1\r\nHost: {line.host}\r\n\r\n".encode()
    post = f"POST /v1/runs HTTP/1.1\r\nHost: {line.host}\r\nContent-Type: application/json\r\n".encode()
    text = {
        "none": b"",
        "one": health,
        "later": health,
        "several": health * 50,
        "body": post + b'Content-Length: 13\r\n\r\n{"input":"x"}',
        "large body": post + b"Content-Length: 900000\r\n\r\n" + b" " * 60_000,
        "half a head": b"GET /healthz HTT",
    }[behind]
    line.ask(f"GET {path}", then=b"" if behind == "later" else text)
    await line.until(b"session.created")
    await becomes(service, 1)
    if behind == "later":
        line.writer.write(text)
        await line.writer.drain()
    line.leave(how)
    await becomes(service, 0)
    line.writer.close()


@pytest.mark.spec("11.5")
@pytest.mark.case("B168")
async def test_clients_that_left_hold_no_place_of_others(service: Service) -> None:
    path = await quiet_session(service)
    for _ in range(3):
        lines = [await Line.to(service) for _ in range(2)]
        for line in lines:
            line.ask(f"GET {path}", "GET /healthz")
            await line.until(b"session.created")
        for line in lines:
            line.leave("close")
        await becomes(service, 0)


@pytest.mark.spec("11.3")
async def test_what_was_asked_behind_a_stream_is_answered_when_that_has_ended(service: Service) -> None:
    path = await quiet_session(service)
    line = await Line.to(service)
    line.ask(f"GET {path}", "GET /healthz", "GET /readyz")
    await line.until(b"session.created")
    async with service.client() as client:
        await client.request("PATCH", path.removesuffix("/events"), {"closed": True})
    text = await line.until(b"\r\n0\r\n\r\n")
    assert b"event: session.closed" in text
    for _ in range(2):
        assert (await line.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await line.until(b"}")
    line.leave("close")


@pytest.mark.spec("11.3")
async def test_a_client_of_the_first_http_gets_a_stream_without_chunks_which_ends_with_the_line(
    service: Service,
) -> None:
    path = await quiet_session(service)
    async with service.client() as client:
        await client.request("PATCH", path.removesuffix("/events"), {"metadata": {"text": "x" * 3000}})
        await client.request("PATCH", path.removesuffix("/events"), {"closed": True})
    line = await Line.to(service)
    line.ask(f"GET {path}", version="1.0")
    head = (await line.until(b"\r\n\r\n")).lower()
    assert b"transfer-encoding" not in head
    assert head.count(b"\r\nconnection:") == 1
    assert b"\r\nconnection: close\r\n" in head
    async with asyncio.timeout(WAIT_S):
        text = await line.reader.read()
    assert text.startswith(b"retry: ")
    assert b"event: session.closed\n" in text
    assert text.endswith(b"}\n\n")
    await becomes(service, 0)
    line.leave("close")


@pytest.mark.spec("14.17")
async def test_a_client_of_the_first_http_gets_answers_with_a_length_as_they_are(service: Service) -> None:
    line = await Line.to(service)
    line.ask("GET /healthz", version="1.0")
    head = (await line.until(b"\r\n\r\n")).lower()
    assert b"content-length: " in head
    async with asyncio.timeout(WAIT_S):
        assert (await line.reader.read()).endswith(b"}")
    line.leave("close")


@pytest.mark.spec("11.3")
@pytest.mark.parametrize("asked", ["close", "keep-alive"])
async def test_a_stream_says_one_thing_of_its_connection(service: Service, asked: str) -> None:
    path = await quiet_session(service)
    line = await Line.to(service)
    line.writer.write(f"GET {path} HTTP/1.1\r\nHost: {line.host}\r\nConnection: {asked}\r\n\r\n".encode())
    head = (await line.until(b"\r\n\r\n")).lower()
    assert b"transfer-encoding: chunked" in head
    assert head.count(b"\r\nconnection:") == (asked == "close")
    line.leave("close")
    await becomes(service, 0)


@pytest.mark.spec("16.1", "16.5")
async def test_a_line_on_which_nothing_is_asked_is_closed_after_its_time_and_not_before_those_of_proxies(
    tmp_path: Path,
) -> None:
    """Who closes first decides: a request that is sent while the other side closes is lost, and nobody knows whether it
    was heard. Proxies keep lines for 60 s (nginx, the balancers of clouds), clients for less."""
    assert Http().keep_alive_s > 60
    async with serving(tmp_path, env={"SUBAGENTD_HTTP__KEEP_ALIVE_S": "1"}) as service:
        line = await Line.to(service)
        for _ in range(2):
            line.ask("GET /healthz")
            assert (await line.until(b"}")).startswith(b"HTTP/1.1 200")
        async with asyncio.timeout(WAIT_S):
            assert await line.reader.read() == b"", "it is closed without another word"
        line.leave("close")


@pytest.mark.spec("16.1")
@pytest.mark.parametrize("piece", [100_000, 60_000, 4_000])
@pytest.mark.parametrize("where", ["field", "target", "fields"])
async def test_a_head_has_64_kib_at_most_however_many_pieces_it_comes_in(
    service: Service, where: str, piece: int
) -> None:
    for size, refused in ((60_000, False), (66_000, True)):
        filling = b"x" * size
        target, fields = b"/healthz", b""
        if where == "target":
            target += b"?" + filling
        elif where == "field":
            fields = b"X-Long: " + filling + b"\r\n"
        else:
            fields = b"".join(b"X-%d: %b\r\n" % (n, filling[: size // 100]) for n in range(100))
        line = await Line.to(service)
        head = b"GET %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (target, line.host.encode(), fields)
        for start in range(0, len(head), piece):
            line.writer.write(head[start : start + piece])
            await line.writer.drain()
        answer = await line.until(b"}")
        assert answer.startswith(b"HTTP/1.1 431" if refused else b"HTTP/1.1 200"), (size, answer[:200])
        assert (b"head_too_large" in answer) == refused
        line.leave("close")


@pytest.mark.spec("16.1")
@pytest.mark.parametrize("cut", [0, 20])
async def test_a_piece_that_ends_within_a_head_costs_nothing_of_what_stands_before_it(
    service: Service, cut: int
) -> None:
    """`cut`: of the last head, so much comes with the piece before, after a body of 100 kB or heads of 60 kB each."""
    line = await Line.to(service)
    head = b"GET /healthz HTTP/1.1\r\nHost: %b\r\n" % line.host.encode()
    last = head + b"\r\n"
    body = b'{"input":"%b"}' % (b"x" * 100_000)
    fields = b"Host: %b\r\nContent-Type: application/json\r\nContent-Length: %d" % (line.host.encode(), len(body))
    for before, answers in (
        (b"POST /v1/runs HTTP/1.1\r\n%b\r\n\r\n%b" % (fields, body), [b"202"]),
        ((head + b"X: " + b"x" * 60_000 + b"\r\n\r\n") * 3, [b"200"] * 3),
    ):
        line.writer.write(before + last[:cut])
        for status in answers:
            assert (await line.until(b"\r\n\r\n")).rpartition(b"HTTP/1.1 ")[2].startswith(status)
        line.writer.write(last[cut:])
        assert (await line.until(b"\r\n\r\n")).rpartition(b"HTTP/1.1 ")[2].startswith(b"200")
    line.leave("close")
