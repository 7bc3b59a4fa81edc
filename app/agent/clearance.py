"""May this call be carried out, and with which arguments: hooks, permissions and persons, in the order of spec 6.5.

Knows neither how a call runs (`calls.py`) nor how any of the three decides.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from app.agent import events
from app.agent.admission import Places
from app.agent.approvals import AnswerKind, Approvals, digest_of
from app.agent.errors import CallDenied, InvalidArguments
from app.agent.governed import HookDecision, PermissionResolved
from app.agent.hooks import Decision as HookVerdict
from app.agent.hooks import HookCall, HookPoint, HookRegistry, Outcome, Round
from app.agent.interruption import Interruption, OutOfTime, bounded
from app.agent.permission_rules import COMMAND, PermissionRule, lies_in
from app.agent.permission_subjects import place_of
from app.agent.permissions import Decision, DecisionKind, Means, PermissionPolicy, Verdict
from app.agent.ports import Recorder
from app.agent.runs import AskedBefore, Run, Session
from app.agent.tools import SchemaChecker, Tool, ToolResult, ToolSpec

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """A call that may run, with these arguments. `asked`: a person has allowed it, and `place` is the file or directory
    that this was about, resolved, if it was about one."""

    arguments: Any
    asked: bool = False
    place: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What of the workspace one call may see."""

    permissions: PermissionPolicy
    spec: ToolSpec
    answers: Sequence[PermissionRule]
    approved: str | None

    @property
    def conceals(self) -> Callable[[str], bool] | None:
        """Whether a search leaves a path out, or a command must not read it; None where a command may read all."""
        concealed = self.permissions.concealing(self.spec, self.answers, self.approved)
        return _nothing if concealed is None and self.spec.name != COMMAND else concealed

    @property
    def protects(self) -> Callable[[str], bool] | None:
        """Whether a command must not change a path; None where it may change all."""
        return self.permissions.protecting(self.spec)

    def refuses(self, place: str | None) -> str | None:
        """Why what was opened may not be read; None when it may."""
        if place is None:
            return "it cannot be told which file of the workspace was opened"
        decision = self.permissions.opening(self.spec, place, self.answers)
        meant = self.approved is not None and lies_in(place, self.approved)
        if decision.verdict is Verdict.ALLOW or (decision.verdict is Verdict.ASK and meant):
            return None
        return decision.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearance:
    """What one run's calls go through. `means` tells what a decision needs to know of a tool's agents and paths;
    `person` is told when a person begins and ceases to be asked, so that clocks stand still meanwhile, `waits` when the
    run begins and ceases to wait for that; `places` are given to others then. `last_word_s` is around what is told of a
    call that was cancelled, and gives the seconds for it."""

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
    places: Places
    last_word_s: Callable[[], contextlib.AbstractContextManager[float]]

    async def before(self, step: int, call_id: str, tool: Tool, arguments: Any) -> Cleared:
        """The call as it may run. Raises `CallDenied` with what the model is told."""
        wanted = None
        if self.hooks.has(HookPoint.PRE_TOOL_USE):
            arguments, wanted = await self._hooked(step, call_id, tool, arguments)
        return await self.permitted(step, call_id, tool, arguments, wanted)

    async def resumed(self, step: int, call_id: str, tool: Tool, before: AskedBefore) -> Cleared:
        """The call of an earlier process that was asked about there: hooks have had their say."""
        decision = self._decided(tool, before.arguments)
        if decision.verdict is Verdict.DENY:  # rules may have changed meanwhile
            self.withdraw(before, call_id, tool.spec.name)
            self._note(step, call_id, tool.spec.name, before.arguments, decision)
            raise CallDenied(f"Permission denied: {decision.reason}")
        wanted = replace(decision, verdict=Verdict.ASK)
        return await self._asked(step, call_id, tool, before.arguments, wanted, None, before)

    def withdraw(self, before: AskedBefore, call_id: str, tool: str) -> None:
        """A question of an earlier process is not put again; nothing happens when it was answered."""
        if before.answer is None:
            self.approvals.withdraw(self.run, before, call_id, tool)

    async def permitted(
        self, step: int, call_id: str, tool: Tool, arguments: Any, wanted: Decision | None = None
    ) -> Cleared:
        """The same without the hooks: what rules and persons say. `wanted`: a question that a hook has, which is put
        where the rules have none."""
        decision = self._decided(tool, arguments, wanted)
        if decision.verdict is Verdict.ASK:
            return await self._asked(step, call_id, tool, arguments, decision, wanted)
        self._note(step, call_id, tool.spec.name, arguments, decision)
        if decision.verdict is Verdict.DENY:
            raise CallDenied(f"Permission denied: {decision.reason}")
        return Cleared(arguments=arguments)

    async def stands_in(
        self, step: int, call_id: str, tool: str, agent: str, arguments: Any, before: AskedBefore | None = None
    ) -> None:
        """Whether an agent may stand in for the one that a call asked for. `before`: what an earlier process had asked
        about one. Raises `CallDenied`."""

        def decided() -> Decision:
            return self.permissions.starting(tool, agent, self.approvals.rules(self.session.id))

        decision = decided()
        if before is not None and (decision.verdict is Verdict.DENY or before.arguments["agent"] != agent):
            self.withdraw(before, call_id, tool)  # rules and policies may have changed meanwhile
            before = None
        if before is not None:
            decision = replace(decision, verdict=Verdict.ASK)
        if decision.verdict is not Verdict.ASK:
            self._note(step, call_id, tool, {"agent": agent, "call": arguments}, decision)
        if decision.verdict is Verdict.DENY:
            raise CallDenied(f"Permission denied: {decision.reason}")
        if decision.verdict is Verdict.ASK:
            about = {"agent": agent, "call": arguments}
            as_it_is = "the task stays as it is"
            await self._answered(
                step, call_id, tool, about, decision, decided, lambda _: as_it_is, before, stands_in=True
            )

    def sight(self, spec: ToolSpec, cleared: Cleared) -> Sight | None:
        """What a call may see of the workspace; None where nobody restricts that."""
        if self.permissions.is_open(spec):
            return None
        answers = self.approvals.rules(self.session.id)
        # a person who has allowed a command has allowed it all that somebody would be asked about
        approved = "." if spec.name == COMMAND and cleared.asked else cleared.place
        return Sight(permissions=self.permissions, spec=spec, answers=answers, approved=approved)

    async def after(
        self, step: int, call_id: str, tool: Tool, arguments: Any, result: ToolResult, duration_ms: int
    ) -> ToolResult:
        """The result after the hooks: what they put in its place, or with their objection."""
        if not self.hooks.has(HookPoint.POST_TOOL_USE):
            return result
        call, going = self._ended(call_id, tool, arguments, result, duration_ms), Round()
        with self._recording(step, call_id, tool.spec.name) as record:
            try:
                outcome = await self._to_its_end(self.hooks.fire(call, record, going=going))
            except asyncio.CancelledError:  # out of time: who comes after the one that took it all hears of it, too
                with contextlib.suppress(OutOfTime), self.last_word_s() as seconds:
                    await spoken(self.hooks.tell(call, record, besides=going.asked), seconds)
                raise
        content = result.content if outcome.call.output is None else outcome.call.output
        if outcome.block is not None:
            status = "error" if result.status == "ok" else result.status
            content = f"{content}\n\n[hook {outcome.blocked_by}: {outcome.block}]"
            return replace(result, content=content, is_error=True, status=status)
        return result if content == result.content else replace(result, content=content)

    async def last_word(self, step: int, call_id: str, tool: Tool, arguments: Any, text: str, duration_ms: int) -> None:
        """The hooks of a call that was cancelled: each start has its end. They get a few seconds, also when the run is
        cancelled once more."""
        if not self.hooks.has(HookPoint.POST_TOOL_USE):
            return
        ended = ToolResult(content=text, is_error=True, status="cancelled")
        call = self._ended(call_id, tool, arguments, ended, duration_ms)
        with (
            self._recording(step, call_id, tool.spec.name) as record,
            contextlib.suppress(OutOfTime),
            self.last_word_s() as seconds,
        ):
            await spoken(self.hooks.tell(call, record), seconds)

    def _ended(self, call_id: str, tool: Tool, arguments: Any, result: ToolResult, duration_ms: int) -> HookCall:
        return replace(
            self._call(HookPoint.POST_TOOL_USE, tool, call_id, arguments),
            output=result.content,
            is_error=result.is_error,
            duration_ms=duration_ms,
        )

    @contextlib.contextmanager
    def _recording(self, step: int, call_id: str, tool: str) -> Iterator[Callable[[HookVerdict], None]]:
        """Decisions are recorded while this is open: a hook that is left behind must not write after the result."""
        record, is_open = self._record(step, call_id, tool), True
        try:
            yield lambda decision: record(decision) if is_open else None
        finally:
            is_open = False

    async def _to_its_end(self, asked: Coroutine[Any, Any, Outcome]) -> Outcome:
        """What hooks say of something that is done, which a cancellation does not break off for some seconds. Of what
        was done in spite of one they have as long."""
        task, asking = asyncio.current_task(), asyncio.create_task(asked, name=f"hooks of {self.run.id}")
        try:
            if task is None or not task.cancelling():
                return await asyncio.shield(asking)
        except asyncio.CancelledError:
            pass
        with self.last_word_s() as seconds:
            try:
                return await spoken(_of(asking), seconds)
            except OutOfTime:
                raise asyncio.CancelledError from None

    # ── hooks ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _hooked(self, step: int, call_id: str, tool: Tool, arguments: Any) -> tuple[Any, Decision | None]:
        """The arguments as hooks have left them, and what one of them wants a person to be asked."""
        call = self._call(HookPoint.PRE_TOOL_USE, tool, call_id, arguments)
        outcome = await self.hooks.fire(
            call, self._record(step, call_id, tool.spec.name), lambda changed: self._problem(tool.spec, changed)
        )
        if outcome.block is not None:
            raise CallDenied(f"Blocked by hook {outcome.blocked_by}: {outcome.block}")
        changed, wanted = outcome.call.arguments, None
        if outcome.ask is not None:
            reason = f"hook {outcome.asked_by} wants a person to decide: {outcome.ask}"
            wanted = Decision(verdict=Verdict.ASK, kind=DecisionKind.DEFAULT, reason=reason, owner=self.run.agent)
        if changed is call.arguments:
            return arguments, wanted
        return json.dumps(changed, ensure_ascii=False) if tool.spec.raw_arguments else changed, wanted

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

    def _decided(self, tool: Tool, arguments: Any, wanted: Decision | None = None) -> Decision:
        means = self.means(tool.spec)
        answers = self.approvals.rules(self.session.id)
        found = self.permissions.decide(tool.spec, arguments, replace(means, answers=answers) if answers else means)
        return wanted if wanted is not None and found.verdict is Verdict.ALLOW else found

    def _note(self, step: int, call_id: str, tool: str, arguments: Any, decision: Decision) -> None:
        payload = decision_event(call_id, tool, arguments, decision)
        if payload is not None:
            self.recorder.record(self.run, events.PERMISSION_RESOLVED, payload, step=step)

    async def _asked(
        self,
        step: int,
        call_id: str,
        tool: Tool,
        arguments: Any,
        decision: Decision,
        wanted: Decision | None,
        before: AskedBefore | None = None,
    ) -> Cleared:
        """What came of a question. While it was open the world may have changed: what the rules deny now is denied."""
        place = place_of(tool.spec, arguments, self.means(tool.spec))
        given = await self._answered(
            step,
            call_id,
            tool.spec.name,
            arguments,
            decision,
            lambda: self._decided(tool, arguments, wanted),
            lambda changed: None if tool.spec.raw_arguments else self._problem(tool.spec, changed),
            before,
        )
        by = " for the arguments that a person gave"
        if given is None:
            given, by = arguments, ""
        else:
            given = self._edited(tool, given)
            place = place_of(tool.spec, given, self.means(tool.spec))
        found = self._decided(tool, given)
        if found.verdict is Verdict.DENY:
            self._note(step, call_id, tool.spec.name, given, found)
            raise CallDenied(f"Permission denied{by}: {found.reason}")
        return Cleared(arguments=given, asked=True, place=place)

    async def _answered(
        self,
        step: int,
        call_id: str,
        tool: str,
        arguments: Any,
        decision: Decision,
        again: Callable[[], Decision],
        problem: Callable[[Mapping[str, Any]], str | None],
        before: AskedBefore | None = None,
        *,
        stands_in: bool = False,
    ) -> Mapping[str, Any] | None:
        """Ask a person: the arguments that one has put in place of the call's. Raises `CallDenied`."""
        async with self._waiting():
            answer = await self.approvals.ask(
                self.session,
                self.run,
                step,
                call_id,
                tool,
                arguments,
                decision,
                again,
                problem,
                before,
                stands_in=stands_in,
            )
        if answer.kind is AnswerKind.EXPIRED:
            text = "Not run: nobody answered the permission request in time. It was not denied."
            raise CallDenied(text, status="expired")
        if not answer.allows:
            guidance = f" {answer.message}" if answer.message else ""
            raise CallDenied(f"A person denied this call.{guidance}")
        return answer.arguments

    @contextlib.asynccontextmanager
    async def _waiting(self) -> AsyncIterator[None]:
        """Around a question: clocks stand still until it is settled, and the run waits until it has its places
        again."""
        self.waits(True)
        try:
            async with self.places.away():
                self.person(True)
                try:
                    yield
                finally:
                    self.person(False)
        finally:
            self.waits(False)

    def _edited(self, tool: Tool, arguments: Mapping[str, Any]) -> Any:
        """Arguments that a person has changed, validated like all others; a question about them is answered by the one
        who wrote them."""
        problem = None if tool.spec.raw_arguments else self._problem(tool.spec, arguments)
        if problem is not None:
            raise InvalidArguments(f"The arguments that a person gave for {tool.spec.name} are invalid: {problem}")
        return json.dumps(dict(arguments), ensure_ascii=False) if tool.spec.raw_arguments else arguments


