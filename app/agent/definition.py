"""What an agent is: its definition, the policy of its handoffs, and the catalog that finds it by name.

Knows nothing of files or YAML; `definitions/` reads those.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

MAX_STEPS = 200  # what a definition, session or caller may ask for, unless limits.max_steps is lower (spec 5.1)
MAX_TOOL_NAME = 64  # the shortest limit among the providers' function names


class SurfaceKind(StrEnum):
    """The shape in which delegation tools are shown to a model (spec 3)."""

    PER_AGENT = "per_agent"
    TASK = "task"
    DISPATCH = "dispatch"
    SUBAGENT = "subagent"


class OnProblem(StrEnum):
    """What a denied or failed handoff does to its parent (spec 4.1)."""

    FAIL = "fail"
    REPORT = "report"


class AgentMode(StrEnum):
    """Who may be started as what: the lead of a session, a subagent, or both."""

    PRIMARY = "primary"
    SUBAGENT = "subagent"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """One delegation surface of a session or definition; `agents` None means all that the session allows."""

    kind: SurfaceKind
    agents: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFields:
    """Fields of a handoff policy that somebody set; None in `unset` fields means: not set here.

    `max_depth` is a tuple of one value when set, since None is a value of it (unlimited).
    """

    enabled: bool | None = None
    max_depth: tuple[int | None] | None = None
    timeout_ms: int | None = None
    allowed_tools: tuple[tuple[str, ...] | None] | None = None
    denied_tools: tuple[tuple[str, ...] | None] | None = None
    on_denied: OnProblem | None = None
    on_error: OnProblem | None = None


NO_POLICY = PolicyFields()


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffPolicy:
    """What a run may delegate (spec 4.1). `on_denied` and `on_error` None: the default of the surface."""

    enabled: bool = True
    max_depth: int | None = 1
    timeout_ms: int = 0
    allowed_tools: tuple[str, ...] | None = None
    denied_tools: tuple[str, ...] | None = None
    on_denied: OnProblem | None = None
    on_error: OnProblem | None = None

    def denial(self, tool: str, child_depth: int, agent: str) -> str | None:
        """Why a handoff by `tool` to `agent` at `child_depth` is not allowed, or None (spec 4.2, 4.5).

        Asked when tools are offered and when one is used, so that the two cannot disagree.
        """
        if not self.enabled:
            return None
        names = {tool, f"{tool}({agent})"}
        if self.allowed_tools is not None and not names.intersection(self.allowed_tools):
            return "tool is not in allowed_tools"
        if self.denied_tools is not None and names.intersection(self.denied_tools):
            return "tool is in denied_tools"
        if self.max_depth is not None and child_depth > self.max_depth:
            return f"handoff depth {child_depth} exceeds max_depth {self.max_depth}"
        return None

    def replaced(self, fields: PolicyFields) -> "HandoffPolicy":
        """This policy with the set fields in place of its own: how a root policy is built (spec 4.10)."""
        changes: dict[str, Any] = {}
        for name in ("enabled", "timeout_ms", "on_denied", "on_error"):
            value = getattr(fields, name)
            if value is not None:
                changes[name] = value
        for name in ("max_depth", "allowed_tools", "denied_tools"):
            boxed = getattr(fields, name)
            if boxed is not None:
                changes[name] = boxed[0]
        return replace(self, **changes) if changes else self

    def narrowed(self, fields: PolicyFields) -> "HandoffPolicy":
        """What a child inherits: unset fields come from this policy, set ones can only narrow it (spec 4.10)."""
        if fields == NO_POLICY:
            return self
        own = self.replaced(fields)
        depths = [d for d in (self.max_depth, own.max_depth) if d is not None]
        allowed = own.allowed_tools
        if self.allowed_tools is not None:
            allowed = self.allowed_tools if allowed is None else _both(self.allowed_tools, allowed)
        denied = tuple(dict.fromkeys((*(self.denied_tools or ()), *(own.denied_tools or ()))))
        timeouts = [t for t in (self.timeout_ms, own.timeout_ms) if t]
        return replace(
            own,
            enabled=self.enabled or own.enabled,
            max_depth=min(depths) if depths else None,
            allowed_tools=allowed,
            denied_tools=denied or None,
            timeout_ms=min(timeouts) if timeouts else 0,
        )


def _both(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """What two allow lists allow together; `tool(agent)` is a part of `tool`."""
    kept = [entry for entry in one if entry in other or entry.partition("(")[0] in other]
    return tuple(dict.fromkeys((*kept, *(entry for entry in other if entry.partition("(")[0] in one))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a definition came from: `inline`, `tenant`, `directory` or `library`, with the file if there is one."""

    kind: str
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDefinition:
    """What an agent is; frozen; from Markdown, from the API, or inline in a session.

    `tools` None: inherited (spec 7.2); `()`: none. Names are those of this service, mapped when the file was read.
    `agents` None: all that the session allows. `max_steps` None: the default of the depth. `temperature` 0 to 2.
    `tool_choice` applies to the first step: `auto`, `none`, `required` or a tool name.
    """

    name: str
    description: str
    prompt: str = ""
    mode: AgentMode = AgentMode.SUBAGENT
    tools: tuple[str, ...] | None = None
    disallowed_tools: tuple[str, ...] = ()
    model: str | None = None
    temperature: float | None = None
    effort: str | None = None
    max_tokens: int | None = None
    tool_choice: str | None = None
    max_steps: int | None = None
    parallel_tool_calls: bool | None = None
    tool_name: str | None = None
    input_schema: Mapping[str, Any] | None = None
    surfaces: tuple[Surface, ...] | None = None
    agents: tuple[str, ...] | None = None
    policy: PolicyFields = NO_POLICY
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source: Source = Source(kind="inline")


class AgentCatalog(Protocol):
    """Who can be asked, by name; the precedence of spec 10.3 is already applied."""

    def get(self, tenant: str, name: str) -> AgentDefinition | None:
        """The definition that is in force for a tenant, or None."""

    def names(self, tenant: str) -> Sequence[str]:
        """All names, sorted."""


_OUTSIDE = re.compile(r"[^a-z0-9_]")
_RUNS = re.compile(r"_+")


def normalised(name: str) -> str:
    """The name part of a delegation tool (spec 3.1); empty when nothing is left of it."""
    text = _RUNS.sub("_", _OUTSIDE.sub("_", name.lower())).strip("_")
    return f"agent_{text}" if text[:1].isdigit() else text


def tool_name_of(definition: AgentDefinition) -> str:
    """The name of an agent's own tool on the `per_agent` surface.

    Raises ValueError when the name leaves nothing usable: the definition then needs a `tool_name`.
    """
    if definition.tool_name:
        return definition.tool_name
    part = normalised(definition.name)
    if not part:
        raise ValueError(
            f"agent {definition.name!r}: its name leaves no characters for a tool name; set tool_name (a-z, 0-9, _)"
        )
    name = f"subagent_{part}"
    if len(name) > MAX_TOOL_NAME:
        raise ValueError(
            f"agent {definition.name!r}: tool name {name!r} is longer than {MAX_TOOL_NAME} characters; set tool_name"
        )
    return name
