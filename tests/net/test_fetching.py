"""Whatever a server sends, what is taken of it is bounded, and an error is in words."""

import asyncio
import gzip
import random
import tracemalloc
import zlib
from typing import Any

import pytest

from app.net.addresses import read_openings
from app.net.fetching import Fetched, FetchError
from tests.net.standin import PUBLIC, Answer, Net, net, page, redirect

URL = "http://page.example/"
WAIT_S = 20.0


class Clock:
    """The clock of the running loop, which goes on as it does and can be put forward: seconds pass and nobody waits."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._time, self._ahead = loop.time, 0.0
        loop.time = self._now  # type: ignore[method-assign]

    def forward(self, seconds: float) -> None:
        """So much of it has passed."""
        self._ahead += seconds

    def _now(self) -> float:
        return self._time() + self._ahead


def anything(kind: str) -> bool:
    """Every body is wanted."""
    return True


async def fetched(answer: Answer, **bounds: Any) -> Fetched:
    """What becomes of one answer."""
    async with net() as world, asyncio.timeout(WAIT_S):
        world.sites[PUBLIC].answers["/"] = answer
        return await world.fetcher(**bounds).get(URL, anything)


async def refused(world: Net, url: str = URL, **bounds: Any) -> str:
    """Why there is no answer."""
    with pytest.raises(FetchError) as caught:
        await world.fetcher(**bounds).get(url, anything)
    return str(caught.value)


TEXT = b"the same text again and again, " * 3_000
PACKED = {
    "identity": TEXT,
    "gzip": gzip.compress(TEXT),
    "x-gzip": gzip.compress(TEXT[:1000]) + gzip.compress(TEXT[1000:]) + b"\0\0\0",
    "deflate": zlib.compress(TEXT),
    "Deflate": zlib.compress(TEXT)[2:-4],
}


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("encoding", PACKED)
async def test_a_packed_body_is_unpacked(encoding: str) -> None:
    found = await fetched(page(PACKED[encoding], Content_Encoding=encoding))
    assert (found.body, found.cut) == (TEXT, False)


@pytest.mark.spec("7.3")
async def test_every_byte_of_a_packed_body_comes_whatever_its_pieces() -> None:
    body = random.Random(7).randbytes(20_000) + b"again and again " * 10_000
    packed = gzip.compress(body)

    async def piecemeal(writer: asyncio.StreamWriter) -> None:
        writer.write(page(packed, Content_Encoding="gzip")[: -len(packed)])
        for at in range(0, len(packed), 7):
            writer.write(packed[at : at + 7])
            await writer.drain()

    assert (await fetched(piecemeal)).body == body


@pytest.mark.spec("7.3")
async def test_nothing_is_lost_where_all_was_taken_in_before_all_was_given_out() -> None:
    for size in range(65_536, 65_536 + 300, 13):
        packed = zlib.compress(b"a" * size)[2:-4]
        assert (await fetched(page(packed, Content_Encoding="deflate"))).body == b"a" * size


@pytest.mark.spec("7.3")
@pytest.mark.case("B132")
async def test_a_packed_body_that_never_comes_to_anything_is_cut_by_what_was_sent() -> None:
    async def empty_blocks(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: deflate\r\n\r\n")
        while True:
            writer.write(b"\0\0\0\xff\xff" * 10_000)
            await writer.drain()

    found = await fetched(empty_blocks, body_bytes=300_000)
    assert (found.body, found.cut) == (b"", True)


BOMBS = {
    "gzip": ("gzip", gzip.compress(b"\0" * (64 << 20)), "unpacks to far more"),
    "deflate": ("deflate", zlib.compress(b"\0" * (64 << 20)), "unpacks to far more"),
    "many empty parts": ("gzip", gzip.compress(b"") * 50_000, "cannot be unpacked"),
    "packed twice": ("gzip, gzip", gzip.compress(gzip.compress(b"x")), "was not asked for"),
    "br": ("br", b"\xcf\xff\xff\x7f\xf8" * 100, "was not asked for"),
    "zstd": ("zstd", b"\x28\xb5\x2f\xfd" * 100, "was not asked for"),
    "no gzip at all": ("gzip", b"<html>", "cannot be unpacked"),
}


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("what", BOMBS)
async def test_a_bomb_is_refused_and_takes_no_memory(what: str) -> None:
    encoding, packed, reason = BOMBS[what]
    async with net() as world, asyncio.timeout(WAIT_S):
        world.sites[PUBLIC].answers["/"] = page(packed, Content_Encoding=encoding)
        tracemalloc.start()
        try:
            assert reason in await refused(world)
            assert tracemalloc.get_traced_memory()[1] < 24 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.spec("7.3")
async def test_a_body_without_end_is_cut_at_the_bound() -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()

    found = await fetched(endless, body_bytes=300_000)
    assert (found.body, found.cut, found.size) == (b"x" * 300_000, True, None)


@pytest.mark.spec("7.3")
async def test_fifty_megabytes_in_one_line_are_cut_at_the_bound() -> None:
    found = await fetched(page(b"x" * (50 << 20)))
    assert found.body is not None
    assert (len(found.body), found.cut, found.size) == (5 << 20, True, 50 << 20)


@pytest.mark.spec("7.3")
@pytest.mark.case("B132")
@pytest.mark.parametrize(
    "start", [b"", b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "]
)
async def test_a_drip_is_left_after_the_time_wherever_it_drips(start: bytes) -> None:
    clock = Clock()

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while True:
            writer.write(b"x" if start else b"")
            await writer.drain()
            clock.forward(0.25)
            await asyncio.sleep(0)

    async with net() as world:
        world.sites[PUBLIC].answers["/"] = drip
        assert "page.example did not send everything within 3 s" in await refused(world, total_s=3.0)
        if not start.endswith(b"\r\n\r\n"):
            assert "page.example did not begin to answer within 1 s" in await refused(world, head_s=1.0)


@pytest.mark.spec("7.3")
@pytest.mark.case("B132")
async def test_redirects_share_one_time() -> None:
    clock = Clock()
    async with net() as world:

        async def late(writer: asyncio.StreamWriter) -> None:
            clock.forward(1.0)
            writer.write(redirect(f"/{len(world.sites[PUBLIC].requests)}"))

        world.sites[PUBLIC].answers = dict.fromkeys(["/", *(f"/{n}" for n in range(20))], late)
        assert "within 5 s" in await refused(world, total_s=5.0, redirects=10)
        assert len(world.sites[PUBLIC].paths) <= 6


BROKEN = {
    "says nothing": (b"", "the connection broke"),
    "is another protocol": (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP"),
    "has a header that is too long": (page(b"x", X_Long="y" * 100_000), "headers are too long"),
    "has too many headers": (page(b"x", **{f"X{n}": "y" for n in range(2_000)}), "headers are too long"),
    "is shorter than it says": (page(b"half of it")[:-5], "the connection broke"),
    "has chunks that are none": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\nabc\r\n0\r\n\r\n",
        "not HTTP|connection broke",
    ),
    "has a length that is none": (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nabc", "not HTTP"),
    "is longer than it says": (page(b"all of it") + b"and more", "not HTTP"),
    "has two lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 9\r\n\r\nabc", "not HTTP"),
}


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("what", BROKEN)
async def test_an_answer_that_is_broken_is_an_error_in_words_that_names_the_host_alone(what: str) -> None:
    raw, reason = BROKEN[what]

    async def once(writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()
        writer.close()

    async with net() as world, asyncio.timeout(WAIT_S):
        world.sites[PUBLIC].answers["/hook?token=secret"] = once
        with pytest.raises(FetchError, match=reason) as caught:
            await world.fetcher(total_s=5).get("http://page.example/hook?token=secret", anything)
        assert "page.example" in str(caught.value)
        assert not any(word in str(caught.value) for word in ("secret", PUBLIC, "127.0.0.1"))


@pytest.mark.spec("7.3")
async def test_a_body_of_an_unwanted_kind_is_not_read() -> None:
    async with net() as world:
        world.sites[PUBLIC].answers["/"] = page(b"%PDF", kind="Application/PDF; x=y")
        found = await world.fetcher().get(URL, lambda kind: kind != "application/pdf")
        assert (found.body, found.kind, found.size) == (None, "application/pdf", 4)


@pytest.mark.spec("7.3")
async def test_a_host_that_is_not_there_is_an_error_without_its_address() -> None:
    async with net() as world:
        world.names["dead.example"] = [["93.184.217.1"]]
        assert await refused(world, "http://dead.example/") == "no answer from dead.example: it cannot be connected to"
        opened = world.fetcher(read_openings(["10.0.0.0/8"]))
        world.names["inner.corp"] = [["10.1.2.3"]]
        with pytest.raises(FetchError, match=r"^no answer from inner\.corp: it cannot be connected to$"):
            await opened.get("http://inner.corp/", anything)


@pytest.mark.spec("7.3")
async def test_a_redirect_without_a_place_is_an_answer() -> None:
    found = await fetched(page(b"choose", status="302 Found"))
    assert (found.status, found.body, found.elsewhere) == (302, b"choose", None)
