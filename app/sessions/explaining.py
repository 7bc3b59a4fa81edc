"""Which rule would decide a call, and why, without making it (spec 8.5).

Knows neither HTTP nor how rules are written. The answer is that of the runs themselves: the same policies, parsers and
resolution of paths; only hooks are not asked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.agent.definition import AgentDefinition
from app.agent.delegation import Roster
from app.agent.errors import InvalidRequest
from app.agent.permissions import CommandParser, Decision, Means, PermissionPolicy, under_whitelist
from app.agent.runs import Session
from app.agent.tools import ToolRegistry, ToolSpec
from app.sessions.inbox import Inbox
from app.sessions.opening import Opening
from app.sessions.requests import AgentReader, SessionInput
from app.sessions.service import Sessions

Resolver = Callable[[Path], Callable[[str], str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallQuestion:
    """A call, written like a rule (`Bash(git push)`), and who would make it: `agents` from the root down, the last one
    being the agent that is meant. `depth` None: as deep as there are agents; where it is deeper, those between the root
    and the ones that are named are not known, and could only be stricter."""

    call: str
    agents: Sequence[str] = ()
    depth: int | None = None
    session_id: str | None = None


class Explaining:
    """Answers such questions. `agent`: the lead of a session that is not named."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        inbox: Inbox,
        roster: Roster,
        opening: Opening,
        reader: AgentReader,
        tools: ToolRegistry,
        parser: CommandParser,
        resolver: Resolver,
        agent: str,
    ) -> None:
        self._sessions = sessions
        self._inbox = inbox
        self._roster = roster
        self._opening = opening
        self._reader = reader
        self._tools = tools
        self._parser = parser
        self._resolver = resolver
        self._agent = agent

    async def explain(self, tenant: str, asked: CallQuestion) -> dict[str, Any]:
        """The decision, and what each part of the call gave under each policy. Raises `NotFound`, `InvalidRequest`."""
        tool, delegates, arguments = self._reader.call(asked.call, "explain")
        if asked.session_id is None:
            session = self._opening.new(tenant, SessionInput(), self._agent)
        else:
            session = await self._sessions.known(tenant, asked.session_id)
        lineage = self._lineage(session, asked)
        known = self._tools.get(tool)
        made_up = ToolSpec(name=tool, description="", parameters={}, delegation=delegates)
        spec = made_up if known is None else known.spec
        policy = self._policy(session, lineage)
        workspace = self._opening.workspace(session.workspace)
        means = Means(
            parser=self._parser, resolve_path=self._resolver(workspace), answers=self._inbox.rules(session.id)
        )
        explained = policy.explain(spec, arguments, means)
        return {
            "tool": tool,
            "arguments": arguments,
            "agents": [definition.name for definition in lineage],
            "depth": _depth(asked, session.agent),
            "hidden": policy.hides(spec),
            **decision_mapping(explained.decision),
            "findings": [decision_mapping(found) for found in explained.findings],
        }

    def _lineage(self, session: Session, asked: CallQuestion) -> list[AgentDefinition]:
        """The agents that are known of those from the root to the one that is meant."""
        names, root = list(asked.agents), session.agent
        depth = _depth(asked, root)
        if root is not None and names[:1] != [root] and len(names) <= depth:
            names.insert(0, root)
        return [self._find(session, name) for name in names or [root or ""]]

    def _find(self, session: Session, name: str) -> AgentDefinition:
        definition = self._roster.find(session, name)
        if definition is None:
            raise InvalidRequest(
                f"there is no agent {name!r}: GET /v1/agents lists those that exist",
                code="unknown_agent",
                errors=[{"at": "agent", "message": "unknown agent"}],
            )
        return definition

    def _policy(self, session: Session, lineage: Sequence[AgentDefinition]) -> PermissionPolicy:
        """The policy of the last of them under the ceilings of the others."""
        policies, below = self._sessions.policies, list(lineage)
        policy = policies.caller(session, None) if session.agent is None else policies.lead(session, below.pop(0))
        for one in below:
            above = policy or PermissionPolicy("")
            policy = above.inherit(one.name, one.permissions, trusted=one.source.trusted)
        last = lineage[-1]
        return under_whitelist(policy, last.name, last.tools or (), last.limits) or PermissionPolicy(last.name)


def _depth(asked: CallQuestion, root: str | None) -> int:
    """The depth that is meant. Raises `InvalidRequest` for one at which the named agents cannot stand."""
    names = asked.agents
    # a session for direct delegations has no agent at its root
    least = max(0, len(names) - 1) if root is not None else len(names)
    depth = asked.depth
    if depth is None:
        return len(names) if names and names[0] != root else least
    if depth < least or (depth > 0 and not names) or (root is None and not names):
        raise InvalidRequest(
            f"depth {depth} does not fit {len(names)} agents: name the agent that is meant last, those above it before "
            "it, or leave depth out",
            errors=[{"at": "depth", "message": "does not fit agent"}],
        )
    return depth


def decision_mapping(decision: Decision) -> dict[str, Any]:
    """A decision as a client sees it."""
    return {
        "verdict": decision.verdict.value,
        "kind": decision.kind.value,
        "rule": decision.rule or None,
        "scope": decision.scope.value if decision.scope is not None else None,
        "owner": decision.owner or None,
        "reason": decision.reason,
        "suggested_rule": None if decision.suggested_rule is None else str(decision.suggested_rule),
    }
