"""A file that is damaged in one place: what belongs there waits and nothing stands in for it, the rest is stored."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from app.agent import events as kinds
from app.agent import faults
from app.agent.events import Write
from app.sessions.audit import MessageFilter
from app.sessions.ports import TransientStoreError
from app.store import events as events_module
from app.store.database import Database, writing_connection
from tests.store.conftest import Store
from tests.store.facts import Facts, replaced
from tests.store.test_writer import key_row
from tests.trouble import damage

INDEX = "ix_messages_session"


def broken(store: Store, path: Path, facts: Facts) -> None:
    """Destroy the page where the messages of a session are found; the writer does not know it from before."""
    store.writer.close()
    pages = damage.leaves(path, INDEX)
    page = next(page for page in pages if damage.holds(path, page, facts.session.id))
    assert page != pages[-1], "new sessions have another one"
    damage.destroy(path, page)
    store.writer = store.database.writer(replaced)


def passing(*, at: int) -> None:
    """The commit with that number, from 1, meets an error that passes."""
    left = iter(range(at - 1))

    def commit() -> None:
        if next(left, None) is None:
            raise TransientStoreError("database is locked")

    faults.arm("store.commit", commit)


@pytest.fixture
async def damaged(file: Path) -> AsyncIterator[tuple[Store, Facts]]:
    """A store that is broken in the place of one session, which goes on to speak, and that session."""
    database = Database(file)
    await database.open()
    store = Store(database)
    old = Facts()
    store.stored(old.created(), *old.whole_run(old.run()))
    for _ in range(60):
        other = Facts()
        store.stored(other.created(), *other.whole_run(other.run()))
    broken(store, file, old)
    try:
        yield store, old
    finally:
        faults.disarm()
        store.writer.close()
        await database.close()


@pytest.mark.spec("12.3", "11.2")
async def test_a_damaged_page_keeps_its_sessions_and_no_others(damaged: tuple[Store, Facts]) -> None:
    store, old = damaged
    late, new = old.whole_run(old.run()), Facts()
    whole = [new.created(), *new.whole_run(new.run())]
    rejected = store.write(*late[:3], *whole, *late[3:])
    assert [(item.event, item.replacement, item.damaged) for item in rejected] == [(e, None, True) for e in late]
    assert "malformed" in rejected[0].reason
    assert await store.log.head("default", new.session.id) == len(whole)
    assert await store.log.head("default", old.session.id) == late[0].seq - 1, "nothing stands in for what waits"
    through = (
        f"SELECT id FROM messages INDEXED BY {INDEX} WHERE tenant_id = 'default' AND session_id = '{old.session.id}'"
    )
    with pytest.raises(TransientStoreError, match=r"docs/operations.md"):
        await store.database.reader.rows(text(through))
    with pytest.raises(TransientStoreError, match="damaged"):
        await store.database.check()


@pytest.mark.spec("12.3", "11.2")
async def test_a_batch_that_met_damage_and_then_a_passing_error_is_stored_once_when_it_comes_again(
    damaged: tuple[Store, Facts],
) -> None:
    store, old = damaged
    late = old.whole_run(old.run())
    news = [Facts() for _ in range(3)]
    first, second, third = ([new.created(), *new.whole_run(new.run())] for new in news)
    rows = [Write(table="api_keys", values=key_row(name)) for name in ("one", "two")]
    for commit in (2, 3, 5):  # of those two sessions, the last session and the last row
        passing(at=commit)
        with pytest.raises(TransientStoreError, match="locked"):
            store.write(*first, *second, *late, *third, writes=rows)
        faults.disarm()
    rejected = store.write(*first, *second, *late, *third, writes=rows)
    assert [item.event for item in rejected] == late
    for new in news:
        assert await store.log.head("default", new.session.id) == new.seq
        assert len(await store.rows("messages", session_id=new.session.id)) == 5
    assert len(await store.rows("api_keys")) == 2


@pytest.mark.spec("12.3", "11.2")
async def test_a_bad_row_in_a_batch_that_meets_damage_costs_itself_alone(damaged: tuple[Store, Facts]) -> None:
    store, old = damaged
    late, new = old.whole_run(old.run()), Facts()
    run = new.run()
    created, queued, empty = new.created(), new.queued(run), new.event(run, kinds.MESSAGE, {})
    rejected = store.write(created, queued, empty, *late, new.ended(run))
    assert [(item.event, item.damaged) for item in rejected] == [(empty, False), *((event, True) for event in late)]
    assert await store.log.head("default", new.session.id) == new.seq


@pytest.mark.spec("12.3", "11.2")
@pytest.mark.parametrize("change", ["next_seq = 'many'", "next_seq = 0", "head_hash = 'text'"])
async def test_a_session_row_that_says_what_nobody_wrote_costs_its_own_session_alone(
    sqlite_store: Store, change: str
) -> None:
    store, broken, whole = sqlite_store, Facts(), Facts()
    store.stored(broken.created(), whole.created())
    store.writer.close()
    with writing_connection(store.database.location, "OFF", 1000) as connection, connection.begin():
        connection.execute(text(f"UPDATE sessions SET {change} WHERE id = :id"), {"id": broken.session.id})
    store.writer = store.database.writer(replaced)
    late = [broken.idle(), broken.updated(title="new")]
    rejected = store.write(*late, whole.idle())
    assert [(item.event, item.replacement, item.damaged) for item in rejected] == [(e, None, True) for e in late]
    assert broken.session.id in rejected[0].reason
    assert await store.log.head("default", whole.session.id) == 2


@pytest.mark.spec("12.3", "12.4")
@pytest.mark.parametrize(
    ("change", "says"),
    [("content = CAST(X'7365637265ff74' AS TEXT)", "UTF-8"), ("tool_calls = '[{'", "JSON")],
)
async def test_a_text_that_was_damaged_is_told_as_damage_and_not_shown(
    sqlite_store: Store, change: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, facts = sqlite_store, Facts()
    store.stored(facts.created(), *facts.whole_run(facts.run()))
    await store.database.check()
    with writing_connection(store.database.location, "OFF", 1000) as connection, connection.begin():
        connection.execute(text(f"UPDATE messages SET {change} WHERE role = 'assistant'"))
    with pytest.raises(TransientStoreError, match=rf"{says}.*docs/operations.md"):
        await store.audit.messages("default", MessageFilter())
    with pytest.raises(TransientStoreError, match=says):
        await store.database.check()
    assert "secre" not in caplog.text


@pytest.mark.spec("11.2", "12.3")
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        "data = X'7b7d'",
        "data = 'text'",
        "data_digest = X'00'",
        "envelope = X'7b'",
        "envelope = CAST(replace(CAST(envelope AS TEXT), 'lead', CAST(X'6cff6164' AS TEXT)) AS BLOB)",
    ],
)
async def test_an_event_that_is_not_what_was_written_is_shown_to_nobody(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch, change: str, large: bool
) -> None:
    store, facts = sqlite_store, Facts()
    store.stored(facts.created(), *facts.whole_run(facts.run()))
    monkeypatch.setattr(events_module, "AT_ONCE", 0 if large else events_module.AT_ONCE)
    assert len(await store.log.page("default", facts.session.id, after=0)) == facts.seq
    with writing_connection(store.database.location, "OFF", 1000) as connection, connection.begin():
        connection.execute(text(f"UPDATE events SET {change} WHERE seq = 4"))
    assert len(await store.log.page("default", facts.session.id, after=0, upto=3)) == 3
    for _ in range(2):
        with pytest.raises(TransientStoreError, match=f"event 4 of session {facts.session.id}.*docs/operations.md"):
            await store.log.page("default", facts.session.id, after=0)
        with pytest.raises(TransientStoreError, match="event 4"):
            await store.database.check()
