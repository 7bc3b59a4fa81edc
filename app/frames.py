"""Event streams as their readers see them: frames out of bytes, whether one follows the other, texts out of pieces.

Knows the wire, no connection: `client.py` reads with it.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.agent.events import FINAL_TYPES

MAX_FRAME_BYTES = 64 << 20  # a snapshot holds the whole text of a step; nothing that is meant is larger
BOM = b"\xef\xbb\xbf"
DELTA_TYPES = frozenset({"text.delta", "reasoning.delta", "tool.arguments.delta", "tool.progress"})


class Malformed(ValueError):
    """What comes is no event stream of this service."""


class Gap(Exception):
    """Events are missing between the last one that came and this one."""


@dataclass(frozen=True, slots=True)
class Received:
    """One frame: `id` is None for transient events; `data` is the decoded JSON, `text` that as it came. Without a
    `type` it only moves the cursor."""

    id: int | None
    type: str
    data: dict[str, Any]
    text: str = ""


class FrameParser:
    """Server-sent events out of bytes that were cut anywhere; lines end with LF, CR or both. `retry_ms`: how long to
    wait before a cut stream is taken up again, as the server said last."""

    def __init__(self) -> None:
        self.retry_ms: int | None = None
        self._first = True
        self._after_cr = False
        self._line: list[bytes] = []  # pieces of a line whose end has not come
        self._size = 0
        self._id: int | None = None
        self._type = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[Received]:
        """The frames that are complete now. Raises `Malformed`."""
        if not chunk:
            return
        if self._after_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
            self._after_cr = False
        if chunk:
            self._after_cr = chunk[-1:] == b"\r"
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._size += len(chunk)
        head, *rest = chunk.split(b"\n")
        self._line.append(head)
        for piece in rest:
            line = b"".join(self._line)
            self._line = [piece]
            if line:
                self._take(line)
                continue
            frame = self._dispatch()
            self._size = len(chunk)
            if frame is not None:
                yield frame
        if self._size > MAX_FRAME_BYTES:
            raise Malformed(f"a frame has more than {MAX_FRAME_BYTES} bytes")

    def _take(self, line: bytes) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(BOM)
        try:
            name, _, value = line.decode().partition(":")
        except UnicodeDecodeError as error:
            raise Malformed(f"a line is no UTF-8: {error}") from error
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._type = value
        elif name == "id":
            if not (value.isascii() and value.isdigit()):
                raise Malformed(f"id {value[:40]!r} is no number")
            self._id = int(value)
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_ms = int(value)

    def _dispatch(self) -> Received | None:
        number, kind, data = self._id, self._type, self._data
        self._id, self._type, self._data = None, "", []
        self._first = False
        if not data:
            return None if number is None else Received(number, "", {})
        text = "\n".join(data)
        try:
            value = json.loads(text)
        except ValueError as error:
            raise Malformed(f"the data of {kind or 'a frame'} is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise Malformed(f"the data of {kind or 'a frame'} is no JSON object")
        return Received(number, kind, value, text)


class Place:
    """How far a reader of a view is. `cursor` is the last id that it has, `ended` whether the last event is one behind
    which the view has none, `told` whether the server said that it closes the connection before the view has ended,
    `passed` whether the last frame only moved the cursor: so a view ends whose last event is filtered out."""

    def __init__(self, path: str, after: int) -> None:
        self.cursor = after
        self.ended = self.told = self.passed = False
        _, _, self._kind, self._id, *_ = [*path.split("/"), "", "", "", ""]

    def take(self, frame: Received) -> bool:
        """Whether the frame is new. Raises `Gap` when something before it is missing; the place stays then."""
        self.passed = not frame.type
        if frame.id is None:
            if frame.type == "stream.reset":
                # a log whose front was removed does not begin at 1, and what is gone is no gap
                self.cursor, self.ended = max(0, frame.data.get("oldest", 1) - 1), False
            self.told = frame.type == "stream.closing"
            return True
        if frame.id <= self.cursor:
            return False
        before = frame.data.get("prev", frame.id - 1) if frame.type else self.cursor
        if before > self.cursor:
            raise Gap(f"event {frame.id} comes after {before}, but the last one here is {self.cursor}")
        self.cursor = frame.id
        self.ended = self._ends(frame)
        return True

    def _ends(self, frame: Received) -> bool:
        if self._kind == "runs":
            return frame.type in FINAL_TYPES and frame.data.get("run_id") == self._id
        if self._kind == "delegations":
            return frame.type == "handoff.end" and frame.data["data"].get("handoff_id") == self._id
        # An idle is the end only when nothing came since, which the next connection is told by 204.
        return frame.type == "session.closed"


Key = tuple[int, int, str, str | None]  # run, step, delta type, call


@dataclass(slots=True)
class _Text:
    """The pieces of one text; `length` in code points. `whole`: none is missing."""

    parts: list[str] = field(default_factory=list)
    length: int = 0
    whole: bool = True

    def add(self, at: int, text: str) -> None:
        """A piece that begins at `at`."""
        if at > self.length:
            self.whole = False
        if self.whole and at + len(text) > self.length:
            self.parts.append(text[self.length - at :])
            self.length = at + len(text)


class Texts:
    """What runs are saying, put together from deltas, snapshots and withdrawn steps. Feed it every frame of one view.
    Of each run it keeps its last step only."""

    def __init__(self) -> None:
        self._texts: dict[Key, _Text] = {}

    def feed(self, frame: Received) -> None:
        """Take a frame in."""
        data = frame.data
        if frame.type in DELTA_TYPES:
            key = (data["run"], data["step"], frame.type, data.get("call"))
            self._texts.setdefault(key, _Text()).add(data["at"], data["text"])
        elif frame.type == "text.snapshot":
            key = (data["run"], data["step"], data["of"], data.get("call"))
            self._texts[key] = _Text([data["text"]], data["at"])
        elif frame.type == "stream.reset":
            self._texts.clear()
        elif frame.type == "step.started":
            self._forget(data["run"], lambda step: step != data["step"])
        elif frame.type == "step.retried":
            self._forget(data["run"], lambda step: step == data["step"])
        elif frame.type == "message" and data["data"]["role"] == "assistant" and "step" in data:
            self._said(data["run"], data["step"], data["data"])

    def text(self, run: int, step: int, of: str = "text.delta", call: str | None = None) -> str | None:
        """What the run with this ordinal has sent in a step so far; None when nothing came or a piece is missing."""
        found = self._texts.get((run, step, of, call))
        return "".join(found.parts) if found is not None and found.whole else None

    def _said(self, run: int, step: int, message: Mapping[str, Any]) -> None:
        """The message holds all of what pieces were sent of, whichever of them came."""
        for of, text in (("text.delta", message["content"]), ("reasoning.delta", message.get("reasoning"))):
            if text:
                self._texts[run, step, of, None] = _Text([text], len(text))

    def _forget(self, run: int, gone: Callable[[int], bool]) -> None:
        for key in [key for key in self._texts if key[0] == run and gone(key[1])]:
            del self._texts[key]
