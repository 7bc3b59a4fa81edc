"""SubAgentRunner: opens one run at any depth, drives its loop, closes it. The order is that of spec 6.6.

Knows neither who started the run nor who waits for it (`supervisor.py`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from app.agent import events, faults
from app.agent.asking import RecordedModel
from app.agent.budget import Meter, check_prices
from app.agent.calls import ToolCalls
from app.agent.chat import ChatModel
from app.agent.compaction import Context, reserving
from app.agent.definition import AgentDefinition
from app.agent.equipment import Equipment
from app.agent.errors import BudgetSpent, ModelError, SubagentdError
from app.agent.events import EventKind
from app.agent.filters import InputFilters
from app.agent.governed import SubagentStarted, SubagentStopped
from app.agent.handoff import Handoffs
from app.agent.live_run import LiveRun, RunnerParts
from app.agent.loop import react
from app.agent.messages import NO_USAGE, Message, Role, Usage
from app.agent.notices import Notices
from app.agent.orders import canonical, composed
from app.agent.own_runner import OwnRunnerModel, drive
from app.agent.patience import patiently
from app.agent.payloads import ActivityInfo, ErrorInfo, RunEnded, RunResumed, RunStarted
from app.agent.run_ports import Launcher
from app.agent.runs import Failure, Run, RunOutcome, RunRequest, RunStatus, StopReason
from app.agent.subagent_hooks import RESULT_HEAD, SENT_BACK
from app.agent.texts import filled
from app.agent.transcript import EMPTY_TASK
from app.agent.turns import unfinished
from app.agent.work import Answer, Work, WorkingMemory

log = logging.getLogger(__name__)

ENDINGS: dict[RunStatus, EventKind[RunEnded]] = {
    RunStatus.COMPLETED: events.RUN_COMPLETED,
    RunStatus.FAILED: events.RUN_FAILED,
    RunStatus.CANCELLED: events.RUN_CANCELLED,
    RunStatus.TIMED_OUT: events.RUN_TIMED_OUT,
    RunStatus.INTERRUPTED: events.RUN_INTERRUPTED,
}
RESTART = "restart"
UNFINISHED = {
    RunStatus.TIMED_OUT: Failure(code="timed_out", message="the run did not finish within its timeout", passing=True),
    RunStatus.INTERRUPTED: Failure(code="interrupted", message="the service stopped while this run was in flight"),
}
_REASONS = {
    RunStatus.CANCELLED: StopReason.CANCELLED,
    RunStatus.TIMED_OUT: StopReason.DEADLINE,
    RunStatus.INTERRUPTED: StopReason.SHUTDOWN,
}


class SubAgentRunner:
    """Opens, drives and closes one run; which state a run ended in is decided here alone."""

    def __init__(self, parts: RunnerParts, launcher: Launcher, notices: Notices) -> None:
        self._parts = parts
        self._launcher = launcher
        self._notices = notices
        self.on_left: Callable[[Run, RunStatus], Usage] | None = None
        self._handoffs = Handoffs(
            launcher,
            parts.recorder,
            InputFilters(parts.masker, parts.find),
            records=parts.records,
            notices=notices,
            masker=parts.masker,
            default_steps=parts.subagent_steps,
            pacing=parts.pacing,
        )
        self._equipment = Equipment(parts, self._handoffs, launcher)

    @property
    def equipment(self) -> Equipment:
        """Gives runs their tools; a service may try it before a run."""
        return self._equipment

    @property
    def handoffs(self) -> Handoffs:
        """The delegation core, for callers that have no parent run."""
        return self._handoffs

    async def run(self, live: LiveRun, on_timeout: Callable[[], None]) -> None:
        """Drive the run to a final state. Raises nothing: every ending is recorded."""
        try:
            live.control.check()
            await self._remember(live)
            await live.places.take()
            work = live.work = await self._open(live, on_timeout)
            answer = await self._answer(live, work)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if live.control.requested is None and task is not None and not task.cancelling():
                await self._fault(live, error)  # nobody cancelled this: something inside was
            else:
                await self._end(live, live.control.requested or RunStatus.CANCELLED)
        except SubagentdError as error:
            reason = StopReason.BUDGET if isinstance(error, BudgetSpent) else StopReason.ERROR
            await self._end(live, RunStatus.FAILED, self._failure(error), reason)
        except Exception as error:  # noqa: BLE001  border of a run: whatever went wrong, it must reach a final state
            await self._fault(live, error)
        else:
            told = live.control.requested
            if told is None:
                self._close(live, RunStatus.COMPLETED, answer=answer)
            else:  # in the same moment: who told it so was answered that it ended so
                await self._end(live, told)

    async def _remember(self, live: LiveRun) -> None:
        """Wait for the run's turn at its memory, and read that. A run of an earlier process does not end because the
        store is away for a while."""
        run, seat, goes_on = live.run, live.seat, live.request.progress is not None
        if seat is not None:
            live.memory = await (patiently(f"the memory of run {run.id}", seat.hold) if goes_on else seat.hold())
        elif goes_on:
            load = partial(self._parts.load, run.tenant, run.memory_id)
            live.memory = await patiently(f"the memory of run {run.id}", load)

    async def _answer(self, live: LiveRun, work: Work) -> Answer:
        """The answer of the loop, or of an own runner, that the hooks accept; they may send a subagent back to
        work, and so does what it is told while they are asked."""
        sent_back = live.request.progress.sent_back if live.request.progress is not None else 0
        while True:
            answer = await (self._own(live, work) if live.request.definition.runner else react(work))
            final = sent_back == SENT_BACK or not _can_go_on(work, answer)
            hooks = live.hooks
            reason = await hooks.stopped(answer.text, work.steps, final=final) if hooks is not None else None
            if reason is not None:
                sent_back += 1
                work.add(Role.USER, filled(work.texts.sent_back, reason=reason))
            elif hooks is not None and _can_go_on(work, answer) and self._notices.is_addressed(live.run):
                hooks.goes_on()  # somebody has said something to it while they were asked
            else:
                return answer

    async def _end(
        self,
        live: LiveRun,
        status: RunStatus,
        error: Failure | None = None,
        reason: StopReason = StopReason.ERROR,
    ) -> None:
        """Close a run that gave no answer, after its hooks have been told. One that was told to end has that status,
        whatever it ran into meanwhile: the end of a child may stop its parent before its own cancellation does."""
        if self._handoffs.open.owned([live.run.id]):
            live.ending = True  # its tasks end before it does, those as well that began while it was told to end
            await self._launcher.reap(live.run)
        if live.control.requested is not None:
            status, error = live.control.requested, None
        if live.hooks is not None and live.hooks.due:
            live.ending = True
            text, steps = (live.work.text, live.work.steps) if live.work is not None else ("", 0)
            told = text or (error.message if error is not None else "")
            try:
                await live.hooks.last_word(told, steps)
            finally:
                self._close(live, status, error=error, reason=reason)
            return
        self._close(live, status, error=error, reason=reason)

    def _failure(self, error: SubagentdError) -> Failure:
        message = self._parts.masker.text(error.message)
        if isinstance(error, ModelError):
            return Failure(
                code=error.code, message=message, passing=error.retryable, retry_after_ms=error.retry_after_ms
            )
        return Failure(code=error.code, message=message)

    async def _fault(self, live: LiveRun, error: BaseException) -> None:
        log.error("run %s failed", live.run.id, exc_info=error)
        message = f"internal error; the server's log has the details under {live.run.id}"
        await self._end(live, RunStatus.FAILED, Failure(code="internal_error", message=message, passing=True))

    def abandon(self, live: LiveRun) -> None:
        """Close a run whose task was cancelled before it began."""
        if live.outcome is None:
            self._close(live, live.control.requested or RunStatus.CANCELLED)

    async def _own(self, live: LiveRun, work: Work) -> Answer:
        """An operator's function in place of the loop. One that an earlier process had called is called again, unless
        its text is there."""
        said = work.progress.answer if work.progress is not None else None
        if said is not None and work.output_schema is None:
            return Answer(text=said, stop_reason=StopReason.ANSWER)
        return await drive(work, self._parts.find, live.request.task)

    async def _open(self, live: LiveRun, on_timeout: Callable[[], None]) -> Work:
        run, request, recorder = live.run, live.request, self._parts.recorder
        live.control.check()
        model = self._model(request.definition, request.model)
        if self._parts.record_model_io and request.definition.runner is None:
            model = RecordedModel(model, run, recorder, self._parts.masker)
        if live.budget is not None:
            check_prices(live.budget.currencies(), model.name, model.prices)
        await self._equipment.ready(request)
        live.control.check()
        registry, offered = self._equipment.tools(live)
        names = [spec.name for spec in offered]
        progress = request.progress
        self._stated(live, model.name, names)
        self._start_clocks(live, on_timeout)
        added = await self._greeted(live)
        counter, max_tokens = self._parts.models.counter(model.name), request.definition.max_tokens
        live.meter = Meter(live.budget, model.prices, max_tokens, root=request.parent is None, count=reserving(counter))
        work = Work(
            session=request.session,
            run=run,
            definition=request.definition,
            model=model,
            registry=registry,
            offered=offered,
            memory=WorkingMemory(live.memory),
            calls=self._calls(),
            recorder=recorder,
            control=live.control,
            workspace=self._parts.workspace(request.session),
            max_steps=min(request.max_steps, self._parts.max_steps),
            parallel=request.parallel_tool_calls,
            meter=live.meter,
            patience=self._parts.patience,
            gates=self._parts.gates,
            checker=self._parts.checker,
            context=Context(
                self._parts.compaction,
                counter,
                request.session.texts,
                window=model.context_window,
                max_tokens=max_tokens,
                tools=offered,
            ),
            output_schema=request.output_schema,
            effort=request.effort,
            thinking=request.thinking,
            budget=live.budget,
            places=live.places or None,
            notices=self._notices,
        )
        if run.depth:
            self._begun(live, again=live.started)
        work.clearance = self._equipment.clearance(live, work)
        if progress is not None and progress.started:
            work.take_up(progress)
        if work.task is None:
            self._say_what_to_do(work, request, added, self._equipment.prompt(request, offered))
        faults.hit("run_opened")
        return work

    async def _greeted(self, live: LiveRun) -> tuple[str, ...]:
        """What hooks at the start of a subagent add to its task; they are not asked again once it was said."""
        progress = live.request.progress
        live.hooks = self._equipment.subagent_hooks(live)
        live.started = progress is not None and progress.subagent
        heard = live.started and progress is not None and progress.task_seq is not None
        return await live.hooks.started(live.request.task) if live.hooks is not None and not heard else ()

    def _stated(self, live: LiveRun, model: str, tools: list[str]) -> None:
        """State that the run begins, or goes on."""
        run, progress, recorder = live.run, live.request.progress, self._parts.recorder
        live.stated = True
        if progress is None or not progress.started:
            recorder.record(run, events.RUN_STARTED, RunStarted(model=model, tools=tools))
        else:
            resumed = RunResumed(reason=RESTART, attempt=run.attempt, epoch=run.epoch)
            recorder.record(run, events.RUN_RESUMED, resumed)

    def _begun(self, live: LiveRun, *, again: bool) -> None:
        """State that a subagent has started, if that was not stated `again`."""
        run, progress = live.run, live.request.progress
        if not again:
            payload = SubagentStarted(agent=run.agent, name=run.name, prompt=live.request.task)
            self._parts.recorder.record(run, events.SUBAGENT_START, payload)
        live.started = True
        if live.hooks is not None:
            live.hooks.begun(sent_back=progress.sent_back if progress is not None else 0)

    def _calls(self) -> ToolCalls:
        parts = self._parts
        return ToolCalls(
            parts.recorder,
            parts.checker,
            parts.masker,
            parts.output_limit,
            parts.duplicates,
            parts.interrupt_grace_ms,
            self._launcher.answered,
        )

    @staticmethod
    def _say_what_to_do(work: Work, request: RunRequest, added: tuple[str, ...], prompt: str) -> None:
        """The first messages of the run: the system prompt where the memory has none, and the task."""
        work.first = len(work.memory.messages)
        if not work.first:
            work.add(Role.SYSTEM, prompt)
        elif work.memory.messages[0].role is not Role.SYSTEM:
            # the session that wrote it was erased; the log keeps what is left as it is
            work.memory.messages.insert(0, Message(role=Role.SYSTEM, content=prompt))
            work.first += 1
        work.task = work.add(Role.USER, _task_message(request, added))

    def _model(self, definition: AgentDefinition, name: str | None) -> ChatModel:
        if definition.runner is not None:
            return OwnRunnerModel(definition.runner)
        return self._parts.models.resolve(name)

    def _start_clocks(self, live: LiveRun, on_timeout: Callable[[], None]) -> None:
        """All clocks run from here: the run holds its memory."""
        request, loop = live.request, asyncio.get_running_loop()
        used_ms = request.progress.used_ms if request.progress is not None else 0
        walls = [left_ms for budget in live.clocks if (left_ms := budget.wall_left_ms()) is not None]
        for budget in live.clocks:
            budget.begin()
        live.timing = True
        deadline_ms = max(1, request.deadline_ms - used_ms) if request.deadline_ms else None
        live.control.start(deadline_ms, min(walls, default=None))
        if request.timeout_ms:
            live.timer = loop.call_later(max(1, request.timeout_ms - used_ms) / 1000, on_timeout)

    def _close(
        self,
        live: LiveRun,
        status: RunStatus,
        *,
        answer: Answer | None = None,
        error: Failure | None = None,
        reason: StopReason = StopReason.ERROR,
    ) -> None:
        """The one final state of a run: decided in memory first, then recorded."""
        if live.outcome is not None:
            return
        error = error or UNFINISHED.get(status)
        if live.work is not None:  # what was said to it is not lost: whoever goes on with its memory reads it
            for notice in self._notices.addressed(live.run):
                live.work.add(Role.USER, notice.content, notices=[notice.id])
        if live.timer is not None:
            live.timer.cancel()
        self._close_what_is_left(live, status)
        outcome = live.outcome = self._outcome(live, status, answer, error, reason)
        run, recorder = live.run, self._parts.recorder
        if live.started:
            recorder.record(
                run,
                events.SUBAGENT_STOP,
                SubagentStopped(
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
        open_tasks = self._launcher.open_tasks(run)
        live.ended = recorder.record(run, ENDINGS[status], ended_payload(outcome, duration, open_tasks))

    def _close_what_is_left(self, live: LiveRun, status: RunStatus) -> None:
        """What an earlier process had begun for the run, and nobody has taken up again."""
        progress, recorder = live.request.progress, self._parts.recorder
        if progress is None:
            return
        if self.on_left is not None:
            live.control.usage_below = live.control.usage_below + self.on_left(live.run, status)
        if live.work is None and live.run.depth and progress.subagent:
            live.started = True  # its start is in the log, so that its stop belongs there
        for call in progress.calls.values():
            approvals = self._parts.approvals
            for asked in call.open_questions:
                if approvals is not None and approvals.is_expected(asked):
                    approvals.withdraw(live.run, asked, call.call_id, call.tool)
            if live.work is None or call.call_id not in live.work.calls.finished:
                recorder.record(live.run, events.TOOL_RESULT, unfinished(live.run, call), step=call.step)

    @staticmethod
    def _outcome(
        live: LiveRun, status: RunStatus, answer: Answer | None, error: Failure | None, reason: StopReason
    ) -> RunOutcome:
        work, progress = live.work, live.request.progress
        before = progress.usage if progress is not None else NO_USAGE
        own = work.usage if work else before
        reason = answer.stop_reason if answer else _REASONS.get(status, reason)
        return RunOutcome(
            status=status,
            stop_reason=reason,
            output=answer.text if answer else (work.text if work else progress.text if progress else ""),
            steps=work.steps if work else progress.steps if progress else 0,
            usage=own,
            usage_total=own + live.control.usage_below,
            forced=answer.forced if answer else False,
            partial=reason is not StopReason.ANSWER,
            error=error,
            activity=work.calls.activity if work else (),
        )


def _can_go_on(work: Work, answer: Answer) -> bool:
    """Whether there is anybody who could, and a step left to do it in."""
    return work.definition.runner is None and not answer.forced and work.steps < work.max_steps


def ended_payload(outcome: RunOutcome, duration_ms: int, open_tasks: Sequence[str] = ()) -> RunEnded:
    """The payload of a run's terminal event."""
    payload = RunEnded(
        status=outcome.status.value,
        stop_reason=outcome.stop_reason.value,
        output=outcome.output,
        steps=outcome.steps,
        usage=outcome.usage.as_dict(),
        usage_total=outcome.usage_total.as_dict(),
        forced=outcome.forced,
        partial=outcome.partial,
        error=ErrorInfo(code=outcome.error.code, message=outcome.error.message) if outcome.error else None,
        activity=[ActivityInfo(name=a.name, calls=a.calls, total_ms=a.total_ms) for a in outcome.activity],
        duration_ms=duration_ms,
        open_tasks=list(open_tasks),
    )
    if outcome.error is not None and outcome.error.passing:
        payload["passing"] = True
    return payload


def _task_message(request: RunRequest, added: tuple[str, ...]) -> str:
    """The task, what hooks have added to it, and what form the answer must have."""
    task = request.task if request.task.strip() else EMPTY_TASK
    if added:
        task = composed(task, "\n\n".join(added), None)
    if request.output_schema is None or request.definition.runner is not None:
        return task
    return f"{task}\n\n{filled(request.session.texts.output_schema, schema=canonical(request.output_schema))}"
