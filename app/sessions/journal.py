"""The journal: numbers each fact, commits in groups, then publishes. The only way a fact becomes durable and visible.

Knows neither SQL nor HTTP: it asks an `EventWriter` in a thread of its own and an `EventBus`.

    record ─▶ queue ─▶ one transaction ─▶ publish
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from app.agent import events, faults
from app.agent.errors import NotFound, Unavailable
from app.agent.events import Event, EventBus, EventKind, EventLog, P, Scope, TextDelta, Write
from app.agent.ids import now_us
from app.agent.runs import Run
from app.masking import StreamMasker, ValueMasker
from app.sessions.along import accompanied
from app.sessions.ports import DAMAGED, EventWriter, Rejected
from app.sessions.recent import Recent
from app.sessions.waiting import Item, Row, Waiting, settle
from app.sessions.writing import Outcome, WriterThread
from app.wire import clean_row, encode, encode_payload, envelope, scope_bytes

log = logging.getLogger(__name__)

MAX_BATCH = 500
TAKE_S = 30.0  # for the store to take what a request made
SILENT_S = 3.0  # a batch takes milliseconds: from here on whoever asks is told, and readers wait no longer
END_S = 2.0  # for the writer's thread to end
IDLE_STREAMS = 1_000  # sessions without open work whose numbers are kept at hand
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 0.5  # so that a store that is back is at work again well within 2 s
SAID_EVERY = 60  # tries that fail for the same reason: one of so many is said in the log
MENDED_S = 10.0  # between two tries to store what the store is damaged for
_FINAL = events.FINAL_TYPES

Listener = Callable[[Sequence[Event]], None]


class _Stream:
    """One session's numbers. `recorded` is the last number given, `stored` the last one published; `refused`: why that
    one was not stored, with nothing in its place."""

    __slots__ = ("open", "recorded", "refused", "scopes", "session_id", "stored", "tenant", "texts", "waiters")

    def __init__(self, tenant: str, session_id: str, head: int) -> None:
        self.tenant = tenant
        self.session_id = session_id
        self.recorded = head
        self.stored = head
        self.refused: str | None = None
        self.open = True
        self.scopes: dict[str, tuple[bytes, Run | None]] = {}
        self.texts: dict[str, dict[tuple[str, str | None], _Offset]] = {}
        self.waiters: list[tuple[int, asyncio.Future[None]]] = []


class _Offset:
    """How far a text of a step has been shown. `lost`: a piece was not, so that none of the rest is."""

    __slots__ = ("at", "lost", "mask", "step")

    def __init__(self, step: int, mask: StreamMasker | None) -> None:
        self.step = step
        self.at = 0
        self.lost = False
        self.mask = mask


class Journal:
    """Implements the port `Recorder`. One per process; used from the event loop only."""

    def __init__(
        self,
        writer: EventWriter,
        bus: EventBus,
        event_log: EventLog,
        *,
        masker: ValueMasker,
        linger_ms: float = 2.0,
        max_bytes: int = 64 << 20,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self._bus = bus
        self.log = event_log
        self._masker = masker
        self._linger = linger_ms / 1000
        self._listeners = tuple(listeners)
        self._loop = asyncio.get_running_loop()
        self.recent = Recent()
        self._thread = WriterThread(writer, self._loop, self._written)
        self._along: dict[str, list[Write]] = {}
        self._streams: dict[str, _Stream] = {}
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._waiting = Waiting(self._loop, max_bytes)
        self._busy = False
        self._urgent = False
        self._timer: asyncio.TimerHandle | None = None
        self._retry_s = RETRY_FIRST_S
        self._sealed = False
        self._handed_at = 0.0  # when the writer got the batch that it has
        self._with_writer: list[Any] = []  # that batch
        self._failed: str | None = None
        self._settling: set[asyncio.Future[None]] = set()
        self.failures = 0

    def listen(self, listener: Listener) -> None:
        """Call `listener` with every batch of published events from here on."""
        self._listeners = (*self._listeners, listener)

    # ── sessions ────────────────────────────────────────────────────────────────────────────────────────────────

    def create(self, tenant: str, session_id: str) -> None:
        """Begin the stream of a new session."""
        self._streams[session_id] = _Stream(tenant, session_id, 0)

    async def open(self, tenant: str, session_id: str) -> None:
        """Make the numbers of a session known; facts may be recorded until `release`. Raises `NotFound` when it is
        unknown or was erased: numbers that began again would be those of stored events."""
        while session_id not in self._streams:  # again when somebody else was done with it in between
            loading = self._loading.get(session_id)
            if loading is None:
                loading = self._loading[session_id] = asyncio.create_task(self._load(tenant, session_id))
            await asyncio.shield(loading)
        self._streams[session_id].open = True
        self._idle.pop(session_id, None)

    async def _load(self, tenant: str, session_id: str) -> None:
        """Read where a session's numbers go on; once for all who ask, since a second answer would be an old one."""
        try:
            head = await self.log.head(tenant, session_id)
            if head is None:
                raise NotFound(f"there is no session {session_id!r}")
            self._streams[session_id] = _Stream(tenant, session_id, head)
        finally:
            del self._loading[session_id]

    def release(self, session_id: str) -> None:
        """The session has no open work: its numbers may be forgotten when they are no longer needed."""
        stream = self._streams.get(session_id)
        if stream is None:
            return
        stream.open = False
        self._idle[session_id] = None
        self._idle.move_to_end(session_id)
        for old in list(islice(self._idle, max(0, len(self._idle) - IDLE_STREAMS))):
            kept = self._streams[old]
            if not self._waiting.has(old) and kept.recorded == kept.stored and not kept.waiters:
                del self._streams[old], self._idle[old]

    def head(self, session_id: str) -> int | None:
        """The last published number of a session, None when its numbers are not at hand."""
        stream = self._streams.get(session_id)
        return None if stream is None else stream.stored

    def recorded(self, session_id: str) -> int:
        """The last number given in a session whose numbers are at hand."""
        return self._streams[session_id].recorded

    @property
    def waiting_bytes(self) -> int:
        """How much waits to be written: about what it takes in memory."""
        return self._waiting.bytes

    @property
    def problem(self) -> str | None:
        """Why nothing can be stored at the moment; None when it can."""
        if self._failed is None and self._busy:
            silent = self._loop.time() - self._handed_at
            if silent > SILENT_S:
                return f"the store has not answered for {silent:.0f} s"
        return self._failed

    @property
    def damage(self) -> str | None:
        """Which part of the store takes nothing, while the rest does; None when all of it does."""
        damaged = self._waiting.damaged
        if not damaged:
            return None
        session_id, reason = next(iter(damaged.items()))
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        return f"session {session_id}{more} cannot be stored, the others can: {reason}"

    def need_whole(self, session_id: str) -> None:
        """Raises `Unavailable` when the store is broken where a session is kept: nothing is begun in it."""
        reason = self._waiting.damaged.get(session_id)
        if reason is not None:
            raise Unavailable(
                f"the store is damaged where session {session_id} is kept: {reason}",
                code=DAMAGED,
                retry_after_s=60,
            )

    def need_place(self) -> None:
        """Raises `Unavailable` while the store is broken where new sessions go and enough of them wait for it already:
        each would be one more."""
        if not self._waiting.damaged_full:
            return
        for session_id, reason in self._waiting.damaged.items():
            if not self._streams[session_id].stored:
                raise Unavailable(
                    f"the store is damaged where new sessions are kept: {reason}; none is begun",
                    code=DAMAGED,
                    retry_after_s=60,
                )

    def need_room(self) -> None:
        """Raises `Unavailable` while too much waits to be written already."""
        if self._waiting.full:
            raise Unavailable(
                f"too much waits to be stored already: {self.problem or 'the store is slow'}; nothing was begun",
                code="store_unavailable",
            )

    # ── recording ───────────────────────────────────────────────────────────────────────────────────────────────

    def record(
        self, scope: Scope, kind: EventKind[P], payload: P, *, step: int | None = None, also: tuple[Write, ...] = ()
    ) -> Event:
        """Number a durable fact and hand it over; never blocks."""
        if self._along:
            also = (*also, *self._along.pop(scope.session_id, ()))
        stream = self._streams[scope.session_id]
        if self._sealed:
            return Event(
                seq=stream.recorded, type=kind.name, ts=0, tenant=stream.tenant, session_id=stream.session_id,
                run=None, step=step, payload=payload,
            )  # fmt: skip
        stream.recorded = seq = stream.recorded + 1
        ts = now_us()
        run = scope if isinstance(scope, Run) else None
        kept, data = self._masker.payload(*encode_payload(payload))
        key = run.id if run is not None else ""
        scoped = stream.scopes.get(key)
        if scoped is None or (run is not None and scoped[1] is not None and scoped[1].attempt != run.attempt):
            told = self._told(scope)
            scoped = stream.scopes[key] = scope_bytes(told), told if isinstance(told, Run) else None
        if run is not None and (kind is events.STEP_COMPLETED or kind is events.STEP_RETRIED):
            self._flush_texts(stream, run)  # which a step that is tried again takes back as a whole
        event = Event(
            seq=seq,
            type=kind.name,
            ts=ts,
            tenant=stream.tenant,
            session_id=stream.session_id,
            run=scoped[1],
            step=step,
            payload=kept,
            envelope=envelope(seq, kind, ts, scoped[0], step),
            data=data,
            also=also,
        )
        event = accompanied(event)
        if kind.final:
            stream.scopes.pop(key, None)
        if kind.final or kind is events.STEP_RETRIED:  # the texts of a step that is tried again start anew
            stream.texts.pop(key, None)
        self._waiting.add(event)
        self._stir()
        return event

    @contextlib.contextmanager
    def along(self, session_id: str, write: Write) -> Iterator[None]:
        """The next event recorded in that session inside carries this row, in its transaction, as it is: not masked.
        It is recorded before anything is awaited; if there is none, the row is not stored."""
        self._along.setdefault(session_id, []).append(write)
        try:
            yield
        finally:
            left = [other for other in self._along.pop(session_id, ()) if other is not write]
            if left:
                self._along[session_id] = left

    def _told(self, scope: Scope) -> Scope:
        """Whose fact it is, as anybody may be told: a client chooses the names."""
        if not isinstance(scope, Run):
            return scope
        agent, name = self._masker.text(scope.agent), None if scope.name is None else self._masker.text(scope.name)
        return scope if (agent, name) == (scope.agent, scope.name) else replace(scope, agent=agent, name=name)

    def emit(self, run: Run, kind: EventKind[TextDelta], step: int, text: str, call_id: str | None = None) -> None:
        """Show a piece of text after everything that was recorded before it."""
        if self._sealed:
            return
        stream = self._streams[run.session_id]
        texts = stream.texts.get(run.id)
        if texts is None:
            texts = stream.texts[run.id] = {}
        key = (kind.name, call_id)
        offset = texts.get(key)
        if offset is None or offset.step != step:
            offset = texts[key] = _Offset(step, self._masker.stream())
        if offset.mask is not None:
            text = offset.mask.feed(text)
        self._show(stream, run, key, offset, text)

    def _flush_texts(self, stream: _Stream, run: Run) -> None:
        """Show what was held back as the possible beginning of a secret."""
        for key, offset in stream.texts.get(run.id, {}).items():
            if offset.mask is not None:
                self._show(stream, run, key, offset, offset.mask.flush())

    def _show(self, stream: _Stream, run: Run, key: tuple[str, str | None], offset: _Offset, text: str) -> None:
        if not text:
            return
        payload: dict[str, Any] = {"run": run.ordinal, "step": offset.step, "at": offset.at, "text": text}
        if key[1] is not None:
            payload["call"] = key[1]
        offset.at += len(text)
        if offset.lost or stream.session_id in self._waiting.damaged:
            offset.lost = True  # it is part of a message that is shown once it is stored
            return
        event = Event(
            seq=0,
            type=key[0],
            ts=0,
            tenant=stream.tenant,
            session_id=stream.session_id,
            run=run,
            step=offset.step,
            payload=payload,
            data=encode(payload),
        )
        if self._waiting.has(stream.session_id):
            self._waiting.add(event)
        else:  # nothing of its session is before it
            self._bus.publish(stream.session_id, (event,))

    # ── waiting ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def committed(self, event: Event) -> None:
        """Wait until the event is in the store (and was published)."""
        if self._sealed and not event.ts:  # it was not recorded: what waits for it must not happen
            await self._loop.create_future()
        stream = self._streams.get(event.session_id)
        if stream is None or stream.stored >= event.seq:
            return
        waiter = self._loop.create_future()
        stream.waiters.append((event.seq, waiter))
        self._hurry()
        await waiter

    async def write(self, write: Write, timeout_s: float | None = TAKE_S) -> None:
        """Store a row that is no event, masked and cleaned as events are; returns after the commit. Raises `ValueError`
        when it cannot be stored, `Unavailable` when too much waits already, or when it takes too long: then it is
        stored all the same when the store is back. `timeout_s` None is for those who are few: they wait however long
        that takes."""
        if timeout_s is not None:
            self.need_room()
        row = Row(replace(write, values=clean_row(self._masker.value(write.values))), self._loop.create_future())
        self._waiting.add(row)
        self._hurry()
        await _taken(row.done, timeout_s)

    async def write_aside(self, write: Write, within_s: float) -> None:
        """Carry out upkeep of the store in a transaction of its own, when nothing else is to be written, or before the
        next facts after `within_s`. Returns after the commit; raises `ValueError` when it cannot be done."""
        row = Row(write, self._loop.create_future(), self._loop.time() + within_s)
        self._waiting.add_upkeep(row)
        if not self._busy and self._timer is None:
            self._timer = self._loop.call_later(0, self._begin)
        await row.done

    async def flush(self, timeout_s: float | None = None, *, of: str | None = None) -> None:
        """Wait until everything that was recorded before is stored. Raises `Unavailable` when that takes too long;
        it is stored all the same when the store is back; and with `timeout_s`, which is somebody who wants to be sure
        of what was recorded, also after `seal`. Sessions for which the store is damaged are not waited for; who needs
        what was recorded `of` one is told that it was not stored."""
        if self._sealed and timeout_s is not None:
            raise _stopping()
        if self._waiting.queue or self._busy:
            await _taken(asyncio.shield(self._marker()), timeout_s)
        if of is not None:
            self.need_whole(of)
            stream = self._streams.get(of)
            if stream is not None and stream.refused is not None:
                raise Unavailable(f"the store did not take this: {stream.refused}", code="not_stored", retry_after_s=60)

    def _marker(self) -> asyncio.Future[None]:
        """Done when everything that was recorded before is stored."""
        marker = self._waiting.mark()
        self._hurry()
        return marker

    async def settle(self) -> None:
        """For a reader: let what was recorded before reach the store, but not for long. While the store takes nothing,
        what it has is the truth that anybody may be told."""
        if self.problem is not None or self._sealed or not (self._waiting.queue or self._busy):
            return
        stored = asyncio.shield(self._marker())
        self._settling.add(stored)
        try:
            await asyncio.wait((stored,), timeout=SILENT_S)
        finally:
            self._settling.discard(stored)
            stored.cancel()

    async def room(self, session_id: str) -> None:
        """See `Recorder.room`."""
        await self._waiting.room(session_id)

    def pause(self) -> None:
        """No step begins any more."""
        self._waiting.pause()

    def seal(self) -> None:
        """Nothing is recorded or shown any more: another process goes on from here."""
        self._sealed = True

    def give_up(self) -> None:
        """The service ends before the store was back: whoever waits is told so, and need not be waited for."""
        for item in (*self._with_writer, *self._waiting.queue):
            if not isinstance(item, Event):
                settle(item.done if isinstance(item, Row) else item, _stopping())

    # ── the writer's side ───────────────────────────────────────────────────────────────────────────────────────

    def _stir(self) -> None:
        """Begin a batch `linger` after the first fact of a quiet moment."""
        if not self._busy and self._timer is None:
            self._urgent = False
            self._timer = self._loop.call_later(self._linger, self._begin)

    def _hurry(self) -> None:
        """Somebody waits: begin as soon as the writer is free."""
        if self._urgent and self._timer is not None:
            return  # it is about to: whoever comes in the meantime must not put it off
        self._urgent = True
        if not self._busy:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(0, self._begin)

    def _begin(self) -> None:
        """Hand what is there to the writer's thread, as one transaction."""
        self._timer = None
        if self._busy or self._begin_upkeep() or not self._waiting.queue:
            return
        self._urgent = False
        batch = self._waiting.take(MAX_BATCH)
        if self._waiting.queue:
            self._urgent = True
        durable = [item for item in batch if isinstance(item, Event) and item.seq]
        rows = [item.write for item in batch if isinstance(item, Row)]
        if not durable and not rows:
            self._publish(batch, ())
            self._next()
            return
        self._busy = True
        self._handed_at, self._with_writer = self._loop.time(), batch
        faults.hit("before_commit")
        self._thread.submit(batch, durable, rows)

    def _begin_upkeep(self) -> bool:
        """Hand the next upkeep to the writer's thread, if it is its turn."""
        row = self._waiting.take_upkeep()
        if row is None:
            return False
        self._busy = True
        self._handed_at = self._loop.time()
        self._thread.submit([row], [], [row.write])
        return True

    def _try_again(self) -> None:
        """What could not be stored may be now: somebody may have mended the store."""
        self._waiting.release()
        self._hurry()

    def _sort_out(self, batch: list[Any], rejected: Sequence[Rejected]) -> list[Any]:
        """Put aside what the store is damaged for; the rest."""
        broken = {r.event.session_id: r.reason for r in rejected if r.damaged and r.event is not None}
        for item in batch:
            if isinstance(item, Event) and item.seq and item.session_id not in broken:
                self._waiting.mended(item.session_id)
        if not broken:
            return batch
        for session_id in broken.keys() - self._waiting.damaged.keys():
            log.error("the store is damaged where session %s is kept, which waits: %s", session_id, broken[session_id])
            self._break_texts(self._streams[session_id])
        if not self._waiting.holds:
            self._loop.call_later(MENDED_S, self._try_again)
        return self._waiting.put_aside(batch, broken)

    @staticmethod
    def _break_texts(stream: _Stream) -> None:
        """The texts that are under way end here: what waits of them is dropped."""
        for texts in stream.texts.values():
            for offset in texts.values():
                offset.lost = True

    def _written(self, batch: list[Any], outcome: Outcome) -> None:
        """The writer's thread has an answer; runs on the event loop."""
        if outcome.error is not None:
            self.failures += 1
            told = str(outcome.error)
            if told != self._failed or self.failures % SAID_EVERY == 0:
                log.warning("the store is away, %d facts wait: %s", len(self._waiting.queue) + len(batch), told)
            self._failed = told
            for reader in self._settling:
                settle(reader, None)
            self._loop.call_later(self._retry_s, self._thread.again)
            self._retry_s = min(self._retry_s * 2, RETRY_MAX_S)
            return
        if self._failed is not None:
            log.info("the store is back")
        self._failed = None
        self._retry_s = RETRY_FIRST_S
        self._busy = False
        faults.hit("after_commit")
        self._with_writer = []
        batch = self._sort_out(batch, outcome.rejected)
        self._publish(batch, outcome.rejected)
        self._next()

    def _next(self) -> None:
        queue = self._waiting.queue
        if not (queue or self._waiting.upkeep) or self._busy or self._timer is not None:
            return
        if self._urgent or not queue:
            self._begin()
        else:
            self._stir()

    def _publish(self, batch: Sequence[Item], rejected: Sequence[Rejected]) -> None:
        """Show a committed batch in order, tell who waited, and account for it."""
        replaced, refused, dropped = self._sorted(rejected)
        groups: dict[str, list[Event]] = {}
        shown: list[Event] = []
        for item in batch:
            if isinstance(item, Event):
                stream = self._streams[item.session_id]
                self._waiting.gone(item)
                event = replaced.get(id(item), item)
                if item.seq:
                    stream.stored, stream.refused = item.seq, dropped.get(id(item))
                group = groups.setdefault(item.session_id, [])
                if id(item) not in dropped:
                    group.append(event)
                    shown.append(event)
            elif isinstance(item, Row):
                self._waiting.gone(item)
                settle(item.done, refused.get(id(item.write)))
            else:
                settle(item, None)
        for session_id, group in groups.items():
            self._bus.publish(session_id, group)
            durable = [event for event in group if event.seq]
            if durable:
                self.recent.add(session_id, durable)
        for listener in self._listeners:
            try:
                listener(shown)
            except Exception:  # border to telemetry: what counts and measures must not stop what is counted
                log.exception("a listener of published events failed")
        for session_id in groups:
            self._wake(self._streams[session_id])
        self._waiting.make_room()

    @staticmethod
    def _sorted(rejected: Sequence[Rejected]) -> tuple[dict[int, Event], dict[int, Exception], dict[int, str]]:
        replaced: dict[int, Event] = {}
        refused: dict[int, Exception] = {}
        dropped: dict[int, str] = {}
        for item in rejected:
            if item.damaged:
                if item.write is not None:
                    refused[id(item.write)] = Unavailable(
                        f"the store is damaged where this belongs: {item.reason}",
                        code=DAMAGED,
                        retry_after_s=60,
                    )
                continue
            log.error("not stored: %s", item.reason)
            if item.event is not None and item.replacement is not None:
                replaced[id(item.event)] = item.replacement
            elif item.event is not None:
                dropped[id(item.event)] = item.reason
            elif item.write is not None:
                refused[id(item.write)] = ValueError(item.reason)
        return replaced, refused, dropped

    @staticmethod
    def _wake(stream: _Stream) -> None:
        if not stream.waiters:
            return
        ready = [waiter for seq, waiter in stream.waiters if seq <= stream.stored]
        stream.waiters = [(seq, waiter) for seq, waiter in stream.waiters if seq > stream.stored]
        for waiter in ready:
            settle(waiter, None)

    async def close(self) -> None:
        """Store what is left, then end the writer's thread; the last call. One that is cancelled gives up what is left,
        and says so."""
        try:
            await self.flush()
        finally:
            left = self._waiting.facts()
            if left or self._busy:
                reason = self.problem or self.damage or "the store did not answer in time"
                log.error("%d facts or more that nobody was told are lost: %s", left, reason)
            await self._thread.close(END_S)


async def _taken(done: asyncio.Future[None], timeout_s: float | None) -> None:
    """Wait until the store has taken something. Raises `Unavailable` when that takes too long."""
    try:
        async with asyncio.timeout(timeout_s):
            await done
    except TimeoutError as error:
        raise Unavailable(
            "the store did not take this in time; it is kept and stored when the store is back: look before you "
            "try again",
            code="store_unavailable",
        ) from error


def _stopping() -> Unavailable:
    return Unavailable(
        "the service is stopping, and may not have kept this: look before you try again", code="stopping"
    )


def replacement(event: Event, reason: str) -> Event:
    """The `error` event that takes the place and number of one that cannot be stored."""
    scope = scope_bytes(event.run) if event.run is not None else b'"session_id":' + encode(event.session_id)
    payload = events.ErrorLogged(code="not_stored", message=reason, event=event.type)
    kept, data = encode_payload(payload)
    return Event(
        seq=event.seq,
        type=events.ERROR.name,
        ts=event.ts,
        tenant=event.tenant,
        session_id=event.session_id,
        run=event.run,
        step=event.step,
        payload=kept,
        envelope=envelope(event.seq, events.ERROR, event.ts, scope, event.step),
        data=data,
    )
