"""Compares rows with the log that they were made of: `projection.py` makes those of the stored events again.

Messages and decisions only, which are written once: what the audit trail shows and exports. A chain must be sound
before it is asked what follows from it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import BigInteger, Connection, Table, and_, bindparam, cast, func, or_, select

from app.agent.events import Event
from app.agent.runs import Run
from app.sessions.verifying import Flaw
from app.store.as_stored import LONGEST, UNREADABLE, number_of, rows, shown
from app.store.columns import Json
from app.store.projection import Projection
from app.store.tables import checkpoints, decisions, events, memories, messages, sessions

PAGE = 500
_TYPES = frozenset({"message", "tool.result", "permission.resolved", "hook.decision"})


class _Envelope(msgspec.Struct):
    run_id: str | None = None
    parent_run_id: str | None = None
    run: int = 0
    agent: str = ""
    name: str | None = None
    depth: int = 0
    path: tuple[int, ...] = ()
    step: int | None = None


_envelopes = msgspec.json.Decoder(_Envelope)
_tenant: Any = bindparam("tenant")
_session: Any = bindparam("session")


def _lowest(table: Table, *conditions: Any) -> Any:
    """The first row of a session that satisfies conditions: one probe of an index."""
    mine = table.c.tenant_id == sessions.c.tenant_id, table.c.session_id == sessions.c.id
    return select(func.min(table.c.seq)).where(*mine, *conditions).correlate(sessions).scalar_subquery()


_point = (
    select(checkpoints.c.upto)
    .where(checkpoints.c.tenant_id == sessions.c.tenant_id, checkpoints.c.session_id == sessions.c.id)
    .correlate(sessions)
    .scalar_subquery()
)
_bounds = select(
    sessions.c.next_seq,
    func.coalesce(_point, 0),
    sessions.c.erased_at,
    sessions.c.closed_seq,
    *(_lowest(table) for table in (messages, decisions)),
    *(_lowest(table, table.c.seq >= sessions.c.next_seq) for table in (messages, decisions)),
).where(sessions.c.tenant_id == _tenant, sessions.c.id == _session)
_memory = and_(memories.c.tenant_id == messages.c.tenant_id, memories.c.id == messages.c.memory_id)
_of_no_memory = or_(
    memories.c.id.is_(None), messages.c.memory_seq < 1, messages.c.memory_seq >= memories.c.next_seq,
    messages.c.seq != cast(messages.c.seq, BigInteger),
)  # fmt: skip
_unused = (
    select(func.min(messages.c.seq))
    .outerjoin_from(messages, memories, _memory)
    .where(messages.c.tenant_id == _tenant, messages.c.session_id == _session)
    .where(messages.c.seq <= bindparam("upto"), _of_no_memory)
)
_events = (
    select(events.c.seq, events.c.type, events.c.ts, events.c.envelope, events.c.data)
    .where(events.c.tenant_id == _tenant, events.c.session_id == _session)
    .where(events.c.seq > bindparam("after"), events.c.seq <= bindparam("upto"))
    .order_by(events.c.seq)
    .limit(PAGE)
)


def _rows_of(table: Table) -> Any:
    """JSON as the text that it is stored as. An event has one row at most: one row more than events is one too many."""
    mine = select(*_columns(table)).where(table.c.tenant_id == _tenant, table.c.session_id == _session)
    page = mine.where(table.c.seq > bindparam("after"), table.c.seq <= bindparam("upto"))
    return page.order_by(table.c.seq).limit(PAGE + 1)


def _columns(table: Table) -> list[Any]:
    return [column for column in table.c if column.name != "row_id"]


_TABLES = (messages, decisions)
_ROWS = {table: _rows_of(table) for table in _TABLES}
_UNSAID = "there is a row in {} that no event says"


class _Bounds(NamedTuple):
    """What a session's row says at one moment, and between which numbers there are rows."""

    next_seq: int
    upto: int  # of the checkpoint
    erased_at: Any
    closed_seq: Any
    first_message: Any
    first_decision: Any
    message_behind: Any
    decision_behind: Any


def compare(connection: Connection, tenant: str, session_id: str) -> Flaw | None:
    """The first event of a session whose row is missing or says something else, or the first row without its event."""
    key = {"tenant": tenant, "session": session_id}
    bounds = _bounds_of(connection, key)
    while (flaw := _compare(connection, key, bounds)) is not None:
        now = _bounds_of(connection, key)
        if (now.erased_at, now.upto) == (bounds.erased_at, bounds.upto):
            return flaw
        bounds = now  # it was deleted in between, or its front was removed
    return None


def _bounds_of(connection: Connection, key: Mapping[str, str]) -> _Bounds:
    (found,) = rows(connection, _bounds, key)
    return _Bounds(*found)


