"""The database of a process: where it is, who may have it, whether it answers, how it ends."""

import asyncio
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from app.sessions.ports import TransientStoreError
from app.store.database import Database, Synchronous
from app.store.location import locate
from app.store.lock import StoreInUse
from tests.store.facts import Facts, replaced

HOLD = """
import asyncio, sys
from app.store.database import Database
async def hold():
    database = Database(sys.argv[1])
    await database.open()
    print("open", flush=True)
    sys.stdin.read()
    await database.close()
asyncio.run(hold())
"""


@pytest.mark.spec("16.1")
@pytest.mark.parametrize("form", ["{}", "sqlite:///{}", "sqlite+aiosqlite:///{}"])
def test_a_path_and_its_urls_are_one_file(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a b#?%20.db"
    found = locate(form.format(str(path).replace("%", "%25").replace("?", "%3F")) if ":" in form else path)
    assert found.path == path or ":" in form
    assert found.writing.drivername == "sqlite+pysqlite"
    assert found.reading.drivername == "sqlite+aiosqlite"


@pytest.mark.spec("16.1")
def test_a_link_and_its_target_are_one_database(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert locate(tmp_path / "link" / "x.db") == locate(tmp_path / "real" / "x.db")


@pytest.mark.spec("16.1", "16.3")
def test_a_server_is_named_without_its_password() -> None:
    for url in ("postgres://ann:secret@db.example/agents", "postgresql+psycopg://ann:secret@db.example/agents"):
        found = locate(url)
        assert found.path is None
        assert found.writing.password == "secret"
        assert "secret" not in str(found)
        assert "ann" in str(found)


@pytest.mark.spec("16.1")
@pytest.mark.parametrize(
    "where", ["", ":memory:", "sqlite://", "sqlite:///x.db?mode=ro", "mysql://root:secret@host/x", "://", "x://:y:z@"]
)
def test_a_place_that_cannot_be_used_is_refused_with_what_can(where: str) -> None:
    with pytest.raises(ValueError, match="sqlite:///PATH") as caught:
        locate(where)
    assert "secret" not in str(caught.value)


@pytest.mark.spec("12.1")
@pytest.mark.case("B191")
async def test_a_second_server_on_one_file_is_refused_and_told_who_has_it(file: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), 30) == "open\n"
        second = Database(file)
        with pytest.raises(StoreInUse, match=f"process {process.pid}.*use PostgreSQL"):
            await second.open()
        beside = Database(file, exclusive=False)
        await beside.open()
        await beside.check()
        await beside.close()
    finally:
        process.kill()
        process.communicate()
    await second.open()  # the lock went with the process
    await second.close()


@pytest.mark.spec("12.1")
async def test_a_lock_is_given_back_at_the_end(file: Path) -> None:
    for _ in range(2):
        database = Database(file)
        await database.open()
        assert stat.S_IMODE(Path(f"{file}.lock").stat().st_mode) == 0o600
        await database.close()


@pytest.mark.spec("14.17")
async def test_a_current_database_passes_the_check(where: str) -> None:
    database = Database(where)
    await database.open()
    await database.check()
    await database.close()


@pytest.mark.spec("14.17")
async def test_the_check_says_that_the_schema_is_missing(tmp_path: Path) -> None:
    database = Database(tmp_path / "new" / "empty.db")
    await database.open()
    with pytest.raises(TransientStoreError, match="run `db upgrade`: no such table"):
        await database.check()
    await database.close()


@pytest.mark.spec("14.17")
async def test_the_check_fails_while_somebody_else_has_the_file_to_himself(file: Path) -> None:
    database = Database(file, busy_timeout_ms=100, exclusive=False)
    await database.open()
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("PRAGMA journal_mode=DELETE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(TransientStoreError, match="cannot be read at the moment: database is locked"):
        await database.check()
    other.execute("ROLLBACK")
    other.close()
    await database.check()
    await database.close()


@pytest.mark.spec("12.1")
async def test_a_server_that_is_not_there_is_told_without_its_password() -> None:
    database = Database("postgresql://ann:secret@127.0.0.1:1/agents")
    with pytest.raises(TransientStoreError, match="cannot be opened") as caught:
        await database.open()
    assert "secret" not in str(caught.value)


@pytest.mark.spec("12.1")
async def test_readers_cannot_write(where: str) -> None:
    database = Database(where)
    await database.open()
    with pytest.raises(Exception, match=r"read-?only"):
        await database.reader.rows(text("DELETE FROM sessions"))
    await database.close()


@pytest.mark.spec("12.1", "12.3")
async def test_the_writer_works_in_a_thread_of_its_own_and_is_closed_from_another(file: Path) -> None:
    database = Database(file)
    await database.open()
    writer = database.writer(replaced)
    facts = Facts()
    thread = threading.Thread(target=writer.write, args=([facts.created()],))
    thread.start()
    await asyncio.to_thread(thread.join, 10)
    writer.close()
    writer.close()
    await database.close()
    connection = sqlite3.connect(file)
    assert connection.execute("SELECT count(*) FROM events").fetchone() == (1,)
    connection.close()
    assert sorted(path.name for path in file.parent.iterdir()) == ["store.db", "store.db.lock"]


@pytest.mark.spec("12.1")
@pytest.mark.parametrize(("level", "number"), [("FULL", 2), ("NORMAL", 1), ("OFF", 0)])
def test_the_writer_waits_for_the_disk_as_far_as_it_was_told(file: Path, level: Synchronous, number: int) -> None:
    connection = Database(file, synchronous=level)._connect()
    names = ("journal_mode", "synchronous", "secure_delete", "foreign_keys")
    found = [connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in names]
    assert found == ["wal", number, 1, 0]
    connection.close()
