"""The response that carries ready bytes to a client, pings it while nothing happens, and drops it when it is dead.

Knows neither events nor who asks. Exports go the same way, without pings.
"""

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, cast

from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from app.agent.errors import Unavailable
from app.api.middleware import ENDED, HEAD

log = logging.getLogger(__name__)

PING = b": ping\n\n"
PIECE_BYTES = 256 << 10  # has the time of a send for itself: a slow client that reads is none that does not
AT_ONCE = struct.pack("ii", 1, 0)  # linger for 0 s


# How a stream ended, unless it says itself why the server closed it.
WHOLE = "ended"
LEFT = "client_left"
UNREAD = "not_read"
AWAY = "unavailable"  # what it is read from
STOPPED = "shutdown"
FAILED = "failed"


class EventStream(EventSourceResponse):
    """sse-starlette's response with two tasks a stream instead of five, at a fifth of the cost.

    The watcher of server exits is left out: the feed ends every stream itself, with a farewell. Pings and the bound
    on a blocked send need no task of their own but one timer, which looks at the clock when it fires. A client that
    does not read for `send_timeout` is cut off; that is no fault of ours and leaves no traceback.
    `ping` 0: none, as in the middle of a file. `about`: whose it is, for the log. `reason_of` finds the reason in the
    frame by which the server closes a stream, the last but one; `told` hears how it ended, once.
    """

    _client_gone = False
    _how: str | None = None
    _sending_since: float | None = None
    _quiet_since = 0.0
    _pinging: asyncio.Task[None] | None = None
    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        content: AsyncGenerator[bytes],
        *,
        about: str = "",
        reason_of: Callable[[bytes], str | None] | None = None,
        told: Callable[[str], None] | None = None,
        **named: Any,
    ) -> None:
        super().__init__(content, **named)
        del self.headers["connection"]  # whether it is kept is known to the server, which says so
        self._about = about
        self._reason_of = reason_of
        self._told = told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream until it ends or the client goes away."""
        frames = cast("AsyncGenerator[bytes]", self.body_iterator)
        async with aclosing(frames):
            if HEAD in scope:
                await self._start(send)
                await send({"type": "http.response.body", "body": b""})
                return
            self._about = " ".join((scope["method"], scope.get("path", ""), self._about)).rstrip()
            try:
                await self._run(frames, receive, send)
            finally:
                if self._how is not None:
                    scope[ENDED] = self._how
                    if self._told is not None:
                        self._told(self._how)

    async def _start(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

    async def _run(self, frames: AsyncGenerator[bytes], receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None  # a server runs each request in one
        watch = asyncio.create_task(until_gone(receive), name="stream client")
        watch.add_done_callback(partial(self._gone, task))
        started = False
        try:
            # before the answer: what cannot be begun is refused, and the reader has its place among the others
            first = await anext(frames, b"")
            started = True
            self._sending_since = self._quiet_since = asyncio.get_running_loop().time()
            self._again(self._soon(self._every), send, partial(_cut, receive, watch))
            await self._start(send)
            await self._send_frames(first, frames, send)
        except asyncio.CancelledError:
            if not self._client_gone or task.uncancel() > 0:
                self._how = self._how or STOPPED
                raise  # somebody else ends this request
        except Unavailable as error:  # a clean end would say that nothing follows: cut, the client comes back
            if not started:
                raise
            log.warning("a stream is cut off (%s): %s", self._about, error)
            self._client_gone, self._how = True, AWAY
            _cut(receive, watch)
            await asyncio.wait((watch,), timeout=1)
        except Exception:  # border of the stream: whatever broke it off is told as its end, and goes on to who logs it
            self._how = FAILED if started else None
            raise
        finally:
            self._disarm()
            self._client_gone = True  # too late for the watch to end anything
            watch.cancel()

    def _gone(self, task: asyncio.Task[Any], watch: asyncio.Task[None]) -> None:
        """The client went away: leave the generator at once, wherever it waits."""
        if not watch.cancelled():
            watch.exception()  # whatever became of the connection, it is over
        if not self._client_gone:
            self._client_gone, self._how = True, self._how or LEFT
            task.cancel()

    async def _send_frames(self, first: bytes, frames: AsyncGenerator[bytes], send: Send) -> None:
        before = last = first
        await self._send_chunk(first, send)
        async for chunk in frames:
            before, last = last, chunk
            await self._send_chunk(chunk, send)
        reason = None if self._reason_of is None else self._reason_of(before)
        if self._pinging is not None:
            await asyncio.wait((self._pinging,))
        self._sending_since = asyncio.get_running_loop().time()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        self._how = reason or WHOLE

    async def _send_chunk(self, chunk: bytes, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        if self._pinging is not None:
            await asyncio.wait((self._pinging,))
        for at in range(0, len(chunk), PIECE_BYTES):
            self._sending_since = self._quiet_since = clock()
            await send({"type": "http.response.body", "body": chunk[at : at + PIECE_BYTES], "more_body": True})
        self._sending_since = None

    # ── the timer ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _every(self) -> float:
        """How long nothing may be sent before somebody looks, in seconds."""
        return self.ping_interval or self.send_timeout or self.DEFAULT_PING_INTERVAL

    def _soon(self, rest: float) -> float:
        """When to look again, at the latest: a send that begins meanwhile is not to take longer than it may."""
        return min(rest, self.send_timeout) if self.send_timeout else rest

    def _again(self, delay: float, send: Send, cut: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay, self._look, send, cut)

    def _look(self, send: Send, cut: Callable[[], None]) -> None:
        """Cut off a client that does not read; ping one that was sent nothing for a while."""
        now = asyncio.get_running_loop().time()
        if self._sending_since is not None:
            rest = self._sending_since + (self.send_timeout or 0) - now
            if rest <= 0 and self.send_timeout:
                log.warning(
                    "a client did not read for %g s: its stream is cut off (%s)", self.send_timeout, self._about
                )
                self._how = UNREAD
                cut()
            else:
                self._again(min(rest, self._every) if self.send_timeout else self._every, send, cut)
            return
        rest = self._quiet_since + self._every - now
        if rest <= 0:
            self._quiet_since, rest = now, self._every
            if self.ping_interval:
                self._pinging = asyncio.create_task(self._ping_once(send), name="ping")
        self._again(self._soon(rest), send, cut)

    async def _ping_once(self, send: Send) -> None:
        self._sending_since = asyncio.get_running_loop().time()
        await send({"type": "http.response.body", "body": PING, "more_body": True})
        self._sending_since = self._pinging = None

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._pinging is not None:
            self._pinging.cancel()


async def until_gone(receive: Receive) -> None:
    """Wait until the client has gone away; its request was taken as a whole."""
    while (await receive())["type"] != "http.disconnect":
        pass


def whose(key_id: str, session_id: str | None = None) -> str:
    """Whose stream it is, for the log."""
    return ", ".join(f"{name} {value}" for name, value in (("session", session_id), ("key", key_id)) if value)


def _cut(receive: Receive, watch: asyncio.Task[None]) -> None:
    """Drop a connection whose client does not read. Closing it properly would wait for that client."""
    transport: Any = getattr(getattr(receive, "__self__", None), "transport", None)
    if transport is not None:
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.fileno() >= 0:  # a reset: else the kernel keeps for minutes what was not sent
            with contextlib.suppress(OSError):  # it is gone already
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        told = not transport.is_closing()  # by the server, that the client is gone
        transport.abort()
        if told:
            return
    watch.cancel()
