"""Reads permission requests back (`ApprovalStore`)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import bindparam, literal, select

from app.sessions.audit import Page
from app.sessions.inbox import ApprovalFilter
from app.store.pages import Order, question
from app.store.reader import Reader
from app.store.tables import approvals

ORDERS = (
    Order(name="session", equal=("session_id",), key=("requested_at", "id")),
    Order(name="status", equal=("status",), key=("requested_at", "id")),
    Order(name="id", equal=(), key=("id",)),  # ids are in the order of time
)

_GIVEN = literal("allow_session", literal_execute=True)  # as a parameter it would not be seen to be the index's own
_one = select(approvals).where(approvals.c.tenant_id == bindparam("tenant"), approvals.c.id == bindparam("id"))
_rules = (
    select(approvals.c.suggested_rule)
    .where(approvals.c.tenant_id == bindparam("tenant"), approvals.c.session_id == bindparam("session"))
    .where(approvals.c.decision == _GIVEN, approvals.c.suggested_rule.is_not(None))
    .order_by(approvals.c.id)
)


class SqlApprovalStore:
    """`ApprovalStore` over SQLAlchemy."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def approval(self, tenant: str, approval_id: str) -> Mapping[str, Any] | None:
        """One request."""
        return await self._reader.row(_one, {"tenant": tenant, "id": approval_id})

    async def approvals(self, tenant: str, filters: ApprovalFilter, *, cursor: str | None, limit: int) -> Page:
        """A page of requests, newest first."""
        wanted = {"session_id": filters.session_id, "status": filters.status}
        given = {name: value for name, value in wanted.items() if value is not None}
        asked = question(approvals, ORDERS, given, newest_first=True)
        parameters: dict[str, Any] = {"tenant": tenant, "limit": limit + 1, **given}
        if cursor is not None:
            parameters |= asked.read(cursor, given)
            asked = replace(asked, after=True)
        rows = await self._reader.rows(asked.page(), parameters)
        if len(rows) <= limit:
            return Page(items=rows)
        return Page(items=rows[:limit], next=asked.cursor(rows[limit - 1], given))

    async def session_rules(self, tenant: str, session_id: str) -> Sequence[str]:
        """The rules that answers left for a session, in the order of asking, each once."""
        rows = await self._reader.rows(_rules, {"tenant": tenant, "session": session_id})
        return list(dict.fromkeys(row["suggested_rule"] for row in rows))
