"""How fast the audit trail is read in a log of a million messages, through the store's own functions.

    python -m bench.audit_log [MESSAGES] [PATH]

Fills the tables, keeps the file when PATH is given, and prints p50 and p95 of a page of 50 and each query plan.
"""

import asyncio
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, insert, text
from sqlalchemy.dialects import sqlite

from app.agent.ids import new_id
from app.sessions.audit import MessageFilter, Page
from app.store.database import Database
from app.store.messages import MESSAGE_ORDERS, SqlAuditStore
from app.store.migrate import upgrade
from app.store.pages import Question, question
from app.store.tables import messages

TENANT = "default"
START = 1_800_000_000_000_000
AGENTS = [f"agent_{number}" for number in range(20)]
RUN = 20  # messages
SESSION = 200
LONG = "ses_long"  # every tenth message: one session with a tenth of everything
CHUNK = 20_000
CALLS = 200
ROLES = ("assistant", "tool")


def rows(count: int) -> Iterator[dict[str, Any]]:
    """Messages of runs with one tool call a step, 600 bytes each."""
    content = "a log line of some length that says what was found there. " * 10
    session, run, long_run, long_seq = "", "", "", 0
    for number in range(count):
        if number % SESSION == 0:
            session = new_id("ses")
        if number % RUN == 0:
            run, long_run = new_id("run"), new_id("run")
        long = number % 10 == 9
        long_seq += long
        role = "system" if number % RUN == 0 else "user" if number % RUN == 1 else ROLES[number % 2]
        yield {
            "tenant_id": TENANT if number % 50 else "other",
            "id": new_id("msg"),
            "session_id": LONG if long else session,
            "seq": long_seq if long else number % SESSION + 1,
            "memory_id": long_run if long else run,
            "memory_seq": number % RUN + 1,
            "run_id": long_run if long else run,
            "agent": AGENTS[number // RUN % len(AGENTS)],
            "name": None,
            "is_subagent": False,
            "depth": 0,
            "turn": 0,
            "step": number % RUN // 2,
            "sub": number % 2,
            "role": role,
            "content": content,
            "reasoning": None,
            "tool_calls": None,
            "tool_call_id": "call" if role == "tool" else None,
            "tool": ("read_file", "grep", "glob")[number // 2 % 3] if role == "tool" else None,
            "is_error": False,
            "tokens": 120,
            "metadata": None,
            "ts": START + number * 1000,
        }


def fill(path: Path, count: int) -> None:
    """Make the store."""
    upgrade(path)
    engine = create_engine(f"sqlite:///{path}")
    begun = time.perf_counter()
    with engine.connect() as connection:
        connection.execute(text("PRAGMA synchronous=OFF"))
        connection.commit()
        source = rows(count)
        while chunk := list(islice(source, CHUNK)):
            connection.execute(insert(messages), chunk)
            connection.commit()
        connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
    engine.dispose()
    took = time.perf_counter() - begun
    size = path.stat().st_size / 2**20
    print(f"{count} messages in {took:.0f} s ({took / count * 1e6:.0f} µs each), {size:.0f} MiB")


def plan(path: Path, asked: Question) -> str:
    """The query plan in one line."""
    compiled = asked.page().compile(dialect=sqlite.dialect(paramstyle="named"))
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(f"EXPLAIN QUERY PLAN {compiled}", dict.fromkeys(compiled.params, 1))
        return "; ".join(row[3] for row in rows)


async def measure(store: SqlAuditStore, name: str, filters: MessageFilter, cursor: str | None) -> None:
    """p50 and p95 of one question."""
    times = []
    page = Page(items=())
    for _ in range(CALLS):
        begun = time.perf_counter()
        page = await store.messages(TENANT, filters, cursor=cursor, limit=50)
        times.append(time.perf_counter() - begun)
    times.sort()
    p50, p95 = (times[int(len(times) * share)] * 1000 for share in (0.5, 0.95))
    print(f"{name:<34} {len(page.items):>3} rows  p50 {p50:6.2f} ms  p95 {p95:6.2f} ms")


async def read(path: Path, count: int) -> None:
    """Ask every question at the newest end and deep inside."""
    database = Database(path)
    await database.open()
    store = SqlAuditStore(database.reader)
    middle = await database.reader.row(text("SELECT * FROM messages WHERE row_id = :n"), {"n": count // 2})
    assert middle is not None
    questions = {
        "long session": MessageFilter(session_id=LONG),
        "session": MessageFilter(session_id=middle["session_id"]),
        "run": MessageFilter(run_id=middle["run_id"]),
        "agent": MessageFilter(agent=AGENTS[3]),
        "tool": MessageFilter(tool="grep"),
        "all": MessageFilter(),
        "agent + role": MessageFilter(agent=AGENTS[3], role="assistant"),
        "agent + role that it has not": MessageFilter(agent=AGENTS[3], role="nobody"),
        "role + time": MessageFilter(role="user", since=START, until=START + count * 500),
        "long session + agent": MessageFilter(session_id=LONG, agent=AGENTS[3]),
    }
    for name, filters in questions.items():
        newest = replace(filters, newest_first=True)
        given = {key for key in ("session_id", "run_id", "agent", "tool") if getattr(filters, key)}
        asked = question(messages, MESSAGE_ORDERS, dict.fromkeys(given, 1), True)
        deep = asked.cursor({**middle, "seq": count // 20 if filters.session_id == LONG else middle["seq"]})
        await measure(store, f"{name}, newest", newest, None)
        await measure(store, f"{name}, deep", newest, deep)
        given |= {key for key in ("role", "since", "until") if getattr(filters, key)}
        print("    " + plan(path, replace(asked, given=frozenset(given), after=True)))
    begun = time.perf_counter()
    counted = (await store.count(TENANT, MessageFilter())).count
    print(f"count of all: {counted} in {(time.perf_counter() - begun) * 1000:.1f} ms")
    await database.close()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as directory:
        path = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(directory) / "audit.db"
        if not path.exists():
            fill(path, count)
        asyncio.run(read(path, count))


if __name__ == "__main__":
    main()
