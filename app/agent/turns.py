"""One turn: what its calls share, which of them run side by side (spec 5.2), and one result for each, in call order.

Knows nothing of the stages that a call goes through (`calls.py`).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from app.agent.admission import Places
from app.agent.budget import Budget
from app.agent.clearance import Clearance
from app.agent.errors import HandoffStop
from app.agent.ids import new_id
from app.agent.messages import Message, Role, ToolCall
from app.agent.payloads import ToolResulted
from app.agent.runs import LeftCall, Run, Session
from app.agent.tools import ToolRegistry, ToolResult

STOPPED_TEXT = "(not run: the service stopped before this call began)"
CANCELLED_TEXT = "(cancelled before it finished)"
NOT_RUN_TEXT = "(not run: another call of this turn ended the run)"
UNKNOWN_TEXT = (
    "(the service stopped before the outcome of this call was recorded; it is not known whether it took effect)"
)
MASKED_TEXT = (
    "(not done: the service stopped during this call, and secrets in its arguments are not kept, so that it cannot go "
    "on; make the call again if it is still needed)"
)
SIBLING_TEXT = "(cancelled: {tool}, called beside it, failed)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One assistant message with calls: where its results go. `memory_seq` is the number of the assistant message;
    `check` raises when the run was told to end. `places`: those that the run needs to work, None where there is no
    limit. `clearance`: hooks and permissions, None where there are none. `abort_siblings`: a call that fails ends those
    that run beside it (spec 5.2). `deadline`, on the clock of the event loop: while a person is asked it moves.
    `grace_s`: how much of a grace there is for what is broken off. `acknowledge`: the result of a task was fetched; the
    ids of the notices that are settled by that. `left`: how far its calls had come in an earlier process."""

    session: Session
    run: Run
    step: int
    memory_seq: int
    registry: ToolRegistry
    offered: Sequence[str]
    parallel: bool
    workspace: Path
    deadline: Callable[[], float | None]
    check: Callable[[], None]
    budget: Budget | None = None
    places: Places | None = None
    clearance: Clearance | None = None
    abort_siblings: bool = False
    grace_s: Callable[[float], float] = float
    acknowledge: Callable[[str], list[str]] | None = None
    left: Mapping[str, LeftCall] = field(default_factory=dict)


class Caller(Protocol):
    """Carries out single calls (`calls.py`)."""

    async def one(self, turn: Turn, call: ToolCall, sub: int) -> Message:
        """One call; returns its recorded result."""

    def finish(self, turn: Turn, call: ToolCall, sub: int, result: ToolResult) -> Message:
        """Record a result."""

    def begun(self, task: asyncio.Task[None]) -> None:
        """A call runs beside others, in a task of its own."""


