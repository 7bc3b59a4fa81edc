"""A script of a model that works step by step through tool results, and sums up what it is asked to.

It knows only what stands in a request: the last result says where it is. Every request is kept in `SEEN` and put before
the strict check of histories. `PLAN` is what it does in the next test.
"""

import re
from dataclasses import dataclass
from typing import Any

from app.agent.chat import ChatRequest
from app.agent.messages import Role
from app.agent.texts import DEFAULT
from app.agent.tokens import likely_tokens, sent_tokens
from app.agent.tools import ToolContext
from tests.agent.probes import Probe
from tests.plan import NOTICE, behind, call
from tests.strict import history_problem

FACT = "FACT-7391"
HELD = "Wait for the gate."
FILLER = "The survey of the northern field goes on and nothing of note is found there today. "


@dataclass
class Plan:
    """`steps` with `calls` in each turn; `summary`: good, empty, broken, long; `most`: tokens over which a request is
    refused; `behind`: whether the first turn begins a task in the background as well, which waits for its gate."""

    steps: int = 10
    calls: int = 1
    summary: str = "good"
    most: int | None = None
    behind: bool = False


PLAN = Plan()
SEEN: list[ChatRequest] = []


def play(**fields: Any) -> None:
    """Begin a test."""
    SEEN.clear()
    PLAN.__dict__.update(Plan(**fields).__dict__)


def is_summary(request: ChatRequest) -> bool:
    """Whether it asks for a summary."""
    return request.messages[-1].content.endswith(DEFAULT.compact)


def steps() -> list[ChatRequest]:
    """The requests that are steps."""
    return [request for request in SEEN if not is_summary(request)]


def size(request: ChatRequest) -> int:
    """Tokens of a request."""
    return sum(sent_tokens(message, likely_tokens) for message in request.messages)


def worker(filler: int = 12) -> Probe:
    """A tool whose results have a number and some text; the third one tells a fact."""

    async def body(arguments: Any, context: ToolContext) -> str:
        number = arguments["n"]
        return f"step {number}: {FACT + ' ' if number == 3 else ''}{FILLER * filler}"

    return Probe("work", body, read_only=True, concurrency_safe=True)


def reply(request: ChatRequest) -> dict[str, Any]:
    """What the model says."""
    SEEN.append(request)
    problem = history_problem(request.messages)
    if problem is not None:
        return {"error": {"code": "bad_history", "message": problem}}
    if PLAN.most is not None and size(request) > PLAN.most:
        return {"error": {"code": "model_context_overflow", "message": "too long"}}
    return _summary(request) if is_summary(request) else _turn(request)


def _turn(request: ChatRequest) -> dict[str, Any]:
    text = "\n".join(message.content for message in request.messages)
    last = request.messages[-1]
    if request.messages[1].content == HELD:
        return {"text": "held"} if last.role is Role.TOOL else {"calls": [call("hold", key="a")]}
    if last.role is Role.USER and "work" not in last.content and not last.content.startswith(NOTICE):
        return {"text": f"noted: {last.content[:40]}"}
    found = [int(n) for m in request.messages if m.role is Role.TOOL for n in re.findall(r"^step (\d+):", m.content)]
    done = max(found, default=0)
    if done >= PLAN.steps or not request.tools:
        return {"text": f"finished, I know {FACT if FACT in text else 'nothing'}"}
    numbers = range(done + 1, min(PLAN.steps, done + PLAN.calls) + 1)
    begun = [behind(HELD)] if PLAN.behind and not done else []
    return {"text": f"I do step {done + 1}.", "calls": [*begun, *(call("work", n=number) for number in numbers)]}


def _summary(request: ChatRequest) -> dict[str, Any]:
    if PLAN.summary == "broken":
        return {"error": {"code": "model_error", "message": "no summary today"}}
    if PLAN.summary == "empty":
        return {"text": "  "}
    if PLAN.summary == "long":
        return {"text": FILLER * 2000}
    text = request.messages[-1].content
    return {"text": f"Done: steps so far. Open: the others. Facts: {FACT if FACT in text else 'none'}."}
