"""Reads the audit trail back: messages, tool calls and decisions in filtered pages (`AuditStore`)."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import fields, replace
from typing import Any

from sqlalchemy import Table

from app.sessions.audit import CallFilter, DecisionFilter, MessageFilter, Page, Record
from app.store.cursors import MAX_INT
from app.store.pages import Order, Question, question
from app.store.reader import Reader
from app.store.tables import decisions, messages, tool_calls

EXPORT_PAGE = 500

# Most narrowing first. What has no index of its own (`role`, `status`) is looked for along the order that is left.
MESSAGE_ORDERS = (
    Order(name="run", equal=("run_id",), key=("seq",)),
    Order(name="session", equal=("session_id",), key=("seq",)),
    Order(name="tool", equal=("tool",), key=("ts", "id")),
    Order(name="agent", equal=("agent",), key=("ts", "id")),
    Order(name="time", equal=(), key=("ts", "id")),
)
CALL_ORDERS = (
    Order(name="run", equal=("run_id",), key=("seq",)),
    Order(name="session", equal=("session_id",), key=("seq",)),
    Order(name="tool", equal=("tool",), key=("ts", "id")),
    Order(name="id", equal=(), key=("id",)),  # ids are in the order of time
)
DECISION_ORDERS = (
    Order(name="run", equal=("run_id",), key=("seq",)),
    Order(name="session", equal=("session_id",), key=("seq",)),
    Order(name="decision", equal=("decision",), key=("ts", "session_id", "seq")),
    Order(name="time", equal=(), key=("ts", "session_id", "seq")),
)


class SqlAuditStore:
    """`AuditStore` over SQLAlchemy."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def messages(
        self, tenant: str, filters: MessageFilter, *, cursor: str | None = None, limit: int = 50
    ) -> Page:
        """One page of messages."""
        return await self._page(messages, MESSAGE_ORDERS, tenant, filters, cursor, limit)

    async def calls(self, tenant: str, filters: CallFilter, *, cursor: str | None = None, limit: int = 50) -> Page:
        """One page of tool calls."""
        return await self._page(tool_calls, CALL_ORDERS, tenant, filters, cursor, limit)

    async def decisions(
        self, tenant: str, filters: DecisionFilter, *, cursor: str | None = None, limit: int = 50
    ) -> Page:
        """One page of decisions."""
        return await self._page(decisions, DECISION_ORDERS, tenant, filters, cursor, limit)

    async def count(self, tenant: str, filters: MessageFilter | DecisionFilter) -> int:
        """How many messages or decisions there are, at most `MAX_COUNT`."""
        given = _given(filters)
        if isinstance(filters, DecisionFilter):
            asked = question(decisions, DECISION_ORDERS, given, filters.newest_first)
        else:
            asked = question(messages, MESSAGE_ORDERS, given, filters.newest_first)
        row = await self._reader.row(asked.count(), {"tenant": tenant, **given})
        return 0 if row is None else int(row["count"])

    async def export(self, tenant: str, filters: MessageFilter) -> AsyncIterator[Sequence[Record]]:
        """All messages in pages; no transaction is open between two of them."""
        cursor: str | None = None
        while True:
            page = await self.messages(tenant, filters, cursor=cursor, limit=EXPORT_PAGE)
            if page.items:
                yield page.items
            cursor = page.next
            if cursor is None:
                return

    async def _page(
        self,
        table: Table,
        orders: Sequence[Order],
        tenant: str,
        filters: MessageFilter | CallFilter | DecisionFilter,
        cursor: str | None,
        limit: int,
    ) -> Page:
        given = _given(filters)
        asked: Question = question(table, orders, given, filters.newest_first)
        parameters: dict[str, Any] = {"tenant": tenant, "limit": limit + 1, **given}
        if cursor is not None:
            parameters |= asked.read(cursor)
            asked = replace(asked, after=True)
        rows = await self._reader.rows(asked.page(), parameters)
        if len(rows) <= limit:
            return Page(items=rows)
        return Page(items=rows[:limit], next=asked.cursor(rows[limit - 1]))


def _given(filters: MessageFilter | CallFilter | DecisionFilter) -> dict[str, Any]:
    """The filters that were set; times that no column can hold stand at its ends."""
    names = (field.name for field in fields(filters) if field.name != "newest_first")
    given = {name: value for name in names if (value := getattr(filters, name)) is not None}
    for name in given.keys() & {"since", "until"}:
        given[name] = max(-MAX_INT, min(given[name], MAX_INT))
    return given
