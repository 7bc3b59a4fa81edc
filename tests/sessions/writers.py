"""A journal on a real database file whose writer can be stopped or made to fail, and a bus that checks the promise."""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from app.agent import faults
from app.agent.events import Event, Write
from app.agent.runs import Run, Session
from app.bus.memory import MAX_BYTES, MemoryBus
from app.masking import ValueMasker
from app.sessions.journal import Journal
from app.sessions.ports import EventWriter, Rejected, TransientStoreError
from app.sessions.rejecting import replacement
from app.store.database import Database
from app.store.events import SqlEventLog
from tests.migrated import migrated
from tests.store.facts import Facts
from tests.world import WAIT_S


class Unreliable:
    """Wraps the real writer. `before`: so many calls fail with nothing stored; `after`: so many commits are done and
    then their answer is lost; `gate`: closed, it keeps the writer's thread waiting."""

    def __init__(self, real: EventWriter) -> None:
        self.real = real
        self.before = 0
        self.after = 0
        self.batches: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def lose(self) -> None:
        """At the fault point behind a commit: its answer is lost."""
        if self.after:
            self.after -= 1
            raise TransientStoreError("the connection was lost")

    def write(self, batch: Sequence[Event], writes: Sequence[Write] = ()) -> Sequence[Rejected]:
        """See `EventWriter.write`."""
        assert self.gate.wait(WAIT_S), "nobody opened the gate"
        if self.before:
            self.before -= 1
            raise TransientStoreError("the disk is full")
        rejected = self.real.write(batch, writes)
        self.batches.append(len(batch))
        return rejected

    def rest(self) -> float | None:
        """See `EventWriter.rest`."""
        return self.real.rest()

    def close(self) -> None:
        """See `EventWriter.close`."""
        self.real.close()


class Wrapped:
    """Makes the writer of a world unreliable and keeps it at hand."""

    writer: Unreliable

    def __call__(self, real: EventWriter) -> EventWriter:
        self.writer = Unreliable(real)
        return self.writer


class Witness(MemoryBus):
    """A bus that looks into the database file at the moment of publishing: what is shown must stand there."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._file = sqlite3.connect(path)
        self.shown: dict[str, list[Event]] = {}
        self.too_early: list[Event] = []

    def publish(self, session_id: str, events: Sequence[Event]) -> None:
        """Check, then show."""
        for event in events:
            wanted = "SELECT data FROM events WHERE session_id = ? AND seq = ? AND type = ?"
            if event.seq and self._file.execute(wanted, (session_id, event.seq, event.type)).fetchone() is None:
                self.too_early.append(event)
        self.shown.setdefault(session_id, []).extend(events)
        super().publish(session_id, events)

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


class Room:
    """A journal with everything around it. `sessions` are made by `begin`."""

    def __init__(self, database: Database, bus: Witness, writer: Unreliable, **options: Any) -> None:
        self.database = database
        self.bus = bus
        self.writer = writer
        self.log = SqlEventLog(database.reader)
        self.journal = Journal(writer, bus, self.log, **{"masker": ValueMasker(), **options})

    def begin(self, tenant: str = "default") -> "Talk":
        """A new session with its first event and one run."""
        return Talk(self, Facts(tenant))

    async def stored(self, session: Session) -> list[tuple[int, str]]:
        """Numbers and types of what the log holds."""
        page = await self.log.page(session.tenant, session.id, after=0, limit=10_000)
        return [(event.seq, event.type) for event in page]


class Talk:
    """What one session has to say, and what it has said so far (`said`: numbers of facts, texts of deltas)."""

    def __init__(self, room: Room, facts: Facts) -> None:
        self.room = room
        self.facts = facts
        self.session = facts.session
        self.said: list[int | str] = []
        self.steps: dict[str, int] = {}  # of each text
        room.journal.create(self.session.tenant, self.session.id)
        self.run: Run = facts.run()
        self._record(facts.created())
        self._record(facts.queued(self.run))

    def _record(self, made: Event) -> Event:
        """Let the journal record what the fact maker made up: kind and payload are the same."""
        kind: Any = next(k for k in _kinds() if k.name == made.type)
        scope = made.run or self.session
        event = self.room.journal.record(scope, kind, made.payload, step=made.step, also=made.also)
        self.said.append(event.seq)
        return event

    def record(self, make: Callable[[Facts, Run], Event] | None = None) -> Event:
        """State one fact."""
        return self._record(self.facts.waiting(self.run) if make is None else make(self.facts, self.run))

    def emit(self, text: str, step: int = 1) -> None:
        """Say a piece of text."""
        self.said.append(text)
        self.steps[text] = step
        self.room.journal.emit(self.run, _kind("text.delta"), step, text)

    @property
    def shown(self) -> list[int | str]:
        """What was published, in the form of `said`."""
        return [e.seq or e.payload["text"] for e in self.room.bus.shown.get(self.session.id, ())]


def _kinds() -> list[Any]:
    from app.agent.events import KINDS

    return list(KINDS.values())


def _kind(name: str) -> Any:
    return next(kind for kind in _kinds() if kind.name == name)


@contextlib.asynccontextmanager
async def writing(folder: Path, *, buffer_bytes: int = MAX_BYTES, **options: Any) -> AsyncIterator[Room]:
    """A room in a folder; a second one in the same folder goes on with the same database."""
    path = folder / "journal.db"
    migrated(path)
    database = Database(path, synchronous="OFF")
    await database.open()
    bus = Witness(path, buffer_bytes)
    room = Room(database, bus, Unreliable(database.writer(replacement)), **options)
    faults.arm("store.committed", room.writer.lose)
    try:
        yield room
    finally:
        room.writer.gate.set()
        async with asyncio.timeout(WAIT_S):
            await room.journal.close()
        faults.disarm()
        bus.close()
        await database.close()
    assert bus.too_early == []
