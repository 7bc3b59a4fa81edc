"""What a client asks for, in plain values, and the port that turns their agent parts into kernel values.

Knows no HTTP: `api/schemas.py` builds these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from app.agent.definition import AgentDefinition, Surface
from app.agent.permission_rules import PermissionRule, PermissionRules
from app.agent.policy import NO_POLICY, BudgetLimits, PolicyFields
from app.agent.texts import Texts


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInput:
    """How a session is to be. `agents` are names or inline definitions as mappings; `surfaces` kinds or mappings;
    `texts` a language or a mapping."""

    agent: str | None = None
    title: str | None = None
    user: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    agents: Sequence[str | Mapping[str, Any]] | None = None
    surfaces: Sequence[str | Mapping[str, Any]] | None = None
    policy: Mapping[str, Any] | None = None
    model: str | None = None
    workspace: str = ""
    parallel_tool_calls: bool | None = None
    thinking: bool | None = None
    budget: Mapping[str, Any] | None = None
    texts: str | Mapping[str, Any] | None = None
    default_subagent: str | None = None
    permissions: Mapping[str, Any] | None = None


class OnBusy(StrEnum):
    """What becomes of a turn while the session has one that is not finished: it is refused, waits, or ends that one."""

    REJECT = "reject"
    ENQUEUE = "enqueue"
    INTERRUPT = "interrupt"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInput:
    """One turn: the text, its limits (0 ms means none), and the JSON Schema of its answer if that is to be JSON.
    `webhook`: whom to tell of its end."""

    input: str
    max_steps: int | None = None
    deadline_ms: int = 0
    timeout_ms: int = 0
    output_schema: Mapping[str, Any] | None = None
    budget: Mapping[str, Any] | None = None
    on_busy: OnBusy = OnBusy.REJECT
    webhook: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeInput:
    """How a run that has ended is gone on with; None: what is said to an agent of which nobody says what to do."""

    input: str | None = None
    max_steps: int | None = None
    deadline_ms: int = 0
    timeout_ms: int = 0
    output_schema: Mapping[str, Any] | None = None
    budget: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationInput:
    """One delegation by a caller that has no parent run here. `agent` is a name or an inline definition, None: that of
    what is resumed; `resume`: the id of a task or of one of its runs, or in a session its name. `background` None: as
    the agent's definition has it. `session_key` names the memory of a `reuse_session` agent whose scope is `key`.
    `user`, `metadata`, `workspace` and `texts` are those of the session that is made when there is none yet."""

    agent: str | Mapping[str, Any] | None = None
    task: str
    background: bool | None = None
    resume: str | None = None
    context: str | None = None
    name: str | None = None
    session_id: str | None = None
    tools: Sequence[str] | None = None
    max_steps: int | None = None
    timeout_ms: int = 0
    deadline_ms: int = 0
    policy: Mapping[str, Any] | None = None
    model: str | None = None
    thinking: bool | None = None
    output_schema: Mapping[str, Any] | None = None
    budget: Mapping[str, Any] | None = None
    permissions: Mapping[str, Any] | None = None
    session_key: str | None = None
    texts: str | Mapping[str, Any] | None = None
    workspace: str = ""
    user: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    webhook: str | None = None


class AgentReader(Protocol):
    """Reads the agent parts of requests. Everything raises `InvalidRequest` or `Unsupported` naming the place."""

    def tool_names(self, entries: Sequence[Any], tenant: str) -> frozenset[str]:
        """The names that a whitelist may hold since agents have them as tools: those of the inline definitions among
        `entries`, not yet read, and those of the tenant's agents."""

    def definition(
        self,
        data: Mapping[str, Any],
        at: str,
        *,
        stored: bool = False,
        agent_tools: frozenset[str] = frozenset(),
    ) -> AgentDefinition:
        """An inline definition; `stored`: accepted earlier, so that tools which are gone since do not spoil it.
        `agent_tools`: names that its whitelist may hold besides those of tools (`tool_names`)."""

    def mapping(self, definition: AgentDefinition) -> dict[str, Any]:
        """The wire form of a definition; `definition` reads it back."""

    def tools(self, names: Sequence[str], at: str, agent_tools: frozenset[str] = frozenset()) -> tuple[str, ...]:
        """Tool names of a whitelist, mapped to ours; unknown ones are refused."""

    def policy(self, data: Mapping[str, Any], at: str) -> PolicyFields:
        """The set fields of a handoff policy."""

    def surfaces(self, data: Sequence[str | Mapping[str, Any]], at: str) -> tuple[Surface, ...]:
        """Delegation surfaces."""

    def permissions(self, data: Mapping[str, Any], at: str) -> PermissionRules | None:
        """The permission rules of a session or call; None where they say nothing."""

    def allowed(self, text: str) -> Sequence[PermissionRule]:
        """The rule of an answer that holds for the session. Raises ValueError when it cannot be read any more."""

    def call(self, text: str, at: str) -> tuple[str, bool, dict[str, Any]]:
        """A call that is written like a rule: our tool, whether it delegates, its arguments."""

    def budget(self, data: Mapping[str, Any], at: str) -> BudgetLimits:
        """The limits of a budget."""

    def schema(self, data: Mapping[str, Any], at: str) -> Mapping[str, Any]:
        """A JSON Schema that an answer is to satisfy."""

    def texts(self, data: str | Mapping[str, Any], at: str, base: Texts) -> Texts:
        """What the service says to models: a language, or a map of `language` and texts; the rest is of `base`."""


def policy_of(reader: AgentReader, data: Mapping[str, Any] | None, at: str) -> PolicyFields:
    """The policy of a request that may have none."""
    return NO_POLICY if data is None else reader.policy(data, at)


def budget_of(reader: AgentReader, data: Mapping[str, Any] | None, at: str = "budget") -> BudgetLimits | None:
    """The budget of a request that may have none."""
    return None if data is None else reader.budget(data, at)
