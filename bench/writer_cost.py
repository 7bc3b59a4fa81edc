"""What an event costs in the store: CPU µs for batches of several sizes, with all tables and indexes.

    python -m bench.writer_cost [EVENTS]

The events are those of runs with tool calls, 600 bytes a text; they are built before the clock starts.
"""

import sys
import tempfile
import time
from pathlib import Path

from app.agent.events import Event
from app.store.database import Database
from app.store.migrate import upgrade
from tests.store.facts import Facts, replaced

SIZES = (1, 4, 40, 200)
TEXT = "word " * 120


def stories(wanted: int) -> list[Event]:
    """Events of 20 sessions that run side by side."""
    sessions = [Facts() for _ in range(20)]
    lines = [[facts.created()] for facts in sessions]
    while sum(map(len, lines)) < wanted:
        for facts, line in zip(sessions, lines, strict=True):
            line.extend(facts.whole_run(facts.run(), steps=3, text=TEXT))
    woven = [event for row in zip(*lines, strict=True) for event in row]
    return woven[:wanted]


def measure(events: list[Event], size: int, directory: Path) -> tuple[float, float]:
    """CPU and wall µs for an event."""
    path = directory / f"{size}.db"
    upgrade(path)
    writer = Database(path).writer(replaced)
    cpu, wall = time.process_time(), time.perf_counter()
    for start in range(0, len(events), size):
        rejected = writer.write(events[start : start + size])
        assert not rejected, rejected
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    writer.close()
    return cpu / len(events) * 1e6, wall / len(events) * 1e6


def main() -> None:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory() as directory:
        for size in SIZES:
            events = stories(min(wanted, size * 1_000))
            cpu, wall = measure(events, size, Path(directory))
            print(f"batch {size:>4}: {cpu:6.1f} µs CPU, {wall:7.1f} µs wall an event ({len(events)} events)")


if __name__ == "__main__":
    main()
