"""EventFeed: the events of a session, run or delegation after a number: from the log, then live, no gap, no double.

Gives ready server-sent-event bytes; knows no HTTP. A reader that falls behind is sent back to the log.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from app.agent.errors import TooMany
from app.agent.events import FINAL_TYPES, KINDS, Event, StoredEvent
from app.agent.payloads import StreamClosing, StreamReset, StreamSkipped
from app.agent.ports import Ended, EventBus, EventLog, Lagging, Subscription
from app.sessions.journal import Journal
from app.wire import Envelope, decode, event_json, frame, read_envelope, transient_frame

CURSOR_EVERY_S = 15.0  # an id-only frame moves the cursor of a filtered stream at least this often
PAGE = 500
LOOKED_AT = 5_000  # events that may not fit the filters, for a page
CHUNK_BYTES = 64 << 10  # of frames that are joined: so much, and one frame, is copied for a reader that does not read
RETRY_MS = 1000
CLOSING_RETRY_MS = (500, 5000)  # one after the other: whoever starts again must not meet all of them at once


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What of a session's stream somebody looks at.

    `paths`: only runs at or below these paths (None: all). `run_id` or `handoff_id` name what ends the view; without
    one it is the session's own. `types`, `run` (ordinal) and `depth` filter; `deltas` False leaves transient ones out.
    `begins`: nothing of it stands before or at that event, so that the log is not read from its beginning.
    """

    tenant: str
    session_id: str
    run_id: str | None = None
    handoff_id: str | None = None
    paths: tuple[tuple[int, ...], ...] | None = None
    until_idle: bool = False
    types: frozenset[str] | None = None
    run: int | None = None
    depth: int | None = None
    deltas: bool = True
    begins: int = 0
    ended_seq: int | None = None  # the event that ended the view, when it has ended

    @property
    def filtered(self) -> bool:
        """Whether durable events may be left out, so that ids have gaps."""
        return not (self.types is None and self.run is None and self.depth is None and self.paths is None)

    @property
    def texts(self) -> bool:
        """Whether anything is shown that is not stored."""
        return self.deltas and (self.types is None or any(not KINDS[kind].durable for kind in self.types))


_STARTS_NOTHING = ("session.updated", "notice")  # a new title; that a task ended, which the next turn is told


@dataclass(slots=True)
class _Eye:
    """One view being followed: what it lets through, how far it is, and whether it has ended."""

    view: View
    cursor: int
    shown: int
    paths: set[tuple[int, ...]] | None
    head: int = 0  # the last event when the view was looked up
    oldest: int = 0  # the first event that is kept, when others should have come before it; 0: nothing is missing
    ended: bool = False
    idle: bool = False  # nothing was started since the last `session.idle`; so it is where a cursor stands behind it
    bounded: bool = False  # a page has looked at so many events that it goes no further

    @classmethod
    def of(cls, view: View, after: int) -> "_Eye":
        """Of somebody who has everything up to event `after`."""
        cursor = max(after, view.begins)
        eye = cls(view, cursor, after, None if view.paths is None else set(view.paths))
        eye.idle = view.until_idle and view.ended_seq is not None and cursor >= view.ended_seq
        return eye

    def sees(self, kind: str, run: int, depth: int, path: tuple[int, ...]) -> bool:
        """Whether the filters let an event through."""
        view = self.view
        if view.types is not None and kind not in view.types:
            return False
        if view.run is not None and run != view.run:
            return False
        if view.depth is not None and depth != view.depth:
            return False
        return self.paths is None or any(path[: len(p)] == p for p in self.paths)

    def ends(self, kind: str, run_id: str, data: bytes, last: bool) -> bool:
        """Whether the view is over after this event; `last`: nothing is recorded after it."""
        view = self.view
        if view.run_id is not None:
            return kind in FINAL_TYPES and run_id == view.run_id
        if view.handoff_id is not None:
            return kind == "handoff.end" and decode(data).get("handoff_id") == view.handoff_id
        if kind not in _STARTS_NOTHING:
            self.idle = kind == "session.idle"
        return kind == "session.closed" or (view.until_idle and self.idle and last)

    def own_handoff(self, kind: str, data: bytes) -> bool:
        """Whether the event is the start or end of the handoff that is looked at."""
        wanted = self.view.handoff_id
        return (
            wanted is not None
            and kind in ("handoff.start", "handoff.end")
            and (self.view.types is None or kind in self.view.types)
            and decode(data).get("handoff_id") == wanted
        )

    def adopt(self, kind: str, path: tuple[int, ...], data: bytes) -> None:
        """A further attempt of the handoff that is looked at belongs to the view."""
        wanted = self.view.handoff_id
        if wanted is None or kind != "run.queued" or self.paths is None:
            return
        if decode(data).get("handoff_id") == wanted:
            self.paths.add(path)


