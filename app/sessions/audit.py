"""The audit trail: what was said and done, filtered and in pages. The port that the API, the CLI and exports read.

Knows no SQL and no HTTP. Counting stops at `MAX_COUNT`, so that no question costs more than a page of that size.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.agent.errors import InvalidRequest, NotFound

MAX_COUNT = 10_001
MAX_SCANNED = 50_000  # messages that one question about a text looks at: up to 0.2 s
SHORTEST = 3  # characters of a text that needs no other filter: an index of trigrams knows no shorter ones
MAX_TEXT = 1_000
ANY = "any"  # as a decision: all of them

# The columns of a message that is exported, in this order; JSON as the text that is stored.
EXPORTED = (
    "id", "seq", "session_id", "memory_id", "memory_seq", "run_id", "agent", "name", "is_subagent", "depth", "turn",
    "step", "sub", "role", "content", "reasoning", "tool_calls", "tool_call_id", "tool", "is_error", "tokens",
    "metadata", "ts",
)  # fmt: skip

# The same of a decision.
DECIDED = (
    "seq", "session_id", "run_id", "agent", "name", "depth", "step", "type", "decision", "kind", "tool", "call_id",
    "rule", "scope", "owner", "decided_by", "hook", "reason", "digest", "edited_digest", "approval_id", "ts",
)  # fmt: skip

Record = Mapping[str, Any]
Exported = Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """Which messages; None: all. `tool` finds the results of a tool. `since` and `until` in µs, from `since` on and
    before `until`. Within a session or run the order is that of its events, otherwise that of time. `text`: the content
    holds it, literally; ASCII letters in either case. One of fewer than `SHORTEST` characters needs a session, a run or
    a time."""

    session_id: str | None = None
    run_id: str | None = None
    agent: str | None = None
    role: str | None = None
    tool: str | None = None
    since: int | None = None
    until: int | None = None
    text: str | None = None
    newest_first: bool = False


def check_text(filters: MessageFilter) -> None:
    """Raises `InvalidRequest` for a text that is too short to be looked for in everything."""
    text = filters.text
    narrow = (filters.session_id, filters.run_id, filters.since, filters.until)
    if text is not None and len(text) < SHORTEST and narrow == (None, None, None, None):
        raise InvalidRequest(
            f"text {text!r} has fewer than {SHORTEST} characters: name a session, a run or a time as well, or look "
            "for a longer text",
            errors=[{"at": "text", "message": f"at least {SHORTEST} characters without session, run or time"}],
        )


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


Filter = MessageFilter | DecisionFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Rows in order, and the cursor of the next page; None: these were the last. `bounded`: so many rows were looked at
    (for a text `MAX_SCANNED` messages) that it stopped before the page was full; `next` goes on."""

    items: Sequence[Record]
    next: str | None = None
    bounded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How many there are; `MAX_COUNT` stands for that many or more. `bounded`: among the first rows, at which counting
    stopped (for a text `MAX_SCANNED` messages)."""

    count: int
    bounded: bool = False


class AuditStore(Protocol):
    """Reads messages and decisions; every function takes the tenant. Keys of a record are the columns of
    its table, times in µs. Raises `InvalidRequest` for a cursor that another question gave, and for a text that is too
    short for such a question."""

    async def known(self, tenant: str, *, session_id: str | None, run_id: str | None) -> tuple[bool, bool]:
        """Whether there is such a session, and such a run: a row of it (also of a deleted session), or a message or
        decision that names it. Of None: False."""

    async def messages(
        self, tenant: str, filters: MessageFilter, *, cursor: str | None = None, limit: int = 50
    ) -> Page:
        """One page of messages."""

    async def decisions(
        self, tenant: str, filters: DecisionFilter, *, cursor: str | None = None, limit: int = 50
    ) -> Page:
        """One page of decisions."""

    async def count(self, tenant: str, filters: Filter) -> Counted:
        """How many messages or decisions there are."""

    def export(self, tenant: str, filters: Filter) -> AsyncIterator[Sequence[Exported]]:
        """All messages or decisions in pages, each read when the one before it was taken; values in the order of
        `EXPORTED` or `DECIDED`, and behind them whatever else was read."""


async def check_named(
    store: AuditStore, tenant: str, *, session_id: str | None = None, run_id: str | None = None
) -> None:
    """Raises `NotFound` for a session or run that there is not, whose empty answer would say nothing of that."""
    if session_id is None and run_id is None:
        return
    session, run = await store.known(tenant, session_id=session_id, run_id=run_id)
    for kind, name, there in (("session", session_id, session), ("run", run_id, run)):
        if name is not None and not there:
            raise NotFound(f"there is no {kind} {name!r}")
