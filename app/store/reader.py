"""Runs one reading statement at a time on a pooled async connection, safe against callers that go away.

Knows no table. Every read is one short transaction of its own.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Executable
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from app.sessions.ports import TransientStoreError
from app.store.failures import Unreadable, is_damage, is_index_damage, is_transient, transient
from app.store.guard import break_off
from app.store.whole import Bound, at_most

log = logging.getLogger(__name__)

Record = dict[str, Any]
Fetched = tuple[tuple[str, ...], Sequence[Sequence[Any]]]  # names of columns, rows
DAMAGE_S = 600.0  # for which damage that was met makes the service not ready: nobody else may meet it
SILENT_S = 32.0  # the server itself breaks a statement off after 30 s (`statement_timeout`)


class Reader:
    """Reads from `engine`. A caller that is cancelled leaves at once, while its statement ends in its own task and
    gives the connection back: drivers leak connections and transactions when they are cancelled inside a call."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self.dialect = engine.dialect.name
        self._open: set[asyncio.Task[Any]] = set()
        self._damage: tuple[float, str] | None = None
        self.index_damaged = False  # the text index: met since whoever keeps it has taken this back

    async def rows(self, statement: Executable, parameters: Mapping[str, Any] | None = None) -> list[Record]:
        """All rows, as dictionaries by column name. Raises `TransientStoreError` while the store is away."""
        names, rows = await self._read(statement, parameters)
        return [dict(zip(names, row, strict=True)) for row in rows]

    async def tuples(
        self, statement: Executable, parameters: Mapping[str, Any] | None = None, *, bound: Bound | None = None
    ) -> Sequence[Sequence[Any]]:
        """The same, each row in the order of the columns: for who reads very many. `bound`: the first; on SQLite."""
        with at_most(bound):
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

    @property
    def damage(self) -> str | None:
        """What was met of damage lately: elsewhere reading goes on as if there were none."""
        if self._damage is None or asyncio.get_running_loop().time() - self._damage[0] > DAMAGE_S:
            return None
        return self._damage[1]

    async def drained(self) -> None:
        """Wait for what is still being read for callers that went away."""
        if self._open:
            await asyncio.wait(self._open)

    async def _fetch(self, statement: Executable, parameters: Mapping[str, Any] | None) -> Fetched:
        try:
            try:
                return await self._fetch_once(statement, parameters)
            except DBAPIError as problem:
                if not problem.connection_invalidated:
                    raise
            # it was lost while nobody used it, and so were the others of the pool: this one is new
            return await self._fetch_once(statement, parameters)
        except (DBAPIError, PoolTimeout, MemoryError, Unreadable) as problem:
            if not is_transient(problem):
                raise
            told = transient(problem, "the store cannot be read at the moment")
            if is_index_damage(problem):
                self.index_damaged = True
            elif is_damage(problem):
                self._met(told)
            raise told from problem

    def unreadable(self, what: str) -> TransientStoreError:
        """The error that says of something which was read that it is not what was written."""
        told = transient(Unreadable(what), "the store cannot be read at the moment")
        self._met(told)
        return told

    def _met(self, told: TransientStoreError) -> None:
        if self.damage is None:
            log.error("%s", told)
        self._damage = asyncio.get_running_loop().time(), told.message

    async def _fetch_once(self, statement: Executable, parameters: Mapping[str, Any] | None) -> Fetched:
        async with self._engine.connect() as connection:
            with await self._watching(connection):
                result = await connection.execute(statement, parameters)
                return tuple(result.keys()), result.all()

    async def _watching(self, connection: AsyncConnection) -> contextlib.AbstractContextManager[object]:
        """Where the other side may fall silent: the connection is broken off after a while."""
        if connection.dialect.name != "postgresql":
            return contextlib.nullcontext()
        driver = (await connection.get_raw_connection()).driver_connection
        assert driver is not None
        timer = asyncio.get_running_loop().call_later(SILENT_S, break_off, driver.pgconn.socket)
        held = contextlib.ExitStack()
        held.callback(timer.cancel)
        return held

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
