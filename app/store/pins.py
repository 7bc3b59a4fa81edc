"""Keeps which tools MCP servers had when they were first seen."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from sqlalchemy import bindparam, select

from app.agent.events import Write
from app.agent.ids import now_us
from app.store.reader import Reader
from app.store.tables import mcp_pins

_TENANT = "default"  # servers are the operator's: all tenants have the same ones
_WHOLE = ""  # the row that says that a list was stored to its end
_of_source = select(mcp_pins.c.tool, mcp_pins.c.digest).where(
    mcp_pins.c.tenant_id == bindparam("tenant"),
    mcp_pins.c.server == bindparam("server"),
    mcp_pins.c.source == bindparam("source"),
)


class _WritesRows(Protocol):
    async def write(self, write: Write) -> None:
        """Store a row; returns after the commit."""


class SqlPins:
    """The first list of each source, by tool."""

    def __init__(self, reader: Reader, journal: _WritesRows) -> None:
        self._reader = reader
        self._journal = journal

    async def first(self, server: str, source: str) -> Mapping[str, str] | None:
        """Digests by tool; None: never seen from this source."""
        rows = await self._reader.rows(_of_source, {"tenant": _TENANT, "server": server, "source": source})
        found = {str(row["tool"]): str(row["digest"]) for row in rows}
        return found if found.pop(_WHOLE, None) is not None else None

    async def keep(self, server: str, source: str, digests: Mapping[str, str]) -> None:
        """They were seen first; returns when that is stored."""
        at = now_us()
        rows = [
            Write(
                table=mcp_pins.name,
                values={
                    "tenant_id": _TENANT,
                    "server": server,
                    "source": source,
                    "tool": tool,
                    "digest": digest,
                    "created_at": at,
                },
                key=("server", "source", "tool"),
            )
            for tool, digest in digests.items()
        ]
        await asyncio.gather(*(self._journal.write(row) for row in rows))
        whole = {"tenant_id": _TENANT, "server": server, "source": source, "tool": _WHOLE, "digest": ""}
        await self._journal.write(
            Write(table=mcp_pins.name, values={**whole, "created_at": at}, key=("server", "source", "tool"))
        )
