"""Reads the event log back (`EventLog`).

Knows no payload: what it gives are the stored bytes.
"""

from collections.abc import Sequence

from sqlalchemy import bindparam, select

from app.agent.events import StoredEvent
from app.store.reader import Reader
from app.store.tables import checkpoints, events, sessions

# Of a deleted session only its last event has data: the rest is left out, not shown empty.
_page = (
    select(events.c.seq, events.c.type, events.c.envelope, events.c.data)
    .where(
        events.c.tenant_id == bindparam("tenant"),
        events.c.session_id == bindparam("session"),
        events.c.seq > bindparam("after"),
        events.c.seq <= bindparam("upto"),
        events.c.data.is_not(None),
    )
    .order_by(events.c.seq)
    .limit(bindparam("limit"))
)
_head = select(sessions.c.next_seq).where(
    sessions.c.tenant_id == bindparam("tenant"),
    sessions.c.id == bindparam("session"),
    sessions.c.erased_at.is_(None),
)
_point = select(checkpoints.c.upto).where(
    checkpoints.c.tenant_id == bindparam("tenant"), checkpoints.c.session_id == bindparam("session")
)
_NO_END = 2**62


class SqlEventLog:
    """`EventLog` over SQLAlchemy."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def page(
        self, tenant: str, session_id: str, *, after: int, upto: int | None = None, limit: int = 500
    ) -> Sequence[StoredEvent]:
        """Events with `after < seq <= upto`, at most `limit`; erased ones left out."""
        bounds = {"after": after, "upto": _NO_END if upto is None else upto, "limit": limit}
        rows = await self._reader.rows(_page, {"tenant": tenant, "session": session_id, **bounds})
        return [StoredEvent(**row) for row in rows]

    async def head(self, tenant: str, session_id: str) -> int | None:
        """The last number stored, 0 for none, None for an unknown or deleted session."""
        row = await self._reader.row(_head, {"tenant": tenant, "session": session_id})
        return None if row is None else row["next_seq"] - 1

    async def oldest(self, tenant: str, session_id: str) -> int:
        """The first number that is kept."""
        row = await self._reader.row(_point, {"tenant": tenant, "session": session_id})
        return 1 if row is None else int(row["upto"]) + 1
