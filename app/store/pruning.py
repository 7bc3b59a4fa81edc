"""Removes the front of a session's log for its age, some events at a time, and leaves a checkpoint in their place.

Works on the writing connection, inside the transaction of its caller. Only what is sound is removed: a front with a
fault in it stays, so that the fault can be named. Which sessions, and up to where, is `retention.py`'s.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, exists, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from app.store.chain import GENESIS, Checkpoint, digest, is_seal, link, seal_checkpoint
from app.store.tables import (
    approvals,
    artifacts,
    checkpoints,
    decisions,
    events,
    handoffs,
    memories,
    messages,
    notes,
    notices,
    runs,
    sessions,
    tool_calls,
)
from app.store.tasks import listed
from app.store.text_index import forget_messages

log = logging.getLogger(__name__)

STEP, STEP_BYTES = 100, 1 << 20  # events of one transaction: about 10 ms


def prune(connection: Connection, asked: Mapping[str, Any], key: bytes | None) -> None:
    """One step, of at least one event. `asked` has `tenant_id` and `session_id`, and for a step towards event `upto`
    that and `created_at` (now, in µs). For a closed session whose events are gone it has `rows_after` and `rows_upto`
    instead, the numbers of messages that were kept so far, or `before` and `tasks_before`: what ended earlier (µs)
    goes, see `ended`.

    Raises ValueError when the front is not sound; does nothing when the session has work under way or is not there.
    Done twice it is done once.
    """
    tenant, session_id = asked["tenant_id"], asked["session_id"]
    columns = select(sessions.c.next_seq, sessions.c.closed_at, sessions.c.memory_id)
    mine = columns.where(sessions.c.tenant_id == tenant, sessions.c.id == session_id)
    session = connection.execute(mine).one_or_none()
    if session is None or _at_work(connection, tenant, session_id):
        return
    closed = session.closed_at is not None
    own = session.memory_id if closed else None
    last = last_checkpoint(connection, tenant, session_id)
    if "upto" in asked:
        upto = min(asked["upto"], last.upto + STEP, session.next_seq - 2)  # the last event stays: the chain's head
        if upto > last.upto:
            upto = _bounded(connection, tenant, session_id, last.upto, upto)
            found = _sound(connection, tenant, session_id, last, upto)
            _remove(connection, tenant, session_id, last.upto, upto, closed=closed, own=own)
            point = Checkpoint(upto, found, last.removed + upto - last.upto, asked["created_at"])
            _keep(connection, tenant, session_id, point, _key_for_next(connection, tenant, session_id, last, key))
    elif closed and "rows_upto" in asked:
        upto = min(asked["rows_upto"], last.upto)
        _remove_messages(connection, tenant, session_id, asked["rows_after"], upto, own=own)
        _remove_memories(connection, tenant, session_id, asked["rows_after"], upto)
    elif closed:
        _remove_rest(connection, tenant, session_id, last.upto, asked)


def last_checkpoint(connection: Connection, tenant: str, session_id: str) -> Checkpoint:
    """Where the chain begins."""
    names = (checkpoints.c[name] for name in Checkpoint._fields)
    row = connection.execute(select(*names).where(*_of(checkpoints, tenant, session_id))).one_or_none()
    return Checkpoint(0, GENESIS, 0, 0) if row is None else Checkpoint(*row)


def _of(table: Table, tenant: str, session_id: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return table.c.tenant_id == tenant, table.c.session_id == session_id


def _at_work(connection: Connection, tenant: str, session_id: str) -> bool:
    """Whether recovery might read the log of the session: of what is open it reads from the first run above on."""
    is_open = [
        exists().where(*_of(table, tenant, session_id), table.c.ended_at.is_(None)) for table in (runs, handoffs)
    ]
    return bool(connection.execute(select(or_(*is_open))).scalar_one())


def _bounded(connection: Connection, tenant: str, session_id: str, after: int, upto: int) -> int:
    """The last event of a step behind event `after`."""
    columns = events.c.seq, func.coalesce(func.length(events.c.data), 0).label("size")
    asked = select(*columns).where(*_of(events, tenant, session_id), events.c.seq > after, events.c.seq <= upto)
    size, last = 0, after
    for row in connection.execute(asked.order_by(events.c.seq)):
        size += row.size
        if last > after and size > STEP_BYTES:
            return last
        last = row.seq
    return upto


def _sound(connection: Connection, tenant: str, session_id: str, last: Checkpoint, upto: int) -> bytes:
    """The hash of event `upto`, once all before it were found to follow from each other."""
    columns = (events.c[name] for name in ("seq", "envelope", "data", "data_digest", "hash"))
    asked = select(*columns).where(*_of(events, tenant, session_id), events.c.seq <= upto).order_by(events.c.seq)
    seq, previous = last.upto, last.hash
    for row in connection.execute(asked):
        told = row.data_digest if row.data is None else digest(row.data)
        if row.seq != seq + 1 or link(previous, row.envelope, told) != row.hash:
            raise ValueError(
                f"the log of session {session_id} is not sound at event {seq + 1}: nothing of it is removed; "
                "`subagentd audit verify` says more"
            )
        seq, previous = row.seq, row.hash
    if seq != upto:
        raise ValueError(f"the log of session {session_id} ends at event {seq}, though event {upto} was to be removed")
    return previous


def _remove(
    connection: Connection, tenant: str, session_id: str, after: int, upto: int, *, closed: bool, own: str | None
) -> None:
    """Events and the rows that say the same. An open session keeps what its budget counts, without the arguments."""
    _remove_messages(connection, tenant, session_id, after, upto, own=own)
    for table in (events, decisions):
        connection.execute(delete(table).where(*_of(table, tenant, session_id), table.c.seq <= upto))
    called = and_(*_of(tool_calls, tenant, session_id), tool_calls.c.seq > after, tool_calls.c.seq <= upto)
    if closed:
        connection.execute(delete(tool_calls).where(called))
    else:
        connection.execute(update(tool_calls).where(called).values(arguments=""))


def _remove_messages(
    connection: Connection, tenant: str, session_id: str, after: int, upto: int, *, own: str | None
) -> None:
    """All of the memory `own`, which nobody goes on with; of others what they do not look at any more: whoever goes on
    with one must find its history whole."""
    old = and_(*_of(messages, tenant, session_id), messages.c.seq > after, messages.c.seq <= upto)
    for memory_id in _memories_of(connection, old):
        mine = and_(old, messages.c.memory_id == memory_id)
        if memory_id != own or _used_elsewhere(connection, tenant, session_id, memory_id):
            mine = and_(mine, _out_of_context(connection, tenant, memory_id))
        _forget(connection, mine)


def _remove_memories(connection: Connection, tenant: str, session_id: str, after: int, upto: int) -> None:
    """Memories that sessions may share, each at once and as a whole: one that begins in the middle of an exchange would
    be refused by models. They go when all that was said in them is behind the checkpoint of a closed session."""
    old = and_(*_of(messages, tenant, session_id), messages.c.seq > after, messages.c.seq <= upto)
    for memory_id in _memories_of(connection, old):
        if not _is_left(connection, tenant, memory_id):
            _forget(connection, and_(messages.c.tenant_id == tenant, messages.c.memory_id == memory_id))
            mine = and_(memories.c.tenant_id == tenant, memories.c.id == memory_id)
            connection.execute(delete(memories).where(mine))


def _memories_of(connection: Connection, which: ColumnElement[bool]) -> Sequence[str]:
    return connection.execute(select(messages.c.memory_id).where(which).distinct()).scalars().all()


def _forget(connection: Connection, which: ColumnElement[bool]) -> None:
    forget_messages(connection, which)
    connection.execute(delete(messages).where(which))


def _is_left(connection: Connection, tenant: str, memory_id: str) -> bool:
    """Whether somebody works with a memory, or something of it is not removed from its session's log."""
    working = exists().where(runs.c.tenant_id == tenant, runs.c.memory_id == memory_id, runs.c.ended_at.is_(None))
    if connection.execute(select(working)).scalar_one():
        return True
    session = and_(sessions.c.tenant_id == messages.c.tenant_id, sessions.c.id == messages.c.session_id)
    point = and_(checkpoints.c.tenant_id == messages.c.tenant_id, checkpoints.c.session_id == messages.c.session_id)
    young = or_(sessions.c.closed_at.is_(None), checkpoints.c.upto.is_(None), messages.c.seq > checkpoints.c.upto)
    asked = select(messages.c.row_id).outerjoin(sessions, session).outerjoin(checkpoints, point)
    asked = asked.where(messages.c.tenant_id == tenant, messages.c.memory_id == memory_id, young).limit(1)
    return connection.execute(asked).first() is not None


