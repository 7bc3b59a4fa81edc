"""How fast the audit trail is read in a log of a million messages, through the store's own functions.

    python -m bench.audit_log [MESSAGES] [PATH]

The log is that of `bench.big_log`, kept when PATH is given. Prints p50 and p95 of a page of 50 and each query plan.
"""

import asyncio
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.dialects import sqlite

from app.sessions.audit import MessageFilter, Page
from app.store.database import Database
from app.store.messages import MESSAGE_ORDERS, SqlAuditStore
from app.store.pages import Question, question
from app.store.tables import messages
from bench.big_log import build
from bench.stories import LARGEST
from tests.store.facts import START

AGENT = "lead_3"
CALLS = 200
_MIDDLE = text("SELECT * FROM messages WHERE row_id >= :n AND tenant_id = :tenant LIMIT 1")
_LONGEST = text("SELECT id, next_seq FROM sessions WHERE tenant_id = :tenant ORDER BY next_seq DESC LIMIT 1")


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
        page = await store.messages(LARGEST, filters, cursor=cursor, limit=50)
        times.append(time.perf_counter() - begun)
    times.sort()
    p50, p95 = (times[int(len(times) * share)] * 1000 for share in (0.5, 0.95))
    print(f"{name:<34} {len(page.items):>3} rows  p50 {p50:6.2f} ms  p95 {p95:6.2f} ms")


async def read(path: Path, count: int) -> None:
    """Ask every question at the newest end and deep inside."""
    database = Database(path)
    await database.open()
    store = SqlAuditStore(database.reader)
    middle = await database.reader.row(_MIDDLE, {"n": count // 2, "tenant": LARGEST})
    longest = await database.reader.row(_LONGEST, {"tenant": LARGEST})
    assert middle is not None
    assert longest is not None
    long = longest["id"]
    questions = {
        "long session": MessageFilter(session_id=long),
        "session": MessageFilter(session_id=middle["session_id"]),
        "run": MessageFilter(run_id=middle["run_id"]),
        "agent": MessageFilter(agent=AGENT),
        "tool": MessageFilter(tool="grep"),
        "all": MessageFilter(),
        "agent + role": MessageFilter(agent=AGENT, role="assistant"),
        "agent + role that it has not": MessageFilter(agent="clerk", role="tool"),
        "role + time": MessageFilter(role="user", since=START, until=middle["ts"]),
        "long session + agent": MessageFilter(session_id=long, agent="scout_1"),
    }
    for name, filters in questions.items():
        newest = replace(filters, newest_first=True)
        names = ("session_id", "run_id", "agent", "tool", "role", "since", "until")
        given = {name: value for name in names if (value := getattr(filters, name)) is not None}
        asked = question(messages, MESSAGE_ORDERS, given, True)
        deep = asked.cursor(
            {**middle, "seq": longest["next_seq"] // 2 if filters.session_id == long else middle["seq"]}, given
        )
        await measure(store, f"{name}, newest", newest, None)
        await measure(store, f"{name}, deep", newest, deep)
        print("    " + plan(path, replace(asked, after=True)))
    begun = time.perf_counter()
    counted = (await store.count(LARGEST, MessageFilter())).count
    print(f"count of all: {counted} in {(time.perf_counter() - begun) * 1000:.1f} ms")
    await database.close()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as directory:
        path = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(directory) / "audit.db"
        if not path.exists():
            build(path, count)
        asyncio.run(read(path, count))


if __name__ == "__main__":
    main()
