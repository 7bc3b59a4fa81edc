"""API keys: what is kept of them, and the port that finds them (spec 17.2).

The key itself is shown once and never stored: 256 random bits need no slow hash, so a row holds their SHA-256.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from app.agent.events import Write

TABLE = "api_keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key without the key. `hash`: SHA-256 of the whole key, 32 bytes. Times in µs; `expires_at` None: never."""

    id: str
    tenant: str
    name: str
    hash: bytes
    scopes: tuple[str, ...]
    created_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    last_used_at: int | None = None

    def valid(self, now: int) -> bool:
        """Whether it opens anything at `now` (µs)."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def stored(self) -> Write:
        """The row as it goes through the journal; a row of this id is replaced."""
        values = {
            "tenant_id": self.tenant,
            "id": self.id,
            "name": self.name,
            "hash": self.hash,
            "scopes": list(self.scopes),
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "revoked_at": self.revoked_at,
            "last_used_at": self.last_used_at,
        }
        return Write(table=TABLE, values=values, key=("id",))


class KeyStore(Protocol):
    """Finds keys; they are written through the journal."""

    async def find(self, key_hash: bytes) -> KeyRecord | None:
        """The key of this hash, revoked and expired ones too; the one question without a tenant, since its answer is
        the tenant."""

    async def any(self) -> bool:
        """Whether any tenant has a key; revoked and expired ones count."""

    async def list(self, tenant: str | None) -> Sequence[KeyRecord]:
        """All keys of a tenant, newest first; None: of every tenant, for the operator."""
