"""Compares rows with the log that they were made of: `projection.py` makes those of the stored events again.

Messages and decisions only, which are written once: what the audit trail shows and exports. A chain must be sound
before it is asked what follows from it.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, Text, bindparam, select, type_coerce

from app.agent.events import Event
from app.agent.runs import Run
from app.sessions.verifying import Flaw
from app.store.columns import Json
from app.store.projection import Projection
from app.store.pruning import last_checkpoint
from app.store.tables import decisions, events, messages, sessions

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
_head = select(sessions.c.next_seq, sessions.c.erased_at).where(
    sessions.c.tenant_id == _tenant, sessions.c.id == _session
)
_events = (
    select(events.c.seq, events.c.type, events.c.ts, events.c.envelope, events.c.data)
    .where(events.c.tenant_id == _tenant, events.c.session_id == _session)
    .where(events.c.seq > bindparam("after"), events.c.seq <= bindparam("upto"))
    .order_by(events.c.seq)
    .limit(PAGE)
)


def _rows_of(table: Table) -> Any:
    """JSON as the text that it is stored as: what is damaged differs, and is no error of reading."""
    columns = [
        type_coerce(column, Text).label(column.name) if isinstance(column.type, Json) else column
        for column in table.c
        if column.name != "row_id"
    ]
    mine = select(*columns).where(table.c.tenant_id == _tenant, table.c.session_id == _session)
    return mine.where(table.c.seq > bindparam("after"), table.c.seq <= bindparam("upto")).order_by(table.c.seq)


_ROWS = {table: _rows_of(table) for table in (messages, decisions)}


def compare(connection: Connection, tenant: str, session_id: str) -> Flaw | None:
    """The first event of a session whose row is missing or says something else, or the first row without its event."""
    key = {"tenant": tenant, "session": session_id}
    head = connection.execute(_head, key).one()
    flaw = _compare(connection, key, head.next_seq - 1)
    if flaw is not None and head.erased_at is None and connection.execute(_head, key).one().erased_at is not None:
        return compare(connection, tenant, session_id)  # it was deleted in between
    return flaw


def _compare(connection: Connection, key: Mapping[str, str], upto: int) -> Flaw | None:
    after = last_checkpoint(connection, key["tenant"], key["session"]).upto  # rows before it have no event any more
    while after < upto:
        page = connection.execute(_events, {**key, "after": after, "upto": upto}).all()
        last = page[-1].seq if len(page) == PAGE else upto
        made = Projection()
        for row in page:
            if row.type not in _TYPES or row.data is None:
                continue
            try:
                made.add(_event(key["tenant"], key["session"], row))
            except (KeyError, TypeError, ValueError) as problem:
                return Flaw(id=row.seq, problem=f"the event is sound, and no row can be made of it: {problem}")
        for table, wanted in ((messages, made.messages), (decisions, made.decisions)):
            found = connection.execute(_ROWS[table], {**key, "after": after, "upto": last}).mappings().all()
            flaw = _first(table, {row["seq"]: row for row in wanted}, {row["seq"]: dict(row) for row in found})
            if flaw is not None:
                return flaw
        after = last
    return None


def _first(
    table: Table, wanted: Mapping[int, Mapping[str, Any]], found: Mapping[int, Mapping[str, Any]]
) -> Flaw | None:
    for seq in sorted({*wanted, *found}):
        if seq not in found:
            return Flaw(id=seq, problem=f"the event is sound, and its row in {table.name} is missing")
        if seq not in wanted:
            return Flaw(id=seq, problem=f"there is a row in {table.name} that no event says")
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