def _used_elsewhere(connection: Connection, tenant: str, session_id: str, memory_id: str) -> bool:
    """Whether another session that is not closed has said something in a memory."""
    other = and_(sessions.c.tenant_id == tenant, sessions.c.id == messages.c.session_id, sessions.c.closed_at.is_(None))
    said = and_(messages.c.tenant_id == tenant, messages.c.memory_id == memory_id, messages.c.session_id != session_id)
    return connection.execute(select(sessions.c.id).join(messages, other).where(said).limit(1)).first() is not None


def _out_of_context(connection: Connection, tenant: str, memory_id: str) -> ColumnElement[bool]:
    """Messages that a shortened memory does not look at any more; of one that is not shortened, none."""
    mine = and_(memories.c.tenant_id == tenant, memories.c.id == memory_id)
    row = connection.execute(select(memories.c.summary_from, memories.c.shortened).where(mine)).one_or_none()
    if row is None or row.summary_from is None:
        return messages.c.row_id.is_(None)
    kept = [messages.c.role != "system"]
    if (task := (row.shortened or {}).get("task")) is not None:
        kept.append(messages.c.memory_seq != task)
    return and_(messages.c.memory_seq < row.summary_from, *kept)


def _key_for_next(
    connection: Connection, tenant: str, session_id: str, last: Checkpoint, key: bytes | None
) -> bytes | None:
    """What the next checkpoint is sealed with: nothing where the last one has not the seal that it should have, since
    the next would vouch for it."""
    mac = connection.execute(select(checkpoints.c.mac).where(*_of(checkpoints, tenant, session_id))).one_or_none()
    if mac is None or key is None or is_seal(mac.mac, seal_checkpoint(key, session_id, last)):
        return key
    log.error("the checkpoint of session %s has no seal of this audit.key, and gets none from here on", session_id)
    return None


