"""Cancels at random moments of trees that have everything open at once; the long form is `make cancels`."""

import time
from pathlib import Path

import pytest

from tests.cancels.plans import SEEN_AS
from tests.cancels.world import cancels
from tests.longer import LONG, times
from tests.processes import linux

COUNT = times(40, 240)


@linux
@pytest.mark.slow
@pytest.mark.spec("5.7", "6.4", "7.4", "8.2", "11.6", "12.2")
@pytest.mark.case("B062", "B064", "B066", "B069", "B070", "B103", "B153", "B154")
async def test_cancels_at_random_moments_end_every_tree_and_leave_nothing_behind(tmp_path: Path) -> None:
    seed = time.time_ns() % 1_000_000 if LONG else 4711
    report = await cancels(tmp_path, count=COUNT, seed=seed)
    assert report.problems == [], f"python -m bench.random_cancels --count {COUNT} --seed {seed}\n{report.figures()}"
    assert report.cancels == COUNT
    assert set(report.hit) >= set(SEEN_AS.values()), report.figures()
