"""What clients did and saw, as lines of JSON: one file for each client, so that a checker can look at it afterwards.

`call` and `return` (or `lost`) share a number. An `event` line holds a durable frame byte for byte as it came. Times
are seconds since 1970. Knows neither what is asked for nor what is right.
"""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from app.client import Client, Received, ServiceError, Unreachable

TIMEOUT_S = 40.0  # of one request
PAUSE_S = 0.1  # before a request is made again
RECONNECT_S = 0.2  # before a stream is taken up again
PATIENCE_S = 5.0  # longest wait for a server to be there again


class Recorder:
    """Lines of one file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def note(self, op: str, **fields: Any) -> None:
        """One line."""
        self._file.write(json.dumps({"t": time.time(), "op": op, **fields}).encode() + b"\n")

    def event(self, stream: str, raw: str) -> None:
        """A frame with an id. The bytes stand at the end of the line as they came."""
        head = json.dumps({"t": time.time(), "op": "event", "stream": stream})
        self._file.write(f'{head[:-1]}, "frame": {raw}}}\n'.encode())

    def close(self) -> None:
        """Nothing more comes."""
        self._file.close()


class Lost(Exception):
    """There is no answer. `refused`: nobody was there to take the request; else nobody knows whether it took effect."""

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


class Answered:
    """An answer, whatever its status."""

    def __init__(self, status: int, body: Any) -> None:
        self.status = status
        self.body = body

    @property
    def ok(self) -> bool:
        """Whether it says that it was done."""
        return 200 <= self.status < 300


class RecordingClient:
    """A client of one tenant that writes down everything. Use as an async context manager. `there`: set while a server
    is ready; hundreds that try again and again would take the machine from the one that starts."""

    def __init__(self, url: str, key: str, tenant: str, path: Path, there: asyncio.Event) -> None:
        self.tenant = tenant
        self._there = there
        self._url = url
        self._recorder = Recorder(path)
        self._recorder.note("client", tenant=tenant)
        self._numbers = itertools.count(1)
        self._client = Client(url, key, reconnect_s=RECONNECT_S)
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"}, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), trust_env=False
        )

    async def __aenter__(self) -> "RecordingClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)
        await self._http.close()
        self._recorder.close()

    def note(self, op: str, **fields: Any) -> None:
        """A line of the client's own."""
        self._recorder.note(op, **fields)

    async def ask(self, method: str, path: str, body: Any = None, *, key: str | None = None, **query: Any) -> Answered:
        """One request; `key` is its Idempotency-Key. Raises `Lost` when no answer came."""
        number = next(self._numbers)
        self._recorder.note("call", n=number, method=method, path=path, key=key, body=(body or {}).get("input", body))
        headers = {"Idempotency-Key": key} if key else {}
        params = {name: str(value) for name, value in query.items()}
        try:
            async with self._http.request(
                method, self._url + path, json=body, params=params, headers=headers
            ) as answer:
                text = await answer.text()
                found = Answered(answer.status, json.loads(text) if text else None)
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            self._recorder.note("lost", n=number, error=f"{type(error).__name__}: {error}")
            raise Lost(str(error), refused=isinstance(error, aiohttp.ClientConnectorError)) from error
        kept = found.body if method != "GET" or path.count("/") > 2 else None  # lists are looked at by nobody
        self._recorder.note("return", n=number, status=found.status, body=kept)
        return found

    async def pause(self) -> None:
        """Wait before trying again."""
        if self._there.is_set():
            await asyncio.sleep(PAUSE_S)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._there.wait()
        except TimeoutError:
            pass

    async def insist(self, method: str, path: str, body: Any = None, *, key: str | None = None) -> Answered:
        """Ask until there is an answer that is no refusal for now: for what may be asked twice."""
        while True:
            try:
                answer = await self.ask(method, path, body, key=key)
                if answer.status not in (429, 503) and not _in_use(answer):
                    return answer
            except Lost:
                pass
            await self.pause()

    async def follow(self, path: str, **query: Any) -> AsyncIterator[Received]:
        """The frames of a view to its end, over however many servers."""
        stream, after, transient = f"{path}#{next(self._numbers)}", 0, 0
        self._recorder.note("open", stream=stream, path=path, query=query)
        while True:
            try:
                async for frame in self._client.events(path, after, **query):
                    if frame.id is not None and frame.type:
                        after = frame.id
                        self._recorder.event(stream, frame.text)
                    elif frame.type.startswith("stream."):
                        self._recorder.note("told", stream=stream, type=frame.type, data=frame.data)
                    else:
                        transient += 1
                    yield frame
                break
            except Unreachable:
                continue
            except ServiceError as error:
                if error.status not in (429, 503):
                    self._recorder.note("refused stream", stream=stream, status=error.status, problem=error.problem)
                    raise
                await self.pause()
        healed = self._client.gaps + self._client.repeats  # of all its streams: asked for again, so nobody else saw it
        self._recorder.note("end", stream=stream, transient=transient, healed=healed)


def _in_use(answer: Answered) -> bool:
    return answer.status == 409 and str((answer.body or {}).get("code", "")).startswith("idempotency")
