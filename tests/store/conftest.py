"""A store with the newest schema, on SQLite and on PostgreSQL."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text

from app.agent.events import Event, Write
from app.agent.ports import EventLog
from app.agent.run_ports import MemoryStore
from app.sessions.agents import AgentStore
from app.sessions.audit import AuditStore
from app.sessions.inbox import ApprovalStore
from app.sessions.keys import KeyStore
from app.sessions.ports import EventWriter, Rejected
from app.sessions.service import SessionStore
from app.sessions.tasks import TaskStore
from app.store.agents import SqlAgentStore
from app.store.approvals import SqlApprovalStore
from app.store.database import Database
from app.store.events import SqlEventLog
from app.store.keys import SqlKeyStore
from app.store.memories import SqlMemoryStore
from app.store.messages import SqlAuditStore
from app.store.runs import SqlRunStore
from app.store.tables import metadata
from app.store.tasks import SqlTaskStore
from tests.migrated import migrated
from tests.postgres import empty_postgres_url, postgres_server, postgres_url  # noqa: F401  fixtures
from tests.store.facts import replaced

AUDIT_KEY = b"k" * 32


class Store:
    """A database with its writer and everything that reads it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        # By the ports, so that the type checker holds the adapters against them.
        self.writer: EventWriter = database.writer(replaced, audit_key=AUDIT_KEY)
        self.log: EventLog = SqlEventLog(database.reader)
        self.runs: SessionStore = SqlRunStore(database.reader)
        self.memories: MemoryStore = SqlMemoryStore(database.reader)
        self.audit: AuditStore = SqlAuditStore(database.reader)
        self.approvals: ApprovalStore = SqlApprovalStore(database.reader)
        self.keys: KeyStore = SqlKeyStore(database.reader)
        self.agents: AgentStore = SqlAgentStore(database.reader)
        self.tasks: TaskStore = SqlTaskStore(database.reader)

    def write(self, *events: Event, writes: Sequence[Write] = ()) -> Sequence[Rejected]:
        """Store events as one batch."""
        return self.writer.write(events, writes)

    def stored(self, *events: Event, writes: Sequence[Write] = ()) -> None:
        """Store events as one batch, all of them."""
        rejected = self.writer.write(events, writes)
        assert not rejected, rejected

    async def rows(self, table: str, **equal: Any) -> list[dict[str, Any]]:
        """The rows of a table whose columns have these values, by their key."""
        found = metadata.tables[table]
        wanted = [found.c[name] == value for name, value in equal.items()]
        return await self.database.reader.rows(select(found).where(*wanted).order_by(*found.primary_key.columns))

    async def row(self, table: str, **equal: Any) -> dict[str, Any]:
        """The one such row."""
        (row,) = await self.rows(table, **equal)
        return row

    async def number(self, statement: str) -> int:
        """The one number that a statement gives."""
        (row,) = await self.database.reader.rows(text(statement))
        return int(next(iter(row.values())))


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for many tests, which only copy it."""
    path = tmp_path_factory.mktemp("schema") / "migrated.db"
    migrated(path)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A SQLite file with the newest schema and nothing in it."""
    migrated(tmp_path / "store.db")
    return tmp_path / "store.db"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def where(request: pytest.FixtureRequest) -> str:
    """Both kinds of database."""
    return str(request.getfixturevalue("file" if request.param == "sqlite" else "postgres_url"))


@pytest.fixture
async def store(where: str) -> AsyncIterator[Store]:
    """A store of either kind."""
    database = Database(where, synchronous="OFF", busy_timeout_ms=300)
    await database.open()
    world = Store(database)
    yield world
    world.writer.close()
    await database.close()


@pytest.fixture
async def sqlite_store(file: Path) -> AsyncIterator[Store]:
    """A store on SQLite."""
    database = Database(file, synchronous="OFF", busy_timeout_ms=300)
    await database.open()
    world = Store(database)
    yield world
    world.writer.close()
    await database.close()
