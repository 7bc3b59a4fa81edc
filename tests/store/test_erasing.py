"""Deleting a session: what goes, what stays, and what happens to memories that other sessions use as well."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from app.agent.events import Event
from app.store import statements
from app.store.database import Database
from tests.store.conftest import Store
from tests.store.facts import Facts, replaced
from tests.strict import history_problem

OPTIONAL = pytest.mark.parametrize("apart", [False, True], ids=["one batch", "one by one"])
SHARED = "mem_shared"


def put(store: Store, events: list[Event], apart: bool) -> None:
    if apart:
        for fact in events:
            store.stored(fact)
    else:
        store.stored(*events)


@OPTIONAL
@pytest.mark.spec("12.5", "14.2")
async def test_a_deleted_session_leaves_digests_and_nothing_that_was_said(store: Store, apart: bool) -> None:
    facts, other = Facts(), Facts()
    put(store, [other.created(), *other.whole_run(other.run(), text="stays")], apart)
    root = facts.run()
    story = [facts.created(user="ann"), facts.handoff(root, "ho_1"), *facts.whole_run(root, text="secret")]
    put(store, [*story, facts.closed("deleted")], apart)
    for table in ("messages", "tool_calls", "runs", "handoffs", "memories"):
        assert await store.rows(table, session_id=facts.session.id) == [], table
        assert (await store.rows(table, session_id=other.session.id) == []) is (table == "handoffs"), table
    row = await store.row("sessions", id=facts.session.id)
    assert (row["title"], row["user"], row["metadata"], row["config"]) == (None, None, {}, {})
    assert row["erased_at"] is not None
    assert await store.runs.session("default", facts.session.id) is None
    assert await store.log.head("default", facts.session.id) is None
    assert [e.type for e in await store.log.page("default", facts.session.id, after=0)] == ["session.closed"]
    sessions, _ = await store.runs.sessions("default", None, 10)
    assert [row["id"] for row in sessions] == [other.session.id]


@pytest.mark.spec("12.3", "14.2")
@pytest.mark.parametrize("size", [2, 5])
async def test_no_statement_erases_more_than_a_part_however_long_the_session_is(
    store: Store, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(statements, "PART", size)
    facts = Facts()
    story = [facts.created(), *facts.whole_run(facts.run(), text="secret")]
    store.stored(*story)
    assert len(story) == 15
    counts: list[int] = []

    def note(_connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(("UPDATE events", "DELETE FROM messages", "DELETE FROM tool_calls")):
            counts.append(cursor.rowcount)

    event.listen(Engine, "after_cursor_execute", note)
    try:
        store.stored(facts.closed("deleted"))
    finally:
        event.remove(Engine, "after_cursor_execute", note)
    assert max(counts) <= size
    assert [row["seq"] for row in await store.rows("events") if row["data"] is not None] == [16]
    for table in ("messages", "tool_calls"):
        assert await store.rows(table) == []


@pytest.mark.spec("14.2")
def test_what_a_deleted_session_said_is_gone_from_the_file(file: Path) -> None:
    database = Database(file)
    writer = database.writer(replaced)
    facts = Facts()
    writer.write([facts.created(), *facts.whole_run(facts.run(), steps=20, text="xyzzy-plugh " * 50)])
    writer.write([facts.closed("deleted")])
    writer.close()  # the last connection moves the log into the file
    assert b"xyzzy-plugh" not in file.read_bytes()


# ── memories that several sessions use ──────────────────────────────────────────────────────────────────────────


def turn(facts: Facts, text: str, name: str | None = None) -> list[Event]:
    """A whole run of the session on the shared memory."""
    return facts.whole_run(facts.run(memory_id=SHARED, agent="scout", name=name), text=text)


async def memory(store: Store) -> tuple[list[str], int, int]:
    """What the shared memory holds of texts, in order, and its counters."""
    state = await store.memories.load("default", SHARED)
    assert history_problem(state.messages) is None
    texts = [message.content for message in state.messages]
    return list(dict.fromkeys(texts)), state.next_turn, state.next_seq


@OPTIONAL
@pytest.mark.spec("4.9", "12.2", "14.2")
async def test_a_memory_outlives_the_session_that_made_it_and_its_numbers_go_on(store: Store, apart: bool) -> None:
    one = Facts()
    story = [one.created(), *turn(one, "secret", "sub_secret")]
    two = one.beside()
    story += [two.created(), *turn(two, "kept", "sub_kept"), *turn(one, "secret again")]
    put(store, story, apart)
    before = await memory(store)
    assert before[:2] == (["You count letters.", "secret", "kept", "secret again"], 3)
    put(store, [one.closed("deleted")], apart)
    assert await memory(store) == (["kept"], *before[1:])
    row = await store.row("memories", id=SHARED)
    assert (row["session_id"], row["agent"], row["name"]) == (two.session.id, "scout", "sub_kept")
    assert await store.rows("memories", session_id=one.session.id) == []
    put(store, turn(two, "next"), apart)
    places = [(m["turn"], m["memory_seq"]) for m in await store.rows("messages", memory_id=SHARED)]
    assert len({seq for _, seq in places}) == len(places)
    assert places == sorted(places)
    assert places[-1][0] == before[1], "the turn after the last one, erased or not"
    assert (await memory(store))[0] == ["kept", "next"]


@OPTIONAL
@pytest.mark.spec("4.9", "14.2")
async def test_a_memory_goes_with_the_last_session_that_uses_it(store: Store, apart: bool) -> None:
    one = Facts()
    two = one.beside()
    put(store, [one.created(), two.created(), *turn(one, "a"), *turn(two, "b")], apart)
    put(store, [two.closed("deleted")], apart)
    assert (await store.row("memories", id=SHARED))["session_id"] == one.session.id
    assert (await memory(store))[0] == ["You count letters.", "a"]
    three = one.beside()
    put(store, [three.created(), *turn(three, "c"), one.closed("deleted")], apart)
    assert (await memory(store))[0] == ["c"]
    put(store, [three.closed("deleted")], apart)
    assert await store.rows("memories", id=SHARED) == []
    assert await store.rows("messages") == []


@OPTIONAL
@pytest.mark.spec("4.9", "12.2")
async def test_a_run_that_waited_while_the_memory_was_erased_brings_its_numbers_back(store: Store, apart: bool) -> None:
    one = Facts()
    two = one.beside()
    put(store, [one.created(), two.created(), *turn(one, "secret")], apart)
    waiting = two.run(memory_id=SHARED, agent="scout")
    story = [two.queued(waiting), one.closed("deleted"), two.started(waiting)]
    said = two.message(waiting, "user", "kept", sub=1)
    put(store, [*story, said], apart)
    place = said.payload["memory_seq"]
    assert (waiting.turn, place) == (1, 6)
    assert await memory(store) == (["kept"], 2, place + 1)
    assert (await store.row("memories", id=SHARED))["session_id"] == two.session.id


@OPTIONAL
@pytest.mark.spec("4.9")
async def test_a_run_that_asks_for_the_memory_after_it_was_erased_keeps_it(store: Store, apart: bool) -> None:
    one = Facts()
    two = one.beside()
    put(store, [one.created(), two.created(), *turn(one, "secret")], apart)
    put(store, [one.closed("deleted"), two.queued(two.run(memory_id=SHARED, agent="scout"))], apart)
    row = await store.row("memories", id=SHARED)
    assert (row["session_id"], row["next_turn"], row["next_seq"]) == (two.session.id, 2, 1)


@pytest.mark.spec("14.2")
def test_erasing_a_session_reads_no_table_from_end_to_end(file: Path) -> None:
    seen: list[str] = []
    writer = Database(file).writer(replaced)
    one = Facts()
    two = one.beside()
    writer.write([one.created(), two.created(), *turn(one, "a"), *turn(two, "b")])

    def explain(connection: Connection, cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if statement.startswith(("UPDATE", "DELETE")):
            plan = connection.connection.cursor().execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            seen.extend(row[3] for row in plan)

    event.listen(Engine, "before_cursor_execute", explain)
    try:
        writer.write([one.closed("deleted")])
    finally:
        event.remove(Engine, "before_cursor_execute", explain)
        writer.close()
    assert any("ix_messages_memory" in line for line in seen), seen
    assert [line for line in seen if line.startswith("SCAN")] == []
