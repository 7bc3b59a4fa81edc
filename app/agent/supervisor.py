"""RunSupervisor: which runs are in the air, who waits for them, who dies with whom.

Owns the asyncio task of every run. Knows neither HTTP nor the store.
"""

import asyncio
import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial

from app.agent import events
from app.agent.budget import Amount, Budget
from app.agent.control import half_left
from app.agent.equipment import Equipment
from app.agent.errors import Conflict, NotFound, Unavailable
from app.agent.events import Event, Masker, Recorder
from app.agent.handoff import Handoffs
from app.agent.ids import new_id
from app.agent.interruption import LAST_WORD_S, LastWords
from app.agent.live_run import LiveRun, RunnerParts
from app.agent.runner import SubAgentRunner
from app.agent.runs import (
    HandoffStatus,
    Run,
    RunOutcome,
    RunRequest,
    RunStatus,
    Seat,
    Session,
    SessionCounters,
)
from app.agent.shared_memories import MemorySeat, SharedMemories

log = logging.getLogger(__name__)

NAME_CHARS = 64
SHUTDOWN_WORDS_S = 1.5  # for hooks to be told of it, beside that grace
INTERRUPT_S = 8.0  # for runs that are interrupted to end: a tool may be deaf, and is waited for (spec 7.4)
IDLE_SESSIONS = 10_000  # whose numbers are kept at hand
ENDED_RUNS = 5_000  # that are found without a look into the store
_NOT_WORD = re.compile(r"[^\w-]+")


class _Air:
    """One session's share of what is in the air: its numbers, names and open work."""

    __slots__ = ("budget", "closers", "left", "names", "next_ordinal", "numbers", "open", "session", "worked")

    def __init__(self, session: Session, counters: SessionCounters) -> None:
        self.session = session
        self.budget: Budget | None = None
        if session.budget is not None:  # one for all turns
            spent = dict(counters.spent)
            wall_ms = spent.pop("wall_ms", 0)
            self.budget = Budget(session.budget, spent=Amount(**spent), wall_ms=wall_ms)
        self.next_ordinal = counters.next_ordinal
        self.names = set(counters.names)
        self.numbers: dict[str, int] = {}  # the last one that was put behind a name which was taken
        self.open = 0
        self.closers = 0  # of `open`: those who wait for all others
        self.left = asyncio.Event()  # one of the others is done
        self.worked = False  # something was started since the session was last idle


class _Flight:
    """A run, its task, and who waits for it."""

    __slots__ = ("children", "done", "live", "task")

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self.task: asyncio.Task[None] | None = None
        self.done: asyncio.Future[RunOutcome] = asyncio.get_running_loop().create_future()
        self.children: set[str] = set()


