"""Ends of tasks that meet steps, ends and restarts of those who are to know of them: each is told exactly once."""

import time
from pathlib import Path

import pytest

from tests.agent.interleaved import interleavings
from tests.longer import LONG, times

pytestmark = pytest.mark.slow
COUNT = times(90, 4000)  # sessions; each makes about three tasks


@pytest.mark.spec("9.3", "9.5")
@pytest.mark.case("B087", "B088")
@pytest.mark.timeout(3600 if LONG else 120)
async def test_each_end_of_a_task_is_told_exactly_once_whatever_it_meets(tmp_path: Path) -> None:
    seed = time.time_ns() % 1_000_000 if LONG else 4711
    report = await interleavings(tmp_path, count=COUNT, seed=seed)
    assert report.problems == [], f"seed {seed}"
    assert (report.sessions, report.tasks >= times(200, 10_000)) == (COUNT, True), report.tasks
    assert {"notices at depth 0", "notices at depth 1", "acknowledges at depth 0"} <= set(report.ways), report.ways
    assert {"completed", "failed", "cancelled", "interrupted"} <= set(report.ended), report.ended
