"""Reads the completion webhooks back (`WebhookStore`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, func, select

from app.store.reader import Reader
from app.store.tables import handoffs, runs, webhooks

_one = select(webhooks).where(webhooks.c.tenant_id == bindparam("tenant"), webhooks.c.id == bindparam("id"))
_lane = (webhooks.c.tenant_id == bindparam("tenant"), webhooks.c.host == bindparam("host"))
_due = (
    select(webhooks)
    .where(*_lane, webhooks.c.next_at <= bindparam("now"))
    .order_by(webhooks.c.next_at)
    .limit(bindparam("limit"))
)
_next = select(func.min(webhooks.c.next_at).label("next_at")).where(*_lane, webhooks.c.next_at.is_not(None))
_lanes = select(webhooks.c.tenant_id, webhooks.c.host).where(webhooks.c.next_at.is_not(None)).distinct()
_seq = func.coalesce(runs.c.terminal_seq, handoffs.c.end_seq)
_ended = (
    select(
        webhooks.c.tenant_id,
        webhooks.c.id,
        webhooks.c.host,
        _seq.label("event_seq"),
        func.coalesce(runs.c.ended_at, handoffs.c.ended_at).label("ended_at"),
    )
    .outerjoin(runs, (runs.c.tenant_id == webhooks.c.tenant_id) & (runs.c.id == webhooks.c.id))
    .outerjoin(handoffs, (handoffs.c.tenant_id == webhooks.c.tenant_id) & (handoffs.c.id == webhooks.c.id))
    .where(webhooks.c.event_seq.is_(None), webhooks.c.id > bindparam("after"), _seq.is_not(None))
    .order_by(webhooks.c.id)
    .limit(bindparam("limit"))
)
_awaited = (
    select(webhooks.c.id, webhooks.c.host)
    .outerjoin(runs, (runs.c.tenant_id == webhooks.c.tenant_id) & (runs.c.id == webhooks.c.id))
    .outerjoin(handoffs, (handoffs.c.tenant_id == webhooks.c.tenant_id) & (handoffs.c.id == webhooks.c.id))
    .where(webhooks.c.event_seq.is_(None), webhooks.c.id > bindparam("after"), _seq.is_(None))
    .order_by(webhooks.c.id)
    .limit(bindparam("limit"))
)


class SqlWebhookStore:
    """`WebhookStore` over SQLAlchemy."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def webhook(self, tenant: str, subject_id: str) -> Mapping[str, Any] | None:
        """That of a run or handoff."""
        return await self._reader.row(_one, {"tenant": tenant, "id": subject_id})

    async def due(self, tenant: str, host: str, now: int, limit: int) -> Sequence[Mapping[str, Any]]:
        """Those to be tried now, the longest due first."""
        return await self._reader.rows(_due, {"tenant": tenant, "host": host, "now": now, "limit": limit})

    async def next_at(self, tenant: str, host: str) -> int | None:
        """When the next one is due, in µs."""
        row = await self._reader.row(_next, {"tenant": tenant, "host": host})
        return None if row is None else row["next_at"]

    async def lanes(self) -> Sequence[tuple[str, str]]:
        """Each tenant and host for which something waits."""
        return [(row["tenant_id"], row["host"]) for row in await self._reader.rows(_lanes)]

    async def awaited(self, after: str, limit: int) -> Sequence[Mapping[str, Any]]:
        """Those whose run or handoff has not ended, by id."""
        return await self._reader.rows(_awaited, {"after": after, "limit": limit})

    async def ended(self, after: str, limit: int) -> Sequence[Mapping[str, Any]]:
        """Those whose run or handoff has ended, which is not noted yet, by id."""
        return await self._reader.rows(_ended, {"after": after, "limit": limit})
