"""Recomputes the chains of the log from what stands in the tables (`ChainStore`).

Synchronous, on a connection of its own that can only read, with raw rows: what is damaged must not fail before it is
named. A page is one short statement, so that neither memory nor a transaction grows with a session.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, except_, exists, func, select, tuple_, union

from app.sessions.verifying import BEGINNING, Checked, Flaw, Place
from app.store import as_stored
from app.store.as_stored import UNREADABLE, Damaged, number_of, shown
from app.store.chain import Checkpoint, Head, is_seal, seal, seal_checkpoint
from app.store.comparing import compare
from app.store.links import GONE, UNDELETED, UNEXPLAINED, Row, problem_of, says_deleted
from app.store.reader import can_be_stored
from app.store.tables import checkpoints, decisions, events, messages, sessions, tenants

PAGE = 500  # events of one statement
_SESSIONS = 500

_tenant: Any = bindparam("tenant")
_session: Any = bindparam("session")
_limit: Any = bindparam("limit")


def _lowest(*conditions: Any) -> Any:
    """The first event of a session that satisfies conditions: one probe of an index."""
    mine = select(func.min(events.c.seq)).where(
        events.c.tenant_id == sessions.c.tenant_id, events.c.session_id == sessions.c.id, *conditions
    )
    return mine.correlate(sessions).scalar_subquery()


_heads = select(
    *(sessions.c[name] for name in ("tenant_id", "id", "next_seq", "head_hash", "head_mac", "erased_at", "closed_seq")),
    _lowest(),
    _lowest(events.c.seq >= sessions.c.next_seq),
)
_one = _heads.where(sessions.c.tenant_id == _tenant, sessions.c.id == _session)
# From a session on, this one too: those are left out that were seen. There may be ids that no parameter is like.
_in_order = _heads.order_by(sessions.c.tenant_id, sessions.c.id).limit(_limit).offset(bindparam("seen"))
_of_all = _in_order.where(tuple_(sessions.c.tenant_id, sessions.c.id) >= tuple_(_tenant, _session))
_of_tenant = _in_order.where(sessions.c.tenant_id == _tenant, sessions.c.id >= _session)
_page = (
    select(*(events.c[name] for name in ("seq", "type", "run_id", "ts", "envelope", "data", "data_digest", "hash")))
    .where(events.c.tenant_id == _tenant, events.c.session_id == _session)
    .where(events.c.seq > bindparam("after"), events.c.seq <= bindparam("upto"))
    .order_by(events.c.seq)
    .limit(_limit)
)
_point = select(*(checkpoints.c[name] for name in (*Checkpoint._fields, "mac"))).where(
    checkpoints.c.tenant_id == _tenant, checkpoints.c.session_id == _session
)
_before_point = (
    select(events.c.seq)
    .where(events.c.tenant_id == _tenant, events.c.session_id == _session, events.c.seq <= bindparam("upto"))
    .order_by(events.c.seq)
    .limit(1)
)
_with_data = (
    select(events.c.seq, events.c.type, events.c.data)
    .where(events.c.tenant_id == _tenant, events.c.session_id == _session, events.c.data.is_not(None))
    .order_by(events.c.seq)
    .limit(1)
)
_IN_FRONT = "it stands before the checkpoint, event {}: one was changed"
_ROWS = (messages, decisions)


def _owners(*tables: Any) -> Any:
    """Whose the rows of tables are, though there is no such session: one look through an index of each."""
    pairs = [select(table.c.tenant_id, table.c.session_id) for table in tables]
    found = union(*pairs).subquery()
    return except_(select(*found.c), select(sessions.c.tenant_id, sessions.c.id))


_of_nobody, _rows_of_nobody = _owners(events), _owners(events, *_ROWS)
_what_there_is = select(
    *(exists().where(table.c.tenant_id == _tenant, table.c.session_id == _session) for table in (events, *_ROWS))
)
_known = select(
    *(exists().where(table.c.tenant_id == _tenant) for table in (tenants, sessions, checkpoints, events, *_ROWS))
)


class SessionHead(NamedTuple):
    """The row of a session as it stands, and of its events at the same moment the number of the first one and of the
    first one behind the head. Nothing is trusted to be what it should."""

    tenant: Any
    session_id: Any
    next_seq: Any
    hash: Any
    mac: Any
    erased_at: Any
    closed_seq: Any
    first: Any
    behind: Any


class SqlChainStore:
    """`ChainStore`. `connect` opens a connection that can only read; `key` is `audit.key`."""

    def __init__(self, connect: Callable[[], Connection], key: bytes | None) -> None:
        self._connect = connect
        self._key = key

    def check(
        self, tenant: str, session_id: str, place: Place, *, limit: int, seconds: float, stop: threading.Event
    ) -> Checked | None:
        """See `ChainStore.check`."""
        if not can_be_stored(session_id):
            return None
        enough = partial(_enough, stop, time.monotonic() + seconds)
        with closing(self._connect()) as connection:
            return Chains(connection, self._key).check(tenant, session_id, place, limit, enough)


def _enough(stop: threading.Event, until: float) -> bool:
    return stop.is_set() or time.monotonic() > until


def _never() -> bool:
    return False


class Chains:
    """The chains of one database, over one connection; `key` None: seals are not looked at."""

    def __init__(self, connection: Connection, key: bytes | None) -> None:
        self._connection = connection
        self._key = key

    def check(
        self,
        tenant: str,
        session_id: str,
        place: Place = BEGINNING,
        limit: int | None = None,
        enough: Callable[[], bool] = _never,
    ) -> Checked | None:
        """One session, at most `limit` events of it and until `enough`; None: there is no such session."""
        head = self._head(tenant, session_id)
        return None if head is None else self._check(head, place, limit, enough)

    def all(
        self,
        tenant: str | None = None,
        by: Callable[[Sequence[SessionHead]], Iterable[Checked]] | None = None,
        *,
        rows: bool = False,
    ) -> Iterator[tuple[str, str, Checked]]:
        """Every session, of a tenant or of all: (tenant, session, what was found). Deleted ones, too; at the end those
        that have events, with `rows` also messages or decisions, and no row of their own. `by` verifies a list of
        sessions, in their order; None: `checked`. Raises `Damaged` when sessions cannot even be listed."""
        place, seen = (tenant or "", ""), 0
        while True:
            asked = {"tenant": place[0], "session": place[1], "limit": _SESSIONS, "seen": seen}
            heads = [SessionHead(*row) for row in self._rows(_of_all if tenant is None else _of_tenant, asked)]
            found = by(heads) if by is not None else self.checked(heads, rows=rows)
            for head, checked in zip(heads, found, strict=True):
                yield _name(head.tenant), _name(head.session_id), checked
            if len(heads) < _SESSIONS:
                break
            seen += len(heads)
            for number, head in enumerate(heads):
                if _can_be_asked_for(head):
                    place, seen = (head.tenant, head.session_id), len(heads) - number
        for owner, session_id in self._rows(_rows_of_nobody if rows else _of_nobody, {}):
            if tenant is None or owner == tenant:
                flaw = _flaw(1, self._without_session(owner, session_id))
                empty = Checked(place=BEGINNING, head=0, head_hash=b"", flaw=flaw, complete=True)
                yield _name(owner), _name(session_id), empty

    def knows(self, tenant: str) -> bool:
        """Whether there is anything of a tenant."""
        return any(*self._rows(_known, {"tenant": tenant}))

    def _without_session(self, tenant: Any, session_id: Any) -> str:
        (there,) = self._rows(_what_there_is, {"tenant": tenant, "session": session_id})
        if there[0]:
            return "there are events, but the row of their session is missing"
        names = " and ".join(table.name for table, some in zip(_ROWS, there[1:], strict=True) if some)
        return f"there are rows in {names or 'its name'}, but tenant {shown(tenant)} has no such session"

    def checked(self, heads: Sequence[SessionHead], *, rows: bool = False) -> Iterator[Checked]:
        """What was found of sessions, one after the other; with `rows` messages and decisions are compared as well."""
        for head in heads:
            found = self._check(head, BEGINNING)
            yield self.with_rows(head.tenant, head.session_id, found) if rows else found

    def with_rows(self, tenant: str, session_id: str, checked: Checked) -> Checked:
        """The same, once messages and decisions of a sound chain were compared with it."""
        if checked.flaw is not None or not checked.complete:
            return checked
        try:
            return replace(checked, flaw=compare(self._connection, tenant, session_id))
        except Damaged as problem:
            told = f"the log is sound, and rows that are made of it cannot be read: {problem.message}"
            return replace(checked, flaw=_flaw(checked.removed + 1, told))

    def _head(self, tenant: str, session_id: str) -> SessionHead | None:
        found = list(self._rows(_one, {"tenant": tenant, "session": session_id}))
        return SessionHead(*found[0]) if found else None

    def _rows(self, statement: Any, parameters: dict[str, Any]) -> Iterator[Any]:
        return as_stored.rows(self._connection, statement, parameters)

    def _check(
        self, head: SessionHead, place: Place, limit: int | None = None, enough: Callable[[], bool] = _never
    ) -> Checked:
        """Pages behind `place`. The head was read first: what is added meanwhile lies beyond it."""
        if (problem := _problem_of(head)) is not None:
            return Checked(place=place, head=0, head_hash=b"", flaw=_flaw(1, problem), complete=True)
        place, removed, flaw = self._begin(head, place)
        if flaw is not None:
            return _checked(head, place, flaw, removed=removed)
        start = place.seq
        while place.seq < head.next_seq - 1:
            count = PAGE if limit is None else min(PAGE, start + limit - place.seq)
            if count <= 0 or (place.seq > start and enough()):
                return _checked(head, place, complete=False, removed=removed)
            after = place.seq
            head, place, found = self._page(head, place, count)
            if found is not None:
                later, removed, _ = self._begin(head, place)
                if later.seq > place.seq:  # what was to be looked at was removed meanwhile
                    place = later
                    continue
                return _checked(head, place, found, removed=removed)
            if place.seq == after:
                break
        return _checked(head, place, self._end(head, place), removed=removed)

    def _begin(self, head: SessionHead, place: Place) -> tuple[Place, int, Flaw | None]:
        """Where the chain begins, how many events were removed before, and what is wrong with the checkpoint."""
        try:
            return self._behind_checkpoint(head, place)
        except Damaged as problem:
            told = f"the checkpoint, where the log begins, cannot be read: {problem.message}"
            return place, 0, _flaw(place.seq + 1, told)

    def _behind_checkpoint(self, head: SessionHead, place: Place) -> tuple[Place, int, Flaw | None]:
        mine = {"tenant": head.tenant, "session": head.session_id}
        found = list(self._rows(_point, mine))
        if not found:
            return place, 0, self._before(head)
        *fields, mac = found[0]
        kinds: tuple[type, ...] = (int, bytes, int, int)
        if not all(map(isinstance, fields, kinds)) or min(fields[0], fields[2], fields[3]) < 0:
            return place, 0, _flaw(1, "the checkpoint, where the log begins, cannot be read: it was damaged")
        point = Checkpoint(*fields)
        flaw = self._unsealed(head.session_id, point, mac)
        if flaw is None and (left := list(self._rows(_before_point, {**mine, "upto": point.upto}))):
            flaw = _flaw(
                number_of(left[0][0], point.upto),
                f"it stands before the checkpoint, event {point.upto}: one was changed",
            )
        if point.upto > place.seq:
            place = Place(seq=point.upto, hash=point.hash)
        return place, point.removed, flaw

    def _before(self, head: SessionHead) -> Flaw | None:
        """What is wrong with a log that begins before its first event."""
        if isinstance(head.first, int | float) and head.first < 1:
            return _flaw(number_of(head.first, 1), f"an event with the number {head.first} was added: the first is 1")
        return None

    def _unsealed(self, session_id: str, point: Checkpoint, mac: Any) -> Flaw | None:
        """What is wrong with the seal of a checkpoint."""
        if self._key is None:
            return None
        if mac is None:
            return _flaw(point.upto, "the checkpoint has no seal: written without audit.key, or that was taken away")
        if is_seal(mac, seal_checkpoint(self._key, session_id, point)):
            return None
        return _flaw(point.upto, "the seal of the checkpoint is not of this audit.key: it was changed, or forged")

    def _page(self, head: SessionHead, place: Place, limit: int) -> tuple[SessionHead, Place, Flaw | None]:
        """Some events behind `place`; how far they are sound, and the flaw of the one behind."""
        seq, previous, erased = place.seq, place.hash, place.erased
        asked = {"tenant": head.tenant, "session": head.session_id, "after": seq, "upto": head.next_seq - 1}
        flaw = None
        try:
            for row in map(Row._make, self._rows(_page, {**asked, "limit": limit})):
                problem = problem_of(row, seq + 1, previous, head.session_id)
                if problem is None and row.data is None and head.erased_at is None:
                    head = self._head(head.tenant, head.session_id) or head  # perhaps deleted since it was read
                    problem = GONE if head.erased_at is None else None
                if problem is not None:
                    flaw = Flaw(id=seq + 1, problem=problem)
                    break
                if row.data is None:
                    erased = erased or row.seq
                elif erased:
                    if not says_deleted(row.type, row.data):
                        flaw = Flaw(id=erased, problem=UNEXPLAINED)
                        break
                    erased = 0
                seq, previous = row.seq, row.hash
        except UNREADABLE:
            flaw = Flaw(id=seq + 1, problem="its row cannot be read: it was damaged")
        except Damaged as problem:
            flaw = Flaw(id=seq + 1, problem=f"its row cannot be read: {problem.message}")
        return head, Place(seq=seq, hash=previous, erased=erased), flaw

    def _end(self, head: SessionHead, place: Place) -> Flaw | None:
        """What is wrong with the end of the chain, once all events are sound."""
        last = head.next_seq - 1
        if place.seq < last:
            lost = f"event {last} is" if place.seq == last - 1 else f"events {place.seq + 1} to {last} are"
            return _flaw(place.seq + 1, f"the tail is cut: {lost} missing, the session's head is event {last}")
        if place.seq > last:
            return _flaw(last + 1, f"it was there before, and the head is event {last}: the session was set back")
        if head.behind is not None:
            what = "it" if isinstance(head.behind, int) else f"an event with the number {shown(head.behind)}"
            problem = f"{what} stands behind the head, event {last}: added, or the head was set back"
            return _flaw(number_of(head.behind, last + 1), problem)
        if place.hash != head.hash:
            return _flaw(last, "the head in the session's row is not the hash of this event: one was changed")
        if place.erased:
            return _flaw(place.erased, UNEXPLAINED)
        if head.erased_at is not None and (flaw := self._undeleted(head)) is not None:
            return flaw
        if self._key is None:
            return None
        if head.mac is None:
            return _flaw(last, "the head has no seal: it was written without audit.key, or the seal was taken away")
        if not is_seal(head.mac, seal(self._key, Head(head.next_seq, head.hash))):
            return _flaw(last, "the seal of the head is not of this audit.key: forged, or sealed with another key")
        return None

    def _undeleted(self, head: SessionHead) -> Flaw | None:
        """What is wrong with a session that says it was deleted: the first of its events with data says so."""
        mine = {"tenant": head.tenant, "session": head.session_id}
        try:
            for seq, kind, data in self._rows(_with_data, mine):
                points = [row[0] for row in self._rows(_point, mine)]
                removed = isinstance(head.closed_seq, int) and points and 0 < head.closed_seq <= points[0]
                if not removed and not says_deleted(kind, data):
                    return _flaw(seq, UNDELETED)
        except (Damaged, *UNREADABLE):
            return _flaw(head.next_seq - 1, "what says that its session was deleted cannot be read")
        return None


def _problem_of(head: SessionHead) -> str | None:
    """Why there is nothing to begin with."""
    if not (isinstance(head.tenant, str) and isinstance(head.session_id, str)):
        return "the id in the session's row, or that of its tenant, is no text: it was damaged"
    if not (isinstance(head.next_seq, int) and isinstance(head.hash, bytes)):
        return "the head in the session's row cannot be read: it was damaged"
    if head.next_seq < 2:  # the first event is written with the row
        return f"the head in the session's row is wrong: it says that event {head.next_seq} is the next"
    return None


def _can_be_asked_for(head: SessionHead) -> bool:
    """Whether its ids are what the database has, and not what is left of damaged texts."""
    ids = head.tenant, head.session_id
    return all(isinstance(each, str) and "\ufffd" not in each for each in ids)


def _name(found: Any) -> str:
    return found if isinstance(found, str) else shown(found)


def _flaw(number: int, problem: str) -> Flaw:
    return Flaw(id=number, problem=problem)


def _checked(
    head: SessionHead, place: Place, flaw: Flaw | None = None, *, complete: bool = True, removed: int = 0
) -> Checked:
    last = head.next_seq - 1
    return Checked(place=place, head=last, head_hash=head.hash, flaw=flaw, complete=complete, removed=removed)
