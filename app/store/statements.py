"""Carries the rows of a projection into the tables: few statements for a batch, each for many rows.

Knows no event and begins no transaction. Statements are built by SQLAlchemy once and kept as text.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    make_url,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from app.agent.events import Write
from app.store.columns import Json
from app.store.projection import Key, Projection, Row
from app.store.tables import (
    agents,
    api_keys,
    approvals,
    artifacts,
    cleared_tasks,
    decisions,
    events,
    handoffs,
    idempotency_keys,
    mcp_pins,
    memories,
    messages,
    notes,
    notices,
    runs,
    sessions,
    tenants,
    tool_calls,
    webhooks,
)
from app.store.text_index import forget_messages, forget_part, index_messages, make_anew, purge

_PROJECTED = (events, sessions, memories, runs, handoffs, messages, tool_calls, approvals, decisions, notices)
_TABLES = {table.name: table for table in _PROJECTED}
_JSON = {
    name: tuple(column.name for column in table.c if isinstance(column.type, Json)) for name, table in _TABLES.items()
}
_RESULT = ("status", "is_error", "message_id", "result_seq", "ended_at", "duration_ms")
# What is written without an event; the other tables belong to the projection.
_LONE_TABLES = (
    agents, api_keys, artifacts, cleared_tasks, idempotency_keys, mcp_pins, notes, tenants, webhooks,
)  # fmt: skip
_LONE = {table.name: table for table in _LONE_TABLES}
# What a deleted session leaves behind nothing of, with the column that holds the number of the event.
_ERASED_IN_PARTS = (messages, tool_calls, decisions)
_ERASED = ((runs, "first_seq"), (handoffs, "start_seq"))
PART = 1_000  # events whose rows are erased by one statement: `Guard` bounds the time that each may take
_ERASED_WHOLE = (memories, approvals, notices, artifacts, notes, webhooks, cleared_tasks)


def store_rows(connection: Connection, rows: Projection, event_rows: Sequence[Row]) -> None:
    """Insert and change everything that one batch leads to, in one transaction of the caller."""
    _execute(connection, _insert, "events", event_rows)
    _execute(connection, _insert, "sessions", rows.sessions.values())
    _execute(connection, _memories, "memories", rows.memories.values())
    _execute(connection, _insert, "runs", rows.runs.values())
    _execute(connection, _insert, "handoffs", rows.handoffs.values())
    _execute(connection, _insert, "messages", rows.messages)
    _execute(connection, _insert, "tool_calls", rows.calls.values())
    _execute(connection, _insert, "approvals", rows.approvals.values())
    _execute(connection, _insert, "decisions", rows.decisions)
    _execute(connection, _insert, "notices", rows.notices.values())
    _change(connection, "sessions", rows.session_changes)
    _change(connection, "memories", rows.memory_changes)
    _change(connection, "runs", rows.run_changes)
    _change(connection, "handoffs", rows.handoff_changes)
    _change(connection, "tool_calls", rows.call_changes)
    _change(connection, "approvals", rows.approval_changes)
    _change(connection, "notices", rows.notice_changes)
    _execute(connection, _results, "tool_calls", rows.results.values())
    for (tenant, session_id), upto in rows.erased.items():
        _erase(connection, tenant, session_id, upto)


def _change(connection: Connection, table: str, changes: Mapping[Key, Row]) -> None:
    """Set columns of stored rows: one statement for each set of columns."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for (tenant, row_id), values in changes.items():
        groups.setdefault(tuple(values), []).append({**values, "old_tenant": tenant, "old_id": row_id})
    for columns, rows in groups.items():
        _execute(connection, _update, table, rows, columns)


def _execute(
    connection: Connection, build: Callable[..., Any], table: str, rows: Collection[Row], columns: tuple[str, ...] = ()
) -> None:
    """Send rows to the driver as they are: what SQLAlchemy does to each row on the way costs as much as SQLite."""
    if not rows:
        return
    for column in _JSON[table]:
        for row in rows:
            value = row.get(column)
            if value is not None:
                row[column] = msgspec.json.encode(value).decode()
    connection.exec_driver_sql(_sql(connection.dialect.name, build, table, columns), list(rows))


