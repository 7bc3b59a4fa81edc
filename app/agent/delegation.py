"""The tools through which a model delegates, and what its run sees of a child: one core, several shapes (spec 3).

Knows handoffs, not runs: how a child is driven is no business of a surface.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.agent.definition import (
    AgentCatalog,
    AgentDefinition,
    AgentMode,
    Surface,
    SurfaceKind,
    tool_name_of,
)
from app.agent.errors import HandoffStop, InvalidArguments, InvalidRequest
from app.agent.handoff import Delegator, HandoffOrder, HandoffResult, Handoffs, stops_parent
from app.agent.runs import HandoffStatus, RunOutcome, Session
from app.agent.tools import Interrupt, Tool, ToolContext, ToolRegistry, ToolResult, ToolSpec

AGENT = "Agent"  # in a whitelist: the surfaces that apply
DISPATCH = "dispatch_subagent"
DEFAULT_SURFACES = (Surface(kind=SurfaceKind.DISPATCH),)

_WORK_ORDER = (
    "The subagent works in a context of its own, sees nothing of this conversation and returns only its result: "
    "write a complete work order (goal, scope, output format, limits). Issue independent delegations together in "
    "one turn; they run at the same time."
)


def chosen(*wanted: tuple[Surface, ...] | None) -> tuple[Surface, ...]:
    """The first surfaces that somebody set, an empty choice included, else the default."""
    return next((surfaces for surfaces in wanted if surfaces is not None), DEFAULT_SURFACES)


class Roster:
    """Whom a session may delegate to: its inline definitions first, then the catalog."""

    def __init__(self, catalog: AgentCatalog) -> None:
        self._catalog = catalog

    def find(self, session: Session, name: str) -> AgentDefinition | None:
        """The definition that a name means in this session."""
        return session.inline.get(name) or self._catalog.get(session.tenant, name)

    def delegable(self, session: Session) -> tuple[AgentDefinition, ...]:
        """All agents that the session may delegate to, by name."""
        names: Iterable[str] = session.agents or ()
        if session.agents is None:
            names = dict.fromkeys((*session.inline, *self._catalog.names(session.tenant)))
        # a lead may be among them, since inline definitions come in the same list
        found = (self.find(session, name) for name in names)
        return tuple(d for d in found if d is not None and d.mode is not AgentMode.PRIMARY)


def surfaces_of(definition: AgentDefinition, tools: Sequence[str] | None, applying: Iterable[Surface]) -> list[Surface]:
    """The surfaces that a whitelist brings (spec 7.2): `Agent` the applying ones, a surface's tool name that one."""
    found: list[Surface] = []
    for name in tools or ():
        if name == AGENT:
            found.extend(_limited(surface, definition.agents) for surface in applying)
        elif name == DISPATCH:
            found.append(_limited(Surface(kind=SurfaceKind.DISPATCH), definition.agents))
        elif name.startswith("subagent_"):  # names one agent by its tool: no list of agents narrows that
            found.append(Surface(kind=SurfaceKind.PER_AGENT, agents=(name,)))
    return found


def _limited(surface: Surface, agents: tuple[str, ...] | None) -> Surface:
    """The surface with only those of its agents that the definition names (`Agent(a, b)`)."""
    if agents is None:
        return surface
    kept = agents if surface.agents is None else tuple(name for name in surface.agents if name in agents)
    return Surface(kind=surface.kind, agents=kept)


@dataclass(frozen=True, slots=True)
class Delegation:
    """What a run can delegate with: `tools` answer calls, `offered` are those that the model is shown."""

    tools: tuple[Tool, ...]
    offered: frozenset[str]


def delegation_tools(
    by: Delegator,
    handoffs: Handoffs,
    surfaces: Iterable[Surface],
    agents: Sequence[AgentDefinition],
    disallowed: Collection[str] = (),
) -> Delegation:
    """The delegation tools of a run, without those of a `disallowed` name. A tool that the policy denies stays
    callable, so that a call that comes anyway is denied by the same predicate that hid it (spec 4.5).

    Raises `InvalidRequest` when two tools have one name, or a definition has no usable tool name.
    """
    tools: dict[str, DispatchTool | AgentTool] = {}
    for surface in surfaces:
        for tool in _tools_of(surface, by, handoffs, agents):
            name = tool.spec.name
            if name not in disallowed and tools.setdefault(name, tool).means != tool.means:
                raise InvalidRequest(
                    f"duplicate subagent tool name {name!r}: set tool_name on one of the two agents",
                    code="duplicate_tool_name",
                )
    return Delegation(tuple(tools.values()), frozenset(name for name, tool in tools.items() if tool.permitted))


