"""The text index: it moves with its end or not at all, keeps nothing of what was erased, and may be broken."""

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from app.agent import faults
from app.agent.events import Write
from app.sessions.ports import TransientStoreError
from app.store import text_index
from app.store.database import Database, writing_connection
from app.store.location import locate
from app.store.migrate import upgrade
from app.store.search import TextIndex
from tests.store.conftest import Store
from tests.store.test_search import TENANT, found, indexed, moved, said

ANEW = Write(table="text_index", values={"tenant_id": TENANT, "anew": True}, key=("tenant_id",))
FORGET = Write(table="text_index", values={"tenant_id": TENANT, "forget": True}, key=("tenant_id",))
PURGE = Write(table="text_index", values={"tenant_id": TENANT, "purge": True}, key=("tenant_id",))


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    faults.disarm()


async def forgotten(store: Store) -> int:
    """Let the index forget what was erased, as the indexer does; in how many parts."""
    index, parts = TextIndex(store.database.reader), 0
    while await index.erased():
        store.stored(writes=[FORGET])
        parts += 1
    return parts


@pytest.mark.spec("12.4")
async def test_index_and_its_end_move_together_or_not_at_all(store: Store) -> None:
    said(store, "one needle", "two needle")
    upto = await TextIndex(store.database.reader).next_part()
    assert upto is not None

    def lost() -> None:
        raise TransientStoreError("the process died")

    faults.arm("store.commit", lost)
    with pytest.raises(TransientStoreError):
        store.write(writes=[moved(upto)])
    faults.disarm()
    assert await store.number("SELECT upto FROM text_index") == 0
    assert await found(store, "needle") == ["one needle", "two needle"]
    faults.arm("store.committed", lost)
    with pytest.raises(TransientStoreError):
        store.write(writes=[moved(upto)])
    faults.disarm()
    store.stored(writes=[moved(upto)])  # its answer was lost, so it comes again
    assert await store.number("SELECT upto FROM text_index") == upto
    store.stored(writes=[moved(1)])
    assert await store.number("SELECT upto FROM text_index") == upto, "it never goes back"
    assert await TextIndex(store.database.reader).next_part() is None
    assert len(await TextIndex(store.database.reader).candidates(TENANT, "needle") or ()) == 2
    assert await found(store, "needle") == ["one needle", "two needle"]


@pytest.mark.spec("12.4")
async def test_a_part_for_the_indexer_is_bounded_by_messages_and_characters(store: Store) -> None:
    said(store, *["x"] * 150, "y" * 80_000, "y" * 69_000, "y" * 2_000)
    index, sizes, before = TextIndex(store.database.reader), [], 0
    while (upto := await index.next_part()) is not None:
        store.stored(writes=[moved(upto)])
        sizes.append(upto - before)
        before = upto
    assert sizes == [100, 50, 1, 1, 1]


@pytest.mark.spec("12.4", "14.2")
async def test_what_a_deleted_session_said_is_not_found_whatever_was_indexed(store: Store) -> None:
    gone, stays = said(store, "old needle"), said(store, "needle that stays")
    await indexed(store)
    run = gone.run()
    store.stored(gone.queued(run), gone.message(run, "user", "new needle"))
    store.stored(gone.closed("deleted"))
    assert await found(store, "needle") == ["needle that stays"]
    await indexed(store)
    assert await found(store, "needle") == ["needle that stays"]
    await forgotten(store)
    assert len(await TextIndex(store.database.reader).candidates(TENANT, "needle") or ()) == 1
    assert stays.session.id != gone.session.id


@pytest.mark.spec("12.3", "12.4", "14.2")
async def test_erased_texts_leave_the_index_in_parts_that_hold_up_nobody(sqlite_store: Store) -> None:
    gone = said(sqlite_store, *["x" * 10_000] * 20, "y" * 80_000, *["needle"] * 130)
    said(sqlite_store, "needle that stays")
    await indexed(sqlite_store)
    sqlite_store.stored(gone.closed("deleted"))
    left = []
    index = TextIndex(sqlite_store.database.reader)
    while await index.erased():
        left.append(await sqlite_store.number("SELECT count(*) FROM erased_texts"))
        assert await found(sqlite_store, "needle") == ["needle that stays"]
        sqlite_store.stored(writes=[FORGET])
    assert left == [151, 144, 137, 131, 130, 30]
    assert len(await index.candidates(TENANT, "needle") or ()) == 1


@pytest.mark.spec("12.3", "14.2")
async def test_what_left_the_index_and_what_is_still_to_leave_it_change_together_or_not_at_all(
    sqlite_store: Store,
) -> None:
    gone = said(sqlite_store, "old needle")
    said(sqlite_store, "needle that stays")
    await indexed(sqlite_store)
    sqlite_store.stored(gone.closed("deleted"))
    index = TextIndex(sqlite_store.database.reader)

    def lost() -> None:
        raise TransientStoreError("the process died")

    for point, still in (("store.commit", True), ("store.committed", False)):
        faults.arm(point, lost)
        with pytest.raises(TransientStoreError):
            sqlite_store.write(writes=[FORGET])
        faults.disarm()
        assert await index.erased() is still
        assert len(await index.candidates(TENANT, "needle") or ()) == 1 + still
    sqlite_store.stored(writes=[FORGET])  # its answer was lost, so it comes again
    assert len(await index.candidates(TENANT, "needle") or ()) == 1
    assert await found(sqlite_store, "needle") == ["needle that stays"]


