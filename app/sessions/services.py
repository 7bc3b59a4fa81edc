"""The services that a client's questions end at, in one bundle, and whether they are able to answer.

Made by the composition root; HTTP and the command line take what they need from here. Knows neither of them.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from app.agent.chat import ModelCatalog
from app.agent.errors import Unavailable
from app.agent.events import Event
from app.agent.supervisor import RunSupervisor
from app.agent.tools import ToolRegistry
from app.boxes.box import Standing
from app.sessions.access import Access
from app.sessions.artifacts import Artifacts
from app.sessions.audit import AuditStore
from app.sessions.delegations import Delegations
from app.sessions.explaining import Explaining
from app.sessions.feed import EventFeed
from app.sessions.follow_ups import FollowUps
from app.sessions.idempotency import Idempotency
from app.sessions.inbox import Inbox
from app.sessions.indexing import Indexing
from app.sessions.journal import Journal
from app.sessions.service import Sessions
from app.sessions.skills import SkillListing
from app.sessions.tasks import Tasks
from app.sessions.tenant_agents import TenantAgents
from app.sessions.tickets import Tickets
from app.sessions.verifying import Verifying

CHECK_S = 2.0  # for a readiness question: probes give up after a few seconds
MIN_FREE_BYTES = 32 << 20  # less than this is gone in minutes, and SQLite needs room for its log too


class MetricsReader(Protocol):
    """Counts what is published and shows it to a scraper."""

    content_type: str

    def observe(self, events: Sequence[Event]) -> None:
        """Count events; called for every batch."""

    def stream_ended(self, reason: str) -> None:
        """Count the end of an event stream."""

    def text(self, gauges: Mapping[str, float]) -> bytes:
        """Everything in the format of Prometheus; `gauges` are what is measured only now."""


class CommandBox(Protocol):
    """In what commands run."""

    async def standing(self) -> Standing:
        """How well they are held."""

    async def refusal(self) -> str | None:
        """Why none is run; None when they are."""


class McpStates(Protocol):
    """The MCP servers whose tools there are."""

    def states(self) -> Mapping[str, str]:
        """How each server is, by name."""

    def server_of(self, tool: str) -> str | None:
        """The server of a tool name; None for a tool that is of none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything that a client can ask. `check_store` raises when the store does not answer; `data_path` is the file
    of the database, None when it lies elsewhere. `commands`: None where none are run."""

    sessions: Sessions
    delegations: Delegations
    idempotency: Idempotency
    follow_ups: FollowUps
    tasks: Tasks
    feed: EventFeed
    inbox: Inbox
    explaining: Explaining
    audit: AuditStore
    verifying: Verifying
    artifacts: Artifacts
    access: Access
    agents: TenantAgents
    skills: SkillListing
    models: ModelCatalog
    tools: ToolRegistry
    journal: Journal
    supervisor: RunSupervisor
    metrics: MetricsReader
    check_store: Callable[[], Awaitable[None]]
    commands: CommandBox | None = None
    mcp: McpStates | None = None
    indexing: Indexing | None = None
    data_path: Path | None = None
    tickets: Tickets = field(default_factory=Tickets)

    def need_store(self) -> None:
        """Raises `Unavailable` while nothing can be stored, or too much waits for that: work that cannot be recorded is
        not begun."""
        problem = self.journal.problem
        if problem is not None:
            raise Unavailable(f"nothing is started while the store is away: {problem}", code="store_unavailable")
        self.journal.need_room()

    async def readiness(self) -> dict[str, str | None]:
        """What is checked, and what is wrong with it (None: nothing)."""
        return {
            "service": "it is stopping" if self.sessions.stopping else None,
            "journal": self.journal.problem or self.journal.damage,
            "store": await self._store_problem(),
            "disk": await asyncio.to_thread(self._disk_problem),
            **({} if self.commands is None else {"commands": await self.commands.refusal()}),
        }

    async def _store_problem(self) -> str | None:
        try:
            async with asyncio.timeout(CHECK_S):
                await self.check_store()
        except Unavailable as error:
            return error.message
        except TimeoutError:
            return f"it did not answer within {CHECK_S:g} s"
        return None

    def _disk_problem(self) -> str | None:
        if self.data_path is None:
            return None
        try:
            free = shutil.disk_usage(self.data_path.parent).free
        except OSError as error:
            return f"its free space cannot be read: {error.strerror}"
        return None if free >= MIN_FREE_BYTES else f"only {free >> 20} MiB are free where the database lies"

    def gauges(self) -> dict[str, float]:
        """What is measured at the moment, by the names of the metrics."""
        return {
            "open_streams": self.feed.readers,
            "runs_in_flight": self.supervisor.in_flight,
            "runs_queued": self.supervisor.queued,
            "runs_at_work": self.supervisor.slots.in_use,
            "tasks_open": self.supervisor.handoffs.open_tasks,
            "journal_waiting_bytes": self.journal.waiting_bytes,
            "store_failures_total": self.journal.failures,
            "store_up": 0 if self.journal.problem else 1,
        }
