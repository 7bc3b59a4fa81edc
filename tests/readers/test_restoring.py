"""A copy that was made of a loaded database is whole, a service goes on from it, and readers who know more than it are
told to begin anew. `make backup` does it with more."""

from pathlib import Path

import pytest

from tests.longer import times
from tests.readers.restoring import restored


@pytest.mark.spec("11.3", "12.1", "12.7")
async def test_readers_from_the_future_of_a_restored_copy_begin_anew_and_miss_nothing(tmp_path: Path) -> None:
    found = await restored(tmp_path, sessions=times(2, 20), copies=1)
    assert found.problems == []
    assert found.resets == found.readers == times(2, 20)
    assert found.read.right, found.read
