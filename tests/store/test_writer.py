"""The writer: one transaction for a batch, one bad row costs itself alone, an absent store loses nothing."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from app.agent import events as kinds
from app.agent import faults
from app.agent.events import Write
from app.sessions.ports import TransientStoreError
from app.store.database import Database
from app.store.writer import SqlWriter
from tests.store.conftest import Store
from tests.store.facts import Facts, replaced


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    faults.disarm()


def lost() -> None:
    """At the fault point behind a commit."""
    raise TransientStoreError("the connection broke while the answer was on its way")


def key_row(name: str = "one", **changes: object) -> dict[str, object]:
    row = {"tenant_id": "default", "id": f"key_{name}", "name": name, "hash": name.encode(), "scopes": ["run"]}
    return row | {"created_at": 1} | changes


@pytest.mark.spec("12.3")
async def test_a_batch_of_several_sessions_is_stored_with_its_rows(store: Store) -> None:
    one, two = Facts(), Facts(tenant="other")
    first = [one.created(), *one.whole_run(one.run(), steps=2)]
    second = [two.created(), *two.whole_run(two.run())]
    store.stored(*first, *second)
    assert await store.number("SELECT count(*) FROM events") == len(first) + len(second)
    page = await store.log.page("default", one.session.id, after=0)
    assert [(e.seq, e.type, e.envelope, e.data) for e in page] == [(e.seq, e.type, e.envelope, e.data) for e in first]
    assert await store.log.head("other", two.session.id) == len(second)
    assert len(await store.rows("messages", tenant_id="default")) == 7
    assert len(await store.rows("tool_calls", tenant_id="other")) == 1


@pytest.mark.spec("12.3")
async def test_nothing_of_a_batch_is_stored_when_its_commit_fails(store: Store) -> None:
    facts = Facts()
    store.stored(facts.created())
    batch = facts.whole_run(facts.run())

    def fail() -> None:
        raise TransientStoreError("the disk is gone")

    faults.arm("store.commit", fail)
    with pytest.raises(TransientStoreError, match="the disk is gone"):
        store.write(*batch)
    assert await store.log.head("default", facts.session.id) == 1
    assert await store.rows("runs") == []
    faults.disarm()
    store.stored(*batch)
    assert await store.log.head("default", facts.session.id) == facts.seq


@pytest.mark.spec("12.3")
async def test_a_batch_whose_commit_was_not_confirmed_is_not_stored_twice(store: Store) -> None:
    facts = Facts()
    batch = [facts.created(), *facts.whole_run(facts.run())]
    lone = Write(table="api_keys", values=key_row())
    faults.arm("store.committed", lost)
    with pytest.raises(TransientStoreError):
        store.write(*batch, writes=[lone])
    faults.disarm()
    assert list(store.write(*batch, facts.idle(), writes=[lone])) == []
    assert await store.log.head("default", facts.session.id) == facts.seq
    assert len(await store.rows("messages")) == 5
    assert len(await store.rows("api_keys")) == 1


@pytest.mark.spec("12.3")
@pytest.mark.case("B171")
async def test_a_locked_database_is_told_after_the_busy_timeout_and_nothing_is_lost(sqlite_store: Store) -> None:
    facts = Facts()
    sqlite_store.stored(facts.created())
    with sqlite_store.database._connect() as connection:  # it waits as long as it was told to, and no longer
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 300
    other = sqlite3.connect(sqlite_store.database.location.path or "", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    batch = facts.whole_run(facts.run())
    async with asyncio.timeout(30):
        with pytest.raises(TransientStoreError, match="locked"):
            await asyncio.to_thread(sqlite_store.write, *batch)
    assert await sqlite_store.log.head("default", facts.session.id) == 1  # reading goes on meanwhile
    other.execute("COMMIT")
    other.close()
    sqlite_store.stored(*batch)
    assert await sqlite_store.log.head("default", facts.session.id) == facts.seq


@pytest.mark.spec("12.3")
@pytest.mark.parametrize(
    ("pragma", "word"), [("query_only=ON", "readonly"), ("max_page_count=1", "full")], ids=["read-only", "disk full"]
)
def test_a_store_that_takes_no_writes_is_tried_again_later(file: Path, pragma: str, word: str) -> None:
    database = Database(file)
    broken = [True]

    def connect() -> Connection:
        connection = database._connect()
        if broken[0]:
            connection.connection.cursor().execute(f"PRAGMA {pragma}")
        return connection

    writer = SqlWriter(connect, replaced)
    facts = Facts()
    batch = [facts.created(), *facts.whole_run(facts.run(), steps=30, text="x" * 4000)]
    with pytest.raises(TransientStoreError, match=word):
        writer.write(batch)
    broken[0] = False
    assert list(writer.write(batch)) == []
    writer.close()


WITH_LITTLE_MEMORY = """
import sys
from app.sessions.ports import TransientStoreError
from app.store.database import Database
from app.store.writer import SqlWriter
from tests.store.facts import Facts, replaced

database = Database(sys.argv[1])

