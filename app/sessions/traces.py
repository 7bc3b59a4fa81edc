"""What the log says of a run that has not ended: how far it came, what it used, which calls and questions are open.

Knows neither where the events come from nor what follows from them (`recovery.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.agent.messages import NO_USAGE, Role, Usage
from app.agent.runner import UNFINISHED
from app.agent.runs import RunStatus
from app.agent.subagent_hooks import RESULT_HEAD

INTERRUPTED = UNFINISHED[RunStatus.INTERRUPTED]
BROKEN_OFF = Usage(model_calls=1, unpriced_calls=1)  # a call that costs nobody knows what


@dataclass(slots=True, kw_only=True)
class OpenCall:
    """A call of a reply that has no result. `called`, `started`: its events are in the log."""

    call_id: str
    provider_call_id: str
    tool: str
    raw: str
    step: int
    sub: int
    memory_seq: int
    called: bool = False
    started: bool = False


@dataclass(slots=True)
class Trace:
    """What the log says of one run that has not ended. `answered`: the usage of the steps that were completed;
    `open`: of the one that was not, where at least the call was made. `started`: as a subagent, and not stopped.
    `questions`: what persons were asked and have not answered, with the step. `own_hooks`: its agent brought some."""

    steps: int = 0
    answered: Usage = NO_USAGE
    open: Usage = NO_USAGE
    text: str = ""
    started: bool = False
    own_hooks: bool = False
    calls: dict[str, OpenCall] = field(default_factory=dict)
    questions: dict[str, tuple[int, Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def usage(self) -> Usage:
        """What is known to be used."""
        return self.answered + self.open

    @property
    def told(self) -> str:
        """What its end says came of it."""
        return (self.text or INTERRUPTED.message)[:RESULT_HEAD]

    def add(self, kind: str, step: int, data: Mapping[str, Any]) -> None:
        """Take in one event of the run."""
        if kind == "run.queued":
            self.own_hooks = bool(data.get("agent_hooks"))
        elif kind == "step.started":
            self.steps = step
            self.answered += self.open  # a step that failed and was followed by another
            self.open = BROKEN_OFF
        elif kind == "step.completed":
            self.answered += Usage.from_dict(data["usage"])
            self.open = NO_USAGE
        elif kind in ("subagent.start", "subagent.stop"):
            self.started = kind == "subagent.start"
        elif kind == "message" and data["role"] == Role.ASSISTANT:
            self.text = data["content"] if data["content"].strip() else self.text
            if data.get("usage"):
                self.open = Usage.from_dict(data["usage"])
            self._asked(step, data)
        elif kind == "permission.requested":
            self.questions[data["approval_id"]] = (step, data)
        elif kind == "permission.resolved":
            self.questions.pop(data.get("approval_id", ""), None)
        elif kind == "tool.result":
            self.calls.pop(data["call_id"], None)
        elif kind in ("tool.call", "tool.start") and (call := self.calls.get(data["call_id"])) is not None:
            call.called = True
            call.started = kind == "tool.start"

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
