"""The journal: numbers each fact, commits in groups, then publishes. The only way a fact becomes durable and visible.

Knows neither SQL nor HTTP: it asks an `EventWriter` in a thread of its own and an `EventBus`.

    record ─▶ queue ─▶ one transaction ─▶ publish
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from app.agent import events
from app.agent.errors import Unavailable
from app.agent.events import Event, EventKind, P, Scope, Write
from app.agent.ids import now_us
from app.agent.payloads import TextDelta
from app.agent.ports import EventBus, EventLog
from app.agent.runs import Run
from app.masking import ValueMasker
from app.sessions.along import accompanied
from app.sessions.committing import GroupCommit
from app.sessions.ports import DAMAGED, EventWriter, Rejected
from app.sessions.recent import Recent
from app.sessions.rejecting import sorted_out
from app.sessions.showing import Showing
from app.sessions.streams import Streams
from app.sessions.waiting import Item, Row, Waiting, settle
from app.wire import clean_row, encode_payload, envelope, scope_bytes

log = logging.getLogger(__name__)

TAKE_S = 30.0  # for the store to take what a request made

Listener = Callable[[Sequence[Event]], None]


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
        self._listeners = tuple(listeners)
        self._loop = asyncio.get_running_loop()
        self.recent = Recent()
        self._along: dict[str, list[Write]] = {}
        self._waiting = Waiting(self._loop, max_bytes)
        self._commit = GroupCommit(
            writer, self._waiting, linger_s=linger_ms / 1000, published=self._publish, breaks=self._broken
        )
        self._sessions = Streams(event_log, self._waiting.has)
        self._streams = self._sessions.at_hand
        self._showing = Showing(self._waiting, bus, masker)
        self._sealed = False
        self._held: deque[asyncio.Future[None]] | None = None
        self._passes = 0

    def listen(self, listener: Listener) -> None:
        """Call `listener` with every batch of published events from here on."""
        self._listeners = (*self._listeners, listener)

    # ── sessions ────────────────────────────────────────────────────────────────────────────────────────────────

    def create(self, tenant: str, session_id: str) -> None:
        """Begin the stream of a new session."""
        self._sessions.create(tenant, session_id)

    async def open(self, tenant: str, session_id: str) -> None:
        """Make the numbers of a session known; facts may be recorded until `release`. Raises `NotFound` when it is
        unknown or was erased."""
        await self._sessions.open(tenant, session_id)

    def release(self, session_id: str) -> None:
        """The session has no open work: its numbers may be forgotten when they are no longer needed."""
        self._sessions.release(session_id)

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
        return self._commit.problem

    @property
    def failures(self) -> int:
        """How many times the store did not take a batch."""
        return self._commit.failures

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
            self._showing.flush(stream, run)  # which a step that is tried again takes back as a whole
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
        self._commit.stir()
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
        self._showing.emit(self._streams[run.session_id], run, kind, step, text, call_id)

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
        self._commit.hurry()
        await waiter

    async def secured(self, session_id: str) -> None:
        """See `Recorder.secured`."""
        if self._sealed:  # what waits for it must not happen
            await self._loop.create_future()
        stream = self._streams[session_id]
        seq = stream.recorded
        while stream.stored < seq and self.problem is None and session_id not in self._waiting.damaged:
            waiter = self._loop.create_future()
            stream.waiters.append((seq, waiter))
            await self._commit.follow(waiter)

    async def write(self, write: Write, timeout_s: float | None = TAKE_S) -> None:
        """Store a row that is no event, masked and cleaned as events are; returns after the commit. Raises `ValueError`
        when it cannot be stored, `Unavailable` when too much waits already, or when it takes too long: then it is
        stored all the same when the store is back. `timeout_s` None is for those who are few: they wait however long
        that takes."""
        if timeout_s is not None:
            self.need_room()
        row = Row(replace(write, values=clean_row(self._masker.value(write.values))), self._loop.create_future())
        self._waiting.add(row)
        self._commit.hurry()
        await _taken(row.done, timeout_s)

    async def write_aside(self, write: Write, within_s: float) -> None:
        """Carry out upkeep of the store in a transaction of its own, when nothing else is to be written, or before the
        next facts after `within_s`. Returns after the commit; raises `ValueError` when it cannot be done."""
        row = Row(write, self._loop.create_future(), self._loop.time() + within_s)
        self._waiting.add_upkeep(row)
        self._commit.look()
        await row.done

    async def flush(self, timeout_s: float | None = None, *, of: str | None = None) -> None:
        """Wait until everything that was recorded before is stored. Raises `Unavailable` when that takes too long;
        it is stored all the same when the store is back; and with `timeout_s`, which is somebody who wants to be sure
        of what was recorded, also after `seal`. Sessions for which the store is damaged are not waited for; who needs
        what was recorded `of` one is told that it was not stored."""
        if self._sealed and timeout_s is not None:
            raise _stopping()
        if self._commit.at_work:
            await _taken(asyncio.shield(self._commit.marker()), timeout_s)
        if of is not None:
            self.need_whole(of)
            stream = self._streams.get(of)
            if stream is not None and stream.refused is not None:
                raise Unavailable(f"the store did not take this: {stream.refused}", code="not_stored", retry_after_s=60)

    async def settle(self) -> None:
        """For a reader: let what was recorded before reach the store, but not for long. While the store takes nothing,
        what it has is the truth that anybody may be told."""
        if not self._sealed:
            await self._commit.settle()

    async def room(self, session_id: str, *, taken_up: bool = False) -> None:
        """See `Recorder.room`."""
        if taken_up and self._held is not None:
            if self._passes:
                self._passes -= 1
            else:
                waiter = self._loop.create_future()
                self._held.append(waiter)
                await waiter
        await self._waiting.room(session_id)

    def hold(self, seconds: float) -> None:
        """Steps of what was taken up begin one by one with `let_pass`, until `let_go`, or for so long."""
        self._held = deque()
        self._loop.call_later(seconds, self.let_go)

    def let_pass(self) -> None:
        """One step more may begin: the one that has waited longest, else the next."""
        if self._held is None:
            return
        while self._held:
            waiter = self._held.popleft()
            if not waiter.done():
                settle(waiter, None)
                return
        self._passes += 1

    def let_go(self) -> None:
        """Steps begin as they come again."""
        held, self._held, self._passes = self._held, None, 0
        for waiter in held or ():
            settle(waiter, None)

    def pause(self) -> None:
        """No step begins any more."""
        self._waiting.pause()

    def seal(self) -> None:
        """Nothing is recorded or shown any more: another process goes on from here."""
        self._sealed = True

    def give_up(self) -> None:
        """The service ends before the store was back: whoever waits is told so, and need not be waited for."""
        for item in (*self._commit.with_writer, *self._waiting.queue):
            if not isinstance(item, Event):
                settle(item.done if isinstance(item, Row) else item, _stopping())

    # ── what is stored ──────────────────────────────────────────────────────────────────────────────────────────

    def _broken(self, session_id: str) -> None:
        """The store is damaged where a session is kept."""
        self._showing.break_off(self._streams[session_id])

    def _publish(self, batch: Sequence[Item], rejected: Sequence[Rejected]) -> None:
        """Show a committed batch in order, tell who waited, and account for it."""
        answers = sorted_out(rejected)
        groups: dict[str, list[Event]] = {}
        shown: list[Event] = []
        for item in batch:
            if isinstance(item, Event):
                stream = self._streams[item.session_id]
                self._waiting.gone(item)
                event = answers.replaced.get(id(item), item)
                if item.seq:
                    stream.stored, stream.refused = item.seq, answers.dropped.get(id(item))
                group = groups.setdefault(item.session_id, [])
                if id(item) not in answers.dropped:
                    group.append(event)
                    shown.append(event)
            elif isinstance(item, Row):
                self._waiting.gone(item)
                settle(item.done, answers.refused.get(id(item.write)))
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
            self._streams[session_id].wake()
        self._waiting.make_room()

    async def close(self) -> None:
        """Store what is left, then end the writer's thread; the last call. One that is cancelled gives up what is left,
        and says so."""
        try:
            await self.flush()
        finally:
            left = self._waiting.facts()
            if left or self._commit.busy:
                reason = self.problem or self.damage or "the store did not answer in time"
                log.error("%d facts or more that nobody was told are lost: %s", left, reason)
            await self._commit.close()


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
