"""The part of the composition root that is about MCP servers."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from app.agent.definition import OwnServer
from app.agent.tools import ToolShelf
from app.masking import ValueMasker
from app.sessions.journal import Journal
from app.settings import Settings
from app.settings_mcp import McpServerEntry, filled
from app.settings_secrets import header_secrets, is_secret_name, url_secrets
from app.store.pins import SqlPins
from app.store.reader import Reader
from app.tools.mcp_config import McpServer
from app.tools.mcp_names import group_of
from app.tools.mcp_servers import McpServers

log = logging.getLogger(__name__)

_TRANSPORTS = {"stdio": "command", "http": "url", "streamable-http": "url"}  # of other programs' entries


def mcp_servers(
    settings: Settings, shelf: ToolShelf, journal: Journal, rows: Reader, masker: ValueMasker
) -> McpServers:
    """All servers of the settings, none of them begun. Raises ValueError that names what to change."""
    configured = [server_of(name, entry, os.environ) for name, entry in settings.mcp.servers.items()]
    return McpServers(shelf, SqlPins(rows, journal), configured, masker=masker)


def server_of(
    name: str, entry: McpServerEntry, environment: Mapping[str, str], *, where: str = "", private: bool = False
) -> McpServer:
    """A server with its secrets. Raises ValueError that names what to change. For `McpServers.add`, at any time."""
    where = where or f"mcp.servers.{name}"
    fields = entry.model_dump(exclude={"env", "headers", "args", "pollers", "tools"})
    return McpServer(
        name=name,
        **fields,
        private=private,
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
    return [secret for entry in settings.mcp.servers.values() for secret in _secrets(entry)]


def _secrets(entry: McpServerEntry) -> list[str]:
    env = {name: _tolerant(value) for name, value in entry.env.items()}
    headers = {name: _tolerant(value) for name, value in entry.headers.items()}
    found = [value for name, value in env.items() if is_secret_name(name) or value != entry.env[name]]
    found += [value for name, value in headers.items() if value != entry.headers[name]]
    return [*found, *header_secrets(headers), *url_secrets(entry.url or "")]


def _tolerant(value: str) -> str:
    try:
        return filled({"": value}, os.environ, "")[""]
    except ValueError:  # said when the server is made
        return value


# ── those that agent files bring along ──────────────────────────────────────────────────────────────────────────


def own_server_problem(own: OwnServer) -> str | None:
    """Why one cannot be begun here, or None."""
    try:
        _own_server(own)
    except ValueError as error:
        return str(error)
    return None


class OwnServers:
    """Has those servers running that agent files in force bring along. `learn` is told their secrets before they are
    begun."""

    def __init__(
        self,
        servers: McpServers,
        wanted: Callable[[], Sequence[OwnServer]],
        learn: Callable[[Iterable[str]], None] = lambda secrets: None,
    ) -> None:
        self._servers = servers
        self._wanted = wanted
        self._learn = learn
        self._begun: dict[str, McpServer] = {}

    async def settle(self) -> None:
        """End those that nobody brings along any more, or not as they are, and begin the others; one at a time."""
        wanted = {own.name: own for own in self._wanted()}
        made: dict[str, McpServer] = {}
        for name, own in wanted.items():
            try:
                made[name] = _own_server(own)
            except ValueError as error:  # said of the file as well
                log.error("the MCP server %s of an agent file cannot be begun: %s", name, error)
        gone = [name for name, server in self._begun.items() if made.get(name) != server]
        await asyncio.gather(*(self._servers.remove(name) for name in gone))
        self._begun = {name: server for name, server in self._begun.items() if name not in gone}
        for name, server in made.items():
            if name not in self._begun:
                self._learn(_secrets(_entry(wanted[name])))
                self._servers.add(server)
                self._begun[name] = server


def _own_server(own: OwnServer) -> McpServer:
    return server_of(own.name, _entry(own), os.environ, where=own.name, private=True)


def _entry(own: OwnServer) -> McpServerEntry:
    """Raises ValueError in one line."""
    given: dict[str, Any] = dict(own.entry)
    kind = given.pop("type", None)
    if kind is not None and not given.get(_TRANSPORTS.get(str(kind), "")):
        raise ValueError(f"type {str(kind)[:40]!r} cannot be used: it is stdio with a command, or http with a url")
    try:
        return McpServerEntry(**given)
    except ValidationError as error:  # its text holds the values, which may be secrets
        found = error.errors(include_url=False, include_input=False, include_context=False)
        told = (": ".join([".".join(map(str, each["loc"])), each["msg"]]).removeprefix(": ") for each in found[:3])
        raise ValueError("; ".join(told)) from None
