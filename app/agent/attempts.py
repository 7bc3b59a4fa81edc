"""The attempts of one handoff: each is a run; which memory it gets, how often and how long it is tried (spec 4.4, 4.7).

Knows neither admission nor fallbacks: `handoff.py` decides about those.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.agent.definition import AgentDefinition
from app.agent.errors import SubagentdError
from app.agent.messages import Usage
from app.agent.open_handoff import HandoffClock, OpenHandoff
from app.agent.orders import BUDGET_CODE, MEMORY_BUSY, Delegator, HandoffResult, Pacing
from app.agent.patience import patiently
from app.agent.permissions import PermissionPolicy, of_child
from app.agent.policy import HandoffPolicy, shortest
from app.agent.run_ports import Launcher
from app.agent.runs import (
    Ceiling,
    Failure,
    HandoffStatus,
    Progress,
    Run,
    RunOutcome,
    RunRequest,
    RunStatus,
    StopReason,
    ToolActivity,
)

_IN_USE = Failure(
    code=MEMORY_BUSY,
    message="this task is being continued already: wait for its end before it is resumed once more",
)
_WAITS_FOR_ITSELF = Failure(
    code=MEMORY_BUSY,
    message="the memory of this agent is in use by a run that waits for this one: waiting for it would never end",
)


class Attempts:
    """Runs handoffs until one attempt completes or no further one may begin."""

    def __init__(self, launcher: Launcher, pacing: Pacing, default_steps: int) -> None:
        self._launcher = launcher
        self._pacing = pacing
        self._default_steps = default_steps
        self._cuts: set[asyncio.Task[tuple[str, ...]]] = set()

    async def run(self, handoff: OpenHandoff, request: RunRequest) -> HandoffResult:
        """The first attempt that completes, or the last one (spec 4.7)."""
        clock, policy = handoff.clock, handoff.by.policy
        tries = policy.max_retries + 1 if policy.enabled else 1
        until = handoff.until = deadline_of(policy, clock)
        last_start = until or clock.time() + self._pacing.deadline_ms / 1000
        if handoff.left is not None:
            tries = max(1, tries - max(0, handoff.left.attempts - 1))
            if until is not None:  # what was used before counts
                until = handoff.until = last_start = until - handoff.left.spent.get("wall_ms", 0) / 1000
        while True:
            result = _ended_before(handoff) or await self.once(handoff, request, until)
            tries -= 1
            if result.ok or tries <= 0 or result.error is None or not result.error.passing:
                return result
            pause = self._pacing.delay_ms(max(1, handoff.attempts), result.error.retry_after_ms) / 1000
            if clock.time() + pause > last_start:
                return result
            if await handoff.ends_within(pause):
                return handoff.cut_short()
            if clock.time() >= last_start:  # a busy loop wakes late
                return result

    async def once(
        self, handoff: OpenHandoff, request: RunRequest, until: float | None = None, *, counts: bool = True
    ) -> HandoffResult:
        """One run, from its queueing to its end, at `until` (on the clock of the handoff) at the latest. Nothing of it
        goes on when this returns."""
        progress = None
        if handoff.left is not None:
            progress, handoff.left = handoff.left.progress, None
        run: Run | HandoffResult | None = None
        try:
            run = await self._launched(handoff, request, progress)
        finally:
            if not isinstance(run, Run) and progress is not None:  # whatever it is: that run is open in the log
                stopped = handoff.stopped or HandoffStatus.CANCELLED
                self._launcher.drop(progress.run, RunStatus(stopped.value))
        if isinstance(run, HandoffResult):
            return run
        if progress is None:
            handoff.runs.append(run.id)
            handoff.attempts += counts
        if handoff.started is not None and len(handoff.runs) == 1:
            handoff.started(handoff.id, run.id)
        # not by the run's own clock, which stands still while it waits for its memory
        with handoff.clock.alarm(until, lambda: self._cut(run.id)):
            try:
                outcome = await self._launcher.wait(run.id)
            except asyncio.CancelledError:
                # a child that was waited for must not outlive a parent that stopped waiting
                await self._launcher.cancel(run.id)
                raise
        return handoff.result(HandoffStatus(outcome.status.value), outcome.error or _unfinished(outcome), outcome)

    async def _launched(
        self, handoff: OpenHandoff, request: RunRequest, progress: Progress | None
    ) -> Run | HandoffResult:
        """The run of one attempt, or why there is none."""
        seat = None
        try:
            if progress is not None:
                seat = self._launcher.left_seat(progress.run.id)
            if seat is None and handoff.plan is not None:
                by = handoff.by
                waiting = None if handoff.background else by.run
                seat = self._launcher.seat(
                    by.session.tenant,
                    handoff.plan.memory_id,
                    waiting,
                    alone=handoff.plan.alone,
                    again=progress is not None,
                )
                if seat is None:
                    problem = _IN_USE if handoff.plan.alone else _WAITS_FOR_ITSELF
                    return handoff.result(HandoffStatus.FAILED, problem)
            if seat is not None:
                if progress is None:
                    await seat.opened()
                else:
                    await patiently(f"the memory of run {progress.run.id}", seat.opened)
                request = replace(request, memory_id=seat.memory_id, seat=seat)
            if handoff.ending.is_set():
                if seat is not None:
                    seat.leave()
                return handoff.cut_short()
            if progress is not None:
                request = replace(request, memory_id=progress.run.memory_id, progress=progress)
            return self._launcher.launch(request)
        except BaseException as error:  # border to the launcher: whatever it is, also a cancel, the seat is given back
            if seat is not None:
                seat.leave()
            if not isinstance(error, SubagentdError):
                raise
            return handoff.result(HandoffStatus.FAILED, Failure(code=error.code, message=error.message))

    def _cut(self, run_id: str) -> None:
        task = asyncio.create_task(self._launcher.cancel(run_id, status=RunStatus.TIMED_OUT), name=f"cut {run_id}")
        self._cuts.add(task)  # or it may be collected while it runs
        task.add_done_callback(self._cuts.discard)

    def request(self, handoff: OpenHandoff, text: str, *, other_agent: bool = False) -> RunRequest:
        """What is asked of the launcher for one attempt with this task message. `other_agent`: one that stands in for
        the agent that was asked for."""
        by, order = handoff.by, handoff.order
        definition, policy = order.definition, by.policy
        # a caller's policy was made of the definition of the agent that it asked for
        own = policy if by.run is None and not other_agent else policy.narrowed(definition.policy)
        of_run = own.budget if by.run is not None or other_agent else None
        bounds = (definition.budget, of_run)
        return RunRequest(
            session=by.session,
            definition=definition,
            task=text,
            policy=own,
            max_steps=order.max_steps or definition.max_steps or self._default_steps,
            surfaces=by.surfaces if definition.surfaces is None else definition.surfaces,
            depth=by.child_depth,
            parent=by.run,
            parent_call_id=order.call_id,
            handoff_id=handoff.id,
            fallback=handoff.fallback,
            name=handoff.name,
            model=definition.model or by.model,
            effort=definition.effort or by.effort,
            thinking=by.thinking if definition.thinking is None else definition.thinking,
            tools=order.tools,
            inherited_tools=by.tools,
            limits=by.limits,
            ceiling=by.ceiling,
            parallel_tool_calls=by.parallel_tool_calls and definition.parallel_tool_calls is not False,
            deadline_ms=order.deadline_ms,
            timeout_ms=shortest(policy.timeout_ms, order.timeout_ms),
            budgets=tuple(limits for limits in bounds if limits is not None),
            above=handoff.budget,
            output_schema=order.output_schema if order.output_schema is not None else definition.output_schema,
            permissions=_permissions(by, definition),
            background=handoff.background,
            detached=handoff.background and order.detached,
        )


def _ended_before(handoff: OpenHandoff) -> HandoffResult | None:
    """What came of the last run of a handoff that another process had begun, if that run has ended."""
    left = handoff.left
    if left is None or left.progress is not None or not left.runs:
        return None
    handoff.left = None
    outcome = outcome_of(left.runs[-1], passing=left.passing)
    return handoff.result(HandoffStatus(outcome.status.value), outcome.error or _unfinished(outcome), outcome)


def outcome_of(row: Mapping[str, Any], *, passing: bool = False) -> RunOutcome:
    """How a run ended, from its row. `passing`: it may be tried again."""
    error = None
    if row["error"]:
        error = Failure(code=row["error"]["code"], message=row["error"]["message"], passing=passing)
    return RunOutcome(
        status=RunStatus(row["status"]),
        stop_reason=StopReason(row["stop_reason"]),
        output=row["output"] or "",
        steps=row["steps"] or 0,
        usage=Usage.from_dict(row["usage"] or {}),
        usage_total=Usage.from_dict(row["usage_total"] or {}),
        forced=bool(row["forced"]),
        partial=bool(row["partial"]),
        error=error,
        activity=tuple(ToolActivity(**each) for each in row["activity"] or ()),
    )


def _permissions(by: Delegator, definition: AgentDefinition) -> Ceiling | None:
    """Under the ceiling of whoever delegates; with nobody's rules, none."""
    above = by.permissions if isinstance(by.permissions, PermissionPolicy) else None
    return of_child(above, definition.name, definition.permissions, trusted=definition.source.trusted)


def deadline_of(policy: HandoffPolicy, clock: HandoffClock) -> float | None:
    """When attempts that begin now must have ended by a policy, on the clock of the handoff; None: no limit."""
    if not (policy.enabled and policy.deadline_ms):
        return None
    return clock.time() + policy.deadline_ms / 1000


def _unfinished(outcome: RunOutcome) -> Failure | None:
    if outcome.status is RunStatus.COMPLETED:
        return None
    if outcome.stop_reason is StopReason.BUDGET:
        return Failure(code=BUDGET_CODE, message="the budget of this task is used up")
    return Failure(code=outcome.status.value, message=f"the subagent's run ended {outcome.status.value}")
