"""One governed delegation: admission, input, attempts, fallback (spec 4.2). Its two events are always emitted.

Knows neither the tool shapes in front of it nor how a run is driven: it asks the launcher.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

from app.agent import events
from app.agent.attempts import (
    Attempts,
    LeftHandoff,
    OpenHandoff,
    deadline_of,
    ended_payload,
    outcome_of,
    started_payload,
)
from app.agent.budget import NOTHING, ONE_DELEGATION, Amount, Budget, Refusal
from app.agent.clearance import decision_event
from app.agent.definition import AgentDefinition, AgentMode, InheritKind, SurfaceKind, tool_name_of
from app.agent.errors import CallDenied, Conflict, NotFound, SubagentdError
from app.agent.events import Masker, Recorder
from app.agent.filters import InputFilters
from app.agent.ids import new_id, now_us
from app.agent.inheritance import LAST_TEXTS, quoted, texts_of
from app.agent.notices import NoticeKind, Notices
from app.agent.orders import (
    BUDGET_CODE,
    DIRECT,
    SUBAGENT_STEPS,
    Delegator,
    HandoffOrder,
    HandoffResult,
    Pacing,
    ResumePoint,
    TaskState,
    composed,
    reuse_plan,
)
from app.agent.permissions import PermissionPolicy, Verdict
from app.agent.policy import HandoffInput, OnProblem, Reaction
from app.agent.returned import bounded, neutralised
from app.agent.runs import (
    Failure,
    Fallback,
    HandoffStatus,
    Launcher,
    Run,
    RunRequest,
    Session,
)
from app.agent.texts import filled
from app.agent.tools import ToolResult

log = logging.getLogger(__name__)

_FAULT = Failure(code="internal_error", message="internal error; the server's log has the details")

REASON_CHARS = 4_000  # of why a handoff failed, in a result that says that nothing can stand in for it

ENDING_S = 5.0  # for a task that was told to end to say that it has
NOTICE_CHARS = 1_000  # of a result in the notice that its task has ended; get_task_output returns the whole

NOTHING_BEFORE: Mapping[str, int] = MappingProxyType({})

Row = Mapping[str, Any]


class HandoffRecords(Protocol):
    """Reads back what was recorded of handoffs, all of it. Keys of a row are the columns of its table."""

    async def handoff(self, tenant: str, handoff_id: str) -> Row | None:
        """One handoff."""

    async def handoffs(self, tenant: str, session_id: str) -> Sequence[Row]:
        """Those of a session, in the order of their starts."""

    async def handoff_runs(self, tenant: str, handoff_id: str) -> Sequence[Row]:
        """The runs of one, in order."""


class Handoffs:
    """Carries out handoffs for all runs of the service."""

    def __init__(
        self,
        launcher: Launcher,
        recorder: Recorder,
        filters: InputFilters,
        *,
        records: HandoffRecords,
        notices: Notices,
        masker: Masker,
        default_steps: int = SUBAGENT_STEPS,
        pacing: Pacing | None = None,
    ) -> None:
        self._launcher = launcher
        self._recorder = recorder
        self._filters = filters
        self._attempts = Attempts(launcher, pacing or Pacing(), default_steps)
        self._records = records
        self._masker = masker
        self.notices = notices
        self._open: dict[str, OpenHandoff] = {}
        self._background: dict[str, OpenHandoff] = {}  # of those
        self._tasks: set[asyncio.Task[None]] = set()
        self._left: dict[tuple[str | None, str | None], LeftHandoff] = {}

    async def delegate(
        self, by: Delegator, order: HandoffOrder, started: Callable[[str, str], None] | None = None
    ) -> HandoffResult:
        """Admission, input, attempts, fallback; `started` is told the handoff's and the first run's id.

        Never raises for a denied or failed handoff. When the caller is cancelled the child is cancelled first.
        """
        handoff = self._begun(by, order, started)
        return handoff.final or await self._carried_out(handoff)

    async def prepared(self, by: Delegator, order: HandoffOrder) -> HandoffOrder:
        """The order of a task with what it inherits: whoever delegates may have ended by the time that it begins."""
        room = by.budget.reserve(ONE_DELEGATION) if by.budget is not None else None
        if isinstance(room, Refusal):
            return order  # it is refused in a moment, and pays for no summary
        if room is not None:
            room.settle(NOTHING)
        return replace(order, inherited=await self._inherited(by, order, asks=True))

    def background(
        self, by: Delegator, order: HandoffOrder, started: Callable[[str, str], None] | None = None
    ) -> OpenHandoff:
        """Begin a handoff that nobody waits for: it goes on when whoever delegates has completed, and is a task of the
        session until then. Whoever delegates is told of its end. `started` as in `delegate`."""
        # what these two ask and record belongs to a call that is over by then
        return self._sent_off(self._begun(by, replace(order, primary=None, stands_in=None), started, background=True))

    def _sent_off(self, handoff: OpenHandoff) -> OpenHandoff:
        """Carry a handoff out in a task of its own, unless it has ended."""
        if handoff.final is not None:
            return handoff
        kept = ExitStack()
        kept.enter_context(self._launcher.keep(handoff.by.session))
        task = asyncio.create_task(self._on_its_own(handoff, kept), name=f"task {handoff.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return handoff

    async def _on_its_own(self, handoff: OpenHandoff, kept: ExitStack) -> None:
        with kept:  # left in one breath with its end, so that the session is idle by then
            try:
                await self._carried_out(handoff)
            except Exception:  # the border of a task of its own: nobody awaits it who could be told
                log.exception("task %s failed", handoff.id)

    # ── those of another process ────────────────────────────────────────────────────────────────────────────────

    def expect(self, left: LeftHandoff) -> None:
        """A handoff of another process, which the call that had begun it is about to go on with."""
        self._left[(left.row["run_id"], left.row["call_id"])] = left

    def expects(self, handoff_id: str) -> bool:
        """Whether a call is about to go on with that one."""
        return any(left.row["id"] == handoff_id for left in self._left.values())

    def left_runs(self, run_id: str, call_id: str) -> list[str]:
        """The runs of the handoff that this call is about to go on with."""
        left = self._left.get((run_id, call_id))
        return [] if left is None else [row["id"] for row in left.runs]

    def request_again(self, by: Delegator, order: HandoffOrder) -> RunRequest:
        """With what the run of a handoff that has ended was started."""
        ended = OpenHandoff("", order.name or "", by, order, 0.0, None, None)
        ended.budget = _budget(by, order)
        return self._attempts.request(ended, order.task)

    def forsaken(self, run_id: str) -> list[LeftHandoff]:
        """Those of a run that its calls have not gone on with; nobody will any more."""
        return [self._left.pop(key) for key in [key for key in self._left if key[0] == run_id]]

    def go_on(self, by: Delegator, order: HandoffOrder, left: LeftHandoff, above: tuple[str, ...] = ()) -> OpenHandoff:
        """Go on with a handoff of another process that no call waits for. `background` is what its row says; else it is
        one whose caller has gone away. `above`: the runs that it lies below, nearest first."""
        handoff = self._taken_up(by, replace(order, primary=None, stands_in=None), left, above)
        return self._sent_off(handoff)

    def _taken_up(
        self, by: Delegator, order: HandoffOrder, left: LeftHandoff, above: tuple[str, ...] = ()
    ) -> OpenHandoff:
        row, now = left.row, asyncio.get_running_loop().time()
        definition = order.definition if order.definition.name == row["agent"] else by.find(row["agent"])
        same = definition is order.definition and row["input"] in (order.input, self._masker.text(order.input))
        if definition is not None and not same:
            # hooks had put another agent or task in the place of what the call says
            order = replace(order, definition=definition, task=row["input"], context="", fields=None)
        plan = reuse_plan(by.session, order)
        if plan is not None and left.runs and plan.memory_id != left.runs[-1]["memory_id"]:
            plan = None  # who shares it has changed since; its own memory is gone on with
        handoff = OpenHandoff(row["id"], row["name"], by, order, now, None, plan)
        handoff.began -= max(0, now_us() - row["started_at"]) / 1e6
        handoff.budget = _budget(by, order, left.spent)
        handoff.background = bool(row["background"])
        handoff.runs = [run["id"] for run in left.runs]
        handoff.attempts, handoff.counted = left.attempts, bool(left.runs)
        handoff.left = left if left.runs else None
        if row["ended_at"] is not None:
            handoff.final = _stored_result(left)
            handoff.done.set()
        else:
            self._keep(handoff, above)
        return handoff

    def _begun(
        self,
        by: Delegator,
        order: HandoffOrder,
        started: Callable[[str, str], None] | None = None,
        *,
        background: bool = False,
    ) -> OpenHandoff:
        if by.run is not None and (left := self._left.pop((by.run.id, order.call_id), None)) is not None:
            return self._taken_up(by, order, left)
        began = asyncio.get_running_loop().time()
        name = self._launcher.name(by.session, order.name)
        handoff = OpenHandoff(order.id or new_id("ho"), name, by, order, began, started, reuse_plan(by.session, order))
        handoff.budget = _budget(by, order)
        handoff.background = background
        self._keep(handoff)
        self._recorder.record(by.run or by.session, events.HANDOFF_START, started_payload(handoff))
        return handoff

    def _keep(self, handoff: OpenHandoff, above: tuple[str, ...] = ()) -> None:
        """It is open from here on."""
        by = handoff.by
        self._open[handoff.id] = handoff
        if not handoff.background:
            return
        self._background[handoff.id] = handoff
        if by.run is not None:
            handoff.owner = None if handoff.order.detached else by.run.id
            handoff.above = above or (by.run.id, *reversed(self._launcher.lineage(by.run)))

    async def _carried_out(self, handoff: OpenHandoff) -> HandoffResult:
        result = handoff.result(HandoffStatus.FAILED, _FAULT)
        try:
            result = await self._governed(handoff)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # else nobody cancelled this: something inside was
                result = handoff.cut_short()
            raise
        finally:
            _settled(handoff, counts=False)  # cancelled before its first attempt
            if result.error is _FAULT:
                result = handoff.result(HandoffStatus.FAILED, _FAULT)
            self._recorder.record(self._scope(handoff), events.HANDOFF_END, ended_payload(handoff, result))
            del self._open[handoff.id]
            self._background.pop(handoff.id, None)
            handoff.final = result
            self._tell(handoff)
            handoff.done.set()
        return result

    def _scope(self, handoff: OpenHandoff) -> Run | Session:
        """Whose fact it is: nothing is said of a run that has ended."""
        by = handoff.by
        return by.run if by.run is not None and self._launcher.is_open(by.run.id) else by.session

    def _tell(self, handoff: OpenHandoff) -> None:
        """Let whoever delegates know that a task has ended (spec 9.3)."""
        if handoff.background and handoff.by.run is not None:
            self._told(handoff.by.session, handoff.by.run, handoff.state(), handoff.above)

    def tell_of(self, session: Session, run: Run, row: Row) -> None:
        """The same for a task of another process, of which nobody was told."""
        self._told(session, run, _stored_state(row))

    def _told(self, session: Session, run: Run, state: TaskState, above: tuple[str, ...] = ()) -> None:
        texts = session.texts
        said = self._masker.text(state.result if state.result is not None else state.error or "")
        content = filled(
            texts.task_ended,
            task_id=state.task_id,
            agent=state.agent,
            name=state.name,
            status=state.status.value,
            result=neutralised(bounded(said, NOTICE_CHARS, state.task_id, texts), texts),
        )
        self.notices.post(
            session,
            run,
            NoticeKind.TASK,
            content,
            scope=run if self._launcher.is_open(run.id) else None,
            task_id=state.task_id,
            status=state.status.value,
            above=above,
        )

    @property
    def in_flight(self) -> int:
        """How many are open."""
        return len(self._open)

    @property
    def open_tasks(self) -> int:
        """How many background tasks go on."""
        return len(self._tasks)

    # ── looked at from outside ──────────────────────────────────────────────────────────────────────────────────

    async def task(self, session: Session, task_id: str) -> TaskState | None:
        """A handoff of the session by its id, open or ended; None when there is none."""
        handoff = self._open.get(task_id)
        if handoff is not None:
            return handoff.state() if handoff.by.session.id == session.id else None
        row = await self._records.handoff(session.tenant, task_id)
        if row is None or row["session_id"] != session.id:
            return None
        return _stored_state(row)

    async def tasks(self, session: Session) -> Sequence[TaskState]:
        """The background tasks of a session, in the order of their starts."""
        found: list[TaskState] = []
        for row in await self._records.handoffs(session.tenant, session.id):
            if row["background"]:
                handoff = self._open.get(row["id"])
                found.append(handoff.state() if handoff is not None else _stored_state(row))
        return found

    async def resume_point(self, session: Session, wanted: str) -> ResumePoint:
        """What `wanted` names in a session: a task by its id, the id of one of its runs, or its readable name. Raises
        `NotFound` for what is none of these, `Conflict` for what has not ended or has no memory to go on with."""
        rows = await self._records.handoffs(session.tenant, session.id)
        row = next((row for row in rows if wanted in (row["id"], row["name"])), None)
        row = row or next((row for row in rows if wanted in (row["run_ids"] or ())), None)
        open_ones = (h for h in self._open.values() if h.by.session.id == session.id)
        busy = next((h for h in open_ones if wanted in (h.id, h.name, *h.runs) or (row and row["id"] == h.id)), None)
        if busy is not None:
            raise Conflict(
                f"task {busy.id} has not ended: wait for its result, or cancel it, before it is resumed",
                code="task_running",
            )
        if row is None:
            raise NotFound(
                f"there is no task {wanted[:80]!r} in this session: resume takes the id of a task (ho_…), that of one "
                "of its runs (run_…), or its name",
                code="unknown_task",
            )
        runs = await self._records.handoff_runs(session.tenant, row["id"])
        run = next((each for each in runs if each["id"] == wanted), runs[-1] if runs else None)
        if run is None:
            raise Conflict(f"task {row['id']} never began: there is nothing to resume", code="nothing_to_resume")
        plans = {h.id: h.plan for h in self._open.values() if h.plan is not None and h.plan.alone}
        taken = next((task for task, plan in plans.items() if plan.memory_id == run["memory_id"]), None)
        if taken is not None:
            raise Conflict(
                f"task {taken} goes on with the memory of {row['id']}: wait for its result, or cancel it, before that "
                "is resumed once more",
                code="task_running",
            )
        return ResumePoint(
            task_id=row["id"],
            agent=run["agent"],
            name=row["name"],
            memory_id=run["memory_id"],
            shared=row["session_scope"] is not None,
        )

    # ── tasks and whom they end with ────────────────────────────────────────────────────────────────────────────

    def above(self, handoff_id: str) -> tuple[str, ...]:
        """The runs that a task lies below, nearest first."""
        handoff = self._background.get(handoff_id)
        return handoff.above if handoff is not None else ()

    def owner(self, handoff_id: str) -> str | None:
        """The run with which a task ends; None for none."""
        handoff = self._open.get(handoff_id)
        return handoff.owner if handoff is not None else None

    def adopt(self, run_id: str, heir: str | None) -> None:
        """A run has ended, and its tasks go on under the nearest one above it that is open."""
        for handoff in self._background.values():
            if handoff.owner == run_id:
                handoff.owner = heir

    def owned(self, run_ids: Collection[str]) -> list[OpenHandoff]:
        """The open tasks that end with one of these runs."""
        return [handoff for handoff in self._background.values() if handoff.owner in run_ids]

    def begun_in(self, session_id: str) -> list[tuple[str, Collection[str]]]:
        """The open tasks of a session, detached ones too, each with the runs that it lies below."""
        return [(h.id, h.above) for h in self._background.values() if h.by.session.id == session_id]

    async def ended(self, task_id: str, timeout_s: float) -> bool:
        """Wait for the end of a handoff; whether it came in that time. One that is not open has ended."""
        handoff = self._open.get(task_id)
        if handoff is None:
            return True
        return await handoff.ended_within(timeout_s)

    def works_on(self, run: Run, task_id: str) -> bool:
        """Whether a run belongs to that handoff, or lies anywhere below it."""
        handoff = self._open.get(task_id)
        if handoff is None:
            return False
        return run.handoff_id == task_id or not set(handoff.runs).isdisjoint(self._launcher.lineage(run))

    def person(self, handoff_id: str | None, asked: bool) -> None:
        """A person begins (`asked`) or ceases to be asked in a handoff or below it."""
        handoff = self._open.get(handoff_id or "")
        if handoff is None:
            return
        if asked:
            handoff.clock.hold()
        else:
            handoff.clock.go_on()

    async def cancel(self, session: Session, task_id: str) -> bool:
        """End a handoff: its run with everything below it, and every attempt to come; False when it had ended."""
        handoff = self._open.get(task_id)
        if handoff is None or handoff.by.session.id != session.id:
            return False
        mine = not handoff.ending.is_set()
        handoff.stop(HandoffStatus.CANCELLED)
        if mine and handoff.runs:
            await self._launcher.cancel(handoff.runs[-1])
        if handoff.background:
            await self.ended(task_id, ENDING_S)
        return mine

    def stop(self, session_id: str | None = None, status: HandoffStatus = HandoffStatus.CANCELLED) -> None:
        """Begin nothing further in the handoffs of a session, or in all: neither an attempt nor a fallback. The runs
        that are under way are the launcher's to end."""
        for handoff in self._open.values():
            if session_id in (None, handoff.by.session.id):
                handoff.stop(status)

    async def settled(self, seconds: float, session_id: str | None = None) -> None:
        """Wait for the ends of the tasks that were stopped, in a session or in all, so long at most."""
        tasks = [h for h in self._background.values() if h.ending.is_set() and session_id in (None, h.by.session.id)]
        await asyncio.gather(*(handoff.ended_within(seconds) for handoff in tasks))

    # ── admission and input ─────────────────────────────────────────────────────────────────────────────────────

    async def _governed(self, handoff: OpenHandoff) -> HandoffResult:
        by, order = handoff.by, handoff.order
        if handoff.left is not None:  # it was admitted, and its input filtered
            on_error, text = by.policy.on_error if by.policy.enabled else None, handoff.left.runs[-1]["input"]
            result = await self._attempts.run(handoff, self._attempts.request(handoff, text))
            return await self._fall_back(handoff, result, on_error, text)
        denial = by.policy.denial(order.tool, by.child_depth, order.definition.name)
        if denial is None and by.run is None:  # else rules and persons were asked about the call
            denial = self._forbidden(by, order)
        if denial is not None:
            denied = handoff.result(HandoffStatus.DENIED, Failure(code="handoff_denied", message=denial))
            return await self._fall_back(handoff, denied, by.policy.on_denied)
        on_error = by.policy.on_error if by.policy.enabled else None
        refusal = _reserved(handoff)  # first: what a subagent inherits may cost a model call
        if refusal is not None:
            return await self._fall_back(handoff, handoff.result(HandoffStatus.FAILED, refusal), on_error)
        text = await self._input(handoff, order)
        _settled(handoff, counts=isinstance(text, str))
        if isinstance(text, Failure):
            return await self._fall_back(handoff, handoff.result(HandoffStatus.FAILED, text), on_error)
        result = await self._attempts.run(handoff, self._attempts.request(handoff, text))
        return await self._fall_back(handoff, result, on_error, text)

    async def _input(self, handoff: OpenHandoff, order: HandoffOrder) -> str | Failure:
        """The task message: what was asked and what is inherited, after the filters; or why there is none."""
        by, definition = handoff.by, order.definition
        try:
            given = HandoffInput(
                tool=order.tool,
                agent=definition.name,
                session_id=by.session.id,
                task=order.task,
                context=order.context,
                fields=order.fields,
                inherited=await self._of_conversation(handoff, order),
            )
            if by.policy.enabled and by.policy.input_filters:
                given = await self._filters.apply(by.policy.input_filters, given)
            text = composed(given.task, given.context, given.fields)
            return f"{text}\n\n{given.inherited}" if given.inherited else text
        except SubagentdError as error:
            return Failure(code=error.code, message=error.message)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return _filter_failed(handoff, error)
        except (Exception, SystemExit) as error:  # noqa: BLE001  border: filters are an operator's code
            return _filter_failed(handoff, error)

    async def _of_conversation(self, handoff: OpenHandoff, order: HandoffOrder) -> str:
        if order.inherited is not None:
            return order.inherited
        return await self._inherited(handoff.by, order, asks=not handoff.background)

    @staticmethod
    async def _inherited(by: Delegator, order: HandoffOrder, *, asks: bool) -> str:
        """What a subagent gets to read of the conversation of whoever delegates. Unless it `asks` the model of that
        run, which may be over, the last texts stand in for a summary."""
        inherit = order.definition.inherit_context.lowered(order.inherit)
        if inherit.kind is InheritKind.NONE or by.run is None:
            return ""
        heading = by.session.texts.inherited
        said = texts_of(by.history())
        if inherit.kind is InheritKind.SUMMARY and by.summary is not None and asks:
            return quoted(heading, [("summary", await by.summary())]) if said else ""
        count = LAST_TEXTS if inherit.kind is InheritKind.SUMMARY else inherit.count
        said = said[-count:] if count else []
        return quoted(heading, said) if said else ""

    # ── fallback ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _fall_back(
        self, handoff: OpenHandoff, result: HandoffResult, wanted: OnProblem | None, text: str | None = None
    ) -> HandoffResult:
        """What stands in for a handoff that gave no result, if its policy names something; once (spec 4.1). `text`: the
        task message, if there was one."""
        if result.ok or wanted is None or wanted.reaction in (Reaction.FAIL, Reaction.REPORT):
            return result
        if result.status in (HandoffStatus.CANCELLED, HandoffStatus.INTERRUPTED):
            return result  # nobody waits for it any more
        if handoff.ending.is_set():
            return handoff.cut_short()
        if wanted.reaction is Reaction.FALLBACK_TO_PRIMARY:
            return await self._primary(handoff, result)
        if wanted.reaction is Reaction.ANSWER:
            fallback = Fallback(kind="answer", target="")
            return replace(result, status=HandoffStatus.FALLBACK, answer=wanted.target, fallback=fallback)
        return await self._other(handoff, result, wanted, text)

    @staticmethod
    async def _primary(handoff: OpenHandoff, result: HandoffResult) -> HandoffResult:
        order, error = handoff.order, result.error
        if order.primary is None:
            texts = handoff.by.session.texts
            reason = bounded(
                error.message if error is not None else result.status.value, REASON_CHARS, handoff.id, texts
            )
            # it may quote a provider or a child
            content = filled(texts.unavailable, tool=order.tool, reason=neutralised(reason, texts))
            return replace(result, direct=ToolResult(content=content, is_error=True, status="error"))
        try:
            done = await order.primary()
        except Conflict as error:
            return _unusable(result, f"the tool {order.tool!r} was not called: {error.message}")
        fallback = Fallback(kind="primary", target=order.tool)
        return replace(result, status=HandoffStatus.FALLBACK, direct=done, fallback=fallback)

    async def _other(
        self, handoff: OpenHandoff, result: HandoffResult, wanted: OnProblem, text: str | None
    ) -> HandoffResult:
        """One attempt by another agent, or with another model. Admission, filters and budget hold for it as for the
        first."""
        by, order, who = handoff.by, handoff.order, f"the fallback {wanted.reaction.value} {wanted.target!r}"
        if wanted.reaction is Reaction.AGENT:
            definition = by.find(wanted.target)
            why = "does not exist" if definition is None else _not_allowed(by, order, definition)
            why = why or await self._kept_out(handoff, definition)
            if definition is None or why is not None:
                return _unusable(result, f"{who} {why}")
            if handoff.ending.is_set():
                return handoff.cut_short()
            text = None  # filters may look at who is asked
            # it reads what its own definition says, and does not go on with the memory of another agent
            order = replace(order, inherited=None, resume=None)
        else:
            definition = replace(order.definition, model=wanted.target)
        order = replace(order, definition=definition)
        refusal = _reserved(handoff)
        if refusal is not None:
            return _unusable(result, f"{who} was not tried: {refusal.message}")
        given = await self._input(handoff, order) if text is None else text
        _settled(handoff, counts=isinstance(given, str))
        if isinstance(given, Failure):
            return _unusable(result, f"{who} was not tried: {given.message}")
        fallback = handoff.fallback = Fallback(kind=wanted.reaction.value, target=wanted.target)
        other = replace(handoff, order=order, plan=reuse_plan(by.session, order))
        request = self._attempts.request(other, given, other_agent=wanted.reaction is Reaction.AGENT)
        until = handoff.until or deadline_of(by.policy, handoff.clock)
        tried = await self._attempts.once(other, request, until, counts=False)
        if tried.status is HandoffStatus.COMPLETED:
            return replace(tried, status=HandoffStatus.FALLBACK, error=result.error, fallback=fallback)
        return _both_failed(result, tried, who)

    # ── rules about whom is started ─────────────────────────────────────────────────────────────────────────────

    async def _kept_out(self, handoff: OpenHandoff, definition: AgentDefinition | None) -> str | None:
        """Why rules or a person do not let an agent stand in; None when they do, or when nobody waits for it any more.
        The handoff's clock stands still while a person is asked."""
        by, order = handoff.by, handoff.order
        if definition is None:
            return None
        if by.run is None or handoff.background:  # there is no call that could wait
            why = self._forbidden(by, replace(order, definition=definition, tool=_tool_for(definition, order)))
            return None if why is None else f"is not allowed: {why}"
        if order.stands_in is None:
            return None
        asked = asyncio.ensure_future(order.stands_in(_tool_for(definition, order), definition.name))
        ending = asyncio.create_task(handoff.ending.wait())
        handoff.clock.hold()
        try:
            await asyncio.wait((asked, ending), return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                await asked
        except CallDenied as error:
            return f"is not allowed: {error.message}"
        finally:
            handoff.clock.go_on()
            for task in (asked, ending):
                task.cancel()
            await asyncio.gather(asked, ending, return_exceptions=True)
        return None

    def _forbidden(self, by: Delegator, order: HandoffOrder) -> str | None:
        """Why rules forbid what a caller orders itself; None when they do not. There is no call that could wait for a
        person, so that what a rule asks about is forbidden as well."""
        policy, agent = by.permissions, order.definition.name
        if not isinstance(policy, PermissionPolicy):
            return None
        decision = policy.ordered(order.tool, agent)
        payload = decision_event(None, order.tool, {"agent": agent, "task": order.input}, decision)
        if payload is not None:
            self._recorder.record(by.session, events.PERMISSION_RESOLVED, payload)
        if decision.verdict is Verdict.ALLOW:
            return None
        hint = (
            "; nobody can be asked about a delegation that no run waits for" if decision.verdict is Verdict.ASK else ""
        )
        return f"{decision.reason}{hint}"


def _stored_result(left: LeftHandoff) -> HandoffResult:
    """How a handoff of another process ended."""
    row, outcome = left.row, outcome_of(left.runs[-1]) if left.runs else None
    error, fallback = row["error"], row["fallback"]
    return HandoffResult(
        handoff_id=row["id"],
        name=row["name"],
        status=HandoffStatus(row["status"]),
        outcome=outcome,
        error=None if not error else Failure(code=error["code"], message=error["message"]),
        run_ids=tuple(row["run_ids"] or ()),
        attempts=row["attempts"],
        fallback=Fallback(**fallback) if fallback else None,
        answer=(row["output"] or "") if fallback and fallback["kind"] in ("answer", "primary") else None,
    )


def _stored_state(row: Row) -> TaskState:
    status = HandoffStatus(row["status"])
    good = status in (HandoffStatus.COMPLETED, HandoffStatus.FALLBACK)
    return TaskState(
        task_id=row["id"],
        agent=row["agent"],
        name=row["name"],
        status=status,
        result=row["output"] or "" if good else None,
        error=None if good or not row["error"] else row["error"]["message"],
    )


def _tool_for(definition: AgentDefinition, order: HandoffOrder) -> str:
    """Under which tool name the lists of a policy know an agent that stands in."""
    if order.surface not in (SurfaceKind.PER_AGENT.value, DIRECT):
        return order.tool
    try:
        return tool_name_of(definition)
    except ValueError:
        return order.tool


def _unusable(result: HandoffResult, why: str) -> HandoffResult:
    error = result.error or _FAULT
    return replace(result, error=replace(error, message=f"{error.message} ({why})"))


def _budget(by: Delegator, order: HandoffOrder, before: Mapping[str, int] = NOTHING_BEFORE) -> Budget | None:
    """What bounds the whole handoff, over its attempts and fallback: what the caller asks for, inside what it has.
    `before`: what another process has used of it, by the kinds of a budget."""
    budget, spent = by.budget, dict(before)
    wall_ms = spent.pop("wall_ms", 0)
    for limits in (by.policy.budget if by.run is None else None, order.budget):
        budget = budget if limits is None else Budget(limits, budget, spent=Amount(**spent), wall_ms=wall_ms)
    return budget


def _reserved(handoff: OpenHandoff) -> Failure | None:
    """Keep one delegation of the budget for the handoff, once however many runs it has; why that cannot be done."""
    budget = handoff.by.budget
    if handoff.counted or budget is None:
        return None
    got = budget.reserve(ONE_DELEGATION)
    if isinstance(got, Refusal):
        return Failure(code=BUDGET_CODE, message=got.error().message)
    handoff.delegation = got
    return None


def _settled(handoff: OpenHandoff, *, counts: bool) -> None:
    """Spend what was kept, or give it back when the handoff begins nothing."""
    if handoff.delegation is not None:
        handoff.delegation.settle(ONE_DELEGATION if counts else NOTHING)
        handoff.delegation = None
        handoff.counted = counts


def _not_allowed(by: Delegator, order: HandoffOrder, definition: AgentDefinition) -> str | None:
    """Why an agent may not stand in; None when it may."""
    session = by.session
    # a caller may ask any agent, and so may its policy; a session's policy is as good as its list of agents
    named = {wanted.target for wanted in (session.policy.on_denied, session.policy.on_error) if wanted is not None}
    open_to_all = by.run is None or session.agents is None or definition.name in named
    if definition.mode is AgentMode.PRIMARY or not (open_to_all or definition.name in (session.agents or ())):
        return "is none of those that the session may delegate to"
    if by.agents is not None and definition.name not in by.agents:
        return "is none of those that the run may delegate to"
    denial = by.policy.denial(_tool_for(definition, order), by.child_depth, definition.name)
    return None if denial is None else f"is not allowed: {denial}"


def _both_failed(first: HandoffResult, tried: HandoffResult, who: str) -> HandoffResult:
    """The result of a fallback that gave none, which tells of both."""
    if first.error is None or tried.error is None:
        return tried
    message = f"{first.error.message}; {who} gave no result: {tried.error.message}"
    return replace(tried, error=replace(tried.error, message=message))


def _filter_failed(handoff: OpenHandoff, error: BaseException) -> Failure:
    log.error("the input of handoff %s failed", handoff.id, exc_info=error)
    return Failure(code="input_filter_failed", message=f"the input filter failed: {type(error).__name__}")
