"""What a server under trouble is given: a tool, a look at its own event loop, and a writer that can be made slow.

Named by import path in the settings of the server, so that it is imported on its event loop before the first request.
`TROUBLE_FOLDER`: `lag` is written there, one number in ms for each look at the event loop, and while there is a file
`slow` each commit waits for up to as many ms as it says.
"""

import asyncio
import os
import random
import time
from pathlib import Path

from app.agent import faults
from app.tools.function import tool

EVERY_S = 0.02
TOLD_EVERY_S = 1.0
_FOLDER = Path(os.environ["TROUBLE_FOLDER"])
_dice = random.Random(7)


@tool(read_only=True, concurrency_safe=True)
async def look(number: int) -> str:
    """Read something."""
    await asyncio.sleep(number % 20 / 1000)
    return f"seen {number}, " + "and what stands around it " * 20


everything = [look]


async def _sample() -> None:
    """How late the event loop is, again and again, with the moment of each look."""
    with (_FOLDER / "lag").open("a") as file:
        told = time.monotonic()
        while True:
            wanted = time.monotonic() + EVERY_S
            await asyncio.sleep(EVERY_S)
            now = time.monotonic()
            file.write(f"{now} {max(0.0, now - wanted) * 1000:.2f}\n")
            if now - told > TOLD_EVERY_S:
                told = now
                file.flush()


def _linger() -> None:
    """Wait inside the transaction, as a slow disk does."""
    try:
        most_ms = float((_FOLDER / "slow").read_text() or 0)
    except OSError:
        return
    time.sleep(_dice.uniform(0, most_ms) / 1000)


faults.arm("store.commit", _linger)
try:
    _sampling = asyncio.get_running_loop().create_task(_sample(), name="lag of the event loop")
except RuntimeError:  # looked at by a command, not served
    pass
