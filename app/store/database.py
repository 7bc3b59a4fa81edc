"""The database of one server process: its lock, its one writing connection and its pool of readers.

Knows no table. Order at the end: the journal closes its writer, then `Database.close`.
"""

import asyncio
import sqlite3
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from app.sessions.ports import Replace, TransientStoreError
from app.store.failures import transient
from app.store.guard import Guard
from app.store.location import Location, locate, looking_at, make_file
from app.store.lock import FileLock, SessionLock, server_lock
from app.store.reader import Reader
from app.store.whole import WholeCursor, WholeResults
from app.store.writer import SqlWriter

Synchronous = Literal["OFF", "NORMAL", "FULL"]

BUSY_TIMEOUT_MS = 5_000
READERS = 4  # each is a thread on SQLite; a page takes under 1 ms, so that 4 serve thousands a second
_LOG_BYTES = 64 << 20  # what SQLite's log may keep on disk after one large transaction
_CLOSE_S = 10.0  # a read that takes longer is left behind


class Database:
    """`where` is a path or URL (`location.locate`). `synchronous` is SQLite's: FULL outlives a power cut, NORMAL the
    death of the process. `busy_timeout_ms` bounds the wait for another process's lock. `exclusive` False: for commands
    beside a running server, without the lock. `read_only`: to look at what is there; `open` is not called, and nothing
    is written, not even a file that is missing."""

    def __init__(
        self,
        where: str | Path,
        *,
        synchronous: Synchronous = "FULL",
        busy_timeout_ms: int = BUSY_TIMEOUT_MS,
        readers: int = READERS,
        exclusive: bool = True,
        read_only: bool = False,
    ) -> None:
        self.location = locate(where)
        self._synchronous = synchronous
        self._busy_timeout_ms = busy_timeout_ms
        self._readers = readers
        self._exclusive = exclusive
        self._lock: FileLock | SessionLock | None = None
        self._engine = _reading_engine(self.location, readers, busy_timeout_ms, read_only=read_only)
        self.reader = Reader(self._engine)

    async def lock(self) -> None:
        """Take the lock, unless this is a database without one or has it. Raises like `open`."""
        if self.location.path is not None:
            make_file(self.location.path)
        if self._exclusive and self._lock is None:
            try:
                self._lock = await asyncio.to_thread(server_lock, self.location, self._connect)
            except DBAPIError as problem:
                raise transient(problem, f"database {self.location} cannot be opened") from problem

    async def open(self) -> None:
        """Take the lock and open the readers, so that no request pays for it.

        Raises `StoreInUse` when another server has the file, OSError when it cannot be made, `TransientStoreError`
        when the database does not let us in.
        """
        try:
            await self.lock()
            # Held together: given back one by one, the first would serve every time.
            async with AsyncExitStack() as held:
                for _ in range(self._readers):
                    connection = await held.enter_async_context(self._engine.connect())
                    await connection.execute(text("SELECT 1"))
        except BaseException as problem:  # whatever it is: the lock and the connections are given back
            await self.close()
            if isinstance(problem, DBAPIError):
                raise transient(problem, f"database {self.location} cannot be opened") from problem
            raise

    def writer(self, replace: Replace, *, audit_key: bytes | None = None) -> SqlWriter:
        """The writer; its connection is opened by its first call, in the thread of that call."""
        guard = Guard() if self.location.path is None else None
        return SqlWriter(self._connect, replace, audit_key=audit_key, guard=guard)

    def looking(self) -> Connection:
        """A synchronous connection that can only read, for who reads much in a thread of its own; to be closed."""
        return looking_connection(self.location, self._busy_timeout_ms)

    def _connect(self) -> Connection:
        return writing_connection(self.location, self._synchronous, self._busy_timeout_ms)

    async def check(self) -> None:
        """Whether the store answers. Raises `TransientStoreError` with the reason when it does not."""
        try:
            await self.reader.rows(text("SELECT version_num FROM alembic_version"))
        except DBAPIError as problem:
            raise transient(problem, f"database {self.location} has no schema yet, run `db upgrade`") from problem
        if self.reader.damage is not None:
            raise TransientStoreError(self.reader.damage)

    async def close(self) -> None:
        """Wait for reads that are under way, close the readers, give the lock back."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.reader.drained()
        except TimeoutError:
            pass
        await self._engine.dispose()
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def writing_connection(location: Location, synchronous: Synchronous, busy_timeout_ms: int) -> Connection:
    """A connection that writes and that no pool knows. Its transactions take the write lock when they begin, so that
    none fails in the middle because another process was faster."""
    if location.path is None:
        options = f"-c lock_timeout={busy_timeout_ms} -c idle_in_transaction_session_timeout=60000"
        engine = create_engine(location.writing, poolclass=NullPool, connect_args=_postgres(options))
        return engine.connect()
    engine = create_engine(
        location.writing,
        poolclass=NullPool,
        connect_args={"timeout": busy_timeout_ms / 1000, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver begins nothing by itself
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute(f"PRAGMA synchronous={synchronous}")
        cursor.execute("PRAGMA secure_delete=ON")  # what a deleted session said does not stay in free pages
        cursor.execute("PRAGMA foreign_keys=OFF")
        cursor.execute(f"PRAGMA journal_size_limit={_LOG_BYTES}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine.connect()


def looking_connection(location: Location, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> Connection:
    """A connection outside of every pool that can only read, beside a running server too, and never makes the file. Of
    text that is damaged it gives what is left: who looks for damage must be able to see it. Raises
    `TransientStoreError` when the database cannot be opened."""
    try:
        return _looking_engine(location, busy_timeout_ms).connect()
    except DBAPIError as problem:
        raise transient(problem, f"database {location} cannot be opened") from problem


def _looking_engine(location: Location, busy_timeout_ms: int) -> Engine:
    if location.path is None:
        options = _postgres("-c default_transaction_read_only=on")
        return create_engine(location.writing, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=options)
    uri = f"{location.path.as_uri()}?{urlencode(looking_at(location.path))}"

    def connect() -> sqlite3.Connection:
        made = sqlite3.connect(uri, uri=True, timeout=busy_timeout_ms / 1000, check_same_thread=False)
        made.text_factory = _tolerant
        return made

    return create_engine("sqlite+pysqlite://", creator=connect, poolclass=NullPool, isolation_level="AUTOCOMMIT")


def _tolerant(text_: bytes) -> str:
    return text_.decode("utf-8", "replace")


def _reading_engine(location: Location, readers: int, busy_timeout_ms: int, *, read_only: bool) -> AsyncEngine:
    """A pool that can only read. No transaction outlives its statement: a held one lets SQLite's log grow."""
    if location.path is None:
        arguments: dict[str, Any] = _postgres("-c default_transaction_read_only=on -c statement_timeout=30000")
    else:
        arguments = {"timeout": busy_timeout_ms / 1000, "factory": WholeResults}
    where = location.reading
    if read_only and location.path is not None:
        where = where.set(database=location.path.as_uri(), query={**looking_at(location.path), "uri": "true"})
    engine = create_async_engine(
        where,
        pool_size=readers,
        max_overflow=0,
        isolation_level="AUTOCOMMIT",
        skip_autocommit_rollback=True,  # there is no transaction, and each would be a turn of two threads
        connect_args=arguments,
    )
    if location.path is not None:

        @event.listens_for(engine.sync_engine, "connect")
        def configure(connection: Any, _record: Any) -> None:
            driver = connection.driver_connection
            driver.cursor = partial(WholeCursor, driver)
            cursor = connection.cursor()
            cursor.execute("PRAGMA query_only=ON")
            cursor.close()

    return engine


def _postgres(options: str) -> dict[str, Any]:
    return {
        "options": options,
        "application_name": "subagentd",
        "connect_timeout": 3,  # s, for a server that can be reached; it is tried again
        # a machine that is gone says nothing: found out after 15 s, whether something is under way or not
        "keepalives_idle": 5,
        "keepalives_interval": 5,
        "keepalives_count": 2,
        "tcp_user_timeout": 15_000,
    }
