"""Keys, agents of tenants, notes and pins while the store takes nothing: refused in time, and never half in force."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from app.agent.errors import Unavailable
from app.sessions import tenant_agents
from app.sessions.access import ANYBODY
from app.sessions.notes import Notes
from app.settings import load
from app.store.notes import SqlNoteStore
from app.store.pins import SqlPins
from app.wiring import Wired, build
from tests.store.facts import Facts
from tests.world import WAIT_S

AGENT = {"description": "Another.", "prompt": "You are."}

pytestmark = pytest.mark.spec("12.3")


@contextlib.asynccontextmanager
async def built(folder: Path) -> AsyncIterator[Wired]:
    """A service without a server."""
    store = {"url": str(folder / "x.db"), "busy_timeout_ms": 0}
    wired = await build(load(store=store, models={"default": "scripted:echo"}))
    try:
        yield wired
    finally:
        async with asyncio.timeout(WAIT_S):
            await wired.close()


WRITERS: dict[str, Callable[[Wired], Awaitable[Any]]] = {
    "api_keys": lambda w: w.services.access.create(ANYBODY, name="k", scopes=["read"], expires_at=None),
    "agents": lambda w: w.services.agents.put("default", "other", AGENT),
    "notes": lambda w: Notes(SqlNoteStore(w.database.reader), w.services.journal).add(Facts().run(), "text", "title"),
    "mcp_pins": lambda w: SqlPins(w.database.reader, w.services.journal).keep("server", "source", {"tool": "digest"}),
}


@pytest.mark.parametrize("table", WRITERS)
async def test_a_row_is_refused_at_once_and_not_kept_while_too_much_waits(tmp_path: Path, table: str) -> None:
    async with built(tmp_path) as wired:
        wired.services.journal._waiting._max_bytes = -1
        with pytest.raises(Unavailable, match="too much waits") as refused:
            await WRITERS[table](wired)
        assert (refused.value.code, wired.services.journal.waiting_bytes) == ("store_unavailable", 0)
        file = sqlite3.connect(tmp_path / "x.db")
        assert file.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
        file.close()


async def test_an_agent_whose_caller_gave_up_is_in_force_as_soon_as_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_agents, "TAKE_S", 0.01)
    async with built(tmp_path) as wired:
        agents = wired.services.agents
        other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="in force when the store is back"):
            await agents.put("default", "other", AGENT)
        names = [item["name"] for item in agents.list("default")["items"]]
        assert "other" not in names
        other.execute("COMMIT")
        other.close()
        async with asyncio.timeout(WAIT_S):
            while "other" not in [item["name"] for item in agents.list("default")["items"]]:
                await asyncio.sleep(0.001)
        monkeypatch.undo()
        shown, made = await agents.put("default", "other", AGENT, ["1"])
        assert (shown["version"], made) == (2, False)