def _tools_of(
    surface: Surface, by: Delegator, handoffs: Handoffs, agents: Sequence[AgentDefinition]
) -> "list[DispatchTool] | list[AgentTool]":
    wanted = surface.agents
    if surface.kind is SurfaceKind.DISPATCH:
        chosen = [a for a in agents if wanted is None or a.name in wanted]
        return [DispatchTool(by, handoffs, chosen)] if chosen else []
    named: list[AgentTool] = []
    for agent in agents:
        try:
            name = tool_name_of(agent)
        except ValueError as error:
            raise InvalidRequest(str(error), code="no_tool_name") from error
        if wanted is None or agent.name in wanted or name in wanted:
            named.append(AgentTool(by, handoffs, agent, name))
    return named


class _DelegationTool:
    """What the surfaces share: the core behind them and how a result that stops the parent is raised."""

    surface: SurfaceKind

    def __init__(self, by: Delegator, handoffs: Handoffs) -> None:
        self._by = by
        self._handoffs = handoffs

    async def _delegate(self, order: HandoffOrder) -> HandoffResult:
        return await self._handoffs.delegate(self._by, order)

    def _result(self, result: HandoffResult, content: str, problem: str) -> ToolResult:
        if result.ok:
            return ToolResult(content=content)
        if stops_parent(self._by.policy, result, self.surface.value):
            denied = result.status is HandoffStatus.DENIED
            reason = problem.removeprefix("Error: ")
            raise HandoffStop(reason, code="handoff_denied" if denied else "handoff_failed", result=content)
        status = "denied" if result.status is HandoffStatus.DENIED else "error"
        return ToolResult(content=content, is_error=True, status=status)


class DispatchTool(_DelegationTool):
    """`dispatch_subagent(agent_type, task, purpose?, subagent_name?)` (spec 3.3)."""

    surface = SurfaceKind.DISPATCH

    def __init__(self, by: Delegator, handoffs: Handoffs, agents: Sequence[AgentDefinition]) -> None:
        super().__init__(by, handoffs)
        self.means = ""  # whoever is named
        self._agents = {agent.name: agent for agent in agents}
        shown = [a for a in agents if by.policy.denial(DISPATCH, by.child_depth, a.name) is None]
        self.permitted = bool(shown)
        self.spec = _dispatch_spec(shown or agents)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Delegate; the result is the subagent's answer as text."""
        wanted = arguments["agent_type"]
        agent = matching(wanted, self._agents)
        if agent is None:
            names = ", ".join(sorted(self._agents))
            raise InvalidArguments(f"Error: there is no agent type {wanted!r}. Valid types: {names}.")
        result = await self._delegate(
            HandoffOrder(
                tool=DISPATCH,
                surface=self.surface.value,
                definition=agent,
                task=arguments["task"],
                call_id=context.call_id,
                name=arguments.get("subagent_name"),
                purpose=arguments.get("purpose"),
            )
        )
        problem = explained(agent.name, result)
        return self._result(result, problem if result.outcome is None or not result.ok else _text(result), problem)


class AgentTool(_DelegationTool):
    """One function tool per definition (spec 3.1)."""

    surface = SurfaceKind.PER_AGENT

    def __init__(self, by: Delegator, handoffs: Handoffs, target: AgentDefinition, name: str) -> None:
        super().__init__(by, handoffs)
        self.target = target
        self.means = f"agent {target.name}"
        self.permitted = by.policy.denial(name, by.child_depth, target.name) is None
        self.spec = _agent_spec(target, name)

    async def call(self, arguments: Any, context: ToolContext) -> ToolResult:
        """Delegate; the result is a JSON string with `subagent`, `toolName`, `output`, `steps`."""
        task = resolved_input(arguments) if isinstance(arguments, str) else canonical(arguments)
        order = HandoffOrder(
            tool=self.spec.name,
            surface=self.surface.value,
            definition=self.target,
            task=task,
            call_id=context.call_id,
        )
        result = await self._delegate(order)
        return self._result(result, self._json(result), explained(self.target.name, result))

    def _json(self, result: HandoffResult) -> str:
        outcome = result.outcome
        shape: dict[str, Any] = {
            "subagent": self.target.name,
            "toolName": self.spec.name,
            "output": outcome.output if outcome else "",
            "steps": outcome.steps if outcome else 0,
            "status": result.status.value,
        }
        if result.run_ids:
            shape["run_id"] = result.run_ids[-1]
        if outcome is not None and outcome.forced:
            shape["forced"] = True
        if outcome is not None and outcome.partial:
            shape["partial"] = True
        if result.error is not None:
            shape["error"] = result.error.message
        return json.dumps(shape, ensure_ascii=False)


