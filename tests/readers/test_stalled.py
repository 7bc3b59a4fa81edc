"""Readers that stop reading are cut off, hold little in the kernel, and find every durable event when they come back.
`make slow-readers` has a hundred of them, and measures what they cost."""

from pathlib import Path

import pytest

from app.cli.serving import SEND_BUFFER
from tests.readers.stalled import round_of, stalling
from tests.service import serving


@pytest.mark.spec("11.5", "11.3")
@pytest.mark.case("B156")
async def test_readers_that_stall_are_cut_off_hold_little_and_miss_nothing_when_they_come_back(tmp_path: Path) -> None:
    async with serving(tmp_path, env=stalling(tmp_path, delay_ms=1)) as service:
        found = await round_of(service, sessions=1, stalled=6, healthy=1)
    assert found.delays_ms, "one who reads gets everything"
    assert found.closed == 6
    assert service.log.count("its stream is cut off") == 6
    assert SEND_BUFFER // 2 < found.unsent <= 2 * SEND_BUFFER + (64 << 10)
    assert found.left == 0
    assert found.resumed.right, found.resumed
    assert found.resumed.events == 6 * len(found.delays_ms)