class RunSupervisor:
    """The launcher of every run (port `Launcher`). One per process."""

    def __init__(self, parts: RunnerParts, on_idle: Callable[[str], None]) -> None:
        self._recorder: Recorder = parts.recorder
        self._masker: Masker = parts.masker
        self._runner = SubAgentRunner(parts, self)
        self._approvals = parts.approvals
        self._on_idle = on_idle
        self._flights: dict[str, _Flight] = {}
        self._sessions: OrderedDict[str, _Air] = OrderedDict()
        self._memories: set[str] = set()
        self._shared = SharedMemories(parts.load, self._children)
        self._ended: OrderedDict[str, tuple[Run, int | None]] = OrderedDict()
        self._endings: set[asyncio.Task[None]] = set()
        self._timeouts: set[asyncio.Task[tuple[str, ...]]] = set()
        self._stopping = False

    @property
    def handoffs(self) -> Handoffs:
        """The delegation core, for delegations without a parent run."""
        return self._runner.handoffs

    @property
    def equipment(self) -> Equipment:
        """Gives runs their tools."""
        return self._runner.equipment

    @property
    def in_flight(self) -> int:
        """How many runs are open."""
        return len(self._flights)

    # ── sessions ────────────────────────────────────────────────────────────────────────────────────────────────

    def knows(self, session_id: str) -> bool:
        """Whether the session's numbers are at hand: it has open work here, or had some not long ago."""
        return session_id in self._sessions

    def busy(self, session_id: str) -> bool:
        """Whether the session has open work."""
        air = self._sessions.get(session_id)
        return air is not None and air.open > 0

    def forget(self, session_id: str) -> None:
        """The session was changed or deleted: its numbers are read again, and so are memories that it shared."""
        self._shared.reread()
        if not self.busy(session_id):
            self._sessions.pop(session_id, None)

    @contextmanager
    def work(self, session: Session, counters: SessionCounters) -> Iterator[None]:
        """Keep a session open while a caller prepares or awaits work in it; afterwards it may become idle."""
        air = self._sessions.get(session.id)
        if air is None:
            air = self._sessions[session.id] = _Air(session, counters)
        self._sessions.move_to_end(session.id)
        air.session = session
        air.open += 1
        try:
            yield
        finally:
            self._leave(air)

    def _leave(self, air: _Air) -> None:
        air.open -= 1
        air.left.set()
        if air.open:
            return
        self.rest(air.session.id)
        self._on_idle(air.session.id)
        self._sessions.move_to_end(air.session.id)
        while len(self._sessions) > IDLE_SESSIONS and not next(iter(self._sessions.values())).open:
            evicted, _ = self._sessions.popitem(last=False)
            if self._approvals is not None:
                self._approvals.forget(evicted)  # read again with its numbers

    def rest(self, session_id: str) -> None:
        """State that a session is idle, if anything was started in it since it last was; its runs have all ended."""
        air = self._sessions[session_id]
        if air.worked:
            air.worked = False
            self._recorder.record(air.session, events.SESSION_IDLE, events.SessionIdle())

    @contextmanager
    def claim(self, memory_id: str) -> Iterator[None]:
        """Hold a memory for a run that is about to be launched. Raises `Conflict` when it is in use.

        The run that `launch` starts inside takes the claim over.
        """
        if memory_id in self._memories:
            raise Conflict(
                "the session has a run that is not finished: wait for it, cancel it, or use another session",
                code="session_busy",
            )
        self._memories.add(memory_id)
        try:
            yield
        finally:
            if not any(flight.live.run.memory_id == memory_id for flight in self._flights.values()):
                self._memories.discard(memory_id)

    def name(self, session: Session, wanted: str | None) -> str:
        """A readable name for a subagent, unique in the session."""
        air = self._sessions[session.id]
        base = _NOT_WORD.sub("_", self._masker.text(wanted or "")).strip("_")[:NAME_CHARS]
        candidate = base or f"sub_{secrets.token_hex(4)}"
        while candidate in air.names:
            air.numbers[base] = number = air.numbers.get(base, 1) + 1
            candidate = f"{base}_{number}" if base else f"sub_{secrets.token_hex(4)}"
        air.names.add(candidate)
        return candidate

    def budget(self, session_id: str) -> Budget | None:
        """The budget of a session that is kept open."""
        return self._sessions[session_id].budget

    # ── shared memories ─────────────────────────────────────────────────────────────────────────────────────────

    def seat(self, tenant: str, memory_id: str, parent: Run | None) -> Seat | None:
        """See `Launcher`."""
        lineage = self._upwards(parent.id if parent is not None else None)
        return self._shared.take(tenant, memory_id, lineage[0] if lineage else None, lineage)

    @contextmanager
    def erasing(self, session_id: str) -> Iterator[None]:
        """Around the closing of a session that is erased: whoever waits for a shared memory which a run of it holds
        goes on when that is recorded, and reads what is left."""
        ending = (flight.live for flight in self._flights.values() if flight.live.run.session_id == session_id)
        with self._shared.erasing([live.seat for live in ending if live.seat is not None]):
            yield

    def _upwards(self, run_id: str | None) -> list[str]:
        """A run and those above it."""
        found: list[str] = []
        while run_id is not None:
            found.append(run_id)
            flight = self._flights.get(run_id)
            run_id = flight.live.run.parent_id if flight is not None else None
        return found

    def lineage(self, run: Run) -> tuple[str, ...]:
        """See `Launcher`."""
        return tuple(reversed(self._upwards(run.parent_id)))

    def person(self, run: Run, asked: bool) -> None:
        """See `Launcher`."""
        for run_id in self._upwards(run.id):
            flight = self._flights.get(run_id)
            if flight is None:
                continue
            self.handoffs.person(flight.live.run.handoff_id, asked)
            if asked:
                flight.live.hold()
            else:
                flight.live.go_on(partial(self._time_out, run_id))

    def _children(self, run_id: str) -> Collection[str]:
        flight = self._flights.get(run_id)
        return flight.children if flight is not None else ()

    # ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────

    def launch(self, request: RunRequest) -> Run:
        """Record the run as queued and start its task. The session must be kept open by `work`."""
        if self._stopping:
            raise Unavailable("the service is stopping: start the run again in a moment", code="stopping")
        air = self._sessions[request.session.id]
        parent = self._flights.get(request.parent.id) if request.parent is not None else None
        if parent is not None and parent.live.control.requested is not None:
            raise Conflict("the run that delegates was told to end: it starts nothing more", code="parent_ending")
        above = parent.live.budget if parent is not None else air.budget
        if isinstance(request.above, Budget):
            above = request.above
        seat = request.seat if isinstance(request.seat, MemorySeat) else None
        run = _run(request, air.next_ordinal)
        air.next_ordinal += 1
        air.open += 1
        air.worked = True
        waiting = parent.live.control if parent is not None else None
        flight = self._flights[run.id] = _Flight(LiveRun(run, request, above=above, seat=seat, waiting=waiting))
        if seat is not None:
            self._shared.sit(seat, run.id)
        if parent is not None:
            parent.children.add(run.id)
        self._recorder.record(run, events.RUN_QUEUED, _queued(run, request))
        flight.task = asyncio.create_task(self._fly(flight, air), name=f"run {run.id}")
        flight.task.add_done_callback(lambda _: self._landed(flight, air))
        return run

    async def _fly(self, flight: _Flight, air: _Air) -> None:
        await self._runner.run(flight.live, lambda: self._time_out(flight.live.run.id))
        # Here and not in a callback of the task: that the session is idle is recorded in one breath with the run's end,
        # so that no crash comes between the two.
        self._landed(flight, air)

    def _landed(self, flight: _Flight, air: _Air) -> None:
        """The run is final. Called a second time when its task has ended, since one that never began ends so."""
        if flight.done.done():
            return
        live = flight.live
        self._runner.abandon(live)
        run = live.run
        self._flights.pop(run.id, None)
        self._ended[run.id] = (run, live.ended.seq if live.ended is not None else None)
        if len(self._ended) > ENDED_RUNS:
            self._ended.popitem(last=False)
        self._memories.discard(run.memory_id)
        live.give_back()
        assert live.outcome is not None  # abandon() saw to it
        parent = self._flights.get(run.parent_id or "")
        if parent is not None:
            parent.children.discard(run.id)
            parent.live.control.settle(live.outcome)
        flight.done.set_result(live.outcome)
        self._leave(air)

    async def wait(self, run_id: str) -> RunOutcome:
        """Wait until the run is final. Cancelling the waiter does not touch the run."""
        return await asyncio.shield(self._flight(run_id).done)

    def find(self, run_id: str) -> tuple[Run, int | None] | None:
        """A run that is open in this process or was not long ago, with the number of its final event."""
        flight = self._flights.get(run_id)
        return self._ended.get(run_id) if flight is None else (flight.live.run, None)

    def flying(self, run_id: str) -> bool:
        """Whether the run is open in this process."""
        return run_id in self._flights

    async def settled(self, run_id: str) -> RunOutcome:
        """Wait until the run is final and its final state is committed: then the outside may be told."""
        flight = self._flight(run_id)
        outcome = await asyncio.shield(flight.done)
        ended: Event | None = flight.live.ended
        if ended is not None:
            await self._recorder.committed(ended)
        return outcome

    def _flight(self, run_id: str) -> _Flight:
        flight = self._flights.get(run_id)
        if flight is None:
            raise NotFound(f"run {run_id} is not in the air")
        return flight

    async def cancel(self, run_id: str, *, status: RunStatus = RunStatus.CANCELLED) -> tuple[str, ...]:
        """End a run and its subtree, children first; returns the runs that this call ended, without those that came to
        another end first: one that failed may still have had its last word to say. What lies below a run
        whose time is over is cancelled: its own time is not.

        The work is done in a task of its own: a caller that goes away must not leave a tree half cancelled.
        """
        if run_id not in self._flights:
            return ()
        ordered = list(self._subtree(run_id))
        mine = []
        words = LastWords(_words_s(ordered[0].live, status))
        for flight in ordered:  # all are told first, so that no ending child sets its parent going again
            live = flight.live
            if live.control.requested is None and live.outcome is None and not live.ending:  # else its end is decided
                below = flight is not ordered[0] and status is RunStatus.TIMED_OUT
                live.control.requested = RunStatus.CANCELLED if below else status
                live.control.share(words, live.run.depth - ordered[0].live.run.depth)
                mine.append(flight)
                if live.work is not None:
                    live.work.calls.break_off()
        ending = asyncio.create_task(self._end_all(ordered, mine), name=f"cancel {run_id}")
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        await asyncio.shield(ending)
        return tuple(f.live.run.id for f in mine if f.done.result().status is f.live.control.requested)

    @staticmethod
    async def _end_all(ordered: list[_Flight], mine: list[_Flight]) -> None:
        """Cancel each once its children have ended, those of different parents side by side; a second cancel would
        break off its clean-up."""
        told, below = set(mine), dict[str, list[asyncio.Future[RunOutcome]]]()
        for flight in ordered:
            below.setdefault(flight.live.run.parent_id or "", []).append(flight.done)

        async def end(flight: _Flight) -> None:
            if children := below.get(flight.live.run.id):
                await asyncio.wait(children)
            if flight in told and flight.task is not None and not flight.live.ending:
                flight.task.cancel()  # one that noticed by itself what it was told may be ending by now
            await asyncio.wait([flight.done])

        await asyncio.gather(*(end(flight) for flight in reversed(ordered)))

    def _subtree(self, run_id: str) -> Iterator[_Flight]:
        """The run and everything below it, parents first; however deep that is."""
        todo = [run_id]
        while todo:
            flight = self._flights.get(todo.pop())
            if flight is not None:
                yield flight
                todo.extend(sorted(flight.children, reverse=True))

    def _time_out(self, run_id: str) -> None:
        ending = asyncio.create_task(self.cancel(run_id, status=RunStatus.TIMED_OUT), name=f"time out {run_id}")
        self._timeouts.add(ending)  # or it may be collected while it runs
        ending.add_done_callback(self._timeouts.discard)

    async def cancel_session(self, session_id: str) -> tuple[str, ...]:
        """End everything that is in the air in a session, also a delegation that pauses between two attempts."""
        self.handoffs.stop(session_id)
        ended: list[str] = []
        while roots := [
            f.live.run.id
            for f in self._flights.values()
            if f.live.run.session_id == session_id and f.live.run.parent_id not in self._flights
        ]:
            for run_id in roots:
                ended.extend(await self.cancel(run_id))
        return tuple(ended)

    async def settle(self, session_id: str) -> None:
        """End everything in a session that the caller keeps open by `work`, and wait until everybody else who does so
        is done; several callers do not wait for each other. Afterwards the session has been said to be idle."""
        air = self._sessions[session_id]
        air.closers += 1
        try:
            await self.cancel_session(session_id)
            while air.open > air.closers:
                air.left.clear()
                await air.left.wait()
                await self.cancel_session(session_id)
        finally:
            air.closers -= 1
        self.rest(session_id)

    async def close(self, grace_s: float) -> None:
        """Stop launching, let runs finish within the grace, interrupt the rest."""
        self._stopping = True
        waiting = [flight.done for flight in self._flights.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=grace_s)
        roots = [f.live.run.id for f in self._flights.values() if f.live.run.parent_id not in self._flights]
        ends = [asyncio.create_task(self.cancel(run_id, status=RunStatus.INTERRUPTED)) for run_id in roots]
        if ends:
            await asyncio.wait(ends, timeout=INTERRUPT_S)
        self.handoffs.stop(status=HandoffStatus.INTERRUPTED)  # those that pause between two attempts
        if self._flights:  # a tool that swallows its cancellation must not keep the process
            log.error("these runs do not end and are left behind: %s", ", ".join(self._flights))


