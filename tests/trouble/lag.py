"""How late an event loop is. As a program: of a process that does nothing else, which is what the machine alone does.

`python -m tests.trouble.lag FILE`
"""

import asyncio
import sys
import time
from pathlib import Path

EVERY_S = 0.02
TOLD_EVERY_S = 1.0


async def sample(path: Path) -> None:
    """Write down the moment of each look, how late it was, and for how much of that the thread was ready to run and the
    machine ran others, both in ms, until it is cancelled."""
    with path.open("a") as file:
        told = time.monotonic()
        while True:
            wanted, waited = time.monotonic() + EVERY_S, _waited_ms()
            await asyncio.sleep(EVERY_S)
            now = time.monotonic()
            file.write(f"{now} {max(0.0, now - wanted) * 1000:.2f} {_waited_ms() - waited:.2f}\n")
            if now - told > TOLD_EVERY_S:
                told = now
                file.flush()


def _waited_ms() -> float:
    """For how long this thread has been ready to run and did not, since it began (Linux, Documentation/scheduler)."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e6


def lags(path: Path, since: float, until: float, *, own: bool = False) -> list[float]:
    """What was written in that time, in order of size; `own`: without what others had the machine for."""
    rows = [list(map(float, line.split())) for line in path.read_text().splitlines() if line.count(" ") == 2]
    return sorted(max(0.0, late - waited * own) for at, late, waited in rows if since <= at <= until)


def share(of: list[float], part: float) -> float:
    """The value below which that part of them lies."""
    return of[min(len(of) - 1, int(len(of) * part))] if of else 0.0


if __name__ == "__main__":
    asyncio.run(sample(Path(sys.argv[1])))
