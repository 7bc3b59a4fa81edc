"""One governed delegation: may it be, under which policy, how did it end. Its two events are always emitted.

Knows neither the tool shapes in front of it nor how a run is driven: it asks the launcher.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from app.agent import events
from app.agent.definition import AgentDefinition, HandoffPolicy, OnProblem, Surface, SurfaceKind
from app.agent.errors import SubagentdError
from app.agent.events import Recorder
from app.agent.ids import new_id
from app.agent.runs import Failure, HandoffStatus, Launcher, Run, RunOutcome, RunRequest, RunStatus, Session

SUBAGENT_STEPS = 5  # spec 5.1
SESSION_MODE = "new_session"  # the only one so far: a fresh memory for each handoff
DIRECT = "direct"  # the surface of a delegation that no model asked for
_CANCELLED = Failure(code="cancelled", message="the handoff was cancelled")
_FAULT = Failure(code="internal_error", message="internal error; the server's log has the details")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegator:
    """Who delegates: a run of a session, or (run None) a caller over HTTP. `tools` are the run's ordinary tools."""

    session: Session
    run: Run | None
    policy: HandoffPolicy
    surfaces: tuple[Surface, ...]
    model: str | None
    parallel_tool_calls: bool
    tools: tuple[str, ...] | None = None

    @property
    def child_depth(self) -> int:
        """The depth of a run that this one starts; 1 for a direct delegation."""
        return 1 if self.run is None else self.run.depth + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffOrder:
    """What is delegated, to whom, by which tool. `purpose` is for people only. 0 ms means no limit."""

    tool: str
    surface: str
    definition: AgentDefinition
    task: str
    call_id: str | None = None
    name: str | None = None
    purpose: str | None = None
    max_steps: int | None = None
    tools: tuple[str, ...] | None = None
    timeout_ms: int = 0
    deadline_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffResult:
    """How a handoff ended. `outcome` is None when it was denied or could not start."""

    handoff_id: str
    name: str
    status: HandoffStatus
    outcome: RunOutcome | None = None
    error: Failure | None = None
    run_ids: tuple[str, ...] = ()
    attempts: int = 0

    @property
    def ok(self) -> bool:
        """Whether there is a result to hand on."""
        return self.status is HandoffStatus.COMPLETED


class Handoffs:
    """Carries out handoffs for all runs of the service."""

    def __init__(self, launcher: Launcher, recorder: Recorder, default_steps: int = SUBAGENT_STEPS) -> None:
        self._launcher = launcher
        self._default_steps = default_steps
        self._recorder = recorder

    async def delegate(
        self, by: Delegator, order: HandoffOrder, started: Callable[[str, str], None] | None = None
    ) -> HandoffResult:
        """Admission, attempt, result (spec 4.2); `started` is told the handoff's and the run's id.

        Never raises for a denied or failed handoff. When the caller is cancelled the child is cancelled first.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        handoff_id = new_id("ho")
        name = self._launcher.name(by.session, order.name)
        self._recorder.record(by.run or by.session, events.HANDOFF_START, _started(by, order, handoff_id, name))
        result = HandoffResult(handoff_id=handoff_id, name=name, status=HandoffStatus.FAILED, error=_FAULT)
        runs: list[str] = []
        try:
            denial = by.policy.denial(order.tool, by.child_depth, order.definition.name)
            if denial is not None:
                error = Failure(code="handoff_denied", message=denial)
                result = HandoffResult(handoff_id=handoff_id, name=name, status=HandoffStatus.DENIED, error=error)
            else:
                result = await self._attempt(by, order, handoff_id, name, runs, started)
        except asyncio.CancelledError:
            result = replace(result, status=HandoffStatus.CANCELLED, error=_CANCELLED)
            raise
        finally:
            if result.outcome is None:
                result = replace(result, run_ids=tuple(runs), attempts=len(runs))
            ended = _ended(by, order, result, int((loop.time() - began) * 1000))
            self._recorder.record(by.run or by.session, events.HANDOFF_END, ended)
        return result

    async def _attempt(
        self,
        by: Delegator,
        order: HandoffOrder,
        handoff_id: str,
        name: str,
        runs: list[str],
        started: Callable[[str, str], None] | None,
    ) -> HandoffResult:
        try:
            run = self._launcher.launch(_request(by, order, handoff_id, name, self._default_steps))
        except SubagentdError as error:
            failure = Failure(code=error.code, message=error.message)
            return HandoffResult(handoff_id=handoff_id, name=name, status=HandoffStatus.FAILED, error=failure)
        runs.append(run.id)
        if started is not None:
            started(handoff_id, run.id)
        try:
            outcome = await self._launcher.wait(run.id)
        except asyncio.CancelledError:
            # a child that was waited for must not outlive a parent that stopped waiting
            await self._launcher.cancel(run.id)
            raise
        return HandoffResult(
            handoff_id=handoff_id,
            name=name,
            status=HandoffStatus(outcome.status.value),
            outcome=outcome,
            error=outcome.error or _unfinished(outcome),
            run_ids=(run.id,),
            attempts=1,
        )


def stops_parent(policy: HandoffPolicy, result: HandoffResult, surface: str) -> bool:
    """Whether this result ends the parent's turn (spec 4.1). Default: `fail` on `per_agent`, `report` elsewhere."""
    if result.ok:
        return False
    chosen = policy.on_denied if result.status is HandoffStatus.DENIED else policy.on_error
    if not policy.enabled:
        chosen = None
    if chosen is None:
        return surface == SurfaceKind.PER_AGENT.value
    return chosen is OnProblem.FAIL


