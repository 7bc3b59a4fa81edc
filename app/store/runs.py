"""Reads sessions, runs, handoffs and open tool calls back (`RunStore`), and lists sessions.

Rows are dictionaries by column name, JSON decoded, times in µs.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, and_, bindparam, exists, func, or_, select, true, tuple_

from app.agent.messages import NO_USAGE, Usage
from app.agent.run_ports import SessionCounters
from app.store.cursors import pack, unpack
from app.store.reader import Reader, Record
from app.store.tables import handoffs, messages, notices, runs, sessions, tool_calls, webhooks

_SESSIONS_ORDER = "sessions"


def _of(table: Table, *columns: str) -> Select[Any]:
    """All columns of the tenant's rows whose `columns` have the values of the parameters of the same names."""
    mine = (table.c[name] == bindparam(name) for name in ("tenant_id", *columns))
    return select(table).where(*mine)


def _shown(table: Table) -> Select[Any]:
    """One row by its id, and whether somebody is to be told of its end (`has_webhook`)."""
    own = exists().where(webhooks.c.tenant_id == table.c.tenant_id, webhooks.c.id == table.c.id)
    return _of(table, "id").add_columns(own.label("has_webhook"))


_session = _of(sessions, "id").where(sessions.c.erased_at.is_(None))
_sessions = (
    select(sessions)
    .where(sessions.c.tenant_id == bindparam("tenant_id"), sessions.c.erased_at.is_(None))
    .order_by(sessions.c.id.desc())
    .limit(bindparam("limit"))
)
_sessions_after = _sessions.where(sessions.c.id < bindparam("after"))
_run = _shown(runs)
_runs = _of(runs, "session_id").order_by(runs.c.ordinal)
_turns = (
    _of(runs, "session_id")
    .where(runs.c.depth == 0, runs.c.ordinal > bindparam("after"))
    .order_by(runs.c.ordinal)
    .limit(bindparam("limit"))
)
_handoff = _shown(handoffs)
_handoffs = _of(handoffs, "session_id").order_by(handoffs.c.start_seq)
_handoff_runs = _of(runs, "handoff_id").order_by(runs.c.ordinal)
_busy_sessions = (  # of what an older version has written the number may be one of before the last idle
    select(sessions.c.tenant_id, sessions.c.id)
    .where(sessions.c.busy_seq.is_not(None), sessions.c.busy_seq > func.coalesce(sessions.c.idle_seq, 0))
    .where(sessions.c.closed_at.is_(None), sessions.c.erased_at.is_(None))
)
_open_runs = select(runs).where(runs.c.ended_at.is_(None))
_open_handoffs = select(handoffs).where(handoffs.c.ended_at.is_(None))
_exchanges = (
    select(messages.c.memory_seq, messages.c.step, messages.c.tool_calls, messages.c.tool_call_id, messages.c.role)
    .where(messages.c.tenant_id == bindparam("tenant_id"), messages.c.run_id == bindparam("run_id"))
    .where(messages.c.role.in_(("assistant", "tool")))
    .order_by(messages.c.seq)
)
_last_ordinal = select(func.max(runs.c.ordinal).label("ordinal")).where(
    runs.c.tenant_id == bindparam("tenant_id"), runs.c.session_id == bindparam("session_id")
)
_names = (
    select(runs.c.name)
    .where(runs.c.tenant_id == bindparam("tenant_id"), runs.c.session_id == bindparam("session_id"))
    .union(
        select(handoffs.c.name).where(
            handoffs.c.tenant_id == bindparam("tenant_id"), handoffs.c.session_id == bindparam("session_id")
        )
    )
)


def _of_session(table: Table) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return table.c.tenant_id == bindparam("tenant_id"), table.c.session_id == bindparam("session_id")


