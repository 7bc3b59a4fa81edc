"""Carries one request out against an ASGI application, with a client that may go away at any moment.

Knows what a server promises an application, not the application.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Message

from tests.fuzz.asking import Asked

FRAMES = 5  # of a stream, after which its reader has seen enough


@dataclass(kw_only=True)
class Answered:
    """What came of a request. `complete`: the answer was ended by the application; `raised`: what escaped it."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False
    raised: BaseException | None = None

    @property
    def streams(self) -> bool:
        """Whether it is an event stream, which may go on for ever."""
        return self.headers.get("content-type", "").startswith("text/event-stream")


class Exchange:
    """One request under way. `patience_s`: how long the client waits while nothing comes."""

    def __init__(self, app: ASGIApp, asked: Asked) -> None:
        self.asked = asked
        self.answered = Answered()
        self.gone = asyncio.Event()
        self._app = app
        self._left = asked.leaves
        self._chunks = _pieces(asked.body, asked.pieces)
        self._frames = 0

    async def run(self) -> None:
        """Until the application has ended; raises nothing of it."""
        try:
            await self._app(_scope(self.asked), self._receive, self._send)
        except Exception as error:  # noqa: BLE001  border of the test: what escapes is what is looked for
            self.answered.raised = error

    async def _receive(self) -> Message:
        self._step()
        if self._chunks and not self.gone.is_set():
            chunk = self._chunks.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": bool(self._chunks)}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self._step()
        answered = self.answered
        if message["type"] == "http.response.start":
            assert not answered.status, "a second answer begins"
            answered.status = message["status"]
            answered.headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in message["headers"]}
            return
        assert not answered.complete, "something follows the end of an answer"
        answered.complete = not message.get("more_body", False)
        if not self.gone.is_set():
            answered.body += message.get("body", b"")
        self._frames += 1
        if answered.streams and self._frames >= FRAMES:
            self.gone.set()
        await asyncio.sleep(0)

    def _step(self) -> None:
        if self._left is not None:
            if self._left == 0:
                self.gone.set()
            self._left -= 1


def _pieces(body: bytes, count: int) -> list[bytes]:
    size = max(1, -(-len(body) // count))
    return [body[at : at + size] for at in range(0, len(body), size)] or [b""]


def _scope(asked: Asked) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": asked.method,
        "scheme": "http",
        "path": unquote_to_bytes(asked.path).decode("utf-8", "replace"),
        "raw_path": asked.path.encode(),
        "query_string": asked.query,
        "root_path": "",
        "headers": list(asked.headers),
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8080),
        "state": {},
    }