def connect():
    connection = database._connect()
    connection.exec_driver_sql("PRAGMA hard_heap_limit=1000000")
    connection.commit()
    return connection

facts = Facts(session_id="ses_large")
try:
    print(SqlWriter(connect, replaced).write([facts.created(), facts.queued(facts.run(), "x" * 3_000_000)]))
except TransientStoreError as error:
    print("again:", error)
"""


@pytest.mark.spec("12.3")
async def test_memory_that_sqlite_cannot_have_costs_no_event(sqlite_store: Store) -> None:
    asked = [sys.executable, "-c", WITH_LITTLE_MEMORY, str(sqlite_store.database.location.path)]
    told = await asyncio.to_thread(subprocess.run, asked, capture_output=True, text=True, check=True)
    assert told.stdout.startswith("again: the store takes no writes"), told.stdout
    assert await sqlite_store.log.head("default", "ses_large") is None


@pytest.mark.postgres
@pytest.mark.spec("12.1", "12.3")
async def test_a_lost_connection_to_postgresql_is_opened_again(postgres_url: str) -> None:
    database = Database(postgres_url)
    await database.open()
    store = Store(database)
    facts = Facts()
    store.stored(facts.created())
    await store.number("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE state = 'idle'")
    batch = facts.whole_run(facts.run())
    with pytest.raises(TransientStoreError):
        store.write(*batch)
    store.stored(*batch)
    assert await store.log.head("default", facts.session.id) == facts.seq
    store.writer.close()
    await database.close()


# ── bad rows ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("11.2", "12.3")
async def test_a_bad_event_is_replaced_under_its_number_and_the_rest_is_stored(store: Store) -> None:
    facts = Facts()
    run = facts.run()
    before = [facts.created(), facts.queued(run), facts.started(run)]
    bad = facts.message(run, "user", "hello", turn=2**70)
    after = [facts.message(run, "assistant", "hi"), facts.ended(run)]
    (rejected,) = store.write(*before, bad, *after)
    assert rejected.event is bad
    assert rejected.replacement is not None
    assert rejected.replacement.seq == bad.seq
    page = await store.log.page("default", facts.session.id, after=0)
    assert [event.seq for event in page] == list(range(1, facts.seq + 1))
    assert page[bad.seq - 1].type == "error"
    assert page[bad.seq - 1].data == rejected.replacement.data
    assert [row["content"] for row in await store.rows("messages")] == ["hi"]
    assert (await store.row("runs"))["status"] == "completed"


@pytest.mark.spec("11.2", "12.3")
async def test_what_took_the_place_of_a_bad_event_is_known_again_when_its_commit_was_not_confirmed(
    store: Store,
) -> None:
    facts = Facts()
    run = facts.run()
    bad = [facts.created(), facts.queued(run), facts.event(run, kinds.MESSAGE, {})]
    faults.arm("store.committed", lost)
    with pytest.raises(TransientStoreError):
        store.write(*bad)
    faults.disarm()
    (rejected,) = store.write(*bad, facts.ended(run))
    assert rejected.event is bad[-1]
    assert rejected.replacement is not None
    page = await store.log.page("default", facts.session.id, after=2)
    assert [(event.seq, event.type) for event in page] == [(3, "error"), (4, "run.completed")]
    assert page[0].data == rejected.replacement.data
    assert list(store.write(facts.idle())) == []


@pytest.mark.spec("12.3")
async def test_an_event_that_the_projection_does_not_understand_costs_itself_alone(store: Store) -> None:
    facts = Facts()
    run = facts.run()
    created, queued = facts.created(), facts.queued(run)
    empty = facts.event(run, kinds.MESSAGE, {})
    (rejected,) = store.write(created, queued, empty, facts.started(run))
    assert rejected.event is empty
    assert (await store.row("runs"))["status"] == "running"


@pytest.mark.postgres
@pytest.mark.spec("12.1")
@pytest.mark.case("B176")
async def test_a_nul_that_reached_postgresql_costs_its_own_event_alone(postgres_url: str) -> None:
    database = Database(postgres_url)
    await database.open()
    store = Store(database)
    facts = Facts()
    run = facts.run()
    bad = facts.message(run, "user", "a")
    bad.payload = {**bad.payload, "content": "a\0b"}
    facts.seq = 0
    created = facts.created()
    (rejected,) = store.write(created, bad := _renumbered(bad, 2))
    assert rejected.event is bad
    assert "NUL" in rejected.reason
    assert await store.log.head("default", facts.session.id) == 2
    store.writer.close()
    await database.close()


def _renumbered(event: kinds.Event, seq: int) -> kinds.Event:
    event.seq = seq
    return event


@pytest.mark.case("B176")
async def test_text_that_was_cleaned_is_stored_alike_on_both_databases(store: Store) -> None:
    facts = Facts()
    run = facts.run()
    created = facts.created()
    store.stored(created, facts.queued(run), facts.message(run, "user", "a\0b \ud83c c\U0001f378"))
    assert (await store.row("messages"))["content"] == "a\ufffdb \ufffd c\U0001f378"


@pytest.mark.spec("12.3")
async def test_a_session_whose_first_event_is_bad_still_has_its_chain(store: Store) -> None:
    facts = Facts()
    created = facts.created()
    created.payload = {"agent": "lead"}  # no memory
    run = facts.run()
    (rejected,) = store.write(created, facts.queued(run), facts.ended(run))
    assert rejected.event is created
    assert await store.log.head("default", facts.session.id) == 3
    assert (await store.row("sessions"))["agent"] is None


@pytest.mark.spec("11.1")
async def test_a_number_that_another_process_gave_already_is_refused(store: Store) -> None:
    facts = Facts()
    run = facts.run()
    store.stored(facts.created(), facts.queued(run))
    facts.seq = 1
    late, next_one = facts.started(run), facts.ended(run)
    rejected = store.write(late, next_one)
    assert [item.event for item in rejected] == [late]
    assert rejected[0].replacement is None
    assert "another process" in rejected[0].reason
    assert [e.type for e in await store.log.page("default", facts.session.id, after=1)] == [
        "run.queued",
        "run.completed",
    ]


@pytest.mark.spec("11.1", "12.3")
async def test_a_first_event_that_is_in_the_store_already_stops_nobody(store: Store) -> None:
    facts, other = Facts(), Facts()
    created = facts.created()
    store.stored(created)
    assert list(store.write(created, facts.idle(), other.created())) == []
    facts.seq = 0
    (rejected,) = store.write(facts.idle(), other.idle())
    assert "another process" in rejected.reason
    assert await store.log.head("default", facts.session.id) == 2
    assert await store.log.head("default", other.session.id) == 2


@pytest.mark.spec("11.1")
async def test_numbers_never_leave_a_gap(store: Store) -> None:
    facts = Facts()
    created = facts.created()
    facts.seq += 1
    rejected = store.write(created, facts.idle())
    assert len(rejected) == 1
    assert await store.log.head("default", facts.session.id) == 1


# ── lone rows ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("12.3")
async def test_a_row_beside_an_event_is_stored_with_it_or_not_at_all(store: Store) -> None:
    facts = Facts()
    good = Write(table="api_keys", values=key_row("good"))
    taken = Write(table="api_keys", values=key_row("other", hash=b"good"))
    first = facts.created()
    first.also = (good,)
    second = facts.idle()
    second.also = (taken,)
    (rejected,) = store.write(first, second)
    assert rejected.event is second
    assert [row["id"] for row in await store.rows("api_keys")] == ["key_good"]
    assert [e.type for e in await store.log.page("default", facts.session.id, after=0)] == ["session.created", "error"]


async def test_a_row_with_a_key_replaces_the_one_that_has_it(store: Store) -> None:
    store.stored(writes=[Write(table="api_keys", values=key_row(), key=("id",))])
    store.stored(writes=[Write(table="api_keys", values=key_row(name="two", id="key_one"), key=("id",))])
    store.stored(writes=[Write(table="api_keys", values={"tenant_id": "x", "id": "key_one"}, key=("id",), delete=True)])
    row = await store.row("api_keys")
    assert (row["name"], row["scopes"]) == ("two", ["run"])
    store.stored(
        writes=[Write(table="api_keys", values={"tenant_id": "default", "id": "key_one"}, key=("id",), delete=True)]
    )
    assert await store.rows("api_keys") == []


async def test_a_row_that_is_kept_stays_as_it_was(store: Store) -> None:
    for name in ("one", "two"):
        row = key_row(name=name, id="key_one")
        store.stored(writes=[Write(table="api_keys", values=row, key=("id",), keep=True)])
    assert [row["name"] for row in await store.rows("api_keys")] == ["one"]


async def test_a_row_without_a_key_must_be_new(store: Store) -> None:
    store.stored(writes=[Write(table="api_keys", values=key_row())])
    again = Write(table="api_keys", values=key_row(name="two", id="key_one"))
    fine = Write(table="api_keys", values=key_row("three"))
    (rejected,) = store.write(writes=[again, fine])
    assert rejected.write is again
    assert [row["name"] for row in await store.rows("api_keys")] == ["one", "three"]


@pytest.mark.spec("17.1")
@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (Write(table="messages", values={"tenant_id": "default"}), "'messages' is not written by single rows"),
        (Write(table="notes; DROP TABLE notes", values={}), "is not written by single rows"),
        (Write(table="api_keys", values={"id": "key_1"}, key=("id",)), "needs tenant_id"),
        (Write(table="api_keys", values={"tenant_id": "default"}, key=("id",)), "needs id"),
        (Write(table="api_keys", values=key_row(colour="red")), "has no column colour"),
        (Write(table="api_keys", values={"tenant_id": "default"}, delete=True), "needs key columns"),
    ],
)
async def test_a_row_that_is_not_meant_is_refused_with_the_reason(
    sqlite_store: Store, write: Write, reason: str
) -> None:
    (rejected,) = sqlite_store.write(writes=[write])
    assert rejected.write is write
    assert reason in rejected.reason
