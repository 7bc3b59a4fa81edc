"""Notes that the agents of a session leave for each other (spec 7.3): bounded, in order, kept over restarts.

Knows no SQL and no tool; rows go through the journal, which masks them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from weakref import WeakValueDictionary

from app.agent.errors import ToolError
from app.agent.events import Write
from app.agent.ids import new_id, now_us
from app.agent.runs import Run
from app.sessions.journal import Journal

MAX_NOTES = 200  # of one session
MAX_NOTE_CHARS = 8_000
MAX_TITLE_CHARS = 200
MAX_CHARS = 200_000  # of all notes of a session


class NoteStore(Protocol):
    """Reads notes back; every function takes the tenant."""

    async def notes(self, tenant: str, session_id: str) -> Sequence[Mapping[str, Any]]:
        """All notes of a session in the order of writing: the columns of their rows, and `agent`, who wrote each."""


class Notes:
    """The notes of all sessions. One per process."""

    def __init__(self, store: NoteStore, journal: Journal) -> None:
        self._store = store
        self._journal = journal
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def all(self, run: Run) -> Sequence[Mapping[str, Any]]:
        """All notes of the session that a run belongs to, the oldest first."""
        return await self._store.notes(run.tenant, run.session_id)

    async def add(self, run: Run, text: str, title: str) -> int:
        """Keep a note; its number in the session, from 1. It is stored when this returns. Raises `ToolError` when
        there are too many, `Unavailable` when the store does not take it in time."""
        lock = self._locks.setdefault(run.session_id, asyncio.Lock())
        async with lock:  # between counting and writing no other note comes in
            there = await self.all(run)
            chars = sum(len(note["content"]) + len(note["name"]) for note in there)
            if len(there) >= MAX_NOTES or chars + len(text) + len(title) > MAX_CHARS:
                raise ToolError(
                    f"there is no room for this note: the session has {len(there)} notes with {chars:,} characters, "
                    f"at most {MAX_NOTES} with {MAX_CHARS:,} are kept"
                )
            now = now_us()
            values = {
                "tenant_id": run.tenant,
                "id": new_id("note"),
                "session_id": run.session_id,
                "run_id": run.id,
                "name": title,
                "content": text,
                "created_at": now,
                "updated_at": now,
            }
            await self._journal.write(Write(table="notes", values=values))
            return len(there) + 1