class _Pulse:
    """Wakes a reader now and then, so that a filtered stream can move its cursor: one timer for a stream costs less
    than a time limit on each wait."""

    __slots__ = ("_every_s", "_reader", "_timer")

    def __init__(self, reader: Subscription, every_s: float) -> None:
        self._reader = reader
        self._every_s = every_s
        self._timer = asyncio.get_running_loop().call_later(every_s, self._beat)

    def _beat(self) -> None:
        self._reader.poke()
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._beat)

    def stop(self) -> None:
        """No more beats."""
        self._timer.cancel()


class EventFeed:
    """Follows views. `max_readers` bounds the open streams of the process, `max_per_owner` those of one key; pages that
    wait count as well."""

    def __init__(
        self,
        event_log: EventLog,
        bus: EventBus,
        journal: Journal,
        *,
        max_readers: int = 4000,
        max_per_owner: int = 200,
        cursor_every_s: float = CURSOR_EVERY_S,
        looked_at: int = LOOKED_AT,
    ) -> None:
        self._log = event_log
        self._bus = bus
        self._journal = journal
        self._max_readers = max_readers
        self._max_per_owner = max_per_owner
        self._cursor_every_s = cursor_every_s
        self._looked_at = looked_at
        self._readers: dict[str, set[Subscription]] = {}
        self._count = 0
        self._closing = False

    @property
    def readers(self) -> int:
        """How many streams are open."""
        return self._count

    def owners(self) -> tuple[str, ...]:
        """The keys that have open streams."""
        return tuple(self._readers)

    def end(self, owner: str, reason: str) -> None:
        """Close the streams of one key."""
        for reader in self._readers.get(owner, ()):
            reader.end(reason)

    def close(self) -> None:
        """Close every stream cleanly; new ones end at once."""
        self._closing = True
        for owner in list(self._readers):
            self.end(owner, "shutdown")

    def check(self, owner: str) -> None:
        """Raises `TooMany` when one more stream is too much: asked before an answer is begun."""
        if self._count >= self._max_readers:
            raise TooMany(f"the service has {self._count} open streams, its limit (stream.max_readers)")
        if owner and len(self._readers.get(owner, ())) >= self._max_per_owner:
            raise TooMany(f"this key has {self._max_per_owner} open streams, its limit (stream.max_per_owner)")

    async def follow(self, view: View, after: int, owner: str = "") -> AsyncGenerator[bytes, None]:
        """Frames after event `after`, joined as they come, until the view ends or the server closes it."""
        eye = _Eye.of(view, after)
        opening = b"retry: %d\n\n" % RETRY_MS
        reader: Subscription | None = None
        while not eye.ended:
            reader = self._enter(view, owner, reader)
            pulse = _Pulse(reader, self._cursor_every_s) if view.filtered else None
            try:
                if not await self._located(eye):
                    continue
                if opening and view.filtered:  # it may be long until something passes
                    yield opening
                    opening = b""
                async for chunk in self._replay(eye, reader):
                    yield opening + chunk
                    opening = b""
                    if reader.ended is not None and not eye.ended:
                        raise Ended(reader.ended)  # the log may be long, and its reader slow
                if opening:
                    yield opening
                    opening = b""
                while not eye.ended:
                    batch = await reader.next()
                    for chunk in self._frames(eye, batch) if batch else self._cursor_frame(eye):
                        yield chunk
            except Lagging as lag:
                if lag.deltas and view.texts:
                    yield transient_frame("stream.skipped", StreamSkipped(deltas=lag.deltas))
            except Ended as end:
                yield transient_frame("stream.closing", StreamClosing(reason=end.reason))
                yield b"retry: %d\n\n" % random.randint(*CLOSING_RETRY_MS)
                return
            finally:
                if pulse is not None:
                    pulse.stop()
                self._leave(reader, owner)

    def _enter(self, view: View, owner: str, before: Subscription | None = None) -> Subscription:
        """Begin to receive. `before`: whose place this one takes, without a moment in between; when that was to stop
        and did not see it, this one is."""
        reader = self._bus.subscribe(view.session_id, head=self._journal.head(view.session_id) or 0)
        self._readers.setdefault(owner, set()).add(reader)
        self._count += 1
        if self._closing:
            reader.end("shutdown")
        elif before is not None and before.ended is not None:
            reader.end(before.ended)
        return reader

    def _leave(self, reader: Subscription, owner: str) -> None:
        reader.close()
        self._count -= 1
        readers = self._readers.get(owner)
        if readers is not None:
            readers.discard(reader)
            if not readers:
                del self._readers[owner]

    async def _replay(self, eye: _Eye, reader: Subscription) -> AsyncIterator[bytes]:
        """What the log has up to the moment of the subscription, then the texts that were under way."""
        view = eye.view
        if eye.head >= 0 and eye.shown > eye.head:  # not the cursor: a view may begin behind what is published
            yield transient_frame("stream.reset", StreamReset(head=eye.head))
            eye.cursor = eye.shown = 0
        while eye.cursor < eye.head and not eye.ended:
            page = await self._page(eye, eye.head)
            if not page:
                break
            if await self._is_cut(eye, page[0].seq):
                yield transient_frame("stream.reset", StreamReset(head=eye.head, oldest=eye.oldest))
            for chunk in self._frames(eye, page):
                yield chunk
        if not eye.ended and view.deltas:
            shots = [
                transient_frame("text.snapshot", shot)
                for run, shot in reader.snapshots
                if any(eye.sees(kind, run.ordinal, run.depth, run.path) for kind in (shot["of"], "text.snapshot"))
            ]
            if shots:
                yield b"".join(shots)

    async def _located(self, eye: _Eye) -> bool:
        """Find the last event there was when the reader subscribed (-1: the session is gone). False when the session
        was opened meanwhile: then what the reader got since may lie before that event, and it has to join again."""
        session_id = eye.view.session_id
        head = self._journal.head(session_id)
        if head is None:
            head = await self._log.head(eye.view.tenant, session_id)
            if self._journal.head(session_id) is not None:
                return False
        eye.head = -1 if head is None else head
        return True

    async def _page(self, eye: _Eye, head: int, limit: int = PAGE) -> Sequence[Event | StoredEvent]:
        """What comes after the cursor: from memory when it is there, else from the log."""
        view = eye.view
        recent = self._journal.recent.after(view.session_id, eye.cursor, head)
        if recent is not None:
            return recent
        return await self._log.page(view.tenant, view.session_id, after=eye.cursor, upto=head, limit=limit)

    async def _is_cut(self, eye: _Eye, first: int) -> bool:
        """Whether what should come before event `first` was removed for its age; the cursor then moves behind it."""
        if first == eye.cursor + 1:
            return False
        oldest = await self._log.oldest(eye.view.tenant, eye.view.session_id)
        if oldest <= eye.cursor + 1:
            return False
        eye.oldest, eye.cursor, eye.shown = oldest, oldest - 1, oldest - 1
        eye.idle = eye.view.ended_seq is not None and eye.view.ended_seq < oldest
        return True

    async def oldest(self, view: View, after: int) -> int:
        """The first event that is kept of the session that a view belongs to, as far as a cursor might lie before."""
        head = self._journal.head(view.session_id)
        if head is not None and self._journal.recent.after(view.session_id, after, head) is not None:
            return 1
        return await self._log.oldest(view.tenant, view.session_id)

    async def head(self, view: View) -> int:
        """The last event of the session that a view belongs to."""
        return await self._head(view) or 0

    async def _head(self, view: View) -> int | None:
        head = self._journal.head(view.session_id)
        return head if head is not None else await self._log.head(view.tenant, view.session_id)

    @staticmethod
    def _cursor_frame(eye: _Eye) -> Sequence[bytes]:
        """The frame that only moves the cursor, if it has to be moved."""
        if eye.cursor <= eye.shown:
            return ()
        eye.shown = eye.cursor
        return (b"id: %d\n\n" % eye.cursor,)

    def _frames(self, eye: _Eye, batch: Sequence[Event | StoredEvent]) -> Iterator[bytes]:
        """The frames of a batch that the view lets through, joined; moves the cursor."""
        parts: list[bytes] = []
        size = 0
        for event in batch:
            if size >= CHUNK_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
            if not event.seq:
                if eye.view.deltas and self._sees_delta(eye, event):
                    parts.append(frame(event))
                    size += len(parts[-1])
                continue
            if event.seq <= eye.cursor:
                continue  # it came from the log already
            eye.cursor = event.seq
            if not eye.view.filtered:
                parts.append(frame(event))
                eye.shown = event.seq
                kind, run_id = event.type, _run_id(event)
            else:
                seen = _envelope(event)
                kind, run_id = event.type, seen.run_id
                eye.adopt(kind, seen.path, event.data)
                if eye.sees(kind, seen.run, seen.depth, seen.path) or eye.own_handoff(kind, event.data):
                    parts.append(frame(event, prev=eye.shown))
                    eye.shown = event.seq
            if eye.ends(kind, run_id, event.data, event.seq >= (self._journal.head(eye.view.session_id) or eye.head)):
                eye.ended = True
                parts += self._cursor_frame(eye)  # the end itself may be left out: who comes again must get 204
                break
            if parts:
                size += len(event.data) + len(event.envelope)
        if parts:
            yield b"".join(parts)

    @staticmethod
    def _sees_delta(eye: _Eye, event: Event | StoredEvent) -> bool:
        run = event.run if isinstance(event, Event) else None
        if not eye.view.filtered or run is None:
            return eye.view.types is None or event.type in eye.view.types
        return eye.sees(event.type, run.ordinal, run.depth, run.path)

    async def page(
        self,
        view: View,
        after: int,
        limit: int,
        wait_s: float,
        owner: str = "",
        gone: asyncio.Future[None] | None = None,
    ) -> dict[str, Any]:
        """Durable events after a number as `{"items": [JSON bytes], "next": str | None, "oldest": int | None,
        "bounded": True | None}`; waits up to `wait_s` for the first one, unless the streams of `owner` are ended or
        `gone` is done: nobody waits any more. `next` is the number to go on after, None once the view has ended;
        `oldest` the first event that is kept, when others should have come before; `bounded`: so many events were
        looked at that others are left for the next page."""
        eye = _Eye.of(view, after)
        reader = self._enter(view, owner)
        if gone is not None:
            gone.add_done_callback(lambda _: reader.end("gone"))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        try:
            while True:  # the subscription came first: nothing falls between a look at the log and the wait
                items = await self._collect(eye, limit)
                rest = deadline - loop.time()
                if items or eye.ended or eye.bounded or rest <= 0:
                    break
                try:
                    if not await self._stirred(reader, rest):
                        break
                except Lagging:
                    self._leave(reader, owner)
                    reader = self._enter(view, owner)
        finally:
            self._leave(reader, owner)
        following = None if eye.ended else str(eye.cursor)
        return {"items": items, "next": following, "oldest": eye.oldest or None, "bounded": eye.bounded or None}

    @staticmethod
    async def _stirred(reader: Subscription, wait_s: float) -> bool:
        """Wait for a durable event; False when there will be none in time. Raises `Lagging`."""
        try:
            async with asyncio.timeout(wait_s):
                while not any(event.seq for event in await reader.next()):
                    pass
        except (TimeoutError, Ended):
            return False
        return True

    async def _collect(self, eye: _Eye, limit: int) -> list[bytes]:
        view, items = eye.view, list[bytes]()
        head = await self._head(view) or 0
        if view.run_id is not None and view.ended_seq is not None:
            head = min(head, view.ended_seq)  # nothing of it stands behind
        looked = 0
        while len(items) < limit and eye.cursor < head and not eye.ended and not eye.bounded:
            page = await self._page(eye, head, PAGE if view.filtered else limit - len(items))
            if not page:
                break
            await self._is_cut(eye, page[0].seq)
            for event in page:
                eye.cursor = event.seq
                seen = _envelope(event)
                eye.adopt(event.type, seen.path, event.data)
                if eye.sees(event.type, seen.run, seen.depth, seen.path) or eye.own_handoff(event.type, event.data):
                    items.append(event_json(event.envelope, event.data))
                eye.ended = eye.ends(event.type, seen.run_id, event.data, event.seq == head)
                if eye.ended or len(items) == limit:
                    break
            looked += len(page)
            eye.bounded = looked >= self._looked_at and len(items) < limit and not eye.ended and eye.cursor < head
        return items


def _run_id(event: Event | StoredEvent) -> str:
    """Only needed where an event may end a view of a run, which is always filtered."""
    return event.run.id if isinstance(event, Event) and event.run is not None else ""


def _envelope(event: Event | StoredEvent) -> Envelope:
    if isinstance(event, StoredEvent):
        return read_envelope(event.envelope)
    run = event.run
    if run is None:
        return Envelope(id=event.seq, type=event.type)
    return Envelope(id=event.seq, type=event.type, run_id=run.id, run=run.ordinal, depth=run.depth, path=run.path)
