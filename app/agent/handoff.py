"""One governed delegation: admission, input, attempts, fallback (spec 4.2). Its two events are always emitted.

Knows neither the tool shapes in front of it nor how a run is driven: it asks the launcher.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.agent import events
from app.agent.attempts import Attempts, OpenHandoff, deadline_of, ended_payload, started_payload
from app.agent.budget import NOTHING, ONE_DELEGATION, Budget, Refusal
from app.agent.clearance import decision_event
from app.agent.definition import AgentDefinition, AgentMode, Inherit, InheritKind, SurfaceKind, tool_name_of
from app.agent.errors import CallDenied, Conflict, SubagentdError
from app.agent.events import Recorder
from app.agent.filters import InputFilters
from app.agent.ids import new_id
from app.agent.inheritance import quoted, texts_of
from app.agent.orders import (
    BUDGET_CODE,
    DIRECT,
    SUBAGENT_STEPS,
    Delegator,
    HandoffOrder,
    HandoffResult,
    Pacing,
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
    Session,
)
from app.agent.texts import filled
from app.agent.tools import ToolResult

log = logging.getLogger(__name__)

_FAULT = Failure(code="internal_error", message="internal error; the server's log has the details")

REASON_CHARS = 4_000  # of why a handoff failed, in a result that says that nothing can stand in for it

Lookup = Callable[[str, str], Awaitable[Mapping[str, Any] | None]]


class Handoffs:
    """Carries out handoffs for all runs of the service."""

    def __init__(
        self,
        launcher: Launcher,
        recorder: Recorder,
        filters: InputFilters,
        *,
        lookup: Lookup,
        default_steps: int = SUBAGENT_STEPS,
        pacing: Pacing | None = None,
    ) -> None:
        """`lookup` reads the row of a handoff that has ended, by tenant and id."""
        self._launcher = launcher
        self._recorder = recorder
        self._filters = filters
        self._attempts = Attempts(launcher, pacing or Pacing(), default_steps)
        self._lookup = lookup
        self._open: dict[str, OpenHandoff] = {}

    async def delegate(
        self, by: Delegator, order: HandoffOrder, started: Callable[[str, str], None] | None = None
    ) -> HandoffResult:
        """Admission, input, attempts, fallback; `started` is told the handoff's and the first run's id.

        Never raises for a denied or failed handoff. When the caller is cancelled the child is cancelled first.
        """
        began = asyncio.get_running_loop().time()
        name = self._launcher.name(by.session, order.name)
        handoff = OpenHandoff(new_id("ho"), name, by, order, began, started, reuse_plan(by.session, order))
        handoff.budget = _budget(by, order)
        self._open[handoff.id] = handoff
        self._recorder.record(by.run or by.session, events.HANDOFF_START, started_payload(handoff))
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
            self._recorder.record(by.run or by.session, events.HANDOFF_END, ended_payload(handoff, result))
            del self._open[handoff.id]
            handoff.final = result
            handoff.done.set()
        return result

    # ── looked at from outside ──────────────────────────────────────────────────────────────────────────────────

    async def task(self, session: Session, task_id: str) -> TaskState | None:
        """A handoff of the session by its id, open or ended; None when there is none."""
        handoff = self._open.get(task_id)
        if handoff is not None:
            return handoff.state() if handoff.by.session.id == session.id else None
        row = await self._lookup(session.tenant, task_id)
        if row is None or row["session_id"] != session.id:
            return None
        status = HandoffStatus(row["status"])
        good = status in (HandoffStatus.COMPLETED, HandoffStatus.FALLBACK)
        return TaskState(
            task_id=task_id,
            agent=row["agent"],
            name=row["name"],
            status=status,
            result=row["output"] or "" if good else None,
            error=None if good or not row["error"] else row["error"]["message"],
        )

    async def tasks(self, session: Session) -> Sequence[TaskState]:
        """The background tasks of a session; every handoff is waited for as yet."""
        return ()

    async def ended(self, task_id: str, timeout_s: float) -> bool:
        """Wait for the end of a handoff; whether it came in that time. One that is not open has ended."""
        handoff = self._open.get(task_id)
        if handoff is None:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await handoff.done.wait()
        except TimeoutError:
            return False
        return True

    def works_on(self, run: Run, task_id: str) -> bool:
        """Whether a run belongs to that handoff, or lies anywhere below it."""
        above: Run | None = run
        while above is not None and above.handoff_id is not None:
            if above.handoff_id == task_id:
                return True
            handoff = self._open.get(above.handoff_id)
            above = handoff.by.run if handoff is not None else None
        return False

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
        if handoff is None or handoff.by.session.id != session.id or handoff.ending.is_set():
            return False
        handoff.stop(HandoffStatus.CANCELLED)
        if handoff.runs:
            await self._launcher.cancel(handoff.runs[-1])
        return True

    def stop(self, session_id: str | None = None, status: HandoffStatus = HandoffStatus.CANCELLED) -> None:
        """Begin nothing further in the handoffs of a session, or in all: neither an attempt nor a fallback. The runs
        that are under way are the launcher's to end."""
        for handoff in self._open.values():
            if session_id in (None, handoff.by.session.id):
                handoff.stop(status)

    # ── admission and input ─────────────────────────────────────────────────────────────────────────────────────

    async def _governed(self, handoff: OpenHandoff) -> HandoffResult:
        by, order = handoff.by, handoff.order
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
                inherited=await self._inherited(by, definition.inherit_context.lowered(order.inherit)),
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

    @staticmethod
    async def _inherited(by: Delegator, inherit: Inherit) -> str:
        if inherit.kind is InheritKind.NONE or by.run is None:
            return ""
        heading = by.session.texts.inherited
        said = texts_of(by.history())
        if inherit.kind is InheritKind.SUMMARY and by.summary is not None:
            return quoted(heading, [("summary", await by.summary())]) if said else ""
        said = said[-inherit.count :] if inherit.count else []
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
            text = None  # what it inherits is its own definition's to say, and filters may look at who is asked
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
        if by.run is None:
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
            "; nobody can be asked about a delegation without a parent run" if decision.verdict is Verdict.ASK else ""
        )
        return f"{decision.reason}{hint}"


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


def _budget(by: Delegator, order: HandoffOrder) -> Budget | None:
    """What bounds the whole handoff, over its attempts and fallback: what the caller asks for, inside what it has."""
    budget = by.budget
    for limits in (by.policy.budget if by.run is None else None, order.budget):
        budget = budget if limits is None else Budget(limits, budget)
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
