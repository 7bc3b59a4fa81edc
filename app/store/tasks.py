"""Reads background tasks back (`TaskStore`): handoffs that nobody waits for, without those that were removed.

One that was denied never became a task.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, exists, or_, select, true

from app.agent.runs import HandoffStatus
from app.sessions.audit import Page
from app.sessions.tasks import TaskFilter
from app.store.cursors import pack, under, unpack
from app.store.reader import Reader, Record
from app.store.tables import cleared_tasks, handoffs, runs

_ORDER = "tasks"

_mine = handoffs.c.tenant_id == bindparam("tenant")
_is_task = and_(handoffs.c.background.is_(true()), handoffs.c.status != HandoffStatus.DENIED.value)
_cleared = and_(cleared_tasks.c.tenant_id == handoffs.c.tenant_id, cleared_tasks.c.handoff_id == handoffs.c.id)


def listed(since: Any) -> ColumnElement[bool]:
    """Whether a handoff that has ended stands in the lists of tasks, where those do that ended at `since` (µs) or
    later."""
    return and_(_is_task, handoffs.c.ended_at >= since, ~exists().where(_cleared))


def _tasks(*conditions: ColumnElement[bool]) -> Select[Any]:
    found = select(handoffs, cleared_tasks.c.created_at.label("cleared_at"))
    return found.join(cleared_tasks, _cleared, isouter=True).where(_mine, _is_task, *conditions)


_task = _tasks(handoffs.c.id == bindparam("id"))
_cleared_of_session = select(cleared_tasks.c.handoff_id).where(
    cleared_tasks.c.tenant_id == bindparam("tenant"), cleared_tasks.c.session_id == bindparam("session")
)
_attempts = (
    select(runs)
    .where(runs.c.tenant_id == bindparam("tenant"), runs.c.handoff_id.in_(bindparam("handoffs", expanding=True)))
    .order_by(runs.c.handoff_id, runs.c.ordinal)
)


@cache
def _page(given: frozenset[str], *, after: bool) -> Select[Any]:
    conditions: list[ColumnElement[bool]] = [cleared_tasks.c.handoff_id.is_(None)]
    conditions += [handoffs.c[name] == bindparam(name) for name in sorted(given - {"ended", "ended_before"})]
    conditions.append(or_(handoffs.c.ended_at.is_(None), handoffs.c.ended_at >= bindparam("kept_since")))
    if "ended" in given:
        conditions.append(handoffs.c.ended_at.is_not(None))
    if "ended_before" in given:
        conditions.append(handoffs.c.ended_at < bindparam("ended_before"))
    if after:
        conditions.append(handoffs.c.id < bindparam("after"))
    return _tasks(*conditions).order_by(handoffs.c.id.desc()).limit(bindparam("limit"))


class SqlTaskStore:
    """`TaskStore` over SQLAlchemy."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def task(self, tenant: str, task_id: str) -> Mapping[str, Any] | None:
        """One task with `cleared_at`."""
        return await self._reader.row(_task, {"tenant": tenant, "id": task_id})

    async def tasks(self, tenant: str, filters: TaskFilter, *, cursor: str | None, limit: int) -> Page:
        """A page of tasks, newest first: ids are in the order of time."""
        wanted = {name: getattr(filters, name) for name in ("session_id", "status", "agent", "ended_before")}
        given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
        names = frozenset(given) | ({"ended"} if filters.ended else frozenset())
        parameters = {"tenant": tenant, "kept_since": filters.kept_since, "limit": limit + 1, **given}
        order = under(_ORDER, given)
        if cursor is not None:
            (parameters["after"],) = unpack(cursor, order, (str,))
        rows = await self._reader.rows(_page(names, after=cursor is not None), parameters)
        if len(rows) <= limit:
            return Page(items=rows)
        return Page(items=rows[:limit], next=pack(order, (rows[limit - 1]["id"],)))

    async def attempts(self, tenant: str, task_ids: Sequence[str]) -> Sequence[Record]:
        """The runs of these tasks, those of each by ordinal."""
        if not task_ids:
            return []
        return await self._reader.rows(_attempts, {"tenant": tenant, "handoffs": list(task_ids)})

    async def cleared(self, tenant: str, session_id: str) -> Collection[str]:
        """The ids of a session's tasks that were removed."""
        rows = await self._reader.rows(_cleared_of_session, {"tenant": tenant, "session": session_id})
        return frozenset(row["handoff_id"] for row in rows)
