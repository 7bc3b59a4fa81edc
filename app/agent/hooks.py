"""Who else has a say: hooks at four points of a run, in order, each seeing what the one before it changed (spec 6).

Knows no kind of hook: functions, webhooks and commands are adapters behind `Hook`.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from app.agent.runs import Run

log = logging.getLogger(__name__)

MAX_REASON_CHARS = 500  # of a failure: it goes into the log of the session


class HookPoint(StrEnum):
    """Where hooks are asked."""

    SUBAGENT_START = "OnSubagentStart"
    PRE_TOOL_USE = "PreToolUse"
    POST_TOOL_USE = "PostToolUse"
    SUBAGENT_STOP = "OnSubagentStop"


class OnFailure(StrEnum):
    """What a hook that fails counts as."""

    BLOCK = "block"
    ALLOW = "allow"


# A guard that cannot be asked must not let anything through; the other two come after the fact (spec 6.3).
DEFAULT_ON_FAILURE: Mapping[HookPoint, OnFailure] = {
    HookPoint.SUBAGENT_START: OnFailure.BLOCK,
    HookPoint.PRE_TOOL_USE: OnFailure.BLOCK,
    HookPoint.POST_TOOL_USE: OnFailure.ALLOW,
    HookPoint.SUBAGENT_STOP: OnFailure.ALLOW,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCall:
    """What a hook is told. `arguments` and `output` belong to tools, `prompt` to a start, `result` (the first 200
    characters) and `steps` to a stop. `lineage`: the run ids from the root to the run's parent."""

    point: HookPoint
    tenant: str
    session_id: str
    run_id: str
    agent: str
    name: str | None
    depth: int
    path: tuple[int, ...]
    parent_run_id: str | None = None
    lineage: tuple[str, ...] = ()
    handoff_id: str | None = None
    call_id: str | None = None
    tool: str | None = None
    arguments: Mapping[str, Any] | str | None = None
    output: str | None = None
    is_error: bool = False
    duration_ms: int | None = None
    prompt: str | None = None
    result: str | None = None
    steps: int | None = None
    workspace: str = ""

    @classmethod
    def of(cls, run: Run, point: HookPoint, *, lineage: tuple[str, ...], workspace: str) -> "HookCall":
        """What every hook is told of the run that it is about."""
        return cls(
            point=point,
            tenant=run.tenant,
            session_id=run.session_id,
            run_id=run.id,
            agent=run.agent,
            name=run.name,
            depth=run.depth,
            path=run.path,
            parent_run_id=run.parent_id,
            lineage=lineage,
            handoff_id=run.handoff_id,
            workspace=workspace,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one hook says. `block`: why not. `arguments`, `output`: what takes the place of the old ones. `context`:
    added to the task of a subagent."""

    block: str | None = None
    arguments: Mapping[str, Any] | None = None
    output: str | None = None
    context: str | None = None

    def __post_init__(self) -> None:
        for name in ("block", "output", "context"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise TypeError(f"Verdict.{name} is a text or None, not {type(value).__name__}")
        if self.arguments is not None and not isinstance(self.arguments, Mapping):
            raise TypeError(f"Verdict.arguments is a mapping or None, not {type(self.arguments).__name__}")


PROCEED = Verdict()


class HookFailure(Exception):
    """A hook has no verdict; the text says why, in words for the log."""


class Matcher(Protocol):
    """A compiled pattern. Not `re.Pattern`: the kernel has no library for patterns that end in linear time."""

    def fullmatch(self, string: str, /) -> object:
        """Something true when the whole name matches."""


class Hook(Protocol):
    """One hook. `matcher` is a pattern for tool names (None: all); `timeout_s` bounds a call."""

    @property
    def name(self) -> str:
        """For events and logs."""

    @property
    def kind(self) -> str:
        """`function`, `webhook` or `command`."""

    @property
    def points(self) -> frozenset[HookPoint]:
        """Where it is asked."""

    @property
    def matcher(self) -> Matcher | None:
        """Whole tool names, of ours and of others by the map of spec 10.2."""

    @property
    def timeout_s(self) -> float:
        """How long it may take."""

    @property
    def on_failure(self) -> OnFailure | None:
        """None: the default of the point."""

    async def call(self, call: HookCall) -> Verdict:
        """Ask it. Anything that it raises is a failure of the hook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One thing that a hook decided, for the log: `decision` is `block`, `mutate_input`, `mutate_output`,
    `add_context` or `failed`; `effect` what a failure counted as."""

    hook: str
    kind: str
    point: HookPoint
    decision: str
    reason: str | None = None
    effect: str | None = None
    duration_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What all hooks of a point came to. `call` holds the arguments or output as they are now."""

    call: HookCall
    block: str | None = None
    blocked_by: str | None = None
    context: tuple[str, ...] = ()


Record = Callable[[Decision], None]
Check = Callable[[Mapping[str, Any]], str | None]  # of changed arguments: what is wrong with them


class HookRegistry:
    """All hooks, in the order in which they were registered."""

    def __init__(self, hooks: Sequence[Hook] = (), aliases: Callable[[str], Sequence[str]] = lambda name: ()) -> None:
        """`aliases`: the names that others have for a tool."""
        self._hooks = {point: [h for h in hooks if point in h.points] for point in HookPoint}
        self._aliases = aliases

    def has(self, point: HookPoint) -> bool:
        """Whether anybody is asked at a point; the callers of a point without hooks pay nothing."""
        return bool(self._hooks[point])

    async def fire(self, call: HookCall, record: Record, check: Check | None = None) -> Outcome:
        """Ask every hook of the point that matches, in order. The strictest verdict wins: the first block stays one,
        and the hooks after it are not asked, since nothing is left to be said about what will not happen. Only what a
        tool has put out is there in any case, so that a hook that takes secrets out of it is asked whoever objects."""
        outcome = Outcome(call=call)
        for hook in self._hooks[call.point]:
            if not self._matches(hook, call.tool):
                continue
            block, outcome = await self._heard(hook, outcome, record, check)
            if block is not None and outcome.block is None:
                outcome = replace(outcome, block=block, blocked_by=hook.name)
            if outcome.block is not None and call.point is not HookPoint.POST_TOOL_USE:
                break
        return outcome

    async def _heard(
        self, hook: Hook, outcome: Outcome, record: Record, check: Check | None
    ) -> tuple[str | None, Outcome]:
        """Why it blocks, and what it makes of things."""
        call = outcome.call
        began = asyncio.get_running_loop().time()
        verdict, failure = await self._ask(hook, call)
        took = int((asyncio.get_running_loop().time() - began) * 1000)
        noted = Decision(hook=hook.name, kind=hook.kind, point=call.point, decision="", duration_ms=took)
        failure = failure or self._problem(call, verdict, check)
        if failure is not None:
            effect = hook.on_failure or DEFAULT_ON_FAILURE[call.point]
            log.warning("hook %s failed at %s: %s; it counts as %s", hook.name, call.point.value, failure, effect)
            record(replace(noted, decision="failed", reason=failure, effect=effect.value))
            return (f"hook {hook.name} failed: {failure}" if effect is OnFailure.BLOCK else None), outcome
        if verdict.block is not None:
            record(replace(noted, decision="block", reason=verdict.block))
            if call.point is not HookPoint.POST_TOOL_USE:
                return verdict.block, outcome
        outcome = replace(outcome, call=self._changed(call, verdict, noted, record))
        if verdict.context and call.point is HookPoint.SUBAGENT_START:
            record(replace(noted, decision="add_context"))
            outcome = replace(outcome, context=(*outcome.context, verdict.context))
        return verdict.block, outcome

    @staticmethod
    def _problem(call: HookCall, verdict: Verdict, check: Check | None) -> str | None:
        """What is wrong with the arguments of a verdict. Those of one that blocks do not count."""
        if verdict.arguments is None or verdict.block is not None or check is None:
            return None
        problem = check(verdict.arguments) if call.point is HookPoint.PRE_TOOL_USE else None
        return None if problem is None else f"the arguments that it gave are not valid: {problem}"[:MAX_REASON_CHARS]

    @staticmethod
    def _changed(call: HookCall, verdict: Verdict, noted: Decision, record: Record) -> HookCall:
        if verdict.arguments is not None and call.point is HookPoint.PRE_TOOL_USE:
            record(replace(noted, decision="mutate_input"))
            call = replace(call, arguments=verdict.arguments)
        if verdict.output is not None and call.point is HookPoint.POST_TOOL_USE:
            record(replace(noted, decision="mutate_output"))
            call = replace(call, output=verdict.output)
        return call

    def _matches(self, hook: Hook, tool: str | None) -> bool:
        if hook.matcher is None or tool is None:
            return True
        return any(hook.matcher.fullmatch(name) for name in (tool, *self._aliases(tool)))

    @staticmethod
    async def _ask(hook: Hook, call: HookCall) -> tuple[Verdict, str | None]:
        """The verdict, or PROCEED and why there is none."""
        task = asyncio.current_task()
        # A stop hook is asked while its run is being cancelled: only what comes from now on is a cancellation of this.
        cancels = task.cancelling() if task is not None else 0
        limit = asyncio.timeout(hook.timeout_s)
        try:
            async with limit:
                verdict = await hook.call(call)
            if not limit.expired():  # else it caught the cancellation and answered late
                return verdict, None
        except HookFailure as error:
            return PROCEED, str(error)[:MAX_REASON_CHARS] or "no reason given"
        except TimeoutError as error:
            if not limit.expired():
                return PROCEED, _described(error)
        except asyncio.CancelledError as error:
            if task is None or task.cancelling() > cancels:
                raise
            return PROCEED, _described(error)  # nobody cancelled this: something inside the hook was
        except (Exception, SystemExit) as error:  # border to hooks: theirs is somebody else's code
            log.warning("hook %s raised", hook.name, exc_info=error)
            return PROCEED, _described(error)
        return PROCEED, f"no answer within {hook.timeout_s:g} s"


def _described(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  border to hooks: their exceptions are somebody else's code, too
        text = ""
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__)[:MAX_REASON_CHARS]


NO_HOOKS = HookRegistry()


@dataclass(slots=True, kw_only=True)
class FunctionHook:
    """A Python callable as a hook: `function(call) -> Verdict | None`, sync or async."""

    name: str
    function: Callable[[HookCall], Verdict | Awaitable[Verdict | None] | None]
    points: frozenset[HookPoint]
    matcher: Matcher | None = None
    timeout_s: float = 30.0
    on_failure: OnFailure | None = None
    kind: str = field(default="function")

    async def call(self, call: HookCall) -> Verdict:
        """Call it, with arguments of its own: to change them in place would go past every check."""
        found: Any = self.function(replace(call, arguments=_copied(call.arguments)))
        if inspect.isawaitable(found):
            found = await found
        if found is None:
            return PROCEED
        if not isinstance(found, Verdict):
            raise TypeError(f"it returned {type(found).__name__}, not a Verdict or None")
        return found


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list | tuple) else value
