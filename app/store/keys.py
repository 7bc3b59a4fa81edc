"""Finds API keys (`KeyStore`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, literal, select

from app.sessions.keys import KeyRecord
from app.store.reader import Reader
from app.store.tables import api_keys

_by_hash = select(api_keys).where(api_keys.c.hash == bindparam("hash"))
_every = select(api_keys).order_by(api_keys.c.id.desc())
_of_tenant = _every.where(api_keys.c.tenant_id == bindparam("tenant"))
_one = select(literal(1).label("one")).select_from(api_keys).limit(1)


class SqlKeyStore:
    """`KeyStore` over SQLAlchemy."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def find(self, key_hash: bytes) -> KeyRecord | None:
        """The key of this hash, of whatever tenant, revoked and expired ones too."""
        row = await self._reader.row(_by_hash, {"hash": key_hash})
        return None if row is None else _record(row)

    async def any(self) -> bool:
        """Whether any tenant has a key; revoked and expired ones count."""
        return await self._reader.row(_one) is not None

    async def list(self, tenant: str | None) -> Sequence[KeyRecord]:
        """All keys of a tenant, newest first; None: of every tenant, for the operator."""
        statement, wanted = (_every, None) if tenant is None else (_of_tenant, {"tenant": tenant})
        return [_record(row) for row in await self._reader.rows(statement, wanted)]


def _record(row: Mapping[str, Any]) -> KeyRecord:
    fields = dict(row)
    return KeyRecord(tenant=fields.pop("tenant_id"), scopes=tuple(fields.pop("scopes")), **fields)
