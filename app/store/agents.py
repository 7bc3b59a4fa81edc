"""Reads the agents of tenants back (`AgentStore`)."""

from collections.abc import Sequence

from sqlalchemy import bindparam, func, select

from app.sessions.agents import StoredAgent
from app.store.reader import Reader
from app.store.tables import agents

_newest = select(agents.c.tenant_id, agents.c.name, func.max(agents.c.version).label("version")).group_by(
    agents.c.tenant_id, agents.c.name
)
_last = _newest.subquery()
_all = (
    select(agents)
    .join(
        _last,
        (agents.c.tenant_id == _last.c.tenant_id)
        & (agents.c.name == _last.c.name)
        & (agents.c.version == _last.c.version),
    )
    .where(agents.c.deleted_at.is_(None))
    .order_by(agents.c.tenant_id, agents.c.name)
)

_version = select(func.max(agents.c.version).label("version")).where(
    agents.c.tenant_id == bindparam("tenant"), agents.c.name == bindparam("name")
)


class SqlAgentStore:
    """`AgentStore` over SQLAlchemy."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def all(self) -> Sequence[StoredAgent]:
        """The newest version of every agent of every tenant that was not deleted, by tenant and name."""
        rows = await self._reader.rows(_all)
        return [
            StoredAgent(tenant=row["tenant_id"], name=row["name"], version=row["version"], definition=row["definition"])
            for row in rows
        ]

    async def version(self, tenant: str, name: str) -> int:
        """The highest version that an agent ever had; 0: there was none."""
        row = await self._reader.row(_version, {"tenant": tenant, "name": name})
        return (row["version"] if row is not None else None) or 0
