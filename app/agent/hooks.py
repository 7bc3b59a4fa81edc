"""Who else has a say: hooks at four points of a run, in order, each seeing what the one before it changed (spec 6).

Knows no kind of hook: functions, webhooks and commands are adapters behind `Hook`.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from app.agent.decisions import HookOutcome
from app.agent.definition import AgentDefinition
from app.agent.hook_calls import (
    DEFAULT_ON_FAILURE,
    PROCEED,
    FunctionHook,
    Hook,
    HookCall,
    HookFailure,
    HookPoint,
    Matcher,
    OnFailure,
    Verdict,
)
from app.agent.interruption import Interruption, OutOfTime, bounded

__all__ = [
    "DEFAULT_ON_FAILURE", "MAX_BLOCK_CHARS", "MAX_CONTEXT_CHARS", "NO_HOOKS", "NO_OWN_HOOKS", "PROCEED", "Check",
    "Decision", "FunctionHook", "Hook", "HookCall", "HookCatalog", "HookFailure", "HookPoint", "HookRegistry",
    "Matcher", "OnFailure", "Outcome", "Round", "Verdict",
]  # fmt: skip

log = logging.getLogger(__name__)

MAX_REASON_CHARS = 500  # of a failure: it goes into the log of the session
MAX_BLOCK_CHARS = 4_000  # of a block: a model reads it, and what it reads is paid for
MAX_CONTEXT_CHARS = 16_000  # that one hook adds to a task: as much as a model is shown of a tool's output
BROKEN_OFF = "broken off: the time for last words was over"
_BREAK_OFF = Interruption(grace_s=0.5)  # to clean up, for a hook that is too late or no longer wanted
_AFTERWARDS = frozenset({HookPoint.POST_TOOL_USE, HookPoint.SUBAGENT_STOP})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One thing that a hook decided, for the log; `effect`: what a failure counted as. `about`: what it was asked
    about; `arguments`: what it put in their place."""

    hook: str
    kind: str
    point: HookPoint
    decision: HookOutcome
    reason: str | None = None
    effect: str | None = None
    duration_ms: int = 0
    about: Any = None
    arguments: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What all hooks of a point came to. `call` holds the arguments or output as they are now; `ask`: why a person is
    to be asked, and `asked_by` which hook wants that."""

    call: HookCall
    block: str | None = None
    blocked_by: str | None = None
    ask: str | None = None
    asked_by: str | None = None
    context: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Round:
    """One time of asking at a point: who was asked, in order. `to_the_last`: also those after a block, since nothing
    depends on it. `over`: nobody further is to be asked, which may be said while it goes on."""

    to_the_last: bool = False
    over: bool = False
    asked: list[str] = field(default_factory=list)


Record = Callable[[Decision], None]
Check = Callable[[Mapping[str, Any]], str | None]  # of changed arguments: what is wrong with them


class HookRegistry:
    """All hooks, in the order in which they were registered."""

    def __init__(self, hooks: Sequence[Hook] = (), aliases: Callable[[str], Sequence[str]] = lambda name: ()) -> None:
        """`aliases`: the names that others have for a tool."""
        self._all = tuple(hooks)
        self._hooks = {point: [h for h in hooks if point in h.points] for point in HookPoint}
        self._aliases = aliases

    def joined(self, hooks: Sequence[Hook]) -> "HookRegistry":
        """These after all of its own."""
        return HookRegistry((*self._all, *hooks), self._aliases) if hooks else self

    def has(self, point: HookPoint) -> bool:
        """Whether anybody is asked at a point; the callers of a point without hooks pay nothing."""
        return bool(self._hooks[point])

    async def fire(
        self,
        call: HookCall,
        record: Record,
        check: Check | None = None,
        going: Round | None = None,
        until: float | None = None,
    ) -> Outcome:
        """Ask every hook of the point that matches, in order. The strictest verdict wins: the first block stays one,
        and the hooks after it are not asked, since nothing is left to be said about what will not happen. Only what a
        tool has put out is there in any case, so that a hook that takes secrets out of it is asked whoever objects.
        `until`, on the clock of the event loop, is when each of them is too late, whatever its own time."""
        going = going or Round()
        outcome = Outcome(call=call)
        for hook in self._hooks[call.point]:
            if going.over:
                break
            if not self._matches(hook, call.tool):
                continue
            going.asked.append(hook.name)
            block, outcome = await self._heard(hook, outcome, record, check, until)
            if block is not None and outcome.block is None:
                outcome = replace(outcome, block=block, blocked_by=hook.name)
            if outcome.block is not None and not (going.to_the_last or call.point is HookPoint.POST_TOOL_USE):
                break
        return outcome

    async def tell(self, call: HookCall, record: Record, besides: Collection[str] = ()) -> None:
        """Tell every hook of the point that matches, `besides` those of these names; all at once: nothing depends on
        what they say, and a dead one must not keep the others from being told."""
        told = [h for h in self._hooks[call.point] if h.name not in besides and self._matches(h, call.tool)]
        await asyncio.gather(*(self._heard(hook, Outcome(call=call), record, None) for hook in told))

    def names(self, point: HookPoint) -> frozenset[str]:
        """Who is asked at a point."""
        return frozenset(hook.name for hook in self._hooks[point])

    async def _heard(
        self, hook: Hook, outcome: Outcome, record: Record, check: Check | None, until: float | None = None
    ) -> tuple[str | None, Outcome]:
        """Why it blocks, and what it makes of things."""
        call = outcome.call
        began = asyncio.get_running_loop().time()

        def noted(decision: HookOutcome, **more: Any) -> None:
            took = int((asyncio.get_running_loop().time() - began) * 1000)
            record(
                Decision(
                    hook=hook.name,
                    kind=hook.kind,
                    point=call.point,
                    decision=decision,
                    duration_ms=took,
                    about=_about(call),
                    **more,
                )
            )

        try:
            verdict, failure = await self._ask(hook, call, until)
        except asyncio.CancelledError:
            if call.point in _AFTERWARDS:  # the run goes on without it, or has ended: nothing else would say so
                noted("failed", reason=BROKEN_OFF, effect=OnFailure.ALLOW.value)
            raise
        verdict, problem = _checked(call, verdict, check)
        failure = failure or problem
        if failure is not None:
            effect = hook.on_failure or DEFAULT_ON_FAILURE[call.point]
            log.warning("hook %s failed at %s: %s; it counts as %s", hook.name, call.point.value, failure, effect)
            noted("failed", reason=failure, effect=effect.value)
            return (f"hook {hook.name} failed: {failure}" if effect is OnFailure.BLOCK else None), outcome
        block = None if verdict.block is None else verdict.block[:MAX_BLOCK_CHARS]
        if block is not None:
            noted("block", reason=block)
            if call.point is not HookPoint.POST_TOOL_USE:
                return block, outcome
        return block, self._changed(hook, outcome, verdict, noted)

    @staticmethod
    def _changed(hook: Hook, outcome: Outcome, verdict: Verdict, noted: Callable[..., None]) -> Outcome:
        """What a verdict that lets things go on makes of them."""
        call = outcome.call
        if verdict.arguments is not None and call.point is HookPoint.PRE_TOOL_USE:
            noted("mutate_input", arguments=verdict.arguments)
            call = replace(call, arguments=verdict.arguments)
        if verdict.output is not None and call.point is HookPoint.POST_TOOL_USE:
            noted("mutate_output")
            call = replace(call, output=verdict.output)
        outcome = replace(outcome, call=call)
        if verdict.context and call.point is HookPoint.SUBAGENT_START:
            noted("add_context")
            outcome = replace(outcome, context=(*outcome.context, verdict.context))
        if verdict.ask is not None and call.point is HookPoint.PRE_TOOL_USE:
            reason = verdict.ask[:MAX_BLOCK_CHARS]
            noted("ask", reason=reason)
            if outcome.ask is None:
                outcome = replace(outcome, ask=reason, asked_by=hook.name)
        return outcome

    def _matches(self, hook: Hook, tool: str | None) -> bool:
        if hook.matcher is None or tool is None:
            return True
        return any(hook.matcher.fullmatch(name) for name in (tool, *self._aliases(tool)))

    @staticmethod
    async def _ask(hook: Hook, call: HookCall, until: float | None) -> tuple[Verdict, str | None]:
        """The verdict, or PROCEED and why there is none. The hook has a task of its own: one that is deaf to the end
        of its time, or to the cancellation of this, is left behind."""
        task = asyncio.current_task()
        # A stop hook is asked while its run is being cancelled: only what comes from now on is a cancellation of this.
        cancels = task.cancelling() if task is not None else 0
        left = None if until is None else until - asyncio.get_running_loop().time()
        early = left is not None and left < hook.timeout_s
        seconds = max(0.0, left) if left is not None and early else hook.timeout_s
        try:
            said = await bounded(_contained(hook, call), _BREAK_OFF, timeout_s=seconds, name=f"hook {hook.name}")
        except OutOfTime:
            return PROCEED, "no answer before the run's deadline" if early else f"no answer within {seconds:g} s"
        except asyncio.CancelledError as error:
            if task is None or task.cancelling() > cancels:
                raise
            return PROCEED, _described(error)  # nobody cancelled this: something inside the hook was
        if task is not None and task.cancelling() > cancels:
            raise asyncio.CancelledError  # which the hook has caught: what follows must not begin
        if isinstance(said, Verdict):
            return said, None
        if isinstance(said, HookFailure):
            return PROCEED, str(said)[:MAX_REASON_CHARS] or "no reason given"
        log.warning("hook %s raised", hook.name, exc_info=said)
        return PROCEED, _described(said)


async def _contained(hook: Hook, call: HookCall) -> Verdict | Exception | SystemExit:
    """What a hook says or raises, in a task of its own: SystemExit, raised there, would end the loop."""
    try:
        return await hook.call(call)
    except (Exception, SystemExit) as error:  # noqa: BLE001  border to hooks: theirs is somebody else's code
        return error


def _checked(call: HookCall, verdict: Verdict, check: Check | None) -> tuple[Verdict, str | None]:
    """The verdict with arguments that are plain JSON, and what is wrong with it. What one that blocks says besides does
    not count."""
    if verdict.block is not None:
        return verdict, None
    if verdict.context and call.point is HookPoint.SUBAGENT_START and len(verdict.context) > MAX_CONTEXT_CHARS:
        return verdict, f"its context has {len(verdict.context)} characters, at most {MAX_CONTEXT_CHARS} are allowed"
    if verdict.arguments is None or call.point is not HookPoint.PRE_TOOL_USE:
        return verdict, None
    try:
        arguments = json.loads(json.dumps(_plain(verdict.arguments), allow_nan=False))
        problem = None if check is None else check(arguments)
    except (TypeError, ValueError, RecursionError) as error:
        return verdict, f"the arguments that it gave are no JSON: {_described(error)}"[:MAX_REASON_CHARS]
    if problem is not None:
        return verdict, f"the arguments that it gave are not valid: {problem}"[:MAX_REASON_CHARS]
    return replace(verdict, arguments=arguments), None


def _plain(value: Any) -> Any:
    """The value in dicts and lists. Raises TypeError for a key that is no text."""
    if isinstance(value, Mapping):
        wrong = next((key for key in value if not isinstance(key, str)), None)
        if wrong is not None:
            raise TypeError(f"a key is {type(wrong).__name__}, not a text")
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _about(call: HookCall) -> Any:
    """What a hook was asked about: the digest of it binds a decision to that."""
    if call.point is HookPoint.SUBAGENT_START:
        return call.prompt
    return call.result if call.point is HookPoint.SUBAGENT_STOP else call.arguments


def _described(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  border to hooks: their exceptions are somebody else's code, too
        text = ""
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__)[:MAX_REASON_CHARS]


class HookCatalog(Protocol):
    """The hooks that definitions bring along."""

    def of(self, definition: AgentDefinition) -> Sequence[Hook]:
        """Those of a definition, in its order. Raises ValueError when one of them cannot be asked: nobody goes on
        without a guard that was asked for."""


class NoOwnHooks:
    """A service in which definitions bring none."""

    def of(self, definition: AgentDefinition) -> Sequence[Hook]:
        """None. Raises ValueError for a definition that has some all the same."""
        if definition.hooks:
            raise ValueError(f"agent {definition.name!r} brings hooks along, and nobody here can ask them")
        return ()


NO_HOOKS = HookRegistry()
NO_OWN_HOOKS = NoOwnHooks()
