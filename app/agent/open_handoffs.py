"""Which handoffs are open, whom their tasks end with, and what those are told who ask for one.

Begins none and carries none out (`handoff.py`).
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from app.agent.errors import Conflict, NotFound
from app.agent.ids import readable
from app.agent.open_handoff import OpenHandoff
from app.agent.orders import ResumePoint, TaskState
from app.agent.run_ports import Launcher
from app.agent.runs import HandoffStatus, Run, Session

ENDING_S = 5.0  # for a task that was told to end to say that it has

Row = Mapping[str, Any]


class HandoffRecords(Protocol):
    """Reads back what was recorded of handoffs, all of it. Keys of a row are the columns of its table."""

    async def handoff(self, tenant: str, handoff_id: str) -> Row | None:
        """One handoff."""

    async def handoffs(self, tenant: str, session_id: str) -> Sequence[Row]:
        """Those of a session, in the order of their starts."""

    async def removed(self, tenant: str, session_id: str, names: Collection[str]) -> str | None:
        """The id of one that is kept and not to be seen any more, and has such an id, name or run."""

    async def handoff_runs(self, tenant: str, handoff_id: str) -> Sequence[Row]:
        """The runs of one, in order."""


class OpenHandoffs:
    """All open handoffs of the service, and its background tasks among them."""

    def __init__(self, launcher: Launcher, records: HandoffRecords) -> None:
        self._launcher = launcher
        self._records = records
        self._open: dict[str, OpenHandoff] = {}
        self._background: dict[str, OpenHandoff] = {}  # of those

    def add(self, handoff: OpenHandoff, above: tuple[str, ...] = ()) -> None:
        """It is open from here on. `above`: the runs that it lies below, where whoever delegates does not say so."""
        by = handoff.by
        self._open[handoff.id] = handoff
        if not handoff.background:
            return
        self._background[handoff.id] = handoff
        if by.run is not None:
            handoff.owner = None if handoff.order.detached else by.run.id
            handoff.above = above or (by.run.id, *reversed(self._launcher.lineage(by.run)))

    def remove(self, handoff: OpenHandoff) -> None:
        """It has ended."""
        del self._open[handoff.id]
        self._background.pop(handoff.id, None)

    @property
    def in_flight(self) -> int:
        """How many are open."""
        return len(self._open)

    # ── looked at from outside ──────────────────────────────────────────────────────────────────────────────────

    def knows(self, handoff_id: str) -> bool:
        """Whether it is open in this process."""
        return handoff_id in self._open

    async def task(self, session: Session, task_id: str) -> TaskState | None:
        """A handoff of the session by its id, open or ended; None when there is none."""
        handoff = self._open.get(task_id)
        if handoff is not None:
            return handoff.state() if handoff.by.session.id == session.id else None
        row = await self._records.handoff(session.tenant, task_id)
        if row is None or row["session_id"] != session.id:
            return None
        return stored_state(row)

    async def tasks(self, session: Session) -> Sequence[TaskState]:
        """The background tasks of a session, in the order of their starts."""
        found: list[TaskState] = []
        for row in await self._records.handoffs(session.tenant, session.id):
            if row["background"]:
                handoff = self._open.get(row["id"])
                found.append(handoff.state() if handoff is not None else stored_state(row))
        return found

    async def resume_point(self, session: Session, wanted: str) -> ResumePoint:
        """What `wanted` names in a session: a task by its id, the id of one of its runs, or its readable name. Raises
        `NotFound` for what is none of these, `Conflict` for what has not ended or has no memory to go on with."""
        rows = await self._records.handoffs(session.tenant, session.id)
        names = wanted, readable(wanted)  # as it was given, or as it was made of that: labels, which give way to ids
        row = next((row for row in rows if wanted == row["id"] or wanted in (row["run_ids"] or ())), None)
        row = row or next((row for name in names for row in rows if name == row["name"]), None)
        open_ones = [h for h in self._open.values() if h.by.session.id == session.id]
        meant = {row["id"]} if row is not None else {*names}
        busy = next((h for h in open_ones if not meant.isdisjoint((h.id, h.name, *h.runs))), None)
        if busy is not None:
            raise Conflict(
                f"task {busy.id} has not ended: wait for its result, or cancel it, before it is resumed",
                code="task_running",
            )
        if row is None:
            if (gone := await self._records.removed(session.tenant, session.id, names)) is not None:
                raise NotFound(
                    f"task {gone} was removed, or is older than tasks.retention_h: nothing goes on with it",
                    code="task_gone",
                )
            raise NotFound(
                f"there is no task {wanted[:80]!r} in this session: resume takes the id of a task (ho_…), that of one "
                "of its runs (run_…), or its name",
                code="unknown_task",
            )
        runs = await self._records.handoff_runs(session.tenant, row["id"])
        run = next((each for each in runs if each["id"] == wanted), runs[-1] if runs else None)
        if run is None:
            raise Conflict(f"task {row['id']} never began: there is nothing to resume", code="nothing_to_resume")
        plans = {h.id: h.plan for h in self._open.values() if h.plan is not None and h.plan.alone}
        taken = next((task for task, plan in plans.items() if plan.memory_id == run["memory_id"]), None)
        if taken is not None:
            raise Conflict(
                f"task {taken} goes on with the memory of {row['id']}: wait for its result, or cancel it, before that "
                "is resumed once more",
                code="task_running",
            )
        return ResumePoint(
            task_id=row["id"],
            agent=run["agent"],
            name=row["name"],
            memory_id=run["memory_id"],
            shared=row["session_scope"] is not None,
        )

    # ── tasks and whom they end with ────────────────────────────────────────────────────────────────────────────

    def above(self, handoff_id: str) -> tuple[str, ...]:
        """The runs that a task lies below, nearest first."""
        handoff = self._background.get(handoff_id)
        return handoff.above if handoff is not None else ()

    def owner(self, handoff_id: str) -> str | None:
        """The run with which a task ends; None for none."""
        handoff = self._open.get(handoff_id)
        return handoff.owner if handoff is not None else None

    def adopt(self, run_id: str, heir: str | None) -> None:
        """A run has ended, and its tasks go on under the nearest one above it that is open."""
        for handoff in self._background.values():
            if handoff.owner == run_id:
                handoff.owner = heir

    def owned(self, run_ids: Collection[str]) -> list[OpenHandoff]:
        """The open tasks that end with one of these runs."""
        return [handoff for handoff in self._background.values() if handoff.owner in run_ids]

    def begun_in(self, session_id: str) -> list[tuple[str, Collection[str]]]:
        """The open tasks of a session, detached ones too, each with the runs that it lies below."""
        return [(h.id, h.above) for h in self._background.values() if h.by.session.id == session_id]

    async def ended(self, task_id: str, timeout_s: float) -> bool:
        """Wait for the end of a handoff; whether it came in that time. One that is not open has ended."""
        handoff = self._open.get(task_id)
        if handoff is None:
            return True
        return await handoff.ended_within(timeout_s)

    def works_on(self, run: Run, task_id: str) -> bool:
        """Whether a run belongs to that handoff, or lies anywhere below it."""
        handoff = self._open.get(task_id)
        if handoff is None:
            return False
        return run.handoff_id == task_id or not set(handoff.runs).isdisjoint(self._launcher.lineage(run))

    def person(self, handoff_id: str | None, asked: bool) -> None:
        """A person begins (`asked`) or ceases to be asked in a handoff or below it."""
        handoff = self._open.get(handoff_id or "")
        if handoff is None:
            return
        if asked:
            handoff.clock.hold()
        else:
            handoff.clock.go_on()

    async def cancel(self, session: Session, task_id: str) -> bool:
        """End a handoff: its run with everything below it, and every attempt to come; False when it had ended, or comes
        to another end all the same: that was decided before."""
        handoff = self._open.get(task_id)
        if handoff is None or handoff.by.session.id != session.id:
            return False
        mine = not handoff.ending.is_set()
        handoff.stop(HandoffStatus.CANCELLED)
        if mine and handoff.runs:
            await self._launcher.cancel(handoff.runs[-1])
        if handoff.background:
            await self.ended(task_id, ENDING_S)
        return mine and (handoff.final is None or handoff.final.status is HandoffStatus.CANCELLED)

    def stop(self, session_id: str | None = None, status: HandoffStatus = HandoffStatus.CANCELLED) -> None:
        """Begin nothing further in the handoffs of a session, or in all: neither an attempt nor a fallback. The runs
        that are under way are the launcher's to end."""
        for handoff in self._open.values():
            if session_id in (None, handoff.by.session.id):
                handoff.stop(status)

    async def settled(self, seconds: float, session_id: str | None = None) -> None:
        """Wait for the ends of the tasks that were stopped, in a session or in all, so long at most."""
        tasks = [h for h in self._background.values() if h.ending.is_set() and session_id in (None, h.by.session.id)]
        await asyncio.gather(*(handoff.ended_within(seconds) for handoff in tasks))


def stored_state(row: Row) -> TaskState:
    """What somebody who asks is told of one of which there is only its row."""
    status = HandoffStatus(row["status"])
    good = status in (HandoffStatus.COMPLETED, HandoffStatus.FALLBACK)
    return TaskState(
        task_id=row["id"],
        agent=row["agent"],
        name=row["name"],
        status=status,
        result=row["output"] or "" if good else None,
        error=None if good or not row["error"] else row["error"]["message"],
    )
