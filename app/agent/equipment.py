"""With what a run is sent off: its tools (spec 7.2), the means to delegate, and what children may inherit.

Knows neither the order of a run (`runner.py`) nor any concrete tool.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.agent.asking import summarised
from app.agent.budget import Budget
from app.agent.clearance import Clearance
from app.agent.definition import AgentDefinition, Surface, SurfaceKind, ToolCeiling
from app.agent.delegation import (
    ceiling_of,
    delegation_tools,
    is_surface,
    limited,
    registry_with,
    surfaces_of,
    tool_names,
    whitelist_of,
)
from app.agent.errors import BudgetSpent, ModelError
from app.agent.handoff import Handoffs
from app.agent.hooks import HookPoint, HookRegistry
from app.agent.inheritance import LAST_TEXTS, texts_of
from app.agent.live_run import LiveRun, RunnerParts
from app.agent.orders import Delegator
from app.agent.permission_rules import PermissionRule
from app.agent.permissions import Means, PermissionPolicy, under_whitelists
from app.agent.policy import ToolInherit
from app.agent.run_ports import Launcher
from app.agent.runs import Run, RunRequest, Session
from app.agent.skills import LOADER, system_prompt
from app.agent.subagent_hooks import SubagentHooks
from app.agent.surfaces import SurfaceParts, agent_of
from app.agent.tools import GROUPED, ToolRegistry, ToolSpec
from app.agent.work import Work

log = logging.getLogger(__name__)


class Equipment:
    """Gives runs their tools."""

    def __init__(self, parts: RunnerParts, handoffs: Handoffs, launcher: Launcher) -> None:
        self._parts = parts
        self._launcher = launcher
        self._surfaces = SurfaceParts(handoffs=handoffs, masker=parts.masker, limit=parts.output_limit)
        # the last request, what the shelf held then, and its whitelist, which is asked for several times in a row
        self._granted: tuple[RunRequest, tuple[ToolSpec, ...], tuple[str, ...]] | None = None

    def tools(self, live: LiveRun) -> tuple[ToolRegistry, tuple[ToolSpec, ...]]:
        """The registry of a run (spec 7.2) and what the model is shown of it."""
        request, parts = live.request, self._parts
        names = self._whitelist(request)
        ordinary = parts.tools.select(names)
        surfaces = self._applying(request, names)
        policy = self._policy(request)
        if not surfaces:
            return ordinary, _shown(ordinary.specs, policy)
        delegation = delegation_tools(
            self._delegator(live.run, request, live, tuple(ordinary), self._ceiling(request, names, surfaces)),
            self._surfaces,
            surfaces,
            parts.roster.delegable(request.session),
            request.definition.disallowed_tools,
            default_subagent=self._default_subagent(request.session, surfaces),
        )
        registry = registry_with(ordinary, delegation)
        shown = tuple(s for s in registry.specs if not s.delegation or s.name in delegation.offered)
        return registry, _shown(shown, policy)

    def prompt(self, request: RunRequest, offered: Sequence[ToolSpec]) -> str:
        """The system prompt of a run that is offered these tools."""
        definition, listed = request.definition, any(spec.name == LOADER for spec in offered)
        texts = request.session.texts
        return system_prompt(definition.prompt, self._parts.skills, definition.skills, texts, listed=listed)

    async def ready(self, request: RunRequest) -> None:
        """Wait, for a bounded time, for tools of a run that are on their way: those of servers that are starting."""
        names = self._whitelist(request)
        if not any(name.startswith(GROUPED) for name in names):
            return
        await self._parts.tools.ready(names)
        absent = self._parts.tools.select(self._whitelist(request)).absent  # groups of servers that have come are wider
        if absent:
            who, session = request.definition.name, request.session.id
            log.warning("agent %s in session %s goes without %s", who, session, "; ".join(sorted(absent.values())))

    def subagent_hooks(self, live: LiveRun) -> SubagentHooks | None:
        """What a subagent asks its hooks; None at depth 0, and where there are none."""
        hooks = self._hooks(live.request)
        if not live.run.depth or not (hooks.has(HookPoint.SUBAGENT_START) or hooks.has(HookPoint.SUBAGENT_STOP)):
            return None
        return SubagentHooks(
            recorder=self._parts.recorder,
            hooks=hooks,
            run=live.run,
            lineage=self._launcher.lineage(live.run),
            workspace=str(self._parts.workspace(live.request.session)),
            last_word_s=lambda: live.control.last_word(call=False),
            until=lambda: live.control.hard_at,
        )

    def clearance(self, live: LiveRun, work: Work) -> Clearance | None:
        """What the calls of a run go through; None where nobody has a say."""
        parts, hooks, policy = self._parts, self._hooks(live.request), self._policy(live.request)
        asked = hooks.has(HookPoint.PRE_TOOL_USE) or hooks.has(HookPoint.POST_TOOL_USE)
        if not asked and policy is None and not any(spec.ask for spec in work.registry.specs):
            return None
        assert parts.approvals is not None and parts.parser is not None and parts.resolve_path is not None
        parser, resolve, run, calls = parts.parser, parts.resolve_path(work.workspace), live.run, work.calls

        def means(spec: ToolSpec) -> Means:
            agent = agent_of(work.registry, spec.name)
            return Means(parser=parser, resolve_path=resolve, agent=agent, hides=parts.hides())

        return Clearance(
            recorder=parts.recorder,
            checker=parts.checker,
            hooks=hooks,
            permissions=policy or PermissionPolicy(live.run.agent),
            approvals=parts.approvals,
            session=live.request.session,
            run=run,
            lineage=self._launcher.lineage(run),
            workspace=str(work.workspace),
            means=means,
            person=lambda begins: self._launcher.person(run, begins),
            waits=lambda begins: calls.wait(run, "approval") if begins else calls.resume(run, "approval"),
            places=live.places,
            last_word_s=lambda: live.control.last_word(call=True),
        )

    def _hooks(self, request: RunRequest) -> HookRegistry:
        """Who is asked about a run: the hooks of the service, then those that its definition brings along."""
        return self._parts.hooks.joined(self._parts.own_hooks.of(request.definition))

    def check(self, request: RunRequest) -> None:
        """Raises `InvalidRequest` when the run's tools could not be put together: two of one name, an agent whose name
        leaves no tool name."""
        surfaces = self._applying(request, self._whitelist(request))
        plain = (SurfaceKind.TASK, SurfaceKind.DISPATCH)
        if all(surface.kind in plain and not surface.templates for surface in surfaces):
            return  # they have fixed names and texts
        by = Delegator(
            session=request.session, run=None, policy=request.policy, surfaces=request.surfaces, model=None,
            parallel_tool_calls=True,
        )  # fmt: skip
        agents = self._parts.roster.delegable(request.session)
        delegation_tools(
            by,
            self._surfaces,
            surfaces,
            agents,
            request.definition.disallowed_tools,
            default_subagent=self._default_subagent(request.session, surfaces),
        )

    def _applying(self, request: RunRequest, names: tuple[str, ...]) -> list[Surface]:
        """The surfaces by which a run delegates."""
        found = surfaces_of(request.definition, names, request.surfaces, self._tool_names(request.session, names))
        return found if request.ceiling is None else [limited(each, request.ceiling.agents) for each in found]

    def _ceiling(self, request: RunRequest, names: tuple[str, ...], surfaces: Sequence[Surface]) -> ToolCeiling | None:
        """What the children of a run may have at most; None where it bounds nothing."""
        if ToolInherit.INTERSECT not in (self._parts.inherit_tools, request.policy.inherit_tools):
            return None
        default = self._default_subagent(request.session, surfaces)
        return ceiling_of(names, surfaces, default, _limits(request), request.ceiling)

    def _tool_names(self, session: Session, names: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
        """Agents by their tool's name, where a whitelist holds names that are no ordinary tools."""
        if all(name in self._parts.tools or is_surface(name) for name in names):
            return {}
        found = tool_names(self._parts.roster.delegable(session))
        # an agent that calls its tool like an ordinary one must not turn what others were granted into delegation
        return {name: agents for name, agents in found.items() if name not in self._parts.tools}

    def _default_subagent(self, session: Session, surfaces: Sequence[Surface]) -> AgentDefinition | None:
        if all(surface.kind is not SurfaceKind.SUBAGENT for surface in surfaces):
            return None  # nobody asks for it
        return self._parts.roster.default_subagent(session, self._parts.default_subagent or None)

    def delegator(self, run: Run, request: RunRequest, budget: Budget | None) -> Delegator:
        """What a run that may have ended delegates as: its tasks can be tried again."""
        names = self._whitelist(request)
        ordinary = self._parts.tools.select(names)
        ceiling = self._ceiling(request, names, self._applying(request, names))
        return replace(self._delegator(run, request, None, tuple(ordinary), ceiling), budget=budget)

    def _delegator(
        self,
        run: Run,
        request: RunRequest,
        live: LiveRun | None,
        tools: tuple[str, ...],
        ceiling: ToolCeiling | None,
    ) -> Delegator:
        roster = self._parts.roster
        return Delegator(
            session=request.session,
            run=run,
            policy=request.policy,
            surfaces=request.surfaces,
            model=request.model,
            effort=request.effort,
            thinking=request.thinking,
            parallel_tool_calls=request.parallel_tool_calls,
            tools=tools,
            limits=_limits(request),
            ceiling=ceiling,
            budget=live.budget if live is not None else None,
            agents=_may_delegate_to(request.definition, request.ceiling),
            permissions=request.permissions,
            find=lambda name: roster.find(request.session, name),
            history=lambda: live.work.memory.messages if live is not None and live.work is not None else (),
            summary=None if live is None else lambda: self._summary(live),
        )

    async def _summary(self, live: LiveRun) -> str:
        """The run's conversation in short; its last texts when no model can say it. Children of one turn share it."""
        work = live.work
        assert work is not None  # only tools ask, and those run within it
        said = texts_of(work.memory.messages)
        async with work.summing:
            if work.summary is None or work.summary[0] != len(said):
                text = "\n".join(f"{role}: {text}" for role, text in said)
                try:
                    summary = await summarised(work, text)
                except (ModelError, BudgetSpent) as error:
                    log.warning("run %s: no summary for a subagent, its last texts are used: %s", live.run.id, error)
                    summary = ""
                work.summary = (len(said), summary if summary.strip() else _last(said))
            return work.summary[1]

    def _policy(self, request: RunRequest) -> PermissionPolicy | None:
        policy = request.permissions if isinstance(request.permissions, PermissionPolicy) else None
        above = request.ceiling.limits if request.ceiling is not None else ()
        sets = (*above, _limits(request))
        return under_whitelists(policy, request.definition.name, self._whitelist(request), sets)

    def _whitelist(self, request: RunRequest) -> tuple[str, ...]:
        held, granted = self._parts.tools.specs, self._granted
        if granted is not None and granted[0] is request and granted[1] is held:
            return granted[2]
        names = whitelist_of(
            request.definition,
            self._parts.tools,
            inherited=request.inherited_tools,
            asked=request.tools,
            ceiling=request.ceiling,
        )
        self._granted = request, held, names
        return names


def _last(said: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"{role}: {text}" for role, text in said[-LAST_TEXTS:])


def _may_delegate_to(definition: AgentDefinition, ceiling: ToolCeiling | None) -> tuple[str, ...] | None:
    """Whom a definition names in `Agent(…)` or as its own fallback; None: it names nobody, so it may ask all. Only
    those that its ceiling reaches."""
    above = ceiling.agents if ceiling is not None else None
    if definition.agents is None:
        return above
    own = (definition.policy.on_denied, definition.policy.on_error)
    named = (*definition.agents, *(wanted.target for wanted in own if wanted is not None))
    return named if above is None else tuple(name for name in named if name in above)


def _limits(request: RunRequest) -> tuple[PermissionRule, ...]:
    """What of a run's tools is granted or taken away by patterns: its own, with those of tools that it takes over."""
    own = request.definition.limits
    return own if request.definition.tools is not None else (*request.limits, *own)


def _shown(specs: Sequence[ToolSpec], policy: PermissionPolicy | None) -> tuple[ToolSpec, ...]:
    """The tools that a model is shown: without those that may never be used (spec 8.4)."""
    if policy is None:
        return tuple(specs)
    return tuple(spec for spec in specs if not policy.hides(spec))
