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


class Scrubber:
    """Of one writer; used in its thread."""

    def __init__(self) -> None:
        self._due = False
        self._not_before = 0.0

    def mark(self) -> None:
        """The transaction that is open, or the one that begins now, erases something."""
        self._due = True

    def after(self, connection: Connection) -> None:
        """A transaction was committed: write the log into the database and empty it, if something was erased. When
        readers are in the way, a later one does it."""
        now = time.monotonic()
        if not self._due or now < self._not_before:
            return
        if connection.dialect.name != "sqlite":  # PostgreSQL reuses and archives its log as its operator has it
            self._due = False
            return
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        try:
            self._due = not _emptied(driver)
        except sqlite3.Error as error:  # what was committed is stored all the same
            log.info("the log of the database could not be emptied of what was erased, and is later: %s", error)
        self._not_before = now + AGAIN_S if self._due else 0.0


def _emptied(driver: sqlite3.Connection) -> bool:
    (patience,) = driver.execute("PRAGMA busy_timeout").fetchone()
    driver.execute(f"PRAGMA busy_timeout={PATIENCE_MS}")
    try:
        busy, _, _ = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        driver.execute(f"PRAGMA busy_timeout={patience}")
    return not busy
