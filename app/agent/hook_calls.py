"""What a hook is told and what it says; the port `Hook`, and a Python callable as one.

Knows neither when hooks are asked nor what follows from their answers (`hooks.py`).
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from app.agent.runs import Run


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
    characters) and `steps` to a stop. `call_id` is the call itself, at a start and a stop the one that delegated;
    `stop_hook_active`: the subagent was sent back before. `lineage`: the run ids from the root to the run's parent."""

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
    stop_hook_active: bool = False
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
            call_id=run.parent_call_id,
            workspace=workspace,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one hook says. `block`: why not; `ask`: why a person is to be asked. `arguments`, `output`: what takes the
    place of the old ones. `context`: added to the task of a subagent."""

    block: str | None = None
    ask: str | None = None
    arguments: Mapping[str, Any] | None = None
    output: str | None = None
    context: str | None = None

    def __post_init__(self) -> None:
        for name in ("block", "ask", "output", "context"):
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