def resolved_input(raw: str) -> str:
    """The task in the raw arguments of a `per_agent` call (spec 3.1).

    Raises `InvalidArguments` naming `task` when JSON holds neither `task` nor `input`.
    """
    if not raw.strip():
        return ""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    fields = value if isinstance(value, dict) else {}
    task = next((fields[key] for key in ("task", "input") if fields.get(key) is not None), None)
    if task is None:
        raise InvalidArguments('The arguments hold no `task`: send {"task": "…", "context": "…" (optional)}.')
    text = task if isinstance(task, str) else canonical(task)
    context = fields.get("context")
    if context is None or context == "":
        return text
    return f"{text}\n\nContext:\n{context if isinstance(context, str) else canonical(context)}"


def canonical(value: Any) -> str:
    """JSON with sorted keys and no white space."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def matching(wanted: str, agents: Mapping[str, AgentDefinition]) -> AgentDefinition | None:
    """The agent of that name, or the only one that differs by case, quotes, spaces or brackets alone."""
    if wanted in agents:
        return agents[wanted]
    bare = _bare(wanted)
    fitting = [agent for name, agent in agents.items() if _bare(name) == bare]
    return fitting[0] if bare and len(fitting) == 1 else None


def _bare(name: str) -> str:
    return name.strip(" \t\n\"'`[]()").casefold()


def explained(agent: str, result: HandoffResult) -> str:
    """What is told of a handoff that gave no answer; empty when it did."""
    if result.ok:
        return ""
    reason = result.error.message if result.error else result.status.value
    verb = "was denied" if result.status is HandoffStatus.DENIED else f"ended {result.status.value}"
    return f"Error: the handoff to {agent} {verb}: {reason}"


def _text(result: HandoffResult) -> str:
    """The answer; what is not a full answer says so, since a capped text may read like one."""
    outcome: RunOutcome | None = result.outcome
    if outcome is None:
        return ""
    if not outcome.partial:
        return outcome.output
    return f"{outcome.output}\n\n[partial: the subagent stopped at {outcome.stop_reason.value}]"


def _dispatch_spec(agents: Sequence[AgentDefinition]) -> ToolSpec:
    listing = "\n".join(f"- {agent.name}: {agent.description}" for agent in agents)
    properties: dict[str, Any] = {
        "agent_type": {"type": "string", "enum": [agent.name for agent in agents], "description": "Which agent."},
        "task": {"type": "string", "description": "The complete work order."},
        "purpose": {"type": ["string", "null"], "description": "One line for people; the subagent never sees it."},
        "subagent_name": {"type": "string", "description": "A readable name for this subagent."},
    }
    schema = {"type": "object", "properties": properties, "required": ["agent_type", "task"]}
    accepted = {**properties, "agent_type": {"type": "string"}, "subagent_name": {"type": ["string", "null"]}}
    return ToolSpec(
        name=DISPATCH,
        description=f"Hand a task to a subagent. {_WORK_ORDER}\n\nAgent types:\n{listing}",
        parameters={**schema, "additionalProperties": False},
        accepts={**schema, "properties": accepted},
        concurrency_safe=True,
        timeout_ms=0,
        interrupt=Interrupt.BLOCK,
        delegation=True,
    )


def _agent_spec(target: AgentDefinition, name: str) -> ToolSpec:
    parameters: Mapping[str, Any] = target.input_schema or {
        "type": "object",
        "properties": {
            "task": {"type": "string", "description": "The complete work order."},
            "context": {"type": "string", "description": "What else the subagent must know."},
        },
        "required": ["task"],
    }
    return ToolSpec(
        name=name,
        description=f"Hand a task to the agent {target.name}: {target.description} {_WORK_ORDER}",
        parameters=parameters,
        raw_arguments=target.input_schema is None,
        concurrency_safe=True,
        timeout_ms=0,
        interrupt=Interrupt.BLOCK,
        delegation=True,
    )


def registry_with(ordinary: ToolRegistry, delegation: Delegation) -> ToolRegistry:
    """Delegation tools before ordinary ones; an ordinary tool of the same name is hidden (spec 3.7)."""
    names = [tool.spec.name for tool in delegation.tools]
    return ToolRegistry((*delegation.tools, *ordinary.without(names).values()))
