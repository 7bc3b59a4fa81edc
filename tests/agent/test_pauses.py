"""A delegation that pauses between two attempts has no run in the air; what ends a session or the service ends it."""

import asyncio
from pathlib import Path

import pytest

from app.agent.orders import HandoffResult, Pacing
from app.agent.runs import HandoffStatus
from app.sessions.delegations import Delegated
from tests.plan import task
from tests.world import WAIT_S, World, world

BUSY = {"code": "model_overloaded", "message": "busy", "retryable": True}
LONG = Pacing(backoff_ms=60_000, max_backoff_ms=60_000)


async def paused(w: World) -> Delegated:
    """A delegation whose first attempt has failed and whose second one is not due for a minute."""
    given = await w.delegate(task({"error": BUSY}), policy={"max_retries": 1})
    await w.until(given.session.id, "run.failed")
    return given


async def ended(given: Delegated) -> HandoffResult:
    """How it ended, within the time that tests wait."""
    async with asyncio.timeout(WAIT_S):
        return await given.result


@pytest.mark.spec("4.7", "14.2")
@pytest.mark.parametrize("how", ["cancel", "delete"])
async def test_ending_a_session_ends_a_delegation_that_pauses_without_another_attempt(tmp_path: Path, how: str) -> None:
    async with world(tmp_path, pacing=LONG) as w:
        given = await paused(w)
        async with asyncio.timeout(WAIT_S):
            await (w.sessions.cancel_session if how == "cancel" else w.sessions.delete)(w.tenant, given.session.id)
        result = await ended(given)
        assert (result.status, result.attempts) == (HandoffStatus.CANCELLED, 1)


@pytest.mark.spec("4.6", "9.6")
async def test_a_service_that_stops_ends_a_delegation_that_pauses(tmp_path: Path) -> None:
    async with world(tmp_path, pacing=LONG) as w:
        given = await paused(w)
    result = await ended(given)
    assert (result.status, result.attempts) == (HandoffStatus.INTERRUPTED, 1)
