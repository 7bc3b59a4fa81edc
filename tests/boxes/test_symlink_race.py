"""Names that are swapped against links while they are opened: nothing outside is read or written."""

import sys
from pathlib import Path

import pytest

from app.boxes.beneath import Opener, open_by_kernel, open_by_walk
from tests.boxes.racing import naive, raced

needs_openat2 = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="openat2 is a call of Linux")
OPENERS = [pytest.param(open_by_kernel, id="kernel", marks=needs_openat2), pytest.param(open_by_walk, id="walk")]
TRIES = 800  # bench/symlink_race.py makes 20,000
LEAST = 10  # that are done, and that meet a swapped name: or nothing was tried


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("opener", OPENERS)
def test_no_read_and_no_write_escapes_while_names_are_swapped_against_links(opener: Opener, tmp_path: Path) -> None:
    race = raced(tmp_path, opener, TRIES, least=LEAST)

    assert race.tries >= TRIES
    assert race.escapes == 0


@pytest.mark.spec("7.3")
def test_a_check_of_the_resolved_path_does_escape_in_the_same_race(tmp_path: Path) -> None:
    race = naive(tmp_path, most=200, stepwise=True)

    assert (race.escapes, race.done > 1) == (1, True)
