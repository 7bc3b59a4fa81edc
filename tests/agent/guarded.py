"""Worlds whose calls are asked about, and how persons answer in them."""

from collections.abc import Mapping
from typing import Any

from app.agent.approvals import Answer, AnswerKind
from app.agent.tools import ToolContext
from app.settings_rules import Permissions, Rules
from tests.agent.probes import Probe
from tests.plan import call, task
from tests.world import World

COMMAND: Mapping[str, Any] = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
    "additionalProperties": False,
}


def commands() -> Probe:
    """A `run_command` that runs nothing and says what it was given; calls may run side by side."""

    async def body(arguments: Mapping[str, Any], _context: ToolContext) -> str:
        return f"ran {arguments['command']}"

    return Probe("run_command", body, COMMAND, concurrency_safe=True)


def ruled(
    *, ask: list[str] | None = None, deny: list[str] | None = None, allow: list[str] | None = None, **more: Any
) -> Permissions:
    """Rules of the server."""
    return Permissions(rules=Rules(allow=allow or [], ask=ask or [], deny=deny or []), **more)


async def questions(w: World, session_id: str, count: int) -> list[dict[str, Any]]:
    """Wait for that many questions; their data, in the order of asking."""
    await w.until(session_id, "permission.requested", count)
    return [event["data"] for event in await w.events(session_id, "permission.requested")]


async def give(w: World, approval_id: str, kind: AnswerKind = AnswerKind.ALLOW_ONCE, **more: Any) -> dict[str, Any]:
    """Answer a question as a person does."""
    return await w.inbox.answer(w.tenant, approval_id, Answer(kind=kind, by="key_1", **more))


async def time_passes(w: World, timeout_ms: int = 1100) -> None:
    """Wait until a handoff that began now is over its time; the world must have the tool `hold`."""
    late = await w.delegate(task({"calls": [call("hold", key="never")]}, "no"), timeout_ms=timeout_ms)
    assert (await w.delegations.result(w.tenant, late))["status"] == "timed_out"


async def settlements(w: World, session_id: str) -> dict[str, str]:
    """How each question of a session was settled, by its id."""
    found = [event["data"] for event in await w.events(session_id, "permission.resolved")]
    return {data["approval_id"]: data["decision"] for data in found if "approval_id" in data}


async def results(w: World, session_id: str) -> list[tuple[str, str]]:
    """Status and content of the results of a session's calls, in the order of the calls."""
    found = [event["data"] for event in await w.events(session_id, "tool.result")]
    return [(data["status"], data["content"]) for data in sorted(found, key=lambda data: data["memory_seq"])]
