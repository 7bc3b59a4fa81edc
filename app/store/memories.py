"""Reads memories back as messages (`MemoryStore`).

Knows no provider: opaque fields come back as they were stored.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import bindparam, select

from app.agent.messages import Message, Role, ToolCall
from app.agent.runs import MemoryState
from app.store.reader import Reader
from app.store.tables import memories, messages
from app.wire import parse_arguments

PAGE = 500  # messages read at once: a long memory must not hold up everything else

_memory = select(memories.c.next_turn, memories.c.next_seq).where(
    memories.c.tenant_id == bindparam("tenant"), memories.c.id == bindparam("memory")
)
_messages = (
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
    .where(
        messages.c.tenant_id == bindparam("tenant"),
        messages.c.memory_id == bindparam("memory"),
        messages.c.memory_seq > bindparam("after"),
    )
    .order_by(messages.c.memory_seq)
    .limit(PAGE)
)


class SqlMemoryStore:
    """`MemoryStore` over SQLAlchemy."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def load(self, tenant: str, memory_id: str) -> MemoryState:
        """The whole memory in order; an unknown one is empty."""
        wanted = {"tenant": tenant, "memory": memory_id}
        # The counters first: a message that is stored in between then has a number that they do not reach yet, and
        # whoever opens the memory for a run has made sure that nobody else writes to it.
        counters = await self._reader.row(_memory, wanted)
        if counters is None:
            return MemoryState()
        found: list[Message] = []
        after = 0
        while True:
            rows = await self._reader.rows(_messages, {**wanted, "after": after})
            found.extend(map(_message, rows))
            if len(rows) < PAGE:
                return MemoryState(messages=tuple(found), **counters)
            after = rows[-1]["memory_seq"]


def _message(row: Mapping[str, Any]) -> Message:
    metadata = row["metadata"] or {}
    return Message(
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
