"""The surface `per_agent`: one function tool for each agent, results as JSON (spec 3.1).

Knows no other surface.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from app.agent.definition import AgentDefinition, Surface, SurfaceKind
from app.agent.errors import InvalidArguments
from app.agent.orders import Delegator, HandoffOrder, HandoffResult, canonical
from app.agent.surfaces import (
    DelegationTool,
    SurfaceParts,
    allowed_agents,
    further_fields,
    further_parameters,
    with_work_order,
)
from app.agent.texts import Texts, filled
from app.agent.tools import Interrupt, ToolContext, ToolResult, ToolSpec

_TASK_AND_CONTEXT: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "description": "The complete work order."},
        "context": {"type": "string", "description": "What else the subagent must know."},
    },
    "required": ["task"],
}


class AgentTool(DelegationTool):
    """The function tool of one agent."""

    kind = SurfaceKind.PER_AGENT

    def __init__(
        self, by: Delegator, parts: SurfaceParts, surface: Surface, target: AgentDefinition, name: str
    ) -> None:
        super().__init__(by, parts, surface)
        self.means = f"agent {target.name}"
        self.permitted = bool(allowed_agents(by, name, [target]))
        own = target.input_schema or _TASK_AND_CONTEXT
        # a schema of the agent's own wins where it has such a field itself
        self._further = {k: v for k, v in further_parameters([target]).items() if k not in own.get("properties", {})}
        self.target = target
        description = parts.masker.text(target.description)
        self.spec = _spec(target, name, description, _joined(own, self._further), self._texts)

    async def call(self, arguments: Any, context: ToolContext) -> ToolResult:
        """Delegate; the result is a JSON string with `subagent`, `toolName`, `output`, `steps`."""
        given: dict[str, Any]
        if isinstance(arguments, str):
            task, more = resolved_input(arguments)
            given, fields = {"task": task, "context": more}, _object_in(arguments)
        else:
            own = {key: value for key, value in arguments.items() if key not in self._further}
            given, fields = {"task": "", "fields": own}, arguments
        further = further_fields({key: fields.get(key) for key in self._further}, [self.target])
        return await self._carried_out(self._order(self.target, context, **given, **further))

    def _answer(self, _order: HandoffOrder, result: HandoffResult) -> str:
        partial = self._partial(result)
        return self._fitted(result, lambda text: self._json(result, f"{text}\n\n{partial}" if partial else text))

    def _problem(self, _order: HandoffOrder, result: HandoffResult) -> str:
        error = {"task_id": result.handoff_id, "error": self._reason(result, json.dumps)}
        return self._fitted(result, lambda text: self._json(result, text, error))

    def _json(self, result: HandoffResult, output: str, more: Mapping[str, Any] | None = None) -> str:
        outcome = None if result.answer is not None else result.outcome
        shape: dict[str, Any] = {
            "subagent": self.target.name,
            "toolName": self.spec.name,
            "output": output,
            "steps": outcome.steps if outcome else 0,
            "status": result.status.value,
        }
        if result.run_ids:
            shape["run_id"] = result.run_ids[-1]
        if outcome is not None and outcome.forced:
            shape["forced"] = True
        if outcome is not None and outcome.partial:
            shape["partial"] = True
        return json.dumps({**shape, **(more or {})}, ensure_ascii=False)


def resolved_input(raw: str) -> tuple[str, str]:
    """The task and the context in the raw arguments of a `per_agent` call (spec 3.1).

    Raises `InvalidArguments` naming `task` when JSON holds neither `task` nor `input`, or naming the number that JSON
    does not have (NaN, Infinity).
    """
    if not raw.strip():
        return "", ""
    try:
        value = json.loads(raw, parse_constant=_refused, parse_float=_finite)
    except (ValueError, RecursionError):
        return raw, ""
    fields = value if isinstance(value, dict) else {}
    task = next((fields[key] for key in ("task", "input") if fields.get(key) is not None), None)
    if task is None:
        raise InvalidArguments('The arguments hold no `task`: send {"task": "…", "context": "…" (optional)}.')
    context = fields.get("context")
    return _as_text(task), "" if context is None else _as_text(context)


def _refused(constant: str) -> None:
    raise InvalidArguments(
        f"The arguments hold {constant[:40]}, which is no JSON: send a number, a text or null there."
    )


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        _refused(digits)
    return number


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else canonical(value)


def _object_in(raw: str) -> Mapping[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _joined(schema: Mapping[str, Any], further: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**schema, "properties": {**schema.get("properties", {}), **further}} if further else schema


def _spec(
    target: AgentDefinition, name: str, description: str, parameters: Mapping[str, Any], texts: Texts
) -> ToolSpec:
    text = filled(texts.per_agent, name=target.name, description=description)
    return ToolSpec(
        name=name,
        description=with_work_order(text, texts),
        parameters=parameters,
        raw_arguments=target.input_schema is None,
        concurrency_safe=True,
        timeout_ms=0,
        interrupt=Interrupt.BLOCK,
        delegation=True,
    )
