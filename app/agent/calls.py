"""One turn's tool calls, from request to results, in the order of spec 6.5; parallel or in order by spec 5.2.

Knows delegation only as tools, and no concrete tool.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.agent import events, faults
from app.agent.approvals import known_arguments
from app.agent.artifacts import READER, new_artifact
from app.agent.budget import ONE_TOOL_CALL, Refusal, take
from app.agent.clearance import Cleared
from app.agent.duplicates import DuplicateLimits, Duplicates
from app.agent.errors import (
    BudgetSpent,
    CallDenied,
    Conflict,
    HandoffStop,
    InvalidArguments,
    RepeatedCall,
    ToolError,
    UnknownTool,
)
from app.agent.events import Write
from app.agent.governed import DuplicateBlocked
from app.agent.ids import new_id
from app.agent.interruption import GRACE_MS
from app.agent.invocation import Invocations
from app.agent.messages import Message, Role, ToolCall
from app.agent.payloads import ErrorInfo, RunResumed, RunWaiting, ToolCalled, ToolResulted, ToolStarted
from app.agent.ports import Masker, Recorder
from app.agent.runs import LeftCall, Run, ToolActivity
from app.agent.texts import filled
from app.agent.tools import (
    OutputLimit,
    SchemaChecker,
    Tool,
    ToolRegistry,
    ToolResult,
    validated,
)
from app.agent.turns import CANCELLED_TEXT, MASKED_TEXT, NOT_RUN_TEXT, UNKNOWN_TEXT, Board, Turn, groups, is_delegation

log = logging.getLogger(__name__)

_MASKED_HERE = 64 << 10  # characters; what is longer and full of secrets takes up to a second: that is for a thread


class ToolCalls:
    """Carries out the calls of turns and counts them for the activity record. One object per run."""

    def __init__(
        self,
        recorder: Recorder,
        checker: SchemaChecker,
        masker: Masker,
        limit: OutputLimit,
        duplicates: DuplicateLimits | None = None,
        grace_ms: int = GRACE_MS,
        answered: Callable[[Run, str], None] = lambda run, call_id: None,
    ) -> None:
        """`answered` is told of each call of an earlier process that has its result."""
        self._answered = answered
        self.duplicates = Duplicates(duplicates or DuplicateLimits())
        self._recorder = recorder
        self._checker = checker
        self._masker = masker
        self._limit = limit
        self._activity: dict[str, list[int]] = {}
        self._open: dict[str, float] = {}  # calls with a tool.call and no tool.result, and when they began
        self._invocations = Invocations(recorder, grace_ms, self._open)
        self._started: dict[str, events.Event] = {}  # delegations under way
        self.finished: set[str] = set()  # calls that have a result
        self._watching: set[str] = set()  # calls that wait for tasks
        self._beside: set[asyncio.Task[None]] = set()  # calls in a task of their own that are no delegations
        self._alone = asyncio.Lock()
        self._waits: dict[str, int] = {}  # for what the run waits, and for how many of it
        self.spent: Refusal | None = None  # a call that the budget had no room for

    @property
    def at_rest(self) -> bool:
        """Whether all calls under way wait for persons or for other runs."""
        waiting = len(self._started) + len(self._watching) + self._waits.get("approval", 0)
        return 0 < len(self._open) <= waiting

    @property
    def activity(self) -> tuple[ToolActivity, ...]:
        """What was used, in the order of first use."""
        return tuple(ToolActivity(name=name, calls=calls, total_ms=ms) for name, (calls, ms) in self._activity.items())

    def restore(self, activity: Sequence[ToolActivity], said: Sequence[Message], registry: ToolRegistry) -> None:
        """What was done before this process: what was used, and which calls were made in which order."""
        self._activity = {used.name: [used.calls, used.total_ms] for used in activity}
        results = {m.tool_call_id: m.content for m in said if m.tool_call_id is not None}
        for call in (call for message in said for call in message.tool_calls if call.call_id in results):
            tool = registry.get(call.name)
            if tool is None:
                continue
            try:
                arguments = validated(tool.spec, call, self._checker)
            except ToolError:
                continue  # such a call is not counted
            if self.duplicates.check(call.call_id, call.name, arguments, poller=tool.spec.poller) is None:
                self.duplicates.result(call.call_id, results[call.call_id])

    async def execute(
        self,
        turn: Turn,
        calls: Sequence[ToolCall],
        history: list[Message],
        results: Mapping[str, Message] | None = None,
    ) -> None:
        """Run the calls and append their tool messages to `history`, in call order. `results`: those that an earlier
        process has left, by the ids of their calls.

        Every call gets exactly one `tool.result` and its message, also when this is cancelled or a handoff ends the
        turn; in these two cases the exception is raised after that.
        """
        board = Board(self, turn, calls, results)
        if any(is_delegation(turn, call) for call in calls):
            self.wait(turn.run, "child")
        status, text = "not_run", NOT_RUN_TEXT
        task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        try:
            for group in groups(turn, calls):
                turn.check()  # a child that was ended with this run must not set the next call going
                await self._group(turn, board, group, calls)
                if task is not None and task.cancelling() > cancels:
                    raise asyncio.CancelledError  # which what was just running has swallowed: nothing more begins
            self.resume(turn.run)
        except asyncio.CancelledError:
            status, text = "cancelled", CANCELLED_TEXT
            raise
        finally:
            board.close(status, text)
            history.extend(board.messages())

    def begun(self, task: asyncio.Task[None]) -> None:
        """A call runs beside others, in a task of its own."""
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def break_off(self) -> None:
        """The run was told to end, which it does after its children: tools that run beside these end now."""
        for task in self._beside:
            task.cancel()

    @staticmethod
    async def _group(turn: Turn, board: Board, group: Sequence[int], calls: Sequence[ToolCall]) -> None:
        """Run one group; a run that waits for children, or for a task, holds no place meanwhile (spec 9.8)."""
        if turn.places is None:
            await board.run(group)
            return
        async with turn.places.calls(len(group), apart=any(_is_waiting(turn, calls[index]) for index in group)):
            await board.run(group)
            turn.check()  # a tool may have swallowed its cancellation: nobody would cancel the wait for a place

    def wait(self, run: Run, reason: str) -> None:
        """The run waits for one thing more: a child, or a person."""
        self._waits[reason] = self._waits.get(reason, 0) + 1
        if self._waits[reason] == 1:
            self._recorder.record(run, events.RUN_WAITING, RunWaiting(reason=reason))

    def resume(self, run: Run, reason: str = "child") -> None:
        """The run waits for one thing less; nothing happens when it does not wait for that."""
        left = self._waits.get(reason, 0) - 1
        if left < 0:
            return
        if left:
            self._waits[reason] = left
            return
        del self._waits[reason]
        if self._waits:
            other = next(iter(self._waits))
            self._recorder.record(run, events.RUN_WAITING, RunWaiting(reason=other))
        else:
            self._recorder.record(run, events.RUN_RESUMED, RunResumed(reason=reason))

    async def one(self, turn: Turn, call: ToolCall, sub: int) -> Message:
        """One call through all stages of spec 6.5."""
        self._activity.setdefault(call.name, [0, 0])  # here, so that their order is that of first use
        try:
            left = turn.left.get(call.call_id)
            if left is not None and left.called:
                self._open[call.call_id] = asyncio.get_running_loop().time()
            tool = self._existing(turn, call)
            given_up = self._given_up(turn, tool, left) if left is not None else None
            if given_up is not None:
                return self.finish(turn, call, sub, given_up)
            arguments = validated(tool.spec, call, self._checker)
            if call.call_id not in self._open:
                self._recorder.record(turn.run, events.TOOL_CALL, _called(call, arguments, sub), step=turn.step)
                self._open[call.call_id] = asyncio.get_running_loop().time()
            self._not_again(turn, tool, call, arguments)
            cleared = Cleared(arguments=arguments)
            if turn.clearance is not None:
                cleared = await _cleared(turn, tool, call, arguments)
                if cleared.arguments != arguments:
                    call = _rewritten(call, cleared.arguments)
            self._afford(turn, tool)
            start = self._begin(turn, tool, call)
            result = await self._carried_out(tool, cleared, turn, call, start)
        except RepeatedCall as error:
            result = ToolResult(content=error.message, is_error=True, status="duplicate")
        except CallDenied as error:
            result = ToolResult(content=_prefixed(turn, call, error), is_error=True, status=error.status)
        except BudgetSpent as error:
            result = ToolResult(content=error.message, is_error=True, status="denied")
        except UnknownTool as error:
            result = ToolResult(content=error.message, is_error=True, status="unknown_tool")
        except InvalidArguments as error:
            result = ToolResult(content=_prefixed(turn, call, error), is_error=True, status="invalid_arguments")
        except ToolError as error:
            result = ToolResult(content=_prefixed(turn, call, error), is_error=True, status="error")
        except HandoffStop as error:
            stopped = ToolResult(content=error.result, is_error=True, status="error")
            told = self.finish(turn, call, sub, stopped, stop=error)
            error.result = told.content  # as it stands in the log: masked and cut
            raise
        return self.finish(turn, call, sub, result, await self._masked_aside(result.content))

    async def _masked_aside(self, text: str) -> str:
        if len(text) <= _MASKED_HERE:
            return self._masker.text(text)
        return await asyncio.to_thread(self._masker.text, text)

    def masked(self, text: str) -> str:
        """A text without secrets."""
        return self._masker.text(text)

    def _given_up(self, turn: Turn, tool: Tool, left: LeftCall) -> ToolResult | None:
        """The result of a call of an earlier process that must not be carried out again, or cannot be, as the log has
        its arguments without their secrets."""
        if left.started and not (tool.spec.read_only or tool.spec.delegation):
            return ToolResult(content=UNKNOWN_TEXT, is_error=True, status="unknown")
        if left.delegated or not self._masker.hides(known_arguments(left)):
            return None
        if left.asked is not None and turn.clearance is not None:
            turn.clearance.withdraw(left.asked, left.call_id, left.tool)
        status = "unknown" if left.started and not tool.spec.delegation else "not_run"
        return ToolResult(content=MASKED_TEXT, is_error=True, status=status)

    def _not_again(self, turn: Turn, tool: Tool, call: ToolCall, arguments: Any) -> None:
        """Raises `RepeatedCall` when the run goes in a circle."""
        circle = self.duplicates.check(call.call_id, tool.spec.name, arguments, poller=tool.spec.poller)
        if circle is None:
            return
        payload = DuplicateBlocked(
            call_id=call.call_id,
            tool=tool.spec.name,
            cycle=circle.length,
            repeats=circle.repeats,
            blocked=self.duplicates.blocked,
        )
        self._recorder.record(turn.run, events.DUPLICATE_BLOCKED, payload, step=turn.step)
        raise RepeatedCall(filled(turn.session.texts.duplicate, tool=tool.spec.name))

    def _afford(self, turn: Turn, tool: Tool) -> None:
        """Take the call out of the budget of the tree; a delegation is taken as one when it is admitted."""
        if tool.spec.delegation:
            return
        refusal = take(turn.budget, ONE_TOOL_CALL)
        if refusal is not None:
            self.spent = refusal
            raise BudgetSpent(filled(turn.session.texts.budget_spent, what=refusal.what))

    def _begin(self, turn: Turn, tool: Tool, call: ToolCall) -> events.Event:
        """State that the tool starts."""
        payload = ToolStarted(call_id=call.call_id, tool=tool.spec.name, read_only=tool.spec.read_only)
        if tool.spec.delegation:
            payload["delegation"] = True
        start = self._recorder.record(turn.run, events.TOOL_START, payload, step=turn.step)
        if tool.spec.delegation:
            self._started[call.call_id] = start
        elif tool.spec.waits:
            self._watching.add(call.call_id)
        return start

    async def _carried_out(
        self, tool: Tool, cleared: Cleared, turn: Turn, call: ToolCall, start: events.Event
    ) -> ToolResult:
        """The result of a call that has started, after the hooks; these are asked whatever came of it (spec 6.4)."""
        clearance, arguments = turn.clearance, cleared.arguments
        if clearance is None:
            return await self._once_stored(tool, cleared, turn, call, start)
        began = asyncio.get_running_loop().time()

        def took() -> int:
            return int((asyncio.get_running_loop().time() - began) * 1000)

        try:
            result = await self._once_stored(tool, cleared, turn, call, start)
        except asyncio.CancelledError:
            await clearance.last_word(turn.step, call.call_id, tool, arguments, CANCELLED_TEXT, took())
            raise
        except HandoffStop as stop:
            told = ToolResult(content=stop.result, is_error=True, status="error")
            stop.result = (await clearance.after(turn.step, call.call_id, tool, arguments, told, took())).content
            raise
        except ToolError as error:
            status = "invalid_arguments" if isinstance(error, InvalidArguments) else "error"
            result = ToolResult(content=_prefixed(turn, call, error), is_error=True, status=status)
        return await clearance.after(turn.step, call.call_id, tool, arguments, result, took())

    async def _once_stored(
        self, tool: Tool, cleared: Cleared, turn: Turn, call: ToolCall, start: events.Event
    ) -> ToolResult:
        """Call the tool; one with side effects only once its start is in the store."""
        # a delegation has no effect of its own: what its children do is committed before they do it
        if not (tool.spec.read_only or tool.spec.delegation):
            await self._recorder.committed(start)
        faults.hit("tool_started")
        primary = self._primary(turn, call) if tool.spec.delegation else None
        result = await self._invocations.invoke(tool, cleared, turn, call, primary)
        faults.hit("tool_returned")
        return result

    @staticmethod
    def _existing(turn: Turn, call: ToolCall) -> Tool:
        tool = turn.registry.get(call.name)
        if tool is None:
            names = ", ".join(turn.offered) or "none"
            why = turn.registry.why_absent(call.name)
            known = f" It is missing: {why}." if why else ""
            raise UnknownTool(f"There is no tool {call.name!r} here.{known} Available tools: {names}.")
        return tool

    def _primary(self, turn: Turn, call: ToolCall) -> Callable[[], Awaitable[ToolResult]] | None:
        """How the ordinary tool that a delegation tool hides carries out the same call, as hooks and persons have left
        it: validated, counted and committed like any other."""
        hidden = turn.registry.primaries.get(call.name)
        if hidden is None:
            return None

        async def carry_out() -> ToolResult:
            _still_wanted(turn)  # the run may have been told to end while its subagent failed
            try:
                cleared = Cleared(arguments=validated(hidden.spec, call, self._checker))
                if turn.clearance is not None:
                    cleared = await turn.clearance.permitted(turn.step, call.call_id, hidden, cleared.arguments)
                self._afford(turn, hidden)
                if not hidden.spec.read_only:  # that the call started is known; now it must be stored too
                    await self._recorder.committed(self._started[call.call_id])
                if hidden.spec.concurrency_safe:
                    return await self._invocations.invoke(hidden, cleared, turn, call)
                async with self._alone:  # the delegations of a turn run side by side, this must not
                    return await self._invocations.invoke(hidden, cleared, turn, call)
            except CallDenied as error:
                return ToolResult(content=error.message, is_error=True, status=error.status)
            except BudgetSpent as error:
                return ToolResult(content=error.message, is_error=True, status="denied")
            except ToolError as error:
                return ToolResult(content=error.message, is_error=True, status="error")

        return carry_out

    def finish(
        self,
        turn: Turn,
        call: ToolCall,
        sub: int,
        result: ToolResult,
        masked: str | None = None,
        stop: HandoffStop | None = None,
    ) -> Message:
        """Mask, cut, record, count; returns the tool message. `masked`: its content, where that was done already;
        `stop`: what the run ends with by it."""
        self.finished.add(call.call_id)
        if call.call_id in turn.left:
            self._answered(turn.run, call.call_id)
        began = self._open.pop(call.call_id, None)
        self._started.pop(call.call_id, None)
        self._watching.discard(call.call_id)
        duration_ms = 0 if began is None else int((asyncio.get_running_loop().time() - began) * 1000)
        text = self._masker.text(result.content) if masked is None else masked
        content, length, artifact_id, also = self._kept(turn, call, text)
        self.duplicates.result(call.call_id, content)
        counts = self._activity.setdefault(call.name, [0, 0])
        counts[0] += 1
        counts[1] += duration_ms
        payload = ToolResulted(
            call_id=call.call_id,
            provider_call_id=call.provider_call_id,
            tool=call.name,
            message_id=new_id("msg"),
            memory_id=turn.run.memory_id,
            memory_seq=turn.memory_seq + sub,
            turn=turn.run.turn,
            sub=sub,
            status=result.status,
            is_error=result.is_error,
            content=content,
            duration_ms=duration_ms,
            length=length,
            arguments=call.raw if began is None else None,
            artifact_id=artifact_id,
        )
        # a hook may have put an error in the place of what was fetched
        if result.fetched is not None and not result.is_error and turn.acknowledge is not None:
            settled = turn.acknowledge(result.fetched)
            if settled:
                payload["acknowledges"] = settled
        if stop is not None:
            payload["stops"] = ErrorInfo(code=stop.code, message=self._masker.text(stop.message))
        self._recorder.record(turn.run, events.TOOL_RESULT, payload, step=turn.step, also=also)
        seq = turn.memory_seq + sub
        return Message(role=Role.TOOL, content=content, tool_call_id=call.call_id, is_error=result.is_error, seq=seq)

    def _kept(self, turn: Turn, call: ToolCall, text: str) -> tuple[str, int | None, str | None, tuple[Write, ...]]:
        """What the model sees of an output, its full length when that is less, and then the artifact with its row."""
        if len(text) <= self._limit.max_chars:
            return text, None, None, ()
        artifact_id, row = new_artifact(turn.run, call.call_id, text)
        how = f"; {READER} reads it" if READER in turn.offered else ""
        content, length = self._limit.cut(text, f"; the whole is artifact {artifact_id}{how}")
        return content, length, artifact_id, (row,)


async def _cleared(turn: Turn, tool: Tool, call: ToolCall, arguments: Any) -> Cleared:
    """The call as it may run; one that an earlier process had asked about, or had begun, as it was cleared there."""
    assert turn.clearance is not None
    left = turn.left.get(call.call_id)
    if left is not None and left.asked is not None:
        return await turn.clearance.resumed(turn.step, call.call_id, tool, left.asked)
    if left is not None and left.delegated:  # what it has started goes on
        return Cleared(arguments=arguments)
    return await turn.clearance.before(turn.step, call.call_id, tool, arguments)


def _rewritten(call: ToolCall, arguments: Any) -> ToolCall:
    """The call with what hooks and persons made of its arguments: text where its tool takes that."""
    raw = arguments if isinstance(arguments, str) else json.dumps(dict(arguments), ensure_ascii=False)
    given = _object_in(raw)
    return replace(call, raw=raw, arguments=given, problem=None if given is not None else "they are no JSON object")


def _object_in(raw: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _prefixed(turn: Turn, call: ToolCall, error: ToolError) -> str:
    """What went wrong with a call, as its tool's errors begin."""
    tool = turn.registry.get(call.name)
    prefix = tool.spec.error_prefix if tool is not None else ""
    return error.message if error.message.startswith(prefix) else prefix + error.message


def _still_wanted(turn: Turn) -> None:
    """Raises `Conflict` when the run was told to end: it is cancelled itself a moment later."""
    try:
        turn.check()
    except asyncio.CancelledError as error:
        raise Conflict(
            "the run that delegates was told to end: it starts nothing more", code="parent_ending"
        ) from error


def _is_waiting(turn: Turn, call: ToolCall) -> bool:
    tool = turn.registry.get(call.name)
    return tool is not None and (tool.spec.delegation or tool.spec.waits)


def _called(call: ToolCall, arguments: Any, sub: int) -> ToolCalled:
    return ToolCalled(
        call_id=call.call_id,
        provider_call_id=call.provider_call_id,
        tool=call.name,
        arguments=arguments if isinstance(arguments, str) else dict(arguments),
        sub=sub,
    )
