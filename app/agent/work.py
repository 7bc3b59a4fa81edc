"""What the loop of one run works with, and how what was said enters its memory and the log.

Knows neither when a run stops (`loop.py`) nor how it is opened (`runner.py`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.agent import events
from app.agent.admission import Places
from app.agent.budget import Budget, Meter
from app.agent.calls import ToolCalls
from app.agent.chat import ChatModel, Finish, Reply
from app.agent.clearance import Clearance
from app.agent.compaction import Compacted, Context
from app.agent.control import Control
from app.agent.definition import AgentDefinition
from app.agent.governed import ContextCompacted
from app.agent.ids import new_id
from app.agent.messages import NO_USAGE, Message, Role, Usage
from app.agent.notices import Notices
from app.agent.patience import ModelGates, Patience
from app.agent.payloads import CallInfo, MessageAdded, StepCompleted, StepRetried
from app.agent.ports import Recorder
from app.agent.runs import MemoryState, Progress, Run, Session, Shortened, StopReason
from app.agent.texts import Texts
from app.agent.tools import SchemaChecker, ToolRegistry, ToolSpec


class WorkingMemory:
    """The messages of one memory while a run works on it, and the numbers that they get."""

    __slots__ = ("messages", "next_seq", "shortened")

    def __init__(self, state: MemoryState | None) -> None:
        self.messages: list[Message] = list(state.messages) if state else []
        self.next_seq = state.next_seq if state else 1
        self.shortened: Shortened | None = state.shortened if state else None

    def reserve(self, count: int) -> int:
        """Take `count` numbers; returns the first."""
        first = self.next_seq
        self.next_seq += count
        return first


@dataclass(slots=True, kw_only=True)
class Work:
    """Everything that the loop of one run works with; changes as it goes on, and ends with the run.

    `summary`: how many texts the conversation had when it was summed up for a child, and the summary.
    `first`: where the run's own messages begin in the memory; `task`: the one that says what to do. `place`: step and
    sub of the next message that is no reply, so that the order by (turn, step, sub) is that in the memory.
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
    meter: Meter
    patience: Patience
    gates: ModelGates
    checker: SchemaChecker
    context: Context
    output_schema: Mapping[str, Any] | None = None
    effort: str | None = None
    thinking: bool | None = None
    budget: Budget | None = None
    clearance: Clearance | None = None
    places: Places | None = None
    notices: Notices | None = None
    progress: Progress | None = None
    first: int = 0
    task: Message | None = None
    place: tuple[int, int] = (0, 0)
    steps: int = 0
    usage: Usage = NO_USAGE
    step_usage: Usage = NO_USAGE
    text: str = ""
    shown: list[str] = field(default_factory=list)
    thought: list[str] = field(default_factory=list)
    nudged: bool = False
    cut: bool = False  # the last reply was, by its length
    sent_back: bool = False
    resting: bool = False  # it waits to begin a step
    forcing: bool = False  # the forced answer was begun by another process, and not given
    summary: tuple[int, str] | None = None
    summing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def texts(self) -> Texts:
        """What the service says in this session."""
        return self.session.texts

    def time_for(self, pause_ms: float, *, last: bool = False) -> bool:
        """Whether a pause of that length ends before the run's deadline does; `last`: in its forced answer."""
        ends = self.control.hard_at if last else self.control.soft_at
        return ends is None or asyncio.get_running_loop().time() + pause_ms / 1000 < ends

    def spend(self, usage: Usage) -> None:
        """Count what one model call used."""
        self.usage = self.usage + usage
        self.step_usage = self.step_usage + usage

    def take_up(self, progress: Progress) -> None:
        """Go on where another process stopped (spec 12.7): the memory holds all that was said."""
        self.steps, self.usage, self.text, self.place = progress.steps, progress.usage, progress.text, progress.place
        messages = self.memory.messages
        self.task = next((m for m in messages if m.seq == progress.task_seq), None)
        self.first = next(
            (at for at, m in enumerate(messages) if (m.seq or 0) >= (progress.first_seq or 0)), len(messages)
        )
        self._remember(messages[self.first :], progress)
        if progress.broken is not None:  # what was shown of its reply is not said
            payload = StepRetried(
                attempt=1, code="restart", message="the service was started anew", delay_ms=0, withdrawn=[]
            )
            self.recorder.record(self.run, events.STEP_RETRIED, payload, step=progress.broken)
        self.progress = progress

    def _remember(self, own: Sequence[Message], progress: Progress) -> None:
        """What the run knows of what it has said and done so far."""
        told = {message.content for message in own if message.role is Role.USER and message is not self.task}
        problem = self.texts.output_invalid.partition("{problem}")[0]
        self.sent_back = self.output_schema is not None and any(text.startswith(problem) for text in told if problem)
        self.nudged = self.texts.malformed_call in told
        replies = [message for message in own if message.role is Role.ASSISTANT]
        self.cut = bool(replies) and replies[-1].partial
        self.forcing = progress.forced is not None and progress.answer is None
        self.calls.restore(progress.activity, own, self.registry)

    def hear(self) -> None:
        """Read the inbox: all that waits to be told becomes one user message (spec 5.1, 9.3)."""
        told = self.notices.take(self.run) if self.notices is not None else ()
        if told:
            self.add(Role.USER, "\n\n".join(notice.content for notice in told), [notice.id for notice in told])

    def add(self, role: Role, content: str, notices: Sequence[str] = ()) -> Message:
        """Append a system or user message; `notices` are those that it tells."""
        step, sub = self.place
        self.place = (step, sub + 1)
        seq = self.memory.reserve(1)
        message = Message(role=role, content=content, seq=seq)
        self.memory.messages.append(message)
        payload = _message_event(self.run, seq, sub, message)
        if notices:
            payload["notices"] = list(notices)
        self.recorder.record(self.run, events.MESSAGE, payload, step=step)
        return message

    def shorten(self, done: Compacted) -> None:
        """Go on with a shorter context: the log keeps what was said. Everything that was counted of the longer one is
        void."""
        memory = self.memory
        memory.messages[:] = done.messages
        memory.shortened = done.how
        self.first = next((at for at, message in enumerate(memory.messages) if message is self.task), 0)
        self.summary = None
        self.meter.forget()
        self.recorder.record(self.run, events.COMPACTION, self._compaction(done))

    def _compaction(self, done: Compacted) -> ContextCompacted:
        how = done.how
        return ContextCompacted(
            origin="subagent" if self.run.depth else "lead",
            method=done.method.value,
            attempt=self.context.asked,
            before_tokens=done.before,
            after_tokens=done.after,
            window=self.context.window,
            kept_from=how.kept_from,
            task=how.task,
            summary=how.summary or None,
            left_out=done.left_out,
            untold=how.untold,
            cuts={str(seq): list(cut) for seq, cut in how.cuts.items()} or None,
            note=how.note or None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came out of the loop."""

    text: str
    stop_reason: StopReason
    forced: bool = False


def keep_partial(work: Work, *, last: bool = False) -> None:
    """What was shown of a reply that breaks off, as a partial message; no model is sent one without a text. `last`:
    something is said in its place where it has no text."""
    text, thought = "".join(work.shown), "".join(work.thought)
    if not text.strip() and (last or not thought.strip()):
        return
    work.text = text if text.strip() else work.text
    work.place = (work.steps, 1)
    seq = work.memory.reserve(1)
    message = Message(role=Role.ASSISTANT, content=text, reasoning=thought, partial=True, seq=seq)
    work.memory.messages.append(message)
    payload = _message_event(work.run, seq, 0, message)
    work.recorder.record(work.run, events.MESSAGE, payload, step=work.steps)


def keep_reply(work: Work, reply: Reply) -> int:
    """The assistant message enters the memory and the log; returns its number."""
    seq = work.memory.reserve(1 + len(reply.tool_calls))
    message = Message(
        role=Role.ASSISTANT,
        seq=seq,
        content=reply.text,
        reasoning=reply.reasoning,
        tool_calls=reply.tool_calls,
        partial=reply.finish in (Finish.LENGTH, Finish.FILTERED),
        provider=reply.provider,
        opaque=reply.opaque,
    )
    if reply.text.strip():
        work.text = reply.text
    work.place = (work.steps, 1 + len(reply.tool_calls))
    work.memory.messages.append(message)
    tokens = reply.usage.output_tokens if reply.usage else None
    payload = _message_event(work.run, seq, 0, message, tokens)
    if reply.tool_calls:  # the step goes on, and may be broken off before it states what it used
        payload["usage"] = work.step_usage.as_dict()
    work.recorder.record(work.run, events.MESSAGE, payload, step=work.steps)
    return seq


def _message_event(run: Run, seq: int, sub: int, message: Message, tokens: int | None = None) -> MessageAdded:
    calls = [
        CallInfo(
            call_id=call.call_id,
            provider_call_id=call.provider_call_id,
            name=call.name,
            arguments=call.raw,
            opaque=dict(call.opaque) if call.opaque else None,
        )
        for call in message.tool_calls
    ]
    return MessageAdded(
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


def completed(work: Work, reply: Reply, step: int, began: float) -> None:
    """State that a step is done, and what it used."""
    work.recorder.record(
        work.run,
        events.STEP_COMPLETED,
        StepCompleted(
            finish=reply.finish.value,
            tool_calls=len(reply.tool_calls),
            usage=work.step_usage.as_dict(),
            duration_ms=int((asyncio.get_running_loop().time() - began) * 1000),
        ),
        step=step,
    )
