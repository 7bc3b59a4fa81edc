"""Takes what was erased out of SQLite's files.

With `secure_delete` an erased page is overwritten; but the log beside the database holds what it was before, and on a
quiet service nothing is written that would take its place. Knows no table.
"""

import logging
import sqlite3
import time

from sqlalchemy import Connection

log = logging.getLogger(__name__)

PATIENCE_MS = 50  # for readers to come to their end: each reads for a few ms
AGAIN_S = 1.0  # after one try in vain: under load there is always a reader, and what is written clears the log as well
LONGEST_S = 60.0  # each try in vain doubles the time to the next


class Scrubber:
    """Of one writer; used in its thread."""

    def __init__(self) -> None:
        self._due = False
        self._first = True
        self._not_before = 0.0
        self._in_vain = 0

    def mark(self) -> None:
        """The transaction that is open, or the one that begins now, erases something."""
        self._due = True

    def rest(self, connection: Connection) -> float | None:
        """Nothing waits to be written. How long until this is to be called again, in s; None: nothing is left to do."""
        if self._first:
            self._first = False
            self._due = True  # an earlier process may have erased something, and been killed
        return self.after(connection)

    def after(self, connection: Connection) -> float | None:
        """A transaction was committed: write the log into the database and empty it, if something was erased. When
        readers are in the way, it is tried again later; how much later, in s, None: nothing is left to do."""
        now = time.monotonic()
        if not self._due:
            return None
        if now < self._not_before:
            return self._not_before - now
        if connection.dialect.name != "sqlite":  # PostgreSQL reuses and archives its log as its operator has it
            self._due = False
            return None
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        try:
            self._due = not _emptied(driver)
        except sqlite3.Error as error:  # what was committed is stored all the same
            log.info("the log of the database could not be emptied of what was erased, and is later: %s", error)
        if not self._due:
            self._not_before, self._in_vain = 0.0, 0
            return None
        pause_s = min(AGAIN_S * 2.0 ** min(self._in_vain, 20), LONGEST_S)
        self._not_before, self._in_vain = now + pause_s, self._in_vain + 1
        return pause_s


def _emptied(driver: sqlite3.Connection) -> bool:
    (patience,) = driver.execute("PRAGMA busy_timeout").fetchone()
    driver.execute(f"PRAGMA busy_timeout={PATIENCE_MS}")
    try:
        busy, _, _ = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        driver.execute(f"PRAGMA busy_timeout={patience}")
    return not busy
