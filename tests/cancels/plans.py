"""Trees of agents that have something open at their leaf and beside it, and the model server that plays them.

The task of an agent is its plan as JSON, as in `tests.plan`, so a whole tree is one value made from a seed.
"""

import asyncio
import json
from collections.abc import Callable
from random import Random
from typing import Any

from tests.cancels.tools import AT_START, AT_STOP
from tests.plan import NOTICE
from tests.stubs.openai_stub import (
    Answer,
    OpenAIStub,
    Request,
    call_chunk,
    calls,
    chunk,
    history_problem,
    refusal,
    sse,
    text,
)

DEPTH = 3
LEAF_TOOLS = (
    "child", "thread", "alone", "finishing", "finishing_thread", "deaf", "deaf_block", "guarded", "watched",
    "commanded", "checked",
)  # fmt: skip
TOOLS = [*LEAF_TOOLS, "quick", "census"]
SURFACES = ("dispatch", "task", "per_agent", "subagent")
SLOW_CHUNKS, SLOW_S = 60, 0.05
Turn = dict[str, Any]
Call = tuple[str, dict[str, Any]]


def plan(*turns: Turn) -> str:
    """The task of an agent that plays these turns."""
    return json.dumps({"turns": turns})


def tool_turn(*wanted: Call) -> Turn:
    """A turn of tool calls."""
    return {"calls": wanted}


def says(content: str) -> Turn:
    """A text."""
    return {"text": content}


def delegation(rng: Random, task: str, agent: str = "node", surface: str | None = None) -> Call:
    """A delegation over one of the surfaces; the default subagent alone is behind `subagent`."""
    surface = surface or rng.choice((*(SURFACES if agent == "node" else SURFACES[:3]), "background"))
    if surface == "dispatch":
        return "dispatch_subagent", {"agent_type": agent, "task": task}
    if surface in ("task", "background"):
        order = {"name": agent, "description": "a random part of it", "prompt": task}
        return "execute_task", {**order, "run_in_background": surface == "background"}
    if surface == "per_agent":
        return f"subagent_{agent}", {"task": task}
    return "subagent", {"research_prompt": task}


# ── what is open at a leaf ──────────────────────────────────────────────────────────────────────────────────────────


def _tool(name: str) -> Callable[[Random], Call]:
    return lambda rng: delegation(rng, plan(tool_turn((name, {})), says("Done.")))


def _said(*turns: Turn, agent: str = "node") -> Callable[[Random], Call]:
    return lambda rng: delegation(rng, plan(*turns), agent)


LEAVES: dict[str, Callable[[Random], Call]] = {
    **{name: _tool(name) for name in LEAF_TOOLS},
    "hanging stream": _said({"hang": "text"}),
    "hanging arguments": _said({"hang": "arguments"}),
    "silent model": _said({"hang": ""}),
    "slow stream": _said({"slow": True}),
    "retry": _said({"busy": 503}, agent="tired"),
    "attempt": _said({"busy": 500}),
    "start hook": _said(says("Done."), {"note": AT_START}),
    "stop hook": _said(says(AT_STOP)),
    "shared memory": _said({"hang": "text"}, agent="pool"),
}


# What `open_things` calls a leaf that is sure to be open once its tree is quiet.
SEEN_AS = {
    "child": "tool child",
    "thread": "tool thread",
    "finishing": "tool finishing",
    "deaf": "tool deaf",
    "guarded": "question",
    "hanging stream": "stream half way",
    "silent model": "model",
    "retry": "retry",
}


def tree(rng: Random, first: str, alone: bool = False) -> str:
    """The plan of a lead: a chain of `DEPTH` delegations with the thing `first` at its end, others beside it unless it
    is to be `alone`."""
    call = LEAVES[first](rng)
    for level in range(DEPTH):
        beside = [] if alone else [_beside(rng) for _ in range(rng.choice((0, 0, 1, 2)))]
        together = [call, *beside]
        rng.shuffle(together)
        turns = [tool_turn(("quick", {}))] * rng.choice((0, 0, 1)) + [tool_turn(*together), says("Done.")]
        task = plan(*turns)
        if level == DEPTH - 1:
            return task
        call = delegation(rng, task)
    raise AssertionError("a tree has a depth")


