"""What a client asks for, in plain values, and the port that turns their agent parts into kernel values.

Knows no HTTP: `api/schemas.py` builds these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.agent.definition import NO_POLICY, AgentDefinition, PolicyFields, Surface


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInput:
    """How a session is to be. `agents` are names or inline definitions as mappings; `surfaces` kinds or mappings."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInput:
    """One turn: the text, and its limits; 0 ms means none."""

    input: str
    max_steps: int | None = None
    deadline_ms: int = 0
    timeout_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationInput:
    """One delegation by a caller that has no parent run here. `agent` is a name or an inline definition."""

    agent: str | Mapping[str, Any]
    task: str
    context: str | None = None
    name: str | None = None
    session_id: str | None = None
    tools: Sequence[str] | None = None
    max_steps: int | None = None
    timeout_ms: int = 0
    deadline_ms: int = 0
    policy: Mapping[str, Any] | None = None
    model: str | None = None
    workspace: str = ""
    user: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


class AgentReader(Protocol):
    """Reads the agent parts of requests. Everything raises `InvalidRequest` or `Unsupported` naming the place."""

    def definition(self, data: Mapping[str, Any], at: str, *, stored: bool = False) -> AgentDefinition:
        """An inline definition; `stored`: accepted earlier, so that tools which are gone since do not spoil it."""

    def mapping(self, definition: AgentDefinition) -> dict[str, Any]:
        """The wire form of a definition; `definition` reads it back."""

    def tools(self, names: Sequence[str], at: str) -> tuple[str, ...]:
        """Tool names of a whitelist, mapped to ours; unknown ones are refused."""

    def policy(self, data: Mapping[str, Any], at: str) -> PolicyFields:
        """The set fields of a handoff policy."""

    def surfaces(self, data: Sequence[str | Mapping[str, Any]], at: str) -> tuple[Surface, ...]:
        """Delegation surfaces."""


def policy_of(reader: AgentReader, data: Mapping[str, Any] | None, at: str) -> PolicyFields:
    """The policy of a request that may have none."""
    return NO_POLICY if data is None else reader.policy(data, at)