def _keep(connection: Connection, tenant: str, session_id: str, point: Checkpoint, key: bytes | None) -> None:
    mac = seal_checkpoint(key, session_id, point) if key else None
    new = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    values = {**point._asdict(), "mac": mac}
    statement = new(checkpoints).values(tenant_id=tenant, session_id=session_id, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=["tenant_id", "session_id"], set_=values))


def ended(before: Any, tasks_before: Any) -> tuple[tuple[Table, ColumnElement[bool]], ...]:
    """Which runs and handoffs of a closed session go: those that ended before `before` (µs), but of those that are
    listed as background tasks only those that ended before `tasks_before`, no later. A run of a task goes with it,
    whichever attempt it was; what is below such a run is no task, and is not kept for it."""
    kept = listed(tasks_before)
    for_task = exists().where(handoffs.c.tenant_id == runs.c.tenant_id, handoffs.c.id == runs.c.handoff_id, kept)
    return (
        (runs, and_(runs.c.ended_at < before, ~for_task)),
        (handoffs, and_(handoffs.c.ended_at < before, ~kept)),
    )


def _remove_rest(connection: Connection, tenant: str, session_id: str, upto: int, asked: Mapping[str, Any]) -> None:
    """What a closed session has besides: nobody goes on with it."""
    old = and_(*_of(tool_calls, tenant, session_id), tool_calls.c.seq <= upto)  # kept while it was open
    connection.execute(delete(tool_calls).where(old))
    before, tasks_before = asked["before"], min(asked["before"], asked["tasks_before"])
    for table, goes in (
        *ended(before, tasks_before),
        (approvals, approvals.c.requested_at < before),
        (notices, notices.c.created_at < before),
        (artifacts, artifacts.c.created_at < before),
        (notes, notes.c.updated_at < before),
    ):
        connection.execute(delete(table).where(*_of(table, tenant, session_id), goes))
    said = exists().where(messages.c.tenant_id == memories.c.tenant_id, messages.c.memory_id == memories.c.id)
    connection.execute(delete(memories).where(*_of(memories, tenant, session_id), ~said))
