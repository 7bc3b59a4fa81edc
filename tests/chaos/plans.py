"""Trees of agents made from a seed, and the strict model server that plays them.

The task of an agent names its plan, `{"plan": "7-12.1.2"}`, so every request tells to which tree it belongs. The model
has the book with all plans, and outlives the servers that ask it.
"""

import asyncio
import json
from collections.abc import Sequence
from random import Random
from typing import Any

from tests.chaos.recorder import Recorder
from tests.service import agent
from tests.stubs.openai_stub import Answer, OpenAIStub, Request, calls, history_problem, text

DEPTH = 3  # of delegations below the lead
SURFACES = ("dispatch", "task", "per_agent", "subagent")
TOOLS = ["look", "mark", "alone", "command", "guarded"]
GUARDED = "guarded"
MAX_DELAY_S = 0.05
Call = tuple[str, dict[str, Any]]
Turn = Sequence[Call]


def session(rng: Random) -> tuple[dict[str, Any], int | None]:
    """The fields of a session, and its limit of model calls if it has one."""
    limit = rng.randint(4, 14) if rng.random() < 0.25 else None
    tools = ["Agent", *TOOLS]
    body: dict[str, Any] = {
        "agent": "lead",
        "agents": [
            agent("lead", mode="primary", tools=tools),
            agent("node", tools=tools),
            agent("pool", tools=tools, session_mode="reuse_session"),
        ],
        "surfaces": list(SURFACES),
        "default_subagent": "node",
        "policy": {"max_depth": DEPTH},
    }
    if limit is not None:
        body["budget"] = {"model_calls": limit}
    return body, limit


class Book:
    """The plans of all trees, by name: that of a lead is the tag of its tree, those below it add `.1`, `.2.1` and so
    on, a later turn of the session adds `+`. A task only names its plan, so that trees may be deep and events small."""

    def __init__(self) -> None:
        self.turns: dict[str, list[Turn]] = {}

    def plan(self, name: str, *turns: Turn) -> str:
        """The task of an agent that makes these turns of calls, then gives its answer."""
        self.turns[name] = list(turns)
        return json.dumps({"plan": name})

    def tree(self, rng: Random, name: str, *, background: bool, depth: int = DEPTH) -> str:
        """A plan with up to `depth` delegations below each other. `background`: some children are not waited for."""
        turns: list[Turn] = []
        below = 0
        for _ in range(rng.choice((1, 1, 2, 3)) if depth else rng.choice((0, 1, 1, 2))):
            turn: list[Call] = []
            for _ in range(rng.choice((1, 1, 2, 3))):
                if depth and rng.random() < (0.75 if depth == DEPTH else 0.3):
                    below += 1
                    task = self.tree(rng, f"{name}.{below}", background=background, depth=depth - 1)
                    turn.append(_delegation(rng, task, background=background))
                else:
                    turn.append(_tool(rng))
            turns.append(turn)
        return self.plan(name, *turns)

    def everything(self, name: str, *, background: bool) -> str:
        """A plan with one of each kind of call in it, two levels deep."""
        tools: list[Call] = [(tool, {"number": at}) for at, tool in enumerate(TOOLS)]
        child = self.plan(f"{name}.1.1", tools)
        middle = self.plan(f"{name}.1", [_ordered("dispatch", child)])
        turn: list[Call] = [_ordered("task", middle), *tools]
        if background:
            turn.append(_ordered("task", self.plan(f"{name}.2", tools[:1]), run_in_background=True))
        return self.plan(name, turn, [("look", {"number": 99})])


def named(task: str) -> str | None:
    """The name of the plan that a message begins with, None when it is something else."""
    try:
        value = json.JSONDecoder().raw_decode(task)[0]
    except ValueError:
        return None
    return value.get("plan") if isinstance(value, dict) else None


def tag_of(name: str) -> str:
    """The tree that a plan belongs to."""
    return name.partition(".")[0].rstrip("+")


def answer_of(name: str) -> str:
    """What an agent says that has carried out its plan."""
    return f"done {name}"


def _tool(rng: Random) -> Call:
    name = rng.choices(TOOLS, weights=(4, 4, 2, 1, 1.5))[0]
    return name, {"number": rng.randrange(1_000_000)}


def _delegation(rng: Random, task: str, *, background: bool) -> Call:
    if background and rng.random() < 0.4:
        return _ordered("task", task, run_in_background=True)
    surface = rng.choice(SURFACES)
    return _ordered(surface, task, "pool" if surface == "dispatch" and rng.random() < 0.2 else "node")


def _ordered(surface: str, task: str, name: str = "node", **more: Any) -> Call:
    if surface == "dispatch":
        return "dispatch_subagent", {"agent_type": name, "task": task}
    if surface == "task":
        return "execute_task", {"name": name, "description": "a random part", "prompt": task, **more}
    if surface == "per_agent":
        return f"subagent_{name}", {"task": task}
    return "subagent", {"research_prompt": task}


class Model(OpenAIStub):
    """Plays plans, each answer after 0 to 50 ms. What is asked, and which histories a strict provider would refuse, is
    written down; notices and other things that are said between the turns of a plan do not disturb it."""

    def __init__(self, recorder: Recorder, seed: int) -> None:
        super().__init__()
        self._recorder = recorder
        self._rng = Random(f"{seed}-model")
        self.book = Book()
        self.decide(self._planned)

    def _answer(self, request: Request) -> Answer:
        problem = history_problem(request.messages)
        if problem is not None:
            self._recorder.note("refused", problem=problem, messages=request.messages)
        self.requests.clear()
        return super()._answer(request)

    async def _play(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(self._rng.random() * MAX_DELAY_S)
        return await super()._play(answer, reader, writer)

    def _planned(self, request: Request) -> Answer:
        messages = request.messages
        for at in range(len(messages) - 1, -1, -1):
            name = named(str(messages[at]["content"])) if messages[at]["role"] == "user" else None
            if name is not None:
                break
        else:
            return text("As you say.")
        self._recorder.note("model", tag=tag_of(name))
        turns = self.book.turns[name]
        done = sum(message["role"] == "assistant" for message in messages[at:])
        if done < len(turns) and request.body.get("tools"):
            return calls(*((tool, json.dumps(arguments)) for tool, arguments in turns[done]))
        return text(answer_of(name))
