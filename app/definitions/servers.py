"""The MCP servers of a definition: names of configured ones, and those that an agent file brings along for itself.

Nothing is begun here, and whether one can be is told by whoever begins it (spec 10.5).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.agent.definition import OwnServer
from app.agent.tools import GROUPED
from app.definitions.importpaths import TRUST
from app.definitions.reading import MAX_NAMES, Reading, is_scalar, is_unset, shown, too_many
from app.definitions.toolnames import listed, pieces_of, squeezed

MAX_OWN = 20  # programs that one file can have begun
_LEFT_OUT = "it is left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Whose tools a definition has; `own`: those of them that it brings along."""

    names: tuple[str, ...]
    own: tuple[OwnServer, ...] = ()


def read_servers(reading: Reading, key: str, value: Any) -> Servers | None:
    """Names (`[files]`), or the map of other programs: names with how each is begun; a list may hold both. Names that a
    file brings along are known to it from then on."""
    found = _entries(reading, key, value)
    if found is None or too_many(reading, key, len(found), MAX_NAMES, "names"):
        return None
    if reading.strict and any(found.values()):
        reading.error(
            key,
            f"{key} begins servers, which only agent files of the operator may do: name ones that the operator has "
            "configured",
        )
        return None
    own = tuple(_own(reading, key, {name: entry for name, entry in found.items() if entry}))
    if too_many(reading, key, len(own), MAX_OWN, "servers of its own"):
        return None
    if reading.known_tools is not None:
        reading.known_tools |= {f"{GROUPED}{server.name}" for server in own}
    known = reading.known_tools
    strange = [name for name in found if known is not None and f"{GROUPED}{name}" not in known]
    unknown = [name for name in strange if not found[name]]
    if unknown:
        reading.warn(key, f"no MCP server of this name is configured: {listed(unknown)}", "they are left out")
    return Servers(names=tuple(name for name in found if name not in strange), own=own)


def _entries(reading: Reading, key: str, value: Any) -> dict[str, Any] | None:
    """Names, and what is said of each; None after an error was stated."""
    if isinstance(value, dict) and [squeezed(str(name)) for name in value] == ["mcpservers"]:
        value = next(iter(value.values()))  # the file of another program as it is
    if isinstance(value, str):
        return dict.fromkeys(pieces_of(value))
    parts = value if isinstance(value, list) else [value]
    found: dict[str, Any] = {}
    for part in parts:
        given = part if isinstance(part, dict) else {part: None} if isinstance(part, str) else None
        if given is None or (isinstance(part, str) and not isinstance(value, list)):
            reading.error(key, f"{key} must name MCP servers, not {shown(part) if is_scalar(part) else 'a list'}")
            return None
        for name, entry in given.items():
            plain = None if is_unset(entry) else _plain(entry)
            if found.get(str(name)) and plain and found[str(name)] != plain:
                reading.error(key, f"{key} begins two servers named {name}: rename one")
                return None
            found[str(name)] = found.get(str(name)) or plain
    return found


def _plain(value: Any) -> Any:
    """The value with its scalars as the text that was written, and without what is unset."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items() if not is_unset(item)}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, str) else value


def _own(reading: Reading, key: str, given: dict[str, Any]) -> Iterator[OwnServer]:
    """Those of them that can be begun; of the others it is said why not."""
    for name, entry in given.items():
        if reading.known_tools is not None and f"{GROUPED}{name}" in reading.known_tools:
            reading.remark(key, f"{key}: {shown(name)} is a server that the operator has configured; that one is used")
        elif not reading.trusted:
            text = f"{key}: {shown(name)} is begun for agent files in a trusted directory only: {TRUST}"
            reading.warn(key, text, _LEFT_OUT)
        elif not isinstance(entry, dict):
            reading.warn(key, f"{key}.{name} must be a map with a command or a url, not {shown(entry)}", _LEFT_OUT)
        else:
            server = OwnServer(name=name, entry=entry, line=reading.line)
            problem = reading.checks.server(server)
            if problem is None:
                yield server
            else:
                reading.warn(key, f"{key}.{name}: {problem}", _LEFT_OUT)
