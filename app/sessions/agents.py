"""The agents of tenants as the store keeps them: the port that reads them back.

Knows neither the table nor what a definition means; rows are written through the journal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAgent:
    """One agent of a tenant. `version` counts its changes, from 1; `definition` is the JSON map of the definition."""

    tenant: str
    name: str
    version: int
    definition: Mapping[str, Any]


class AgentStore(Protocol):
    """Reads the agents of tenants."""

    async def all(self) -> Sequence[StoredAgent]:
        """The newest version of every agent of every tenant, by tenant and name."""

    async def version(self, tenant: str, name: str) -> int:
        """The highest version that an agent ever had, also when it is deleted now; 0: there was none."""
