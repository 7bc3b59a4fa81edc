"""RunSupervisor: which runs are in the air, who waits for them, who dies with whom.

Owns the asyncio task of every run. Knows neither HTTP nor the store.
"""

import asyncio
import contextlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from app.agent import events
from app.agent.admission import Slots
from app.agent.aloft import Aloft
from app.agent.budget import Budget
from app.agent.control import half_left
from app.agent.equipment import Equipment
from app.agent.errors import Conflict, NotFound, Unavailable
from app.agent.events import Event
from app.agent.flights import Air, Flight, Found, queued_payload, run_of
from app.agent.handoff import Handoffs
from app.agent.ids import readable
from app.agent.interruption import LAST_WORD_S, LastWords
from app.agent.live_run import LiveRun, RunnerParts
from app.agent.messages import Usage
from app.agent.notices import Notices
from app.agent.open_handoff import OpenHandoff
from app.agent.open_handoffs import ENDING_S
from app.agent.patience import STOPPING
from app.agent.payloads import RunWaiting, SessionIdle
from app.agent.ports import Masker, Recorder
from app.agent.run_ports import SessionCounters
from app.agent.runner import SubAgentRunner
from app.agent.runs import HandoffStatus, LeftCall, Run, RunOutcome, RunRequest, RunStatus, Seat, Session
from app.agent.shared_memories import MemorySeat, SharedMemories

log = logging.getLogger(__name__)

SHUTDOWN_WORDS_S = 1.5  # for hooks to be told of it, beside that grace
INTERRUPT_S = 8.0  # for runs that are interrupted to end: a tool may be deaf, and is waited for (spec 7.4)
IDLE_SESSIONS = 1_000  # whose numbers are kept at hand: some KiB each, more where agents come with the session
PAUSE_SHARE, PAUSE_S = 0.25, 2.0  # of a grace, for steps that were begun to end; at most so long
LOOK_S = 0.05  # between two looks at who still works
QUEUED_TURNS = 100  # of one session
Ending = Callable[[Run, RunStatus], Usage]  # what those used that were closed


