"""What was erased stands in no file of a SQLite database any more, also when nothing is written afterwards."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.agent.events import Write
from app.store import scrubbing
from tests.store.conftest import Store
from tests.store.facts import Facts, replaced

WAIT_S = 20.0
SECRET = "what nobody may read afterwards"
FORGET = Write(table="text_index", values={"tenant_id": "default", "forget": True}, key=("tenant_id",))


def found(file: Path) -> int:
    """How often it stands in the files."""
    return sum(path.read_bytes().count(SECRET.encode()) for path in file.parent.glob(f"{file.name}*"))


def put(store: Store) -> Facts:
    """A session that says it."""
    facts = Facts()
    store.stored(facts.created(), *facts.whole_run(facts.run(), text=SECRET))
    return facts


@contextlib.contextmanager
def reading(file: Path) -> Iterator[sqlite3.Connection]:
    """Somebody who reads, and goes on reading what was there when he began."""
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM messages").fetchone()
        yield reader


@pytest.mark.spec("14.2", "12.3")
async def test_a_deleted_session_is_gone_from_the_files_of_a_service_that_does_nothing_more(
    sqlite_store: Store, file: Path
) -> None:
    facts = put(sqlite_store)
    assert found(file) > 0
    sqlite_store.stored(facts.closed("deleted"))
    sqlite_store.stored(writes=[FORGET])
    assert found(file) == 0


@pytest.mark.spec("14.2", "12.3")
async def test_a_reader_in_the_way_holds_up_nothing_and_the_next_transaction_clears_the_files(
    sqlite_store: Store, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubbing, "AGAIN_S", 0.0)
    facts = put(sqlite_store)
    with reading(file):
        sqlite_store.stored(facts.closed("deleted"))
        sqlite_store.stored(writes=[FORGET])
        assert found(file) > 0
    sqlite_store.stored(Facts().created())
    assert found(file) == 0


@pytest.mark.spec("14.2", "12.3")
async def test_a_reader_in_the_way_is_waited_for_while_nothing_is_written(
    sqlite_store: Store, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubbing, "AGAIN_S", 0.01)
    writer = sqlite_store.writer
    facts = put(sqlite_store)
    assert writer.rest() is None, "whatever an earlier process may have left is gone"
    with reading(file):
        sqlite_store.stored(facts.closed("deleted"))
        sqlite_store.stored(writes=[FORGET])
        wait_s = writer.rest()
        assert wait_s is not None
        assert 0 < wait_s < 1
        assert found(file) > 0
    async with asyncio.timeout(WAIT_S):
        while (wait_s := writer.rest()) is not None:
            await asyncio.sleep(wait_s)
    assert found(file) == 0


@pytest.mark.spec("14.2", "12.3")
async def test_what_a_killed_process_had_erased_is_gone_once_the_next_one_rests(
    sqlite_store: Store, file: Path
) -> None:
    facts = put(sqlite_store)
    sqlite_store.writer._scrubber.after = lambda _: None  # type: ignore[attr-defined]  # it is killed before
    sqlite_store.stored(facts.closed("deleted"))
    sqlite_store.stored(writes=[FORGET])
    assert found(file) > 0
    writer = sqlite_store.database.writer(replaced)
    try:
        assert not writer.write([Facts().created()])
        assert writer.rest() is None
        assert found(file) == 0
    finally:
        writer.close()


@pytest.mark.spec("14.2")
async def test_nothing_is_emptied_where_nothing_was_erased(sqlite_store: Store, file: Path) -> None:
    put(sqlite_store)
    log = file.with_name(f"{file.name}-wal")
    size = log.stat().st_size
    assert size > 0
    sqlite_store.stored(Facts().created())
    assert log.stat().st_size >= size


async def test_the_patience_of_the_writer_is_as_it_was_afterwards(sqlite_store: Store) -> None:
    facts = put(sqlite_store)
    sqlite_store.stored(facts.closed("deleted"))
    connection = sqlite_store.writer._connection  # type: ignore[attr-defined]
    assert connection.connection.driver_connection.execute("PRAGMA busy_timeout").fetchone() == (300,)
