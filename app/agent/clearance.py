"""May this call be carried out, and with which arguments: hooks, permissions and persons, in the order of spec 6.5.

Knows neither how a call runs (`calls.py`) nor how any of the three decides.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.agent import events
from app.agent.approvals import AnswerKind, Approvals, digest_of
from app.agent.errors import CallDenied, InvalidArguments
from app.agent.events import Recorder
from app.agent.hooks import Decision as HookVerdict
from app.agent.hooks import HookCall, HookPoint, HookRegistry
from app.agent.permissions import Decision, DecisionKind, Means, PermissionPolicy, Verdict
from app.agent.runs import Run, Session
from app.agent.tools import SchemaChecker, Tool, ToolResult, ToolSpec

LAST_WORD_S = 5.0  # for the hooks of a call that was cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearance:
    """What one run's calls go through. `means` tells what a decision needs to know of a tool's agents and paths;
    `person` is told when a person begins and ceases to be asked, so that clocks stand still meanwhile."""

    recorder: Recorder
    checker: SchemaChecker
    hooks: HookRegistry
    permissions: PermissionPolicy
    approvals: Approvals
    session: Session
    run: Run
    lineage: tuple[str, ...]
    workspace: str
    means: Callable[[ToolSpec], Means]
    person: Callable[[bool], None]
    waits: Callable[[bool], None]

    async def before(self, step: int, call_id: str, tool: Tool, arguments: Any) -> Any:
        """The arguments with which the call may run. Raises `CallDenied` with what the model is told."""
        if self.hooks.has(HookPoint.PRE_TOOL_USE):
            arguments = await self._hooked(step, call_id, tool, arguments)
        return await self.permitted(step, call_id, tool, arguments)

    async def permitted(self, step: int, call_id: str, tool: Tool, arguments: Any) -> Any:
        """The same without the hooks: what rules and persons say."""
        decision = self._decided(tool, arguments)
        if decision.verdict is Verdict.ASK:
            return await self._asked(step, call_id, tool, arguments, decision)
        self._note(step, call_id, tool, arguments, decision)
        if decision.verdict is Verdict.DENY:
            raise CallDenied(f"Permission denied: {decision.reason}")
        return arguments

    async def after(
        self, step: int, call_id: str, tool: Tool, arguments: Any, result: ToolResult, duration_ms: int
    ) -> ToolResult:
        """The result after the hooks: what they put in its place, or with their objection."""
        if not self.hooks.has(HookPoint.POST_TOOL_USE):
            return result
        call = replace(
            self._call(HookPoint.POST_TOOL_USE, tool, call_id, arguments),
            output=result.content,
            is_error=result.is_error,
            duration_ms=duration_ms,
        )
        outcome = await self.hooks.fire(call, self._record(step, call_id, tool.spec.name))
        content = result.content if outcome.call.output is None else outcome.call.output
        if outcome.block is not None:
            status = "error" if result.status == "ok" else result.status
            content = f"{content}\n\n[hook {outcome.blocked_by}: {outcome.block}]"
            return replace(result, content=content, is_error=True, status=status)
        return result if content == result.content else replace(result, content=content)

    async def last_word(self, step: int, call_id: str, tool: Tool, arguments: Any, text: str, duration_ms: int) -> None:
        """The hooks of a call that was cancelled: each start has its end. They get a few seconds."""
        ended = ToolResult(content=text, is_error=True, status="cancelled")
        try:
            async with asyncio.timeout(LAST_WORD_S):
                await self.after(step, call_id, tool, arguments, ended, duration_ms)
        except TimeoutError:
            pass

    # ── hooks ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _hooked(self, step: int, call_id: str, tool: Tool, arguments: Any) -> Any:
        call = self._call(HookPoint.PRE_TOOL_USE, tool, call_id, arguments)
        outcome = await self.hooks.fire(
            call, self._record(step, call_id, tool.spec.name), lambda changed: self._problem(tool.spec, changed)
        )
        if outcome.block is not None:
            raise CallDenied(f"Blocked by hook {outcome.blocked_by}: {outcome.block}")
        changed = outcome.call.arguments
        if changed is call.arguments:
            return arguments
        return json.dumps(changed, ensure_ascii=False) if tool.spec.raw_arguments else changed

    def _problem(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> str | None:
        """What is wrong with arguments that a hook or a person gave."""
        schema = spec.parameters if spec.accepts is None else spec.accepts
        return self.checker.check(schema, arguments)

    def _call(self, point: HookPoint, tool: Tool, call_id: str, arguments: Any) -> HookCall:
        call = HookCall.of(self.run, point, lineage=self.lineage, workspace=self.workspace)
        return replace(call, call_id=call_id, tool=tool.spec.name, arguments=arguments)

    def _record(self, step: int, call_id: str | None, tool: str | None) -> Callable[[HookVerdict], None]:
        def record(decision: HookVerdict) -> None:
            self.recorder.record(self.run, events.HOOK_DECISION, hook_event(decision, tool, call_id), step=step)

        return record

    # ── permissions and persons ─────────────────────────────────────────────────────────────────────────────────

    def _decided(self, tool: Tool, arguments: Any) -> Decision:
        means = self.means(tool.spec)
        answers = self.approvals.rules(self.session.id)
        return self.permissions.decide(tool.spec, arguments, replace(means, answers=answers) if answers else means)

    def _note(self, step: int, call_id: str, tool: Tool, arguments: Any, decision: Decision) -> None:
        """A decision that a rule has made, or the default where it is not to allow, goes to the log."""
        if decision.kind is DecisionKind.DEFAULT and decision.verdict is Verdict.ALLOW:
            return  # nobody has restricted anything
        payload = events.PermissionResolved(
            approval_id=None,
            call_id=call_id,
            tool=tool.spec.name,
            digest=digest_of(tool.spec.name, arguments),
            decision=decision.verdict.value,
            kind=decision.kind.value,
            by=None,
            rule=decision.rule or None,
            scope=decision.scope.value if decision.scope is not None else None,
            owner=decision.owner or None,
            reason=decision.reason,
            arguments=None,
        )
        self.recorder.record(self.run, events.PERMISSION_RESOLVED, payload, step=step)

    async def _asked(self, step: int, call_id: str, tool: Tool, arguments: Any, decision: Decision) -> Any:
        self.waits(True)
        self.person(True)
        try:
            answer = await self.approvals.ask(
                self.session,
                self.run,
                step,
                call_id,
                tool.spec.name,
                arguments,
                decision,
                lambda: self._decided(tool, arguments),
                lambda changed: None if tool.spec.raw_arguments else self._problem(tool.spec, changed),
            )
        finally:
            self.person(False)
            self.waits(False)
        if answer.kind is AnswerKind.EXPIRED:
            raise CallDenied("Not run: nobody answered the permission request in time. It was not denied.")
        if not answer.allows:
            guidance = f" {answer.message}" if answer.message else ""
            raise CallDenied(f"A person denied this call.{guidance}")
        if answer.arguments is None:
            return arguments
        return self._edited(step, call_id, tool, answer.arguments)

    def _edited(self, step: int, call_id: str, tool: Tool, arguments: Mapping[str, Any]) -> Any:
        """Arguments that a person has changed are validated and decided like all others; a question about them is
        answered by the one who wrote them."""
        problem = None if tool.spec.raw_arguments else self._problem(tool.spec, arguments)
        if problem is not None:
            raise InvalidArguments(f"The arguments that a person gave for {tool.spec.name} are invalid: {problem}")
        given: Any = json.dumps(dict(arguments), ensure_ascii=False) if tool.spec.raw_arguments else arguments
        decision = self._decided(tool, given)
        if decision.verdict is Verdict.DENY:
            self._note(step, call_id, tool, given, decision)
            raise CallDenied(f"Permission denied for the arguments that a person gave: {decision.reason}")
        return given


def hook_event(decision: HookVerdict, tool: str | None, call_id: str | None) -> events.HookDecision:
    """What the log says of a hook's decision."""
    return events.HookDecision(
        hook=decision.hook,
        kind=decision.kind,
        point=decision.point.value,
        decision=decision.decision,
        reason=decision.reason,
        effect=decision.effect,
        tool=tool,
        call_id=call_id,
        duration_ms=decision.duration_ms,
    )
