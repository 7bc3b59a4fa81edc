"""Which errors of a database pass by themselves, and what a person should read of them.

Knows no statement.
"""

import sqlite3
from typing import Any

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.sessions.ports import DAMAGED, TransientStoreError

REPAIR = "the file of the database is damaged: docs/operations.md says how it is looked at and replaced"
MAX_REASON = 300  # characters: the reason stands in an event that clients see

_SQLITE_PASSING = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOTADB,
    }
)
# SQLSTATE classes: connection, authorisation, read-only and aborted transactions, rollback, resources, wrong state,
# intervention of an operator, system error. 54 (limits, as of an index row) belongs to the row and is not here.
_POSTGRES_PASSING = ("08", "25", "28", "3D", "40", "53", "55", "57", "58", "XX")


class Unreadable(Exception):
    """What was read is nothing that this service writes there: the database gives it without a word, and it is damaged
    all the same."""


def is_transient(problem: BaseException) -> bool:
    """Whether the same statements may succeed later without any change to them."""
    if isinstance(problem, TransientStoreError | PoolTimeout | MemoryError):  # sqlite3 raises the last for `NOMEM`
        return True
    if is_damage(problem):
        return True
    if not isinstance(problem, DBAPIError):
        return False
    if problem.connection_invalidated:
        return True
    original: Any = problem.orig
    code = getattr(original, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in _SQLITE_PASSING
    state = getattr(original, "sqlstate", None)
    if state is not None:
        return str(state).startswith(_POSTGRES_PASSING)
    # psycopg gives no state when the server was not reached; sqlite3 no code when it did not come from SQLite.
    return isinstance(problem, OperationalError | InterfaceError) and not isinstance(original, sqlite3.Error)


def is_damage(problem: BaseException | None) -> bool:
    """Whether what the database has stored is broken, as it says itself or as can be seen."""
    if isinstance(problem, Unreadable):
        return True
    if not isinstance(problem, DBAPIError):
        return False
    if _is_no_text(problem):
        return True
    code = getattr(problem.orig, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return str(getattr(problem.orig, "sqlstate", "")) in ("XX001", "XX002")


def is_index_damage(problem: BaseException | None) -> bool:
    """Whether SQLite's text index is broken, and nothing else as far as it knows."""
    code = getattr(getattr(problem, "orig", None), "sqlite_errorcode", None)
    return code == sqlite3.SQLITE_CORRUPT_VTAB


def _is_no_text(problem: DBAPIError) -> bool:
    """Whether it is a text that is no UTF-8: of what sqlite3 raises here that alone does not come from SQLite."""
    original = problem.orig
    told = isinstance(original, sqlite3.OperationalError) and not problem.connection_invalidated
    return told and getattr(original, "sqlite_errorcode", None) is None


def reason(problem: BaseException) -> str:
    """The error in one short line, without statement and parameters: those hold what people wrote."""
    if isinstance(problem, DBAPIError) and _is_no_text(problem):
        return "a text in it is not UTF-8"  # the error would show it
    original = problem.orig if isinstance(problem, DBAPIError) and problem.orig is not None else problem
    text = " ".join(str(original).split()) or type(original).__name__
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 1] + "…"


def transient(problem: BaseException, what: str) -> TransientStoreError:
    """The error that callers see while the store is away."""
    told = f"{what}: {reason(problem)}"
    if is_damage(problem) and not is_index_damage(problem):
        return TransientStoreError(f"{told}; {REPAIR}", code=DAMAGED, retry_after_s=60)
    return TransientStoreError(told)
