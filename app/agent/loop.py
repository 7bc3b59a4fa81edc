"""The loop: ask, call tools, ask again; and one forced answer at a limit. The same at every depth.

Knows neither how a run is opened and closed (`runner.py`) nor any concrete tool or model.
"""

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.agent import events, faults
from app.agent.calls import ToolCalls, Turn
from app.agent.chat import ChatModel, ChatRequest, Delta, DeltaKind, Finish, Reply
from app.agent.definition import AgentDefinition
from app.agent.errors import ModelError
from app.agent.events import EventKind, Recorder, TextDelta
from app.agent.ids import new_id
from app.agent.messages import NO_USAGE, Message, Role, Usage
from app.agent.runs import MemoryState, Run, RunOutcome, RunStatus, Session, StopReason
from app.agent.tools import ToolRegistry, ToolSpec
from app.agent.transcript import acceptable

FORCED_TEMPERATURE = 0.2
FORCED_TEXT = (
    "You have reached the limit for this task. Do not call any tools. Give your final answer now, from what you have "
    "collected so far; say what is missing."
)
CUT_TEXT = "Your last reply was cut by the length limit before it was complete; nothing of it was run. Be shorter."
MALFORMED_TEXT = (
    "Your last reply contained a tool call written as text. It was not run. Call the tool through the tool interface, "
    "or answer in plain text."
)
DIGEST_CHARS = 500  # of each collected result, when the model gives no final text
_DELTA_KINDS = {
    DeltaKind.TEXT: events.TEXT_DELTA,
    DeltaKind.REASONING: events.REASONING_DELTA,
    DeltaKind.ARGUMENTS: events.ARGUMENTS_DELTA,
}


class Control:
    """What others may tell a run that is under way, and what its children have used.

    `soft_at` and `hard_at` are on the clock of the event loop; None: no deadline.
    """

    __slots__ = ("hard_at", "requested", "soft_at", "usage_below")

    def __init__(self) -> None:
        self.requested: RunStatus | None = None
        self.soft_at: float | None = None
        self.hard_at: float | None = None
        self.usage_below: Usage = NO_USAGE

    def check(self) -> None:
        """Stop here when the run was told to end: an ending child must not set its parent going again."""
        if self.requested is not None:
            raise asyncio.CancelledError

    def settle(self, outcome: RunOutcome) -> None:
        """Count what a child and its subtree used."""
        self.usage_below = self.usage_below + outcome.usage_total


class WorkingMemory:
    """The messages of one memory while a run works on it, and the numbers that they get."""

    __slots__ = ("messages", "next_seq")

    def __init__(self, state: MemoryState | None) -> None:
        self.messages: list[Message] = list(state.messages) if state else []
        self.next_seq = state.next_seq if state else 1

    def reserve(self, count: int) -> int:
        """Take `count` numbers; returns the first."""
        first = self.next_seq
        self.next_seq += count
        return first


