"""Sequences of everything that clients, persons and models can do: the service is in the state that the contract says
after every step."""

from pathlib import Path

import pytest

from tests.fuzz.sequences import play
from tests.longer import times


@pytest.mark.slow
@pytest.mark.spec("5.7", "8.2", "8.3", "9.2", "9.5", "9.7", "11.3", "11.6", "12.7", "14.2", "14.3", "14.10", "14.11")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("hasty", [False, True], ids=["persons answer", "nobody answers"])
def test_the_service_is_in_the_state_that_the_contract_says_after_every_step(tmp_path: Path, hasty: bool) -> None:
    report = play(tmp_path, count=times(4, 60), steps=times(15, 30), hasty=hasty, seed=times(1, 2))
    assert report.violations == [], report.told()
    assert report.sequences >= times(4, 60)
    assert report.jobs >= times(8, 200)
