"""Reads that bring all their rows in one turn of the connection's thread: they say what any other read would."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import aiosqlite
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError

from app.sessions.ports import TransientStoreError
from app.store.database import Database
from app.store.whole import Bound


@pytest.fixture
async def database(file: Path) -> AsyncIterator[Database]:
    """A database with a table of three kinds of columns and two rows."""
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE things (a INTEGER, b TEXT, c BLOB)")
        connection.executemany("INSERT INTO things VALUES (?, ?, ?)", [(1, "eins", b"\0\1"), (2, None, None)])
    made = Database(file)
    await made.open()
    yield made
    await made.close()


@pytest.mark.spec("12.1")
async def test_a_read_gives_names_and_rows_of_every_kind_also_without_rows_and_with_parameters(
    database: Database,
) -> None:
    reader = database.reader
    assert await reader.rows(text("SELECT a, b, c FROM things ORDER BY a")) == [
        {"a": 1, "b": "eins", "c": b"\0\1"},
        {"a": 2, "b": None, "c": None},
    ]
    assert await reader.row(text("SELECT b AS name FROM things WHERE a = :a"), {"a": 1}) == {"name": "eins"}
    assert await reader.rows(text("SELECT a FROM things WHERE a > 5")) == []
    many = text("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 5000) SELECT x FROM n")
    assert [row[0] for row in await reader.tuples(many)] == list(range(1, 5001))
    both = await asyncio.gather(*(reader.row(text("SELECT :n AS n"), {"n": n}) for n in range(50)))
    assert [row and row["n"] for row in both] == list(range(50))


@pytest.mark.spec("12.4")
async def test_of_long_rows_only_as_many_are_read_as_are_asked_for(database: Database) -> None:
    rows = text(
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 10) "
        "SELECT x, printf('%.*c', 1000, 'é') AS t FROM n"
    )
    for characters, count in ((0, 1), (1000, 1), (2999, 2), (3000, 3), (10_000, 10), (99_999, 10)):
        found = await database.reader.tuples(rows, bound=Bound(characters, [1]))
        assert [row[0] for row in found] == list(range(1, count + 1)), characters
    assert await database.reader.tuples(text("SELECT a, b FROM things WHERE a > 5"), bound=Bound(0, [1])) == []
    assert len(await database.reader.tuples(text("SELECT a, b FROM things"), bound=Bound(4, [1]))) == 2, "one is NULL"
    only_one = database.reader.tuples(rows, bound=Bound(0, [1]))
    bounded, whole = await asyncio.gather(only_one, database.reader.rows(rows))
    assert (len(bounded), len(whole)) == (1, 10)


async def test_what_comes_far_behind_the_last_row_that_is_read_is_not_even_looked_at(database: Database) -> None:
    rows = text(
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 10) "
        "SELECT x, printf('%.*c', 100, 'x'), CASE x WHEN 5 THEN abs(-9223372036854775803 - x) END FROM n"
    )
    with pytest.raises(DBAPIError, match="overflow"):
        await database.reader.tuples(rows)
    assert [row[0] for row in await database.reader.tuples(rows, bound=Bound(200, [1]))] == [1, 2]


async def test_a_read_that_fails_says_why_and_the_next_one_is_answered(database: Database) -> None:
    with pytest.raises(OperationalError, match="no such table"):
        await database.reader.rows(text("SELECT * FROM missing"))
    beyond = text("SELECT abs(CASE a WHEN 2 THEN -9223372036854775807 - 1 ELSE 1 END) FROM things ORDER BY rowid")
    with pytest.raises(DBAPIError, match="overflow"):  # met at the second row
        await database.reader.rows(beyond)
    with pytest.raises(TransientStoreError, match="readonly"):
        await database.reader.rows(text("DELETE FROM things"))
    assert len(await database.reader.rows(text("SELECT * FROM things"))) == 2


async def test_a_read_is_one_turn_of_its_thread(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []
    asked = aiosqlite.Connection._execute

    async def counted(self: aiosqlite.Connection, function: object, *arguments: object) -> object:
        turns.append(getattr(function, "__name__", ""))
        return await asked(self, function, *arguments)

    monkeypatch.setattr(aiosqlite.Connection, "_execute", counted)
    await database.reader.rows(text("SELECT * FROM things"))
    assert turns == ["_execute_fetchall"]
