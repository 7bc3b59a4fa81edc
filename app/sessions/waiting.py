"""What waits for the writer: facts, rows and marks in order, upkeep beside them, and what a damaged store keeps out.

Knows neither the writer nor who is told: the journal takes batches from here and says what became of them.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping

from app.agent.events import Event, Write

DAMAGED_PART = 4  # what sessions that cannot be stored may take of the room that all the others have
EVENT_BYTES = 2048  # what an event that waits takes beside its text: objects, names, a payload that was read


class Row:
    """A write that is no event, and who waits for it. `due`: when it does not wait for others any more."""

    __slots__ = ("done", "due", "write")

    def __init__(self, write: Write, done: asyncio.Future[None], due: float = 0.0) -> None:
        self.write = write
        self.done = done
        self.due = due


Mark = asyncio.Future[None]
"""Somebody waits for what was recorded before it."""

Item = Event | Row | Mark


class _Share:
    """What waits of one session."""

    __slots__ = ("bytes", "count")

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0


class Waiting:
    """All that is not stored yet, also what the writer has at the moment. `max_bytes`: beyond, runs pause."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_bytes: int) -> None:
        self._loop = loop
        self._max_bytes = max_bytes
        self.queue: list[Item] = []
        self.upkeep: deque[Row] = deque()
        self._shares: dict[str, _Share] = {}
        self._bytes = 0  # but for that of damaged sessions
        self._damaged_bytes = 0
        self._damaged: dict[str, str] = {}  # sessions whose place in the store is broken, and the reason
        self._held: dict[str, list[Event]] = {}  # what waits of them until it is tried again, in order
        self._paused = False
        self._room: list[Mark] = []
        self._damaged_room: list[Mark] = []

    @property
    def bytes(self) -> int:
        """About what all of it takes in memory."""
        return self._bytes + self._damaged_bytes

    @property
    def full(self) -> bool:
        """Whether too much waits already, but for what sessions that cannot be stored have."""
        return self._bytes > self._max_bytes

    @property
    def damaged_full(self) -> bool:
        """Whether too much waits of sessions that cannot be stored."""
        return self._damaged_bytes * DAMAGED_PART > self._max_bytes

    @property
    def damaged(self) -> Mapping[str, str]:
        """The sessions for which the store is damaged, and the reason; the first comes first."""
        return self._damaged

    def has(self, session_id: str) -> bool:
        """Whether an event of that session waits."""
        return session_id in self._shares

    def facts(self) -> int:
        """How many events and rows wait for their turn or for a mended store."""
        return sum(not isinstance(item, asyncio.Future) for item in self.queue) + sum(map(len, self._held.values()))

    # ── coming and going ────────────────────────────────────────────────────────────────────────────────────────

    def add(self, item: Event | Row) -> None:
        """It comes after all that is there."""
        self._account(item, 1)
        self.queue.append(item)

    def add_upkeep(self, row: Row) -> None:
        """It comes when nothing else is there, or when it is due."""
        self._account(row, 1)
        self.upkeep.append(row)

    def mark(self) -> Mark:
        """Done when everything that is there is stored. One for all who ask meanwhile: clients that ask again and again
        while the store is away must not fill the queue."""
        last = self.queue[-1] if self.queue else None
        if isinstance(last, asyncio.Future) and not last.done():
            return last
        mark = self._loop.create_future()
        self.queue.append(mark)
        return mark

    def take(self, most: int) -> list[Item]:
        """The next batch; what comes after something that could not be stored of its session waits with that."""
        batch, self.queue = self.queue[:most], self.queue[most:]
        return [item for item in batch if not self._hold(item)] if self._held else batch

    def take_upkeep(self) -> Row | None:
        """The next upkeep, if it is its turn."""
        while self.upkeep and self.upkeep[0].done.done():
            self.gone(self.upkeep.popleft())  # whoever wanted it went away
        if not self.upkeep or (self.queue and self.upkeep[0].due > self._loop.time()):
            return None
        return self.upkeep.popleft()

    def gone(self, item: Event | Row) -> None:
        """Something that was taken waits no longer."""
        self._account(item, -1)

    def _account(self, item: Event | Row, sign: int) -> None:
        size = sign * _cost(item)
        if isinstance(item, Row):
            self._bytes += size
            return
        share = self._shares.get(item.session_id)
        if share is None:
            share = self._shares[item.session_id] = _Share()
        share.count += sign
        share.bytes += size
        if not share.count:
            del self._shares[item.session_id]
        if item.session_id in self._damaged:
            self._damaged_bytes += size
        else:
            self._bytes += size

    # ── a store that is broken in places ────────────────────────────────────────────────────────────────────────

    def put_aside(self, batch: list[Item], broken: Mapping[str, str]) -> list[Item]:
        """Hold what a batch has of sessions that cannot be stored, and count it apart; the rest of the batch."""
        new = broken.keys() - self._damaged.keys()
        for session_id in new:
            share = self._shares[session_id]
            self._bytes -= share.bytes
            self._damaged_bytes += share.bytes
        self._damaged.update(broken)
        if new:
            batch, self.queue = list(self._without_texts(batch)), list(self._without_texts(self.queue))
        for session_id in broken:
            self._held.setdefault(session_id, [])
        return [item for item in batch if not self._hold(item)]

    @property
    def holds(self) -> bool:
        """Whether something is held until it is tried again."""
        return bool(self._held)

    def release(self) -> None:
        """What is held comes before everything else."""
        held, self._held = self._held, {}
        self.queue[:0] = [event for events in held.values() for event in events]

    def mended(self, session_id: str) -> None:
        """Something of a session was stored: it is one like all others."""
        if self._damaged.pop(session_id, None) is None:
            return
        size = self._shares[session_id].bytes
        self._damaged_bytes -= size
        self._bytes += size
        self._damaged_room = _settle_all(self._damaged_room)

    def _hold(self, item: Item) -> bool:
        if not isinstance(item, Event) or item.session_id not in self._held:
            return False
        self._held[item.session_id].append(item)
        return True

    def _without_texts(self, items: list[Item]) -> Iterator[Item]:
        """Drop the pieces of texts of damaged sessions: whoever reads has the whole once it is stored, and until then
        they would take room without end."""
        for item in items:
            if isinstance(item, Event) and not item.seq and item.session_id in self._damaged:
                self.gone(item)
            else:
                yield item

    # ── room ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def room(self, session_id: str) -> None:
        """See `Recorder.room`. Sessions for which the store is damaged have a smaller room of their own."""
        while True:
            damaged = session_id in self._damaged
            full = self.damaged_full if damaged else self.full
            if not (full or self._paused):
                return
            waiter = self._loop.create_future()
            (self._damaged_room if damaged else self._room).append(waiter)
            await waiter

    def pause(self) -> None:
        """There is no room for anybody any more."""
        self._paused = True

    def make_room(self) -> None:
        """Let those go on who wait for room, once there is enough of it."""
        if self._room and self._bytes <= self._max_bytes // 2:
            self._room = _settle_all(self._room)


def settle(waiter: Mark, error: Exception | None) -> None:
    """Tell whoever waits, if anybody does."""
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)


def _settle_all(waiters: list[Mark]) -> list[Mark]:
    for waiter in waiters:
        settle(waiter, None)
    return []


def _cost(item: Event | Row) -> int:
    """About what it takes in memory while it waits to be written. An event has its text twice: as it is sent, and as
    it was read."""
    if isinstance(item, Row):
        return EVENT_BYTES + _text_bytes(item.write)
    size = EVENT_BYTES + 2 * len(item.data) + len(item.envelope)
    return size + sum(map(_text_bytes, item.also)) if item.also else size


def _text_bytes(write: Write) -> int:
    return sum(len(value) for value in write.values.values() if isinstance(value, str | bytes))
