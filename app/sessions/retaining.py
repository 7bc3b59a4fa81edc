"""Removes what is older than the log is to be kept: from the front of each session, in small steps beside the writing.

Knows no SQL. What may go, and that a checkpoint takes its place, is decided once more in the transaction of each step
(`store/pruning.py`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.agent.errors import Unavailable
from app.agent.events import Write
from app.agent.ids import now_us
from app.sessions.journal import Journal
from app.sessions.ports import DAMAGED

log = logging.getLogger(__name__)

TABLE = "checkpoints"
EVERY_S = 3_600.0
FIRST_S = 30.0  # after a start there is other work
WITHIN_S = 60.0
AWAY_S = 5.0
SESSIONS, ROWS = 200, 100
_HOUR_US = 3_600_000_000

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What goes of a session: events up to `upto`, and `rest`, what a closed session has besides."""

    upto: int
    rest: bool


class RetentionStore(Protocol):
    """Reads what is old."""

    async def sessions(self, after: tuple[str, str], limit: int) -> Sequence[Row]:
        """Sessions of all tenants behind one, deleted ones too: `tenant_id`, `id`, `next_seq`, `closed_at`, `upto` (of
        the checkpoint, 0 for none) and `first` (the time of the oldest event, in µs)."""

    async def due(self, session: Row, before: int, tasks_before: int) -> Due | None:
        """What goes of a session, where events before `before` do; None: nothing, or it has work under way."""

    async def rows(self, session: Row, after: int, upto: int, limit: int) -> Sequence[int]:
        """The event numbers of messages that are left of a session, as many as one step removes."""

    async def reached(self, session: Row) -> int:
        """Up to which event the log of a session is removed."""


class Retaining:
    """One per process; used from the event loop. `hours`: how long events are kept; `task_hours`: tasks. `clock` gives
    the time in µs."""

    def __init__(
        self,
        journal: Journal,
        store: RetentionStore,
        *,
        hours: float,
        task_hours: float,
        clock: Callable[[], int] = now_us,
    ) -> None:
        self._journal = journal
        self._store = store
        self._hours = hours
        self._task_hours = task_hours
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look now and then from here on."""
        self._task = asyncio.create_task(self._work(), name="retention")

    async def close(self) -> None:
        """What is left is left to the next process."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _work(self) -> None:
        await asyncio.sleep(FIRST_S)
        while True:
            try:
                removed = await self.round()
                if removed:
                    log.info("%d events were older than audit.retention_h = %g and removed", removed, self._hours)
            except Exception:  # border of the task: what is old would stay for good, and nobody would know
                log.exception("retention did not get to all sessions; it is tried again in %g s", EVERY_S)
            await asyncio.sleep(EVERY_S)

    async def round(self) -> int:
        """Look at every session once; returns how many events went. One that fails does not stop the others."""
        removed, last = 0, ("", "")
        before = self._clock() - round(self._hours * _HOUR_US)
        while rows := await self._page(last):
            for row in rows:
                if row["first"] is None or row["first"] >= before:
                    continue
                try:
                    removed += await self._session(row, before)
                except Exception as error:  # noqa: BLE001  border of one session: the others are looked at
                    log.error("retention leaves session %s as it is: %s", row["id"], error)
            last = rows[-1]["tenant_id"], rows[-1]["id"]
        return removed

    async def _page(self, after: tuple[str, str]) -> Sequence[Row]:
        while True:
            try:
                return await self._store.sessions(after, SESSIONS)
            except Unavailable as error:
                if error.code == DAMAGED:  # that does not pass by itself, and somebody must hear of it
                    raise
                log.info("retention waits for the store: %s", error)
                await asyncio.sleep(AWAY_S)

    async def _session(self, row: Row, before: int) -> int:
        tasks_before = self._clock() - round(self._task_hours * _HOUR_US)
        due = await self._store.due(row, before, tasks_before)
        if due is None:
            return 0
        reached = row["upto"]
        while reached < due.upto:
            await self._step(row, upto=due.upto, created_at=self._clock())
            before_step, reached = reached, await self._store.reached(row)
            if reached <= before_step:
                break  # it has work under way again
        if due.rest:
            after = 0
            while found := await self._store.rows(row, after, due.upto, ROWS):
                await self._step(row, rows_after=after, rows_upto=found[-1])
                after = found[-1]
            await self._step(row, before=before, tasks_before=tasks_before)
        return int(reached - row["upto"])

    async def _step(self, row: Row, **asked: int) -> None:
        begun = asyncio.get_running_loop().time()
        values = {"tenant_id": row["tenant_id"], "session_id": row["id"], **asked}
        await self._journal.write_aside(Write(table=TABLE, values=values, key=("session_id",)), WITHIN_S)
        self._journal.recent.forget(row["id"])  # whatever becomes of the next step
        await asyncio.sleep(asyncio.get_running_loop().time() - begun)  # half of the time belongs to everybody else
