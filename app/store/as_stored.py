"""Rows as they are stored, damaged or not: a statement that is sent as text gives what the driver gives.

Knows no table.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Connection, make_url
from sqlalchemy.exc import DBAPIError

from app.agent.errors import Unavailable
from app.sessions.ports import DAMAGED
from app.store.failures import is_damage, reason, transient

SLICE = 50  # rows in memory at once; one may have a megabyte
LONGEST = 80  # characters of a damaged value that are shown

# What a value that nobody of us wrote can raise where it is looked at: of another kind, beyond every time, nested
# without end, no JSON.
UNREADABLE = (
    TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, OSError, msgspec.MsgspecError,
)  # fmt: skip


class Damaged(Unavailable):
    """The database cannot read what it has stored."""

    code = DAMAGED


def rows(connection: Connection, statement: Any, parameters: Mapping[str, Any]) -> Iterator[Any]:
    """The rows of a statement. Raises `Damaged`, or what `transient` makes of other errors of the database."""
    text, own = _spoken(connection.dialect.name, statement)
    try:
        result = connection.exec_driver_sql(text, {**own, **parameters})
        while found := result.fetchmany(SLICE):
            yield from found
    except DBAPIError as problem:
        if is_damage(problem):
            raise Damaged(f"the database is damaged: {reason(problem)}") from problem
        raise transient(problem, "the store cannot be read at the moment") from problem


@cache
def _spoken(dialect: str, statement: Any) -> tuple[str, Mapping[str, Any]]:
    """A statement as text, and the parameters that it brings along."""
    kind: Any = make_url(f"{dialect}://").get_dialect()
    compiled = statement.compile(dialect=kind(paramstyle="named" if dialect == "sqlite" else "pyformat"))
    return str(compiled), compiled.params


def shown(value: Any) -> str:
    """A value that may be anything, short and on one line."""
    told = repr(value[:LONGEST] if isinstance(value, str | bytes) else value)
    return told if len(told) <= LONGEST else f"{told[:LONGEST]}…"


def number_of(value: Any, otherwise: int) -> int:
    """What stands in the place of a number, if it is one; else another."""
    return value if isinstance(value, int) else otherwise
