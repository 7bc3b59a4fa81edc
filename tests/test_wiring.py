"""The end of the whole service: what one part cannot give back is no reason to keep the rest."""

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app import wiring
from app.sessions import committing
from app.sessions.requests import SessionInput
from app.settings import load
from app.wiring import build
from tests.world import WAIT_S


class Failing:
    """A part whose end fails."""

    async def close(self) -> None:
        """Never succeeds."""
        raise RuntimeError("it does not end")


class Noting:
    """A part, and whether it was closed."""

    def __init__(self, part: Any) -> None:
        self._part, self.closed = part, False

    async def close(self) -> None:
        """Close it."""
        self.closed = True
        await self._part.close()


@pytest.mark.spec("13.1")
@pytest.mark.parametrize("part", ["watcher", "recovery", "mcp", "models"])
async def test_a_part_that_cannot_be_closed_keeps_neither_the_store_nor_the_others(part: str, tmp_path: Path) -> None:
    settings = load(store={"url": str(tmp_path / "x.db")}, models={"default": "scripted:echo"})
    wired = await build(settings)
    await getattr(wired, part).close()
    parts: dict[str, Any] = {name: Noting(getattr(wired, name)) for name in ("watcher", "recovery", "mcp", "models")}
    with pytest.raises(RuntimeError, match="it does not end"):
        await replace(wired, **{**parts, part: Failing()}).close()
    assert {name for name, noting in parts.items() if not noting.closed} == {part}
    assert not [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    again = await build(settings)  # the lock of the store was given back
    await again.close()


@pytest.mark.spec("12.3")
@pytest.mark.case("B175")
async def test_a_store_that_takes_nothing_does_not_keep_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "CLOSE_S", 0.05)
    monkeypatch.setattr(committing, "END_S", 0.05)
    path = tmp_path / "x.db"
    settings = load(store={"url": str(path), "busy_timeout_ms": 0}, models={"default": "scripted:echo"})
    wired = await build(settings)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    given = SessionInput(agent="lead", agents=None)
    asking = asyncio.create_task(wired.services.sessions.create("default", given))
    async with asyncio.timeout(WAIT_S):
        while wired.services.journal.problem is None:
            await asyncio.sleep(0.001)
        asking.cancel()
        await wired.close()
    other.close()
    again = await build(settings)  # the lock of the store was given back
    await again.close()
