"""What an agent is: its definition, and the catalog that finds it by name.

Knows nothing of files or YAML; `definitions/` reads those. What it may delegate stands in `policy.py`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from app.agent.permission_rules import PermissionRule, PermissionRules
from app.agent.policy import NO_POLICY, BudgetLimits, PolicyFields

MAX_STEPS = 200  # what a definition, session or caller may ask for, unless limits.max_steps is lower (spec 5.1)
MAX_TOOL_NAME = 64  # the shortest limit among the providers' function names


class SurfaceKind(StrEnum):
    """The shape in which delegation tools are shown to a model (spec 3)."""

    PER_AGENT = "per_agent"
    TASK = "task"
    DISPATCH = "dispatch"
    SUBAGENT = "subagent"


class AgentMode(StrEnum):
    """Who may be started as what: the lead of a session, a subagent, or both."""

    PRIMARY = "primary"
    SUBAGENT = "subagent"
    ALL = "all"


class SessionMode(StrEnum):
    """Whether a subagent remembers earlier handoffs (spec 4.9)."""

    NEW = "new_session"
    REUSE = "reuse_session"


class SessionScope(StrEnum):
    """Who shares the memory of a `reuse_session` agent; never more than one tenant. `key`: who sends the same key."""

    SESSION = "session"
    USER = "user"
    TENANT = "tenant"
    KEY = "key"


class InheritKind(StrEnum):
    """What of its caller's conversation a subagent gets to read (spec 2.5)."""

    NONE = "none"
    LAST = "last"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherit:
    """`none`, `last:<count>` texts, or a `summary`."""

    kind: InheritKind = InheritKind.NONE
    count: int = 0

    def __str__(self) -> str:
        """As definitions and calls write it."""
        return f"last:{self.count}" if self.kind is InheritKind.LAST else self.kind.value

    def lowered(self, asked: "Inherit | None") -> "Inherit":
        """What a call that asks for `asked` gets: at most this. Texts as they stand are not less than a summary."""
        if asked is None or self.kind is InheritKind.NONE:
            return self
        if asked.kind is InheritKind.NONE:
            return asked
        if asked.kind is InheritKind.LAST and self.kind is InheritKind.LAST:
            return asked if asked.count < self.count else self
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """One delegation surface of a session or definition; `agents` None means all that the session allows.

    `templates` replaces texts of the surface by their names in `Texts`; None switches a heading off.
    """

    kind: SurfaceKind
    agents: tuple[str, ...] | None = None
    templates: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCeiling:
    """What those above a run have, where that is the most that it may have (spec 7.2): names of a whitelist, the agents
    that these reach (None: all of the session), and the patterns by which tools were granted, a set for each of them
    that has some."""

    tools: tuple[str, ...]
    agents: tuple[str, ...] | None = None
    limits: tuple[tuple[PermissionRule, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a definition came from: `inline`, `tenant`, `directory` or `library`, with the file if there is one.
    `vouched` False: in a directory that its operator does not trust. `version`: which one, of a tenant's."""

    kind: str
    path: str = ""
    vouched: bool = True
    version: int | None = None

    @property
    def trusted(self) -> bool:
        """Whether operators vouch for what it allows: neither a client's over the API nor just any directory's."""
        return self.vouched and self.kind in ("directory", "library")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnHook:
    """A hook that a definition brings along for its own runs (spec 6.3): `command` is run by the shell, or `url` is
    asked. `label` tells it from the others of its definition; `point` and `on_failure` are words of `HookPoint` and
    `OnFailure`; `secret_env` is the variable with what a webhook is signed with."""

    label: str
    point: str
    matcher: str | None = None
    timeout_s: float = 30.0
    on_failure: str | None = None
    command: str | None = field(default=None, repr=False)
    url: str | None = field(default=None, repr=False)
    secret_env: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnServer:
    """An MCP server that a definition brings along for itself; `entry`: how it is begun or reached, as it was written,
    in the line `line` of its file."""

    name: str
    entry: Mapping[str, Any] = field(repr=False)
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDefinition:
    """What an agent is; frozen; from Markdown, from the API, or inline in a session.

    `tools` None: inherited (spec 7.2); `()`: none. Names are those of this service, mapped when the file was read.
    `agents` None: all that the session allows. `max_steps` None: the default of the depth. `temperature` 0 to 2.
    `tool_choice` applies to the first step: `auto`, `none`, `required` or a tool name. `model`, `effort`, `thinking`
    None: those of the parent run. `abort_siblings`: a call that fails ends those beside it (spec 5.2). `budget` bounds
    the tree under each of its runs. `runner`: import path of an async function that stands in for the loop (spec 10.5).
    `limits`: what of tools is granted (allow) or taken away (deny) by patterns only.
    `background`: as a task it runs in the background unless the call says otherwise; `detached`: it then does not end
    with the run that has started it (spec 9.1, 9.5).
    `skills`: those whose text stands in the prompt from the start. `mcp_servers`: whose tools it has besides;
    `own_servers`: those of them that it brings along. `hooks`: asked about its own runs, after those of the service.
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
    thinking: bool | None = None
    max_tokens: int | None = None
    tool_choice: str | None = None
    max_steps: int | None = None
    parallel_tool_calls: bool | None = None
    abort_siblings: bool | None = None
    background: bool = False
    detached: bool = False
    tool_name: str | None = None
    input_schema: Mapping[str, Any] | None = None
    output_schema: Mapping[str, Any] | None = None
    session_mode: SessionMode = SessionMode.NEW
    session_scope: SessionScope = SessionScope.SESSION
    inherit_context: Inherit = field(default_factory=Inherit)
    skills: tuple[str, ...] = ()
    runner: str | None = None
    permissions: PermissionRules | None = None
    limits: tuple[PermissionRule, ...] = ()
    budget: BudgetLimits | None = None
    surfaces: tuple[Surface, ...] | None = None
    agents: tuple[str, ...] | None = None
    mcp_servers: tuple[str, ...] = ()
    own_servers: tuple[OwnServer, ...] = ()
    hooks: tuple[OwnHook, ...] = ()
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
