"""The surface `subagent`: one tool for one agent, results with a record of what it did (spec 3.4).

Knows no other surface.
"""

from collections.abc import Mapping
from typing import Any

from app.agent.definition import MAX_TOOL_NAME, AgentDefinition, Surface, SurfaceKind
from app.agent.orders import SUBAGENT_STEPS, Delegator, HandoffOrder, HandoffResult
from app.agent.returned import bounded, neutralised
from app.agent.runs import ToolActivity
from app.agent.surfaces import (
    NAME,
    DelegationTool,
    SurfaceParts,
    allowed_agents,
    delegation_spec,
    further_fields,
    further_parameters,
    with_work_order,
)
from app.agent.texts import filled
from app.agent.tools import ToolContext, ToolResult

SUBAGENT = "subagent"
MOST_STEPS = 10  # what a model may ask for (spec 5.1)


class ResearchTool(DelegationTool):
    """`subagent(research_prompt, max_steps=5, name?)`."""

    kind = SurfaceKind.SUBAGENT

    def __init__(self, by: Delegator, parts: SurfaceParts, surface: Surface, target: AgentDefinition) -> None:
        super().__init__(by, parts, surface)
        self.means = f"{self.kind.value} {target.name}"
        self.permitted = bool(allowed_agents(by, SUBAGENT, [target]))
        self.target = target
        text = filled(self._texts.subagent, description=parts.masker.text(target.description))
        # an agent that says itself how many steps it needs keeps them where a model says nothing
        default = {} if target.max_steps else {"default": SUBAGENT_STEPS}
        self.spec = delegation_spec(
            SUBAGENT,
            with_work_order(text, self._texts),
            {
                "research_prompt": {"type": "string", "description": "The complete research task."},
                "max_steps": {"type": "integer", "description": f"At most {MOST_STEPS}.", **default},
                "name": NAME,
                **further_parameters([target]),
            },
            ("research_prompt",),
            error_prefix=self._texts.subagent_failed,
        )

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Delegate; the result is a heading, the activity and the conclusion."""
        steps = arguments.get("max_steps")
        if steps is not None and steps < 1:
            problem = f"{self._texts.subagent_failed}max_steps is {steps}: it must be 1 to {MOST_STEPS}."
            return ToolResult(content=problem, is_error=True, status="invalid_arguments")
        order = self._order(
            self.target,
            context,
            task=arguments["research_prompt"],
            name=arguments.get("name"),
            max_steps=None if steps is None else min(int(steps), MOST_STEPS),
            **further_fields(arguments, [self.target]),
        )
        return await self._carried_out(order)

    def _answer(self, _order: HandoffOrder, result: HandoffResult) -> str:
        texts, activity, partial = self._texts, self._activity(result), self._partial(result)

        def render(text: str) -> str:
            said = f"{text}\n\n{partial}" if partial else text
            conclusion = "\n".join(part for part in (texts.conclusion, said) if part)
            return "\n\n".join(part for part in (texts.heading, activity, conclusion) if part)

        return self._fitted(result, render)

    def _problem(self, _order: HandoffOrder, result: HandoffResult) -> str:
        return self._told(self._texts.subagent_failed + self._reason(result), result)

    def _activity(self, result: HandoffResult) -> str:
        """One line for each tool; empty when the block is switched off."""
        texts = self._texts
        if not texts.activity:
            return ""
        used = result.outcome.activity if result.outcome is not None else ()
        lines = "\n".join(self._line(tool) for tool in used) or texts.no_activity
        origin = result.run_ids[-1] if result.run_ids else result.handoff_id
        lines = neutralised(bounded(lines, self._parts.limit.max_chars // 4, origin, texts), texts)
        return "\n".join(part for part in (texts.activity, lines) if part)

    def _line(self, tool: ToolActivity) -> str:
        # a name that the child's model made up is a child's text, too
        name = neutralised(" ".join(self._parts.masker.text(tool.name).split()), self._texts)[:MAX_TOOL_NAME]
        return filled(self._texts.activity_line, calls=tool.calls, ms=tool.total_ms, name=name)
