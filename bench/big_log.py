"""A log of ten million messages, built by the store's own writer, and how fast a server answers questions about it.

    python -m bench.big_log build FOLDER [--messages 10000000] [--seed 1]
    python -m bench.big_log measure FOLDER [--asks 50] [--only NAME] [--rows N]
    python -m bench.big_log verify FOLDER

`build` makes `FOLDER/service.db`; 10 million messages take about 25 GB.
"""

import argparse
import asyncio
import gc
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from app.agent.events import Event
from app.store.database import writing_connection
from app.store.location import locate
from app.store.migrate import upgrade
from app.store.writer import SqlWriter
from bench.big_answers import measure, verify
from bench.copying import multiply
from bench.stories import stories
from tests.store.facts import replaced

KEY = b"k" * 32  # `audit.key` of the log
WRITTEN = 1_000_000  # messages that are not copies, at most
BATCH = 20_000  # events of a transaction, at least
_CACHE_KIB = 400_000


def database_of(folder: Path) -> Path:
    """Where the log of a folder is."""
    return folder / "service.db"


def build(path: Path, messages: int, seed: int = 1, *, written: int = WRITTEN) -> int:
    """Write a log of about so many messages into a new database, without waiting for the disk; the number of its
    events. What is beyond `written` are copies. The indexes are made in the end, in a third of the time."""
    copies = (messages - 1) // written
    upgrade(path)
    indexes = _indexes(path)
    _run_all(path, [f"DROP INDEX {name}" for name in indexes])
    gc.disable()  # millions of values that live shortly and know nothing of each other
    try:
        events = _write(path, _batches(stories(messages // (copies + 1), seed)))
        events += multiply(path, copies, KEY) if copies else 0
    finally:
        gc.enable()
    _run_all(path, indexes.values())
    return events


def _write(path: Path, batches: Iterator[list[Event]]) -> int:
    """Events are made while those before them are written."""
    writer = SqlWriter(lambda: _connect(path), replaced, audit_key=KEY)
    events = 0
    with ThreadPoolExecutor(1) as thread:
        writing: Future[Any] | None = None
        for batch in batches:
            _stored(writing)
            writing = thread.submit(writer.write, batch)
            events += len(batch)
        _stored(writing)
        thread.submit(writer.close).result()
    return events


def _stored(writing: Future[Any] | None) -> None:
    rejected = () if writing is None else writing.result()
    if rejected:
        raise ValueError(rejected[0].reason)


def _connect(path: Path) -> Connection:
    connection = writing_connection(locate(path), "OFF", 5_000)
    connection.exec_driver_sql(f"PRAGMA cache_size=-{_CACHE_KIB}")
    connection.commit()
    return connection


def _indexes(path: Path) -> dict[str, str]:
    """The indexes that are no keys, and how they are made."""
    with closing(_connect(path)) as connection:
        rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql <> ''")
        return {row.name: row.sql for row in rows}


def _run_all(path: Path, statements: Iterable[str]) -> None:
    with closing(_connect(path)) as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
            connection.commit()


def _batches(turns: Iterator[list[Event]]) -> Iterator[list[Event]]:
    batch: list[Event] = []
    for turn in turns:
        batch += turn
        if len(batch) >= BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.big_log")
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build")
    building.add_argument("folder", type=Path)
    building.add_argument("--messages", type=int, default=10_000_000)
    building.add_argument("--seed", type=int, default=1)
    measuring = commands.add_parser("measure")
    measuring.add_argument("folder", type=Path)
    measuring.add_argument("--asks", type=int, default=50, help="of each question")
    measuring.add_argument("--only", default="", help="questions with this in their name; - for none")
    measuring.add_argument("--rows", type=int, default=sys.maxsize, help="of an export, at most")
    verifying = commands.add_parser("verify")
    verifying.add_argument("folder", type=Path)
    given = parser.parse_args()
    path = database_of(given.folder)
    if given.command == "build":
        return _build(path, given.messages, given.seed)
    if given.command == "measure":
        asyncio.run(measure(path, given.asks, given.only, given.rows))
    if given.command == "verify" or not given.only:
        verify(path)
    return 0


def _build(path: Path, messages: int, seed: int) -> int:
    if path.exists():
        sys.stderr.write(f"{path} is there already\n")
        return 2
    path.parent.mkdir(parents=True, exist_ok=True)
    begun, cpu = time.perf_counter(), time.process_time()
    events = build(path, messages, seed)
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    size = path.stat().st_size / 2**30
    print(f"{messages} messages, {events} events in {took:.0f} s, {cpu:.0f} s of CPU: {size:.2f} GiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
