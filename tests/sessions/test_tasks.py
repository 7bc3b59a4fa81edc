"""Tasks over a store of one's own: what the service asks of it, and which rows are shown no more."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.agent.errors import NotFound, Unavailable
from app.sessions import tasks as tasks_module
from app.sessions.audit import Page
from app.sessions.records import Records
from app.sessions.requests import DelegationInput
from app.sessions.tasks import HOUR_US, Retention, TaskFilter, Tasks
from tests.sessions.writers import Wrapped
from tests.world import WAIT_S, World, agent, world

NOW = 1_800_000_000_000_000


class Shelf:
    """Tasks in a list."""

    def __init__(self, *rows: Mapping[str, Any]) -> None:
        self.rows = list(rows)
        self.asked: list[TaskFilter] = []

    async def task(self, tenant: str, task_id: str) -> Mapping[str, Any] | None:
        """One of them."""
        return next((row for row in self.rows if (row["tenant_id"], row["id"]) == (tenant, task_id)), None)

    async def tasks(self, tenant: str, filters: TaskFilter, *, cursor: str | None, limit: int) -> Page:
        """All of them, as one page."""
        self.asked.append(filters)
        return Page(items=[row for row in self.rows if row["tenant_id"] == tenant])

    async def attempts(self, tenant: str, task_ids: Sequence[str]) -> Sequence[Mapping[str, Any]]:
        """None was tried."""
        return []

    async def cleared(self, tenant: str, session_id: str) -> frozenset[str]:
        """Those that say so."""
        return frozenset(row["id"] for row in self.rows if row["cleared_at"] is not None)


def row(name: str, **fields: Any) -> dict[str, Any]:
    """A task that has ended an hour ago."""
    given: dict[str, Any] = dict.fromkeys(("error", "run_id", "run_ids", "cleared_at", "session_scope"))
    given |= {"tenant_id": "default", "id": name, "session_id": "ses_1", "background": True, "status": "completed"}
    given |= {"agent": "scout", "name": "north", "output": "x", "attempts": 1, "started_at": NOW - 2 * HOUR_US}
    return given | {"ended_at": NOW - HOUR_US} | fields


def tasks_over(w: World, shelf: Shelf, hours: float) -> Tasks:
    """The service over that store."""
    retention = Retention(hours=hours, now=lambda: NOW)
    return Tasks(sessions=w.sessions, supervisor=w.supervisor, journal=w.journal, store=shelf, retention=retention)


@pytest.mark.spec("9.2")
@pytest.mark.seed("002", 62)
async def test_tasks_may_be_kept_by_any_store_that_answers_the_questions_of_the_service(tmp_path: Path) -> None:
    shelf = Shelf(row("ho_1"), row("ho_2", cleared_at=NOW), row("ho_3", tenant_id="other"))
    async with world(tmp_path) as w:
        tasks = tasks_over(w, shelf, 3)
        assert (await tasks.get("default", "ho_1"))["result"] == "x"
        page = await tasks.list("default", TaskFilter(agent="scout"), None, 9)
        assert [item["task_id"] for item in page["items"]] == ["ho_1", "ho_2"]
        assert shelf.asked == [TaskFilter(agent="scout", kept_since=NOW - 3 * HOUR_US)]
        for name, code in (("ho_2", "task_removed"), ("ho_3", "not_found"), ("ho_4", "not_found")):
            with pytest.raises(NotFound) as gone:
                await tasks.get("default", name)
            assert gone.value.code == code


@pytest.mark.spec("9.2")
async def test_what_is_older_than_the_retention_is_gone_to_the_microsecond(tmp_path: Path) -> None:
    edge = NOW - 3 * HOUR_US
    shelf = Shelf(row("ho_1", ended_at=edge), row("ho_2", ended_at=edge - 1), row("ho_3", ended_at=None))
    async with world(tmp_path) as w:
        tasks = tasks_over(w, shelf, 3)
        assert (await tasks.get("default", "ho_1"))["status"] == "completed"
        assert (await tasks.get("default", "ho_3"))["task_id"] == "ho_3"
        with pytest.raises(NotFound, match="more than 3 hours ago") as gone:
            await tasks.get("default", "ho_2")
        assert gone.value.code == "task_expired"


@pytest.mark.spec("9.2", "9.4")
async def test_a_model_sees_no_task_that_was_removed_or_has_expired_but_every_call_it_waited_for(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        order = DelegationInput(agent=agent("worker", tools=[]), task="Hello.")
        first = await w.delegations.start("default", order)
        await first.result
        more = [DelegationInput(agent="worker", task="Hello.", session_id=first.session.id, background=True)] * 2
        others = [await w.delegations.start("default", each) for each in more]
        for other in others:
            await other.result
        removed, kept = [other.handoff_id for other in others]
        session = first.session
        real = Tasks(
            sessions=w.sessions, supervisor=w.supervisor, journal=w.journal, store=w.task_store, retention=Retention()
        )
        await real.remove("default", removed)
        seen = Records(w.journal, w.store, w.task_store, Retention())
        rows = await seen.handoffs("default", session.id)
        assert [each["id"] for each in rows] == [first.handoff_id, kept]
        assert await seen.handoff("default", removed) is None
        assert (await seen.handoff("default", kept) or {})["id"] == kept
        later = Records(w.journal, w.store, w.task_store, Retention(now=lambda: NOW + 10**6 * HOUR_US))
        assert [each["id"] for each in await later.handoffs("default", session.id)] == [first.handoff_id]


@pytest.mark.spec("9.2", "12.3")
async def test_the_removal_of_tasks_does_not_wait_without_end_for_a_store_that_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks_module, "TAKE_S", 0.01)
    held = Wrapped()
    async with world(tmp_path, wrap=held) as w:
        tasks = tasks_over(w, Shelf(row("ho_1")), 3)
        held.writer.gate.clear()
        for removal in (tasks.remove("default", "ho_1"), tasks.clear("default")):
            with pytest.raises(Unavailable) as away:
                async with asyncio.timeout(WAIT_S):
                    await removal
            assert away.value.code == "store_unavailable"
        held.writer.gate.set()
        await w.journal.flush()
        assert [each["handoff_id"] for each in await w.rows("cleared_tasks")] == ["ho_1"]
