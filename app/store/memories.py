"""Reads memories back as messages (`MemoryStore`).

Knows no provider: opaque fields come back as they were stored.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import bindparam, select

from app.agent.messages import Message, Role, ToolCall
from app.agent.runs import MemoryState, Shortened
from app.agent.shortening import rebuilt
from app.store.reader import Reader
from app.store.tables import memories, messages
from app.wire import parse_arguments

PAGE = 500  # messages read at once: a long memory must not hold up everything else

_memory = select(
    memories.c.next_turn, memories.c.next_seq, memories.c.summary, memories.c.summary_from, memories.c.shortened
).where(memories.c.tenant_id == bindparam("tenant"), memories.c.id == bindparam("memory"))
_in_memory = (
    select(
        messages.c.memory_seq,
        messages.c.role,
        messages.c.content,
        messages.c.reasoning,
        messages.c.tool_calls,
        messages.c.tool_call_id,
        messages.c.is_error,
        messages.c.metadata,
    )
    .where(messages.c.tenant_id == bindparam("tenant"), messages.c.memory_id == bindparam("memory"))
    .order_by(messages.c.memory_seq)
)
_messages = _in_memory.where(messages.c.memory_seq > bindparam("after")).limit(PAGE)
_first = _in_memory.limit(1)
_one = _in_memory.where(messages.c.memory_seq == bindparam("seq")).limit(1)


class SqlMemoryStore:
    """`MemoryStore` over SQLAlchemy."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def load(self, tenant: str, memory_id: str) -> MemoryState:
        """The memory in order, shortened as it was left; an unknown one is empty."""
        wanted = {"tenant": tenant, "memory": memory_id}
        # The row first: a message that is stored in between then has a number that its counters do not reach yet, and
        # whoever opens the memory for a run has made sure that nobody else writes to it.
        row = await self._reader.row(_memory, wanted)
        if row is None:
            return MemoryState()
        how = _shortened(row)
        if how is None:
            found = await self._after(wanted, 0)
        else:
            found = rebuilt([*await self._before(wanted, how), *await self._after(wanted, how.kept_from - 1)], how)
        counters = {name: row[name] for name in ("next_turn", "next_seq")}
        return MemoryState(messages=tuple(found), shortened=how, **counters)

    async def _after(self, wanted: Mapping[str, Any], after: int) -> list[Message]:
        """All messages with a higher number."""
        found: list[Message] = []
        while True:
            rows = await self._reader.rows(_messages, {**wanted, "after": after})
            found.extend(map(_message, rows))
            if len(rows) < PAGE:
                return found
            after = rows[-1]["memory_seq"]

    async def _before(self, wanted: Mapping[str, Any], how: Shortened) -> list[Message]:
        """The system prompt and the task, as far as they do not stand among what was kept."""
        rows = await self._reader.rows(_first, wanted)
        rows = [row for row in rows if row["role"] == Role.SYSTEM.value and row["memory_seq"] < how.kept_from]
        if how.task is not None and how.task < how.kept_from:
            rows += await self._reader.rows(_one, {**wanted, "seq": how.task})
        return [_message(row) for row in rows]


def _shortened(row: Mapping[str, Any]) -> Shortened | None:
    if row["summary_from"] is None:
        return None
    more = row["shortened"] or {}
    return Shortened(
        kept_from=row["summary_from"],
        task=more.get("task"),
        summary=row["summary"] or "",
        untold=more.get("untold", 0),
        cuts={int(seq): (kept, left_out) for seq, (kept, left_out) in more.get("cuts", {}).items()},
        note=more.get("note", ""),
    )


def _message(row: Mapping[str, Any]) -> Message:
    metadata = row["metadata"] or {}
    return Message(
        seq=row["memory_seq"],
        role=Role(row["role"]),
        content=row["content"],
        reasoning=row["reasoning"] or "",
        tool_calls=tuple(map(_call, row["tool_calls"] or ())),
        tool_call_id=row["tool_call_id"],
        is_error=row["is_error"],
        partial=bool(metadata.get("partial")),
        provider=metadata.get("provider") or "",
        opaque=metadata.get("opaque"),
    )


def _call(stored: Mapping[str, Any]) -> ToolCall:
    arguments, problem = parse_arguments(stored["arguments"])
    return ToolCall(
        call_id=stored["call_id"],
        name=stored["name"],
        raw=stored["arguments"],
        arguments=arguments,
        provider_call_id=stored.get("provider_call_id") or "",
        problem=problem,
        opaque=stored.get("opaque"),
    )
