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
from tests.trouble.lag import sample

_FOLDER = Path(os.environ["TROUBLE_FOLDER"])
_dice = random.Random(7)


@tool(read_only=True, concurrency_safe=True)
async def look(number: int) -> str:
    """Read something."""
    await asyncio.sleep(number % 20 / 1000)
    return f"seen {number}, " + "and what stands around it " * 20


everything = [look]


def _linger() -> None:
    """Wait inside the transaction, as a slow disk does."""
    try:
        most_ms = float((_FOLDER / "slow").read_text() or 0)
    except OSError:
        return
    time.sleep(_dice.uniform(0, most_ms) / 1000)


faults.arm("store.commit", _linger)
try:
    _sampling = asyncio.get_running_loop().create_task(sample(_FOLDER / "lag"), name="lag of the event loop")
except RuntimeError:  # looked at by a command, not served
    pass
