"""Outgoing requests: only to allowed hosts, nothing followed, everything bounded, no URL in a message."""

import asyncio
import gzip

import pytest

from app.net.outgoing import Outgoing, OutgoingError
from tests.net.loopback import Loopback, http, loopback, unused_port

WAIT_S = 10.0


async def post(server: Loopback, *, timeout_s: float = WAIT_S, limit: int = 1000) -> bytes:
    outgoing = Outgoing([server.host], max_answer_bytes=limit)
    return (await outgoing.post(server.url, b'{"a":1}', {"X-Own": "yes"}, timeout_s=timeout_s)).body


@pytest.mark.spec("6.3")
async def test_json_is_sent_and_what_comes_back_is_returned_as_it_is() -> None:
    async with loopback(http(b'{"ok": true}', kind="Application/JSON; charset=utf-8")) as server:
        answer = await Outgoing([server.host]).post(server.url, b'{"a":1}', {"X-Own": "yes"}, timeout_s=WAIT_S)
    assert (answer.status, answer.content_type, answer.body) == (200, "application/json", b'{"ok": true}')
    (request,) = server.requests
    assert (request.json, request.headers["content-type"], request.headers["x-own"]) == (
        {"a": 1},
        "application/json",
        "yes",
    )


@pytest.mark.spec("6.3")
@pytest.mark.parametrize(
    ("allowed", "url"),
    [
        ("hooks.example.org", "https://hooks.example.org/x"),
        ("Hooks.Example.org", "https://HOOKS.example.org.:8443/x"),
        ("hooks.example.org:8443", "https://hooks.example.org:8443/x"),
        ("hooks.example.org:443", "https://hooks.example.org/x"),
        ("[::1]:9000", "http://[::1]:9000/x"),
    ],
)
def test_a_host_is_allowed_with_any_port_or_with_the_one_that_is_written(allowed: str, url: str) -> None:
    assert Outgoing([allowed]).allowed(url).host


@pytest.mark.spec("6.3")
@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/x",
        "https://evil.hooks.example.org/x",
        "https://hooks.example.org.evil.org/x",
        "https://hooks.example.org@evil.org/x",
        "https://hooks.example.org:80/x",
        r"https://evil.org\@hooks.example.org:443/x",
        "ftp://hooks.example.org:443/x",
        "file:///etc/passwd",
        "//hooks.example.org:443/x",
        "https://",
        "",
    ],
)
async def test_no_other_place_is_asked(url: str) -> None:
    outgoing = Outgoing(["hooks.example.org:443"])
    with pytest.raises(ValueError, match=r"the (URL|host) "):
        outgoing.allowed(url)
    with pytest.raises(OutgoingError):
        await outgoing.post(url, b"", {}, timeout_s=WAIT_S)


BROKEN = {
    "refuses": (http(status="500 No"), "answered with status 500"),
    "redirects": (http(status="307 Over There", Location="http://127.0.0.1/x"), "redirects with status 307"),
    "informs of nothing": (http(status="404 None"), "answered with status 404"),
    "is too long": (http(b"x" * 1001), "more than 1000 bytes"),
    "breaks off": (http(b"half of it")[:-5], "the connection broke"),
    "says nothing": (b"", "the connection broke"),
    "speaks another language": (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP"),
}


@pytest.mark.spec("6.3")
@pytest.mark.parametrize("what", BROKEN)
async def test_an_answer_that_cannot_be_used_is_an_error_that_names_the_host_and_no_secret(what: str) -> None:
    answer, reason = BROKEN[what]
    async with loopback(answer) as server:
        with pytest.raises(OutgoingError, match=reason) as caught:
            await post(server)
    assert server.host in str(caught.value)
    assert "token" not in str(caught.value)
    assert len(server.requests) == 1  # nothing was followed, nothing sent again


@pytest.mark.spec("6.3")
async def test_an_answer_that_unpacks_to_more_is_not_unpacked() -> None:
    packed = gzip.compress(b"x" * 100_000)
    async with loopback(http(packed, Content_Encoding="gzip")) as server:
        assert await post(server) == packed


@pytest.mark.spec("6.3")
async def test_a_server_that_is_not_there_is_an_error() -> None:
    port = unused_port()
    with pytest.raises(OutgoingError, match=rf"127\.0\.0\.1:{port}: cannot connect"):
        await Outgoing(["127.0.0.1"]).post(f"http://127.0.0.1:{port}/x?token=1", b"", {}, timeout_s=WAIT_S)


@pytest.mark.spec("6.3")
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"])
async def test_a_server_that_is_slow_is_left_after_the_time(answer: bytes) -> None:
    async with loopback(answer, hang=True) as server, asyncio.timeout(WAIT_S):
        with pytest.raises(OutgoingError, match=r"no answer from .* within 0\.2 s"):
            await post(server, timeout_s=0.2)
        await server.left.wait()


@pytest.mark.spec("6.3")
async def test_a_cancelled_request_leaves_no_connection() -> None:
    async with loopback(hang=True) as server, asyncio.timeout(WAIT_S):
        asking = asyncio.create_task(post(server))
        await server.came.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await server.left.wait()


@pytest.mark.spec("9.9")
@pytest.mark.parametrize(
    ("answer", "status", "pause"),
    [
        (http(b"x" * 5000), 200, None),
        (http(b"half of it")[:-5], 200, None),
        (http(status="410 Gone"), 410, None),
        (http(status="307 Over There", Location="http://127.0.0.1/x"), 307, None),
        (http(status="429 Later", Retry_After="120"), 429, 120.0),
        (http(status="503 Later", Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"), 503, 0.0),
        (http(status="503 Later", Retry_After="soon"), 503, None),
        (http(status="503 Later", Retry_After="9" * 400), 503, 999_999_999.0),
    ],
)
async def test_of_somebody_who_is_only_told_the_status_counts_whatever_the_body_is(
    answer: bytes, status: int, pause: float | None
) -> None:
    async with loopback(answer) as server:
        outgoing = Outgoing([server.host], max_answer_bytes=1000)
        reply = await outgoing.tell(server.url, b'{"a":1}', {}, timeout_s=WAIT_S)
    assert (reply.status, reply.retry_after_s) == (status, pause)
    assert [request.body for request in server.requests] == [b'{"a":1}']


@pytest.mark.spec("9.9")
@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH\r\n\r\n"])
async def test_no_answer_to_what_is_told_is_an_error_without_the_url(answer: bytes) -> None:
    async with loopback(answer) as server:
        with pytest.raises(OutgoingError, match="no answer from") as caught:
            await Outgoing([server.host]).tell(server.url, b"{}", {}, timeout_s=WAIT_S)
    assert "token" not in str(caught.value)