class RunSupervisor:
    """The launcher of every run (port `Launcher`). One per process."""

    def __init__(self, parts: RunnerParts, on_idle: Callable[[str], None]) -> None:
        self._recorder: Recorder = parts.recorder
        self._masker: Masker = parts.masker
        self._aloft = Aloft()
        self.notices = Notices(parts.recorder, self._aloft.heir)
        self._runner = SubAgentRunner(parts, self, self.notices)
        self._approvals = parts.approvals
        self._children_at_work = parts.concurrent_children  # in each session
        self._on_idle = on_idle
        self._flights = self._aloft.open
        self._sessions: OrderedDict[str, Air] = OrderedDict()
        self._shared = SharedMemories(parts.load, self._aloft.waited_for)
        self._endings: set[asyncio.Task[None]] = set()
        self._timeouts: set[asyncio.Task[tuple[str, ...]]] = set()
        self._stopping = self._over = False
        self.drains = False
        self._taken_up: Callable[[Run], Usage] | None = None
        self._settled: Callable[[str], None] | None = None
        self._to_come: Callable[[Run], Sequence[str]] = lambda run: ()
        self._unclaimed: Callable[[Run, str, RunStatus], Usage] | None = None
        self.slots = Slots(parts.concurrent_runs)
        self._drop: Ending | None = None
        self._left_seats: dict[str, MemorySeat] = {}  # of runs of another process, by their ids

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

    @property
    def queued(self) -> int:
        """How many of them have not begun: they wait for a memory or for places."""
        return sum(not flight.live.timing for flight in self._flights.values())

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
            air = self._sessions[session.id] = Air(session, counters, self._children_at_work)
        self._sessions.move_to_end(session.id)
        air.session = session
        air.open += 1
        try:
            yield
        finally:
            self._leave(air)

    def _leave(self, air: Air) -> None:
        air.open -= 1
        air.left.set()
        if air.open:
            return
        self.rest(air.session.id)
        if self._settled is not None:
            self._settled(air.session.id)
        air.session = _slim(air.session)
        self._on_idle(air.session.id)
        self._sessions.move_to_end(air.session.id)
        while len(self._sessions) > IDLE_SESSIONS:
            evicted = next((session_id for session_id, other in self._sessions.items() if not other.open), None)
            if evicted is None:
                return  # all are worked in
            del self._sessions[evicted]
            if self._approvals is not None:
                self._approvals.forget(evicted)  # read again with its numbers
            self.notices.forget(evicted)

    def rest(self, session_id: str) -> None:
        """State that a session is idle, if anything was started in it since it last was; its runs have all ended."""
        air = self._sessions[session_id]
        if air.worked:
            air.worked = False
            self._recorder.record(air.session, events.SESSION_IDLE, SessionIdle())

    @contextmanager
    def keep(self, session: Session) -> Iterator[None]:
        """See `Launcher`; the session is one that has open work."""
        air = self._sessions[session.id]
        air.open += 1
        try:
            yield
        finally:
            self._leave(air)

    def budget_of(self, run_id: str) -> Budget | None:
        """What bounds an open run."""
        flight = self._flights.get(run_id)
        return flight.live.budget if flight is not None else None

    def request_of(self, run_id: str) -> RunRequest | None:
        """What an open run was started with."""
        flight = self._flights.get(run_id)
        return flight.live.request if flight is not None else None

    def on_left(
        self,
        close: Ending,
        taken_up: Callable[[Run], Usage],
        drop: Ending,
        settled: Callable[[str], None],
        to_come: Callable[[Run], Sequence[str]],
        unclaimed: Callable[[Run, str, RunStatus], Usage],
    ) -> None:
        """`taken_up` is called when a run goes on that another process had begun, and gives what those below it have
        used that do not. `close` before its end: what was begun below it, and nobody has taken up again, ends with it.
        `drop` when it is not gone on with after all. `settled` when nothing of a session is open any more. `to_come`:
        the tasks below a run that are about to go on. `unclaimed` when a call has its result: what was begun for it,
        and it has not gone on with, ends."""
        self._runner.on_left = close
        self._taken_up = taken_up
        self._drop = drop
        self._settled = settled
        self._to_come = to_come
        self._unclaimed = unclaimed

    def drop(self, run: Run, status: RunStatus) -> None:
        """See `Launcher`."""
        if self._drop is None:
            return
        used, above = self._drop(run, status), self._aloft.heir(run.parent_id or "")
        if above is not None:
            control = self._flights[above].live.control
            control.usage_below = control.usage_below + used

    def expect_answers(self, calls: Iterable[LeftCall]) -> None:
        """Calls of runs that are about to go on: their questions are put again."""
        for question in (question for call in calls for question in call.open_questions):
            if self._approvals is not None:
                self._approvals.expect(question.approval_id)

    def forget_answers(self, calls: Iterable[LeftCall]) -> None:
        """Those runs do not go on, and their questions are withdrawn."""
        for question in (question for call in calls for question in call.open_questions):
            if self._approvals is not None:
                self._approvals.unexpect(question.approval_id)

    def worked(self, session_id: str, has: bool = True) -> None:
        """A session that is kept open had open runs."""
        self._sessions[session_id].worked = has

    def turn(self, session: Session, *, fresh: bool = False, queue: bool = False, again: bool = False) -> MemorySeat:
        """A place for a turn of the session at its lead agent's memory. Raises `Conflict` when that is in use, with
        `queue` only when too many wait. `fresh`: the session is a new one; `again`: the turn has its number already."""
        waiting = self._shared.length(session.tenant, session.memory_id)
        if waiting and not queue:
            raise Conflict(
                "the session has a run that is not finished: wait for it, cancel it, use another session, or send "
                "on_busy: enqueue or interrupt",
                code="session_busy",
            )
        if waiting > QUEUED_TURNS and not again:
            raise Conflict(
                f"{QUEUED_TURNS} turns of this session wait already: wait until some of them are done",
                code="queue_full",
            )
        seat = self._shared.take(session.tenant, session.memory_id, None, (), fresh=fresh, again=again)
        assert seat is not None  # nobody waits meanwhile
        return seat

    def name(self, session: Session, wanted: str | None) -> str:
        """A readable name for a subagent, unique in the session."""
        air = self._sessions[session.id]
        base = readable(self._masker.text(wanted or ""))
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

    def seat(
        self, tenant: str, memory_id: str, parent: Run | None, *, alone: bool = False, again: bool = False
    ) -> Seat | None:
        """See `Launcher`."""
        if alone and self._shared.length(tenant, memory_id):
            return None
        lineage = self._aloft.waiting(parent.id if parent is not None else None)
        return self._shared.take(tenant, memory_id, lineage[0] if lineage else None, lineage, again=again)

    def keep_seat(self, run: Run, *, waited_for: bool) -> None:
        """Keep a place for a run that another process had begun, before those that come later. It is given to the run
        by `left_seat`, or back by `release_seat`. `waited_for`: by the run above it."""
        above = run.parent_id if waited_for else None
        seat = self._shared.take(run.tenant, run.memory_id, above, (), again=True)
        assert seat is not None  # of no lineage
        self._shared.sit(seat, run.id)
        self._left_seats[run.id] = seat

    def left_seat(self, run_id: str) -> Seat | None:
        """See `Launcher`."""
        return self._left_seats.pop(run_id, None)

    def release_seat(self, run_id: str) -> None:
        """A run does not go on: whoever is behind it does."""
        seat = self._left_seats.pop(run_id, None)
        if seat is not None:
            seat.leave()

    def answered(self, run: Run, call_id: str) -> None:
        """See `Launcher`."""
        flight = self._flights.get(run.id)
        if self._unclaimed is None or flight is None:
            return
        control = flight.live.control
        used = self._unclaimed(run, call_id, control.requested or RunStatus.INTERRUPTED)
        control.usage_below = control.usage_below + used

    @contextmanager
    def erasing(self, session_id: str) -> Iterator[None]:
        """Around the closing of a session that is erased: whoever waits for a shared memory which a run of it holds
        goes on when that is recorded, and reads what is left."""
        ending = (flight.live for flight in self._flights.values() if flight.live.run.session_id == session_id)
        with self._shared.erasing([live.seat for live in ending if live.seat is not None]):
            yield

    def is_open(self, run_id: str) -> bool:
        """See `Launcher`."""
        flight = self._flights.get(run_id)
        return flight is not None and flight.live.outcome is None

    def lineage(self, run: Run) -> tuple[str, ...]:
        """See `Launcher`."""
        return tuple(reversed(self._aloft.upwards(run.id)[1:]))

    def person(self, run: Run, asked: bool) -> None:
        """See `Launcher`. Who does not wait for the run has a clock that goes on."""
        for run_id in self._aloft.waiting(run.id):
            flight = self._flights[run_id]
            self.handoffs.open.person(flight.live.run.handoff_id, asked)
            if asked:
                flight.live.hold()
            else:
                flight.live.go_on(partial(self._time_out, run_id))

    # ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────

    def launch(self, request: RunRequest) -> Run:
        """Record the run as queued and start its task. The session must be kept open by `work`."""
        # within the grace what is under way may go on, and begin what it needs for that
        under_way = request.depth > 0 or (self.drains and request.progress is not None)
        if self._over or (self._stopping and not under_way):
            raise Unavailable("the service is stopping: start the run again in a moment", code=STOPPING)
        air = self._sessions[request.session.id]
        parent = self._flights.get(request.parent.id) if request.parent is not None else None
        if parent is not None and parent.live.control.requested is not None and not request.detached:
            raise Conflict("the run that delegates was told to end: it starts nothing more", code="parent_ending")
        above = parent.live.budget if parent is not None else air.budget
        if isinstance(request.above, Budget):
            above = request.above
        seat = request.seat if isinstance(request.seat, MemorySeat) else None
        progress = request.progress
        run = run_of(request, air.next_ordinal) if progress is None else progress.run
        air.next_ordinal = max(air.next_ordinal, run.ordinal + 1)
        air.open += 1
        air.worked = True
        waiting = parent.live.control if parent is not None and not request.background else None
        slots = (air.slots, self.slots) if run.depth else (self.slots,)
        heir = parent.live.run.id if parent is not None else None
        if request.background:
            heir = self.handoffs.open.owner(request.handoff_id or "")
        live = LiveRun(run, request, above=above, seat=seat, waiting=waiting, slots=slots)
        lineage = self.handoffs.open.above(request.handoff_id or "") or tuple(self._aloft.upwards(run.parent_id))
        flight = Flight(live, heir, lineage)
        self._flights[run.id] = flight
        if seat is not None:
            self._shared.sit(seat, run.id)
        if heir is not None and heir in self._flights:
            self._flights[heir].children.add(run.id)
        if progress is None:
            flight.first = self._recorder.record(run, events.RUN_QUEUED, queued_payload(run, request)).seq
        else:
            flight.live.control.usage_below = progress.usage_below
        flight.task = asyncio.create_task(self._fly(flight, air), name=f"run {run.id}")
        flight.task.add_done_callback(lambda _: self._landed(flight, air))
        if progress is not None and self._taken_up is not None:
            lost = self._taken_up(run)
            live.control.usage_below = live.control.usage_below + lost
        return run

    async def _fly(self, flight: Flight, air: Air) -> None:
        await self._runner.run(flight.live, lambda: self._time_out(flight.live.run.id))
        # Here and not in a callback of the task: that the session is idle is recorded in one breath with the run's end,
        # so that no crash comes between the two.
        self._landed(flight, air)

    def _landed(self, flight: Flight, air: Air) -> None:
        """The run is final. Called a second time when its task has ended, since one that never began ends so."""
        if flight.done.done():
            return
        live = flight.live
        self._runner.abandon(live)
        ended = live.ended if live.ended is not None and live.ended.ts else None  # else the next process goes on
        self._aloft.land(flight, None if ended is None else ended.seq)
        live.give_back()
        assert live.outcome is not None  # abandon() saw to it
        heir = self._flights.get(flight.heir or "")
        if heir is not None:
            heir.children.discard(live.run.id)
        above = next((run_id for run_id in flight.above if run_id in self._flights), None)
        if above is not None:
            self._flights[above].live.control.settle(live.outcome)
        self._hand_on(flight, heir)
        flight.done.set_result(live.outcome)
        self._leave(air)

    def _hand_on(self, flight: Flight, heir: Flight | None) -> None:
        """What the run has left open goes on under the nearest one above it that is open."""
        run_id = heir.live.run.id if heir is not None else None
        for child in flight.children:
            self._flights[child].heir = run_id
            if heir is not None:
                heir.children.add(child)
        self.handoffs.open.adopt(flight.live.run.id, run_id)

    def open_tasks(self, run: Run) -> Sequence[str]:
        """See `Launcher`."""
        begun = (task_id for task_id, above in self.handoffs.open.begun_in(run.session_id) if run.id in above)
        return [*begun, *self._to_come(run)]

    async def reap(self, run: Run) -> None:
        """See `Launcher`."""
        flight, tasks = self._flights[run.id], self.handoffs.open.owned([run.id])
        interrupted = flight.live.control.requested is RunStatus.INTERRUPTED
        for handoff in tasks:
            handoff.stop(HandoffStatus.INTERRUPTED if interrupted else HandoffStatus.CANCELLED)
        status = RunStatus.INTERRUPTED if interrupted else RunStatus.CANCELLED
        await asyncio.gather(*(self.cancel(child, status=status) for child in sorted(flight.children)))
        await asyncio.gather(*(handoff.ended_within(INTERRUPT_S) for handoff in tasks))

    async def wait(self, run_id: str) -> RunOutcome:
        """Wait until the run is final. Cancelling the waiter does not touch the run."""
        return await asyncio.shield(self._flight(run_id).done)

    def find(self, run_id: str) -> Found | None:
        """A run that is open in this process or was not long ago."""
        return self._aloft.find(run_id)

    def flying(self, run_id: str) -> bool:
        """Whether the run is open in this process."""
        return run_id in self._flights

    async def settled(self, run_id: str) -> RunOutcome:
        """Wait until the run is final and its final state is committed: then the outside may be told. Raises
        `Unavailable` when it is left to the next process."""
        flight = self._flight(run_id)
        outcome = await asyncio.shield(flight.done)
        ended: Event | None = flight.live.ended
        if ended is not None and not ended.ts:  # nothing is recorded any more
            raise Unavailable("the service is stopping: the run goes on in the next process", code=STOPPING)
        if ended is not None:
            await self._recorder.committed(ended)
        return outcome

    def _flight(self, run_id: str) -> Flight:
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
        ordered = list(self._aloft.subtree(run_id))
        tasks = self.handoffs.open.owned([flight.live.run.id for flight in ordered])
        for handoff in tasks:  # they begin nothing more, also where no run of them is under way
            handoff.stop(HandoffStatus.INTERRUPTED if status is RunStatus.INTERRUPTED else HandoffStatus.CANCELLED)
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
        ending = asyncio.create_task(self._end_all(ordered, mine, tasks), name=f"cancel {run_id}")
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        await asyncio.shield(ending)
        return tuple(f.live.run.id for f in mine if f.done.result().status is f.live.control.requested)

    @staticmethod
    async def _end_all(ordered: list[Flight], mine: list[Flight], tasks: Sequence[OpenHandoff]) -> None:
        """Cancel each once its children and its tasks have ended, those of different parents side by side; a second
        cancel would break off its clean-up."""
        told, below = set(mine), dict[str, list[asyncio.Future[Any]]]()
        for flight in ordered:
            below.setdefault(flight.heir or "", []).append(flight.done)
        for handoff in tasks:
            below.setdefault(handoff.owner or "", []).append(asyncio.ensure_future(handoff.ended_within(INTERRUPT_S)))

        async def end(flight: Flight) -> None:
            if children := below.get(flight.live.run.id):
                await asyncio.wait(children)
            if flight in told and flight.task is not None and not flight.live.ending:
                flight.task.cancel()  # one that noticed by itself what it was told may be ending by now
            await asyncio.wait([flight.done])

        await asyncio.gather(*(end(flight) for flight in reversed(ordered)))

    def _time_out(self, run_id: str) -> None:
        ending = asyncio.create_task(self.cancel(run_id, status=RunStatus.TIMED_OUT), name=f"time out {run_id}")
        self._timeouts.add(ending)  # or it may be collected while it runs
        ending.add_done_callback(self._timeouts.discard)

    async def cancel_session(self, session_id: str) -> tuple[str, ...]:
        """End everything that is in the air in a session, also a delegation that pauses between two attempts."""
        self.handoffs.open.stop(session_id)
        ended: list[str] = []
        while roots := self._aloft.roots(session_id):
            # all at once: a turn that waits must not begin when the one ahead of it has ended
            for ids in await asyncio.gather(*(self.cancel(run_id) for run_id in roots)):
                ended.extend(ids)
        await self.handoffs.open.settled(ENDING_S, session_id)
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
        """Stop launching, let runs finish within the grace; the rest is interrupted or, where it `drains`, left as it
        is for the next process."""
        self._stopping = True
        if self._approvals is not None:
            self._approvals.expect_no_more()
        waiting = [flight.done for flight in self._flights.values()]
        if self.drains:
            if waiting or self.handoffs.open.in_flight:
                pause_s = min(PAUSE_S, grace_s * PAUSE_SHARE)
                await self._at_rest(grace_s - pause_s)
                self._recorder.pause()  # a step that was begun may end, none begins
                await self._at_rest(pause_s)
            self._drain()  # also when nothing is in the air: something may be about to be taken up
        elif waiting:
            await asyncio.wait(waiting, timeout=grace_s)
        self._over = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(INTERRUPT_S):
                # again: one that completes meanwhile leaves its tasks to nobody
                while roots := self._aloft.roots():
                    ends = [self.cancel(run_id, status=RunStatus.INTERRUPTED) for run_id in roots]
                    await asyncio.gather(*ends)
        self.handoffs.open.stop(status=HandoffStatus.INTERRUPTED)  # those that pause between two attempts
        await self.handoffs.open.settled(INTERRUPT_S)
        if self._flights:  # a tool that swallows its cancellation must not keep the process
            log.error("these runs do not end and are left behind: %s", ", ".join(self._flights))

    async def _at_rest(self, seconds: float) -> None:
        """Wait that long, or until every open run only waits: for a person, for its turn, or for runs that do."""
        loop, rested = asyncio.get_running_loop(), False
        until = loop.time() + seconds
        while (left := until - loop.time()) > 0:
            working = [flight.done for flight in self._flights.values() if not flight.live.at_rest]
            if rested and not working:
                return
            rested = not working  # twice: a run whose child has just ended is about to go on
            if self._flights:
                await asyncio.wait([f.done for f in self._flights.values()], timeout=min(left, LOOK_S))

    def _drain(self) -> None:
        """State that the open runs wait for the next process, and state nothing more: what is broken off now is neither
        a result nor an end."""
        for flight in self._flights.values():
            live = flight.live
            if live.stated and live.outcome is None:
                self._recorder.record(live.run, events.RUN_WAITING, RunWaiting(reason="drain"))
            live.hooks = None  # the subagent has not stopped
        self._recorder.seal()


def _slim(session: Session) -> Session:
    """Who an idle session is. What it was made with may be megabytes, and is brought along by the next work in it."""
    return Session(
        id=session.id,
        tenant=session.tenant,
        memory_id=session.memory_id,
        agent=session.agent,
        created_at=session.created_at,
    )


def _words_s(live: LiveRun, status: RunStatus) -> float:
    """How long hooks are told of a tree that ends now."""
    return min(SHUTDOWN_WORDS_S if status is RunStatus.INTERRUPTED else LAST_WORD_S, half_left(live.control.above))
