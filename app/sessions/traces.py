"""What the log says of a run that has not ended: how far it came, what it used, which calls and questions are open.

Knows neither where the events come from nor what follows from them (`recovery.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from app.agent.events import FINAL_TYPES
from app.agent.messages import NO_USAGE, Role, Usage
from app.agent.runner import RESTART, UNFINISHED
from app.agent.runs import AskedBefore, Failure, LeftCall, Progress, Run, RunStatus, ToolActivity
from app.agent.subagent_hooks import RESULT_HEAD

INTERRUPTED = UNFINISHED[RunStatus.INTERRUPTED]
BROKEN_OFF = Usage(model_calls=1, unpriced_calls=1)  # a call that costs nobody knows what


@dataclass(slots=True, kw_only=True)
class OpenCall:
    """A call of a reply that has no result. `called`, `started`: its events are in the log; `delegated`: the start of
    its handoff is."""

    call_id: str
    provider_call_id: str
    tool: str
    raw: str
    step: int
    sub: int
    memory_seq: int
    called: bool = False
    started: bool = False
    delegated: bool = False
    asked: AskedBefore | None = None
    stand_in: AskedBefore | None = None

    @property
    def left(self) -> LeftCall:
        """How far it had come."""
        return LeftCall(
            call_id=self.call_id,
            tool=self.tool,
            provider_call_id=self.provider_call_id,
            raw=self.raw,
            step=self.step,
            sub=self.sub,
            memory_seq=self.memory_seq,
            called=self.called,
            started=self.started,
            delegated=self.delegated,
            asked=self.asked,
            stand_in=self.stand_in,
        )


@dataclass(slots=True)
class Said:
    """What was said in a run, as far as that tells where it goes on: the numbers of its first message and of its task,
    step and sub of the next message, and the last reply: its step, number, text, and whether it was a whole one."""

    first_seq: int | None = None
    task_seq: int | None = None
    place: tuple[int, int] = (0, 0)
    step: int = 0
    seq: int = 0
    answer: str | None = None

    def add(self, step: int, data: Mapping[str, Any]) -> None:
        """One message."""
        if self.first_seq is None:
            self.first_seq = data["memory_seq"]
        calls = data.get("tool_calls") or ()
        self.place = (step, data["sub"] + 1 + len(calls))
        self.answer = None
        if data["role"] == Role.ASSISTANT:
            self.step, self.seq = step, data["memory_seq"]
            if not calls and not data.get("partial"):
                self.answer = data["content"]
        elif data["role"] == Role.USER and self.task_seq is None:
            self.task_seq = data["memory_seq"]


@dataclass(slots=True)
class Clock:
    """How long a run has worked, in ms: without the time for which a person was asked by it or below it, and without
    that in which there was no process. `asking`: the runs that ask one now, since `asked`."""

    began: datetime | None = None
    last: datetime | None = None
    asked: datetime | None = None
    asking: set[str] = field(default_factory=set)
    stood: timedelta = timedelta()

    def add(self, kind: str, ts: datetime, data: Mapping[str, Any], run_id: str = "") -> None:
        """One event of the run itself, or of the run below it of that id."""
        if not run_id and kind == "run.started":
            self.began = self.began or ts
        elif kind == "run.waiting" and data["reason"] == "approval":
            self.asked = self.asked or ts
            self.asking.add(run_id)
        elif not run_id and kind == "run.resumed" and data["reason"] == RESTART:
            self._goes_on(self.asked or self.last or ts, ts)
            self.asking.clear()
        elif run_id in self.asking and (kind in ("run.waiting", "run.resumed") or kind in FINAL_TYPES):
            self.asking.discard(run_id)
            if not self.asking:
                self._goes_on(self.asked or ts, ts)
        self.last = ts

    def _goes_on(self, since: datetime, ts: datetime) -> None:
        self.stood, self.asked = self.stood + (ts - since), None

    @property
    def used_ms(self) -> int:
        """Until the last event."""
        if self.began is None or self.last is None:
            return 0
        until = self.asked or self.last
        return max(0, int((until - self.began - self.stood).total_seconds() * 1000))


@dataclass(slots=True)
class Trace:
    """What the log says of one run that has not ended. `answered`: the usage of the steps that were completed;
    `open`: of the one that was not, where at least the call was made. `started`: as a subagent, and not stopped.
    `questions`: what persons were asked and have not answered, with the step. `own_hooks`: its agent brought some.
    `begun`: as a run; `stopped`: as a subagent, with that status. `complete`: the last step was closed; `broken`: it
    got no reply. `forced`: why its answer is. `given`: what a caller asked for.
    `used`: tools that gave a result, how often, and for how many ms. `sent_back`: how often hooks did not let it
    end. `stop`: as what it fails."""

    steps: int = 0
    crashes: int = 0  # processes that went away with it without a word: not those that have left it to the next one
    drained: bool = False
    answered: Usage = NO_USAGE
    open: Usage = NO_USAGE
    text: str = ""
    started: bool = False
    own_hooks: bool = False
    calls: dict[str, OpenCall] = field(default_factory=dict)
    questions: dict[str, tuple[int, Mapping[str, Any]]] = field(default_factory=dict)
    begun: bool = False
    stopped: str | None = None
    complete: bool = True
    broken: int | None = None
    forced: str | None = None
    given: Mapping[str, Any] | None = None
    used: dict[str, list[int]] = field(default_factory=dict)
    sent_back: int = 0
    stop: Failure | None = None
    tries_again: bool = False  # a try has failed, and the next one comes after a pause
    said: Said = field(default_factory=Said)
    clock: Clock = field(default_factory=Clock)

    def progress(self, run: Run, below: Usage, spent: Mapping[str, int]) -> Progress:
        """Where the run goes on, as `run`. `below`, `spent`: what those below it have used, and the whole tree."""
        said = self.said
        return Progress(
            run=run,
            started=self.begun,
            subagent=self.started,
            steps=said.step,
            broken=self.broken,
            complete=self.complete or self.broken is not None,
            usage=self.usage,
            step_usage=self.open,
            usage_below=below,
            spent=spent,
            first_seq=said.first_seq,
            task_seq=said.task_seq,
            place=said.place,
            text=self.text,
            turn=(said.step, said.seq) if self.calls else None,
            calls={call_id: call.left for call_id, call in self.calls.items()},
            answer=said.answer,
            forced=self.forced,
            used_ms=self.clock.used_ms,
            activity=self.activity,
            sent_back=self.sent_back,
            stop=self.stop,
        )

    @property
    def usage(self) -> Usage:
        """What is known to be used."""
        return self.answered + self.open

    @property
    def activity(self) -> tuple[ToolActivity, ...]:
        """Which tools have given results."""
        return tuple(ToolActivity(name=name, calls=n, total_ms=ms) for name, (n, ms) in self.used.items())

    @property
    def told(self) -> str:
        """What its end says came of it."""
        return (self.text or INTERRUPTED.message)[:RESULT_HEAD]

    def add(self, kind: str, step: int, data: Mapping[str, Any], ts: datetime) -> None:
        """Take in one event of the run."""
        self.clock.add(kind, ts, data)
        if kind == "run.queued":
            self.own_hooks = bool(data.get("agent_hooks"))
            self.given = data.get("given")
        elif kind == "run.waiting":
            self.drained = data["reason"] == "drain"
        elif kind == "run.resumed" and data["reason"] == RESTART:
            self.crashes += not self.drained
            self.drained = False
        elif kind == "run.resumed" and data["reason"] == "retry":
            self.open += BROKEN_OFF if self.tries_again else NO_USAGE
            self.tries_again = False
        elif kind == "run.started":
            self.begun = True
        elif kind in ("step.started", "step.completed", "step.retried", "answer.forced"):
            self._step(kind, step, data)
        elif kind == "subagent.start":
            self.started = True
        elif kind == "subagent.stop":
            self.started, self.stopped = False, data["status"]
        elif kind == "message":
            self._message(step, data)
        elif kind in ("permission.requested", "permission.resolved"):
            self._question(kind, step, data)
        elif kind == "hook.decision":
            self.sent_back += data["decision"] == "send_back"
        elif kind == "tool.result":
            self.calls.pop(data["call_id"], None)
            counts = self.used.setdefault(data["tool"], [0, 0])
            counts[0] += 1
            counts[1] += data["duration_ms"]
            if data.get("stops"):
                self.stop = Failure(**data["stops"])
        elif kind in ("tool.call", "tool.start"):
            call = self.calls.get(data["call_id"])
            if call is not None:
                call.called = True
                call.started = kind == "tool.start"
        elif kind == "handoff.start":
            call = self.calls.get(data["call_id"])
            if call is not None:
                call.delegated = True

    def _step(self, kind: str, step: int, data: Mapping[str, Any]) -> None:
        if kind == "answer.forced":
            self.forced = data["reason"]
        elif kind == "step.started":
            self.steps, self.complete, self.broken = step, False, step
            self.answered += self.open  # a step that failed and was followed by another
            self.open, self.tries_again = BROKEN_OFF, False
        elif kind == "step.retried" and data["code"] != RESTART:  # which is followed by the start of another step
            self.tries_again = True
        elif kind == "step.completed":
            self.complete, self.broken = True, None
            self.answered += Usage.from_dict(data["usage"])
            self.open = NO_USAGE

    def _message(self, step: int, data: Mapping[str, Any]) -> None:
        self.said.add(step, data)
        if data["role"] != Role.ASSISTANT:
            return
        self.broken = None
        self.text = data["content"] if data["content"].strip() else self.text
        if data.get("usage"):
            self.open = Usage.from_dict(data["usage"])
        self._asked(step, data)

    def _question(self, kind: str, step: int, data: Mapping[str, Any]) -> None:
        approval_id = data.get("approval_id")
        if kind == "permission.requested":
            self.questions[data["approval_id"]] = (step, data)
            call = self.calls.get(data["call_id"])
            if call is not None:
                asked = AskedBefore(
                    approval_id=data["approval_id"],
                    step=step,
                    arguments=data["arguments"],
                    asked_at=int(self.clock.last.timestamp() * 1e6) if self.clock.last is not None else 0,
                    expires_at=data["expires_at"],
                    digest=data["digest"],
                )
                if data.get("stands_in"):
                    call.stand_in = asked
                else:
                    call.asked = asked
        elif approval_id is not None:
            self.questions.pop(approval_id, None)
            for call in self.calls.values():
                if call.asked is not None and call.asked.approval_id == approval_id:
                    call.asked = replace(call.asked, answer=dict(data))
                if call.stand_in is not None and call.stand_in.approval_id == approval_id:
                    call.stand_in = replace(call.stand_in, answer=dict(data))

    def _asked(self, step: int, data: Mapping[str, Any]) -> None:
        for sub, call in enumerate(data.get("tool_calls") or (), 1):
            self.calls[call["call_id"]] = OpenCall(
                call_id=call["call_id"],
                provider_call_id=call["provider_call_id"],
                tool=call["name"],
                raw=call["arguments"],
                step=step,
                sub=sub,
                memory_seq=data["memory_seq"] + sub,
            )