def _unfinished(outcome: RunOutcome) -> Failure | None:
    if outcome.status is RunStatus.COMPLETED:
        return None
    return Failure(code=outcome.status.value, message=f"the subagent's run ended {outcome.status.value}")


def _request(by: Delegator, order: HandoffOrder, handoff_id: str, name: str, default_steps: int) -> RunRequest:
    definition = order.definition
    parallel = definition.parallel_tool_calls
    timeouts = [t for t in (by.policy.timeout_ms, order.timeout_ms) if t]
    return RunRequest(
        session=by.session,
        definition=definition,
        task=order.task,
        policy=by.policy if by.run is None else by.policy.narrowed(definition.policy),
        max_steps=order.max_steps or definition.max_steps or default_steps,
        surfaces=by.surfaces if definition.surfaces is None else definition.surfaces,
        depth=by.child_depth,
        parent=by.run,
        parent_call_id=order.call_id,
        handoff_id=handoff_id,
        name=name,
        model=definition.model or by.model,
        tools=order.tools,
        inherited_tools=by.tools,
        parallel_tool_calls=by.parallel_tool_calls and parallel is not False,
        deadline_ms=order.deadline_ms,
        timeout_ms=min(timeouts) if timeouts else 0,
    )


def _started(by: Delegator, order: HandoffOrder, handoff_id: str, name: str) -> events.HandoffStarted:
    return events.HandoffStarted(
        handoff_id=handoff_id,
        call_id=order.call_id,
        tool=order.tool,
        subagent=order.definition.name,
        name=name,
        depth=by.child_depth,
        session_mode=SESSION_MODE,
        surface=order.surface,
        background=False,
        input=order.task,
        purpose=order.purpose,
    )


def _ended(by: Delegator, order: HandoffOrder, result: HandoffResult, duration_ms: int) -> events.HandoffEnded:
    error = result.error
    return events.HandoffEnded(
        handoff_id=result.handoff_id,
        call_id=order.call_id,
        tool=order.tool,
        subagent=order.definition.name,
        name=result.name,
        status=result.status.value,
        depth=by.child_depth,
        session_mode=SESSION_MODE,
        attempts=result.attempts,
        duration_ms=duration_ms,
        output=result.outcome.output if result.outcome else "",
        error=events.ErrorInfo(code=error.code, message=error.message) if error else None,
        run_ids=list(result.run_ids),
    )
