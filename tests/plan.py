"""A Python script for the scripted model: an agent's task is itself the plan of its turns, as JSON.

    task({"text": "I ask.", "calls": [call("dispatch_subagent", agent_type="node", task=task("done"))]}, "The end.")

So every tree of agents is one value. A user message that is no plan is answered with `echo: <message>`. Every request
is kept in `SEEN` and put before the strict check of histories; a bad one fails the run.
"""

import asyncio
import json
from typing import Any

from app.agent.chat import ChatRequest
from app.agent.messages import Role
from app.agent.texts import DEFAULT
from tests.strict import history_problem

FORCED_TEXT = DEFAULT.forced_answer
SEEN: list[ChatRequest] = []
CANCEL = "(the model's own task is cancelled)"  # as the text of a turn


def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
    """A tool call of a turn."""
    return {"tool": tool, "arguments": arguments}


def raw_call(tool: str, arguments: str) -> dict[str, Any]:
    """A tool call whose arguments are sent as they are."""
    return {"tool": tool, "arguments": arguments}


def ask(plan: str, agent: str = "node", **more: Any) -> dict[str, Any]:
    """A delegation over the dispatch surface."""
    return call("dispatch_subagent", agent_type=agent, task=plan, **more)


def task(*turns: str | dict[str, Any], final: str | dict[str, Any] | None = None) -> str:
    """The task of an agent that is to play these turns; `final` answers when the loop forces an answer."""
    plan = {"turns": [_turn(turn) for turn in turns], "final": None if final is None else _turn(final)}
    return json.dumps(plan)


def _turn(turn: str | dict[str, Any]) -> dict[str, Any]:
    return {"text": turn} if isinstance(turn, str) else turn


def reply(request: ChatRequest) -> dict[str, Any]:
    """What the model says: the next turn of the plan that came last."""
    SEEN.append(request)
    problem = history_problem(request.messages)
    if problem is not None:
        return {"error": {"code": "bad_history", "message": problem}}
    messages = request.messages
    for at in range(len(messages) - 1, -1, -1):
        plan = _plan(messages[at].content) if messages[at].role is Role.USER else None
        if plan is not None:
            break
    else:
        return {"text": f"echo: {messages[-1].content}"}
    if messages[-1].content == FORCED_TEXT and plan["final"] is not None:
        return dict(plan["final"])
    if any(message.role is Role.USER and message.content != FORCED_TEXT for message in messages[at + 1 :]):
        return {"text": f"echo: {messages[-1].content}"}
    done = sum(message.role is Role.ASSISTANT for message in messages[at:])
    turns = plan["turns"]
    turn = dict(turns[min(done, len(turns) - 1)])
    if turn.get("text") == CANCEL:
        raise asyncio.CancelledError  # as a client library does whose connection was torn down
    return turn


def _plan(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "turns" in value else None
