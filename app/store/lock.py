"""One server for one database: an advisory lock, on a file beside a SQLite file, or in PostgreSQL itself.

The kernel or the server drops the lock with the process, however it ends, so that nothing is left to clean up.
"""

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, text

from app.agent.errors import Unavailable
from app.store.location import Location

_POSTGRES_KEY = 0x5375626167656E74  # "Subagent": any number that nobody else takes
_PATIENCE_S = 5.0  # a server that was killed a moment ago may still be known to PostgreSQL


class StoreInUse(Unavailable):
    """Another server process has this database."""

    code = "store_in_use"


class FileLock:
    """Held from construction until `release`. Raises `StoreInUse` at once when another process holds it."""

    def __init__(self, database: Path) -> None:
        path = database.with_name(f"{database.name}.lock")
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            holder = os.pread(self._handle, 32, 0).decode("ascii", "replace").strip()
            os.close(self._handle)
            raise StoreInUse(
                f"database {database} is in use by another server{f' (process {holder})' if holder else ''}: "
                "a SQLite file serves one server at a time; stop that one, choose another file, or use PostgreSQL"
            ) from problem
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let others have it. The file stays: removing it would let two processes lock two files of one name."""
        os.ftruncate(self._handle, 0)
        os.close(self._handle)


class SessionLock:
    """A lock of PostgreSQL that lives as long as its connection. Sessions number their events in one process, so that
    a second server on the same database would interrupt the first one's runs. Raises `StoreInUse`."""

    def __init__(self, connection: Connection, where: str) -> None:
        self._connection = connection
        give_up = time.monotonic() + _PATIENCE_S
        while not self._try():
            if time.monotonic() > give_up:
                connection.close()
                raise StoreInUse(
                    f"database {where} is in use by another server: one server at a time numbers its events; stop that "
                    "one, or name another database"
                )
            time.sleep(0.1)

    def _try(self) -> bool:
        taken = self._connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _POSTGRES_KEY}).scalar()
        self._connection.commit()  # the lock belongs to the connection; an open transaction would be timed out
        return bool(taken)

    def release(self) -> None:
        """Let others have it."""
        self._connection.close()


def server_lock(location: Location, connect: Callable[[], Connection]) -> FileLock | SessionLock:
    """The lock of a database, taken. Raises `StoreInUse`. `connect` is asked for PostgreSQL only, where it may take
    seconds."""
    if location.path is not None:
        return FileLock(location.path)
    return SessionLock(connect(), str(location))