@cache
def _sql(dialect: str, build: Callable[..., Any], table: str, columns: tuple[str, ...]) -> str:
    """The text of a statement, with parameters by name."""
    new = sqlite.insert if dialect == "sqlite" else postgresql.insert
    kind: Any = make_url(f"{dialect}://").get_dialect()
    spoken = kind(paramstyle="named" if dialect == "sqlite" else "pyformat")
    return str(build(new, _TABLES[table], columns).compile(dialect=spoken))


def _insert(new: Callable[[Table], Any], table: Table, _columns: tuple[str, ...]) -> Any:
    return new(table).values({column.name: bindparam(column.name) for column in table.c if column.name != "row_id"})


def _update(_new: Callable[[Table], Any], table: Table, columns: tuple[str, ...]) -> Any:
    same = and_(table.c.tenant_id == bindparam("old_tenant"), table.c.id == bindparam("old_id"))
    statement = update(table).where(same).values({column: bindparam(column) for column in columns})
    # The second net under "one final state": a row that is final is not changed any more.
    final = {runs: runs.c.ended_at, handoffs: handoffs.c.ended_at, approvals: approvals.c.decided_at}
    final |= {notices: notices.c.delivered_at}
    ended = final.get(table)
    return statement if ended is None else statement.where(ended.is_(None))


def _memories(new: Callable[[Table], Any], table: Table, columns: tuple[str, ...]) -> Any:
    """A memory is made, or its counters move on; they never go back."""
    statement = _insert(new, table, columns)
    ahead = {name: _larger(table.c[name], statement.excluded[name]) for name in ("next_turn", "next_seq")}
    return statement.on_conflict_do_update(index_elements=["tenant_id", "id"], set_=ahead)


def _results(new: Callable[[Table], Any], table: Table, columns: tuple[str, ...]) -> Any:
    """A tool call is completed; one that was never recorded is made now."""
    statement = _insert(new, table, columns)
    values = {name: statement.excluded[name] for name in _RESULT}
    once = ("read_only", "delegation", "started_at")
    values |= {name: func.coalesce(statement.excluded[name], table.c[name]) for name in once}
    return statement.on_conflict_do_update(index_elements=["tenant_id", "id"], set_=values)


def _larger(old: ColumnElement[int], new: ColumnElement[int]) -> ColumnElement[int]:
    return case((new > old, new), else_=old)


_left = (messages.c.tenant_id == memories.c.tenant_id, messages.c.memory_id == memories.c.id)


