"""The one writer: events, their rows and lone rows, in one transaction for each batch (spec 12.3, 12.5).

Runs in the journal's writer thread on its own synchronous connection. Knows neither the queue nor the bus.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from app.agent import faults
from app.agent.events import Event, Write
from app.sessions.ports import Rejected, Replace, TransientStoreError
from app.store.chain import START, Head, Heads, digest, is_seal, link, seal
from app.store.failures import Unreadable, is_damage, is_transient, reason, transient
from app.store.guard import Guard
from app.store.projection import Key, Projection, Row, blank_session, erases
from app.store.pruning import prune
from app.store.scrubbing import Scrubber
from app.store.statements import has_write, is_stored, load_head, store_rows, store_write

log = logging.getLogger(__name__)

T = TypeVar("T")

HEADS = 2_000  # sessions whose head is remembered: about 0.6 MB


class OutOfOrder(ValueError):
    """An event's number does not follow its session's last one in the store."""


class SqlWriter:
    """`EventWriter` over SQLAlchemy Core. `connect` opens a connection and is called in the writer thread;
    `replace` builds the `error` event that takes the place of one that cannot be stored; `audit_key` signs heads;
    `guard` breaks off what is never answered."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        replace: Replace,
        *,
        audit_key: bytes | None = None,
        heads: int = HEADS,
        guard: Guard | None = None,
    ) -> None:
        self._connect = connect
        self._guard = guard
        self._replace = replace
        self._audit_key = audit_key
        self._heads = Heads(heads)
        self._connection: Connection | None = None
        self._scrubber = Scrubber()
        self._staged: dict[Key, Head] = {}  # heads that the open transaction leads to
        # Of the batch that is not answered yet, and comes again as a whole until it is:
        self._doubtful = False  # some of it may be in the store already
        self._stand_ins: dict[tuple[Key, int], tuple[str, Event]] = {}  # why, and what takes the place of an event

    def write(self, batch: Sequence[Event], writes: Sequence[Write] = ()) -> Sequence[Rejected]:
        """See `EventWriter.write`."""
        rejected = self._store(batch, writes)
        self._doubtful = False
        self._stand_ins.clear()
        return rejected

    def _store(self, batch: Sequence[Event], writes: Sequence[Write]) -> Sequence[Rejected]:
        """The whole batch at once; row by row when one of them is bad; session by session in a broken store."""
        try:
            try:
                self._transaction(partial(self._store_all, batch, writes))
            except TransientStoreError:
                raise
            except Exception:  # noqa: BLE001  border: whatever one row does to the database must not cost its batch
                return self._transaction(partial(self._store_singly, batch, writes), last=True)
        except TransientStoreError as error:
            if not is_damage(error.__cause__):
                raise
            return self._store_where_it_can_be(batch, writes)
        return ()

    def rest(self) -> float | None:
        """See `EventWriter.rest`."""
        return None if self._connection is None else self._scrubber.rest(self._connection)

    def close(self) -> None:
        """See `EventWriter.close`."""
        self._drop()
        if self._guard is not None:
            self._guard.close()

    def _transaction(self, work: Callable[[Connection], T], *, last: bool = False) -> T:
        """Do `work` and commit. Raises `TransientStoreError` for errors that pass, and for all when this is the
        `last` way to store the batch: then nothing can be stored now."""
        committing = False
        try:
            connection = self._connection = self._connection or self._connect()
            self._staged = {}
            watching = nullcontext() if self._guard is None else self._guard.watching(connection)
            with watching, connection.begin() as transaction:
                result = work(connection)
                faults.hit("store.commit")
                committing = True
                transaction.commit()
            faults.hit("store.committed")
        except Exception as problem:  # border to the database: sorted into what passes and what a row has done
            self._heads.forget()
            self._doubtful |= committing  # it does not say whether it happened
            if last or is_transient(problem):
                self._drop()
                raise transient(problem, "the store takes no writes at the moment") from problem
            raise
        self._heads.keep(self._staged)
        self._scrubber.after(connection)
        return result

    def _drop(self) -> None:
        """Give the connection up; the next batch opens another. A lost one must not raise again here."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Exception:  # noqa: BLE001  border: the connection is thrown away
                connection.invalidate()

    # ── all at once ─────────────────────────────────────────────────────────────────────────────────────────────

    def _store_all(self, batch: Sequence[Event], writes: Sequence[Write], connection: Connection) -> None:
        if batch:
            self._store_events(connection, batch)
        for write in writes:
            self._store_lone(connection, write)

    def _store_events(self, connection: Connection, batch: Sequence[Event]) -> None:
        for part in _parts(batch):
            self._store_part(connection, part)

    def _store_part(self, connection: Connection, batch: Sequence[Event]) -> None:
        rows = Projection()
        event_rows: list[Row] = []
        heads: dict[Key, Head] = {}
        also: list[Write] = []
        for event in batch:
            key = (event.tenant, event.session_id)
            head = heads.get(key) or self._head(connection, key, event)
            data_digest = digest(event.data)
            if event.seq != head.next_seq:
                self._refuse_unless_stored(connection, event, head, data_digest)
                continue
            event_hash = link(head.hash, event.envelope, data_digest)
            heads[key] = Head(event.seq + 1, event_hash, head.sealed)
            event_rows.append(_event_row(event, data_digest, event_hash))
            rows.add(event)
            if event.seq == 1 and key not in rows.sessions:
                rows.sessions[key] = blank_session(event)
            also.extend(event.also)
        for (tenant, session_id), head in heads.items():
            rows.change_session(tenant, session_id, self._head_columns(head))
        store_rows(connection, rows, event_rows)
        if rows.erased:
            self._scrubber.mark()
        for write in also:
            store_write(connection, write)
        self._staged.update(heads)

    def _head(self, connection: Connection, key: Key, event: Event) -> Head:
        head = self._staged.get(key) or self._heads.get(key)
        if head is None and (event.seq > 1 or self._doubtful):
            head = self._stored_head(connection, key)
        return head or START

    def _stored_head(self, connection: Connection, key: Key) -> Head | None:
        """Where a session goes on by its row; None for an unknown one."""
        found = load_head(connection, key)
        if found is None:
            return None
        next_seq, last_hash, mac = found
        if not (isinstance(next_seq, int) and next_seq > 0 and isinstance(last_hash, bytes)):
            raise Unreadable(f"the row of session {key[1]} does not say where its log ends")
        head = Head(next_seq, last_hash)
        if self._audit_key is None:
            if mac is not None:
                log.error("the head of session %s has a seal and gets none from here on: no audit.key is set", key[1])
            return head
        if is_seal(mac, seal(self._audit_key, head)):
            return head
        log.error("the head of session %s has no seal of this audit.key, and gets none from here on", key[1])
        return head._replace(sealed=False)

    def _head_columns(self, head: Head) -> Row:
        mac = seal(self._audit_key, head) if self._audit_key and head.sealed else None
        return {"next_seq": head.next_seq, "head_hash": head.hash, "head_mac": mac}

    def _refuse_unless_stored(self, connection: Connection, event: Event, head: Head, data_digest: bytes) -> None:
        """A batch that comes again after a lost commit is in the log already; anything else is a second writer."""
        key = (event.tenant, event.session_id)
        if not is_stored(connection, key, event.seq, event.envelope, data_digest):
            raise OutOfOrder(
                f"event {event.seq} ({event.type}) of session {event.session_id} does not follow event "
                f"{head.next_seq - 1} in the store: another process writes to this session"
            )

    def _store_lone(self, connection: Connection, write: Write) -> None:
        if write.table == "checkpoints":
            prune(connection, write.values, self._audit_key)
            self._scrubber.mark()
            return
        if write.table == "text_index" and "forget" in write.values:
            self._scrubber.mark()  # texts were kept until the index had forgotten them
        if self._doubtful and not write.key and has_write(connection, write):
            return  # from an earlier try
        store_write(connection, write)

    # ── a store that is broken in places ────────────────────────────────────────────────────────────────────────

    def _store_where_it_can_be(self, batch: Sequence[Event], writes: Sequence[Write]) -> Sequence[Rejected]:
        """Session by session: one whose place is broken must not keep the others. In a transaction for each, since none
        that has met damage can be committed."""
        sessions: dict[Key, list[Event]] = {}
        for event in batch:
            sessions.setdefault((event.tenant, event.session_id), []).append(event)
        rejected: list[Rejected] = []
        for events in sessions.values():
            found = self._beside_damage(partial(self._store_singly, events, ()))
            if isinstance(found, str):
                found = [Rejected(reason=found, event=event, damaged=True) for event in events]
            rejected += found
        for write in writes:
            found = self._beside_damage(partial(self._store_singly, (), [write]))
            rejected += [Rejected(reason=found, write=write, damaged=True)] if isinstance(found, str) else found
        return rejected

    def _beside_damage(self, work: Callable[[Connection], Sequence[Rejected]]) -> Sequence[Rejected] | str:
        """Do `work` and commit; the reason when the store is broken where it belongs. Raises `TransientStoreError`."""
        try:
            return self._transaction(work, last=True)
        except TransientStoreError as error:
            if is_damage(error.__cause__):
                return error.message
            self._doubtful = True  # what came before it is stored
            raise

    # ── row by row ──────────────────────────────────────────────────────────────────────────────────────────────

    def _store_singly(
        self, batch: Sequence[Event], writes: Sequence[Write], connection: Connection
    ) -> Sequence[Rejected]:
        rejected: list[Rejected] = []
        for event in batch:
            found = self._store_one(connection, event)
            if found is not None:
                rejected.append(found)
        for write in writes:
            problem = self._attempt(connection, partial(self._store_lone, connection, write))
            if problem is not None:
                rejected.append(Rejected(reason=reason(problem), write=write))
        return rejected

    def _store_one(self, connection: Connection, event: Event) -> Rejected | None:
        """Store an event, or what takes its place."""
        key = (event.tenant, event.session_id)
        if key not in self._staged and (head := self._stored_head(connection, key)) is not None:
            self._staged[key] = head  # also of a session that seems to be new
        place = (key, event.seq)
        found = self._stand_ins.get(place)  # of an earlier try, which may have been committed
        if found is None:
            problem = self._attempt(connection, partial(self._store_events, connection, [event]))
            if problem is None:
                return None
            if isinstance(problem, OutOfOrder):
                return Rejected(reason=str(problem), event=event)
            found = self._stand_ins[place] = reason(problem), self._replace(event, reason(problem))
        why, stand_in = found
        with connection.begin_nested():
            self._store_events(connection, [stand_in])
        return Rejected(reason=why, event=event, replacement=stand_in)

    def _attempt(self, connection: Connection, work: Callable[[], None]) -> Exception | None:
        """Do `work` in a savepoint; what it did is undone when it fails. Errors that pass are raised."""
        try:
            with connection.begin_nested():
                work()
        except Exception as problem:  # border: a bad row can fail in the projection, the driver or the database
            if is_transient(problem):
                raise
            return problem
        return None


def _parts(batch: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """The batch, cut behind each event that erases a session: whether others use its memories is looked up in the
    tables, where nothing may stand that comes later."""
    begin = 0
    for end, event in enumerate(batch, 1):
        if erases(event):
            yield batch[begin:end]
            begin = end
    if begin < len(batch):
        yield batch[begin:]


def _event_row(event: Event, data_digest: bytes, event_hash: bytes) -> Row:
    return {
        "tenant_id": event.tenant,
        "session_id": event.session_id,
        "seq": event.seq,
        "type": event.type,
        "run_id": event.run.id if event.run is not None else None,
        "ts": event.ts,
        "envelope": event.envelope,
        "data": event.data,
        "data_digest": data_digest,
        "hash": event_hash,
    }
