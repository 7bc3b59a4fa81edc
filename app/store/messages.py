"""Reads the audit trail back: messages and decisions in filtered pages (`AuditStore`)."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import fields, replace
from typing import Any

from sqlalchemy import Table, bindparam, exists, or_, select

from app.agent.messages import Role
from app.sessions.audit import (
    DECIDED,
    EXPORTED,
    MAX_COUNT,
    MAX_SCANNED,
    Counted,
    DecisionFilter,
    Exported,
    Filter,
    MessageFilter,
    Page,
    Record,
    check_text,
)
from app.store.cursors import MAX_INT
from app.store.pages import LONG, Order, Question, question
from app.store.reader import Reader, can_be_stored
from app.store.search import TextIndex, folded
from app.store.tables import decisions, messages, runs, sessions
from app.store.text_index import part_of
from app.store.whole import Bound
from app.wire import clean, encode

EXPORT_PAGE, EXPORT_CHARS = 500, 4 << 20  # messages of a page, and of more than one
SEARCHES = 2  # at a time: a search may read for a second, and others need some of the readers meanwhile
LOOKED_AT = 5_000  # rows that may not fit, for a page: about 10 ms; for a count twice as many
_EACH_ROLE = ("role", tuple(role.value for role in Role))

# Most narrowing first. What has no index of its own (`status`, within a session all) is looked for along the order that
# is left.
MESSAGE_ORDERS = (
    Order(name="run", equal=("run_id",), key=("seq",)),
    Order(name="session", equal=("session_id",), key=("seq",)),
    Order(name="tool_agent", equal=("tool", "agent"), key=("ts", "id")),
    Order(name="tool", equal=("tool",), key=("ts", "id")),
    Order(name="agent_role", equal=("agent", "role"), key=("ts", "id")),
    Order(name="agent", equal=("agent",), key=("ts", "id"), each=_EACH_ROLE),
    Order(name="role", equal=("role",), key=("ts", "id")),
    Order(name="time", equal=(), key=("ts", "id"), each=_EACH_ROLE),
)
DECISION_ORDERS = (
    Order(name="run", equal=("run_id",), key=("seq",)),
    Order(name="session", equal=("session_id",), key=("seq",)),
    Order(name="decision", equal=("decision",), key=("ts", "session_id", "seq")),
    Order(name="tool", equal=("tool",), key=("ts", "session_id", "seq")),
    Order(name="agent", equal=("agent",), key=("ts", "session_id", "seq")),
    Order(name="time", equal=(), key=("ts", "session_id", "seq")),
)

_tenant: Any = bindparam("tenant")
_named = select(
    *(
        or_(
            exists().where(table.c.tenant_id == _tenant, table.c.id == bindparam(name)),
            *(
                exists().where(each.c.tenant_id == _tenant, each.c[name] == bindparam(name))
                for each in (messages, decisions)
            ),
        ).label(name)
        for table, name in ((sessions, "session_id"), (runs, "run_id"))
    )
)

# A question, its parameters, and the place where it stops; None: at the end.
Asked = tuple[Question, dict[str, Any], Record | None]


class SqlAuditStore:
    """`AuditStore` over SQLAlchemy. `scanned` bounds how many messages a question about a text looks at, `looked_at`
    how many rows one with a filter that its index does not serve."""

    def __init__(self, reader: Reader, *, scanned: int = MAX_SCANNED, looked_at: int = LOOKED_AT) -> None:
        self._reader = reader
        self._index = TextIndex(reader)
        self._turns = asyncio.Semaphore(SEARCHES)
        self._scanned = scanned
        self._looked_at = looked_at

    async def known(self, tenant: str, *, session_id: str | None, run_id: str | None) -> tuple[bool, bool]:
        """See `AuditStore.known`; one statement, that searches an index for each place where the id may stand."""
        wanted = {"session_id": session_id, "run_id": run_id}
        asked = {name: value if can_be_stored(value) else None for name, value in wanted.items()}
        row = await self._reader.row(_named, {"tenant": tenant, **asked})
        return (False, False) if row is None else (bool(row["session_id"]), bool(row["run_id"]))

    async def messages(
        self, tenant: str, filters: MessageFilter, *, cursor: str | None = None, limit: int = 50
    ) -> Page:
        """One page of messages."""
        async with self._turn(filters):
            return await self._page(messages, MESSAGE_ORDERS, tenant, filters, cursor, limit)

    def _turn(self, filters: Filter) -> AbstractAsyncContextManager[None]:
        return self._turns if isinstance(filters, MessageFilter) and filters.text is not None else nullcontext()

    async def decisions(
        self, tenant: str, filters: DecisionFilter, *, cursor: str | None = None, limit: int = 50
    ) -> Page:
        """One page of decisions."""
        return await self._page(decisions, DECISION_ORDERS, tenant, filters, cursor, limit)

    async def count(self, tenant: str, filters: Filter) -> Counted:
        """How many messages or decisions there are, at most `MAX_COUNT`."""
        given = _given(filters)
        if _nothing(given):
            return Counted(count=0)
        if isinstance(filters, MessageFilter) and filters.text is not None:
            async with self._turns:
                return await self._counted(*await self._narrowed(tenant, filters, None))
        if isinstance(filters, DecisionFilter):
            asked = question(decisions, DECISION_ORDERS, given, filters.newest_first)
        else:
            asked = question(messages, MESSAGE_ORDERS, given, filters.newest_first)
        return await self._counted(*await self._bounded(asked, {"tenant": tenant, **given}, 2 * self._looked_at))

    async def _counted(self, asked: Question, parameters: dict[str, Any], edge: Record | None) -> Counted:
        row = await self._reader.row(asked.count(), parameters)
        count = 0 if row is None else int(row["count"])
        return Counted(count=count, bounded=edge is not None and count < MAX_COUNT)

    async def export(self, tenant: str, filters: Filter) -> AsyncIterator[Sequence[Exported]]:
        """All messages or decisions in pages; no transaction is open between two of them."""
        given = _given(filters)
        if _nothing(given):
            return
        of_decisions = isinstance(filters, DecisionFilter)
        table, orders = (decisions, DECISION_ORDERS) if of_decisions else (messages, MESSAGE_ORDERS)
        cursor: str | None = None
        while True:
            async with self._turn(filters):
                asked, parameters, edge = await self._asked(table, orders, tenant, filters, cursor)
                rows, last = await self._part(asked, parameters)
            if rows:
                yield rows
            place = last or edge
            if place is None:
                return
            cursor = asked.cursor(place, given)

    async def _part(self, asked: Question, parameters: dict[str, Any]) -> tuple[Sequence[Exported], Record | None]:
        """Rows of an export, with the columns of their key behind those that are exported, and the key of the last of
        them. No more than `EXPORT_CHARS` of them are in memory, unless one row alone has more."""
        exported = DECIDED if asked.table is decisions else EXPORTED
        given = {**parameters, "limit": EXPORT_PAGE}
        if self._reader.dialect == "sqlite":
            shown = (*exported, *(name for name in asked.order.key if name not in exported))
            long = tuple(exported.index(name) for name in LONG if name in exported)
            page = replace(asked, shown=shown).page()
            rows = await self._reader.tuples(page, given, bound=Bound(EXPORT_CHARS, long))
            return rows, dict(zip(shown, rows[-1], strict=True)) if rows else None
        found = await self._reader.rows(asked.sizes(), given)
        count = part_of([row["size"] for row in found], EXPORT_CHARS)
        if not count:
            return (), None
        if asked.table is messages:  # by number: to find them by a text is dear
            wanted = encode([row["row_id"] for row in found[:count]]).decode()
            page, more = asked.these(exported).page(), {"rows": wanted, "limit": count}
        else:  # up to the last of them, and not so many: others may have come in between since
            page = replace(asked, edge=True, shown=exported).page()
            more = {**asked.bounds(found[count - 1]), "limit": 2 * EXPORT_PAGE}
        return await self._reader.tuples(page, {**parameters, **more}), found[count - 1]

    async def _page(
        self,
        table: Table,
        orders: Sequence[Order],
        tenant: str,
        filters: Filter,
        cursor: str | None,
        limit: int,
    ) -> Page:
        given = _given(filters)
        if _nothing(given):
            return Page(items=())
        asked, parameters, edge = await self._asked(table, orders, tenant, filters, cursor)
        rows = await self._reader.rows(asked.page(), {**parameters, "limit": limit + 1})
        if len(rows) > limit:
            return Page(items=rows[:limit], next=asked.cursor(rows[limit - 1], given))
        if edge is not None:
            return Page(items=rows, next=asked.cursor(edge, given), bounded=True)
        return Page(items=rows)

    async def _asked(
        self,
        table: Table,
        orders: Sequence[Order],
        tenant: str,
        filters: Filter,
        cursor: str | None,
    ) -> Asked:
        """What is asked for a page."""
        if isinstance(filters, MessageFilter) and filters.text is not None:
            return await self._narrowed(tenant, filters, cursor)
        given = _given(filters)
        asked = question(table, orders, given, filters.newest_first)
        parameters: dict[str, Any] = {"tenant": tenant, **given}
        if cursor is not None:
            parameters |= asked.read(cursor, given)
            asked = replace(asked, after=True)
        return await self._bounded(asked, parameters, self._looked_at)

    async def _bounded(self, asked: Question, parameters: dict[str, Any], most: int) -> Asked:
        """The question up to the place behind which no row is looked at."""
        edge = None
        if asked.passing or asked.text:
            edge = await self._reader.row(asked.place(), {**parameters, "steps": most - 1})
        if edge is None:
            return asked, parameters, None
        return replace(asked, edge=True), {**parameters, **asked.bounds(edge)}, edge

    # ── texts ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _narrowed(self, tenant: str, filters: MessageFilter, cursor: str | None) -> Asked:
        """The question about a text. Few candidates are looked at as they are; where there are many, the next of them
        are found by walking along the log. Pages go on from each other, however they were found."""
        check_text(filters)
        given = _given(filters)
        wanted = clean(given.pop("text"))  # as what is stored was
        asked = replace(question(messages, MESSAGE_ORDERS, given, filters.newest_first), text=True)
        parameters: dict[str, Any] = {"tenant": tenant, "text": folded(wanted), **given}
        if cursor is not None:
            parameters |= asked.read(cursor, _given(filters))
            asked = replace(asked, after=True)
        candidates = await self._index.candidates(tenant, wanted)
        if candidates is not None:
            return replace(asked, among=True), {**parameters, "rows": encode(candidates).decode()}, None
        return await self._bounded(asked, parameters, self._scanned)


def _given(filters: Filter) -> dict[str, Any]:
    """The filters that were set; times that no column can hold stand at its ends."""
    names = (field.name for field in fields(filters) if field.name != "newest_first")
    given = {name: value for name in names if (value := getattr(filters, name)) is not None}
    for name in given.keys() & {"since", "until"}:
        given[name] = max(-MAX_INT, min(given[name], MAX_INT))
    if "tool" in given and given.get("role") == Role.TOOL:
        del given["role"]  # what a tool has said is of this role, always
    return given


def _nothing(given: Mapping[str, Any]) -> bool:
    """Whether no row can fit."""
    return "tool" in given and "role" in given
