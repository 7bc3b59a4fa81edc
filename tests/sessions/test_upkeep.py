"""What is done beside the writing: in transactions of its own, behind the facts; whatever fails, the rest goes on."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from app.agent.errors import Unavailable
from app.agent.events import Event, Write
from app.agent.ids import now_us
from app.masking import ValueMasker
from app.sessions import indexing as indexing_module
from app.sessions import retaining as retaining_module
from app.sessions.audit import MessageFilter
from app.sessions.indexing import Indexing
from app.sessions.ports import DAMAGED, EventWriter, Rejected
from app.sessions.retaining import Due, Retaining
from app.store.database import writing_connection
from app.store.messages import SqlAuditStore
from app.store.retention import SqlRetentionStore
from app.store.search import TextIndex
from tests.sessions.writers import Room, Talk, writing
from tests.world import WAIT_S

HOUR = 3_600_000_000


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.005)


async def upto(room: Room) -> int:
    (row,) = await room.database.reader.rows(text("SELECT upto FROM text_index"))
    return int(row["upto"])


async def reached(room: Room, wanted: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while await upto(room) != wanted:
            await asyncio.sleep(0.005)


def say(talk: Talk, *texts: str) -> None:
    for said in texts:
        talk.record(lambda facts, run, said=said: facts.message(run, "user", said))  # type: ignore[misc]


UPKEEP = Write(table="text_index", values={"tenant_id": "default", "upto": 0}, key=("tenant_id",))


class Order:
    """Notes what each transaction is made of."""

    def __init__(self, real: EventWriter) -> None:
        self.real = real
        self.batches: list[tuple[int, int]] = []

    def write(self, batch: Sequence[Event], writes: Sequence[Write] = ()) -> Sequence[Rejected]:
        """See `EventWriter.write`."""
        self.batches.append((len(batch), len(writes)))
        return self.real.write(batch, writes)

    def rest(self) -> float | None:
        """See `EventWriter.rest`."""
        return self.real.rest()

    def close(self) -> None:
        """See `EventWriter.close`."""
        self.real.close()


@pytest.mark.spec("12.3", "12.4")
async def test_upkeep_is_a_transaction_of_its_own_behind_the_facts_until_it_is_due(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        order = room.writer.real = Order(room.writer.real)
        talk = room.begin()
        patient = asyncio.create_task(room.journal.write_aside(UPKEEP, 3600.0))
        due = asyncio.create_task(room.journal.write_aside(UPKEEP, 0.0))
        await asyncio.sleep(0)
        say(talk, "a fact")
        await asyncio.gather(patient, due, room.journal.flush())
        assert order.batches == [(3, 0), (0, 1), (0, 1)], "the first in the line is not due, and the facts come first"
        order.batches.clear()
        late = asyncio.create_task(room.journal.write_aside(UPKEEP, 0.0))
        await asyncio.sleep(0)
        say(talk, "a fact")
        await asyncio.gather(late, room.journal.flush())
        assert order.batches == [(0, 1), (1, 0)]


@pytest.mark.spec("12.3")
async def test_upkeep_that_nobody_waits_for_any_more_is_not_begun(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        order = room.writer.real = Order(room.writer.real)
        left = asyncio.create_task(room.journal.write_aside(UPKEEP, 3600.0))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.wait((left,))
        talk = room.begin()
        say(talk, "a fact")
        await room.journal.flush()
        assert order.batches == [(3, 0)]


@pytest.mark.spec("12.4")
async def test_the_index_follows_when_it_is_quiet_and_begins_with_what_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing_module, "QUIET_S", 0.01)
    async with writing(tmp_path) as room:
        say(room.begin(), *["left by an earlier process"] * 130)
        await room.journal.flush()
        indexing = Indexing(room.journal, TextIndex(room.database.reader), lag_s=60)
        await indexing.start()
        await reached(room, 130)
        say(room.begin(), "said later")
        await room.journal.flush()
        await reached(room, 131)
        assert indexing.problem is None
        await indexing.close()


@pytest.mark.spec("12.4")
async def test_the_index_is_at_most_its_lag_behind_while_facts_keep_coming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing_module, "QUIET_S", 3600.0)
    async with writing(tmp_path) as room:
        indexing = Indexing(room.journal, TextIndex(room.database.reader), lag_s=0.02)
        await indexing.start()
        say(room.begin(), "one", "two")
        await room.journal.flush()
        await reached(room, 2)
        await indexing.close()


@pytest.mark.spec("12.4", "12.3")
async def test_an_index_that_fails_is_tried_again_and_searches_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing_module, "QUIET_S", 0.01)
    monkeypatch.setattr(indexing_module, "FAILED_S", 0.05)
    async with writing(tmp_path) as room:
        with writing_connection(room.database.location, "OFF", 1000) as connection, connection.begin():
            connection.exec_driver_sql("ALTER TABLE messages_text RENAME TO messages_gone")
        indexing = Indexing(room.journal, TextIndex(room.database.reader), lag_s=60)
        await indexing.start()
        say(room.begin(), "the needle")
        await room.journal.flush()
        await until(lambda: indexing.problem is not None)
        assert "not kept up" in str(indexing.problem)
        page = await SqlAuditStore(room.database.reader).messages("default", MessageFilter(text="needle"))
        assert len(page.items) == 1
        with writing_connection(room.database.location, "OFF", 1000) as connection, connection.begin():
            connection.exec_driver_sql("ALTER TABLE messages_gone RENAME TO messages_text")
        await reached(room, 1)
        await until(lambda: indexing.problem is None)
        await indexing.close()


@pytest.mark.spec("12.4", "12.3")
async def test_a_text_that_is_too_damaged_to_be_indexed_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing_module, "QUIET_S", 0.01)
    monkeypatch.setattr(indexing_module, "FAILED_S", 0.05)
    async with writing(tmp_path) as room:
        say(room.begin(), "the needle")
        await room.journal.flush()

        def become(content: str) -> None:
            with writing_connection(room.database.location, "OFF", 1000) as connection, connection.begin():
                connection.exec_driver_sql(f"UPDATE messages SET content = {content}")

        become("CAST(X'ff00fe' AS TEXT)")
        indexing = Indexing(room.journal, TextIndex(room.database.reader), lag_s=60)
        await indexing.start()
        await until(lambda: indexing.problem is not None)
        become("'mended'")
        await until(lambda: indexing.problem is None)
        await reached(room, 1)
        await indexing.close()


class Asked(TextIndex):
    """Counts how often the indexer asked whether something is to be merged away, and what it was told last."""

    times = 0
    said: bool | None = None

    async def purging(self) -> bool:
        """See `TextIndex.purging`."""
        self.times += 1
        self.said = await super().purging()
        return self.said


@pytest.mark.spec("12.4", "12.3")
async def test_an_index_in_which_a_search_met_damage_is_made_anew_without_any_fact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing_module, "QUIET_S", 0.01)
    monkeypatch.setattr(indexing_module, "LOOK_S", 0.05)
    async with writing(tmp_path) as room:
        say(room.begin(), *["the needle"] * 60)
        await room.journal.flush()
        index = Asked(room.database.reader)
        indexing = Indexing(room.journal, index, lag_s=60)
        await indexing.start()
        await until(lambda: index.times)  # it has nothing left to do
        with writing_connection(room.database.location, "OFF", 1000) as connection, connection.begin():
            connection.exec_driver_sql("DELETE FROM messages_text_data WHERE id > 10")
        assert await index.candidates("default", "needle") is None
        async with asyncio.timeout(WAIT_S):
            while len(await index.candidates("default", "needle") or ()) != 60 or await upto(room) != 60:
                await asyncio.sleep(0.01)
        await until(lambda: not index.damaged)
        await indexing.close()


@pytest.mark.spec("12.4", "12.5", "14.2")
async def test_what_retention_erased_leaves_the_index_without_any_fact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing_module, "QUIET_S", 0.01)
    async with writing(tmp_path) as room:
        talk = room.begin()
        say(talk, *["the needle"] * 60)
        ended(talk)
        talk.record(lambda facts, _: facts.closed())
        await room.journal.flush()
        index = Asked(room.database.reader)
        indexing = Indexing(room.journal, index, lag_s=60)
        await indexing.start()
        await until(lambda: index.times)
        await retaining(room, hours=24, ago_h=25).round()
        async with asyncio.timeout(WAIT_S):
            while await index.erased() or await index.candidates("default", "needle") != []:
                await asyncio.sleep(0.01)
        await indexing.close()


@pytest.mark.spec("12.4", "12.6")
async def test_the_index_holds_what_was_masked_and_never_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing_module, "QUIET_S", 0.01)
    secret = "zqxjkv-wwyyqq-771177"
    async with writing(tmp_path, masker=ValueMasker([secret])) as room:
        indexing = Indexing(room.journal, TextIndex(room.database.reader), lag_s=60)
        await indexing.start()
        say(room.begin(), f"the key is {secret}, keep it")
        await room.journal.flush()
        await reached(room, 1)
        await indexing.close()
        audit, index = SqlAuditStore(room.database.reader), TextIndex(room.database.reader)
        assert await index.candidates("default", secret) == []
        assert await index.candidates("default", "zqxj") == []
        (row,) = (await audit.messages("default", MessageFilter(text="the key is [masked]"))).items
        assert secret not in row["content"]
        blocks = await room.database.reader.rows(text("SELECT block FROM messages_text_data"))
        assert not any(b"zqx" in row["block"] for row in blocks)


@pytest.mark.spec("12.4", "14.2")
async def test_what_was_erased_is_merged_away_and_after_that_the_index_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing_module, "QUIET_S", 0.01)
    async with writing(tmp_path) as room:
        index = TextIndex(room.database.reader)
        asked = Asked(room.database.reader)
        indexing = Indexing(room.journal, asked, lag_s=60)
        await indexing.start()
        talks = [room.begin() for _ in range(3)]
        for talk in talks:
            say(talk, *["words"] * 50)
        await reached(room, 150)

        async def erased(talk: Talk) -> None:
            talk.record(lambda facts, _: facts.closed("deleted"))
            await room.journal.flush()

        await erased(talks[0])
        async with asyncio.timeout(WAIT_S):
            while await index.erased() or await index.purging() or asked.said:
                await asyncio.sleep(0.005)
        monkeypatch.setattr(indexing_module, "PURGE_REST", 1e9)
        await erased(talks[1])
        async with asyncio.timeout(WAIT_S):
            while await index.erased() or await index.purging() or asked.said:
                await asyncio.sleep(0.005)
        last = room.begin()
        say(last, "one more")
        await reached(room, 151)  # so the indexer has left the merging
        await erased(talks[2])
        for _ in range(3):
            before = asked.times
            last.record()
            await room.journal.flush()
            await until(lambda before=before: asked.times > before)  # type: ignore[misc]
        assert not await index.erased()
        assert await index.purging(), "it is wanted, and waits"
        await indexing.close()


# ── retention ───────────────────────────────────────────────────────────────────────────────────────────────────


async def seqs(room: Room, talk: Talk) -> list[int]:
    return [seq for seq, _ in await room.stored(talk.session)]


def ended(talk: Talk) -> None:
    talk.record(lambda facts, run: facts.ended(run))


def retaining(room: Room, *, hours: float, ago_h: float, task_hours: float = 1) -> Retaining:
    """Retention at a moment so many hours after now."""
    store = SqlRetentionStore(room.database.reader)
    return Retaining(
        room.journal, store, hours=hours, task_hours=task_hours, clock=lambda: now_us() + round(ago_h * HOUR)
    )


@pytest.mark.spec("12.5")
async def test_retention_removes_the_old_and_a_session_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        talks = [room.begin() for _ in range(4)]
        for talk in talks:
            say(talk, *["words"] * 120)
        for talk in talks[:3]:
            ended(talk)
        await room.journal.flush()
        with writing_connection(room.database.location, "OFF", 1000) as connection, connection.begin():
            spoiled = {"id": talks[1].session.id}
            connection.execute(text("UPDATE events SET hash = data_digest WHERE session_id = :id AND seq = 9"), spoiled)
        assert await retaining(room, hours=24, ago_h=23).round() == 0
        assert room.journal.recent.after(talks[0].session.id, 0, 3) is not None
        assert await retaining(room, hours=24, ago_h=25).round() == 2 * 122
        assert [len(await seqs(room, talk)) for talk in talks] == [1, 123, 1, 122]
        assert await room.log.oldest("default", talks[0].session.id) == 123
        assert room.journal.recent.after(talks[0].session.id, 0, 3) is None, "memory does not say what the log forgot"
        assert await retaining(room, hours=24, ago_h=25).round() == 0
        say(talks[0], "and on")
        await room.journal.flush()
        assert await seqs(room, talks[0]) == [123, 124]


@pytest.mark.spec("12.5", "11.3")
async def test_memory_does_not_say_what_the_log_forgot_before_it_came_to_a_fault(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        talk = room.begin()
        say(talk, *["words"] * 150)
        ended(talk)
        await room.journal.flush()
        with writing_connection(room.database.location, "OFF", 1000) as connection, connection.begin():
            spoiled = {"id": talk.session.id}
            connection.execute(
                text("UPDATE events SET hash = data_digest WHERE session_id = :id AND seq = 120"), spoiled
            )
        assert room.journal.recent.after(talk.session.id, 0, 3) is not None
        assert await retaining(room, hours=24, ago_h=25).round() == 0
        assert (await seqs(room, talk))[0] == 101
        assert room.journal.recent.after(talk.session.id, 0, 3) is None


class Failing(SqlRetentionStore):
    """Fails while `wrong` says so; once somebody asked what is due, the session gets work again."""

    wrong: Exception | None = None
    asked = 0
    again: Callable[[], object] | None = None

    async def sessions(self, after: tuple[str, str], limit: int) -> Sequence[Any]:
        """See `RetentionStore.sessions`."""
        self.asked += 1
        if self.wrong is not None:
            raise self.wrong
        return await super().sessions(after, limit)

    async def due(self, session: Mapping[str, Any], before: int, tasks_before: int) -> Due | None:
        """See `RetentionStore.due`."""
        found = await super().due(session, before, tasks_before)
        if self.again is not None:
            self.again()
        return found


@pytest.mark.spec("12.5")
@pytest.mark.parametrize("wrong", [RuntimeError("a fault of ours"), Unavailable("malformed", code=DAMAGED)])
async def test_retention_goes_on_after_an_error_of_any_kind_and_tells_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wrong: Exception
) -> None:
    monkeypatch.setattr(retaining_module, "FIRST_S", 0.0)
    monkeypatch.setattr(retaining_module, "EVERY_S", 0.01)
    async with writing(tmp_path) as room:
        talk = room.begin()
        say(talk, "words")
        ended(talk)
        await room.journal.flush()
        store = Failing(room.database.reader)
        store.wrong = wrong
        late = Retaining(room.journal, store, hours=24, task_hours=1, clock=lambda: now_us() + 25 * HOUR)
        late.start()
        await until(lambda: store.asked > 1)
        assert "retention did not get to all sessions" in caplog.text
        assert len(await seqs(room, talk)) > 1
        store.wrong = None
        async with asyncio.timeout(WAIT_S):
            while len(await seqs(room, talk)) > 1:
                await asyncio.sleep(0.005)
        await late.close()


@pytest.mark.spec("12.5")
async def test_what_a_step_did_not_remove_is_not_counted(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        talk = room.begin()
        say(talk, "words")
        ended(talk)
        await room.journal.flush()
        store = Failing(room.database.reader)
        store.again = lambda: talk.record(lambda facts, _: facts.queued(facts.run()))
        late = Retaining(room.journal, store, hours=24, task_hours=1, clock=lambda: now_us() + 25 * HOUR)
        assert await late.round() == 0
        await room.journal.flush()
        assert (await seqs(room, talk))[0] == 1


@pytest.mark.spec("12.5", "9.2")
async def test_tasks_of_a_closed_session_stay_as_long_as_tasks_are_kept_and_nothing_else_does(tmp_path: Path) -> None:
    async with writing(tmp_path) as room:
        talk = room.begin()
        say(talk, "words")
        task = talk.facts.run(parent=talk.run, handoff_id="ho_1")
        talk.record(lambda facts, run: facts.handoff(run, "ho_1", background=True))
        talk.record(lambda facts, _: facts.queued(task))
        talk.record(lambda facts, _: facts.ended(task))
        talk.record(lambda facts, run: facts.handed_back(run, "ho_1", [task.id]))
        ended(talk)
        talk.record(lambda facts, _: facts.closed())
        await room.journal.flush()

        async def left() -> list[str]:
            found = await room.database.reader.rows(text("SELECT id FROM runs UNION ALL SELECT id FROM handoffs"))
            return [row["id"] for row in found]

        assert len(await left()) == 3
        await retaining(room, hours=24, ago_h=25, task_hours=100).round()
        assert (await left(), await seqs(room, talk)) == ([task.id, "ho_1"], [9])
        await retaining(room, hours=24, ago_h=25).round()
        assert await left() == []
