"""PostgreSQL behind something that holds, cuts and forgets connections: nobody waits for ever, nothing is lost."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from app.sessions.ports import TransientStoreError
from app.store import reader as reader_module
from app.store.database import Database
from app.store.guard import Guard
from app.store.writer import SqlWriter
from tests.postgres import Server
from tests.store.facts import Facts, replaced
from tests.trouble.kinds import TOXICS, poisoned
from tests.trouble.proxy import Proxy, State, proxied

WAIT_S = 30.0
SILENT_S = 0.3

pytestmark = [pytest.mark.postgres, pytest.mark.spec("12.1", "12.3")]


@pytest.fixture
async def proxy(postgres_server: Server) -> AsyncIterator[Proxy]:
    """A proxy in front of the server."""
    async with proxied(Path(postgres_server.url("x").partition("host=")[2]) / ".s.PGSQL.5432") as made:
        yield made


@pytest.fixture
async def database(proxy: Proxy, postgres_url: str) -> AsyncIterator[Database]:
    """A fresh database behind the proxy, with one reader."""
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    made = Database(f"postgresql://tester@127.0.0.1:{proxy.port}/{name}", readers=1)
    await made.open()
    yield made
    proxy.set(State())
    await made.close()


@pytest.mark.parametrize("toxic", [toxic for toxic in TOXICS if toxic.stops], ids=lambda toxic: toxic.name)
async def test_writer_and_reader_go_on_when_what_was_between_is_gone(
    proxy: Proxy, database: Database, monkeypatch: pytest.MonkeyPatch, toxic: object
) -> None:
    monkeypatch.setattr(reader_module, "SILENT_S", SILENT_S)
    writer = SqlWriter(database._connect, replaced, guard=Guard(SILENT_S, 0.02))
    facts = Facts()
    assert not await asyncio.to_thread(writer.write, [facts.created()])
    batch = facts.whole_run(facts.run())
    async with asyncio.timeout(WAIT_S):
        async with poisoned(proxy, toxic):  # type: ignore[arg-type]
            with pytest.raises(TransientStoreError):
                await asyncio.to_thread(writer.write, batch)
            with pytest.raises(TransientStoreError):
                await database.check()
        while True:  # a connection that is silent for a moment on a busy machine is broken off once more
            try:
                assert not await asyncio.to_thread(writer.write, batch)
                break
            except TransientStoreError:
                continue
        (row,) = await database.reader.rows(text("SELECT count(*) AS events FROM events"))
    assert row == {"events": facts.seq}
    writer.close()


async def test_a_read_over_a_connection_that_was_lost_in_between_is_answered(proxy: Proxy, database: Database) -> None:
    await database.check()
    proxy.cut()
    async with asyncio.timeout(WAIT_S):
        while proxy.connections:
            await asyncio.sleep(0.001)
        await database.check()
