"""What tests of delegation look at: the handoff events of a session, and what its runs were told."""

from typing import Any

from tests.plan import ask, call
from tests.world import World


async def kinds(w: World, session_id: str) -> list[str]:
    """The handoff events of a session with their status."""
    found = await w.events(session_id, "handoff.start", "handoff.end")
    return [e["data"].get("status", "start") for e in found]


async def told(w: World, session_id: str, depth: int = 0) -> list[dict[str, Any]]:
    """The tool results of the runs of a depth, in call order."""
    found = [e["data"] for e in await w.events(session_id, "tool.result") if e["depth"] == depth]
    return sorted(found, key=lambda data: data["memory_seq"])


def child_call(plan: str, surface: str) -> dict[str, Any]:
    """A delegation to `node` on a surface."""
    return ask(plan) if surface == "dispatch" else call("subagent_node", task=plan)
