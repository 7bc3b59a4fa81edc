"""What the delegation tools share: how they ask for a handoff, and what a parent is shown of its result.

Knows no single surface and not how a child is driven.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from app.agent.definition import AgentDefinition, Inherit, InheritKind, SessionMode, SessionScope, Surface, SurfaceKind
from app.agent.errors import HandoffStop, InvalidArguments, InvalidRequest
from app.agent.handoff import Handoffs
from app.agent.orders import Delegator, HandoffOrder, HandoffResult, stops_parent
from app.agent.ports import Masker
from app.agent.returned import fitting
from app.agent.runs import HandoffStatus
from app.agent.texts import Texts, filled
from app.agent.tools import Interrupt, OutputLimit, Tool, ToolContext, ToolResult, ToolSpec

Shape = Callable[[str], str]  # puts a child's text into the form of a surface

ERROR = "Error: "
SESSION_KEY = "session_key"
INHERIT = "inherit_context"
NAME = {"type": "string", "description": "A readable name for this subagent."}


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceParts:
    """What every surface needs of the service. `limit` bounds a whole tool result."""

    handoffs: Handoffs
    masker: Masker
    limit: OutputLimit


class SurfaceTool(Tool, Protocol):
    """A tool of a surface. `means`: two of one name must mean the same; `permitted`: whether a model is shown it."""

    means: str
    permitted: bool


class DelegationTool:
    """A tool that starts agents. A surface adds its arguments and, where it is not plain text, its form."""

    kind: SurfaceKind
    spec: ToolSpec
    permitted: bool

    def __init__(self, by: Delegator, parts: SurfaceParts, surface: Surface) -> None:
        self.means = self.kind.value
        self._by = by
        self._parts = parts
        self._texts = texts_of(by.session.texts, surface)

    def _order(self, agent: AgentDefinition, call: ToolContext, /, **given: Any) -> HandoffOrder:
        """An order of this tool's call; `given` are further fields of `HandoffOrder`."""
        return HandoffOrder(
            tool=self.spec.name,
            surface=self.kind.value,
            definition=agent,
            call_id=call.call_id,
            primary=call.primary,
            stands_in=call.stands_in,
            **given,
        )

    async def _carried_out(self, order: HandoffOrder) -> ToolResult:
        """The result of a handoff in the form of this surface. Raises `HandoffStop` when it ends the parent's turn."""
        result = await self._parts.handoffs.delegate(self._by, order)
        if result.direct is not None:
            return result.direct if result.fallback is not None else self._unavailable(result.direct)
        if result.ok:
            return ToolResult(content=self._answer(order, result))
        content = self._problem(order, result)
        denied = result.status is HandoffStatus.DENIED
        if stops_parent(self._by.policy, result, self.kind.value):
            code = "handoff_denied" if denied else "handoff_failed"
            raise HandoffStop(explained(order, reason_of(result), result), code=code, result=content)
        return ToolResult(content=content, is_error=True, status="denied" if denied else "error")

    def _unavailable(self, told: ToolResult) -> ToolResult:
        return replace(told, content=f"{self.spec.error_prefix}{told.content}")

    def _answer(self, _order: HandoffOrder, result: HandoffResult) -> str:
        """The answer as text."""
        partial = self._partial(result)
        return self._fitted(result, lambda text: f"{text}\n\n{partial}" if partial else text)

    def _problem(self, order: HandoffOrder, result: HandoffResult) -> str:
        """Why there is no answer, under which ids it is found, and what the child had."""
        return self._told(ERROR + explained(order, self._reason(result), result), result)

    # ── pieces of a result ──────────────────────────────────────────────────────────────────────────────────────

    def _told(self, problem: str, result: HandoffResult) -> str:
        run = [f"run_id: {result.run_ids[-1]}"] if result.run_ids else []
        said = "\n".join([problem, f"task_id: {result.handoff_id}", *run])
        if not result.output.strip():
            return said
        return self._fitted(result, lambda text: f"{said}\n\n{self._texts.digest}\n{text}")

    def _fitted(self, result: HandoffResult, render: Shape) -> str:
        """A child's output in a form, as a parent may be shown it: masked, neutralised, of bounded size."""
        text = self._parts.masker.text(result.output)
        origin = result.run_ids[-1] if result.run_ids and result.answer is None else result.handoff_id
        return render(fitting(render, text, self._parts.limit.max_chars, origin, self._texts))

    def _partial(self, result: HandoffResult) -> str:
        """What says that an answer is no full one, since a capped text may read like one; else empty."""
        if result.answer is not None or result.outcome is None or not result.outcome.partial:
            return ""
        return filled(self._texts.partial, reason=result.outcome.stop_reason.value)

    def _reason(self, result: HandoffResult, render: Shape = str) -> str:
        """Why there is no answer, as a parent may be shown it: it may quote a provider or a child. In its form it
        takes no more than a quarter of a result."""
        reason = self._parts.masker.text(reason_of(result))
        return fitting(render, reason, self._parts.limit.max_chars // 4, result.handoff_id, self._texts)


def reason_of(result: HandoffResult) -> str:
    """Why a handoff gave no result."""
    return result.error.message if result.error else result.status.value


def agent_of(registry: Mapping[str, Tool], name: str) -> str | None:
    """Whom a tool that leads to one agent would start; None for all others."""
    target = getattr(registry.get(name), "target", None)
    return target.name if isinstance(target, AgentDefinition) else None


def explained(order: HandoffOrder, reason: str, result: HandoffResult) -> str:
    """A sentence about a handoff that gave no result."""
    verb = "was denied" if result.status is HandoffStatus.DENIED else f"ended {result.status.value}"
    return f"the handoff to {order.definition.name} {verb}: {reason}"


def texts_of(texts: Texts, surface: Surface) -> Texts:
    """The texts of a session with those of a surface put in. Raises `InvalidRequest` for an unknown name."""
    try:
        return texts.replaced({name: text or "" for name, text in surface.templates.items()})
    except ValueError as error:
        raise InvalidRequest(f"surface {surface.kind.value}, templates: {error}", code="unknown_text") from error


# ── descriptions and arguments ──────────────────────────────────────────────────────────────────────────────────


def delegation_spec(
    name: str,
    description: str,
    properties: Mapping[str, Any],
    required: Iterable[str],
    accepted: Mapping[str, Any] | None = None,
    error_prefix: str = "",
) -> ToolSpec:
    """The spec of a tool that starts agents. Optional arguments may come as null; `accepted` replaces properties in
    what calls are validated against."""
    needed = list(required)
    wider = {key: value if key in needed else nullable(value) for key, value in properties.items()}
    schema = {"type": "object", "properties": dict(properties), "required": needed}
    return ToolSpec(
        name=name,
        description=description,
        parameters={**schema, "additionalProperties": False},
        accepts={**schema, "properties": {**wider, **(accepted or {})}},
        error_prefix=error_prefix,
        concurrency_safe=True,
        timeout_ms=0,
        interrupt=Interrupt.BLOCK,
        delegation=True,
    )


def nullable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A property's schema that null satisfies as well: models send it for what they leave out."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    wider = {**schema, "type": [*kinds, *([] if "null" in kinds else ["null"])]}
    return {**wider, "enum": [*schema["enum"], None]} if "enum" in schema else wider


def with_work_order(text: str, texts: Texts) -> str:
    """A description with what holds for every tool that starts agents."""
    return "\n\n".join(part for part in (text, texts.work_order) if part)


def with_agents(template: str, listing: str) -> str:
    """A description with the agents where it says {agents}, else behind it."""
    if "{agents}" in template:
        return filled(template, agents=listing)
    return f"{template}\n\n{listing}" if template else listing


def further_parameters(agents: Iterable[AgentDefinition]) -> dict[str, Any]:
    """`session_key` and `inherit_context`, each only if one of the agents has a use for it."""
    known = list(agents)
    found: dict[str, Any] = {}
    if any(a.session_mode is SessionMode.REUSE and a.session_scope is SessionScope.KEY for a in known):
        found[SESSION_KEY] = {"type": "string", "description": "Calls with the same key share one memory."}
    inherits = dict.fromkeys(str(a.inherit_context) for a in known if a.inherit_context.kind is not InheritKind.NONE)
    if inherits:
        found[INHERIT] = {
            "type": "string",
            "enum": [InheritKind.NONE.value, *inherits],
            "description": "How much of this conversation the subagent gets to read; at most what it is made for.",
        }
    return found


def further_fields(arguments: Mapping[str, Any], agents: Iterable[AgentDefinition]) -> dict[str, Any]:
    """The fields of an order that `further_parameters` give. Raises `InvalidArguments` for another value."""
    known = {str(a.inherit_context): a.inherit_context for a in agents}
    known[InheritKind.NONE.value] = Inherit()
    key, wanted = arguments.get(SESSION_KEY), arguments.get(INHERIT)
    if key is not None and not isinstance(key, str):
        raise InvalidArguments(f"{ERROR}{SESSION_KEY} must be a text.")
    if wanted is not None and not (isinstance(wanted, str) and wanted in known):
        raise InvalidArguments(f"{ERROR}{INHERIT} must be one of {', '.join(sorted(known))}.")
    return {SESSION_KEY: key or None, "inherit": None if wanted is None else known[wanted]}


def allowed_agents(by: Delegator, tool: str, agents: Iterable[AgentDefinition]) -> list[AgentDefinition]:
    """Those agents to whom the policy lets this run delegate with a tool."""
    return [agent for agent in agents if by.policy.denial(tool, by.child_depth, agent.name) is None]


def matching(wanted: str, agents: Mapping[str, AgentDefinition]) -> AgentDefinition | None:
    """The agent of that name, or the only one that differs by case, quotes, spaces or brackets alone."""
    if wanted in agents:
        return agents[wanted]
    bare = _bare(wanted)
    fitting = [agent for name, agent in agents.items() if _bare(name) == bare]
    return fitting[0] if bare and len(fitting) == 1 else None


def _bare(name: str) -> str:
    return name.strip(" \t\n\"'`[]()").casefold()
