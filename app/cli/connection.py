"""One connection of a client, as uvicorn parses it, with bounds on what is taken before an answer begins: a head has a
size and a time, a body a time. Without them a server keeps whatever somebody begins to send, for ever.

Also: every request on a line that is gone hears of it, not only the last one that came; and what is no HTTP gets a
problem (RFC 9457) like every other error. Knows neither routes nor settings.
"""

import asyncio
import select
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.api.errors import Kind, problem

MAX_HEAD_BYTES = 64 << 10  # several times what browsers and proxies send with all their cookies
LOOK_EVERY_S = 0.25  # while nothing is read from a client; it is gone within a second for everybody
_LEFT = getattr(select, "POLLRDHUP", 0)  # its end was closed, whatever still lies before that; errors come unasked
_MALFORMED = Kind(400, "bad-request", "The request was not understood")
_SLOW = Kind(408, "too-slow", "The request did not come in time")
_LARGE = Kind(431, "head-too-large", "The head of the request is too large")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How long a client may take for the head of a request, and from then on for its body, in seconds."""

    head_s: float
    body_s: float


class _Part(Enum):
    """What of a request has begun and is not complete."""

    NOTHING = auto()
    HEAD = auto()
    BODY = auto()


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with bounds. A request that comes in one piece, as nearly all do, sets no timer."""

    def __init__(self, *given: Any, bounds: Bounds, **named: Any) -> None:
        super().__init__(*given, **named)
        self._bounds = bounds
        self._part = _Part.NOTHING
        self._timed: _Part | None = None  # what the timer was set for; None: for what came before
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._came = self._begun = 0  # bytes in the piece that is being parsed, and requests that begin in it
        self._large = False
        self._current: RequestResponseCycle | None = None  # what is answered; those behind it wait in the pipeline
        self._watch: asyncio.TimerHandle | None = None

    # ── what the transport tells ────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there: its first head must come."""
        super().connection_made(transport)
        self._time(_Part.HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._time(_Part.NOTHING)
        if self._watch is not None:
            self._watch.cancel()
        self._tell()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """It will send nothing more, which is how a client leaves: the transport closes behind what is written."""
        self._tell()

    def data_received(self, data: bytes) -> None:
        """Something came."""
        self._came, self._begun, between = len(data), 0, self._part is _Part.NOTHING
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self.pipeline and self._watch is None:
            self._look()
        if self._part is _Part.HEAD:
            if self._begun == (1 if between else 0):  # else what was before it in this piece does not count
                self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse_head()
                return
        awaited = self._part
        if awaited is _Part.NOTHING and not self._answering():  # empty lines, which begin nothing
            awaited = _Part.HEAD
        if awaited is not self._timed:
            self._time(awaited)

    # ── what the parser tells ───────────────────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._part, self._timed, self._head_bytes = _Part.HEAD, None, 0
        self._begun += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head; those behind a body belong to nobody here, and there is no end of them."""
        if self._part is _Part.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete."""
        if self._head_bytes + self._came > MAX_HEAD_BYTES and self._size_of_head() > MAX_HEAD_BYTES:
            self._large = True
            raise ValueError("the head is too large")  # ends the parsing, which asks for `send_400_response`
        super().on_headers_complete()  # which refuses a target that is none
        self._part = _Part.BODY

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._part = _Part.NOTHING
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._current = cycle
        super()._start_asgi_task(cycle, _Unchunked(app, cycle) if cycle.scope["http_version"] == "1.0" else app)

    def _answering(self) -> bool:
        """Whether a request waits for its answer, or for the rest of that."""
        cycle: RequestResponseCycle | None = self.cycle  # the newest; None before the first
        return cycle is not None and not cycle.response_complete

    def _unsupported_upgrade_warning(self) -> None:
        """Whoever asks for another protocol is answered in this one: nothing to warn an operator of."""

    # ── a client that leaves ────────────────────────────────────────────────────────────────────────────────────

    def _tell(self) -> None:
        """Let every request of the line know that nobody is there any more. Those that wait are not begun."""
        self.pipeline.clear()
        for cycle in (self._current, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def _look(self) -> None:
        """Nothing is read while requests wait behind one, so that they do not pile up; then the end of the line is not
        read either, and has to be looked for."""
        self._watch = None
        if self.transport.is_closing() or not self.pipeline:
            return
        if self._has_left():
            self._tell()
            self.transport.abort()
        else:
            self._watch = self.loop.call_later(LOOK_EVERY_S, self._look)

    def _has_left(self) -> bool:
        raw = self.transport.get_extra_info("socket")
        if raw is None or not _LEFT:
            return False
        poll = select.poll()
        poll.register(raw.fileno(), _LEFT)
        return bool(poll.poll(0))

    # ── bounds ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _time(self, part: _Part) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timed = part
        if part is not _Part.NOTHING:
            allowed = self._bounds.head_s if part is _Part.HEAD else self._bounds.body_s
            self._timer = self.loop.call_later(allowed, self._late)

    def _late(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._part is _Part.NOTHING:
            self.transport.close()  # it has not asked for anything
        elif self._part is _Part.HEAD:
            self._refuse(_SLOW, f"the head was not complete within {self._bounds.head_s:g} s", "too_slow")
        else:
            self._refuse(_SLOW, f"the body was not complete within {self._bounds.body_s:g} s", "too_slow")

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP, or too much of it."""
        if self._large:
            self._refuse_head()
            return
        detail = (
            "this is no request of HTTP/1.1: its head or its framing is broken, or its target has characters that "
            "are to be written with % (RFC 3986)"
        )
        self._refuse(_MALFORMED, detail, "malformed_http")

    def _size_of_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers)

    def _refuse_head(self) -> None:
        self._refuse(_LARGE, f"the head has more than {MAX_HEAD_BYTES} bytes", "head_too_large")

    def _refuse(self, kind: Kind, detail: str, code: str) -> None:
        """Say why, and hang up. In the middle of another answer this would be read as a part of that: then only the
        connection is cut."""
        own = self._part is _Part.BODY and not self.pipeline and not self.cycle.response_started
        if self._answering() and not own:
            self.transport.abort()
            return
        answer = problem(kind, detail, code, {"Connection": "close"})
        fields = (*self.server_state.default_headers, *answer.raw_headers)
        head = b"".join(b"%b: %b\r\n" % pair for pair in fields)
        self.transport.write(STATUS_LINE[kind.status] + head + b"\r\n" + bytes(answer.body))
        self.transport.close()


class _Unchunked:
    """The application, for a client of HTTP/1.0, which knows no chunks: a body without a length ends with the line."""

    def __init__(self, app: ASGI3Application, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle
        self._endless = False

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer one request."""

        async def sending(message: ASGISendEvent) -> None:
            self._prepare(message)
            await send(message)

        await self._app(scope, receive, sending)

    def _prepare(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._endless = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if self._endless:
                self._cycle.chunked_encoding = False
        elif self._endless:  # uvicorn counts what was announced: each piece announces itself
            self._cycle.expected_content_length = len(message.get("body", b""))