def terms(path: Path) -> Sequence[bytes]:
    with sqlite3.connect(path) as connection:
        return [row[0] for row in connection.execute("SELECT block FROM messages_text_data")]


@pytest.mark.spec("12.4", "14.2")
async def test_nothing_of_a_deleted_session_is_left_in_the_index(sqlite_store: Store, file: Path) -> None:
    secret, part = "鱻鱻鱻", b"\xbb\xe9\xb1\xbb\xe9\xb1\xbb"  # terms share at most their first bytes with others
    gone = said(sqlite_store, f"the word is {secret}", *["padding of many words"] * 50)
    await indexed(sqlite_store)
    for number in range(5):
        said(sqlite_store, *(f"other texts {number}" for _ in range(120)))
        await indexed(sqlite_store)
    assert any(part in block for block in terms(file))
    sqlite_store.stored(gone.closed("deleted"))
    index = TextIndex(sqlite_store.database.reader)
    assert await forgotten(sqlite_store) == 1
    assert await sqlite_store.number("SELECT purge FROM text_index") == text_index.PURGE_WANTED
    for _ in range(200):
        if not await index.purging():
            break
        sqlite_store.stored(writes=[PURGE])
    assert not await index.purging()
    assert not any(part in block for block in terms(file))
    assert len(await found(sqlite_store, "other texts 3")) == 120
    sqlite_store.writer.close()
    await sqlite_store.database.close()
    assert part not in file.read_bytes()


@pytest.mark.spec("12.4")
async def test_the_index_of_sqlite_agrees_with_itself(sqlite_store: Store) -> None:
    facts = [said(sqlite_store, *(f"{number} words {number * 7}" for number in range(90))) for _ in range(4)]
    await indexed(sqlite_store)
    sqlite_store.stored(facts[1].closed("deleted"))
    said(sqlite_store, "words at the end")
    await indexed(sqlite_store)
    await forgotten(sqlite_store)
    assert len(await TextIndex(sqlite_store.database.reader).candidates(TENANT, "words") or ()) == 271


@pytest.mark.postgres
@pytest.mark.spec("12.1", "12.4")
async def test_without_pg_trgm_texts_are_found_one_by_one_and_readiness_says_why(postgres_url: str) -> None:
    with writing_connection(locate(postgres_url), "OFF", 1000) as connection, connection.begin():
        connection.exec_driver_sql("DROP INDEX ix_messages_text_trigrams")
    database = Database(postgres_url)
    await database.open()
    store = Store(database)
    index = TextIndex(database.reader)
    assert "pg_trgm could not be made" in (await index.missing() or "")
    said(store, "one needle", "two hays")
    assert await found(store, "needle") == ["one needle"]
    await indexed(store)  # it was there before, and somebody took it away
    assert await index.candidates(TENANT, "needle") is None
    assert await found(store, "needle") == ["one needle"]
    store.writer.close()
    await database.close()


@pytest.mark.postgres
@pytest.mark.spec("12.1", "12.4")
async def test_where_the_extension_may_not_be_made_the_migration_goes_on_without(empty_postgres_url: str) -> None:
    with writing_connection(locate(empty_postgres_url), "OFF", 1000) as connection, connection.begin():
        taken = "CREATE FUNCTION similarity(text, text) RETURNS real LANGUAGE sql AS 'SELECT 1::real'"
        connection.exec_driver_sql(taken)
    assert upgrade(empty_postgres_url)
    database = Database(empty_postgres_url)
    await database.open()
    assert await TextIndex(database.reader).missing() is not None
    await database.close()


@pytest.mark.spec("12.3", "12.4", "14.2")
async def test_a_damaged_index_costs_no_fact_and_no_answer_and_is_made_anew_once_it_is_noticed(
    sqlite_store: Store, file: Path
) -> None:
    gone = said(sqlite_store, *["needle that goes"] * 60)
    said(sqlite_store, "needle that stays")
    await indexed(sqlite_store)
    with sqlite3.connect(file) as connection:
        connection.execute("DELETE FROM messages_text_data WHERE id > 10")  # all but what says where things are
    said(sqlite_store, "needle that is new")
    index = TextIndex(sqlite_store.database.reader)
    assert not index.damaged
    assert len(await found(sqlite_store, "needle", since=0)) == 62
    assert index.damaged, "whoever keeps the index learns of it"
    await sqlite_store.database.check()  # and the service is ready all the same
    await indexed(sqlite_store)
    assert len(await found(sqlite_store, "needle", since=0)) == 62
    sqlite_store.stored(gone.closed("deleted"))
    assert await found(sqlite_store, "needle", since=0) == ["needle that stays", "needle that is new"]
    assert await forgotten(sqlite_store) == 1
    sqlite_store.stored(writes=[PURGE])  # here it is noticed
    assert await sqlite_store.number("SELECT upto + purge FROM text_index") == 0
    await indexed(sqlite_store)
    assert len(await index.candidates(TENANT, "needle") or ()) == 2


@pytest.mark.spec("12.4")
async def test_a_search_during_which_the_index_is_emptied_misses_nothing(sqlite_store: Store) -> None:
    said(sqlite_store, *["one needle"] * 5)
    await indexed(sqlite_store)
    reader = sqlite_store.database.reader
    assert len(await TextIndex(reader).candidates(TENANT, "needle") or ()) == 5

    class Emptied(TextIndex):
        """The index is made anew once it was said how far it is."""

        async def _upto(self) -> int:
            upto = await super()._upto()
            sqlite_store.stored(writes=[ANEW])
            return upto

    assert await Emptied(reader).candidates(TENANT, "needle") is None, "so the messages themselves are looked at"
