"""Reads handoffs back for the kernel, with all that was recorded before (port `HandoffRecords`).

Tasks that were removed, or that are older than the retention, are not among them. Knows no SQL.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.agent.run_ports import RunStore
from app.sessions.journal import TAKE_S, Journal
from app.sessions.tasks import Retention, TaskStore


@dataclass(frozen=True, slots=True)
class Records:
    """What there is of handoffs. Everything raises `Unavailable` while the store takes nothing."""

    journal: Journal
    store: RunStore
    tasks: TaskStore
    retention: Retention

    async def handoff(self, tenant: str, handoff_id: str) -> Mapping[str, Any] | None:
        """One handoff."""
        await self.journal.flush(TAKE_S)
        row = await self.store.handoff(tenant, handoff_id)
        if row is None or await self._gone(tenant, row["session_id"], [row]):
            return None
        return row

    async def handoffs(self, tenant: str, session_id: str) -> Sequence[Mapping[str, Any]]:
        """Those of a session, in the order of their starts."""
        await self.journal.flush(TAKE_S)
        rows = await self.store.handoffs(tenant, session_id)
        gone = await self._gone(tenant, session_id, rows)
        return [row for row in rows if row["id"] not in gone]

    async def removed(self, tenant: str, session_id: str, names: Collection[str]) -> str | None:
        """The id of one that is kept and not to be seen any more, and has such an id, name or run."""
        rows = await self.store.handoffs(tenant, session_id)
        gone = await self._gone(tenant, session_id, rows)
        named = (row for row in rows if not set(names).isdisjoint((row["id"], row["name"], *(row["run_ids"] or ()))))
        return next((row["id"] for row in named if row["id"] in gone), None)

    async def _gone(self, tenant: str, session_id: str, rows: Sequence[Mapping[str, Any]]) -> set[str]:
        """Which of these are not to be seen any more."""
        gone = {row["id"] for row in rows if self.retention.over(row)}
        if any(row["background"] for row in rows):
            cleared = await self.tasks.cleared(tenant, session_id)
            gone.update(row["id"] for row in rows if row["id"] in cleared)
        return gone

    async def handoff_runs(self, tenant: str, handoff_id: str) -> Sequence[Mapping[str, Any]]:
        """The runs of one, in order."""
        await self.journal.flush(TAKE_S)
        return await self.store.handoff_runs(tenant, handoff_id)
