"""`python -m bench.soak [--minutes 10] [--runs 50]`: a loaded service over time, whose readers leave and come back.

Memory must not grow, files, threads and tasks must be back where they were, the write-ahead log must stay small, and no
reader may find a gap or a repeat. Exit code 1 otherwise.
"""

import argparse
import asyncio
import contextlib
import itertools
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from app.client import Client
from tests.readers.talking import InUse, order, talking, tasks_of
from tests.service import WAIT_S, Service, serving

MIB = 1 << 20
SLOPE_MIB, WAL_MIB, SPARE = 1.0, 16, 2  # a minute; of files, threads and tasks
WARM_UP = 0.5  # of the time: caches of sessions and runs fill, the allocator finds its size
LOOK_S = 1.0


@dataclass
class Seen:
    """What was found out. `samples`: (seconds, bytes of memory)."""

    runs: int = 0
    events: int = 0
    drops: int = 0
    gaps: int = 0
    repeats: int = 0
    wal: int = 0
    samples: list[tuple[float, int]] = field(default_factory=list)
    before: tuple[InUse, int] | None = None
    after: tuple[InUse, int] | None = None

    def slope_mib(self, minutes: float) -> float:
        """How much memory grew in a minute, after the warm-up."""
        late = [(at / 60, rss / MIB) for at, rss in self.samples if at >= minutes * 60 * WARM_UP]
        return statistics.linear_regression(*zip(*late, strict=True)).slope if len(late) > 2 else 0.0

    def problems(self, minutes: float) -> list[str]:
        """What must not be."""
        assert self.before is not None
        assert self.after is not None
        (was, tasks_was), (now, tasks_now) = self.before, self.after
        found = [
            f"{name} in streams: {count}" for name, count in (("gaps", self.gaps), ("repeats", self.repeats)) if count
        ]
        for name, old, new in (
            ("files", was.files, now.files), ("threads", was.threads, now.threads), ("tasks", tasks_was, tasks_now),
        ):  # fmt: skip
            found += [f"{name}: {old} before, {new} after"] if new > old + SPARE else []
        found += [f"the write-ahead log had {self.wal} bytes"] if self.wal > WAL_MIB * MIB else []
        slope = self.slope_mib(minutes)
        return found + ([f"memory grew {slope:.2f} MiB a minute"] if slope > SLOPE_MIB else [])

    def figures(self, minutes: float) -> str:
        """All of it, in lines."""
        assert self.before is not None
        assert self.after is not None
        (was, tasks_was), (now, tasks_now) = self.before, self.after
        memory = [rss / MIB for _, rss in self.samples]
        halves = [f"{memory[at]:.0f}" for at in range(0, len(memory), int(30 / LOOK_S))]
        return (
            f"{self.runs} runs, {self.events} events read, {self.drops} drops of readers, "
            f"{self.gaps} gaps, {self.repeats} repeats\n"
            f"memory {was.rss / MIB:.0f} MiB before, {max(memory):.0f} most, {now.rss / MIB:.0f} after, "
            f"{self.slope_mib(minutes):+.2f} MiB a minute after the warm-up; "
            f"each half minute {' '.join(halves)}\n"
            f"files {was.files} → {now.files}, threads {was.threads} → {now.threads}, tasks {tasks_was} → {tasks_now}, "
            f"write-ahead log at most {self.wal / MIB:.1f} MiB"
        )


async def soak(folder: Path, minutes: float, at_once: int, *, delay_ms: int = 60) -> Seen:
    """Keep so many runs in the air for so long."""
    seen, numbers = Seen(), itertools.count(1)
    async with serving(folder, env=talking(folder, delay_ms=delay_ms)) as service:
        assert service.process is not None
        pid = service.process.pid
        async with service.client() as client:
            await _worker(service, seen, numbers, until=0)  # what is made once is made
            await _settled(client)
            seen.before = (InUse.of(pid), await tasks_of(client))
        until = time.monotonic() + minutes * 60
        looking = asyncio.create_task(_look(service, pid, seen))
        await asyncio.gather(*(_worker(service, seen, numbers, until) for _ in range(at_once)))
        looking.cancel()
        await asyncio.wait({looking})
        async with service.client() as client:
            await _settled(client)
            seen.after = (InUse.of(pid), await tasks_of(client))
    return seen


async def _look(service: Service, pid: int, seen: Seen) -> None:
    began = time.monotonic()
    wal = service.database.with_name(service.database.name + "-wal")
    while True:
        seen.samples.append((time.monotonic() - began, InUse.of(pid).rss))
        seen.wal = max(seen.wal, wal.stat().st_size if wal.exists() else 0)
        await asyncio.sleep(LOOK_S)


async def _worker(service: Service, seen: Seen, numbers: Iterator[int], until: float) -> None:
    async with service.client() as client:
        while True:
            started = await client.request("POST", "/v1/runs", order(f"number {next(numbers)}"))
            await _read(client, f"/v1/runs/{started['id']}/events", seen)
            seen.runs += 1
            if time.monotonic() >= until:
                break
        seen.gaps += client.gaps
        seen.repeats += client.repeats


async def _read(client: Client, path: str, seen: Seen) -> None:
    """Read a view to its end, and go away now and then."""
    cursor, ended = 0, False
    while not ended:
        left = random.choice((random.randint(1, 60), 10_000))
        async with contextlib.aclosing(client.events(path, cursor)) as frames:
            async for frame in frames:
                cursor = frame.id or cursor
                seen.events += frame.id is not None
                left -= 1
                if not left:
                    seen.drops += 1
                    break
            else:
                ended = True


async def _settled(client: Client) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            lines = "".join([piece.decode() async for piece in client.download("/metrics")]).splitlines()
            gauges = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
            if not float(gauges["subagentd_runs_in_flight"]) and not float(gauges["subagentd_open_streams"]):
                break
            await asyncio.sleep(0.05)


def main() -> int:
    """Run it and say what was found."""
    parser = argparse.ArgumentParser(prog="bench.soak", description="A loaded service over time.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--runs", type=int, default=50, help="in the air at a time")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seen = asyncio.run(soak(Path(folder), given.minutes, given.runs))
    problems = seen.problems(given.minutes)
    sys.stdout.write("\n".join([seen.figures(given.minutes), *problems]) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
