"""Client of our own API: requests with clear errors, and event streams that reconnect where they were cut.

Used by the command line and the tests. Knows the wire, not the service.
"""

import asyncio
import contextlib
import email.utils
import io
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp

from app.frames import FrameParser, Gap, Malformed, Place, Received, Texts
from app.pauses import PATIENCE_S, BrokenStream, CutOff, Pauses, Unreachable

__all__ = [
    "BlockingClient",
    "BrokenStream",
    "Client",
    "CursorExpired",
    "CutOff",
    "Received",
    "ServiceError",
    "Texts",
    "Unreachable",
]

IDLE_S = 45.0  # three heartbeats
AGAIN = frozenset({429, 502, 503, 504})  # for now: the service is full or not ready, or a proxy does not reach it
T = TypeVar("T")
Decide = Callable[[dict[str, Any]], Mapping[str, Any] | None]


class ServiceError(Exception):
    """The service answered with a problem (RFC 9457). `retry_after_s`: how long it asks to wait."""

    def __init__(self, status: int, problem: Mapping[str, Any], retry_after_s: float | None = None) -> None:
        detail = problem.get("detail") or problem.get("title") or "no detail"
        super().__init__(f"{detail} (HTTP {status}, {problem.get('code', 'no code')})")
        self.status = status
        self.problem = dict(problem)
        self.retry_after_s = retry_after_s


class CursorExpired(ServiceError):
    """The log does not reach back to the cursor any more (410): `problem` says from where on it does. Look at the
    state over the other routes, and follow from there."""


