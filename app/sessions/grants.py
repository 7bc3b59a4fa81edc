"""Which tools an agent would have below others, by their definitions alone (spec 7.2): for people who ask before a run.

Knows no run and no session; what a run is really given is the kernel's to say, with the same functions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.agent.definition import AgentDefinition, Surface, ToolCeiling
from app.agent.delegation import DEFAULT_SURFACES, NO_NAMES, ceiling_of, limited, surfaces_of, whitelist_of
from app.agent.permission_rules import PermissionRule
from app.agent.policy import NO_POLICY, HandoffPolicy, PolicyFields, ToolInherit
from app.agent.tools import ToolRegistry


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What one agent is granted: names, those of them that bring delegation tools, and the rules of patterns, a set for
    each whitelist that binds it, its own last."""

    names: tuple[str, ...]
    delegation: tuple[str, ...] = ()
    limits: tuple[tuple[PermissionRule, ...], ...] = ()


class Grants:
    """Works out whitelists. `ordinary`: the tools of the service; `inherit`: its setting."""

    def __init__(self, ordinary: ToolRegistry, inherit: ToolInherit = ToolInherit.OWN) -> None:
        self._ordinary = ordinary
        self._inherit = inherit

    def of(
        self,
        lineage: Sequence[AgentDefinition],
        tool_names: Mapping[str, tuple[str, ...]] = NO_NAMES,
        *,
        policy: PolicyFields = NO_POLICY,
        default: AgentDefinition | None = None,
    ) -> Grant:
        """What the last of these agents has, which stand one below the other. `policy`: that of the session;
        `default`: whom the surface `subagent` leads to."""
        grant, ceiling, inherited, root = Grant(names=()), None, None, HandoffPolicy()
        applying: tuple[Surface, ...] = DEFAULT_SURFACES
        own: tuple[PermissionRule, ...] = ()
        for depth, definition in enumerate(lineage):
            root = root.narrowed(definition.policy) if depth else root.replaced(definition.policy).replaced(policy)
            applying = applying if definition.surfaces is None else definition.surfaces
            own = definition.limits if definition.tools is not None else (*own, *definition.limits)
            names = whitelist_of(definition, self._ordinary, inherited=inherited, ceiling=ceiling)
            grant = Grant(
                names=names,
                delegation=tuple(n for n in names if _surfaces(definition, (n,), applying, tool_names, ceiling)),
                limits=(*(ceiling.limits if ceiling is not None else ()), own),
            )
            surfaces = _surfaces(definition, names, applying, tool_names, ceiling)
            inherited = tuple(name for name in names if name in self._ordinary)
            bounds = ToolInherit.INTERSECT in (self._inherit, root.inherit_tools)
            ceiling = ceiling_of(names, surfaces, default, own, ceiling) if bounds else None
        return grant


def _surfaces(
    definition: AgentDefinition,
    names: tuple[str, ...],
    applying: Sequence[Surface],
    tool_names: Mapping[str, tuple[str, ...]],
    ceiling: ToolCeiling | None,
) -> list[Surface]:
    """The surfaces that lead to somebody."""
    found = surfaces_of(definition, names, applying, tool_names)
    if ceiling is not None:
        found = [limited(surface, ceiling.agents) for surface in found]
    return [surface for surface in found if surface.agents != ()]
