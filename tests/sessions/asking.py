"""Questions to the service, for tests of several files: every one that names an id, and all frames of a view."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from app.sessions.feed import View
from app.sessions.requests import DelegationInput, RunInput
from tests.plan import call
from tests.world import WAIT_S, World, frames

LOOK = {"text": "I look.", "calls": [call("glob", pattern="*")]}


async def moments(count: int) -> None:
    """Let the event loop turn so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


def questions(w: World, tenant: str, session: str, run: str, handoff: str) -> list[Callable[[], Awaitable[Any]]]:
    """Every question that names an id."""
    s, d = w.sessions, w.delegations
    asked = DelegationInput(agent=w.node(), task="x", session_id=session)
    return [
        lambda: s.session(tenant, session),
        lambda: s.update(tenant, session, {"title": "stolen"}),
        lambda: s.update(tenant, session, {}, close=True),
        lambda: s.delete(tenant, session),
        lambda: s.cancel_session(tenant, session),
        lambda: s.start(tenant, session, RunInput(input="x")),
        lambda: s.runs(tenant, session),
        lambda: s.tree(tenant, session),
        lambda: s.session_stream(tenant, session, until_idle=False),
        lambda: s.run(tenant, run),
        lambda: s.run(tenant, run, 0.01),
        lambda: s.cancel(tenant, run),
        lambda: s.run_stream(tenant, run),
        lambda: d.start(tenant, asked),
        lambda: d.get(tenant, handoff),
        lambda: d.stream(tenant, handoff),
    ]


async def kinds_of(w: World, view: View) -> list[str]:
    """The types of all frames of a view, once it has ended."""
    async with asyncio.timeout(WAIT_S):
        return [frame["event"] async for frame in frames(w.feed, view)]