def _nothing(path: str) -> bool:
    return False


async def spoken(words: Coroutine[Any, Any, T], seconds: float) -> T:
    """Last words, which a cancellation does not break off. Raises `OutOfTime` when they take longer."""
    return await bounded(words, Interruption(grace_s=seconds, finishes=True), timeout_s=seconds, name="last words")


async def _of(task: asyncio.Task[T]) -> T:
    return await task


def decision_event(call_id: str | None, tool: str, arguments: Any, decision: Decision) -> PermissionResolved | None:
    """What the log says of a decision that a rule has made, or the default where it is not to allow; None where nobody
    has restricted anything."""
    if decision.kind is DecisionKind.DEFAULT and decision.verdict is Verdict.ALLOW:
        return None
    # nobody is asked where there is no call that could wait
    denied = call_id is None and decision.verdict is Verdict.ASK
    return PermissionResolved(
        approval_id=None,
        call_id=call_id,
        tool=tool,
        digest=digest_of(tool, arguments),
        decision=Verdict.DENY.value if denied else decision.verdict.value,
        kind=decision.kind.value,
        by=None,
        rule=decision.rule or None,
        scope=decision.scope.value if decision.scope is not None else None,
        owner=decision.owner or None,
        reason=decision.reason,
        arguments=None,
    )


def hook_event(decision: HookVerdict, tool: str | None, call_id: str | None) -> HookDecision:
    """What the log says of a hook's decision."""
    return HookDecision(
        hook=decision.hook,
        kind=decision.kind,
        point=decision.point.value,
        decision=decision.decision,
        reason=decision.reason,
        effect=decision.effect,
        tool=tool,
        call_id=call_id,
        duration_ms=decision.duration_ms,
        digest=digest_of(tool or decision.point.value, decision.about),
        arguments=None if decision.arguments is None else dict(decision.arguments),
    )