@dataclass(slots=True, kw_only=True)
class Work:
    """Everything that the loop of one run works with; changes as it goes on, and ends with the run.

    `first`: where the run's own messages begin in the memory. `place`: step and sub of the next message that is no
    reply, so that the order by (turn, step, sub) is that in the memory.
    """

    session: Session
    run: Run
    definition: AgentDefinition
    model: ChatModel
    registry: ToolRegistry
    offered: tuple[ToolSpec, ...]
    memory: WorkingMemory
    calls: ToolCalls
    recorder: Recorder
    control: Control
    workspace: Path
    max_steps: int
    parallel: bool
    first: int = 0
    place: tuple[int, int] = (0, 0)
    steps: int = 0
    usage: Usage = NO_USAGE
    text: str = ""
    shown: list[str] = field(default_factory=list)
    nudged: bool = False

    def add(self, role: Role, content: str) -> None:
        """Append a system or user message."""
        step, sub = self.place
        self.place = (step, sub + 1)
        message = Message(role=role, content=content)
        self.memory.messages.append(message)
        payload = _message_event(self.run, self.memory.reserve(1), sub, message)
        self.recorder.record(self.run, events.MESSAGE, payload, step=step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came out of the loop."""

    text: str
    stop_reason: StopReason
    forced: bool = False


async def react(work: Work) -> Answer:
    """Drive a run to its answer. Raises `ModelError`, `HandoffStop`, or the run's cancellation."""
    limit = asyncio.timeout_at(work.control.soft_at)
    try:
        async with limit:
            while work.steps < work.max_steps and not limit.expired():  # a tool may have swallowed its cancellation
                answer = await _step(work)
                if answer is not None:
                    return answer
    except TimeoutError:
        if not limit.expired():
            raise
    work.calls.resume(work.run)
    return await _forced(work, StopReason.DEADLINE if limit.expired() else StopReason.MAX_STEPS)


async def _step(work: Work) -> Answer | None:
    """One model call and the tool calls that it asked for; the answer when there are none."""
    work.control.check()
    await work.recorder.room()
    work.steps += 1
    step, loop = work.steps, asyncio.get_running_loop()
    began = loop.time()
    work.recorder.record(work.run, events.STEP_STARTED, events.StepStarted(model=work.model.name), step=step)
    reply = await _ask(work, _request(work))
    seq = _keep_reply(work, reply)
    answer = None
    if reply.tool_calls:
        turn = _turn(work, step, seq)
        await work.calls.execute(turn, reply.tool_calls, work.memory.messages)
        faults.hit("after_tools")
    elif reply.finish is Finish.LENGTH and not reply.text:
        work.add(Role.USER, CUT_TEXT)
    elif reply.malformed_call and not work.nudged:
        work.nudged = True
        work.add(Role.USER, MALFORMED_TEXT)
    else:
        text = reply.text if reply.text.strip() else _digest(work)
        answer = Answer(text=text, stop_reason=StopReason.ANSWER)
    _completed(work, reply, step, began)
    return answer


def _turn(work: Work, step: int, seq: int) -> Turn:
    return Turn(
        session=work.session,
        run=work.run,
        step=step,
        memory_seq=seq,
        registry=work.registry,
        offered=[spec.name for spec in work.offered],
        parallel=work.parallel,
        workspace=work.workspace,
        deadline=work.control.hard_at,
        check=work.control.check,
    )


def _request(work: Work) -> ChatRequest:
    definition = work.definition
    choice = definition.tool_choice if work.steps == 1 and work.offered else None
    return ChatRequest(
        messages=acceptable(work.memory.messages),
        tools=work.offered,
        tool_choice=choice,
        parallel_tool_calls=None if work.parallel else False,
        temperature=definition.temperature,
        max_tokens=definition.max_tokens,
        effort=definition.effort,
    )


async def _ask(work: Work, request: ChatRequest) -> Reply:
    """One model call with its deltas. What was shown of a call that breaks off is kept as a partial message."""
    run, recorder, step = work.run, work.recorder, work.steps
    shown = work.shown = []

    def emit(delta: Delta) -> None:
        kind: EventKind[TextDelta] = _DELTA_KINDS[delta.kind]
        if delta.kind is DeltaKind.TEXT:
            shown.append(delta.text)
        recorder.emit(run, kind, step, delta.text, delta.call_id)

    try:
        reply = await work.model.stream(request, emit)
    except (asyncio.CancelledError, ModelError):
        _keep_partial(work)
        raise
    work.usage = work.usage + replace(reply.usage or NO_USAGE, model_calls=1)
    return reply


def _keep_partial(work: Work) -> None:
    text = "".join(work.shown)
    if not text.strip():
        return
    work.text = text
    work.place = (work.steps, 1)
    message = Message(role=Role.ASSISTANT, content=text, partial=True)
    work.memory.messages.append(message)
    payload = _message_event(work.run, work.memory.reserve(1), 0, message)
    work.recorder.record(work.run, events.MESSAGE, payload, step=work.steps)


def _keep_reply(work: Work, reply: Reply) -> int:
    """The assistant message enters the memory and the log; returns its number."""
    message = Message(
        role=Role.ASSISTANT,
        content=reply.text,
        reasoning=reply.reasoning,
        tool_calls=reply.tool_calls,
        partial=reply.finish is Finish.LENGTH,
        provider=reply.provider,
        opaque=reply.opaque,
    )
    if reply.text.strip():
        work.text = reply.text
    work.place = (work.steps, 1 + len(reply.tool_calls))
    work.memory.messages.append(message)
    seq = work.memory.reserve(1 + len(reply.tool_calls))
    tokens = reply.usage.output_tokens if reply.usage else None
    payload = _message_event(work.run, seq, 0, message, tokens)
    work.recorder.record(work.run, events.MESSAGE, payload, step=work.steps)
    return seq


def _message_event(run: Run, seq: int, sub: int, message: Message, tokens: int | None = None) -> events.MessageAdded:
    calls = [
        events.CallInfo(
            call_id=call.call_id,
            provider_call_id=call.provider_call_id,
            name=call.name,
            arguments=call.raw,
            opaque=dict(call.opaque) if call.opaque else None,
        )
        for call in message.tool_calls
    ]
    return events.MessageAdded(
        message_id=new_id("msg"),
        memory_id=run.memory_id,
        memory_seq=seq,
        turn=run.turn,
        sub=sub,
        role=message.role.value,
        content=message.content,
        reasoning=message.reasoning or None,
        tool_calls=calls or None,
        tokens=tokens,
        partial=True if message.partial else None,
        provider=message.provider or None,
        opaque=dict(message.opaque) if message.opaque else None,
    )


def _completed(work: Work, reply: Reply, step: int, began: float) -> None:
    usage = replace(reply.usage or NO_USAGE, model_calls=1)
    work.recorder.record(
        work.run,
        events.STEP_COMPLETED,
        events.StepCompleted(
            finish=reply.finish.value,
            tool_calls=len(reply.tool_calls),
            usage=usage.as_dict(),
            duration_ms=int((asyncio.get_running_loop().time() - began) * 1000),
        ),
        step=step,
    )


async def _forced(work: Work, reason: StopReason) -> Answer:
    """One more step without tools (spec 5.5); a digest of what was collected when that gives no text either."""
    work.control.check()
    work.steps += 1
    step, loop = work.steps, asyncio.get_running_loop()
    began = loop.time()
    work.recorder.record(work.run, events.ANSWER_FORCED, events.AnswerForced(reason=reason.value), step=step)
    work.recorder.record(
        work.run, events.STEP_STARTED, events.StepStarted(model=work.model.name, forced=True), step=step
    )
    work.add(Role.USER, FORCED_TEXT)
    own = work.definition.temperature
    request = ChatRequest(
        messages=acceptable(work.memory.messages),
        temperature=FORCED_TEMPERATURE if own is None else min(own, FORCED_TEMPERATURE),
        max_tokens=work.definition.max_tokens,
        effort=work.definition.effort,
    )
    limit = asyncio.timeout_at(work.control.hard_at)
    try:
        async with limit:
            reply = await _ask(work, request)
    except TimeoutError:
        if not limit.expired():
            raise
        return Answer(text=_cut_short(work), stop_reason=reason, forced=True)
    text = reply.text if reply.text.strip() else _digest(work)
    if reply.tool_calls or text != reply.text:  # calls are dropped: nobody would answer them
        reply = Reply(text=text, reasoning=reply.reasoning, usage=reply.usage, finish=reply.finish, model=reply.model)
    _keep_reply(work, reply)
    _completed(work, reply, step, began)
    return Answer(text=text, stop_reason=reason, forced=True)


def _cut_short(work: Work) -> str:
    """The forced answer when its time is over: what was said of it, which is in the memory, or a digest."""
    text = "".join(work.shown)
    if text.strip():
        return text
    text = _digest(work)
    _keep_reply(work, Reply(text=text))
    return text


def _digest(work: Work) -> str:
    """The collected results, when the model gave no final text."""
    results = [m for m in work.memory.messages[work.first :] if m.role is Role.TOOL and m.content.strip()]
    if not results:
        return "(no answer was given and nothing was collected)"
    lines = "\n".join(f"- {_short(m.content)}" for m in results[-8:])
    return f"No final answer was given. Collected results:\n{lines}"


def _short(text: str) -> str:
    return text if len(text) <= DIGEST_CHARS else text[:DIGEST_CHARS] + " …"
