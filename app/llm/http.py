"""The transport under every remote model: one POST whose answer is read as it comes, with limits on silence.

Knows no dialect. No other module of the package touches the HTTP client, so that it can be replaced by a faster one.
"""

import asyncio
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import aiohttp

from app.agent.errors import IncompleteReply, ModelError
from app.llm import failures

MAX_REFUSAL_BYTES = 64 * 1024  # what is read of an error page
MAX_REPLY_BYTES = 64 * 1024 * 1024  # bounds the traffic of a reply that never ends
LINGER_S = 1.0  # how long a finished reply may take to close its body before its connection is given up
KEEPALIVE_S = 15.0
STALE_S = 1.0  # a request that dies within this time on a kept connection never reached its server
READ_BYTES = 256 * 1024
_SECRET_WORDS = ("auth", "key", "token", "secret", "cookie")


class Transport:
    """Shared by all models of a process; keeps connections alive. Environment proxies are not used."""

    def __init__(self) -> None:
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._lingering: dict[aiohttp.ClientResponse, asyncio.TimerHandle] = {}

    async def post_stream(
        self, url: str, headers: Mapping[str, str], body: bytes, *, connect_s: float, idle_s: float, total_s: float
    ) -> "ResponseStream":
        """Send a request and return its answer, not yet read; the caller closes it.

        Raises `ModelError`: `model_unreachable`, `model_timeout`, or what the status says. `idle_s` bounds the wait
        for the answer to begin and each gap of content in it, `total_s` everything.
        """
        started = asyncio.get_running_loop().time()
        source = f"model endpoint {_origin(url)}"
        timeout = aiohttp.ClientTimeout(total=None, connect=connect_s, sock_connect=connect_s)
        sent = {"Content-Type": "application/json", "Accept-Encoding": "identity", **headers}
        try:
            async with asyncio.timeout(min(idle_s, total_s)):
                response = await self._send(url, sent, body, timeout)
        except aiohttp.ConnectionTimeoutError as error:
            raise _timed_out(f"{source}: no connection within {connect_s:g} s") from error
        except TimeoutError as error:
            raise _timed_out(f"{source}: no answer within {min(idle_s, total_s):g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _unreachable(source, error) from error
        if response.status != 200:
            raise await self._refused(response, source, secrets_of(headers))
        return ResponseStream(response, self, source=source, idle_s=idle_s, total_s=total_s, ends_at=started + total_s)

    async def close(self) -> None:
        """Close every connection, open replies included."""
        for response, timer in self._lingering.items():
            timer.cancel()
            response.close()
        self._lingering.clear()
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    def linger(self, response: aiohttp.ClientResponse) -> None:
        """Let a reply that is complete close its body, so that its connection can be used again."""
        loop = asyncio.get_running_loop()
        self._lingering[response] = loop.call_later(LINGER_S, self._give_up, response)

    def _give_up(self, response: aiohttp.ClientResponse) -> None:
        self._lingering.pop(response, None)
        response.close()

    async def _send(
        self, url: str, headers: Mapping[str, str], body: bytes, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Send once; and once more on a new connection when a kept one turns out to be closed.

        Several servers, llama.cpp's among them, close a connection that they promised to keep: the request then dies
        at once, unanswered, and that is no failure of the model.
        """
        started = asyncio.get_running_loop().time()
        try:
            return await self._session(kept=True).post(
                url, data=body, headers=headers, timeout=timeout, allow_redirects=False
            )
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            at_once = asyncio.get_running_loop().time() - started < STALE_S
            if isinstance(error, aiohttp.ClientConnectorError) or not at_once:
                raise
        return await self._session(kept=False).post(
            url, data=body, headers=headers, timeout=timeout, allow_redirects=False
        )

    def _session(self, *, kept: bool) -> aiohttp.ClientSession:
        session = self._sessions.get(kept)
        if session is None:
            # No limit here: how many requests a model may have in the air is decided per profile, not per process.
            keeping = {"keepalive_timeout": KEEPALIVE_S} if kept else {"force_close": True}
            connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=60, **keeping)
            session = self._sessions[kept] = aiohttp.ClientSession(
                connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar(), read_bufsize=READ_BYTES
            )
        return session

    async def _refused(self, response: aiohttp.ClientResponse, source: str, secrets: Sequence[str]) -> ModelError:
        body = b""
        try:
            async with asyncio.timeout(5):
                while len(body) < MAX_REFUSAL_BYTES and (piece := await response.content.readany()):
                    body += piece
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass  # the status alone says enough
        finally:
            response.close()
        if 300 <= response.status < 400:
            place = failures.masked(response.headers.get("location", "?"), secrets)[:200]
            return ModelError(
                f"{source} redirects to {place}; set the base URL of the model to where it really answers",
                status=response.status,
            )
        return failures.refusal(
            failures.body_value(body[:MAX_REFUSAL_BYTES]) or response.reason,
            status=response.status,
            retry_after_ms=failures.retry_after_ms(response.headers),
            source=source,
            secrets=secrets,
        )


class ResponseStream:
    """The body of one answer.

    One timer watches it, set again only when it fires: `progress()` just notes the time. Bytes alone are no progress,
    since a server that only sends keep-alive comments is as silent as one that sends nothing.
    """

    __slots__ = (
        "_content", "_ends_at", "_idle_s", "_loop", "_owner", "_progress_at", "_received", "_response", "_source",
        "_timer", "_total_s",
    )  # fmt: skip

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        owner: Transport,
        *,
        source: str,
        idle_s: float,
        total_s: float,
        ends_at: float,
    ) -> None:
        self._response = response
        self._content = response.content
        self._owner = owner
        self._source = source
        self._idle_s = idle_s
        self._total_s = total_s
        self._ends_at = ends_at
        self._received = 0
        self._loop = asyncio.get_running_loop()
        self._progress_at = self._loop.time()
        self._timer = self._loop.call_at(self._limit(), self._check)

    @property
    def content_type(self) -> str:
        """The media type, lower case, without parameters."""
        return self._response.content_type.lower()

    async def read(self) -> bytes:
        """All bytes that have come since the last read; empty at the end. Raises `ModelError`."""
        try:
            data = await self._content.readany()
        except (aiohttp.ClientError, OSError, RuntimeError) as error:  # RuntimeError: the transport was closed
            data = self._salvage()
            if not data:
                raise IncompleteReply(
                    f"{self._source}: the connection broke before the reply was complete ({_reason(error)})",
                    retryable=True,
                ) from error
        self._received += len(data)
        if self._received > MAX_REPLY_BYTES:
            raise ModelError(f"{self._source} sent a reply of more than {MAX_REPLY_BYTES} bytes")
        return data

    def progress(self) -> None:
        """Content has come: the idle limit counts from now."""
        self._progress_at = self._loop.time()

    def bound_silence(self, seconds: float) -> None:
        """From now on accept only this much silence: what matters has come."""
        if seconds < self._idle_s:
            self._idle_s = seconds
            self._progress_at = self._loop.time()
            self._timer.cancel()
            self._timer = self._loop.call_at(self._limit(), self._check)

    def finish(self) -> None:
        """The reply is complete: give the connection back when the body has ended."""
        self._timer.cancel()
        if self._content.at_eof() or self._content.exception() is not None:
            self._response.release()
        elif not self._response.closed:
            self._owner.linger(self._response)

    def close(self) -> None:
        """The reply is not wanted any more: drop the connection. Not after `finish`."""
        self._timer.cancel()
        self._response.close()

    def _limit(self) -> float:
        return min(self._progress_at + self._idle_s, self._ends_at)

    def _check(self) -> None:
        now = self._loop.time()
        limit = self._limit()
        if now < limit:
            self._timer = self._loop.call_at(limit, self._check)
        elif limit == self._ends_at:
            self._content.set_exception(_timed_out(f"{self._source}: the reply took more than {self._total_s:g} s"))
        else:
            self._content.set_exception(_timed_out(f"{self._source}: no content for {self._idle_s:g} s"))

    def _salvage(self) -> bytes:
        """What came before the connection broke and was not read yet: the reader refuses to give it out after that."""
        failure = self._content.exception()
        self._content.set_exception(None)  # type: ignore[arg-type]
        data = self._content.read_nowait()
        if failure is not None:
            self._content.set_exception(failure)
        return data


def secrets_of(headers: Mapping[str, str]) -> list[str]:
    """The values of these headers that no message may repeat; schemes (`Bearer …`) also without their word."""
    found: list[str] = []
    for name, value in headers.items():
        if any(word in name.lower() for word in _SECRET_WORDS):
            found += [value, value.rpartition(" ")[2]]
    return found


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"  # without user and password


def _timed_out(message: str) -> ModelError:
    return ModelError(message, code="model_timeout", retryable=True)


def _unreachable(source: str, error: Exception) -> ModelError:
    # A bad certificate, header or URL stays bad; anything else about a connection can pass.
    lasting = isinstance(error, (aiohttp.ClientConnectorCertificateError, ValueError))
    hint = "check the base URL of the model" if lasting else "check that it is running and reachable"
    return ModelError(
        f"{source} cannot be reached: {_reason(error)}; {hint}", code="model_unreachable", retryable=not lasting
    )


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:200]
