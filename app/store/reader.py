"""Runs one reading statement at a time on a pooled async connection, safe against callers that go away.

Knows no table. Every read is one short transaction of its own.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Executable
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine

from app.store.failures import is_transient, transient

Record = dict[str, Any]
Fetched = tuple[tuple[str, ...], Sequence[Sequence[Any]]]  # names of columns, rows


class Reader:
    """Reads from `engine`. A caller that is cancelled leaves at once, while its statement ends in its own task and
    gives the connection back: drivers leak connections and transactions when they are cancelled inside a call."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self.dialect = engine.dialect.name
        self._open: set[asyncio.Task[Any]] = set()

    async def rows(self, statement: Executable, parameters: Mapping[str, Any] | None = None) -> list[Record]:
        """All rows, as dictionaries by column name. Raises `TransientStoreError` while the store is away."""
        names, rows = await self._read(statement, parameters)
        return [dict(zip(names, row, strict=True)) for row in rows]

    async def tuples(
        self, statement: Executable, parameters: Mapping[str, Any] | None = None
    ) -> Sequence[Sequence[Any]]:
        """The same, each row in the order of the columns: for who reads very many."""
        return (await self._read(statement, parameters))[1]

    async def _read(self, statement: Executable, parameters: Mapping[str, Any] | None) -> Fetched:
        if parameters is not None and not all(map(can_be_stored, parameters.values())):
            return (), ()
        task = asyncio.create_task(self._fetch(statement, parameters))
        self._open.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def row(self, statement: Executable, parameters: Mapping[str, Any] | None = None) -> Record | None:
        """The first row, or None."""
        found = await self.rows(statement, parameters)
        return found[0] if found else None

    async def drained(self) -> None:
        """Wait for what is still being read for callers that went away."""
        if self._open:
            await asyncio.wait(self._open)

    async def _fetch(self, statement: Executable, parameters: Mapping[str, Any] | None) -> Fetched:
        try:
            async with self._engine.connect() as connection:
                result = await connection.execute(statement, parameters)
                return tuple(result.keys()), result.all()
        except (DBAPIError, PoolTimeout) as problem:
            if is_transient(problem):
                raise transient(problem, "the store cannot be read at the moment") from problem
            raise

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._open.discard(task)
        if not task.cancelled():
            task.exception()  # fetched here for callers that are not there any more


def can_be_stored(value: Any) -> bool:
    """Whether a text can stand in the store at all. Ids from a URL may hold what databases refuse even to compare
    with (NUL, lone surrogates); nothing that is stored equals them."""
    if not isinstance(value, str):
        return True
    if "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
