"""Client of our own API: requests with clear errors, and event streams that reconnect where they were cut.

Used by the command line and the tests. Knows the wire, not the service.
"""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp

RECONNECT_S = 1.0
TRIES = 30  # in a row without an event, before a stream is given up
IDLE_S = 45.0  # three heartbeats


class ServiceError(Exception):
    """The service answered with a problem (RFC 9457)."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        detail = problem.get("detail") or problem.get("title") or "no detail"
        super().__init__(f"{detail} (HTTP {status}, {problem.get('code', 'no code')})")
        self.status = status
        self.problem = dict(problem)


class Unreachable(Exception):
    """Nothing answers at that address."""


@dataclass(frozen=True, slots=True)
class Received:
    """One frame: `id` is None for transient events; `data` is the decoded JSON, `text` that as it came."""

    id: int | None
    type: str
    data: dict[str, Any]
    text: str = ""


class Client:
    """Talks to one service. Use as an async context manager. `reconnect_s`: the pause before a cut stream is taken up
    again."""

    def __init__(self, url: str, key: str | None = None, *, reconnect_s: float = RECONNECT_S) -> None:
        self.url = url.rstrip("/")
        self._reconnect_s = reconnect_s
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        self._http = aiohttp.ClientSession(headers=headers, timeout=timeout, trust_env=False)

    async def __aenter__(self) -> "Client":
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
                    raise ServiceError(answer.status, _problem(text))
                return json.loads(text) if text else None
        except aiohttp.ClientError as error:
            raise Unreachable(f"{self.url} does not answer: {error}") from error

    async def page(self, path: str, **query: Any) -> dict[str, Any]:
        """One page of `{"items", "next"}`."""
        answer: dict[str, Any] = await self.request("GET", path, **query)
        return answer

    async def download(self, path: str, **query: Any) -> AsyncIterator[bytes]:
        """An answer that is no JSON, in pieces as they come. Raises like `request`."""
        params = {key: str(value) for key, value in query.items() if value is not None}
        try:
            async with self._http.get(self.url + path, params=params) as answer:
                if answer.status >= 400:
                    raise ServiceError(answer.status, _problem(await answer.text()))
                async for chunk in answer.content.iter_any():
                    yield chunk
        except aiohttp.ClientError as error:
            raise Unreachable(f"{self.url} does not answer: {error}") from error

    async def events(self, path: str, after: int = 0, **query: Any) -> AsyncIterator[Received]:
        """The events of a view after a number, until the view ends; a cut stream is taken up where it was."""
        cursor, tries = after, 0
        while True:
            ended = True
            try:
                async for frame in self._stream(path, cursor, query):
                    tries = 0
                    if frame.id is not None:
                        cursor = frame.id
                    if frame.type == "stream.closing":
                        ended = False
                    if frame.type:
                        yield frame
                if ended:
                    return
            except (aiohttp.ClientError, TimeoutError) as error:
                tries += 1
                if tries >= TRIES:
                    raise Unreachable(f"{self.url} does not answer any more: {error}") from error
            await asyncio.sleep(self._reconnect_s)

    async def _stream(self, path: str, cursor: int, query: Mapping[str, Any]) -> AsyncIterator[Received]:
        params = {key: str(value) for key, value in query.items() if value is not None}
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(cursor)}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=IDLE_S)
        async with self._http.get(self.url + path, params=params, headers=headers, timeout=timeout) as answer:
            if answer.status == 204:
                return
            if answer.status >= 400:
                raise ServiceError(answer.status, _problem(await answer.text()))
            buffer = b""
            async for chunk in answer.content.iter_any():
                *frames, buffer = (buffer + chunk).split(b"\n\n")
                for raw in frames:
                    frame = _frame(raw)
                    if frame is not None:
                        yield frame


def _frame(raw: bytes) -> Received | None:
    """One server-sent event; None for comments and bare `retry:`."""
    number: int | None = None
    kind, data = "", ""
    for line in raw.decode().split("\n"):
        name, _, value = line.partition(": ")
        if name == "id":
            number = int(value)
        elif name == "event":
            kind = value
        elif name == "data":
            data += value
    if number is None and not kind:
        return None
    return Received(number, kind, json.loads(data) if data else {}, data)


def _problem(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {"detail": text[:200]}
    return value if isinstance(value, dict) else {"detail": text[:200]}