def _compare(connection: Connection, key: Mapping[str, str], bounds: _Bounds) -> Flaw | None:
    flaw = _before_log(connection, key, bounds)
    return flaw or _in_log(connection, key, bounds) or _behind_log(bounds)


def _before_log(connection: Connection, key: Mapping[str, str], bounds: _Bounds) -> Flaw | None:
    """A row that nobody can have left before the log: of decisions none is kept, of messages those of memories that
    there are."""
    upto = bounds.upto
    for table, first in zip(_TABLES, (bounds.first_message, bounds.first_decision), strict=True):
        if isinstance(first, int | float) and first < 1:
            return Flaw(id=number_of(first, 0), problem=_unsaid(table, first))
        if not isinstance(first, int) or first > upto:
            continue
        if table is decisions:
            return Flaw(id=first, problem=f"there is a row in decisions before the checkpoint, event {upto}: added")
        if bounds.erased_at is not None and isinstance(bounds.closed_seq, int) and first < bounds.closed_seq:
            return Flaw(id=first, problem="there is a row in messages, though the session was deleted")
        ((unused,),) = rows(connection, _unused, {**key, "upto": upto})
        if unused is not None:
            told = f"there is a row in messages before the checkpoint, event {upto}, that no memory has: added"
            return Flaw(id=number_of(unused, first), problem=told)
    return None


def _behind_log(bounds: _Bounds) -> Flaw | None:
    for table, seq in zip(_TABLES, (bounds.message_behind, bounds.decision_behind), strict=True):
        if seq is not None:
            return Flaw(id=number_of(seq, bounds.next_seq), problem=_unsaid(table, seq))
    return None


def _unsaid(table: Table, seq: Any) -> str:
    said = _UNSAID.format(table.name)
    return said if isinstance(seq, int) else f"{said}, with the number {shown(seq)}"


def _in_log(connection: Connection, key: Mapping[str, str], bounds: _Bounds) -> Flaw | None:
    after, upto = bounds.upto, bounds.next_seq - 1
    while after < upto:
        page = list(rows(connection, _events, {**key, "after": after, "upto": upto}))
        last = page[-1][0] if len(page) == PAGE else upto
        made = Projection()
        for row in page:
            if row.type not in _TYPES or row.data is None:
                continue
            try:
                made.add(_event(key["tenant"], key["session"], row))
            except UNREADABLE as problem:
                told = f"the event is sound, and no row can be made of it: {str(problem)[:LONGEST]}"
                return Flaw(id=row.seq, problem=told)
        for table, wanted in ((messages, made.messages), (decisions, made.decisions)):
            found = _found(connection, table, {**key, "after": after, "upto": last})
            flaw = _first(table, {row["seq"]: row for row in wanted}, {row["seq"]: row for row in found})
            if flaw is not None:
                return flaw
        after = last
    return None


def _found(connection: Connection, table: Table, asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    names = [column.name for column in _columns(table)]
    for row in rows(connection, _ROWS[table], asked):
        yield dict(zip(names, row, strict=True))


def _first(
    table: Table, wanted: Mapping[int, Mapping[str, Any]], found: Mapping[int, Mapping[str, Any]]
) -> Flaw | None:
    for seq in sorted({*wanted, *found}):
        if seq not in found:
            return Flaw(id=seq, problem=f"the event is sound, and its row in {table.name} is missing")
        if seq not in wanted:
            return Flaw(id=number_of(seq, int(seq)), problem=_unsaid(table, seq))
        right = {name: _stored(table, name, value) for name, value in wanted[seq].items()}
        differing = sorted(name for name, value in found[seq].items() if right.get(name) != value)
        if differing:
            return Flaw(
                id=seq, problem=f"the event is sound, and its row in {table.name} differs: {', '.join(differing)}"
            )
    return None


def _stored(table: Table, name: str, value: Any) -> Any:
    if value is None or not isinstance(table.c[name].type, Json):
        return value
    return msgspec.json.encode(value).decode()


def _event(tenant: str, session_id: str, row: Any) -> Event:
    """A stored event as far as the projection of these rows looks at it."""
    told = _envelopes.decode(row.envelope)
    run = None
    if told.run_id is not None:
        run = Run(
            id=told.run_id,
            session_id=session_id,
            tenant=tenant,
            memory_id="",
            turn=0,
            ordinal=told.run,
            depth=told.depth,
            path=told.path,
            agent=told.agent,
            name=told.name,
            parent_id=told.parent_run_id,
        )
    return Event(
        seq=row.seq,
        type=row.type,
        ts=row.ts,
        tenant=tenant,
        session_id=session_id,
        run=run,
        step=told.step,
        payload=msgspec.json.decode(row.data),
    )
