"""SubAgentRunner: opens one run at any depth, drives its loop, closes it. The order is that of spec 6.6.

Knows neither who started the run nor who waits for it (`supervisor.py`).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.agent import events, faults
from app.agent.calls import OutputLimit, ToolCalls
from app.agent.chat import ChatModel, ModelCatalog
from app.agent.definition import MAX_STEPS
from app.agent.delegation import Roster, delegation_tools, registry_with, surfaces_of
from app.agent.errors import HandoffStop, SubagentdError
from app.agent.events import Event, EventKind, Masker, Recorder, RunEnded
from app.agent.handoff import SUBAGENT_STEPS, Delegator, Handoffs
from app.agent.loop import Answer, Control, Work, WorkingMemory, react
from app.agent.messages import NO_USAGE, Role
from app.agent.runs import Failure, Launcher, Run, RunOutcome, RunRequest, RunStatus, Session, StopReason
from app.agent.tools import SchemaChecker, ToolRegistry, ToolSpec, default_tools
from app.agent.transcript import EMPTY_TASK

log = logging.getLogger(__name__)

RESERVE_SHARE = 0.2  # of a deadline, kept for the forced answer …
RESERVE_MAX_S = 15.0  # … and at most this much (spec 5.7)
RESULT_HEAD = 200  # characters of the result in subagent.stop (spec 6.1)

_ENDINGS: dict[RunStatus, EventKind[RunEnded]] = {
    RunStatus.COMPLETED: events.RUN_COMPLETED,
    RunStatus.FAILED: events.RUN_FAILED,
    RunStatus.CANCELLED: events.RUN_CANCELLED,
    RunStatus.TIMED_OUT: events.RUN_TIMED_OUT,
    RunStatus.INTERRUPTED: events.RUN_INTERRUPTED,
}
UNFINISHED = {
    RunStatus.TIMED_OUT: Failure(code="timed_out", message="the run did not finish within its timeout"),
    RunStatus.INTERRUPTED: Failure(code="interrupted", message="the service stopped while this run was in flight"),
}
_REASONS = {
    RunStatus.CANCELLED: StopReason.CANCELLED,
    RunStatus.TIMED_OUT: StopReason.DEADLINE,
    RunStatus.INTERRUPTED: StopReason.SHUTDOWN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerParts:
    """What every run is made of. `workspace` gives the directory of a session, for its tools."""

    recorder: Recorder
    models: ModelCatalog
    tools: ToolRegistry
    roster: Roster
    checker: SchemaChecker
    masker: Masker
    output_limit: OutputLimit
    workspace: Callable[[Session], Path]
    subagent_steps: int = SUBAGENT_STEPS
    max_steps: int = MAX_STEPS


class LiveRun:
    """A run in the air: its request, its control, and how it ended once it has."""

    __slots__ = ("began", "control", "ended", "outcome", "request", "run", "started", "timer", "work")

    def __init__(self, run: Run, request: RunRequest) -> None:
        self.run = run
        self.request = request
        self.control = Control()
        self.outcome: RunOutcome | None = None
        self.ended: Event | None = None
        self.work: Work | None = None
        self.started = False  # as a subagent: its stop is due
        self.began = asyncio.get_running_loop().time()
        self.timer: asyncio.TimerHandle | None = None


class SubAgentRunner:
    """Opens, drives and closes one run; which state a run ended in is decided here alone."""

    def __init__(self, parts: RunnerParts, launcher: Launcher) -> None:
        self._parts = parts
        self._handoffs = Handoffs(launcher, parts.recorder, parts.subagent_steps)

    @property
    def handoffs(self) -> Handoffs:
        """The delegation core, for callers that have no parent run."""
        return self._handoffs

    async def run(self, live: LiveRun, on_timeout: Callable[[], None]) -> None:
        """Drive the run to a final state. Raises nothing: every ending is recorded."""
        try:
            work = live.work = self._open(live, on_timeout)
            answer = await react(work)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if live.control.requested is None and task is not None and not task.cancelling():
                self._fault(live, error)  # nobody cancelled this: something inside was
            else:
                self._close(live, live.control.requested or RunStatus.CANCELLED)
        except HandoffStop as stop:
            self._close(live, RunStatus.FAILED, error=Failure(code=stop.code, message=stop.message))
        except SubagentdError as error:
            failure = Failure(code=error.code, message=self._parts.masker.text(error.message))
            self._close(live, RunStatus.FAILED, error=failure)
        except Exception as error:  # noqa: BLE001  border of a run: whatever went wrong, it must reach a final state
            self._fault(live, error)
        else:
            self._close(live, RunStatus.COMPLETED, answer=answer)

    def _fault(self, live: LiveRun, error: BaseException) -> None:
        log.error("run %s failed", live.run.id, exc_info=error)
        message = f"internal error; the server's log has the details under {live.run.id}"
        self._close(live, RunStatus.FAILED, error=Failure(code="internal_error", message=message))

    def abandon(self, live: LiveRun) -> None:
        """Close a run whose task was cancelled before it began."""
        if live.outcome is None:
            self._close(live, live.control.requested or RunStatus.CANCELLED)

    def _open(self, live: LiveRun, on_timeout: Callable[[], None]) -> Work:
        run, request, recorder = live.run, live.request, self._parts.recorder
        live.control.check()
        model = self._parts.models.resolve(request.definition.model or request.model or request.session.model)
        registry, offered = self._tools(live, model)
        names = [spec.name for spec in offered]
        recorder.record(run, events.RUN_STARTED, events.RunStarted(model=model.name, tools=names))
        self._start_clocks(live, on_timeout)
        work = Work(
            session=request.session,
            run=run,
            definition=request.definition,
            model=model,
            registry=registry,
            offered=offered,
            memory=WorkingMemory(request.memory),
            calls=ToolCalls(recorder, self._parts.checker, self._parts.masker, self._parts.output_limit),
            recorder=recorder,
            control=live.control,
            workspace=self._parts.workspace(request.session),
            max_steps=min(request.max_steps, self._parts.max_steps),
            parallel=request.parallel_tool_calls,
        )
        if run.depth:
            payload = events.SubagentStarted(agent=run.agent, name=run.name, prompt=request.task)
            recorder.record(run, events.SUBAGENT_START, payload)
            live.started = True
        work.first = len(work.memory.messages)
        if not work.first:
            work.add(Role.SYSTEM, request.definition.prompt)
        work.add(Role.USER, request.task if request.task.strip() else EMPTY_TASK)
        faults.hit("run_opened")
        return work

    def _start_clocks(self, live: LiveRun, on_timeout: Callable[[], None]) -> None:
        """Both clocks run from here: the run holds its memory."""
        request, loop = live.request, asyncio.get_running_loop()
        if request.deadline_ms:
            total = request.deadline_ms / 1000
            live.control.hard_at = loop.time() + total
            live.control.soft_at = live.control.hard_at - min(RESERVE_MAX_S, total * RESERVE_SHARE)
        if request.timeout_ms:
            live.timer = loop.call_later(request.timeout_ms / 1000, on_timeout)

    def _tools(self, live: LiveRun, model: ChatModel) -> tuple[ToolRegistry, tuple[ToolSpec, ...]]:
        """The registry of a run (spec 7.2) and what the model is shown of it."""
        request = live.request
        names = self._whitelist(request)
        ordinary = self._parts.tools.select(names)
        by = Delegator(
            session=request.session,
            run=live.run,
            policy=request.policy,
            surfaces=request.surfaces,
            model=request.definition.model or request.model,
            parallel_tool_calls=request.parallel_tool_calls,
            tools=tuple(ordinary),
        )
        surfaces = surfaces_of(request.definition, names, request.surfaces)
        if not surfaces:
            return ordinary, ordinary.specs
        agents = self._parts.roster.delegable(request.session)
        delegation = delegation_tools(by, self._handoffs, surfaces, agents, request.definition.disallowed_tools)
        registry = registry_with(ordinary, delegation)
        shown = tuple(s for s in registry.specs if not s.delegation or s.name in delegation.offered)
        return registry, shown

    def _whitelist(self, request: RunRequest) -> tuple[str, ...]:
        definition = request.definition
        names = definition.tools
        if names is None:
            names = request.inherited_tools
        if names is None:
            names = default_tools(self._parts.tools)
        if request.tools is not None:  # a caller may only narrow
            names = tuple(name for name in names if name in request.tools)
        gone = set(definition.disallowed_tools)
        return tuple(name for name in names if name not in gone)

    def _close(
        self, live: LiveRun, status: RunStatus, *, answer: Answer | None = None, error: Failure | None = None
    ) -> None:
        """The one final state of a run: decided in memory first, then recorded."""
        if live.outcome is not None:
            return
        error = error or UNFINISHED.get(status)
        if live.timer is not None:
            live.timer.cancel()
        outcome = live.outcome = self._outcome(live, status, answer, error)
        run, recorder = live.run, self._parts.recorder
        if live.started:
            recorder.record(
                run,
                events.SUBAGENT_STOP,
                events.SubagentStopped(
                    agent=run.agent,
                    name=run.name,
                    result=(outcome.output or (error.message if error else ""))[:RESULT_HEAD],
                    steps=outcome.steps,
                    is_error=status is not RunStatus.COMPLETED,
                    status=status.value,
                ),
            )
        faults.hit("before_terminal")
        duration = int((asyncio.get_running_loop().time() - live.began) * 1000)
        live.ended = recorder.record(run, _ENDINGS[status], ended_payload(outcome, duration))

    @staticmethod
    def _outcome(live: LiveRun, status: RunStatus, answer: Answer | None, error: Failure | None) -> RunOutcome:
        work = live.work
        own = work.usage if work else NO_USAGE
        reason = answer.stop_reason if answer else _REASONS.get(status, StopReason.ERROR)
        return RunOutcome(
            status=status,
            stop_reason=reason,
            output=answer.text if answer else (work.text if work else ""),
            steps=work.steps if work else 0,
            usage=own,
            usage_total=own + live.control.usage_below,
            forced=answer.forced if answer else False,
            partial=reason is not StopReason.ANSWER,
            error=error,
            activity=work.calls.activity if work else (),
        )


def ended_payload(outcome: RunOutcome, duration_ms: int) -> RunEnded:
    """The payload of a run's terminal event."""
    return RunEnded(
        status=outcome.status.value,
        stop_reason=outcome.stop_reason.value,
        output=outcome.output,
        steps=outcome.steps,
        usage=outcome.usage.as_dict(),
        usage_total=outcome.usage_total.as_dict(),
        forced=outcome.forced,
        partial=outcome.partial,
        error=events.ErrorInfo(code=outcome.error.code, message=outcome.error.message) if outcome.error else None,
        activity=[events.ActivityInfo(name=a.name, calls=a.calls, total_ms=a.total_ms) for a in outcome.activity],
        duration_ms=duration_ms,
        open_tasks=[],
    )
