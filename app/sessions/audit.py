"""The audit trail: what was said and done, filtered and in pages. The port that the API, the CLI and exports read.

Knows no SQL and no HTTP. Counting stops at `MAX_COUNT`, so that no question costs more than a page of that size.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

MAX_COUNT = 10_001

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """Which messages; None: all. `tool` finds the results of a tool. `since` and `until` in µs, from `since` on and
    before `until`. Within a session or run the order is that of its events, otherwise that of time."""

    session_id: str | None = None
    run_id: str | None = None
    agent: str | None = None
    role: str | None = None
    tool: str | None = None
    since: int | None = None
    until: int | None = None
    newest_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFilter:
    """Which tool calls; like `MessageFilter`. `status` is that of the result, or `pending` or `running`."""

    session_id: str | None = None
    run_id: str | None = None
    tool: str | None = None
    status: str | None = None
    since: int | None = None
    until: int | None = None
    newest_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionFilter:
    """Which decisions of rules, persons, clocks and hooks; like `MessageFilter`. `decision` None: all of them."""

    session_id: str | None = None
    run_id: str | None = None
    agent: str | None = None
    tool: str | None = None
    decision: str | None = None
    since: int | None = None
    until: int | None = None
    newest_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Rows in order, and the cursor of the next page; None: these were the last."""

    items: Sequence[Record]
    next: str | None = None


class AuditStore(Protocol):
    """Reads messages, tool calls and decisions; every function takes the tenant. Keys of a record are the columns of
    its table, times in µs. Raises `InvalidRequest` for a cursor that another question gave."""

    async def messages(
        self, tenant: str, filters: MessageFilter, *, cursor: str | None = None, limit: int = 50
    ) -> Page:
        """One page of messages."""

    async def decisions(
        self, tenant: str, filters: DecisionFilter, *, cursor: str | None = None, limit: int = 50
    ) -> Page:
        """One page of decisions."""

    async def count(self, tenant: str, filters: MessageFilter | DecisionFilter) -> int:
        """How many messages or decisions there are; `MAX_COUNT` stands for that many or more."""

    def export(self, tenant: str, filters: MessageFilter) -> AsyncIterator[Sequence[Record]]:
        """All messages in pages, each read when the one before it was taken."""

    async def calls(self, tenant: str, filters: CallFilter, *, cursor: str | None = None, limit: int = 50) -> Page:
        """One page of tool calls, in the order of their `tool.call`."""
