"""Reads the notes of sessions back (`NoteStore`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, select

from app.store.reader import Reader
from app.store.tables import notes, runs

_of_session = (
    select(notes, runs.c.agent)
    .outerjoin(runs, (runs.c.tenant_id == notes.c.tenant_id) & (runs.c.id == notes.c.run_id))
    .where(notes.c.tenant_id == bindparam("tenant"), notes.c.session_id == bindparam("session"))
    .order_by(notes.c.id)  # ids are in the order of time
)


class SqlNoteStore:
    """`NoteStore` over SQLAlchemy."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def notes(self, tenant: str, session_id: str) -> Sequence[Mapping[str, Any]]:
        """All notes of a session, the oldest first."""
        return await self._reader.rows(_of_session, {"tenant": tenant, "session": session_id})
