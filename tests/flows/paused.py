"""Runs that stand still until a test lets them go on: they ask a person about a tool."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from app.client import Client
from tests.service import WAIT_S, agent, finished

# Who is told to wait asks for a tool first, who is told to call something calls it and answers with the results; every
# other answer is all that the agent was asked and told.
PLAY = """
import json

def said(request):
    return [m.content for m in request.messages if m.role == "user"]

def reply(request):
    texts, last = said(request), request.messages[-1]
    if last.role == "user" and last.content.startswith("call "):
        return {"calls": json.loads(last.content[5:])}
    if last.role == "user" and last.content.startswith("wait"):
        return {"calls": [{"tool": "glob", "arguments": {"pattern": str(len(request.messages))}}]}
    asked = [m for m in request.messages if m.role == "user"]
    if asked and asked[-1].content.startswith("call "):
        return {"text": "\\n".join(m.content for m in request.messages if m.role == "tool")}
    if last.role == "user" and last.content.startswith("fail"):
        return {"text": "", "error": {"code": "broken", "message": "it broke"}}
    return {"text": " | ".join(texts)}
"""


def worker(name: str = "worker", **fields: Any) -> dict[str, Any]:
    """An agent that asks a person before it uses its tool."""
    return agent(name, **{"mode": "all", "tools": ["glob"], "permissions": {"ask": ["Glob"]}, **fields})


def played(folder: Any) -> dict[str, str]:
    """The environment of a service whose models play this."""
    scripts = folder / "scripts"
    scripts.mkdir(exist_ok=True)
    (scripts / "paused.py").write_text(PLAY)
    return {"SUBAGENTD_MODELS__SCRIPTS": str(scripts), "SUBAGENTD_MODEL": "scripted:paused"}


def calling(*calls: Mapping[str, Any]) -> str:
    """The task of an agent that makes these calls."""
    return "call " + json.dumps(calls)


def execute(prompt: str, **arguments: Any) -> dict[str, Any]:
    """A call of `execute_task`, in the background."""
    given = {"name": "worker", "description": "some work", "prompt": prompt, "run_in_background": True, **arguments}
    return {"tool": "execute_task", "arguments": given}


async def question(client: Client, session_id: str, number: int = 1) -> dict[str, Any]:
    """The `number`th question that a session has asked, when it has; also one that is settled."""
    seen = 0
    async with asyncio.timeout(WAIT_S):
        async for frame in client.events(f"/v1/sessions/{session_id}/events", deltas="false"):
            seen += frame.type == "permission.requested"
            if seen == number:
                return frame.data
    raise AssertionError("the session asked nothing")


async def let_go(client: Client, session_id: str, number: int = 1) -> None:
    """Answer that question: the run that asked goes on."""
    asked = await question(client, session_id, number)
    answer = {"decision": "allow_once"}
    await client.request("POST", f"/v1/permissions/{asked['data']['approval_id']}", answer)


async def session_of(client: Client, **fields: Any) -> str:
    """A session whose lead is such an agent."""
    body = {"agent": "worker", "agents": [worker(tools=["glob", "Agent"])], **fields}
    return str((await client.request("POST", "/v1/sessions", body))["id"])


async def statuses(client: Client, *run_ids: str) -> list[str]:
    """How these runs ended, when they have."""
    return [(await finished(client, run_id))["status"] for run_id in run_ids]