def _beside(rng: Random) -> Call:
    if rng.random() < 0.4:
        return "quick", {}
    if rng.random() < 0.5:
        return rng.choice(LEAF_TOOLS), {}
    return LEAVES[rng.choice(list(LEAVES))](rng)


def next_turn(rng: Random) -> str:
    """What the lead is asked afterwards: it and the shared memory are sent to the model once more."""
    ask = delegation(rng, plan(tool_turn(("quick", {})), says("Shared.")), "pool", "dispatch")
    return plan(tool_turn(ask, ("quick", {})), says("Next."))


# ── the model ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Model(OpenAIStub):
    """Plays plans. `refused` are the histories that no strict provider would take, `playing` the answers under way."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []
        self.playing = 0
        self.decide(self._planned)

    @property
    def connections(self) -> int:
        """Sockets that are open."""
        return len(self._tasks)

    def _answer(self, request: Request) -> Answer:
        problem = history_problem(request.messages)
        if problem is not None:
            self.refused.append(problem)
        self.requests.clear()  # a thousand trees are not kept
        return super()._answer(request)

    async def _play(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        self.playing += 1
        try:
            return await super()._play(answer, reader, writer)
        except TimeoutError:
            return False  # nobody has cancelled it for long: a broken stream, to be tried again
        finally:
            self.playing -= 1

    def _planned(self, request: Request) -> Answer:
        messages = request.messages
        at = max(at for at, message in enumerate(messages) if message["role"] == "user" and not _is_notice(message))
        turns = _turns(str(messages[at]["content"]))
        if turns is None:
            return text("As you say.")
        done = sum(message["role"] == "assistant" for message in messages[at:])
        return _answer_of(turns[min(done, len(turns) - 1)], messages)


def _is_notice(message: dict[str, Any]) -> bool:
    return str(message["content"]).startswith(NOTICE)


def _turns(task: str) -> list[Turn] | None:
    try:
        turns: list[Turn] = json.JSONDecoder().raw_decode(task)[0]["turns"]
    except (ValueError, TypeError, KeyError):
        return None
    return turns


def _answer_of(turn: Turn, messages: list[dict[str, Any]]) -> Answer:
    if "calls" in turn:
        return calls(*((name, json.dumps(arguments)) for name, arguments in turn["calls"]))
    if "busy" in turn:
        after = {"Retry_After": "1"} if turn["busy"] == 503 else {}
        return refusal(turn["busy"], {"message": "busy"}, **after)
    if "hang" in turn:
        return Answer(writes=_beginning(turn["hang"]), end="hang")
    if "slow" in turn:
        return _slow()
    if turn.get("echo"):
        return text(str(messages[-1]["content"]))
    return text(turn["text"])


def _beginning(what: str) -> tuple[bytes, ...]:
    if what == "text":
        return sse(chunk({"content": "alpha "}), chunk({"content": "beta "}), done=False)
    if what == "arguments":
        begun = call_chunk(0, id="call_0", type="function", name="quick", arguments='{"a')
        return sse(chunk({"content": "I call. "}), begun, done=False)
    return ()


def _slow() -> Answer:
    loop = asyncio.get_running_loop()
    writes: list[bytes | asyncio.Event] = []
    for number in range(SLOW_CHUNKS):
        gate = asyncio.Event()
        loop.call_later(number * SLOW_S, gate.set)
        writes += [gate, *sse(chunk({"content": f"word {number} "}), done=False)]
    return Answer(writes=(*writes, *sse(chunk({}, "stop"))))
