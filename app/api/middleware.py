"""What is checked before a request is looked at: under which name and for which page it comes, and its body's size and
kind (spec 17.3). Also the border where unforeseen errors stop, HEAD, CORS and the access log.

One plain ASGI layer: each further one costs every frame of every stream.
"""

import logging
import time
from collections.abc import Iterable, Mapping

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.agent.errors import SubagentdError
from app.api.errors import Endless, ForeignHost, ForeignOrigin, TooLarge, UnsupportedMediaType, internal, problem_of
from app.sessions.access import is_loopback

access_log = logging.getLogger("app.access")

OPEN_PATHS = frozenset({"/healthz", "/readyz"})  # asked by probes, under whatever name
ENDED = "subagentd.ended"  # in the scope: how a stream ended, for the access log
CUT = "cut"  # an answer that did not come to its end
HEAD = "subagentd.head"  # in the scope: the answer has no body, so no stream is begun
REMEMBERED_HOSTS = 1000
THROWN_AWAY = 16  # times the limit: so much of a body that is refused is taken, or its sender would not see why
_CORS = (
    (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"),
    (b"access-control-allow-headers", b"Authorization, Content-Type, Accept, Last-Event-ID, Idempotency-Key"),
    (b"access-control-max-age", b"600"),
)
_EXPOSED = (b"access-control-expose-headers", b"Location, Retry-After, X-Request-Id, Idempotency-Replayed")


class Guard:
    """The layer in front of everything. `host` is the address that the service listens on, `hosts` the accepted names
    (None: loopback ones and `host`), `origins` those that CORS is open for."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        hosts: Iterable[str] | None,
        origins: Iterable[str],
        max_body_bytes: int,
        log_access: bool,
    ) -> None:
        self._app = app
        self._host = host.strip("[]").lower()
        self._hosts = None if hosts is None else {name.strip("[]").lower() for name in hosts}
        self._origins = {origin.rstrip("/").encode() for origin in origins}
        self._max_body = max_body_bytes
        self._log_access = log_access
        self._accepted: set[bytes] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        origin = headers.get(b"origin")
        line = _AccessLine(scope) if self._log_access else None
        if line is not None:
            send = line.seeing(send)
        if origin is not None and self._is_open_for(origin):
            send = _with_cors(origin, send)
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET", HEAD: True}
        try:
            self._check(scope, headers)
            if origin is not None and scope["method"] == "OPTIONS":
                await _preflight(send)
                return
            if b"transfer-encoding" in headers:
                receive = self._counted(receive)
            await self._app(scope, receive, send)
        except SubagentdError as error:
            await problem_of(error)(scope, receive, send)
        except Exception as error:  # noqa: BLE001  border of the service: the client gets an id, the log the rest
            await _answer_internal(error, scope, receive, send)
        finally:
            if line is not None:
                line.write(scope.get(ENDED))

    # ── checks ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _check(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        """Raises the reason why the request is not looked at."""
        if scope["path"] in OPEN_PATHS:
            return
        host = headers.get(b"host", b"")
        if host not in self._accepted:
            self._check_host(host, scope)
        origin = headers.get(b"origin")
        if origin is not None and not self._is_open_for(origin) and not _same_origin(origin, host):
            raise ForeignOrigin(
                f"pages of {origin.decode('latin-1')} may not ask here: add it to http.origins to allow that"
            )
        if scope["method"] in ("POST", "PUT", "PATCH"):
            self._check_body(headers)

    def _check_host(self, host: bytes, scope: Scope) -> None:
        name = _host_name(host)
        if self._hosts is not None:
            known = name in self._hosts or "*" in self._hosts
        else:
            # a rebound name is a name: an address that the connection really came to is none
            server = scope.get("server") or ("",)
            known = is_loopback(name) or name == self._host or (bool(name) and name == str(server[0]).lower())
        if not known:
            raise ForeignHost(
                f"host {name or '(none)'!r} is not a name of this service: add it to http.hosts "
                "(SUBAGENTD_HTTP__HOSTS) if it is"
            )
        if len(self._accepted) < REMEMBERED_HOSTS:
            self._accepted.add(host)

    def _check_body(self, headers: Mapping[bytes, bytes]) -> None:
        length = headers.get(b"content-length", b"0")
        if length == b"0" and b"transfer-encoding" not in headers:
            return  # nothing is sent: some routes need nothing
        kind = headers.get(b"content-type", b"")
        if kind != b"application/json" and kind.partition(b";")[0].strip().lower() != b"application/json":
            shown = kind.decode("latin-1") or "(none)"
            raise UnsupportedMediaType(f"content type {shown!r}: send JSON, with `Content-Type: application/json`")
        size = int(length) if length.isdigit() else 0
        if size > self._max_body:
            cls = TooLarge if size <= self._max_body * THROWN_AWAY else Endless
            text = f"the body has {size} bytes, {self._max_body} are accepted (http.max_body_bytes)"
            raise cls(text, limit=self._max_body)

    def _counted(self, receive: Receive) -> Receive:
        """Count a body that does not say how long it is, while it is read."""
        total, most = 0, self._max_body * THROWN_AWAY

        async def counting() -> Message:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total <= self._max_body:
                return message
            while message.get("more_body") and total <= most:
                message = await receive()
                total += len(message.get("body", b""))
            # an HTTPException, since that is what the framework lets through while it reads a body
            text = f"the body has more than the {self._max_body} bytes that are accepted (http.max_body_bytes)"
            raise HTTPException(413, text, {"Connection": "close"} if message.get("more_body") else None)

        return counting

    def _is_open_for(self, origin: bytes) -> bool:
        return origin in self._origins or b"*" in self._origins


def _host_name(host: bytes) -> str:
    """The name in a Host header, without the port and the brackets of an address."""
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.count(":") == 1 else text


def _same_origin(origin: bytes, host: bytes) -> bool:
    """Whether a page comes from here. The scheme does not matter: a proxy may have put TLS in front."""
    return origin.lower() in (b"http://" + host.lower(), b"https://" + host.lower())


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def _answer_internal(error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
    answer = internal(error)
    try:
        await answer(scope, receive, send)
    except RuntimeError:  # the answer had begun: the server cuts the connection, so that the client sees that
        return


async def _preflight(send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": list(_CORS)})
    await send({"type": "http.response.body", "body": b""})


def _with_cors(origin: bytes, send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            cors = [(b"access-control-allow-origin", origin), (b"vary", b"Origin"), _EXPOSED]
            message = {**message, "headers": [*message.get("headers", ()), *cors]}
        await send(message)

    return sending


class _AccessLine:
    """One line of the access log. The query is left out: a ticket may stand in it."""

    def __init__(self, scope: Scope) -> None:
        self._began = time.perf_counter()
        self._client = (scope.get("client") or ("-",))[0]
        self._asked = f"{scope['method']} {scope['path']}"
        self._status: int | None = None
        self._complete = False

    def seeing(self, send: Send) -> Send:
        """A `send` from which the line knows what was answered."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._status = message["status"]
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self._complete = True

        return sending

    def write(self, ended: str | None) -> None:
        """The request is over; `ended`: how, if it was a stream."""
        took = (time.perf_counter() - self._began) * 1000
        how = f" {ended or CUT}" if ended or not self._complete else ""
        access_log.info("%s %s %s %.1f ms%s", self._client, self._asked, self._status or "-", took, how)
