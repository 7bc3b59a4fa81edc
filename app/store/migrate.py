"""Brings a database to the schema of this version (spec 12.1); also `python -m app.store.migrate`.

Alembic is imported only when there is something to do: a start on a current database costs one SELECT.
"""

import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from app.store.columns import Json
from app.store.database import writing_connection
from app.store.failures import is_transient, reason, transient
from app.store.location import Location, locate, make_file
from app.store.lock import StoreInUse, server_lock

if TYPE_CHECKING:
    from alembic.config import Config

LOCK_TIMEOUT_MS = 30_000  # how long one process waits for another that migrates
_POSTGRES_LOCK = 0x73756261  # any number that only this service takes
TEXT_INDEX = "messages_text"  # another table on each database: no part of the models


class MigrationError(Exception):
    """The database cannot be brought to this version; the message says what to do."""


def upgrade(where: str | Path, *, locked: bool = False) -> bool:
    """Bring the database to the newest schema; True when something was done. Safe when several processes do it at
    once. `locked`: the caller has the server's lock. Raises `MigrationError` for a database of a newer version, one
    that cannot be used, or one that a server of an older version uses, ValueError for a bad URL."""
    location = locate(where)
    if location.path is not None:
        make_file(location.path)
    try:
        return _upgrade(location, locked=locked)
    except (sqlite3.Error, DBAPIError) as error:
        raise MigrationError(f"database {location} cannot be used: {reason(error)}") from error


def _upgrade(location: Location, *, locked: bool) -> bool:
    head = newest()
    if _current_quickly(location) == head:
        return False
    with _locked(location) as connection:
        current = _current(connection)
        if current == head:
            return False  # another process was faster
        if current is not None and current > head:
            raise MigrationError(
                f"database {location} has schema {current}, this version knows {head}: start the newer version of "
                "subagentd, or restore the backup that was made before it"
            )
        with nullcontext() if locked or current is None else _no_server(location, current):
            _alembic(connection)
        return True


@contextmanager
def _no_server(location: Location, current: str) -> Iterator[None]:
    """No server has the database meanwhile: one of an older version does not write what the newer schema keeps."""
    try:
        lock = server_lock(location, partial(writing_connection, location, "FULL", LOCK_TIMEOUT_MS))
    except StoreInUse as problem:
        raise MigrationError(
            f"database {location} has schema {current} and is used by a server of that version: stop it before the "
            f"database is upgraded ({problem.message.partition(': ')[0]})"
        ) from problem
    try:
        yield
    finally:
        lock.release()


def scripts() -> Path:
    """The directory of the migrations: inside the installed package, or beside it in a checkout. The package's own
    comes first: beside an installed one there may be somebody else's `migrations`."""
    package = Path(__file__).resolve().parent.parent
    packaged = package / "_migrations"
    return packaged if packaged.is_dir() else package.parent / "migrations"


def newest() -> str:
    """The newest revision: file names begin with the revision, four digits that count up."""
    return max(path.name.partition("_")[0] for path in (scripts() / "versions").glob("[0-9]*_*.py"))


def revision(connection: Connection) -> str | None:
    """The revision that a database has, None without any; for connections that only read."""
    try:
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    except DBAPIError as problem:
        if is_transient(problem):
            raise transient(problem, "the database cannot be read at the moment") from problem
        return None


def _current_quickly(location: Location) -> str | None:
    """The revision, by the driver alone on SQLite; None when it cannot be told yet."""
    if location.path is None:
        with closing(writing_connection(location, "FULL", LOCK_TIMEOUT_MS)) as connection:
            return _current(connection)
    try:
        with closing(sqlite3.connect(location.path, timeout=LOCK_TIMEOUT_MS / 1000)) as connection:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            return str(row[0]) if row else None
    except sqlite3.OperationalError:
        return None  # no such table, or locked by a process that makes it: decided under the lock


def _current(connection: Connection) -> str | None:
    savepoint = connection.begin_nested()
    try:
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    except (OperationalError, ProgrammingError) as problem:
        savepoint.rollback()
        if is_transient(problem):
            raise
        return None
    savepoint.commit()
    return found


@contextmanager
def _locked(location: Location) -> Iterator[Connection]:
    """A connection inside one transaction that no other migration runs beside."""
    with closing(_patiently(location)) as connection, connection.begin():
        if location.path is None:
            connection.execute(text("SET LOCAL lock_timeout = 0"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _POSTGRES_LOCK})
        yield connection


def _patiently(location: Location) -> Connection:
    """Open the connection. SQLite does not wait for others while the log mode of a fresh file is changed."""
    until = time.monotonic() + LOCK_TIMEOUT_MS / 1000
    while True:
        try:
            return writing_connection(location, "FULL", LOCK_TIMEOUT_MS)
        except OperationalError as problem:
            if location.path is None or not is_transient(problem) or time.monotonic() > until:
                raise
        time.sleep(0.02)


def _config(connection: Connection) -> "Config":
    from alembic.config import Config  # noqa: PLC0415  costs 150 ms, and nearly never needed

    from app.store.tables import metadata  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["metadata"] = metadata
    config.attributes["include_object"] = _is_ours
    config.attributes["render_item"] = _rendered
    return config


def _is_ours(_thing: Any, name: str | None, kind: str, _reflected: bool, _other: Any) -> bool:
    return not (kind == "table" and name is not None and name.startswith(TEXT_INDEX))


def _rendered(kind: str, thing: Any, _context: Any) -> str | bool:
    """A migration stays as it is when our types change: it names those of the database."""
    return "sa.Text()" if kind == "type" and isinstance(thing, Json) else False


def _alembic(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415

    command.upgrade(_config(connection), "head")


# ── for developers ──────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _fresh() -> Iterator[Connection]:
    """A connection to a new SQLite database with the newest schema."""
    with tempfile.TemporaryDirectory() as directory:
        location = locate(Path(directory) / "fresh.db")
        upgrade(str(location))
        with _locked(location) as connection:
            yield connection


def differences() -> list[Any]:
    """What the models have and the migrations do not build, or the other way round; empty when they agree."""
    from alembic.autogenerate import compare_metadata  # noqa: PLC0415
    from alembic.migration import MigrationContext  # noqa: PLC0415

    from app.store.tables import metadata  # noqa: PLC0415

    with _fresh() as connection:
        context = MigrationContext.configure(
            connection, opts={"include_object": _is_ours, "compare_type": True, "compare_server_default": True}
        )
        return list(compare_metadata(context, metadata))


def revise(message: str) -> str:
    """Write the next migration from what the models have and the migrations do not; returns its path."""
    from alembic import command  # noqa: PLC0415

    with _fresh() as connection:
        script = command.revision(
            _config(connection), message, autogenerate=True, rev_id=f"{int(newest()) + 1:04d}", head="head"
        )
    assert script is not None and not isinstance(script, list)
    return str(script.path)


def main(arguments: list[str]) -> int:
    """`check` · `upgrade PATH|URL` · `revise MESSAGE`. Exit 0: done; 1: `check` found differences; 2: wrong usage."""
    match arguments:
        case ["check"]:
            found = differences()
            for difference in found:
                print(difference)  # noqa: T201
            return 1 if found else 0
        case ["upgrade", where]:
            upgrade(where)
            return 0
        case ["revise", message]:
            print(revise(message))  # noqa: T201
            return 0
    print("usage: python -m app.store.migrate check | upgrade PATH|URL | revise MESSAGE", file=sys.stderr)  # noqa: T201
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