def _words_s(live: LiveRun, status: RunStatus) -> float:
    """How long hooks are told of a tree that ends now."""
    return min(SHUTDOWN_WORDS_S if status is RunStatus.INTERRUPTED else LAST_WORD_S, half_left(live.control.above))


def _run(request: RunRequest, ordinal: int) -> Run:
    parent = request.parent
    memory = request.memory
    return Run(
        id=new_id("run"),
        session_id=request.session.id,
        tenant=request.session.tenant,
        memory_id=request.memory_id or new_id("mem"),
        turn=request.seat.turn if request.seat is not None else memory.next_turn if memory else 0,
        ordinal=ordinal,
        depth=request.depth,
        path=(*(parent.path if parent else ()), ordinal),
        agent=request.definition.name,
        name=request.name,
        parent_id=parent.id if parent else None,
        parent_call_id=request.parent_call_id,
        handoff_id=request.handoff_id,
    )


def _queued(run: Run, request: RunRequest) -> events.RunQueued:
    payload = events.RunQueued(
        memory_id=run.memory_id,
        turn=run.turn,
        handoff_id=run.handoff_id,
        parent_call_id=run.parent_call_id,
        attempt=run.attempt,
        epoch=run.epoch,
        input=request.task,
        max_steps=request.max_steps,
        model=request.model,
        deadline_ms=request.deadline_ms or None,
        timeout_ms=request.timeout_ms or None,
    )
    if request.fallback is not None:
        payload["fallback"] = events.FallbackInfo(kind=request.fallback.kind, target=request.fallback.target)
    version = request.definition.source.version
    if version is not None:
        payload["agent_version"] = version
    if request.definition.hooks:
        payload["agent_hooks"] = len(request.definition.hooks)
    return payload
