"""The price of the text index, and what searches cost: CPU µs a message, ms of a transaction, ms of an answer.

    python -m bench.text_index [MESSAGES] [PATH]

Fills the tables with texts of the documentation and some Chinese, indexes them as the service does, through its writer,
and asks. The file is kept when PATH is given. A URL of PostgreSQL (an empty database) does as well.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import insert, text

from app.agent.events import Write
from app.agent.ids import new_id
from app.sessions.audit import MessageFilter
from app.store.database import Database, writing_connection
from app.store.location import locate
from app.store.messages import SqlAuditStore
from app.store.migrate import upgrade
from app.store.search import TextIndex
from app.store.tables import messages

ROOT = Path(__file__).resolve().parent.parent
CHINESE = ("小黄门去查一查奏折", "东厂探事回报无事", "司礼监随堂批红", "尚宝点簿核对印信", "今日风平浪静")
RARE, RARER = "xylophone quartet", "奏折已经烧毁"
CALLS = 20
TENANT = "default"
START = 1_800_000_000_000_000
AGENTS = [f"agent_{number}" for number in range(20)]
RUN = 20  # messages
SESSION = 200
LONG = "ses_long"  # every tenth message: one session with a tenth of everything
CHUNK = 20_000
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


def texts() -> Iterator[str]:
    """Pieces of what people write, 100 to 1,200 characters; every tenth in Chinese."""
    words = " ".join(path.read_text() for path in sorted(ROOT.glob("**/*.md")) if ".venv" not in path.parts).split()
    chance = random.Random(7)
    while True:
        begin = chance.randrange(len(words) - 200)
        said = " ".join(words[begin : begin + chance.randrange(20, 160)])[:1200]
        yield "，".join(chance.choices(CHINESE, k=len(said) // 12)) if chance.random() < 0.1 else said


def fill(where: str, count: int) -> float:
    """Store the messages; returns their mean length."""
    upgrade(where)
    source, said, size, number = rows(count), texts(), 0, 0
    with writing_connection(locate(where), "OFF", 5000) as connection:
        while chunk := list(islice(source, CHUNK)):
            for row in chunk:
                row["content"] = next(said)
                row["ts"] = START + number * 1000
                row["agent"] = "rare" if number % 100_000 == 77 else row["agent"]
                row["content"] += f" {RARE}" if number % 50_000 == 9 else f" {RARER}" if number == count // 3 else ""
                size += len(row["content"])
                number += 1
            with connection.begin():
                connection.execute(insert(messages), chunk)
    return size / count


async def index(database: Database, count: int) -> None:
    """Index everything, one transaction after the other."""
    writer = database.writer(lambda event, _: event)
    store, spans = TextIndex(database.reader), list[float]()
    begun = time.process_time()
    while (upto := await store.next_part()) is not None:
        at = time.perf_counter()
        write = Write(table="text_index", values={"tenant_id": "default", "upto": upto}, key=("tenant_id",))
        await asyncio.to_thread(writer.write, [], [write])
        spans.append((time.perf_counter() - at) * 1000)
    took = time.process_time() - begun
    writer.close()
    spans.sort()
    p50, p99 = spans[len(spans) // 2], spans[len(spans) * 99 // 100]
    print(f"indexed: {took / count * 1e6:.0f} µs CPU of this process a message, in {len(spans)} transactions")
    print(f"a transaction: p50 {p50:.1f} ms, p99 {p99:.1f} ms, most {spans[-1]:.1f} ms")


async def ask(store: SqlAuditStore, name: str, **filters: Any) -> None:
    """One question, often."""
    asked, times, page = MessageFilter(newest_first=True, **filters), list[float](), None
    for _ in range(CALLS):
        begun = time.perf_counter()
        page = await store.messages(TENANT, asked, limit=50)
        times.append((time.perf_counter() - begun) * 1000)
    times.sort()
    assert page is not None
    stopped = ", bounded" if page.bounded else ""
    print(f"{name:<42} {len(page.items):>3} rows{stopped}  p50 {times[CALLS // 2]:7.1f} ms  most {times[-1]:7.1f} ms")


async def run(where: str, count: int, *, fresh: bool) -> None:
    """Index when the file is new, then ask."""
    database = Database(where)
    await database.open()
    if fresh:
        await index(database, count)
    if locate(where).path is not None:
        pages = "SELECT sum(length(block)) AS bytes FROM messages_text_data"
        size = await database.reader.row(text(pages)) or {}
        print(f"size of the index: {int(size['bytes']) / count:.0f} bytes a message")
    store = SqlAuditStore(database.reader)
    await ask(store, "a rare text", text=RARE)
    await ask(store, "a rare text in Chinese", text=RARER)
    await ask(store, "a text that is nowhere", text="no such words here")
    await ask(store, "a common word", text="session")
    await ask(store, "a common word in Chinese", text="奏折", since=START)
    await ask(store, "a common word of a rare agent", text="session", agent="rare")
    await ask(store, "a common word that the role never says", text="session", role="nobody")
    await ask(store, "common trigrams, never together", text="session subagent policy")
    await ask(store, "a rare text in one session", text=RARE, session_id="ses_long")
    begun = time.perf_counter()
    counted = await store.count(TENANT, MessageFilter(text="session"))
    print(f"count of a common word: {counted.count} in {(time.perf_counter() - begun) * 1000:.1f} ms")
    await database.close()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    with tempfile.TemporaryDirectory() as directory:
        where = sys.argv[2] if len(sys.argv) > 2 else str(Path(directory) / "text.db")
        path = locate(where).path
        fresh = path is None or not path.exists()
        if fresh:
            print(f"{count} messages of {fill(where, count):.0f} characters")
        asyncio.run(run(where, count, fresh=fresh))


if __name__ == "__main__":
    main()
