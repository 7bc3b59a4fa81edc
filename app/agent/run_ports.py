"""How the kernel starts runs and reads what is stored of them."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.agent.runs import MemoryState, Run, RunOutcome, RunRequest, RunStatus, Seat, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCounters:
    """Where a session's numbers go on: the next run ordinal, the names that are taken, and for a session with a budget
    what was spent of it (`model_calls`, `tokens`, `cost_micros`, `tool_calls`, `delegations`, `wall_ms`)."""

    next_ordinal: int = 1
    names: frozenset[str] = frozenset()
    spent: Mapping[str, int] = field(default_factory=dict)


class RunStore(Protocol):
    """Reads sessions, runs and handoffs back; every function takes the tenant. Rows are plain mappings whose keys
    are the columns of the table, times in µs."""

    async def session(self, tenant: str, session_id: str) -> Mapping[str, Any] | None:
        """One session row, erased ones left out."""

    async def counters(self, tenant: str, session_id: str) -> SessionCounters:
        """The run ordinals and agent names already used in a session."""

    async def run(self, tenant: str, run_id: str) -> Mapping[str, Any] | None:
        """One run row."""

    async def runs(self, tenant: str, session_id: str) -> Sequence[Mapping[str, Any]]:
        """All runs of a session, by ordinal."""

    async def spent(self, tenant: str, session_id: str, currency: str) -> Mapping[str, int]:
        """What the runs of a session have used so far, money in that currency; keys as in `SessionCounters.spent`."""

    async def handoffs(self, tenant: str, session_id: str) -> Sequence[Mapping[str, Any]]:
        """All handoffs of a session, in the order of their starts."""

    async def handoff(self, tenant: str, handoff_id: str) -> Mapping[str, Any] | None:
        """One handoff row."""

    async def handoff_runs(self, tenant: str, handoff_id: str) -> Sequence[Mapping[str, Any]]:
        """The runs of a handoff, in order."""

    async def untold(self, tenant: str, session_id: str) -> Sequence[Mapping[str, Any]]:
        """The notices of a session that nobody was told, in the order of posting, each with the `depth` of the run that
        it is for."""

    async def untold_tasks(self) -> Sequence[Mapping[str, Any]]:
        """Background tasks of all tenants that have ended, and of which their run was not told: `tenant_id`,
        `session_id`, `id`."""

    async def busy_sessions(self) -> Sequence[Mapping[str, Any]]:
        """Sessions of all tenants in which something was begun and that were not idle since: `tenant_id`, `id`. Closed
        ones are left out."""

    async def open_runs(self) -> Sequence[Mapping[str, Any]]:
        """All runs of all tenants that are not final, deepest first."""

    async def open_handoffs(self) -> Sequence[Mapping[str, Any]]:
        """All handoffs of all tenants that are not final."""

    async def open_calls(self, tenant: str, run_id: str) -> Sequence[Mapping[str, Any]]:
        """Tool calls of a run that have no result: `id`, `provider_call_id`, `tool`, `step`, `sub`, and as
        `memory_seq` the number of the assistant message that asks."""


class MemoryStore(Protocol):
    """Reads memories back; writing is the projection's."""

    async def load(self, tenant: str, memory_id: str) -> MemoryState:
        """The memory, shortened as it was left; an unknown one is empty."""


class Launcher(Protocol):
    """The only door to a run, at every depth."""

    def launch(self, request: RunRequest) -> Run:
        """Record the run as queued and start it. Raises `Conflict` when its memory has a run, `Unavailable` when
        the service is stopping."""

    def name(self, session: Session, wanted: str | None) -> str:
        """A readable name for a subagent, unique in the session: `sub_<8 hex>` unless one is wanted."""

    def person(self, run: Run, asked: bool) -> None:
        """A person begins (`asked`) or ceases to be asked by a run: its clocks and those of its ancestors stand still
        meanwhile."""

    def lineage(self, run: Run) -> tuple[str, ...]:
        """The ids of the runs above a run, from the root."""

    def seat(
        self, tenant: str, memory_id: str, parent: Run | None, *, alone: bool = False, again: bool = False
    ) -> Seat | None:
        """The next place in the queue for a shared memory; None when whoever delegates would wait for itself, or,
        `alone`, for anybody. `parent`: the run that waits meanwhile; `again`: for a run that has its number in the
        memory already."""

    def left_seat(self, run_id: str) -> Seat | None:
        """The place that is kept for a run of another process; None: there is none, or it was given already."""

    def answered(self, run: Run, call_id: str) -> None:
        """A call has its result: what another process had begun for it and nobody has taken up ends, with everything
        below it, and holds nobody up."""

    def keep(self, session: Session) -> AbstractContextManager[None]:
        """While work of a session goes on that no run waits for: it is not idle."""

    def is_open(self, run_id: str) -> bool:
        """Whether a run of this process has not ended."""

    def open_tasks(self, run: Run) -> Sequence[str]:
        """The background tasks that a run has started, or that lie below it, and that go on."""

    async def reap(self, run: Run) -> None:
        """End the background tasks of a run that failed, except those that are detached."""

    def drop(self, run: Run, status: RunStatus) -> None:
        """A run of an earlier process is not gone on with after all: it ends, with everything below it."""

    async def wait(self, run_id: str) -> RunOutcome:
        """Wait until the run is final. Its final event is recorded by then, not yet committed: whoever tells the
        outside awaits `committed` first. Never raises the run's own cancellation."""

    async def cancel(self, run_id: str, *, status: RunStatus = RunStatus.CANCELLED) -> tuple[str, ...]:
        """End a run and everything below it, children first; returns the ids of the runs that this stopped."""
