"""Processes as a test sees them: which live, which numbers they wrote down."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

WAIT_S = 20.0
linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that no event tells of."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


def numbers_in(path: Path) -> list[int]:
    """The process numbers that stand in a file; none when there is no file."""
    return [int(number) for number in path.read_text().split()] if path.exists() else []


def alive(number: int) -> bool:
    """Whether a process runs; a dead one that its parent has not noticed does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
