"""Reads what of the log is older than it is to be kept (`RetentionStore`)."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, exists, func, or_, select, tuple_

from app.sessions.retaining import Due, Row
from app.store.pruning import ended
from app.store.reader import Reader, Record
from app.store.tables import (
    approvals,
    artifacts,
    checkpoints,
    events,
    handoffs,
    messages,
    notes,
    notices,
    runs,
    sessions,
    webhooks,
)
from app.store.text_index import part_of

_tenant: Any = bindparam("tenant")
_session: Any = bindparam("session")
_before: Any = bindparam("before")

_point = select(checkpoints.c.upto).where(
    checkpoints.c.tenant_id == sessions.c.tenant_id, checkpoints.c.session_id == sessions.c.id
)
_first = (
    select(events.c.ts)
    .where(events.c.tenant_id == sessions.c.tenant_id, events.c.session_id == sessions.c.id)
    .order_by(events.c.seq)
    .limit(1)
)
_sessions = (
    select(
        sessions.c.tenant_id,
        sessions.c.id,
        sessions.c.next_seq,
        sessions.c.closed_at,
        func.coalesce(_point.scalar_subquery(), 0).label("upto"),
        _first.correlate(sessions).scalar_subquery().label("first"),
    )
    .where(tuple_(sessions.c.tenant_id, sessions.c.id) > tuple_(_tenant, _session))
    .order_by(sessions.c.tenant_id, sessions.c.id)
    .limit(bindparam("limit"))
)


def _of(table: Any) -> tuple[Any, Any]:
    return table.c.tenant_id == _tenant, table.c.session_id == _session


_young = (
    select(events.c.seq).where(*_of(events), events.c.ts >= _before).order_by(events.c.seq).limit(1)
)  # the front ends there, whatever stands behind it: clocks are set back
_at_work = select(
    or_(*(exists().where(*_of(table), table.c.ended_at.is_(None)) for table in (runs, handoffs))).label("open")
)
_untold = select(func.min(webhooks.c.event_seq).label("seq")).where(*_of(webhooks), webhooks.c.next_at.is_not(None))
_rows = (
    select(messages.c.seq, func.length(messages.c.content).label("size"))
    .where(*_of(messages), messages.c.seq > bindparam("after"), messages.c.seq <= bindparam("upto"))
    .order_by(messages.c.seq)
    .limit(bindparam("limit"))
)
_reached = select(checkpoints.c.upto).where(*_of(checkpoints))
_more = select(
    or_(
        *(exists().where(*_of(table), goes) for table, goes in ended(_before, bindparam("tasks_before"))),
        exists().where(*_of(approvals), approvals.c.requested_at < _before),
        exists().where(*_of(notices), notices.c.created_at < _before),
        exists().where(*_of(artifacts), artifacts.c.created_at < _before),
        exists().where(*_of(notes), notes.c.updated_at < _before),
    ).label("more")
)


class SqlRetentionStore:
    """`RetentionStore` over SQLAlchemy."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def sessions(self, after: tuple[str, str], limit: int) -> Sequence[Record]:
        """See `RetentionStore.sessions`."""
        return await self._reader.rows(_sessions, {"tenant": after[0], "session": after[1], "limit": limit})

    async def due(self, session: Row, before: int, tasks_before: int) -> Due | None:
        """See `RetentionStore.due`."""
        mine = {"tenant": session["tenant_id"], "session": session["id"]}
        at_work = await self._reader.row(_at_work, mine)
        if at_work is None or at_work["open"]:
            return None
        young = await self._reader.row(_young, {**mine, "before": before})
        untold = (await self._reader.row(_untold, mine) or {"seq": None})["seq"]
        ends = [session["next_seq"] - 1, *([young["seq"]] if young else []), *([untold] if untold else [])]
        upto = max(session["upto"], min(ends) - 1)
        rest = False
        if session["closed_at"] is not None:
            times = {"before": before, "tasks_before": min(before, tasks_before)}
            more = await self._reader.row(_more, {**mine, **times})
            rest = bool(more and more["more"]) or upto > session["upto"] or bool(await self.rows(session, 0, upto, 1))
        return Due(upto=upto, rest=rest) if upto > session["upto"] or rest else None

    async def rows(self, session: Row, after: int, upto: int, limit: int) -> Sequence[int]:
        """See `RetentionStore.rows`."""
        mine = {"tenant": session["tenant_id"], "session": session["id"]}
        found = await self._reader.rows(_rows, {**mine, "after": after, "upto": upto, "limit": limit})
        return [row["seq"] for row in found[: part_of([row["size"] for row in found])]]

    async def reached(self, session: Row) -> int:
        """See `RetentionStore.reached`."""
        row = await self._reader.row(_reached, {"tenant": session["tenant_id"], "session": session["id"]})
        return row["upto"] if row else 0
