"""Which tools a server had when they were first seen: one that changes later, or comes later, is asked about.

Knows neither the protocol nor where pins are kept.
"""

from collections.abc import Mapping
from typing import Protocol

from app.tools.mcp_config import McpServer

CHANGED = "the MCP server changed this tool since it was first seen"
ADDED = "the MCP server added this tool after its tools were first seen"


class Pins(Protocol):
    """What was first seen, kept across restarts."""

    async def first(self, server: str, source: str) -> Mapping[str, str] | None:
        """Digests by tool; None: never seen from this source."""

    async def keep(self, server: str, source: str, digests: Mapping[str, str]) -> None:
        """They were seen first; returns when that is stored."""


class Forgetful:
    """`Pins` that last as long as the process."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Mapping[str, str]] = {}

    async def first(self, server: str, source: str) -> Mapping[str, str] | None:
        """See `Pins`."""
        return self._kept.get((server, source))

    async def keep(self, server: str, source: str, digests: Mapping[str, str]) -> None:
        """See `Pins`."""
        self._kept[server, source] = dict(digests)


async def reasons(pins: Pins, server: McpServer, digests: Mapping[str, str]) -> dict[str, str]:
    """Why a person is asked before calls of these tools, by tool. The first list of a source is taken as it is, and
    from a trusted server every list."""
    first = await pins.first(server.name, server.source)
    if first is None:
        await pins.keep(server.name, server.source, digests)
        return {}
    if server.trusted:
        return {}
    return {name: CHANGED if name in first else ADDED for name, digest in digests.items() if first.get(name) != digest}
