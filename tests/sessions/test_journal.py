"""The journal: gapless numbers, order of each session, commit before publish, nothing lost while the process lives."""

import asyncio
import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.agent import events as kinds
from app.agent.errors import NotFound, Unavailable
from app.agent.events import Write
from app.agent.ids import now_us
from app.masking import ValueMasker
from app.sessions import committing
from app.sessions import streams as streams_module
from app.sessions.rejecting import replacement
from app.store.notes import SqlNoteStore
from tests.longer import examples
from tests.sessions.asking import moments
from tests.sessions.writers import Talk, writing
from tests.world import WAIT_S

COMMON = ["record", "record", "emit", "emit", "flush", "committed", "yield", "row", "fail"]


def stories(*rare: str) -> st.SearchStrategy[list[tuple[int, str]]]:
    """What three sessions do, one after the other."""
    return st.lists(st.tuples(st.integers(0, 2), st.sampled_from([*COMMON, *rare])), max_size=60)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is away is asked again soon."""
    monkeypatch.setattr(committing, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(committing, "RETRY_MAX_S", 0.004)


def note(key: str) -> Write:
    """A row that is no event."""
    values = {"tenant_id": "default", "id": key, "session_id": "ses_n", "run_id": None, "name": key, "content": "x"}
    return Write(table="notes", values={**values, "created_at": now_us(), "updated_at": now_us()}, key=("id",))


def bad(talk: Talk) -> None:
    """A fact that the store cannot take: its payload lacks what the row needs."""
    payload: Any = {"input": "no turn, no memory"}
    talk.said.append(talk.room.journal.record(talk.run, kinds.HANDOFF_START, payload).seq)


@given(stories("lose") | stories("bad"))
@settings(max_examples=examples(60), deadline=None)
@pytest.mark.spec("11.1", "11.2", "12.3")
@pytest.mark.case("B173", "B177")
async def test_any_interleaving_gives_gapless_numbers_in_order_shown_after_their_commit(
    actions: list[tuple[int, str]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with asyncio.timeout(2), writing(Path(folder)) as room:
            talks = [room.begin(f"tenant_{at}") for at in range(3)]
            texts = (f"text {n}" for n in itertools.count())
            for at, action in actions:
                talk = talks[at]
                if action == "record":
                    talk.record()
                elif action == "emit":
                    talk.emit(next(texts))
                elif action == "flush":
                    await room.journal.flush()
                    assert [t.shown for t in talks] == [t.said for t in talks]
                elif action == "committed":
                    event = talk.record()
                    await room.journal.committed(event)
                    assert event.seq in talk.shown
                elif action == "row":
                    await room.journal.write(note(next(texts)))
                elif action == "bad":
                    bad(talk)
                elif action == "fail":
                    room.writer.before += 1
                elif action == "lose":
                    room.writer.after += 1
                else:
                    await asyncio.sleep(0)
            await room.journal.flush()
            for talk in talks:
                assert talk.shown == talk.said
                numbers = [seq for seq, _ in await room.stored(talk.session)]
                assert numbers == list(range(1, len(numbers) + 1)) == [n for n in talk.said if isinstance(n, int)]
            assert room.journal.waiting_bytes == 0


@pytest.mark.spec("12.3")
@pytest.mark.seed("004", 162)
async def test_recording_does_not_wait_for_a_store_that_hangs(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        talk = room.begin()
        room.writer.gate.clear()
        for _ in range(2000):
            talk.record()
            talk.emit("piece")
        assert talk.shown == []
        room.writer.gate.set()
        async with asyncio.timeout(WAIT_S):
            await room.journal.flush()
        assert talk.shown == talk.said
        assert len(room.writer.batches) < 20, "facts are committed in groups"


@pytest.mark.spec("12.3", "11.2")
@pytest.mark.seed("004", 177)
async def test_a_store_that_is_away_for_a_while_delays_but_loses_nothing(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        talk = room.begin()
        await room.journal.flush()
        room.writer.before = 5
        first = talk.record()
        waiter = asyncio.create_task(room.journal.committed(first))
        async with asyncio.timeout(WAIT_S):
            while room.journal.problem is None:
                await asyncio.sleep(0.001)
        assert room.journal.problem == "the disk is full"
        assert not waiter.done()
        talk.record()
        async with asyncio.timeout(WAIT_S):
            await waiter
        await room.journal.flush()
        problem: str | None = room.journal.problem
        assert (problem, room.journal.failures) == (None, 5)
        assert [seq for seq, _ in await room.stored(talk.session)] == [1, 2, 3, 4]


@pytest.mark.spec("12.3", "11.6")
async def test_what_cannot_be_stored_becomes_an_error_event_under_its_number(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        talk, other = room.begin(), room.begin()
        bad(talk)
        talk.record()
        other.record()
        await room.journal.flush()
        assert await room.stored(talk.session) == [
            (1, "session.created"), (2, "run.queued"), (3, "error"), (4, "run.waiting"),
        ]  # fmt: skip
        error = room.bus.shown[talk.session.id][2]
        assert (error.type, error.payload["code"], error.payload["event"]) == ("error", "not_stored", "handoff.start")
        assert len(await room.stored(other.session)) == 3, "one bad row does not cost its batch"


@pytest.mark.spec("12.3")
async def test_waiters_of_an_event_that_became_an_error_are_not_left_waiting(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        talk = room.begin()
        payload: Any = {}
        event = room.journal.record(talk.run, kinds.HANDOFF_START, payload)
        async with asyncio.timeout(WAIT_S):
            await room.journal.committed(event)


@pytest.mark.spec("12.3")
async def test_an_event_of_a_session_that_another_process_numbers_is_not_shown(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        talk = room.begin()
        await room.journal.flush()
        stolen = talk.facts.waiting(talk.run)
        stolen.seq = 3
        other = room.database.writer(replacement)
        assert other.write([stolen]) == ()
        other.close()
        event = talk.record()
        async with asyncio.timeout(WAIT_S):
            await room.journal.committed(event)
            with pytest.raises(Unavailable, match="another process writes to this session"):
                await room.journal.flush(of=talk.session.id)
            await room.journal.committed(talk.record())
            await room.journal.flush(of=talk.session.id)
        assert talk.shown == [1, 2, 4]
        recent, session = room.journal.recent, talk.session.id
        assert recent.after(session, 2, 4) is None, "number 3 is in the log alone"
        assert [event.seq for event in recent.after(session, 3, 4) or ()] == [4]


@pytest.mark.spec("12.3")
async def test_loops_pause_while_too_much_waits_and_go_on_when_it_is_written(tmp_path: Path) -> None:
    async with writing(tmp_path, max_bytes=20_000) as room:
        talk = room.begin()
        room.writer.gate.clear()
        async with asyncio.timeout(WAIT_S):
            await room.journal.room(talk.session.id)
            while room.journal.waiting_bytes <= 20_000:
                talk.record()
            paused = [asyncio.create_task(room.journal.room(talk.session.id)) for _ in range(3)]
            await asyncio.sleep(0)
            assert not any(task.done() for task in paused)
            paused.pop().cancel()
            room.writer.gate.set()
            await asyncio.gather(*paused)
        assert room.journal.waiting_bytes <= 20_000


@pytest.mark.spec("12.7")
async def test_steps_that_are_held_pass_one_by_one_in_order_until_all_may_go(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        session, passed = room.begin().session.id, []

        async def step(number: int) -> None:
            await room.journal.room(session, taken_up=True)
            passed.append(number)

        room.journal.hold(WAIT_S)
        await room.journal.room(session)  # nobody waits who begins anew
        waiting = [asyncio.create_task(step(number)) for number in range(5)]
        await moments(5)
        waiting[0].cancel()
        await moments(5)
        for expected in ([1], [1, 2]):
            room.journal.let_pass()
            await moments(5)
            assert passed == expected
        for _ in range(3):
            room.journal.let_pass()  # one of them for whoever comes next
        await moments(5)
        await step(5)
        last = asyncio.create_task(step(6))
        await moments(5)
        assert passed == [1, 2, 3, 4, 5]
        room.journal.let_go()
        await last
        await step(7)
        room.journal.let_pass()
        assert passed[-2:] == [6, 7]


@pytest.mark.spec("12.3", "12.7")
@pytest.mark.parametrize("trouble", ["none", "silent", "away"])
async def test_what_was_recorded_is_secured_when_it_is_stored_or_the_store_is_known_to_take_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr(committing, "SILENT_S", 0.02 if trouble == "silent" else WAIT_S)
    async with writing(tmp_path) as room:
        talk, other = room.begin(), room.begin()
        await room.journal.flush()
        room.writer.gate.clear()
        last = talk.record()
        waiting = asyncio.create_task(room.journal.secured(talk.session.id))
        async with asyncio.timeout(WAIT_S):
            await room.journal.secured(other.session.id)  # nothing of it waits
            if trouble == "silent":
                await waiting
                assert room.journal.problem is not None
            else:
                await moments(20)
                assert not waiting.done(), "it is not stored yet"
                room.writer.before = 10_000 if trouble == "away" else 0
                room.writer.gate.set()
                await waiting
            assert (room.journal.head(talk.session.id) == last.seq) is (trouble == "none")
            await room.journal.secured(talk.session.id)  # also of what is known already
            room.writer.before = 0


@pytest.mark.spec("5.7", "12.7")
async def test_nothing_is_secured_any_more_when_another_process_goes_on(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        talk = room.begin()
        await room.journal.flush()
        room.journal.seal()
        waiting = asyncio.create_task(room.journal.secured(talk.session.id))
        await moments(20)
        assert not waiting.done()
        waiting.cancel()


@pytest.mark.spec("12.3")
async def test_whoever_comes_to_wait_does_not_put_off_those_who_wait(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        first, more = asyncio.create_task(room.journal.committed(room.begin().record())), []
        async with asyncio.timeout(WAIT_S):
            while not first.done():  # else one after the other has put it off
                more.append(asyncio.create_task(room.journal.settle()))
                await asyncio.sleep(0)
            await asyncio.gather(*more)


async def test_a_waiter_that_is_cancelled_disturbs_nobody(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        talk = room.begin()
        room.writer.gate.clear()
        event = talk.record()
        jobs = [room.journal.committed(event), room.journal.flush(), room.journal.write(note("a"))]
        gone = [asyncio.ensure_future(job) for job in jobs]
        stays = asyncio.ensure_future(room.journal.committed(event))
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        room.writer.gate.set()
        async with asyncio.timeout(WAIT_S):
            await stays
            await room.journal.flush()
        assert talk.shown == talk.said


@pytest.mark.spec("12.3")
async def test_a_row_that_is_refused_says_why_and_costs_nothing_else(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        talk = room.begin()
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(ValueError, match="no column"):
                await room.journal.write(Write(table="notes", values={"tenant_id": "t", "colour": "red"}))
        assert talk.shown == talk.said


async def test_a_listener_that_fails_stops_neither_the_journal_nor_the_others(tmp_path: Path) -> None:
    counted: list[int] = []

    def broken(_: Any) -> None:
        raise RuntimeError("a metric is wrong")

    listeners = (broken, lambda events: counted.append(len(events)))
    async with writing(tmp_path, listeners=listeners) as room:
        talk = room.begin()
        async with asyncio.timeout(WAIT_S):
            await room.journal.committed(talk.record())
            await room.journal.committed(talk.record())
        assert talk.shown == talk.said
        assert sum(counted) == 4


@pytest.mark.spec("12.3")
async def test_closing_stores_what_is_left_even_when_the_store_comes_back_only_then(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        talk = room.begin()
        room.writer.before = 3
        talk.record()
    async with writing(tmp_path) as room:
        assert [seq for seq, _ in await room.stored(talk.session)] == [1, 2, 3]


@pytest.mark.spec("11.1")
async def test_a_session_that_was_forgotten_goes_on_with_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "IDLE_STREAMS", 0)
    async with writing(tmp_path) as room:
        talk = room.begin()
        room.journal.release(talk.session.id)  # not forgotten yet: it has facts that wait
        assert room.journal.recorded(talk.session.id) == 2
        await room.journal.flush()
        room.journal.release(talk.session.id)
        assert room.journal.head(talk.session.id) is None
        await asyncio.gather(*(room.journal.open("default", talk.session.id) for _ in range(3)))
        talk.record()
        await room.journal.flush()
        assert talk.shown == [1, 2, 3]


@pytest.mark.spec("11.1", "14.2")
async def test_an_erased_session_cannot_be_opened_again_with_numbers_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "IDLE_STREAMS", 0)
    async with writing(tmp_path) as room:
        talk = room.begin()
        talk.record(lambda facts, _: facts.closed("deleted"))
        await room.journal.flush()
        room.journal.release(talk.session.id)
        for session_id in (talk.session.id, "ses_unknown"):
            with pytest.raises(NotFound):
                await room.journal.open("default", session_id)


async def test_a_session_that_waits_for_a_commit_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "IDLE_STREAMS", 1)
    async with writing(tmp_path) as room:
        talks = [room.begin() for _ in range(5)]
        for talk in talks:
            room.journal.release(talk.session.id)
        assert all(room.journal.recorded(talk.session.id) == 2 for talk in talks)
        await room.journal.flush()
        for talk in talks:
            room.journal.release(talk.session.id)
        held = [talk for talk in talks if room.journal.head(talk.session.id) is not None]
        assert len(held) == 1


@pytest.mark.spec("11.1")
async def test_offsets_count_code_points_from_zero_again_in_each_step_and_call(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        talk = room.begin()
        emit = room.journal.emit
        talk.emit("héllo 你")
        talk.emit("🙂")
        talk.emit("!", step=2)
        emit(talk.run, kinds.ARGUMENTS_DELTA, 2, "{a", "call_1")
        emit(talk.run, kinds.ARGUMENTS_DELTA, 2, "{bb", "call_2")
        emit(talk.run, kinds.ARGUMENTS_DELTA, 2, "}", "call_1")
        emit(talk.run, kinds.REASONING_DELTA, 2, "hm")
        talk.emit("?", step=2)
        await room.journal.flush()
        shown = [(e.payload["at"], e.payload["text"]) for e in room.bus.shown[talk.session.id] if not e.seq]
        assert shown == [(0, "héllo 你"), (7, "🙂"), (0, "!"), (0, "{a"), (0, "{bb"), (2, "}"), (0, "hm"), (1, "?")]


@pytest.mark.spec("12.6")
async def test_a_secret_is_masked_in_facts_and_over_deltas_and_the_held_rest_comes_with_the_end_of_the_step(
    tmp_path: Path,
) -> None:
    secret = "sk-0123456789"
    async with writing(tmp_path, masker=ValueMasker([secret])) as room:
        talk = room.begin()
        for piece in ("key: sk-01", "234567", "89 and sk-0", "12"):
            talk.emit(piece)
        talk.record(lambda facts, run: facts.message(run, "assistant", f"it is {secret}.", step=1))
        talk.record(lambda facts, run: facts.step_completed(run, 1))
        await room.journal.flush()
        events = room.bus.shown[talk.session.id]
        deltas = [e for e in events if not e.seq]
        assert "".join(e.payload["text"] for e in deltas) == "key: [masked] and sk-012"
        assert [e.payload["at"] for e in deltas] == list(
            itertools.accumulate([0, *(len(e.payload["text"]) for e in deltas[:-1])])
        )
        assert [e.type for e in events[-2:]] == ["text.delta", "step.completed"]
        rows = await room.log.page("default", talk.session.id, after=0)
        assert not any(secret.encode() in row.data for row in rows)


@pytest.mark.spec("12.3")
async def test_a_row_goes_along_with_the_next_event_of_its_session_and_with_no_other(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        first, second = room.begin(), room.begin()
        with room.journal.along(first.session.id, note("one")), room.journal.along(first.session.id, note("two")):
            other = second.record()
            carrying, after = first.record(), first.record()
        with room.journal.along(first.session.id, note("none")):
            pass
        last = first.record()
        await room.journal.flush()
        assert [[write.values["name"] for write in event.also] for event in (other, carrying, after, last)] == [
            [], ["one", "two"], [], [],
        ]  # fmt: skip
        stored = await SqlNoteStore(room.database.reader).notes("default", "ses_n")
        assert [each["name"] for each in stored] == ["one", "two"]