def _oldest_left(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Of the first message that a memory still holds; one probe of its index."""
    found = select(column).where(*_left).order_by(messages.c.memory_seq).limit(1)
    return found.correlate(memories).scalar_subquery()


# Once the messages are gone: a memory that others have messages in goes on as theirs, so that its numbers go on too.
_hand_over = (
    update(memories)
    .where(memories.c.tenant_id == bindparam("tenant"), memories.c.session_id == bindparam("session"))
    .where(exists().where(*_left).correlate(memories))
    .values({name: _oldest_left(messages.c[name]) for name in ("session_id", "name")})
)


# Before that: a summary may tell of what is erased, wherever it was made. What is left of the memory is gone on with.
_mine = select(messages.c.memory_id).where(
    messages.c.tenant_id == bindparam("tenant"),
    messages.c.session_id == bindparam("session"),
    messages.c.seq < bindparam("upto"),
)
_forget_summaries = (
    update(memories)
    .where(memories.c.tenant_id == bindparam("tenant"), memories.c.id.in_(_mine))
    .where(memories.c.summary_from.is_not(None))
    .values(summary=None, summary_from=None, shortened=None)
)


def _erase(connection: Connection, tenant: str, session_id: str, upto: int) -> None:
    """Remove what a deleted session said and did before event `upto`; the digests of its events stay."""
    connection.execute(_forget_summaries, {"tenant": tenant, "session": session_id, "upto": upto})
    for after in range(0, upto - 1, PART):
        last = min(after + PART, upto - 1)
        connection.execute(update(events).where(_part(events, tenant, session_id, after, last)).values(data=None))
        forget_messages(connection, _part(messages, tenant, session_id, after, last))
        for table in _ERASED_IN_PARTS:
            connection.execute(delete(table).where(_part(table, tenant, session_id, after, last)))
    for table, seq in _ERASED:
        mine = and_(table.c.tenant_id == tenant, table.c.session_id == session_id, table.c[seq] < upto)
        connection.execute(delete(table).where(mine))
    connection.execute(_hand_over, {"tenant": tenant, "session": session_id})
    for table in _ERASED_WHOLE:
        connection.execute(delete(table).where(table.c.tenant_id == tenant, table.c.session_id == session_id))


def _part(table: Table, tenant: str, session_id: str, after: int, last: int) -> ColumnElement[bool]:
    mine = and_(table.c.tenant_id == tenant, table.c.session_id == session_id)
    return and_(mine, table.c.seq > after, table.c.seq <= last)


# ── heads ───────────────────────────────────────────────────────────────────────────────────────────────────────


_head = select(sessions.c.next_seq, sessions.c.head_hash, sessions.c.head_mac).where(
    sessions.c.tenant_id == bindparam("tenant"), sessions.c.id == bindparam("session")
)
_stored_event = select(events.c.envelope, events.c.data_digest).where(
    events.c.tenant_id == bindparam("tenant"),
    events.c.session_id == bindparam("session"),
    events.c.seq == bindparam("seq"),
)


def load_head(connection: Connection, key: Key) -> tuple[Any, Any, Any] | None:
    """The next event number of a session, the hash of its last event and the seal of both, whatever stands there; None
    for an unknown session."""
    row = connection.execute(_head, {"tenant": key[0], "session": key[1]}).one_or_none()
    return None if row is None else (row.next_seq, row.head_hash, row.head_mac)


def is_stored(connection: Connection, key: Key, seq: int, envelope: bytes, digest: bytes) -> bool:
    """Whether exactly this event stands in the log already."""
    row = connection.execute(_stored_event, {"tenant": key[0], "session": key[1], "seq": seq}).one_or_none()
    return row is not None and row.envelope == envelope and row.data_digest == digest


# ── lone rows ───────────────────────────────────────────────────────────────────────────────────────────────────


def store_write(connection: Connection, write: Write) -> None:
    """Carry out one `Write`. Raises ValueError when it names no tenant, a table of the projection, or no such column.

    With `key` the row is changed (with `keep`: left as it is), or made if there is none (not with `change`); without,
    it must be new. The row of `text_index` is not only changed: the index follows it in the same transaction.
    """
    if write.table == "text_index":
        _keep_index(connection, write.values)
        return
    table, values = _checked(write)
    if not write.key:
        connection.execute(insert(table).values(values))
        return
    same = and_(*(table.c[name] == values[name] for name in ("tenant_id", *write.key)))
    if write.delete:
        connection.execute(delete(table).where(same))
    elif write.keep:
        if connection.execute(select(literal(1)).select_from(table).where(same).limit(1)).first() is None:
            connection.execute(insert(table).values(values))
    elif connection.execute(update(table).where(same).values(values)).rowcount == 0 and not write.change:
        connection.execute(insert(table).values(values))


def _keep_index(connection: Connection, asked: Mapping[str, Any]) -> None:
    for name, step in (("purge", purge), ("forget", forget_part), ("anew", make_anew)):
        if name in asked:
            step(connection)
    if "upto" in asked:
        index_messages(connection, asked["upto"])


def _checked(write: Write) -> tuple[Table, dict[str, Any]]:
    table = _LONE.get(write.table)
    if table is None:
        raise ValueError(f"table {write.table!r} is not written by single rows; these are: {', '.join(sorted(_LONE))}")
    values = dict(write.values)
    missing = [name for name in ("tenant_id", *write.key) if values.get(name) is None]
    if missing:
        raise ValueError(f"a row for {write.table!r} needs {', '.join(missing)}")
    unknown = sorted(values.keys() - table.c.keys())
    if unknown:
        raise ValueError(f"table {write.table!r} has no column {', '.join(unknown)}")
    if write.delete and not write.key:
        raise ValueError(f"deleting from {write.table!r} needs key columns")
    return table, values


def has_write(connection: Connection, write: Write) -> bool:
    """Whether exactly this row is there already."""
    table, values = _checked(write)
    same = and_(*(table.c[name] == value for name, value in values.items()))
    return connection.execute(select(func.count()).select_from(table).where(same)).scalar_one() > 0
