"""Reads the event log back (`EventLog`).

Knows no payload: what it gives are the stored bytes.
"""

import asyncio
from collections.abc import Sequence

from sqlalchemy import bindparam, select

from app.agent.events import StoredEvent
from app.store.chain import digest
from app.store.reader import Reader, Record
from app.store.tables import checkpoints, events, sessions
from app.wire import read_envelope

# Of a deleted session only its last event has data: the rest is left out, not shown empty.
_page = (
    select(events.c.seq, events.c.type, events.c.envelope, events.c.data, events.c.data_digest)
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
AT_ONCE = 256 << 10  # bytes whose digests hold up the event loop for less than 1 ms


class SqlEventLog:
    """`EventLog` over SQLAlchemy."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def page(
        self, tenant: str, session_id: str, *, after: int, upto: int | None = None, limit: int = 500
    ) -> Sequence[StoredEvent]:
        """Events with `after < seq <= upto`, at most `limit`; erased ones left out. Raises `TransientStoreError` when
        one of them is not what was written: nobody is shown that."""
        bounds = {"after": after, "upto": _NO_END if upto is None else upto, "limit": limit}
        rows = await self._reader.rows(_page, {"tenant": tenant, "session": session_id, **bounds})
        large = sum(len(row["data"]) for row in rows) > AT_ONCE
        wrong = await asyncio.to_thread(_first_wrong, rows) if large else _first_wrong(rows)
        if wrong is not None:
            raise self._reader.unreadable(f"event {wrong} of session {session_id} is not what was written")
        return [StoredEvent(seq=r["seq"], type=r["type"], envelope=r["envelope"], data=r["data"]) for r in rows]

    async def head(self, tenant: str, session_id: str) -> int | None:
        """The last number stored, 0 for none, None for an unknown or deleted session."""
        row = await self._reader.row(_head, {"tenant": tenant, "session": session_id})
        return None if row is None else row["next_seq"] - 1

    async def oldest(self, tenant: str, session_id: str) -> int:
        """The first number that is kept."""
        row = await self._reader.row(_point, {"tenant": tenant, "session": session_id})
        return 1 if row is None else int(row["upto"]) + 1


def _first_wrong(rows: Sequence[Record]) -> int | None:
    """The first event that a byte was changed of, as far as it alone can tell: `verify` looks at the chain."""
    for row in rows:
        try:
            read_envelope(row["envelope"])
            str(row["envelope"], "utf-8")  # also where nobody looks: all of it is sent
            if digest(row["data"]) != row["data_digest"]:
                return int(row["seq"])
        except (TypeError, ValueError):
            return int(row["seq"])
    return None
