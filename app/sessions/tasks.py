"""Background tasks as a client sees them: listed, fetched, cancelled, removed (spec 9.2, 14.10).

A task is a handoff that nobody waits for. Its rows are those of the handoff and of its runs; what is removed, or older
than the retention, is not shown any more and stays in the log. Knows no HTTP and no SQL.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from app.agent.errors import Conflict, InvalidRequest, NotFound
from app.agent.events import Write
from app.agent.ids import now_us
from app.agent.supervisor import RunSupervisor
from app.sessions.audit import Page
from app.sessions.journal import TAKE_S, Journal
from app.sessions.service import Sessions, not_taken_up
from app.sessions.views import task_view

Row = Mapping[str, Any]

WAIT_MS = 30_000
MOST_WAIT_MS = 600_000
ENDING_S = 5.0  # for a task that somebody else cancels to be over
RETENTION_H = 168.0
HOUR_US = 3_600_000_000
SECOND_US = 1_000_000
CLEARED_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks, newest first; None: all. `ended`: only those that have, with `ended_before` before that time;
    `kept_since`: none that ended before it. Times in µs."""

    session_id: str | None = None
    status: str | None = None
    agent: str | None = None
    ended: bool = False
    ended_before: int | None = None
    kept_since: int = 0


class TaskStore(Protocol):
    """Reads tasks back; every function takes the tenant. Keys of a row are the columns of its table."""

    async def task(self, tenant: str, task_id: str) -> Row | None:
        """One task, also one that was removed: then `cleared_at` is set."""

    async def tasks(self, tenant: str, filters: TaskFilter, *, cursor: str | None, limit: int) -> Page:
        """A page of tasks that were not removed. Raises `InvalidRequest` for a cursor that another list gave."""

    async def attempts(self, tenant: str, task_ids: Sequence[str]) -> Sequence[Row]:
        """The runs of these tasks, those of each in order."""

    async def cleared(self, tenant: str, session_id: str) -> Collection[str]:
        """The ids of a session's tasks that were removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long an ended task is shown."""

    hours: float = RETENTION_H
    now: Callable[[], int] = now_us

    def since(self) -> int:
        """What ended before this time, in µs, is shown no more."""
        return self.now() - int(self.hours * HOUR_US)

    def over(self, row: Row) -> bool:
        """Whether that holds for a handoff: for one that is no task it never does."""
        return bool(row["background"]) and row["ended_at"] is not None and row["ended_at"] < self.since()


