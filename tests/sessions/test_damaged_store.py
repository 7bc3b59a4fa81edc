"""A store that is damaged where one session is kept: that one waits and is told of, the others go on."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.agent.errors import Unavailable
from app.agent.events import Event, Write
from app.sessions import committing
from app.sessions.ports import EventWriter, Rejected
from app.sessions.waiting import EVENT_BYTES
from tests.agent.probes import Stage
from tests.plan import call, task
from tests.sessions.asking import LOOK
from tests.sessions.writers import Unreliable, Wrapped, writing
from tests.world import WAIT_S, World, world

MAX_BYTES = 200_000


class Damaged(Unreliable):
    """`broken`: a session for whose next event there is no place; for those after it there would be."""

    broken = ""
    first = 0

    def write(self, batch: Sequence[Event], writes: Sequence[Write] = ()) -> Sequence[Rejected]:
        """See `EventWriter.write`."""
        lost = [event for event in batch if event.session_id == self.broken]
        self.first = self.first or (lost[0].seq if lost else 0)
        if not any(event.seq == self.first for event in lost):
            lost = []
        rejected = super().write([event for event in batch if event not in lost], writes)
        return [*rejected, *(Rejected(reason="malformed", event=event, damaged=True) for event in lost)]


class NoPlace(Unreliable):
    """`closed`: there is no place for new sessions."""

    closed = False

    def __init__(self, real: EventWriter) -> None:
        super().__init__(real)
        self.homeless: set[str] = set()

    def write(self, batch: Sequence[Event], writes: Sequence[Write] = ()) -> Sequence[Rejected]:
        """See `EventWriter.write`."""
        self.homeless |= {event.session_id for event in batch if event.seq == 1}
        lost = [event for event in batch if self.closed and event.session_id in self.homeless]
        rejected = super().write([event for event in batch if event not in lost], writes)
        self.homeless &= {event.session_id for event in lost}
        return [*rejected, *(Rejected(reason="malformed", event=event, damaged=True) for event in lost)]


class Wrapping(Wrapped):
    """Makes the writer of a world a damaged one."""

    def __call__(self, real: object) -> Damaged:  # type: ignore[override]
        self.writer = Damaged(real)  # type: ignore[arg-type]
        return self.writer


async def mended(w: World, damaged: Damaged) -> None:
    """Let the store take everything again, and wait until it has."""
    damaged.broken = ""
    async with asyncio.timeout(WAIT_S):
        while w.journal.damage is not None:
            await asyncio.sleep(0.001)


@pytest.mark.spec("11.1", "11.2", "12.3")
async def test_what_cannot_be_stored_waits_in_order_and_is_shown_when_the_store_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "MENDED_S", 0.001)
    async with writing(tmp_path) as room:
        damaged = Damaged(room.writer)
        room.journal._commit._thread._writer = damaged
        one, two = room.begin(), room.begin()
        await room.journal.flush()
        damaged.broken = one.session.id
        before = list(one.shown)
        for talk, text in ((one, "piece"), (two, "piece"), (one, ""), (two, "")):
            talk.record()
            if text:
                talk.emit(text)
            await room.journal.flush()
        assert one.shown == before
        assert two.shown == two.said
        assert room.journal.problem is None
        assert one.session.id in (room.journal.damage or "")
        with pytest.raises(Unavailable, match="damaged"):
            await room.journal.flush(of=one.session.id)
        await room.journal.flush(of=two.session.id)
        assert room.journal.waiting_bytes > 0
        damaged.broken = ""
        async with asyncio.timeout(WAIT_S):
            while room.journal.damage is not None:
                await asyncio.sleep(0.001)
        one.emit("the rest of it")
        one.emit("anew", step=2)
        lost = ("piece", "the rest of it")
        assert one.shown == [said for said in one.said if said not in lost], "no text without its beginning"
        assert room.journal.waiting_bytes == 0


@pytest.mark.spec("11.1", "12.3")
async def test_a_session_that_cannot_be_stored_takes_no_room_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "MENDED_S", 0.001)
    async with writing(tmp_path, max_bytes=MAX_BYTES) as room:
        damaged = Damaged(room.writer)
        room.journal._commit._thread._writer = damaged
        one, two = room.begin(), room.begin()
        await room.journal.flush()
        damaged.broken = one.session.id
        one.record()
        for _ in range(2 * MAX_BYTES // EVENT_BYTES):  # also before the damage is known
            one.emit("piece")
        assert room.journal.waiting_bytes > MAX_BYTES
        await room.journal.flush()
        for _ in range(2 * MAX_BYTES // EVENT_BYTES):
            one.emit("piece")
        assert room.journal.waiting_bytes < 2 * EVENT_BYTES, "texts do not wait"
        async with asyncio.timeout(WAIT_S):
            await room.journal.room(one.session.id)
            while room.journal.waiting_bytes <= MAX_BYTES:
                one.record()
            paused = asyncio.create_task(room.journal.room(one.session.id))
            await room.journal.room(two.session.id)
            room.journal.need_room()
            await room.journal.committed(two.record())
            await room.journal.flush()
            assert not paused.done()
            assert one.shown == one.said[:2]
            damaged.broken = ""
            await paused
            await room.journal.flush()
        assert one.shown == [number for number in one.said if number != "piece"]
        assert room.journal.waiting_bytes == 0
        damaged.gate.clear()
        while room.journal.waiting_bytes <= MAX_BYTES:
            one.record()
        with pytest.raises(Unavailable, match="too much waits"):
            room.journal.need_room()
        damaged.gate.set()


@pytest.mark.spec("12.3")
async def test_an_end_with_facts_that_cannot_be_stored_names_the_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with writing(tmp_path) as room:
        damaged = Damaged(room.writer)
        room.journal._commit._thread._writer = damaged
        talk = room.begin()
        await room.journal.flush()
        damaged.broken = talk.session.id
        talk.record()
        await room.journal.flush()
        await room.journal.close()
        assert f"1 facts or more that nobody was told are lost: session {talk.session.id} cannot" in caplog.text


@pytest.mark.spec("12.3", "14.3")
async def test_nothing_is_begun_in_a_session_that_cannot_be_stored_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "MENDED_S", 0.001)
    held = Wrapping()
    async with world(tmp_path, wrap=held) as w:
        broken, whole = await w.session(), await w.session()
        assert isinstance(held.writer, Damaged)
        held.writer.broken = broken
        for _ in range(2):  # also when it is known already
            with pytest.raises(Unavailable, match="damaged") as refused:
                await w.turn(broken, task(LOOK, "end"))
            assert refused.value.retry_after_s > 1
        assert (await w.finished(await w.turn(whole, task(LOOK, "end"))))["output"] == "end"
        held.writer.broken = ""


@pytest.mark.spec("12.3", "14.9")
async def test_a_delegation_whose_end_cannot_be_stored_is_answered_with_the_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "MENDED_S", 0.001)
    stage, held = Stage(), Wrapping()
    async with world(tmp_path, tools=stage.tools, wrap=held) as w:
        delegated = await w.delegate(task({"calls": [call("hold", key="x")]}, "end"))
        await stage.reached("+x")
        assert isinstance(held.writer, Damaged)
        held.writer.broken = delegated.session.id
        stage.open("x")
        with pytest.raises(Unavailable, match="damaged where session") as refused:
            await w.delegations.result(w.tenant, delegated)
        assert refused.value.code == "store_damaged"
        await mended(w, held.writer)
        assert (await w.delegations.result(w.tenant, delegated))["output"] == "end"


@pytest.mark.spec("12.3", "14.8")
async def test_a_cancel_that_cannot_be_stored_is_not_answered_as_done_for_a_run_that_was_just_taken_up_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "MENDED_S", 0.001)
    stage, held = Stage(), Wrapping()
    async with world(tmp_path, tools=stage.tools, wrap=held) as w:
        run = await w.run(task({"calls": [call("hold", key="x")]}, "never"))
        await stage.reached("+x")
        assert isinstance(held.writer, Damaged)
        held.writer.broken = run.session_id
        find, earlier = w.supervisor.find, iter([None])
        monkeypatch.setattr(w.supervisor, "find", lambda run_id: next(earlier, find(run_id)))
        with pytest.raises(Unavailable, match="damaged"):
            await w.sessions.cancel(w.tenant, run.id)
        await mended(w, held.writer)


@pytest.mark.spec("12.3", "14.1", "14.7")
async def test_new_sessions_are_refused_where_none_can_be_stored_before_they_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "MENDED_S", 0.001)
    writers: list[NoPlace] = []

    def wrap(real: EventWriter) -> NoPlace:
        writers.append(NoPlace(real))
        return writers[0]

    async with world(tmp_path, wrap=wrap, max_bytes=MAX_BYTES) as w:
        old = await w.session()
        writers[0].closed = True
        for _ in range(MAX_BYTES // EVENT_BYTES):
            with pytest.raises(Unavailable, match="damaged where"):
                await w.run(task(LOOK, "end"), title="x" * 1_000)
        with pytest.raises(Unavailable, match="where new sessions are kept"):
            await w.session()
        assert w.journal.waiting_bytes < MAX_BYTES
        with pytest.raises(Unavailable, match="where new sessions are kept"):
            await w.delegate(task("end"))
        assert (await w.finished(await w.turn(old, task(LOOK, "end"))))["output"] == "end"
        writers[0].closed = False
        async with asyncio.timeout(WAIT_S):
            while w.journal.damage is not None:
                await asyncio.sleep(0.001)
        assert (await w.finished(await w.run(task(LOOK, "end"))))["output"] == "end"
