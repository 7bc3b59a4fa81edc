"""What the supervisor keeps of what is in the air: of each session, of each run; and a run as it is asked for.

Begins and ends nothing (`supervisor.py`).
"""

import asyncio
from typing import NamedTuple

from app.agent.admission import Slots
from app.agent.budget import Amount, Budget
from app.agent.ids import new_id
from app.agent.live_run import LiveRun
from app.agent.payloads import FallbackInfo, RunQueued
from app.agent.run_ports import SessionCounters
from app.agent.runs import Run, RunOutcome, RunRequest, Session


class Air:
    """One session's share of what is in the air: its numbers, names and open work."""

    __slots__ = ("budget", "closers", "left", "names", "next_ordinal", "numbers", "open", "session", "slots", "worked")

    def __init__(self, session: Session, counters: SessionCounters, children: int) -> None:
        self.session = session
        self.slots = Slots(children)
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


class Flight:
    """A run, its task, and who waits for it. `heir`: the run that it ends with: the one that has started it, or for a
    background task, when that has ended, the nearest one above that is open; None for none. `children`: those that end
    with this one. `above`: the runs above it, nearest first, which may have ended long before it. `first`: the number
    of its first event, 0 when another process had begun it."""

    __slots__ = ("above", "children", "done", "first", "heir", "live", "task")

    def __init__(self, live: LiveRun, heir: str | None, above: tuple[str, ...]) -> None:
        self.live = live
        self.above = above
        self.heir = heir
        self.task: asyncio.Task[None] | None = None
        self.done: asyncio.Future[RunOutcome] = asyncio.get_running_loop().create_future()
        self.children: set[str] = set()
        self.first = 0


class Found(NamedTuple):
    """A run that is in the air or was not long ago, and the numbers of its first event (0: not known here) and of its
    final one (None: it is open, or is left to the next process)."""

    run: Run
    first: int
    ended: int | None


def run_of(request: RunRequest, ordinal: int) -> Run:
    """A run as it is asked for; `ordinal`: its number in its session."""
    parent = request.parent
    memory = request.memory
    return Run(
        id=request.id or new_id("run"),
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


def queued_payload(run: Run, request: RunRequest) -> RunQueued:
    """What `run.queued` says."""
    payload = RunQueued(
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
        payload["fallback"] = FallbackInfo(kind=request.fallback.kind, target=request.fallback.target)
    version = request.definition.source.version
    if version is not None:
        payload["agent_version"] = version
    if request.background:
        payload["background"] = True
    if request.given is not None:
        payload["given"] = dict(request.given)
    if request.definition.hooks:
        payload["agent_hooks"] = len(request.definition.hooks)
    return payload
