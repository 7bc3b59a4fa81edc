"""One handoff while it goes on: its clock, its state, what its two events say, and what another process left of it.

Knows neither who carries it out nor how a run is driven.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from app.agent.budget import NOTHING, ONE_DELEGATION, Budget, Refusal, Reservation
from app.agent.governed import HandoffEnded, HandoffStarted
from app.agent.orders import BUDGET_CODE, Delegator, HandoffOrder, HandoffResult, TaskState
from app.agent.payloads import ErrorInfo, FallbackInfo
from app.agent.runs import Failure, Fallback, HandoffStatus, Progress, ReusePlan, RunOutcome

FAULT = Failure(code="internal_error", message="internal error; the server's log has the details")
_STOPPED = {
    HandoffStatus.CANCELLED: Failure(code="cancelled", message="the handoff was cancelled"),
    HandoffStatus.INTERRUPTED: Failure(code="interrupted", message="the service stopped between two attempts"),
}


class HandoffClock:
    """The time of one handoff, over all its attempts and its fallback: it stands still while a person is asked in it or
    below it (spec 4.4, 8.2)."""

    __slots__ = ("_alarm", "_held", "_since", "_stood", "_timer")

    def __init__(self) -> None:
        self._held = 0
        self._since = 0.0
        self._stood = 0.0
        self._alarm: tuple[float, Callable[[], None]] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def time(self) -> float:
        """Seconds, without those for which it stood still."""
        return (self._since if self._held else asyncio.get_running_loop().time()) - self._stood

    def hold(self) -> None:
        """A person is asked; several may be at a time."""
        if not self._held:
            self._since = asyncio.get_running_loop().time()
            self._stop()
        self._held += 1

    def go_on(self) -> None:
        """One of these questions is settled."""
        self._held -= 1
        if not self._held:
            self._stood += asyncio.get_running_loop().time() - self._since
            self._set()

    @contextmanager
    def alarm(self, at: float | None, ring: Callable[[], None]) -> Iterator[None]:
        """Call `ring` when this clock shows `at`, if that comes while this is open; None: never."""
        self._alarm = None if at is None else (at, ring)
        if not self._held:
            self._set()
        try:
            yield
        finally:
            self._stop()
            self._alarm = None

    def _set(self) -> None:
        if self._alarm is not None:
            at, ring = self._alarm
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - self.time()), ring)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftHandoff:
    """A handoff that another process had begun: its row, its runs in order, and how far the one that is open had
    come; without one the last has ended: `passing` of something that may be over. `spent`: what they have used with
    those below them, by the kinds of a budget, `wall_ms` among them."""

    row: Mapping[str, Any]
    runs: Sequence[Mapping[str, Any]]
    progress: Progress | None
    passing: bool = False
    spent: Mapping[str, int] = field(default_factory=dict)

    @property
    def attempts(self) -> int:
        """How often it was tried."""
        return len(self.runs)


@dataclass(slots=True)
class OpenHandoff:
    """One handoff while it goes on. `counted`: it was taken out of the budget as a delegation; `until`: when it must
    have ended, on its own `clock`; `ending`: it was `stopped`, which also counts while no run of it is under way.
    `background`: nobody waits for it; `owner`: the run that it ends with then, None for none; `above`: the runs that it
    lies below, nearest first. `left`: another process had begun it, and its last run is gone on with first."""

    id: str
    name: str
    by: Delegator
    order: HandoffOrder
    began: float
    started: Callable[[str, str], None] | None
    plan: ReusePlan | None
    runs: list[str] = field(default_factory=list)
    attempts: int = 0
    fallback: Fallback | None = None
    counted: bool = False
    delegation: Reservation | None = None
    budget: Budget | None = None
    until: float | None = None
    clock: HandoffClock = field(default_factory=HandoffClock)
    stopped: HandoffStatus | None = None
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    final: HandoffResult | None = None
    background: bool = False
    owner: str | None = None
    left: LeftHandoff | None = None
    above: tuple[str, ...] = ()

    def state(self) -> TaskState:
        """What somebody who asks is told."""
        final, agent = self.final, self.order.definition.name
        if final is None:
            return TaskState(task_id=self.id, agent=agent, name=self.name, status=HandoffStatus.RUNNING)
        error = None if final.ok or final.error is None else final.error.message
        result = final.output if final.ok else None
        return TaskState(task_id=self.id, agent=agent, name=self.name, status=final.status, result=result, error=error)

    def stop(self, status: HandoffStatus) -> None:
        """Let it begin nothing further and end with this status (cancelled, interrupted)."""
        self.stopped = self.stopped or status
        self.ending.set()

    def cut_short(self) -> HandoffResult:
        """The result of one that was stopped while no run of it was under way."""
        status = self.stopped or HandoffStatus.CANCELLED
        return self.result(status, _STOPPED[status])

    async def ended(self) -> HandoffResult:
        """Wait for its end."""
        await self.done.wait()
        assert self.final is not None
        return self.final

    async def ended_within(self, seconds: float) -> bool:
        """Wait for its end that long; whether it has come."""
        try:
            async with asyncio.timeout(seconds):
                return await self.done.wait()
        except TimeoutError:
            return False

    async def ends_within(self, seconds: float) -> bool:
        """Wait that long, unless somebody wants it to end; whether somebody does."""
        try:
            async with asyncio.timeout(seconds):
                return await self.ending.wait()
        except TimeoutError:
            return False

    def reserve(self) -> Failure | None:
        """Keep one delegation of the budget, once however many runs there are; why that cannot be done."""
        budget = self.by.budget
        if self.counted or budget is None:
            return None
        got = budget.reserve(ONE_DELEGATION)
        if isinstance(got, Refusal):
            return Failure(code=BUDGET_CODE, message=got.error().message)
        self.delegation = got
        return None

    def settle(self, *, counts: bool) -> None:
        """Spend what was kept, or give it back when nothing begins."""
        if self.delegation is not None:
            self.delegation.settle(ONE_DELEGATION if counts else NOTHING)
            self.delegation = None
            self.counted = counts

    def result(self, status: HandoffStatus, error: Failure | None, outcome: RunOutcome | None = None) -> HandoffResult:
        """A result as things stand."""
        return HandoffResult(
            handoff_id=self.id,
            name=self.name,
            status=status,
            outcome=outcome,
            error=error,
            run_ids=tuple(self.runs),
            attempts=self.attempts,
            fallback=self.fallback,
        )


def started_payload(handoff: OpenHandoff) -> HandoffStarted:
    """What `handoff.start` says."""
    by, order, plan = handoff.by, handoff.order, handoff.plan
    payload = HandoffStarted(
        handoff_id=handoff.id,
        call_id=order.call_id,
        tool=order.tool,
        subagent=order.definition.name,
        name=handoff.name,
        depth=by.child_depth,
        session_mode=order.definition.session_mode.value,
        surface=order.surface,
        background=handoff.background,
        input=order.input,
        purpose=order.purpose,
    )
    if plan is not None and plan.resumes is not None:
        payload["resumes"] = plan.resumes
    elif plan is not None:
        payload["session_scope"] = plan.scope.value
        if plan.note is not None:
            payload["scope_note"] = plan.note
    if handoff.background and order.detached:
        payload["detached"] = True
    if order.max_steps is not None:
        payload["max_steps"] = order.max_steps
    if order.session_key is not None:
        payload["session_key"] = order.session_key
    if order.given is not None:
        payload["given"] = dict(order.given)
    if handoff.background and order.inherited:
        payload["inherited"] = order.inherited
    return payload


def ended_payload(handoff: OpenHandoff, result: HandoffResult) -> HandoffEnded:
    """What `handoff.end` says."""
    by, order, error = handoff.by, handoff.order, result.error
    payload = HandoffEnded(
        handoff_id=result.handoff_id,
        call_id=order.call_id,
        tool=order.tool,
        subagent=order.definition.name,
        name=result.name,
        status=result.status.value,
        depth=by.child_depth,
        session_mode=order.definition.session_mode.value,
        attempts=handoff.attempts,
        duration_ms=int((asyncio.get_running_loop().time() - handoff.began) * 1000),
        output=result.output,
        error=ErrorInfo(code=error.code, message=error.message) if error else None,
        run_ids=list(result.run_ids),
    )
    if result.fallback is not None:
        payload["fallback"] = FallbackInfo(kind=result.fallback.kind, target=result.fallback.target)
    return payload
