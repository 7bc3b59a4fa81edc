"""The part of the composition root that is about MCP servers."""

import os
from collections.abc import Mapping

from app.agent.tools import ToolShelf
from app.sessions.journal import Journal
from app.settings import Settings
from app.settings_mcp import McpServerEntry, filled
from app.settings_secrets import header_secrets, is_secret_name, url_secrets
from app.store.pins import SqlPins
from app.store.reader import Reader
from app.tools.mcp_config import McpServer
from app.tools.mcp_names import group_of
from app.tools.mcp_servers import McpServers


def mcp_servers(settings: Settings, shelf: ToolShelf, journal: Journal, rows: Reader) -> McpServers:
    """All servers of the settings, none of them begun. Raises ValueError that names what to change."""
    configured = [server_of(name, entry, os.environ) for name, entry in settings.mcp.servers.items()]
    return McpServers(shelf, SqlPins(rows, journal), configured)


def server_of(name: str, entry: McpServerEntry, environment: Mapping[str, str]) -> McpServer:
    """A server with its secrets. Raises ValueError that names what to change. For `McpServers.add`, at any time."""
    where = f"mcp.servers.{name}"
    fields = entry.model_dump(exclude={"env", "headers", "args", "pollers", "tools"})
    return McpServer(
        name=name,
        **fields,
        args=tuple(entry.args),
        pollers=tuple(entry.pollers),
        tools=None if entry.tools is None else tuple(entry.tools),
        environment=filled(entry.env, environment, f"{where}.env"),
        headers=filled(entry.headers, environment, f"{where}.headers"),
    )


def mcp_groups(settings: Settings) -> frozenset[str]:
    """What stands for all tools of each server: these names are known before the servers are."""
    return frozenset(group_of(name) for name in settings.mcp.servers)


def mcp_secrets(settings: Settings) -> list[str]:
    """What must appear in no sink: headers and variables that hold a secret by their names, whatever comes out of our
    environment, and what URLs carry."""
    found: list[str] = []
    for entry in settings.mcp.servers.values():
        env = {name: _tolerant(value) for name, value in entry.env.items()}
        headers = {name: _tolerant(value) for name, value in entry.headers.items()}
        found += [value for name, value in env.items() if is_secret_name(name) or value != entry.env[name]]
        found += [value for name, value in headers.items() if value != entry.headers[name]]
        found += [*header_secrets(headers), *url_secrets(entry.url or "")]
    return found


def _tolerant(value: str) -> str:
    try:
        return filled({"": value}, os.environ, "")[""]
    except ValueError:  # said when the server is made
        return value
