"""One governed delegation: admission, input, attempts, fallback (spec 4.2). Its two events are always emitted.

Knows neither the tool shapes in front of it nor how a run is driven: it asks the launcher.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from app.agent import events
from app.agent.attempts import Attempts, outcome_of
from app.agent.budget import NOTHING, ONE_DELEGATION, Amount, Budget, Refusal
from app.agent.fallback import Fallbacks, forbidden
from app.agent.filters import InputFilters
from app.agent.handoff_input import HandoffInputs
from app.agent.ids import new_id, now_us
from app.agent.notices import NoticeKind, Notices
from app.agent.open_handoff import FAULT, LeftHandoff, OpenHandoff, ended_payload, started_payload
from app.agent.open_handoffs import HandoffRecords, OpenHandoffs, stored_state
from app.agent.orders import (
    SUBAGENT_STEPS,
    Delegator,
    HandoffOrder,
    HandoffResult,
    Pacing,
    TaskState,
    reuse_plan,
)
from app.agent.ports import Masker, Recorder
from app.agent.returned import bounded, neutralised
from app.agent.run_ports import Launcher
from app.agent.runs import Failure, Fallback, HandoffStatus, Run, RunRequest, Session
from app.agent.texts import filled

log = logging.getLogger(__name__)

NOTICE_CHARS = 1_000  # of a result in the notice that its task has ended; get_task_output returns the whole

NOTHING_BEFORE: Mapping[str, int] = MappingProxyType({})

Row = Mapping[str, Any]


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
        self._attempts = Attempts(launcher, pacing or Pacing(), default_steps)
        self._inputs = HandoffInputs(filters)
        self._fallbacks = Fallbacks(self._attempts, self._inputs, recorder)
        self.open = OpenHandoffs(launcher, records)
        self._masker = masker
        self.notices = notices
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
        return replace(order, inherited=await self._inputs.inherited(by, order, asks=True))

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

    def expected(self, run_ids: Collection[str]) -> list[Row]:
        """The rows of those that calls of these runs are about to go on with."""
        return [left.row for (run_id, _), left in self._left.items() if run_id in run_ids]

    def request_again(self, by: Delegator, order: HandoffOrder, spent: Mapping[str, int]) -> RunRequest:
        """With what the run of a handoff that has ended was started. `spent`: what the handoff has used, by the kinds
        of a budget, `wall_ms` among them."""
        ended = OpenHandoff("", order.name or "", by, order, 0.0, None, None)
        ended.budget = _budget(by, order, spent)
        return self._attempts.request(ended, order.task)

    def forsaken(self, run_id: str) -> list[LeftHandoff]:
        """Those of a run that its calls have not gone on with; nobody will any more."""
        return [self._left.pop(key) for key in [key for key in self._left if key[0] == run_id]]

    def unclaimed(self, run_id: str, call_id: str) -> LeftHandoff | None:
        """The one that this call has not gone on with; nobody will any more."""
        return self._left.pop((run_id, call_id), None)

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
            self.open.add(handoff, above)
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
        self.open.add(handoff)
        self._recorder.record(by.run or by.session, events.HANDOFF_START, started_payload(handoff))
        return handoff

    async def _carried_out(self, handoff: OpenHandoff) -> HandoffResult:
        result = handoff.result(HandoffStatus.FAILED, FAULT)
        try:
            result = await self._governed(handoff)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # else nobody cancelled this: something inside was
                result = handoff.cut_short()
            raise
        finally:
            handoff.settle(counts=False)  # cancelled before its first attempt
            if result.error is FAULT:
                result = handoff.result(HandoffStatus.FAILED, FAULT)
            self._recorder.record(self._scope(handoff), events.HANDOFF_END, ended_payload(handoff, result))
            self.open.remove(handoff)
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

    def tell_of(self, session: Session, run: Run, row: Row, above: tuple[str, ...]) -> None:
        """The same for a task of another process, of which nobody was told. `above`: the runs above that one, nearest
        first."""
        self._told(session, run, stored_state(row), above)

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
    def open_tasks(self) -> int:
        """How many background tasks go on."""
        return len(self._tasks)

    # ── admission and input ─────────────────────────────────────────────────────────────────────────────────────

    async def _governed(self, handoff: OpenHandoff) -> HandoffResult:
        by, order = handoff.by, handoff.order
        if handoff.left is not None:  # it was admitted, and its input filtered
            on_error, text = by.policy.on_error if by.policy.enabled else None, handoff.left.runs[-1]["input"]
            result = await self._attempts.run(handoff, self._attempts.request(handoff, text))
            return await self._fallbacks.stand_in(handoff, result, on_error, text)
        denial = by.policy.denial(order.tool, by.child_depth, order.definition.name)
        if denial is None and by.run is None:  # else rules and persons were asked about the call
            denial = forbidden(self._recorder, by, order)
        if denial is not None:
            denied = handoff.result(HandoffStatus.DENIED, Failure(code="handoff_denied", message=denial))
            return await self._fallbacks.stand_in(handoff, denied, by.policy.on_denied)
        on_error = by.policy.on_error if by.policy.enabled else None
        refusal = handoff.reserve()  # first: what a subagent inherits may cost a model call
        if refusal is not None:
            return await self._fallbacks.stand_in(handoff, handoff.result(HandoffStatus.FAILED, refusal), on_error)
        text = await self._inputs.text(handoff, order)
        handoff.settle(counts=isinstance(text, str))
        if isinstance(text, Failure):
            return await self._fallbacks.stand_in(handoff, handoff.result(HandoffStatus.FAILED, text), on_error)
        result = await self._attempts.run(handoff, self._attempts.request(handoff, text))
        return await self._fallbacks.stand_in(handoff, result, on_error, text)


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


def _budget(by: Delegator, order: HandoffOrder, before: Mapping[str, int] = NOTHING_BEFORE) -> Budget | None:
    """What bounds the whole handoff, over its attempts and fallback: what the caller asks for, inside what it has.
    `before`: what another process has used of it, by the kinds of a budget."""
    budget, spent = by.budget, dict(before)
    wall_ms = spent.pop("wall_ms", 0)
    for limits in (by.policy.budget if by.run is None else None, order.budget):
        budget = budget if limits is None else Budget(limits, budget, spent=Amount(**spent), wall_ms=wall_ms)
    return budget
