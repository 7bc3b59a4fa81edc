"""What the subagent of a handoff is told: what was asked, what it inherits, what filters leave of it (spec 2.5, 4.2).

Knows neither admission nor attempts.
"""

import asyncio
import logging

from app.agent.definition import InheritKind
from app.agent.errors import SubagentdError
from app.agent.filters import InputFilters
from app.agent.inheritance import LAST_TEXTS, quoted, texts_of
from app.agent.open_handoff import OpenHandoff
from app.agent.orders import Delegator, HandoffOrder, composed
from app.agent.policy import HandoffInput
from app.agent.runs import Failure

log = logging.getLogger(__name__)


class HandoffInputs:
    """Puts task messages together."""

    def __init__(self, filters: InputFilters) -> None:
        self._filters = filters

    async def text(self, handoff: OpenHandoff, order: HandoffOrder) -> str | Failure:
        """The task message: what was asked and what is inherited, after the filters; or why there is none."""
        by, definition = handoff.by, order.definition
        try:
            given = HandoffInput(
                tool=order.tool,
                agent=definition.name,
                session_id=by.session.id,
                task=order.task,
                context=order.context,
                fields=order.fields,
                inherited=await self._of_conversation(handoff, order),
            )
            if by.policy.enabled and by.policy.input_filters:
                given = await self._filters.apply(by.policy.input_filters, given)
            text = composed(given.task, given.context, given.fields)
            return f"{text}\n\n{given.inherited}" if given.inherited else text
        except SubagentdError as error:
            return Failure(code=error.code, message=error.message)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return _filter_failed(handoff, error)
        except (Exception, SystemExit) as error:  # noqa: BLE001  border: filters are an operator's code
            return _filter_failed(handoff, error)

    async def _of_conversation(self, handoff: OpenHandoff, order: HandoffOrder) -> str:
        if order.inherited is not None:
            return order.inherited
        return await self.inherited(handoff.by, order, asks=not handoff.background)

    @staticmethod
    async def inherited(by: Delegator, order: HandoffOrder, *, asks: bool) -> str:
        """What a subagent gets to read of the conversation of whoever delegates. Unless it `asks` the model of that
        run, which may be over, the last texts stand in for a summary."""
        inherit = order.definition.inherit_context.lowered(order.inherit)
        if inherit.kind is InheritKind.NONE or by.run is None:
            return ""
        heading = by.session.texts.inherited
        said = texts_of(by.history())
        if inherit.kind is InheritKind.SUMMARY and by.summary is not None and asks:
            return quoted(heading, [("summary", await by.summary())]) if said else ""
        count = LAST_TEXTS if inherit.kind is InheritKind.SUMMARY else inherit.count
        said = said[-count:] if count else []
        return quoted(heading, said) if said else ""


def _filter_failed(handoff: OpenHandoff, error: BaseException) -> Failure:
    log.error("the input of handoff %s failed", handoff.id, exc_info=error)
    return Failure(code="input_filter_failed", message=f"the input filter failed: {type(error).__name__}")
