"""How one tool is called: with what it may see and say, how long at most, and how it is broken off (spec 7.1, 7.4).

Knows neither the stages around that nor what is recorded of it (`calls.py`).
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Container
from typing import Any

from app.agent import events
from app.agent.clearance import Cleared, Sight
from app.agent.errors import HandoffStop, ToolError
from app.agent.interruption import Interruption, OutOfTime, bounded
from app.agent.messages import ToolCall
from app.agent.ports import Recorder
from app.agent.tools import Interrupt, Tool, ToolContext, ToolResult, ToolSpec
from app.agent.turns import Turn

log = logging.getLogger(__name__)


class Invocations:
    """Calls tools for a run. `open_calls`: those that may still say how far they are."""

    def __init__(self, recorder: Recorder, grace_ms: int, open_calls: Container[str]) -> None:
        self._recorder = recorder
        self._grace_s = grace_ms / 1000
        self._open_calls = open_calls

    async def invoke(
        self,
        tool: Tool,
        cleared: Cleared,
        turn: Turn,
        call: ToolCall,
        primary: Callable[[], Awaitable[ToolResult]] | None = None,
    ) -> ToolResult:
        """What comes of it, also a fault in the tool. `primary`: how the tool that a delegation hides carries
        out the same call. Raises `ToolError`, `HandoffStop`, and `CancelledError` when the caller is cancelled."""
        arguments, timeout_ms = cleared.arguments, tool.spec.timeout_ms
        sight = _sight(turn, tool, cleared)
        context = ToolContext(
            session=turn.session,
            run=turn.run,
            step=turn.step,
            call_id=call.call_id,
            workspace=turn.workspace,
            deadline=turn.deadline(),
            progress=self._progress(turn, call),
            primary=primary,
            stands_in=_stands_in(turn, call, arguments) if tool.spec.delegation else None,
            conceals=None if sight is None else sight.conceals,
            refuses=None if sight is None else sight.refuses,
            protects=None if sight is None else sight.protects,
        )
        how = self._interruption(turn, tool.spec)
        try:
            if how is None:
                return await tool.call(arguments, context)
            work = _contained(tool, arguments, context)
            outcome = await bounded(work, how, timeout_s=timeout_ms / 1000 or None, name=f"tool {call.name}")
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome
        except (ToolError, HandoffStop):
            raise
        except OutOfTime:
            text = f"{call.name} did not finish within {timeout_ms} ms and was stopped."
            return ToolResult(content=text, is_error=True, status="timed_out")
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            return _fault(call, error)  # nobody cancelled this: something inside the tool was
        except (Exception, SystemExit) as error:  # noqa: BLE001  border to tools: a fault in one is that call's result
            return _fault(call, error)

    def _interruption(self, turn: Turn, spec: ToolSpec) -> Interruption | None:
        """How a call of the tool is broken off (spec 7.4); None for delegations, which end when their children have."""
        if spec.delegation:
            return None
        return Interruption(grace_s=self._grace_s, finishes=spec.interrupt is Interrupt.BLOCK, bound=turn.grace_s)

    def _progress(self, turn: Turn, call: ToolCall) -> Callable[[str], None]:
        """How a call shows what it is at, also from a thread of its own."""
        loop, home = asyncio.get_running_loop(), threading.get_ident()

        def say(text: str) -> None:
            if call.call_id in self._open_calls:  # what a call left behind may go on talking
                self._recorder.emit(turn.run, events.TOOL_PROGRESS, turn.step, text, call.call_id)

        def progress(text: str) -> None:
            if threading.get_ident() == home:
                say(text)
            else:
                loop.call_soon_threadsafe(say, text)

        return progress


def _stands_in(turn: Turn, call: ToolCall, arguments: Any) -> Callable[[str, str], Awaitable[None]] | None:
    """How it is asked whether another agent may stand in for the one that a call asked for."""
    clearance, left = turn.clearance, turn.left.get(call.call_id)
    if clearance is None:
        return None
    before = left.stand_in if left is not None else None

    async def asked(tool: str, agent: str) -> None:
        await clearance.stands_in(turn.step, call.call_id, tool, agent, arguments, before)

    return asked


async def _contained(tool: Tool, arguments: Any, context: ToolContext) -> ToolResult | BaseException:
    """What comes of a tool, in a task of its own: SystemExit, raised there, would end the loop."""
    try:
        return await tool.call(arguments, context)
    except (Exception, SystemExit) as error:  # noqa: BLE001  border to tools: it is raised where it is waited for
        return error


def _sight(turn: Turn, tool: Tool, cleared: Cleared) -> Sight | None:
    return None if turn.clearance is None else turn.clearance.sight(tool.spec, cleared)


def _is_cancelled() -> bool:
    """Whether somebody has cancelled the task that runs this."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _fault(call: ToolCall, error: BaseException) -> ToolResult:
    """What the model is told of a tool that raised: nothing that may hold a path or a secret."""
    log.error("tool %s failed (call %s)", call.name, call.call_id, exc_info=error)
    text = f"{call.name} failed inside (fault {call.call_id}). Try another way or report that it failed."
    return ToolResult(content=text, is_error=True, status="error")
