"""The front of a log goes for its age: a checkpoint stands for it, and whoever goes on finds what they need."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from app.agent import faults
from app.agent.events import Write
from app.agent.runs import Run, RunStatus
from app.sessions.ports import TransientStoreError
from app.sessions.verifying import Checked
from app.sessions.views import tree_view
from app.store.database import looking_connection, writing_connection
from app.store.pruning import STEP, STEP_BYTES
from app.store.retention import SqlRetentionStore
from app.store.search import TextIndex
from app.store.verifying import Chains
from tests.store.conftest import AUDIT_KEY, Store
from tests.store.facts import START, USAGE, Facts
from tests.store.test_search import found, indexed
from tests.store.test_tasks import ids
from tests.store.test_text_index import forgotten
from tests.strict import history_problem

NOW = START + 10**12


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    faults.disarm()


def step(facts: Facts, **asked: Any) -> Write:
    values = {"tenant_id": facts.session.tenant, "session_id": facts.session.id, **asked}
    return Write(table="checkpoints", values=values, key=("session_id",))


def pruned(store: Store, facts: Facts, upto: int) -> None:
    """Remove the front up to an event, as retention does."""
    for _ in range(upto // STEP + 1):
        store.stored(writes=[step(facts, upto=upto, created_at=NOW)])


def finished(store: Store, facts: Facts, tasks_before: int = NOW) -> None:
    """Remove what a closed session has besides."""
    rest = step(facts, before=NOW, tasks_before=tasks_before)
    store.stored(writes=[step(facts, rows_after=0, rows_upto=10**9), rest])


def check(store: Store, facts: Facts, key: bytes | None = AUDIT_KEY) -> Checked:
    with looking_connection(store.database.location) as connection:
        chains = Chains(connection, key)
        found = chains.check(facts.session.tenant, facts.session.id)
        assert found is not None
        return chains.with_rows(facts.session.tenant, facts.session.id, found)


def spoil(store: Store, statement: str, **values: Any) -> None:
    with writing_connection(store.database.location, "OFF", 1000) as connection, connection.begin():
        assert connection.execute(text(statement), values).rowcount


async def seqs(store: Store, table: str, facts: Facts) -> list[int]:
    return sorted(row["seq"] for row in await store.rows(table, session_id=facts.session.id))


def story(store: Store, turns: int = 3) -> Facts:
    """An idle session of some turns."""
    facts = Facts()
    store.stored(facts.created())
    for turn in range(turns):
        store.stored(*facts.whole_run(facts.run(), text=f"turn {turn}"))
    store.stored(facts.idle())
    return facts


@pytest.mark.spec("12.5")
async def test_the_front_goes_and_verifying_begins_at_the_checkpoint(store: Store) -> None:
    facts, beside = story(store), story(store)
    head = facts.seq
    pruned(store, facts, 20)
    assert await seqs(store, "events", facts) == list(range(21, head + 1))
    row = await store.row("checkpoints", session_id=facts.session.id)
    assert (row["upto"], row["removed"], row["created_at"]) == (20, 20, NOW)
    for key in (AUDIT_KEY, None):
        for shown, removed in ((check(store, facts, key), 20), (check(store, beside, key), 0)):
            assert (shown.flaw, shown.complete, shown.place.seq, shown.removed) == (None, True, head, removed)
    assert await store.log.oldest("default", facts.session.id) == 21
    assert await store.log.oldest("default", beside.session.id) == 1
    pruned(store, facts, 30)
    row = await store.row("checkpoints", session_id=facts.session.id)
    assert (row["upto"], row["removed"]) == (30, 30)
    assert check(store, facts).flaw is None
    store.stored(*facts.whole_run(facts.run(), text="after it"))
    assert check(store, facts).flaw is None


@pytest.mark.spec("12.5")
async def test_the_last_event_stays_whatever_its_age(store: Store) -> None:
    facts = story(store)
    store.stored(facts.closed())
    pruned(store, facts, facts.seq + 5)
    assert await seqs(store, "events", facts) == [facts.seq]
    assert (check(store, facts).flaw, check(store, facts).place.seq) == (None, facts.seq)


@pytest.mark.spec("12.5")
async def test_a_fault_behind_the_checkpoint_is_still_named(store: Store) -> None:
    facts = story(store)
    pruned(store, facts, 20)
    spoil(store, "UPDATE events SET data = :data WHERE session_id = :id AND seq = 25", data=b"{}", id=facts.session.id)
    flaw = check(store, facts).flaw
    assert flaw is not None
    assert (flaw.id, flaw.problem) == (25, "its data was changed")


CHANGES = {
    "removed": ("DELETE FROM checkpoints WHERE session_id = :id", 1, 1),
    "hash": ("UPDATE checkpoints SET hash = :other WHERE session_id = :id", 20, 21),
    "number": ("UPDATE checkpoints SET upto = 19 WHERE session_id = :id", 19, 20),
    "number ahead": ("UPDATE checkpoints SET upto = 22 WHERE session_id = :id", 22, 21),
    "count": ("UPDATE checkpoints SET removed = 3 WHERE session_id = :id", 20, None),
    "time": ("UPDATE checkpoints SET created_at = 5 WHERE session_id = :id", 20, None),
    "seal": ("UPDATE checkpoints SET mac = NULL WHERE session_id = :id", 20, None),
}


@pytest.mark.spec("12.5")
@pytest.mark.parametrize("change", CHANGES)
async def test_a_changed_checkpoint_is_found_with_the_key_and_without_it_as_far_as_can_be(
    store: Store, change: str
) -> None:
    facts = story(store)
    pruned(store, facts, 20)
    statement, with_key, without = CHANGES[change]
    values = {"id": facts.session.id, **({"other": bytes(32)} if ":other" in statement else {})}
    spoil(store, statement, **values)
    keyed, plain = check(store, facts).flaw, check(store, facts, None).flaw
    assert keyed is not None
    assert keyed.id == with_key
    assert (None if plain is None else plain.id) == without


@pytest.mark.spec("12.5")
async def test_a_front_that_was_cut_by_hand_with_a_checkpoint_of_its_own_is_found_with_the_key(store: Store) -> None:
    facts = story(store)
    right = (await store.rows("events", session_id=facts.session.id))[14]["hash"]
    spoil(store, "DELETE FROM events WHERE session_id = :id AND seq <= 15", id=facts.session.id)
    spoil(
        store,
        "INSERT INTO checkpoints (tenant_id, session_id, upto, hash, removed, created_at, mac) "
        "VALUES ('default', :id, 15, :hash, 15, 1, :mac)",
        id=facts.session.id, hash=right, mac=bytes(32),
    )  # fmt: skip
    assert check(store, facts, None).flaw is None, "this is what cannot be found"
    flaw = check(store, facts).flaw
    assert flaw is not None
    assert "the seal of the checkpoint" in flaw.problem
    pruned(store, facts, 20)
    assert check(store, facts, None).removed == 20
    flaw = check(store, facts).flaw
    assert flaw is not None, "the service has sealed what others made"
    assert "the checkpoint has no seal" in flaw.problem


@pytest.mark.spec("12.5")
async def test_a_front_with_a_fault_in_it_is_not_removed(store: Store) -> None:
    facts = story(store)
    spoil(store, "UPDATE events SET data = :data WHERE session_id = :id AND seq = 5", data=b"{}", id=facts.session.id)
    (refused,) = store.write(writes=[step(facts, upto=20, created_at=NOW)])
    assert "not sound at event 5" in refused.reason
    assert (await seqs(store, "events", facts))[:2] == [1, 2]
    assert await store.rows("checkpoints") == []
    flaw = check(store, facts).flaw
    assert flaw is not None
    assert flaw.id == 5


@pytest.mark.spec("12.5")
async def test_events_and_checkpoint_go_together_or_not_at_all(store: Store) -> None:
    facts = story(store)

    def lost() -> None:
        raise TransientStoreError("the process died")

    for point in ("store.commit", "store.committed"):
        faults.arm(point, lost)
        with pytest.raises(TransientStoreError):
            store.write(writes=[step(facts, upto=20, created_at=NOW)])
        faults.disarm()
        assert check(store, facts).flaw is None
        assert await store.rows("checkpoints") == [] or point == "store.committed"
    store.stored(writes=[step(facts, upto=20, created_at=NOW)])  # its answer was lost, so it comes again
    row = await store.row("checkpoints", session_id=facts.session.id)
    assert (row["upto"], row["removed"]) == (20, 20)


@pytest.mark.spec("12.5", "12.7")
async def test_a_session_with_work_under_way_keeps_all_of_its_log(store: Store) -> None:
    facts = story(store)
    run = facts.run()
    store.stored(facts.queued(run), facts.started(run))
    pruned(store, facts, 20)
    assert (await seqs(store, "events", facts))[0] == 1
    retention = SqlRetentionStore(store.database.reader)
    (session,) = await retention.sessions(("", ""), 10)
    assert await retention.due(session, NOW, NOW) is None
    store.stored(facts.ended(run))
    pruned(store, facts, 20)
    assert (await seqs(store, "events", facts))[0] == 21


@pytest.mark.spec("12.5", "9.4")
async def test_an_open_session_keeps_its_memory_its_runs_and_what_its_budget_counts(store: Store) -> None:
    facts = story(store)
    before = await store.memories.load("default", facts.session.memory_id)
    spent = await store.runs.spent("default", facts.session.id, "USD")
    counters = await store.runs.counters("default", facts.session.id)
    pruned(store, facts, facts.seq)
    assert await store.memories.load("default", facts.session.memory_id) == before
    assert await store.runs.spent("default", facts.session.id, "USD") == spent
    assert await store.runs.counters("default", facts.session.id) == counters
    assert {row["arguments"] for row in await store.rows("tool_calls")} == {""}
    assert check(store, facts).flaw is None, "messages that were kept have no event any more, and that is no fault"
    store.stored(*facts.whole_run(facts.run(), text="and on"))
    after = await store.memories.load("default", facts.session.memory_id)
    assert history_problem(after.messages) is None
    assert after.messages[: len(before.messages)] == before.messages


@pytest.mark.spec("12.5", "5.4")
async def test_what_a_shortened_memory_does_not_look_at_any_more_goes(store: Store) -> None:
    facts = story(store)
    spoil(
        store,
        "UPDATE memories SET summary = 'so far', summary_from = 9 WHERE id = :id",
        id=facts.session.memory_id,
    )
    before = await store.memories.load("default", facts.session.memory_id)
    pruned(store, facts, facts.seq)
    assert await store.memories.load("default", facts.session.memory_id) == before
    kept = [row["memory_seq"] for row in await store.rows("messages", session_id=facts.session.id)]
    assert sorted(kept)[:2] == [1, 9], "the system prompt, and from there on"


@pytest.mark.spec("12.4", "12.5")
async def test_a_closed_session_keeps_nothing_that_is_old(store: Store) -> None:
    facts, stays = story(store), story(store)
    await indexed(store)
    pruned(store, facts, 20)  # while it was open
    store.stored(facts.closed())
    pruned(store, facts, facts.seq)
    finished(store, facts)
    for table in ("messages", "tool_calls", "runs", "memories", "decisions"):
        assert await store.rows(table, session_id=facts.session.id) == [], table
    assert len(await store.rows("runs", session_id=stays.session.id)) == 3
    assert check(store, facts).flaw is None
    assert check(store, stays).flaw is None
    hits = await found(store, "turn 1")
    await forgotten(store)
    assert len(await TextIndex(store.database.reader).candidates("default", "turn 1") or ()) == len(hits)
    assert len(hits) == len([r for r in await store.rows("messages") if r["content"] == "turn 1"]) > 0
    retention = SqlRetentionStore(store.database.reader)
    rows = {row["id"]: row for row in await retention.sessions(("", ""), 10)}
    assert await retention.due(rows[facts.session.id], NOW, NOW) is None, "it is done"


def with_tasks(store: Store) -> tuple[Facts, Run, Run]:
    """A closed session with a delegation that somebody waited for, a task `ho_task` of two attempts with a delegation
    below it, one that was removed from the lists, and one that was denied; and the two runs of the task."""
    facts = Facts()
    lead = facts.run()
    store.stored(facts.created(), facts.queued(lead, "a secret"), facts.started(lead))
    for handoff, background in (("ho_waited", False), ("ho_removed", True)):
        run = facts.run(parent=lead, agent="scout", handoff_id=handoff)
        store.stored(facts.handoff(lead, handoff, background=background), facts.queued(run), facts.ended(run))
        store.stored(facts.handed_back(lead, handoff, [run.id]))
    values = {"tenant_id": "default", "handoff_id": "ho_removed", "session_id": facts.session.id, "created_at": START}
    store.stored(writes=[Write(table="cleared_tasks", values=values, key=("handoff_id",), keep=True)])
    denied = facts.handoff(lead, "ho_denied", background=True)
    store.stored(denied, facts.handed_back(lead, "ho_denied", [], status="denied", attempts=0))
    first, second = (facts.run(parent=lead, agent="scout", handoff_id="ho_task") for _ in range(2))
    below = facts.run(parent=second, agent="scout", handoff_id="ho_below")
    store.stored(facts.handoff(lead, "ho_task", background=True), facts.queued(first))
    store.stored(facts.ended(first, RunStatus.FAILED, error={"code": "x", "message": "x"}), facts.queued(second))
    store.stored(facts.handoff(second, "ho_below"), facts.queued(below), facts.ended(below))
    store.stored(facts.handed_back(second, "ho_below", [below.id]))
    total = {**USAGE, "input_tokens": 2 * USAGE["input_tokens"]}
    store.stored(facts.ended(second, usage_total=total), facts.handed_back(lead, "ho_task", [first.id, second.id]))
    store.stored(facts.ended(lead), facts.closed())
    return facts, first, second


@pytest.mark.spec("12.4", "12.5", "9.2")
async def test_of_what_a_closed_session_ran_only_tasks_that_are_listed_stay_longer_with_their_runs(
    store: Store,
) -> None:
    facts, first, second = with_tasks(store)
    session, mine = facts.session.id, ("default", facts.session.id)
    task = await store.tasks.task("default", "ho_task")
    runs_of_task = await store.tasks.attempts("default", ["ho_task"])
    assert task is not None
    retention = SqlRetentionStore(store.database.reader)
    since = task["ended_at"]
    pruned(store, facts, facts.seq)
    (row,) = await retention.sessions(("", ""), 10)
    due = await retention.due(row, NOW, since)
    assert due is not None
    assert due.rest
    finished(store, facts, since)
    assert [row["id"] for row in await store.runs.handoffs(*mine)] == ["ho_task"]
    assert [row["id"] for row in await store.runs.runs(*mine)] == [first.id, second.id]
    assert await store.tasks.attempts("default", ["ho_task"]) == runs_of_task, "the earlier attempt too"
    assert await ids(store, kept_since=since) == ["ho_task"]
    (row,) = await retention.sessions(("", ""), 10)
    assert await retention.due(row, NOW, since) is None, "what stays is not looked at again and again"
    seen = tree_view(session, await store.runs.runs(*mine), await store.runs.handoffs(*mine))
    assert [node["id"] for node in seen["runs"]] == [first.id, second.id], "the runs above and below them are gone"
    assert seen["runs"][1]["usage_total"] == runs_of_task[1]["usage_total"], "what ran below it was used all the same"
    assert check(store, facts).flaw is None
    due = await retention.due(row, NOW, since + 1)
    assert due is not None
    assert due.rest
    finished(store, facts, since + 1)
    assert await store.rows("runs") == await store.rows("handoffs") == []
    assert check(store, facts).flaw is None


@pytest.mark.spec("12.5", "9.2")
async def test_tasks_go_with_the_log_where_they_are_listed_for_less(store: Store) -> None:
    facts, _, _ = with_tasks(store)
    pruned(store, facts, facts.seq)
    finished(store, facts, 10 * NOW)
    assert await store.rows("runs") == await store.rows("handoffs") == []


@pytest.mark.spec("12.5", "4.9")
async def test_a_memory_that_an_open_session_uses_as_well_is_left_whole(store: Store) -> None:
    one = Facts()
    shared = "mem_shared"
    store.stored(one.created(), *one.whole_run(one.run(memory_id=shared, agent="scout"), text="first"))
    two = one.beside()
    store.stored(two.created(), *two.whole_run(two.run(memory_id=shared, agent="scout"), text="second"))
    before = await store.memories.load("default", shared)
    store.stored(one.closed())
    pruned(store, one, one.seq)
    finished(store, one)
    assert (await store.memories.load("default", shared)).messages == before.messages
    store.stored(two.closed())
    pruned(store, two, two.seq)
    finished(store, two)
    finished(store, one)
    assert await store.rows("messages") == []


@pytest.mark.spec("12.5", "4.9")
async def test_a_memory_that_sessions_to_come_may_use_goes_as_a_whole_once_all_of_it_is_old(store: Store) -> None:
    one, shared = Facts(), "mem_of_user"
    told = [one.created(), *one.whole_run(one.run(memory_id=shared, agent="scout"), text="first")]
    store.stored(*told)
    two = one.beside()
    store.stored(two.created(), *two.whole_run(two.run(memory_id=shared, agent="scout"), text="second"))
    store.stored(one.closed(), two.closed())
    before = await store.memories.load("default", shared)
    assert history_problem(before.messages) is None
    cut = next(event.seq for event in told if event.type == "tool.result") - 1
    pruned(store, one, cut)
    finished(store, one)
    assert await store.memories.load("default", shared) == before, "it is not cut in the middle of an exchange"
    pruned(store, one, one.seq)
    finished(store, one)
    assert await store.memories.load("default", shared) == before, "the other session is younger"
    pruned(store, two, two.seq - 4)
    finished(store, two)
    assert await store.memories.load("default", shared) == before
    pruned(store, two, two.seq)
    late = two.beside()
    run = late.run(memory_id=shared, agent="scout")
    store.stored(late.created(), late.queued(run))
    finished(store, two)
    left = await store.memories.load("default", shared)
    assert left.messages == before.messages, "a run is about to go on with it"
    store.stored(late.ended(run))
    finished(store, one)
    assert await store.rows("messages") == []
    assert await store.rows("memories", id=shared) == [], "its summary would tell of them"
    for facts in (one, two):
        assert check(store, facts).flaw is None


@pytest.mark.spec("12.3", "12.5")
async def test_a_step_is_bounded_by_bytes_as_well_and_removes_at_least_one_event(store: Store) -> None:
    facts = Facts()
    run = facts.run()
    sizes = [STEP_BYTES // 2 - 1000] * 3 + [STEP_BYTES * 2] * 2
    store.stored(facts.created(), facts.queued(run), *(facts.message(run, "user", "x" * size) for size in sizes))
    store.stored(facts.ended(run), facts.closed())
    reached = []
    for _ in range(5):
        store.stored(writes=[step(facts, upto=facts.seq, created_at=NOW)])
        reached.append((await store.row("checkpoints", session_id=facts.session.id))["upto"])
    assert reached == [4, 5, 6, 7, 8]
    assert check(store, facts).flaw is None


@pytest.mark.spec("12.5", "14.2")
async def test_a_deleted_session_loses_its_front_as_well(store: Store) -> None:
    facts = story(store)
    store.stored(facts.closed("deleted"))
    pruned(store, facts, facts.seq)
    finished(store, facts)
    assert await seqs(store, "events", facts) == [facts.seq]
    assert check(store, facts).flaw is None


@pytest.mark.spec("12.5", "9.9")
async def test_what_is_due_ends_before_what_is_young_and_before_what_is_to_be_told(store: Store) -> None:
    facts = story(store)
    retention = SqlRetentionStore(store.database.reader)
    (session,) = await retention.sessions(("", ""), 10)
    due = await retention.due(session, START + 10 * 15, NOW)
    assert due is not None
    assert (due.upto, due.rest) == (14, False)
    assert await retention.due(session, START, NOW) is None
    due = await retention.due(session, NOW, NOW)
    assert due is not None
    assert due.upto == facts.seq - 1
    values = {
        "tenant_id": "default", "id": "run_x", "session_id": facts.session.id, "host": "h", "url": "http://h",
        "status": "pending", "attempts": 0, "event_seq": 12, "next_at": 1, "created_at": 1,
    }  # fmt: skip
    store.stored(writes=[Write(table="webhooks", values=values)])
    due = await retention.due(session, NOW, NOW)
    assert due is not None
    assert due.upto == 11
