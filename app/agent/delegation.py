"""Which delegation tools a run has: its whitelist, the surfaces that apply, whom the session may delegate to.

Knows the four surfaces by their kind; what one looks like stands in its own module.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from app.agent.agent_tool import AgentTool
from app.agent.definition import (
    AgentCatalog,
    AgentDefinition,
    AgentMode,
    Surface,
    SurfaceKind,
    ToolCeiling,
    tool_name_of,
)
from app.agent.dispatch_tool import DISPATCH, DispatchTool
from app.agent.errors import InvalidRequest
from app.agent.orders import Delegator
from app.agent.permission_rules import PermissionRule
from app.agent.research_tool import SUBAGENT, ResearchTool
from app.agent.runs import Session
from app.agent.surfaces import SurfaceParts, SurfaceTool
from app.agent.task_tools import EXECUTE_TASK, task_tools
from app.agent.tools import GROUPED, Tool, ToolRegistry, default_tools

AGENT = "Agent"  # in a whitelist: the surfaces that apply
DEFAULT_SURFACES = (Surface(kind=SurfaceKind.TASK),)
NO_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType({})
# What a whitelist may name; the companions of `execute_task` come with it and bring nothing by themselves.
_KINDS = {EXECUTE_TASK: SurfaceKind.TASK, DISPATCH: SurfaceKind.DISPATCH, SUBAGENT: SurfaceKind.SUBAGENT}


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

    def default_subagent(self, session: Session, fallback_name: str | None) -> AgentDefinition | None:
        """To whom the surface `subagent` leads: the agent that the session names, else `fallback_name`, else the only
        one that there is; always one that the session may delegate to."""
        agents = {agent.name: agent for agent in self.delegable(session)}
        if session.default_subagent is not None:
            return agents.get(session.default_subagent)
        if fallback_name is not None and fallback_name in agents:
            return agents[fallback_name]
        return next(iter(agents.values())) if len(agents) == 1 else None


def tool_names(agents: Iterable[AgentDefinition]) -> dict[str, tuple[str, ...]]:
    """The name of each agent's own tool, and whose it is (several: that is an error where the tools are put together);
    agents whose name leaves none are left out."""
    found: dict[str, tuple[str, ...]] = {}
    for agent in agents:
        try:
            name = tool_name_of(agent)
        except ValueError:
            continue
        found[name] = (*found.get(name, ()), agent.name)
    return found


def is_surface(name: str) -> bool:
    """Whether an entry of a whitelist names a surface, or all that apply."""
    return name == AGENT or name in _KINDS


def surfaces_of(
    definition: AgentDefinition,
    tools: Sequence[str] | None,
    applying: Iterable[Surface],
    tool_names: Mapping[str, tuple[str, ...]] = NO_NAMES,
) -> list[Surface]:
    """The surfaces that a whitelist brings (spec 7.2): `Agent` the applying ones; a surface's tool name that one, with
    what was set for it; the tool name of an agent (`tool_names`: whose it is) the tool of that agent."""
    known = tuple(applying)
    found: list[Surface] = []
    named: list[str] = []  # agents by the names of their tools: no list of agents narrows those
    for name in tools or ():
        if name == AGENT:
            found.extend(limited(surface, definition.agents) for surface in known)
        elif name in _KINDS:
            found.append(limited(_set_for(_KINDS[name], known), definition.agents))
        elif name in tool_names:
            named.extend(tool_names[name])
    if named:
        found.append(replace(_set_for(SurfaceKind.PER_AGENT, known), agents=tuple(dict.fromkeys(named))))
    return [surface for at, surface in enumerate(found) if surface not in found[:at]]


def _together(surfaces: Iterable[Surface]) -> list[Surface]:
    """The surfaces with those of one tool put together: what each of them allows; texts of the first one that says."""
    found: dict[object, Surface] = {}
    for at, surface in enumerate(surfaces):
        key: object = surface.kind if surface.kind in (SurfaceKind.TASK, SurfaceKind.DISPATCH) else at
        before = found.get(key)
        if before is None:
            found[key] = surface
            continue
        both = None if before.agents is None or surface.agents is None else (*before.agents, *surface.agents)
        found[key] = replace(before, agents=both, templates={**surface.templates, **before.templates})
    return list(found.values())


def _set_for(kind: SurfaceKind, applying: Sequence[Surface]) -> Surface:
    return next((surface for surface in applying if surface.kind is kind), Surface(kind=kind))


def limited(surface: Surface, agents: tuple[str, ...] | None) -> Surface:
    """The surface with only those of its agents that the definition names (`Agent(a, b)`), or that it may reach."""
    if agents is None:
        return surface
    return replace(
        surface, agents=agents if surface.agents is None else tuple(name for name in surface.agents if name in agents)
    )


def whitelist_of(
    definition: AgentDefinition,
    ordinary: ToolRegistry,
    *,
    inherited: tuple[str, ...] | None = None,
    asked: tuple[str, ...] | None = None,
    ceiling: ToolCeiling | None = None,
) -> tuple[str, ...]:
    """The names that a run is granted (spec 7.2): its own, else those of the parent run, else the read-only ones of
    `ordinary`, which are the tools of the service. `asked`: what a caller leaves of them."""
    names = definition.tools
    if names is None:
        names = inherited
    if names is None:
        names = default_tools(ordinary)
    names = ordinary.expand((*names, *(f"{GROUPED}{server}" for server in definition.mcp_servers)))
    names = _without_others(names, definition, ordinary, () if definition.tools is not None else inherited or ())
    if asked is not None:  # a caller may only narrow
        wanted = ordinary.expand(asked)
        names = tuple(name for name in names if name in wanted)
    if ceiling is not None:
        names = _within(names, ordinary.expand(ceiling.tools), ordinary)
    gone = set(ordinary.expand(definition.disallowed_tools))
    return tuple(name for name in names if name not in gone)


def _without_others(
    names: Sequence[str], definition: AgentDefinition, ordinary: ToolRegistry, inherited: Sequence[str]
) -> tuple[str, ...]:
    """The names without tools of servers that other definitions bring along for themselves. What is taken over from a
    parent run was granted to that one."""
    own = tuple(f"{GROUPED}{server.name}__" for server in definition.own_servers)
    return tuple(
        name
        for name in names
        if name not in ordinary or not ordinary[name].spec.private or name.startswith(own) or name in inherited
    )


def _within(names: Sequence[str], above: Sequence[str], ordinary: Collection[str]) -> tuple[str, ...]:
    """What is left of a whitelist under another one. `Agent` stands for every way to delegate: above it covers each of
    them, below it comes to those that there are above."""
    kept: list[str] = []
    for name in names:
        if name in above or (AGENT in above and _delegates(name, ordinary)):
            kept.append(name)
        elif name == AGENT:
            kept.extend(each for each in above if _delegates(each, ordinary))
    return tuple(dict.fromkeys(kept))


def _delegates(name: str, ordinary: Collection[str]) -> bool:
    """Whether a name of a whitelist stands for a way to delegate. Tools of a server are none while it is away, though
    nobody knows them then."""
    return name not in ordinary and not name.startswith(GROUPED)


def ceiling_of(
    names: tuple[str, ...],
    surfaces: Iterable[Surface],
    default: AgentDefinition | None,
    limits: tuple[PermissionRule, ...],
    above: ToolCeiling | None,
) -> ToolCeiling:
    """The most that children of a run may have that is granted these `names`, by patterns in part (`limits`), and
    delegates by these `surfaces`; `default`: whom the surface `subagent` leads to. It stands itself under `above`."""
    sets = (*(above.limits if above is not None else ()), *((limits,) if limits else ()))
    return ToolCeiling(tools=names, agents=_reached(surfaces, default), limits=tuple(dict.fromkeys(sets)))


def _reached(surfaces: Iterable[Surface], default: AgentDefinition | None) -> tuple[str, ...] | None:
    found: list[str] = []
    for surface in surfaces:
        if surface.agents is not None:
            found.extend(surface.agents)
        elif surface.kind is not SurfaceKind.SUBAGENT:
            return None
        elif default is not None:
            found.append(default.name)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Delegation:
    """What a run can delegate with: `tools` answer calls, `offered` are those that the model is shown."""

    tools: tuple[Tool, ...]
    offered: frozenset[str]


def delegation_tools(
    by: Delegator,
    parts: SurfaceParts,
    surfaces: Iterable[Surface],
    agents: Sequence[AgentDefinition],
    disallowed: Collection[str] = (),
    default_subagent: AgentDefinition | None = None,
) -> Delegation:
    """The delegation tools of a run, without those of a `disallowed` name. A tool that the policy denies stays
    callable, so that a call that comes anyway is denied by the same predicate that hid it (spec 4.5).

    Raises `InvalidRequest` when two tools have one name, a definition has no usable tool name, the surface
    `subagent` has nobody to lead to, or a template replaces a text that there is not.
    """
    tools: dict[str, SurfaceTool] = {}
    for surface in _together(surfaces):
        if surface.kind is SurfaceKind.TASK and EXECUTE_TASK in disallowed:
            continue  # its companions have nothing to look after
        for tool in _tools_of(surface, by, parts, agents, default_subagent):
            name = tool.spec.name
            if name not in disallowed and tools.setdefault(name, tool).means != tool.means:
                raise InvalidRequest(
                    f"duplicate subagent tool name {name!r}: set tool_name on one of the two agents",
                    code="duplicate_tool_name",
                )
    return Delegation(tuple(tools.values()), frozenset(name for name, tool in tools.items() if tool.permitted))


def _tools_of(
    surface: Surface,
    by: Delegator,
    parts: SurfaceParts,
    agents: Sequence[AgentDefinition],
    default_subagent: AgentDefinition | None,
) -> Sequence[SurfaceTool]:
    if surface.kind is SurfaceKind.PER_AGENT:
        return [AgentTool(by, parts, surface, agent, name) for agent, name in _named(surface, agents)]
    if surface.kind is SurfaceKind.SUBAGENT:
        target = _target(surface, agents, default_subagent)
        return [] if target is None else [ResearchTool(by, parts, surface, target)]
    among = None if surface.agents is None else frozenset(surface.agents)
    wanted = [agent for agent in agents if among is None or agent.name in among]
    if not wanted:
        return []
    if surface.kind is SurfaceKind.TASK:
        return task_tools(by, parts, surface, wanted)
    return [DispatchTool(by, parts, surface, wanted)]


def _named(surface: Surface, agents: Sequence[AgentDefinition]) -> list[tuple[AgentDefinition, str]]:
    """The agents of a `per_agent` surface with the names of their tools."""
    wanted = None if surface.agents is None else frozenset(surface.agents)
    found: list[tuple[AgentDefinition, str]] = []
    for agent in agents:
        try:
            name = tool_name_of(agent)
        except ValueError as error:
            if wanted is None or agent.name in wanted:
                raise InvalidRequest(str(error), code="no_tool_name") from error
            continue
        if wanted is None or agent.name in wanted:
            found.append((agent, name))
    return found


def _target(
    surface: Surface, agents: Sequence[AgentDefinition], default: AgentDefinition | None
) -> AgentDefinition | None:
    """To whom a `subagent` surface leads: the only agent that it names, else the session's default."""
    if surface.agents is None:
        if default is None:
            raise InvalidRequest(
                "the surface 'subagent' leads to nobody: set default_subagent to an agent of the session, or name one "
                "in the surface's agents",
                code="no_default_subagent",
            )
        return default
    if len(surface.agents) == 1:
        return next((agent for agent in agents if agent.name == surface.agents[0]), None)
    return default if default is not None and default.name in surface.agents else None


def registry_with(ordinary: ToolRegistry, delegation: Delegation) -> ToolRegistry:
    """Delegation tools before ordinary ones. An ordinary tool of the same name is hidden and kept as the primary of
    that name (spec 3.7); `ordinary` are the tools that the run's own whitelist grants."""
    names = [tool.spec.name for tool in delegation.tools]
    hidden = {name: ordinary[name] for name in names if name in ordinary}
    return ToolRegistry((*delegation.tools, *ordinary.without(names).values()), hidden, ordinary.absent)
