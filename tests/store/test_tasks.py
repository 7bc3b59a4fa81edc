"""Background tasks read back: which there are, in which order, and that what was removed is gone with its session."""

from typing import Any

import pytest

from app.agent.errors import InvalidRequest
from app.agent.events import Event, Write
from app.agent.runs import RunStatus
from app.sessions.tasks import TaskFilter
from tests.store.conftest import Store
from tests.store.facts import START, Facts


def task(facts: Facts, number: int, status: str | None = "completed", **fields: Any) -> list[Event]:
    """A task, ended or not, with one run."""
    name = f"ho_{number}"
    run = facts.run(agent="scout", handoff_id=name)
    story = [facts.handoff(None, name, background=True, **fields), facts.queued(run), facts.started(run)]
    if status is not None:
        error = None if status == "completed" else {"code": "x", "message": "x"}
        story += [
            facts.ended(run, RunStatus(status)),
            facts.handed_back(None, name, [run.id], status=status, error=error),
        ]
    return story


async def ids(store: Store, **filters: Any) -> list[str]:
    """The ids in a list, by pages of two."""
    found: list[str] = []
    cursor = None
    while True:
        page = await store.tasks.tasks("default", TaskFilter(**filters), cursor=cursor, limit=2)
        found += [row["id"] for row in page.items]
        cursor = page.next
        if cursor is None:
            return found


def cleared(facts: Facts, handoff_id: str) -> Write:
    """The row of one that was removed."""
    values = {"tenant_id": "default", "handoff_id": handoff_id, "session_id": facts.session.id, "created_at": START}
    return Write(table="cleared_tasks", values=values, key=("handoff_id",), keep=True)


@pytest.mark.spec("9.2", "14.10")
async def test_tasks_are_narrowed_by_all_that_a_filter_says_and_read_newest_first(store: Store) -> None:
    facts, other = Facts(), Facts(ts=START + 10**9)
    store.stored(facts.created(), facts.handoff(None, "ho_0"))  # somebody waits for this one
    for number, status in enumerate(("completed", "failed", None, "completed"), 1):
        store.stored(*task(facts, number, status, subagent="scout" if number < 4 else "reviewer"))
    store.stored(other.created(), *task(other, 5))
    begun = other.handoff(None, "ho_6", background=True)
    store.stored(begun, other.handed_back(None, "ho_6", [], status="denied", attempts=0))
    assert await ids(store) == ["ho_5", "ho_4", "ho_3", "ho_2", "ho_1"]
    assert await ids(store, session_id=facts.session.id) == ["ho_4", "ho_3", "ho_2", "ho_1"]
    assert await ids(store, status="completed") == ["ho_5", "ho_4", "ho_1"]
    assert await ids(store, agent="reviewer") == ["ho_4"]
    assert await ids(store, ended=True, session_id=facts.session.id) == ["ho_4", "ho_2", "ho_1"]
    assert await ids(store, kept_since=START + 10**9) == ["ho_5", "ho_3"]
    assert await ids(store, ended=True, ended_before=START + 10**9) == ["ho_4", "ho_2", "ho_1"]
    assert await store.tasks.task("default", "ho_0") is None
    assert await store.tasks.task("default", "ho_6") is None


@pytest.mark.spec("9.2", "14.2")
async def test_one_that_was_removed_is_told_apart_and_forgotten_with_its_session(store: Store) -> None:
    facts, other = Facts(), Facts()
    store.stored(facts.created(), *task(facts, 1), *task(facts, 2))
    store.stored(other.created(), *task(other, 3), writes=[cleared(other, "ho_3")])
    store.stored(writes=[cleared(facts, "ho_1"), cleared(facts, "ho_1")])
    assert await ids(store) == ["ho_2"]
    row = await store.tasks.task("default", "ho_1")
    assert row is not None
    assert (row["cleared_at"], row["output"]) == (START, row["output"])
    assert await store.tasks.cleared("default", facts.session.id) == {"ho_1"}
    assert [run["handoff_id"] for run in await store.tasks.attempts("default", ["ho_1", "ho_2"])] == ["ho_1", "ho_2"]
    assert await store.tasks.attempts("default", []) == []
    store.stored(facts.closed("deleted"))
    assert await store.tasks.cleared("default", facts.session.id) == set()
    assert await store.tasks.cleared("default", other.session.id) == {"ho_3"}


@pytest.mark.spec("9.2", "14.10")
async def test_a_cursor_of_other_filters_is_refused(store: Store) -> None:
    facts = Facts()
    store.stored(facts.created())
    for number in range(1, 5):
        store.stored(*task(facts, number, "completed", subagent="scout"))
    choices: list[dict[str, Any]] = [{}, {"agent": "scout"}, {"status": "completed"}, {"session_id": facts.session.id}]
    for given in choices:
        page = await store.tasks.tasks("default", TaskFilter(**given), cursor=None, limit=2)
        for other in choices:
            asked = TaskFilter(**other, kept_since=1)  # which moves on by itself and is no choice
            if given == other:
                rest = await store.tasks.tasks("default", asked, cursor=page.next, limit=2)
                assert [row["id"] for row in rest.items] == ["ho_2", "ho_1"]
            else:
                with pytest.raises(InvalidRequest) as caught:
                    await store.tasks.tasks("default", asked, cursor=page.next, limit=2)
                assert caught.value.code == "invalid_cursor"
