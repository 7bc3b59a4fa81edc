"""kill -9 at random moments and at named fault points, SIGTERM now and then, under trees of agents: nothing that was
seen is lost, nothing is left open, nothing is done twice; the long form is `make chaos`."""

from pathlib import Path

import pytest

from tests.chaos.world import Plan, chaos
from tests.longer import times
from tests.processes import linux

PLAN = Plan(
    kills=times(25, 100),
    terms=times(2, 10),
    trees=times(16, 48),
    seed=20,
    aimed=times(8, 25),
    moments=(0.1, times(5, 15) / 10),
)


@linux
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.spec("11.2", "11.6", "12.3", "12.5", "12.7")
async def test_kills_at_any_moment_lose_nothing_that_was_seen_and_leave_nothing_open(tmp_path: Path) -> None:
    report = await chaos(tmp_path, PLAN)
    assert report.violations == [], report.told()
    # else the test would mean nothing
    assert report.hit.total() >= PLAN.aimed // 2, report.told()
    assert report.started > PLAN.trees, report.told()
    assert report.seen >= 40 * PLAN.kills, report.told()
