"""The event bus of one process: a bounded deque and one future per reader; all is drained on wake-up.

Knows no HTTP and no store. What is published here is already committed.
"""

import asyncio
from collections.abc import Sequence

from app.agent.events import FINAL_TYPES, Event
from app.agent.payloads import TextSnapshot
from app.agent.ports import Ended, Lagging
from app.agent.runs import Run

MAX_BYTES = 512 << 10  # per reader; beyond, it reads on from the log
EVENT_BYTES = 512  # of an event, beside what is sent of it
_STEP_ENDS = frozenset({"step.completed", "step.started", "step.retried"}) | FINAL_TYPES
_TEXTS = frozenset({"text.delta", "reasoning.delta", "tool.arguments.delta", "tool.progress"})


class _Text:
    """What one type has sent so far in a step that is under way."""

    __slots__ = ("at", "call", "of", "parts", "run", "step")

    def __init__(self, event: Event) -> None:
        payload = event.payload
        assert event.run is not None  # every text belongs to a run
        self.run: Run = event.run
        self.step: int = payload["step"]
        self.call: str | None = payload.get("call")
        self.of = event.type
        self.at = 0
        self.parts: list[str] = []

    def add(self, payload: dict[str, str]) -> None:
        text = payload["text"]
        self.parts.append(text)
        self.at += len(text)

    def snapshot(self) -> TextSnapshot:
        text = "".join(self.parts)
        shot = TextSnapshot(run=self.run.ordinal, step=self.step, of=self.of, at=self.at, text=text)
        if self.call is not None:
            shot["call"] = self.call
        return shot


class _Topic:
    """One session: its readers, and the texts of the steps that are under way."""

    __slots__ = ("readers", "texts")

    def __init__(self) -> None:
        self.readers: set[Reader] = set()
        self.texts: dict[int, dict[tuple[str, str | None], _Text]] = {}

    def note(self, event: Event) -> None:
        """Keep the texts up to date."""
        if event.seq:
            if event.type in _STEP_ENDS and event.run is not None:
                self.texts.pop(event.run.ordinal, None)
            return
        if event.type not in _TEXTS:
            return
        payload = event.payload
        texts = self.texts.setdefault(payload["run"], {})
        key = (event.type, payload.get("call"))
        text = texts.get(key)
        if text is None:
            text = texts[key] = _Text(event)
        text.add(payload)  # type: ignore[arg-type]


class Reader:
    """One reader's place in the live stream of a session (port `Subscription`)."""

    def __init__(self, topic: _Topic, head: int, limit: int, on_close: "_Forget") -> None:
        self.head = head
        self.snapshots = [(text.run, text.snapshot()) for texts in topic.texts.values() for text in texts.values()]
        self._topic = topic
        self._limit = limit
        self._on_close = on_close
        self._queue: list[Event] = []
        self._bytes = 0
        self._dropped = -1  # deltas lost since the reader fell behind; -1: it did not
        self.ended: str | None = None
        self._poked = False
        self._waiter: asyncio.Future[None] | None = None
        topic.readers.add(self)

    def push(self, events: Sequence[Event]) -> None:
        """Take events; beyond the limit all are dropped and the reader is told to use the log."""
        if self.ended is not None:
            return  # one that always finds something more would never stop
        if self._dropped >= 0:
            self._dropped += sum(1 for event in events if not event.seq)
            return
        self._queue.extend(events)
        self._bytes += sum(len(event.data) + len(event.envelope) + EVENT_BYTES for event in events)
        if self._bytes > self._limit:
            self._dropped = sum(1 for event in self._queue if not event.seq)
            self._queue = []
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def end(self, reason: str) -> None:
        """Let the reader take what is there and then stop."""
        self.ended = reason
        self._wake()

    def poke(self) -> None:
        """Let a waiting reader return with nothing."""
        if self._waiter is not None:
            self._poked = True
            self._wake()

    async def next(self) -> Sequence[Event]:
        """All that came since the last call, empty only after `poke`. Raises `Lagging` when the reader fell behind,
        `Ended` when it is to stop."""
        while not self._queue:
            if self.ended is not None:
                raise Ended(self.ended)
            if self._dropped >= 0:
                raise Lagging(self._dropped)
            if self._poked:
                self._poked = False
                return ()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        taken, self._queue, self._bytes = self._queue, [], 0
        return taken

    def close(self) -> None:
        """Stop receiving."""
        self._topic.readers.discard(self)
        self._on_close.forget(self._topic)


class _Forget:
    """Drops a topic that nobody reads and in which no text is under way."""

    __slots__ = ("session_id", "topics")

    def __init__(self, topics: dict[str, _Topic], session_id: str) -> None:
        self.topics = topics
        self.session_id = session_id

    def forget(self, topic: _Topic) -> None:
        if not topic.readers and not topic.texts and self.topics.get(self.session_id) is topic:
            del self.topics[self.session_id]


class MemoryBus:
    """Hands events to the readers of a session (port `EventBus`)."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._topics: dict[str, _Topic] = {}
        self._max_bytes = max_bytes

    @property
    def readers(self) -> int:
        """How many readers there are."""
        return sum(len(topic.readers) for topic in self._topics.values())

    def publish(self, session_id: str, events: Sequence[Event]) -> None:
        """Show events in order."""
        topic = self._topics.get(session_id)
        if topic is None:
            if all(event.seq for event in events):
                return  # nobody looks, and a log entry is no text under way
            topic = self._topics[session_id] = _Topic()
        for event in events:
            topic.note(event)
        for reader in topic.readers:
            reader.push(events)
        if not topic.readers and not topic.texts:
            self._topics.pop(session_id, None)

    def subscribe(self, session_id: str, *, head: int) -> Reader:
        """Begin to receive what is published from now on; `head` is the last number that was."""
        topic = self._topics.get(session_id)
        if topic is None:
            topic = self._topics[session_id] = _Topic()
        return Reader(topic, head, self._max_bytes, _Forget(self._topics, session_id))
