"""Where the database is: a SQLite file or a PostgreSQL server, from a path or a URL.

Knows no table and opens no connection.
"""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

_SQLITE = {"sqlite", "sqlite+aiosqlite", "sqlite+pysqlite"}
_POSTGRES = {"postgres", "postgresql", "postgresql+psycopg", "postgres+psycopg"}
_WANTED = "use a file path, sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A database. `path` is the SQLite file, resolved, so that two names of one file share one lock; None: PostgreSQL.
    `reading` is the URL for the async engine, `writing` that for the synchronous one."""

    path: Path | None
    writing: URL
    reading: URL

    def __str__(self) -> str:
        """For people: without a password."""
        return str(self.path) if self.path is not None else self.writing.render_as_string(hide_password=True)


def locate(where: str | Path) -> Location:
    """Read a path or a URL. Raises ValueError saying what is wrong and what may stand there."""
    text = str(where)
    if "://" not in text:
        return _file(text)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as problem:
        raise ValueError(f"database: this is no URL; {_WANTED}") from problem
    if url.drivername in _SQLITE:
        if url.query:
            raise ValueError(f"database {text!r}: a SQLite URL takes no options; {_WANTED}")
        return _file(url.database or "")
    if url.drivername in _POSTGRES:
        if find_spec("psycopg") is None:
            raise ValueError("database: PostgreSQL needs its driver: pip install 'subagentd[postgres]'")
        server = url.set(drivername="postgresql+psycopg")
        return Location(path=None, writing=server, reading=server)
    raise ValueError(f"database: {url.drivername!r} is not supported; {_WANTED}")


def _file(text: str) -> Location:
    if not text or text == ":memory:":
        raise ValueError(f"database {text!r}: the store needs a file, since several connections share it; {_WANTED}")
    path = Path(text).expanduser().resolve()
    return Location(
        path=path,
        writing=URL.create("sqlite+pysqlite", database=str(path)),
        reading=URL.create("sqlite+aiosqlite", database=str(path)),
    )


def make_file(path: Path) -> None:
    """Make sure that the file exists; a new one, and what SQLite puts beside it, is for its owner alone.

    Raises OSError when the directory cannot be made or the file not be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def looking_at(path: Path) -> dict[str, str]:
    """The options of a SQLite URI for a file that is only read and never made. In a place where nothing can be written,
    SQLite could not make what it shares with other processes beside the file: there it is told that there are none,
    unless somebody has made these."""
    beside = (path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm"))
    alone = not os.access(path.parent, os.W_OK) and not any(file.exists() for file in beside)
    return {"mode": "ro", "immutable": "1"} if alone else {"mode": "ro"}