_used = select(runs.c.usage, runs.c.parent_id, runs.c.duration_ms).where(*_of_session(runs))
_delegating = select(handoffs.c.call_id).where(*_of_session(handoffs), handoffs.c.call_id.is_not(None))
_calls_made = (
    select(func.count())
    .select_from(tool_calls)
    .where(
        *_of_session(tool_calls),
        tool_calls.c.started_at.is_not(None),
        tool_calls.c.delegation.is_not(true()),
        tool_calls.c.id.not_in(_delegating),  # those that were stored before it was kept which calls delegate
    )
)
# The ordinary tool that stood in for a subagent under the name of its delegation tool is a tool call as well.
_stood_in = (
    select(handoffs.c.fallback)
    .join(tool_calls, and_(tool_calls.c.tenant_id == handoffs.c.tenant_id, tool_calls.c.id == handoffs.c.call_id))
    .where(*_of_session(handoffs), handoffs.c.fallback.is_not(None), tool_calls.c.status.not_in(("denied", "expired")))
)
_delegations_made = (
    select(func.count())
    .select_from(handoffs)
    .where(*_of_session(handoffs), or_(handoffs.c.attempts >= 1, handoffs.c.ended_at.is_(None)))
)
_made = select(
    _calls_made.scalar_subquery().label("tool_calls"), _delegations_made.scalar_subquery().label("delegations")
)


_untold = (
    select(notices, runs.c.depth)
    .join(runs, and_(runs.c.tenant_id == notices.c.tenant_id, runs.c.id == notices.c.run_id), isouter=True)
    .where(*_of_session(notices), notices.c.status == "pending")
)
# A task that is told of keeps its notice, told or not. All of these at once: a session has many, and no index for one.
_told_tasks = select(notices.c.tenant_id, notices.c.handoff_id).where(notices.c.handoff_id.is_not(None))
_untold_tasks = (
    select(handoffs.c.tenant_id, handoffs.c.session_id, handoffs.c.id)
    .join(sessions, and_(sessions.c.tenant_id == handoffs.c.tenant_id, sessions.c.id == handoffs.c.session_id))
    .where(handoffs.c.background.is_(true()), handoffs.c.run_id.is_not(None), handoffs.c.ended_at.is_not(None))
    .where(sessions.c.closed_at.is_(None), sessions.c.erased_at.is_(None))
    .where(tuple_(handoffs.c.tenant_id, handoffs.c.id).not_in(_told_tasks))
)


