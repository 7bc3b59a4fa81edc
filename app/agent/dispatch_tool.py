"""The surface `dispatch`: one tool for all agents, the type as an enum, results as plain text (spec 3.3).

Knows no other surface.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from app.agent.definition import AgentDefinition, Surface, SurfaceKind
from app.agent.errors import InvalidArguments
from app.agent.orders import Delegator
from app.agent.surfaces import (
    ERROR,
    NAME,
    DelegationTool,
    SurfaceParts,
    allowed_agents,
    delegation_spec,
    further_fields,
    further_parameters,
    matching,
    with_agents,
    with_work_order,
)
from app.agent.tools import ToolContext, ToolResult

DISPATCH = "dispatch_subagent"


class DispatchTool(DelegationTool):
    """`dispatch_subagent(agent_type, task, purpose?, subagent_name?)`."""

    kind = SurfaceKind.DISPATCH

    def __init__(self, by: Delegator, parts: SurfaceParts, surface: Surface, agents: Sequence[AgentDefinition]) -> None:
        super().__init__(by, parts, surface)
        self._agents = {agent.name: agent for agent in agents}
        allowed = allowed_agents(by, DISPATCH, agents)
        self.permitted = bool(allowed)
        self._shown = allowed or list(agents)
        listing = "\n".join(f"- {agent.name}: {parts.masker.text(agent.description)}" for agent in self._shown)
        self.spec = delegation_spec(
            DISPATCH,
            with_work_order(with_agents(self._texts.dispatch, listing), self._texts),
            _properties(self._shown),
            ("agent_type", "task"),
            {"agent_type": {"type": "string"}},  # a name that is nearly right is understood, a wrong one explained
        )

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Delegate; the result is the subagent's answer as text."""
        wanted = arguments["agent_type"]
        agent = matching(wanted, self._agents)
        if agent is None:
            names = ", ".join(sorted(shown.name for shown in self._shown))
            raise InvalidArguments(f"{ERROR}there is no agent type {wanted!r}. Valid types: {names}.")
        order = self._order(
            agent,
            context,
            task=arguments["task"],
            name=arguments.get("subagent_name"),
            purpose=arguments.get("purpose"),
            **further_fields(arguments, self._agents.values()),
        )
        return await self._carried_out(order)


def _properties(agents: Sequence[AgentDefinition]) -> dict[str, Any]:
    return {
        "agent_type": {"type": "string", "enum": [agent.name for agent in agents], "description": "Which agent."},
        "task": {"type": "string", "description": "The complete work order."},
        "purpose": {"type": ["string", "null"], "description": "One line for people; the subagent never sees it."},
        "subagent_name": NAME,
        **further_parameters(agents),
    }
