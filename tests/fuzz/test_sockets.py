"""Connections that are abused: each is answered or cut within its bound, and nobody else notices."""

from pathlib import Path

import pytest

from tests.fuzz.abused import abused
from tests.longer import times


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_abused_connections_are_refused_in_time_and_leave_nothing_behind(tmp_path: Path) -> None:
    report = await abused(tmp_path, connections=times(55, 550), seed=5)
    assert report.violations == [], report.told()
    assert report.healthy_ms
