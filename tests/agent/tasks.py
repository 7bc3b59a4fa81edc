"""What tests of background tasks look at and play with."""

from typing import Any

from app.agent.orders import Pacing
from tests.plan import call, task
from tests.world import World

TASKS = {"surfaces": ["task"]}
BUSY = {"code": "model_overloaded", "message": "busy", "retryable": True}
LONG = Pacing(backoff_ms=60_000, max_backoff_ms=60_000)  # a pause that no test waits for


def held(key: str, answer: str = "") -> str:
    """A task that waits for its gate."""
    return task({"calls": [call("hold", key=key)]}, answer or f"answer {key}")


def turn(*calls: dict[str, Any]) -> dict[str, Any]:
    """A turn of calls."""
    return {"calls": list(calls)}


async def told(w: World, session: str, depth: int = 0) -> list[str]:
    """The results of the calls of a depth, in call order."""
    found = [e["data"] for e in await w.events(session, "tool.result") if e["depth"] == depth]
    return [data["content"] for data in sorted(found, key=lambda data: (data["memory_id"], data["memory_seq"]))]


async def handoffs(w: World, session: str) -> list[dict[str, Any]]:
    """The handoffs of a session, in the order of their starts."""
    await w.journal.flush()
    return [dict(row) for row in await w.store.handoffs(w.tenant, session)]


async def idle(w: World, session: str) -> None:
    """Wait until nothing goes on in a session."""
    await w.until(session, "session.idle")
