"""Makes a log larger by copies of its sessions under other ids, with chains and heads of their own.

Ids begin with the time at which they were made; a copy is the same at another time. Four times as fast as the writer.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import Text
from sqlalchemy.types import TypeDecorator

from app.store.chain import START, Head, digest, link, seal
from app.store.tables import (
    approvals,
    decisions,
    handoffs,
    memories,
    messages,
    notices,
    runs,
    sessions,
    tool_calls,
)

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # of `agent.ids`
_HEAD = slice(3, 8)  # of an id such as ses_01m8…: the underscore and what stands for 12 days
_PAGE = 20_000  # events at once
_ROWS = (sessions, memories, runs, handoffs, messages, tool_calls, approvals, decisions, notices)
_INSERT = (
    "INSERT INTO events (tenant_id, session_id, seq, type, run_id, ts, envelope, data, data_digest, hash)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def multiply(path: Path, copies: int, key: bytes) -> int:
    """Add so many copies of everything; `key`: `audit.key`. The number of events that were added."""
    added = 0
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=OFF")
        db.execute("PRAGMA synchronous=OFF")
        db.execute("PRAGMA cache_size=-400000")
        last = db.execute("SELECT max(rowid) FROM events").fetchone()[0]
        ends = {table.name: db.execute(f"SELECT max(rowid) FROM {table.name}").fetchone()[0] or 0 for table in _ROWS}
        old = db.execute("SELECT id FROM sessions LIMIT 1").fetchone()[0][_HEAD]
        for number in range(1, copies + 1):
            new = _later(old, number)
            db.execute("BEGIN")
            heads = _events(db, last, old.encode(), new.encode())
            for table, end in ends.items():
                db.execute(_copied(table), {"old": old, "new": new, "end": end})
            rows = [(head.hash, seal(key, head), *place) for place, head in heads.items()]
            db.executemany("UPDATE sessions SET head_hash = ?, head_mac = ? WHERE tenant_id = ? AND id = ?", rows)
            db.execute("COMMIT")
            added += last
        db.execute("PRAGMA journal_mode=WAL")
    return added


def _later(head: str, number: int) -> str:
    """The beginning of ids that were made `number` times 12 days later."""
    value = _ALPHABET.index(head[3]) * 32 + _ALPHABET.index(head[4]) + number
    return f"{head[:3]}{_ALPHABET[value // 32]}{_ALPHABET[value % 32]}"


def _events(db: sqlite3.Connection, last: int, old: bytes, new: bytes) -> dict[tuple[str, str], Head]:
    heads: dict[tuple[str, str], Head] = {}
    was, becomes = old.decode(), new.decode()
    for begin in range(0, last, _PAGE):
        made = []
        for tenant, session_id, seq, kind, run_id, ts, envelope, data in db.execute(
            "SELECT tenant_id, session_id, seq, type, run_id, ts, envelope, data FROM events"
            " WHERE rowid > ? AND rowid <= ?",
            (begin, min(begin + _PAGE, last)),
        ).fetchall():
            place = tenant, session_id.replace(was, becomes)
            envelope, data = envelope.replace(old, new), data.replace(old, new)
            inner = digest(data)
            hash_ = link(heads.get(place, START).hash, envelope, inner)
            heads[place] = Head(seq + 1, hash_)
            run = run_id and run_id.replace(was, becomes)
            made.append((*place, seq, kind, run, ts, envelope, data, inner, hash_))
        db.executemany(_INSERT, made)
    return heads


def _copied(name: str) -> str:
    """The statement that copies the rows of a table; every text may hold an id."""
    table = next(table for table in _ROWS if table.name == name)
    columns = [column for column in table.c if column.name != "row_id"]
    texts = {column.name for column in columns if isinstance(column.type, Text | TypeDecorator)} - {"tenant_id"}
    shown = [f'replace("{c.name}", :old, :new)' if c.name in texts else f'"{c.name}"' for c in columns]
    names = ", ".join(f'"{column.name}"' for column in columns)
    return f"INSERT INTO {name} ({names}) SELECT {', '.join(shown)} FROM {name} WHERE rowid <= :end"
