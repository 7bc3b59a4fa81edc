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
    """Write down the moment of each look and how late it was, in ms, until it is cancelled."""
    with path.open("a") as file:
        told = time.monotonic()
        while True:
            wanted = time.monotonic() + EVERY_S
            await asyncio.sleep(EVERY_S)
            now = time.monotonic()
            file.write(f"{now} {max(0.0, now - wanted) * 1000:.2f}\n")
            if now - told > TOLD_EVERY_S:
                told = now
                file.flush()


def lags(path: Path, since: float, until: float) -> list[float]:
    """What was written in that time, in order of size."""
    rows = [line.split() for line in path.read_text().splitlines()]
    return sorted(float(row[1]) for row in rows if len(row) == 2 and since <= float(row[0]) <= until)


def share(of: list[float], part: float) -> float:
    """The value below which that part of them lies."""
    return of[min(len(of) - 1, int(len(of) * part))] if of else 0.0


if __name__ == "__main__":
    asyncio.run(sample(Path(sys.argv[1])))