class SqlRunStore:
    """`RunStore` over SQLAlchemy."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def session(self, tenant: str, session_id: str) -> Mapping[str, Any] | None:
        """One session row; None for an unknown or deleted one."""
        return await self._reader.row(_session, {"tenant_id": tenant, "id": session_id})

    async def sessions(self, tenant: str, cursor: str | None, limit: int) -> tuple[list[Mapping[str, Any]], str | None]:
        """A page of sessions, newest first, and the cursor of the next. Raises `InvalidRequest` for a bad cursor."""
        parameters: dict[str, Any] = {"tenant_id": tenant, "limit": limit + 1}
        statement = _sessions
        if cursor is not None:
            (parameters["after"],) = unpack(cursor, _SESSIONS_ORDER, (str,))
            statement = _sessions_after
        rows: list[Mapping[str, Any]] = list(await self._reader.rows(statement, parameters))
        if len(rows) <= limit:
            return rows, None
        return rows[:limit], pack(_SESSIONS_ORDER, (rows[limit - 1]["id"],))

    async def counters(self, tenant: str, session_id: str) -> SessionCounters:
        """The run ordinals and agent names already used in a session."""
        mine = {"tenant_id": tenant, "session_id": session_id}
        last = await self._reader.row(_last_ordinal, mine)
        names = await self._reader.rows(_names, mine)
        return SessionCounters(
            next_ordinal=((last or {}).get("ordinal") or 0) + 1,
            names=frozenset(row["name"] for row in names if row["name"] is not None),
        )

    async def run(self, tenant: str, run_id: str) -> Mapping[str, Any] | None:
        """One run row."""
        return await self._reader.row(_run, {"tenant_id": tenant, "id": run_id})

    async def runs(self, tenant: str, session_id: str) -> list[Record]:
        """All runs of a session, by ordinal."""
        return await self._reader.rows(_runs, {"tenant_id": tenant, "session_id": session_id})

    async def turns(self, tenant: str, session_id: str, *, after: int, limit: int) -> list[Mapping[str, Any]]:
        """The next runs of a session that no other run has started, by ordinal."""
        asked = {"tenant_id": tenant, "session_id": session_id, "after": after, "limit": limit}
        return list(await self._reader.rows(_turns, asked))

    async def spent(self, tenant: str, session_id: str, currency: str) -> dict[str, int]:
        """What the runs of a session have used, in the units of `BudgetLimits`: `model_calls`, `tokens`, `cost_micros`
        (of that currency), `tool_calls` (none that delegates) and `delegations` that were started, and `wall_ms` of the
        runs that no other run waits for. Open runs count their calls; the rest is known when they have ended."""
        mine = {"tenant_id": tenant, "session_id": session_id}
        rows = await self._reader.rows(_used, mine)
        used = sum((Usage.from_dict(row["usage"]) for row in rows), NO_USAGE)
        made = await self._reader.row(_made, mine) or {"tool_calls": 0, "delegations": 0}
        stood_in = await self._reader.rows(_stood_in, mine)
        primaries = sum(row["fallback"]["kind"] == "primary" for row in stood_in)
        return {
            "model_calls": used.model_calls,
            "tokens": used.input_tokens + used.output_tokens + used.estimated_tokens,
            "cost_micros": used.cost.get(currency, 0) + used.estimated_micros,
            "wall_ms": sum(row["duration_ms"] or 0 for row in rows if row["parent_id"] is None),
            "tool_calls": made["tool_calls"] + primaries,
            "delegations": made["delegations"],
        }

    async def handoffs(self, tenant: str, session_id: str) -> list[Record]:
        """All handoffs of a session, denied ones too, in the order in which they began."""
        return await self._reader.rows(_handoffs, {"tenant_id": tenant, "session_id": session_id})

    async def handoff(self, tenant: str, handoff_id: str) -> Mapping[str, Any] | None:
        """One handoff row."""
        return await self._reader.row(_handoff, {"tenant_id": tenant, "id": handoff_id})

    async def handoff_runs(self, tenant: str, handoff_id: str) -> list[Record]:
        """The runs of a handoff, one for each attempt, in order."""
        return await self._reader.rows(_handoff_runs, {"tenant_id": tenant, "handoff_id": handoff_id})

    async def untold(self, tenant: str, session_id: str) -> list[Record]:
        """The notices of a session that nobody was told, in the order of posting; `depth` is that of the run that they
        are for."""
        rows = await self._reader.rows(_untold, {"tenant_id": tenant, "session_id": session_id})
        return sorted(rows, key=lambda row: (row["created_at"], row["id"]))

    async def untold_tasks(self) -> list[Record]:
        """Background tasks of all tenants that have ended without a notice to their run: `tenant_id`, `session_id`,
        `id`. Those of closed sessions are left out."""
        return await self._reader.rows(_untold_tasks)

    async def busy_sessions(self) -> list[Record]:
        """Sessions of all tenants in which something was begun since they last were idle: `tenant_id`, `id`. Those that
        are closed are left out."""
        return await self._reader.rows(_busy_sessions)

    async def open_runs(self) -> list[Record]:
        """All runs of all tenants that are not final, deepest first."""
        rows = await self._reader.rows(_open_runs)
        return sorted(rows, key=lambda row: (-row["depth"], row["id"]))

    async def open_handoffs(self) -> list[Record]:
        """All handoffs of all tenants that are not final."""
        return await self._reader.rows(_open_handoffs)

    async def open_calls(self, tenant: str, run_id: str) -> list[Record]:
        """Calls in a run's messages that no tool message answers, in the order in which they were made; also those
        that were never taken up. `memory_seq` is the number of the message that asks, `sub` the place in it."""
        rows = await self._reader.rows(_exchanges, {"tenant_id": tenant, "run_id": run_id})
        answered = {row["tool_call_id"] for row in rows if row["role"] == "tool"}
        return [
            {
                "id": call["call_id"],
                "provider_call_id": call["provider_call_id"],
                "tool": call["name"],
                "step": row["step"],
                "sub": place,
                "memory_seq": row["memory_seq"],
            }
            for row in rows
            for place, call in enumerate(row["tool_calls"] or (), start=1)
            if call["call_id"] not in answered
        ]