class Tasks:
    """All background tasks of all tenants. One per process."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        supervisor: RunSupervisor,
        journal: Journal,
        store: TaskStore,
        retention: Retention,
    ) -> None:
        self._sessions = sessions
        self._handoffs = supervisor.handoffs
        self._journal = journal
        self._store = store
        self._retention = retention

    async def list(self, tenant: str, filters: TaskFilter, cursor: str | None, limit: int) -> dict[str, Any]:
        """A page of tasks, newest first. Raises `NotFound` for a session that there is not."""
        if filters.session_id is not None:
            await self._sessions.known(tenant, filters.session_id)
        await self._journal.settle()
        filters = replace(filters, kept_since=self._retention.since())
        page = await self._store.tasks(tenant, filters, cursor=cursor, limit=limit)
        runs: dict[str, list[Row]] = {}
        for run in await self._store.attempts(tenant, [row["id"] for row in page.items]):
            runs.setdefault(run["handoff_id"], []).append(run)
        return {"items": [task_view(row, runs.get(row["id"], ())) for row in page.items], "next": page.next}

    async def is_one(self, tenant: str, handoff_id: str) -> bool:
        """Whether a handoff is a task."""
        return await self._store.task(tenant, handoff_id) is not None

    async def get(self, tenant: str, task_id: str) -> dict[str, Any]:
        """One task. Raises `NotFound`: unknown, removed, or older than the retention."""
        row = await self._row(tenant, task_id)
        return task_view(row, await self._store.attempts(tenant, [task_id]))

    async def _row(self, tenant: str, task_id: str) -> Row:
        await self._journal.settle()
        row = await self._store.task(tenant, task_id)
        if row is None:
            raise NotFound(f"there is no background task {task_id!r}")
        if row["cleared_at"] is not None:
            raise NotFound(
                f"task {task_id} was removed: GET /v1/delegations/{task_id} still has it", code="task_removed"
            )
        if self._retention.over(row):
            raise NotFound(
                f"task {task_id} has expired: it ended more than {self._retention.hours:g} hours ago "
                f"(tasks.retention_h); GET /v1/delegations/{task_id} still has it",
                code="task_expired",
            )
        return row

    async def output(self, tenant: str, task_id: str, *, block: bool = True, timeout_ms: int = WAIT_MS) -> Row:
        """A task, once it has ended or `timeout_ms` is over; without `block` at once. `note` says when the wait was
        made shorter than wanted. Nobody's model is told less for it: its notice stays."""
        if timeout_ms < 0:
            raise InvalidRequest(
                f"timeout_ms is {timeout_ms}: send 0 to {MOST_WAIT_MS}",
                errors=[{"at": "timeout_ms", "message": f"0 to {MOST_WAIT_MS}"}],
            )
        row = await self._row(tenant, task_id)
        waited = min(timeout_ms, MOST_WAIT_MS) if block else 0
        if waited and row["ended_at"] is None:
            with contextlib.suppress(TimeoutError):  # the answer says how far it is
                async with asyncio.timeout(waited / 1000):
                    await self._sessions.gate(row["session_id"])  # one that an earlier process left is open after that
                    await self._handoffs.open.ended(task_id, waited / 1000)
        note = None
        if timeout_ms > MOST_WAIT_MS:
            note = f"timeout_ms {timeout_ms} was lowered to {MOST_WAIT_MS}, the most that is allowed"
        return await self.get(tenant, task_id) | {"note": note}

    async def cancel(self, tenant: str, task_id: str) -> dict[str, Any]:
        """End a task with everything below it; `cancelled` says whether this call did."""
        row = await self._row(tenant, task_id)
        session = await self._sessions.known(tenant, row["session_id"])
        cancelled = await self._handoffs.open.cancel(session, task_id)
        if not cancelled:
            await self._handoffs.open.ended(task_id, ENDING_S)  # somebody else may be ending it
            if not self._handoffs.open.knows(task_id) and (await self._row(tenant, task_id))["ended_at"] is None:
                raise not_taken_up(f"task {task_id}")
        await self._journal.flush(TAKE_S, of=session.id)
        return await self.get(tenant, task_id) | {"cancelled": cancelled}

    async def remove(self, tenant: str, task_id: str) -> None:
        """Take an ended task out of the lists. Raises `Conflict` for one that goes on."""
        row = await self._row(tenant, task_id)
        if row["ended_at"] is None:
            raise Conflict(
                f"task {task_id} has not ended: cancel it first (POST /v1/tasks/{task_id}/cancel), or wait for its end",
                code="task_running",
            )
        await self._clear([row])

    async def clear(self, tenant: str, session_id: str | None = None, older_than_s: int = 0) -> int:
        """Take all ended tasks of a session, or of the tenant, out of the lists: those that ended at least
        `older_than_s` ago; how many these were."""
        if session_id is not None:
            await self._sessions.known(tenant, session_id)
        await self._journal.settle()
        filters = TaskFilter(
            session_id=session_id,
            ended=True,
            ended_before=self._retention.now() - older_than_s * SECOND_US + 1,
            kept_since=self._retention.since(),
        )
        count, cursor = 0, None
        while True:
            page = await self._store.tasks(tenant, filters, cursor=cursor, limit=CLEARED_AT_ONCE)
            await self._clear(page.items)
            count, cursor = count + len(page.items), page.next
            if cursor is None:
                return count

    async def _clear(self, rows: Sequence[Row]) -> None:
        now = now_us()
        writes = (
            Write(
                table="cleared_tasks",
                values={
                    "tenant_id": row["tenant_id"],
                    "handoff_id": row["id"],
                    "session_id": row["session_id"],
                    "created_at": now,
                },
                key=("handoff_id",),
                keep=True,
            )
            for row in rows
        )
        await asyncio.gather(*(self._journal.write(write, TAKE_S) for write in writes))