class Client:
    """Talks to one service. Use as an async context manager.

    `reconnect_s`: the pause before a cut stream is taken up again, instead of what the server asks for. `patience_s`:
    how long nobody may answer before a stream, or the answer to a question, is given up. `idle_s`: silence after which
    a connection is taken for dead. `gaps` and `repeats` count what streams showed that they should not have.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        reconnect_s: float | None = None,
        patience_s: float = PATIENCE_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self.url = url.rstrip("/")
        self.gaps = self.repeats = 0
        self._reconnect_s = reconnect_s
        self._patience_s = patience_s
        self._idle_s = idle_s
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        self._stream_timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=idle_s)
        self._http = aiohttp.ClientSession(headers=headers, timeout=timeout, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def request(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """One request; returns the decoded JSON, None for an empty answer.

        Raises `ServiceError` for a problem, `Unreachable` when nothing answers.
        """
        params = {key: str(value) for key, value in query.items() if value is not None}
        headers = {"Accept": "application/json"}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = io.BytesIO(json.dumps(body).encode())  # sent in pieces, so that a large one blocks nobody
        try:
            async with self._http.request(method, self.url + path, data=data, params=params, headers=headers) as answer:
                text = await answer.text()
                if answer.status >= 400:
                    raise _refused(answer, text)
                return json.loads(text) if text else None
        except aiohttp.ClientError as error:
            raise Unreachable(f"{self.url} does not answer: {error}") from error

    async def page(self, path: str, **query: Any) -> dict[str, Any]:
        """One page of `{"items", "next"}`."""
        answer: dict[str, Any] = await self.request("GET", path, **query)
        return answer

    async def download(self, path: str, **query: Any) -> AsyncGenerator[bytes, None]:
        """An answer that is no JSON, in pieces as they come. Raises like `request`, and `CutOff` for one that does not
        come to its end."""
        params = {key: str(value) for key, value in query.items() if value is not None}
        came = None
        try:
            async with self._http.get(self.url + path, params=params) as answer:
                if answer.status >= 400:
                    raise _refused(answer, await answer.text())
                came = 0
                async for chunk in answer.content.iter_any():
                    came += len(chunk)
                    yield chunk
        except aiohttp.ClientError as error:
            if came is not None:
                raise CutOff(f"the answer of {self.url} was cut off after {came} bytes") from error
            raise Unreachable(f"{self.url} does not answer: {error}") from error

    async def answer(self, approval_id: str, decision: str, **fields: Any) -> dict[str, Any]:
        """Answer what a run asks persons (`permission.requested`): `allow_once`, `allow_session` or `deny`; `fields`
        are `arguments` and `message`. Raises `ServiceError` 409 when somebody was faster."""
        path = f"/v1/permissions/{approval_id}"
        settled: dict[str, Any] = await self.request("POST", path, {"decision": decision, **fields})
        return settled

    # ── streams ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def events(
        self, path: str, after: int = 0, *, decide: Decide | None = None, **query: Any
    ) -> AsyncGenerator[Received, None]:
        """The events of a view after a number, until the view ends: each durable one once and in order, over however
        many connections.

        After a `stream.reset` all that came before is void, and the view follows from the first event that is kept.
        `decide` gets the data of each `permission.requested`; what it returns, `{"decision": …}`, is sent as the
        answer, until it is taken or somebody else was faster.
        Raises `ServiceError` for a refusal that will not pass by itself, `CursorExpired` among them, `Unreachable`
        when nobody answers for `patience_s`, `BrokenStream` when the same event is missing again and again.
        """
        async with contextlib.aclosing(self._followed(path, after, query)) as frames:
            async for frame in frames:
                yield frame
                if decide is not None and frame.type == "permission.requested":
                    await self._settle(decide(frame.data["data"]), frame.data["data"]["approval_id"])

    async def _followed(self, path: str, after: int, query: Mapping[str, Any]) -> AsyncGenerator[Received, None]:
        place = Place(path, after)
        pauses = Pauses(self._reconnect_s, self._patience_s)
        seems_over = False  # it ended as a view does whose last event is filtered out
        while True:
            try:
                async with contextlib.aclosing(self._connection(path, place, query, pauses)) as frames:
                    async for frame in frames:
                        yield frame
                        pauses.alive()  # what the caller took its time for was no silence of the service
                if pauses.over or place.ended:
                    return
                seems_over = place.passed
                pauses.cut(f"{self.url} ended the stream", at_once=pauses.moved and not place.told)
            except Gap as gap:
                self.gaps += 1
                pauses.gap(gap)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                if place.ended:
                    return
                seems_over = seems_over and not pauses.moved
                pauses.cut(f"{self.url} does not answer any more: {str(error) or type(error).__name__}")
            except Malformed as error:
                raise BrokenStream(f"{self.url}{path}: {error}") from error
            except ServiceError as error:
                if error.status == 404 and seems_over:
                    return  # the session was deleted: that was its last event, and now it is unknown
                if error.status not in AGAIN or pauses.exhausted:
                    raise
                pauses.cut(str(error), error.retry_after_s)
            await asyncio.sleep(pauses.pause_s)

    async def _connection(
        self, path: str, place: Place, query: Mapping[str, Any], pauses: Pauses
    ) -> AsyncGenerator[Received, None]:
        params = {key: str(value) for key, value in query.items() if value is not None}
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(place.cursor)}
        place.told = pauses.moved = False
        async with self._http.get(
            self.url + path, params=params, headers=headers, timeout=self._stream_timeout
        ) as answer:
            pauses.over = answer.status == 204
            if pauses.over:
                return
            if answer.status >= 400:
                raise _refused(answer, await answer.text())
            if answer.content_type != "text/event-stream":
                raise Malformed(f"the answer is {answer.content_type}, not text/event-stream")
            parser = FrameParser()
            async for chunk in answer.content.iter_any():
                pauses.alive()
                for frame in parser.feed(chunk):
                    new = place.take(frame)
                    self.repeats += not new
                    if new and frame.id is not None:
                        pauses.moved, pauses.gaps = True, 0
                    if new and frame.type:
                        yield frame
                pauses.asked_ms = parser.retry_ms or pauses.asked_ms

    async def _settle(self, decision: Mapping[str, Any] | None, approval_id: str) -> None:
        """Send an answer until it is taken: the stream does not show its question a second time."""
        pauses = Pauses(self._reconnect_s, self._patience_s)
        while decision is not None:
            try:
                async with asyncio.timeout(self._idle_s):
                    await self.answer(approval_id, **decision)
                return
            except ServiceError as error:
                if error.status == 409:  # settled: by somebody else, or by this answer when its receipt was lost
                    return
                if error.status not in AGAIN or pauses.exhausted:
                    raise
                pauses.cut(str(error), error.retry_after_s)
            except (Unreachable, TimeoutError) as error:
                pauses.cut(str(error) or f"{self.url} did not take an answer within {self._idle_s:g} s")
            await asyncio.sleep(pauses.pause_s)


class BlockingClient:
    """The same for code without an event loop. Use as a context manager, from one thread; raises `RuntimeError` where
    a loop runs. Between two calls nothing is read, which a server takes for a slow reader."""

    def __init__(self, url: str, key: str | None = None, **options: Any) -> None:
        async def made() -> Client:
            return Client(url, key, **options)

        self._runner = asyncio.Runner()
        self._client = self._runner.run(made())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._client.__aexit__(kind, error, trace))
        self._runner.close()

    def request(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Like `Client.request`."""
        return self._runner.run(self._client.request(method, path, body, **query))

    def page(self, path: str, **query: Any) -> dict[str, Any]:
        """Like `Client.page`."""
        return self._runner.run(self._client.page(path, **query))

    def answer(self, approval_id: str, decision: str, **fields: Any) -> dict[str, Any]:
        """Like `Client.answer`."""
        return self._runner.run(self._client.answer(approval_id, decision, **fields))

    def download(self, path: str, **query: Any) -> Iterator[bytes]:
        """Like `Client.download`."""
        return self._each(self._client.download(path, **query))

    def events(self, path: str, after: int = 0, *, decide: Decide | None = None, **query: Any) -> Iterator[Received]:
        """Like `Client.events`."""
        return self._each(self._client.events(path, after, decide=decide, **query))

    def _each(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        try:
            while True:
                try:
                    yield self._runner.run(_next(items))
                except StopAsyncIteration:
                    return
        finally:
            self._runner.run(items.aclose())


async def _next(items: AsyncGenerator[T, None]) -> T:
    return await anext(items)


def _refused(answer: aiohttp.ClientResponse, text: str) -> ServiceError:
    kind = CursorExpired if answer.status == 410 else ServiceError
    return kind(answer.status, _problem(text), _seconds(answer.headers.get("Retry-After")))


def _seconds(retry_after: str | None) -> float | None:
    """What a Retry-After header asks for: seconds, or a date."""
    if not retry_after:
        return None
    if retry_after.isdecimal():
        return float(retry_after)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return None


def _problem(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {"detail": text[:200]}
    return value if isinstance(value, dict) else {"detail": text[:200]}
