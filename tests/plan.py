"""A Python script for the scripted model: an agent's task is itself the plan of its turns, as JSON.

    task({"text": "I ask.", "calls": [call("dispatch_subagent", agent_type="node", task=task("done"))]}, "The end.")

So every tree of agents is one value. A user message that is no plan is answered with `echo: <message>`; a notice is
read, and the plan goes on. Every request is kept in `SEEN` and put before the strict check of histories; a bad one
fails the run.
"""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from app.agent.chat import ChatRequest
from app.agent.messages import Message, Role
from app.agent.texts import DEFAULT
from tests.strict import history_problem

FORCED_TEXT = DEFAULT.forced_answer
NOTICE = DEFAULT.task_ended.partition("{")[0]  # how a notice begins
SEEN: list[ChatRequest] = []
THEN: dict[str, Callable[[], object]] = {}  # what is done when a turn with that under `then` is played
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


def execute(plan: str, agent: str = "node", **more: Any) -> dict[str, Any]:
    """A delegation over the task surface."""
    return call("execute_task", name=agent, description="some of the work", prompt=plan, **more)


def behind(plan: str, agent: str = "node", **more: Any) -> dict[str, Any]:
    """A delegation in the background."""
    return execute(plan, agent, run_in_background=True, **more)


def known(number: int = 1) -> str:
    """As an argument: the nth id of a task that the results of the agent's calls have named so far."""
    return f"<task {number}>"


def run_of(number: int = 1) -> str:
    """As an argument: the nth id of a run that they have named."""
    return f"<run {number}>"


def fetch(number: int = 1, **more: Any) -> dict[str, Any]:
    """A look at the nth task."""
    return call("get_task_output", task_id=known(number), **more)


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
    if messages[-1].content.endswith(DEFAULT.compact):
        return {"text": "Summed up. " + " ".join(re.findall(r"code=\d+", messages[-1].content)[:3])}
    for at in range(len(messages) - 1, -1, -1):
        plan = _plan(messages[at].content) if messages[at].role is Role.USER else None
        if plan is not None:
            break
    else:
        return {"text": f"echo: {messages[-1].content}"}
    if messages[-1].content == FORCED_TEXT and plan["final"] is not None:
        return dict(plan["final"])
    said = [message.content for message in messages[at + 1 :] if message.role is Role.USER]
    if any(text != FORCED_TEXT and not text.startswith(NOTICE) for text in said):
        return {"text": f"echo: {messages[-1].content}"}
    done = sum(message.role is Role.ASSISTANT for message in messages[at:])
    turns = plan["turns"]
    turn = dict(turns[min(done, len(turns) - 1)])
    if "then" in turn:
        THEN[turn.pop("then")]()
    if turn.get("text") == CANCEL:
        raise asyncio.CancelledError  # as a client library does whose connection was torn down
    return {**turn, "calls": [_with_ids(each, messages) for each in turn["calls"]]} if "calls" in turn else turn


def _with_ids(made: dict[str, Any], messages: Sequence[Message]) -> dict[str, Any]:
    """A call with the ids that its arguments stand for; of a plan that is handed on, those are the child's to know."""
    told = "\n".join(message.content for message in messages if message.role is Role.TOOL)
    named = {
        what: list(dict.fromkeys(re.findall(rf"\b{short}_[0-9a-z]{{20,}}", told))) for what, short in _SHORT.items()
    }

    def meant(value: Any) -> Any:
        match = re.fullmatch(r"<(task|run) (\d+)>", value) if isinstance(value, str) else None
        return named[match[1]][int(match[2]) - 1] if match else value

    if isinstance(made["arguments"], str):
        return made
    return {**made, "arguments": {key: meant(value) for key, value in made["arguments"].items()}}


_SHORT = {"task": "ho", "run": "run"}


def _plan(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "turns" in value else None
