"""What waits while the store takes nothing: it is bounded, it is told, and whoever only reads does not wait along."""

import asyncio
import logging
from pathlib import Path

import pytest

from app.agent.errors import Unavailable
from app.sessions import committing
from tests.sessions.test_journal import note
from tests.sessions.writers import writing
from tests.world import WAIT_S

MAX_BYTES = 20_000

pytestmark = pytest.mark.spec("12.3")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries come at once, and the end of a thread is not waited for."""
    monkeypatch.setattr(committing, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(committing, "END_S", 0.01)


async def test_a_store_that_is_silent_is_told_as_a_problem_before_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with writing(tmp_path) as room:
        talk = room.begin()
        await room.journal.flush()
        assert room.journal.problem is None
        monkeypatch.setattr(committing, "SILENT_S", 0)
        room.writer.gate.clear()
        talk.record()
        async with asyncio.timeout(WAIT_S):
            while room.journal.problem is None:
                await asyncio.sleep(0.001)
        told: str | None = room.journal.problem
        assert told is not None
        assert told.startswith("the store has not answered for")
        room.writer.gate.set()
        await room.journal.flush()
        assert room.journal.problem is None


async def test_a_row_is_refused_at_once_while_too_much_waits_already(tmp_path: Path) -> None:
    async with writing(tmp_path, max_bytes=MAX_BYTES) as room:
        room.begin()
        await room.journal.flush()
        room.writer.gate.clear()
        kept: list[asyncio.Task[None]] = []
        while room.journal.waiting_bytes <= MAX_BYTES:  # rows that are no events count as well
            kept.append(asyncio.create_task(room.journal.write(note(str(len(kept))))))
            await asyncio.sleep(0)
            assert len(kept) < 100, "they do not count"
        waiting = room.journal.waiting_bytes
        with pytest.raises(Unavailable, match="too much waits") as refused:
            await room.journal.write(note("one more"))
        assert (refused.value.code, room.journal.waiting_bytes) == ("store_unavailable", waiting)
        few = asyncio.create_task(room.journal.write(note("of few"), timeout_s=None))
        await asyncio.sleep(0)
        room.writer.gate.set()
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(few, *kept)
        assert room.journal.waiting_bytes == 0


async def test_clients_that_ask_again_and_again_take_one_place_in_the_queue(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        talk = room.begin()
        await room.journal.flush()
        room.writer.gate.clear()
        talk.record()
        stays = asyncio.create_task(room.journal.flush())
        await asyncio.sleep(0)
        for _ in range(50):
            with pytest.raises(Unavailable):
                await room.journal.flush(0.0001)
        assert len(room.journal._waiting.queue) <= 3, "a fact, and one mark before and behind it"
        assert not stays.done(), "those who gave up have taken the mark of another along"
        room.writer.gate.set()
        async with asyncio.timeout(WAIT_S):
            await stays


async def test_a_reader_goes_on_as_soon_as_the_store_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "SILENT_S", 1000)
    async with writing(tmp_path) as room:
        talk = room.begin()
        await room.journal.flush()
        room.writer.gate.clear()
        room.writer.before = 1_000_000
        event = talk.record()
        reading = asyncio.create_task(room.journal.settle())
        await asyncio.sleep(0)
        assert not reading.done()
        room.writer.gate.set()
        async with asyncio.timeout(WAIT_S):
            await reading
        assert room.journal.head(event.session_id) == event.seq - 1
        room.writer.before = 0


async def test_nobody_waits_any_longer_when_the_service_ends_before_the_store_is_back(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        talk = room.begin()
        await room.journal.flush()
        room.writer.gate.clear()
        event = talk.record()
        waiting = [
            asyncio.ensure_future(job)
            for job in (room.journal.flush(1000), room.journal.write(note("a"), 1000), room.journal.settle())
        ]
        await asyncio.sleep(0)
        room.journal.give_up()
        async with asyncio.timeout(WAIT_S):
            told = await asyncio.gather(*waiting, return_exceptions=True)
        assert [getattr(error, "code", None) for error in told] == ["stopping", "stopping", None]
        room.writer.gate.set()
        async with asyncio.timeout(WAIT_S):  # what was recorded is stored all the same, if there is time
            await room.journal.committed(event)
            await room.journal.flush()


@pytest.mark.case("B175")
async def test_an_end_that_the_store_does_not_wait_for_says_what_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with writing(tmp_path) as room:
        talk = room.begin()
        await room.journal.flush()
        shown = list(talk.shown)
        room.writer.gate.clear()
        event = talk.record()
        with caplog.at_level(logging.ERROR), pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await room.journal.close()
        assert "nobody was told are lost" in caplog.text
        assert talk.shown == shown
        room.writer.gate.set()
        await room.journal.committed(event)
