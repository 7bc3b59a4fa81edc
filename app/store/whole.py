"""A statement and all its rows in one turn of a SQLite connection's thread, for an engine that only reads.

SQLAlchemy asks the driver for a cursor, the execution, the rows and the cursor's end one after the other, and each is
a way to the thread and back: what a read by its key costs under load is almost only that. Here the first of them
brings everything, or as much as somebody asks for with `at_most`. Knows no statement.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import aiosqlite

Description = tuple[tuple[str, None, None, None, None, None, None], ...] | None


class Bound(NamedTuple):
    """Rows are read until their texts have more `characters` together, and at least one; what comes after is not even
    looked at, so that no size of rows costs more memory. `places`: of the columns with long texts."""

    characters: int
    places: Sequence[int]


_bound: ContextVar[Bound | None] = ContextVar("bound", default=None)


@contextlib.contextmanager
def at_most(bound: Bound | None) -> Iterator[None]:
    """The statements of this task read no more than this. None: all rows."""
    before = _bound.set(bound)
    try:
        yield
    finally:
        _bound.reset(before)


class _Bounded(tuple[Any, ...]):
    """Parameters of a statement of which not all rows are read."""

    bound: Bound


class WholeResults(sqlite3.Connection):
    """Its `execute` has read all rows when it returns; a `factory` of `sqlite3.connect`."""

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        """Execute one statement; what it returns has only `fetchall`, which gives description and rows."""
        cursor = super().execute(sql, parameters)
        try:
            if isinstance(parameters, _Bounded):
                return _Whole(cursor.description, _some(cursor, parameters.bound))
            return _Whole(cursor.description, cursor.fetchall())
        finally:
            cursor.close()


def _some(rows: Iterable[Sequence[Any]], bound: Bound) -> Sequence[Any]:
    found: list[Sequence[Any]] = []
    size = 0
    for row in rows:
        for place in bound.places:
            if row[place]:
                size += len(row[place])
        if found and size > bound.characters:
            break
        found.append(row)
    return found


class _Whole:
    """What came of a statement."""

    __slots__ = ("_found",)

    def __init__(self, description: Description, rows: Sequence[Any]) -> None:
        self._found = description, rows

    def fetchall(self) -> Any:
        """Description and rows."""
        return self._found


class WholeCursor:
    """A cursor as SQLAlchemy uses it of an asynchronous driver (`AsyncIODBAPICursor`), on a connection to
    `WholeResults`."""

    arraysize = 1
    rowcount = -1
    lastrowid = 0

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection
        self._rows: Sequence[Any] = ()
        self.description: Description = None

    async def __aenter__(self) -> "WholeCursor":
        return self

    async def execute(self, operation: str, parameters: Any = ()) -> "WholeCursor":
        """Execute a statement and read its rows."""
        if (bound := _bound.get()) is not None:
            parameters = _Bounded(parameters)
            parameters.bound = bound
        found: Any = await self._connection.execute_fetchall(operation, parameters)
        self.description, self._rows = found
        return self

    async def fetchall(self) -> Sequence[Any]:
        """The rows, which are there."""
        return self._rows

    async def close(self) -> None:
        """There is nothing to close."""
