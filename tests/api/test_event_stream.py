"""The streaming response alone: who may end it, and what is left then."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from app.agent.errors import Unavailable
from app.api.event_stream import EventStream
from tests.service import WAIT_S

SCOPE = {"type": "http", "method": "GET"}


class Connection:
    """One connection as an ASGI server shows it."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self.closed = False

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(dict(message))

    async def frames(self, error: Exception | None = None) -> AsyncGenerator[bytes]:
        try:
            yield b"id: 1\n\n"
            if error is not None:
                raise error
            await asyncio.Event().wait()
        finally:
            self.closed = True

    async def shown(self, count: int) -> None:
        """Wait until so many messages were sent."""
        async with asyncio.timeout(WAIT_S):
            while len(self.sent) < count:
                await asyncio.sleep(0.001)

    def stream(self, error: Exception | None = None, ping: float = 60) -> EventStream:
        return EventStream(self.frames(error), ping=ping, sep="\n", send_timeout=30)


async def others() -> set[str]:
    """The names of tasks that are still there once all that was cancelled has ended."""
    await asyncio.sleep(0)
    return {task.get_name() for task in asyncio.all_tasks()} & {"stream client", "ping"}


@pytest.mark.spec("11.5")
@pytest.mark.case("B168")
async def test_a_client_that_goes_away_ends_the_stream_and_nothing_around_it() -> None:
    connection = Connection()

    async def request() -> str:
        await connection.stream()(SCOPE, connection.receive, connection.send)
        await asyncio.sleep(0)  # a cancellation that was not taken back would be raised here
        return "went on"

    running = asyncio.create_task(request())
    await connection.shown(2)
    connection.gone.set()
    async with asyncio.timeout(WAIT_S):
        assert await running == "went on"
    assert running.cancelling() == 0
    assert connection.closed
    assert connection.sent[-1]["body"] == b"id: 1\n\n"
    assert await others() == set()


async def test_who_cancels_the_request_is_obeyed() -> None:
    connection = Connection()
    running = asyncio.create_task(connection.stream()(SCOPE, connection.receive, connection.send))
    await connection.shown(2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert connection.closed
    assert await others() == set()


async def test_a_client_that_goes_away_does_not_hide_a_cancellation_from_outside() -> None:
    connection = Connection()
    running = asyncio.create_task(connection.stream()(SCOPE, connection.receive, connection.send))
    await connection.shown(2)
    connection.gone.set()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert connection.closed


@pytest.mark.spec("11.3")
async def test_a_stream_that_cannot_be_read_on_is_cut_and_never_ends_as_if_it_were_whole() -> None:
    connection = Connection()
    async with asyncio.timeout(WAIT_S):
        await connection.stream(Unavailable("the store is away"))(SCOPE, connection.receive, connection.send)
    assert connection.closed
    assert all(message.get("more_body", True) for message in connection.sent)
    assert await others() == set()


@pytest.mark.spec("11.3")
async def test_a_stream_that_cannot_be_begun_is_refused_before_there_is_an_answer() -> None:
    connection = Connection()

    async def away() -> AsyncGenerator[bytes]:
        raise Unavailable("the store is away")
        yield b""

    stream = EventStream(away(), ping=60, sep="\n", send_timeout=30)
    with pytest.raises(Unavailable):
        await stream(SCOPE, connection.receive, connection.send)
    assert connection.sent == []
    assert await others() == set()


@pytest.mark.spec("11.5", "17.2")
async def test_a_reader_has_its_place_before_the_answer_begins_and_leaves_when_nobody_takes_that() -> None:
    connection = Connection()
    entered = asyncio.Event()

    async def frames() -> AsyncGenerator[bytes]:
        entered.set()
        try:
            yield b"retry: 1000\n\n"
        finally:
            connection.closed = True

    async def stuck(_message: Any) -> None:  # behind another answer that the client does not read
        await asyncio.Event().wait()

    stream = EventStream(frames(), ping=60, sep="\n", send_timeout=0.05)
    running = asyncio.create_task(stream(SCOPE, connection.receive, stuck))
    async with asyncio.timeout(WAIT_S):
        await entered.wait()
        connection.gone.set()
        await running
    assert connection.closed
    assert await others() == set()


@pytest.mark.spec("11.3")
@pytest.mark.case("B148")
async def test_pings_come_while_nothing_happens_and_stop_with_the_stream() -> None:
    connection = Connection()
    running = asyncio.create_task(connection.stream(ping=0.01)(SCOPE, connection.receive, connection.send))
    await connection.shown(5)
    connection.gone.set()
    async with asyncio.timeout(WAIT_S):
        await running
    bodies = [message["body"] for message in connection.sent if "body" in message]
    assert bodies[0] == b"id: 1\n\n"
    assert set(bodies[1:]) == {b": ping\n\n"}
    assert await others() == set()


@pytest.mark.spec("11.5")
async def test_a_slow_client_gets_a_frame_that_takes_longer_than_a_send_may() -> None:
    frame = b"data: " + b"x" * (1 << 20) + b"\n\n"
    got = bytearray()

    async def frames() -> AsyncGenerator[bytes]:
        yield frame

    async def send(message: Any) -> None:
        body = message.get("body", b"")
        await asyncio.sleep(len(body) / (1 << 20))  # 1 MiB a second
        got.extend(body)

    connection = Connection()
    slow = EventStream(frames(), ping=0.2, sep="\n", send_timeout=0.5)
    async with asyncio.timeout(WAIT_S):
        await slow(SCOPE, connection.receive, send)
    assert bytes(got) == frame


@pytest.mark.spec("11.5")
@pytest.mark.case("B156")
@pytest.mark.parametrize("begun", [0, 1])
async def test_a_blocked_send_is_cut_off_in_its_time_however_seldom_pings_are(begun: int) -> None:
    connection = Connection()
    go_on = asyncio.Event()

    async def frames() -> AsyncGenerator[bytes]:
        yield b"id: 1\n\n"
        await go_on.wait()
        yield b"id: 2\n\n"

    async def send(message: Any) -> None:
        connection.sent.append(dict(message))
        if len(connection.sent) == 2 + begun:
            await asyncio.Event().wait()

    told: list[str] = []
    stream = EventStream(frames(), ping=600, sep="\n", send_timeout=0.1, told=told.append)
    running = asyncio.create_task(stream(SCOPE, connection.receive, send))
    await connection.shown(2)
    go_on.set()
    async with asyncio.timeout(WAIT_S):
        await running
    assert told == ["not_read"]
    assert await others() == set()


@pytest.mark.spec("12.4")
async def test_a_file_is_sent_without_pings_however_long_nothing_comes() -> None:
    connection = Connection()
    silent = EventStream(connection.frames(), ping=0, sep="\n", send_timeout=0.01)
    running = asyncio.create_task(silent(SCOPE, connection.receive, connection.send))
    await connection.shown(2)
    await asyncio.sleep(0.1)  # several times what a send may take
    connection.gone.set()
    async with asyncio.timeout(WAIT_S):
        await running
    assert [message["body"] for message in connection.sent[1:]] == [b"id: 1\n\n"]
    assert await others() == set()
