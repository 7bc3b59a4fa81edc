"""What stands in for a handoff that gave no result (spec 4.1): the ordinary tool of its name, a fixed answer, another
agent, another model; and who may.

Knows nothing of how the handoff itself was carried out.
"""

import asyncio
from dataclasses import replace

from app.agent import events
from app.agent.attempts import Attempts, deadline_of
from app.agent.clearance import decision_event
from app.agent.definition import AgentDefinition, AgentMode, SurfaceKind, tool_name_of
from app.agent.errors import CallDenied, Conflict
from app.agent.handoff_input import HandoffInputs
from app.agent.open_handoff import FAULT, OpenHandoff
from app.agent.orders import DIRECT, Delegator, HandoffOrder, HandoffResult, reuse_plan
from app.agent.permissions import PermissionPolicy, Verdict
from app.agent.policy import OnProblem, Reaction
from app.agent.ports import Recorder
from app.agent.returned import bounded, neutralised
from app.agent.runs import Failure, Fallback, HandoffStatus
from app.agent.texts import filled
from app.agent.tools import ToolResult

REASON_CHARS = 4_000  # of why a handoff failed, in a result that says that nothing can stand in for it


class Fallbacks:
    """Finds stand-ins for handoffs, once for each."""

    def __init__(self, attempts: Attempts, inputs: HandoffInputs, recorder: Recorder) -> None:
        self._attempts = attempts
        self._inputs = inputs
        self._recorder = recorder

    async def stand_in(
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
        refusal = handoff.reserve()
        if refusal is not None:
            return _unusable(result, f"{who} was not tried: {refusal.message}")
        given = await self._inputs.text(handoff, order) if text is None else text
        handoff.settle(counts=isinstance(given, str))
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

    async def _kept_out(self, handoff: OpenHandoff, definition: AgentDefinition | None) -> str | None:
        """Why rules or a person do not let an agent stand in; None when they do, or when nobody waits for it any more.
        The handoff's clock stands still while a person is asked."""
        by, order = handoff.by, handoff.order
        if definition is None:
            return None
        if by.run is None or handoff.background:  # there is no call that could wait
            why = forbidden(
                self._recorder, by, replace(order, definition=definition, tool=_tool_for(definition, order))
            )
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


def forbidden(recorder: Recorder, by: Delegator, order: HandoffOrder) -> str | None:
    """Why rules forbid what a caller orders itself; None when they do not. There is no call that could wait for a
    person, so that what a rule asks about is forbidden as well."""
    policy, agent = by.permissions, order.definition.name
    if not isinstance(policy, PermissionPolicy):
        return None
    decision = policy.ordered(order.tool, agent)
    payload = decision_event(None, order.tool, {"agent": agent, "task": order.input}, decision)
    if payload is not None:
        recorder.record(by.session, events.PERMISSION_RESOLVED, payload)
    if decision.verdict is Verdict.ALLOW:
        return None
    hint = "; nobody can be asked about a delegation that no run waits for" if decision.verdict is Verdict.ASK else ""
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
    error = result.error or FAULT
    return replace(result, error=replace(error, message=f"{error.message} ({why})"))


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
