"""How fast the hash chains of a log are verified, as `subagentd audit verify --all` does it.

    python -m bench.verify [EVENTS] [PATH]

Makes the log by plain inserts with right hashes, keeps the file when PATH is given, and prints events a second: for
sessions of 45 events (that of the job in README.md) and for one long session, without and with `audit.key`.
"""

import sqlite3
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from app.agent.ids import new_id
from app.store.chain import GENESIS, Head, digest, link, seal
from app.store.database import looking_connection
from app.store.location import locate
from app.store.migrate import upgrade
from app.store.verifying import Chains
from app.wire import timestamp

KEY = b"k" * 32
START = 1_800_000_000_000_000
SHORT = 45  # events of a session
CHUNK = 20_000
DATA = b'{"message_id":"msg_01","role":"assistant","content":"%b"}' % (b"what was found there. " * 20)


def session(events: int, ts: int) -> tuple[tuple[Any, ...], Iterator[tuple[Any, ...]]]:
    """The row of a session, and its events."""
    session_id, run_id = new_id("ses"), new_id("run")
    rows: list[tuple[Any, ...]] = []
    previous = GENESIS
    for seq in range(1, events + 1):
        moment = timestamp(ts + seq * 1000)
        envelope = (
            f'{{"id":{seq},"type":"message","v":1,"ts":"{moment}","session_id":"{session_id}","run_id":"{run_id}",'
            '"run":1,"agent":"lead","depth":0,"path":[1],"step":1}'
        ).encode()
        inner = digest(DATA)
        previous = link(previous, envelope, inner)
        rows.append((session_id, seq, "message", run_id, ts + seq * 1000, envelope, DATA, inner, previous))
    head = Head(events + 1, previous)
    return (session_id, ts, ts, head.next_seq, head.hash, seal(KEY, head)), iter(rows)


def fill(path: Path, count: int, each: int) -> None:
    """Make the store."""
    upgrade(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        for number in range(max(1, count // each)):
            row, rows = session(each, START + number * each * 1000)
            with connection:
                connection.execute(
                    "INSERT INTO sessions (id, created_at, updated_at, next_seq, head_hash, head_mac)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    row,
                )
                while chunk := list(islice(rows, CHUNK)):
                    connection.executemany(
                        "INSERT INTO events (session_id, seq, type, run_id, ts, envelope, data, data_digest, hash)"
                        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        chunk,
                    )


def measure(path: Path, name: str, key: bytes | None) -> None:
    """Verify everything, once."""
    with closing(looking_connection(locate(path))) as connection:
        begun, cpu = time.perf_counter(), time.process_time()
        found = [checked for _, _, checked in Chains(connection, key).all()]
        took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    events = sum(checked.place.seq for checked in found)
    assert not [checked.flaw for checked in found if checked.flaw is not None]
    print(
        f"{name:<34} {events:>9} events in {took:6.2f} s: {events / took:>9,.0f} a second, "
        f"{cpu / events * 1e6:.1f} µs of CPU each"
    )


def memory(path: Path) -> None:
    """What a check needs at most."""
    with closing(looking_connection(locate(path))) as connection:
        tracemalloc.start()
        for _ in Chains(connection, None).all():
            pass
        print(f"{'memory of it at most':<34} {tracemalloc.get_traced_memory()[1] / 2**20:.1f} MiB")
        tracemalloc.stop()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
    with tempfile.TemporaryDirectory() as directory:
        home = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(directory)
        for name, each in (("short", SHORT), ("long", count)):
            path = home / f"verify-{name}.db"
            if not path.exists():
                fill(path, count, each)
            label = f"sessions of {SHORT} events" if name == "short" else "one session"
            measure(path, label, None)
            measure(path, f"{label}, with the key", KEY)
        memory(path)


if __name__ == "__main__":
    main()
