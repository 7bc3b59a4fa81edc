"""Reads idempotency keys back (`IdempotencyStore`)."""

from collections.abc import Sequence

from sqlalchemy import bindparam, select

from app.sessions.idempotency import Kept
from app.store.reader import Reader
from app.store.tables import idempotency_keys as keys

_one = select(keys.c.route, keys.c.body_digest, keys.c.session_id, keys.c.body).where(
    keys.c.tenant_id == bindparam("tenant"), keys.c.key == bindparam("name"), keys.c.expires_at > bindparam("now")
)
_expired = (
    select(keys.c.key, keys.c.expires_at)
    .where(keys.c.tenant_id == bindparam("tenant"), keys.c.expires_at <= bindparam("now"))
    .order_by(keys.c.expires_at)
    .limit(bindparam("limit"))
)


class SqlIdempotencyStore:
    """`IdempotencyStore` over SQLAlchemy."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def find(self, tenant: str, name: str, now: int) -> Kept | None:
        """What a key stands for."""
        row = await self._reader.row(_one, {"tenant": tenant, "name": name, "now": now})
        if row is None:
            return None
        return Kept(
            route=row["route"],
            digest=bytes(row["body_digest"]),
            session_id=row["session_id"],
            answer=bytes(row["body"]),
        )

    async def expired(self, tenant: str, now: int, limit: int) -> Sequence[tuple[str, int]]:
        """Keys whose time ran out, the oldest first."""
        rows = await self._reader.rows(_expired, {"tenant": tenant, "now": now, "limit": limit})
        return [(row["key"], row["expires_at"]) for row in rows]