class Board:
    """The results of one turn while its calls run."""

    def __init__(
        self, owner: Caller, turn: Turn, calls: Sequence[ToolCall], results: Mapping[str, Message] | None = None
    ) -> None:
        """`results` are those that are there already, by the ids of their calls."""
        self._owner = owner
        self._turn = turn
        self._calls = calls
        known = results or {}
        self._results = {at: known[call.call_id] for at, call in enumerate(calls) if call.call_id in known}
        self._broken_by = ""  # the call whose failure ended those beside it

    async def run(self, group: Sequence[int]) -> None:
        """Run what is left of one group; a single call needs no task of its own."""
        self._broken_by = ""
        if self._results:
            group = [index for index in group if index not in self._results]
            if not group:
                return
        if len(group) == 1:
            await self._one(group[0])
            return
        tasks = [asyncio.create_task(self._one(index)) for index in group]
        for index, task in zip(group, tasks, strict=True):
            if not is_delegation(self._turn, self._calls[index]):
                self._owner.begun(task)
        try:
            done = await self._done(group, tasks)
        except asyncio.CancelledError:
            await _stop(tasks)
            raise
        errors = [None if task.cancelled() else task.exception() for task in done]
        stop = next((error for error in errors if error is not None), None)
        if any(task.cancelled() for task in done):
            stop = asyncio.CancelledError()  # one was broken off: so is the turn
        if stop is not None:
            await _stop(tasks)
            raise stop

    async def _done(self, group: Sequence[int], tasks: Sequence[asyncio.Task[None]]) -> Sequence[asyncio.Task[None]]:
        """Those that have ended when all have, or one by an exception, or by an error that ends its siblings."""
        done: set[asyncio.Task[None]] = set()
        open_ones = set(tasks)
        first = asyncio.FIRST_COMPLETED if self._turn.abort_siblings else asyncio.FIRST_EXCEPTION
        while open_ones:
            ended, open_ones = await asyncio.wait(open_ones, return_when=first)
            done |= ended
            if any(task.cancelled() or task.exception() is not None for task in ended):
                break
            failed = next((index for index in group if index in self._results and self._results[index].is_error), None)
            if failed is not None and open_ones and self._turn.abort_siblings:
                self._broken_by = self._calls[failed].name
                await _stop(tuple(open_ones))
                break
        return [task for task in done if task not in open_ones]

    async def _one(self, index: int) -> None:
        call, sub = self._calls[index], index + 1
        try:
            self._results[index] = await self._owner.one(self._turn, call, sub)
        except HandoffStop as stop:  # its result is recorded
            told = Message(
                role=Role.TOOL,
                content=stop.result,
                tool_call_id=call.call_id,
                is_error=True,
                seq=self._turn.memory_seq + sub,
            )
            self._results[index] = told
            raise
        except asyncio.CancelledError:
            text = SIBLING_TEXT.format(tool=self._broken_by) if self._broken_by else CANCELLED_TEXT
            self._close(index, "cancelled", text)
            raise
        finally:
            if self._turn.places is not None:
                self._turn.places.ended()

    def close(self, status: str, text: str) -> None:
        """Give every call that has no result yet a stand-in."""
        for index in range(len(self._calls)):
            self._close(index, status, text)

    def _close(self, index: int, status: str, text: str) -> None:
        if index in self._results:
            return
        tool = self._turn.registry.get(self._calls[index].name)
        if tool is not None and tool.spec.cancelled_text and status == "cancelled":
            text = tool.spec.cancelled_text
        stand_in = ToolResult(content=text, is_error=True, status=status)
        self._results[index] = self._owner.finish(self._turn, self._calls[index], index + 1, stand_in)

    def messages(self) -> tuple[Message, ...]:
        """All results in call order."""
        return tuple(self._results[index] for index in range(len(self._calls)))


def groups(turn: Turn, calls: Sequence[ToolCall]) -> list[list[int]]:
    """Indexes of calls: consecutive concurrency-safe ones together, each other one alone."""
    found: list[list[int]] = []
    together = False
    for index, call in enumerate(calls):
        tool = turn.registry.get(call.name)
        safe = turn.parallel and (tool is None or tool.spec.concurrency_safe)
        if safe and together:
            found[-1].append(index)
        else:
            found.append([index])
        together = safe
    return found


def is_delegation(turn: Turn, call: ToolCall) -> bool:
    """Whether a call starts agents."""
    tool = turn.registry.get(call.name)
    return tool is not None and tool.spec.delegation


def unfinished(run: Run, call: LeftCall) -> ToolResulted:
    """The result of a call of an earlier process that nobody carries out any more."""
    return ToolResulted(
        call_id=call.call_id,
        provider_call_id=call.provider_call_id,
        tool=call.tool,
        message_id=new_id("msg"),
        memory_id=run.memory_id,
        memory_seq=call.memory_seq,
        turn=run.turn,
        sub=call.sub,
        status="unknown" if call.started else "not_run",
        is_error=True,
        content=UNKNOWN_TEXT if call.started else STOPPED_TEXT,
        duration_ms=0,
        length=None,
        arguments=None if call.called else call.raw,
    )


async def _stop(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel and wait; what they raise was recorded as their result."""
    for task in tasks:
        if not task.cancelling():  # else it cleans up already, which a second cancel would break off
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
