"""Memories whose context was shortened: what is read back is what the run had, and what is erased is in no summary."""

from typing import Any

import pytest

from app.agent import events as kinds
from app.agent.events import Event
from app.agent.messages import Message, Role
from app.agent.runs import Run, Shortened
from app.store.memories import PAGE
from tests.store.conftest import Store
from tests.store.facts import Facts
from tests.strict import history_problem

pytestmark = pytest.mark.spec("5.4", "12.2")
OPTIONAL = pytest.mark.parametrize("apart", [False, True], ids=["one batch", "one by one"])
SUMMARY = "[Summary] Done: looked."


def compacted(facts: Facts, run: Run, **changes: Any) -> Event:
    """The event of a context that was shortened."""
    payload = {
        "origin": "lead",
        "method": "summary",
        "attempt": 1,
        "before_tokens": 900,
        "after_tokens": 300,
        "window": 1000,
        "kept_from": 7,
        "task": 2,
        "summary": SUMMARY,
        "left_out": 4,
        "untold": 0,
        "cuts": None,
        "note": None,
    }
    return facts.event(run, kinds.COMPACTION, payload | changes)


def story(facts: Facts, run: Run, steps: int = 4) -> list[Event]:
    """A run of some steps with the texts `step <n>`: system 1, task 2, then a reply and its result for each step."""
    told = [facts.created(), facts.queued(run), facts.started(run), facts.message(run, "system", "S")]
    told.append(facts.message(run, "user", "task", sub=1))
    for step in range(1, steps + 1):
        told += facts.tool_step(run, step, f"step {step}")
    return told


def put(store: Store, told: list[Event], apart: bool) -> None:
    """Store events in one batch or each in its own."""
    for batch in [[event] for event in told] if apart else [told]:
        store.stored(*batch)


async def texts(store: Store, run: Run) -> list[tuple[int | None, str]]:
    """Numbers and texts of a memory as a run would go on with it."""
    state = await store.memories.load("default", run.memory_id)
    assert history_problem(state.messages) is None
    return [(message.seq, message.content) for message in state.messages]


@OPTIONAL
async def test_a_summary_stands_for_what_comes_before_and_prompt_and_task_stay(store: Store, apart: bool) -> None:
    facts = Facts()
    run = facts.run()
    put(store, [*story(facts, run), compacted(facts, run)], apart)
    assert await texts(store, run) == [
        (1, "S"),
        (2, "task"),
        (None, SUMMARY),
        (7, "step 3"),
        (8, "step 3"),
        (9, "step 4"),
        (10, "step 4"),
    ]
    state = await store.memories.load("default", run.memory_id)
    assert state.messages[2] == Message(role=Role.USER, content=SUMMARY)
    assert state.shortened == Shortened(kept_from=7, task=2, summary=SUMMARY)
    assert (state.next_turn, state.next_seq) == (1, 11)
    assert len(await store.rows("messages", memory_id=run.memory_id)) == 10, "the log has all of them"


@OPTIONAL
async def test_the_last_word_on_a_memory_holds_and_later_messages_follow(store: Store, apart: bool) -> None:
    facts = Facts()
    run = facts.run()
    told = [*story(facts, run), compacted(facts, run)]
    told += [compacted(facts, run, kept_from=9, task=None, summary="later", untold=3), *facts.tool_step(run, 5, "new")]
    put(store, told, apart)
    assert await texts(store, run) == [
        (1, "S"),
        (None, "later"),
        (9, "step 4"),
        (10, "step 4"),
        (11, "new"),
        (12, "new"),
    ]
    state = await store.memories.load("default", run.memory_id)
    assert state.shortened == Shortened(kept_from=9, summary="later", untold=3)


async def test_cut_results_are_cut_again_in_the_same_way(store: Store) -> None:
    facts = Facts()
    run = facts.run()
    long = story(facts, run, 0) + facts.tool_step(run, 1, "x" * 500)
    cut = compacted(
        facts, run, method="cut", kept_from=2, task=None, summary=None, cuts={"4": [10, 490]}, note="[{left_out} gone]"
    )
    put(store, [*long, cut], apart=False)
    assert await texts(store, run) == [(1, "S"), (2, "task"), (3, "x" * 500), (4, "x" * 10 + "[490 gone]")]
    (row,) = await store.rows("messages", role="tool")
    assert row["content"] == "x" * 500


async def test_a_memory_that_nobody_shortened_is_whole(store: Store) -> None:
    facts = Facts()
    run = facts.run()
    put(store, story(facts, run), apart=False)
    assert (await store.memories.load("default", run.memory_id)).shortened is None
    assert [seq for seq, _ in await texts(store, run)] == list(range(1, 11))


async def test_of_a_long_memory_only_what_stands_in_the_context_is_read(store: Store) -> None:
    facts = Facts()
    run = facts.run()
    told = [facts.created(), facts.queued(run), facts.message(run, "system", "S")]
    told += [facts.message(run, "user", str(number)) for number in range(2 * PAGE)]
    put(store, [*told, compacted(facts, run, kept_from=PAGE, task=3)], apart=False)
    found = await texts(store, run)
    assert found[:4] == [(1, "S"), (3, "1"), (None, SUMMARY), (PAGE, str(PAGE - 2))]
    assert len(found) == 3 + PAGE + 2


async def test_a_compaction_of_another_tenant_changes_nothing(store: Store) -> None:
    facts, other = Facts(), Facts("other")
    run = facts.run()
    theirs = other.run(memory_id=run.memory_id)
    put(store, story(facts, run), apart=False)
    put(store, [other.created(), other.queued(theirs), compacted(other, theirs)], apart=False)
    assert len(await texts(store, run)) == 10


@OPTIONAL
@pytest.mark.spec("4.9", "14.2")
@pytest.mark.parametrize("deleted", ["maker", "summariser"])
async def test_a_summary_goes_with_any_session_that_it_may_tell_of(store: Store, apart: bool, deleted: str) -> None:
    one = Facts()
    two = one.beside()
    first, second = (facts.run(memory_id="mem_shared", agent="scout") for facts in (one, two))
    told = [one.created(), *one.whole_run(first, text="secret")]
    told += [two.created(), *two.whole_run(second, text="kept"), compacted(two, second, summary="The secret is 42.")]
    put(store, told, apart)
    assert (None, "The secret is 42.") in await texts(store, second)
    gone, stays = (one, "kept") if deleted == "maker" else (two, "secret")
    put(store, [gone.closed("deleted")], apart)
    row = await store.row("memories", id="mem_shared")
    assert (row["summary"], row["summary_from"], row["shortened"]) == (None, None, None)
    assert {text for _, text in await texts(store, second)} - {"You count letters."} == {stays}


async def test_a_deleted_session_of_other_memories_leaves_a_summary_alone(store: Store) -> None:
    facts, other = Facts(), Facts()
    run = facts.run()
    put(store, [*story(facts, run), compacted(facts, run)], apart=False)
    put(store, [other.created(), *other.whole_run(other.run()), other.closed("deleted")], apart=False)
    assert (None, SUMMARY) in await texts(store, run)
