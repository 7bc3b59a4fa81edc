"""Which rule would decide a call, and why, without making it (spec 8.5).

Knows neither HTTP nor how rules are written. The answer is that of the runs themselves: the same policies, parsers and
resolution of paths; only hooks are not asked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.agent.definition import AgentDefinition, Surface, SurfaceKind
from app.agent.delegation import AGENT, Roster, chosen, tool_names
from app.agent.dispatch_tool import DISPATCH
from app.agent.errors import InvalidRequest
from app.agent.permissions import CommandParser, Decision, Means, PermissionPolicy, of_child, under_whitelists
from app.agent.policy import ToolInherit
from app.agent.research_tool import SUBAGENT
from app.agent.runs import Session
from app.agent.task_tools import EXECUTE_TASK
from app.agent.tools import ToolRegistry, ToolSpec
from app.sessions.grants import Grants
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
    """Answers such questions. `agent`: the lead of a session that is not named; `default_subagent`: whom the surface
    `subagent` leads to where the session does not say."""

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
        hides: Callable[[], bool],
        agent: str,
        inherit: ToolInherit = ToolInherit.OWN,
        default_subagent: str | None = None,
    ) -> None:
        self._sessions = sessions
        self._inbox = inbox
        self._roster = roster
        self._opening = opening
        self._reader = reader
        self._tools = tools
        self._parser = parser
        self._resolver = resolver
        self._hides = hides
        self._agent = agent
        self._grants = Grants(tools, inherit)
        self._default_subagent = default_subagent

    async def explain(self, tenant: str, asked: CallQuestion) -> dict[str, Any]:
        """The decision, and what each part of the call gave under each policy. Raises `NotFound`, `InvalidRequest`."""
        tool, delegates, arguments = self._reader.call(asked.call, "explain")
        if asked.session_id is None:
            session = self._opening.new(tenant, SessionInput(), self._agent)
        else:
            session = await self._sessions.known(tenant, asked.session_id)
        lineage = self._lineage(session, asked)
        tool, agent = self._meant(session, lineage, tool, arguments)
        known = self._tools.get(tool)
        made_up = ToolSpec(name=tool, description="", parameters={}, delegation=delegates or agent is not None)
        spec = made_up if known is None else known.spec
        policy = self._policy(session, lineage)
        workspace = self._opening.workspace(session.tenant, session.workspace)
        answers = () if asked.session_id is None else await self._inbox.rules(session)
        resolve = self._resolver(workspace)
        means = Means(parser=self._parser, resolve_path=resolve, agent=agent, answers=answers, hides=self._hides())
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

    def _meant(
        self, session: Session, lineage: Sequence[AgentDefinition], tool: str, arguments: Mapping[str, Any]
    ) -> tuple[str, str | None]:
        """The tool that is called, and whom it starts. `Agent(x)` is written for the tool by which the agent that is
        meant would start `x`."""
        agents = self._roster.delegable(session)
        named = arguments.get("name")
        if tool == AGENT and isinstance(named, str):
            return _tool_for(named, agents, _surfaces(session, lineage)), named
        if tool == SUBAGENT:
            default = self._roster.default_subagent(session, self._default_subagent)
            return tool, named or (default.name if default is not None else None)
        if tool in self._tools or tool in (EXECUTE_TASK, DISPATCH):
            return tool, None  # the arguments say whom
        owners = tool_names(agents).get(tool, ())
        return tool, owners[0] if owners else None

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
            policy = of_child(policy, one.name, one.permissions, trusted=one.source.trusted)
        last, granted = lineage[-1], self._grants.of(lineage, policy=session.policy)
        return under_whitelists(policy, last.name, granted.names, granted.limits) or PermissionPolicy(last.name)


def _surfaces(session: Session, lineage: Sequence[AgentDefinition]) -> tuple[Surface, ...]:
    """By which the last of them delegates."""
    below = list(lineage)
    lead = below.pop(0) if session.agent is not None else None
    applying = chosen(session.surfaces, None if lead is None else lead.surfaces)
    for definition in below:
        applying = chosen(definition.surfaces, applying)
    return applying


def _tool_for(agent: str, agents: Sequence[AgentDefinition], surfaces: Sequence[Surface]) -> str:
    """The tool by which an agent would be started."""
    kind = next((surface.kind for surface in surfaces if surface.agents is None or agent in surface.agents), None)
    own = next((tool for tool, owners in tool_names(agents).items() if agent in owners), AGENT)
    fixed = {SurfaceKind.TASK: EXECUTE_TASK, SurfaceKind.DISPATCH: DISPATCH, SurfaceKind.SUBAGENT: SUBAGENT}
    return AGENT if kind is None else fixed.get(kind, own)


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
