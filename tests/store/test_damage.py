"""A file that is damaged in one place: what belongs there waits and nothing stands in for it, the rest is stored."""

from pathlib import Path

import pytest
from sqlalchemy import text

from app.sessions.ports import TransientStoreError
from app.store.database import Database
from tests.store.conftest import Store
from tests.store.facts import Facts, replaced
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


@pytest.mark.spec("12.3", "11.2")
async def test_a_damaged_page_keeps_its_sessions_and_no_others(file: Path) -> None:
    database = Database(file)
    await database.open()
    store = Store(database)
    old = Facts()
    store.stored(old.created(), *old.whole_run(old.run()))
    for _ in range(60):
        other = Facts()
        store.stored(other.created(), *other.whole_run(other.run()))
    broken(store, file, old)
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
        await database.reader.rows(text(through))
    with pytest.raises(TransientStoreError, match="damaged"):
        await database.check()
    store.writer.close()
    await database.close()
