"""The agent parts of requests, read strictly (port `AgentReader` of the service).

Knows which tools there are, so that a misspelt name is refused where it was written.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from app.agent.definition import NO_POLICY, AgentDefinition, PolicyFields, Source, Surface
from app.agent.errors import InvalidRequest, Unsupported
from app.definitions.mapping import from_mapping, to_mapping
from app.definitions.policy import read_policy, read_surfaces
from app.definitions.reading import Level, Reading
from app.definitions.toolnames import AGENT, PER_AGENT_PREFIX, SURFACE_TOOLS, comes_later, mapped

INLINE = Source(kind="inline")


class DefinitionReader:
    """Reads inline definitions, policies and surfaces. `known_tools`: the ordinary tools of this service."""

    def __init__(self, known_tools: frozenset[str]) -> None:
        self._known_tools = known_tools

    def definition(self, data: Mapping[str, Any], at: str, *, stored: bool = False) -> AgentDefinition:
        """An inline definition; `stored`: accepted earlier, so that tools which are gone since do not spoil it."""
        return from_mapping(data, source=INLINE, at=at, known_tools=None if stored else self._known_tools)

    def mapping(self, definition: AgentDefinition) -> dict[str, Any]:
        """The wire form of a definition."""
        return to_mapping(definition)

    def tools(self, names: Sequence[str], at: str) -> tuple[str, ...]:
        """Tool names of a whitelist, mapped to ours. Raises `Unsupported` for tools of a later version,
        `InvalidRequest` for unknown ones."""
        known = self._known_tools | SURFACE_TOOLS | {AGENT}
        found = [mapped(name, self._known_tools) for name in names]
        for index, name in enumerate(found):
            if comes_later(name, known):
                given = repr(name) if name == names[index] else f"{names[index]!r} ({name})"
                raise Unsupported(
                    f"{at}[{index}]: the tool {given} comes in a later version; leave it out",
                    errors=[{"at": f"{at}[{index}]", "message": f"tool of a later version: {name}"}],
                )
            if name not in known and not name.startswith(PER_AGENT_PREFIX):
                raise InvalidRequest(
                    f"{at}[{index}]: there is no tool {names[index]!r}; GET /v1/tools lists those that exist",
                    code="unknown_tool",
                    errors=[{"at": f"{at}[{index}]", "message": "unknown tool"}],
                )
        return tuple(dict.fromkeys(found))

    def policy(self, data: Mapping[str, Any], at: str) -> PolicyFields:
        """The set fields of a handoff policy."""
        reading = Reading(strict=True, known_tools=self._known_tools)
        fields = read_policy(reading, at, dict(data))
        _refuse(reading)
        return fields or NO_POLICY

    def surfaces(self, data: Sequence[str | Mapping[str, Any]], at: str) -> tuple[Surface, ...]:
        """Delegation surfaces."""
        reading = Reading(strict=True, known_tools=self._known_tools)
        surfaces = read_surfaces(reading, at, [s if isinstance(s, str) else dict(s) for s in data])
        _refuse(reading)
        return surfaces or ()


def _refuse(reading: Reading) -> None:
    """Raise for what was found; a later version's field or value is told apart from a wrong one."""
    errors = [{"at": finding.key, "message": finding.message} for finding in reading.found]
    if not errors:
        return
    later = all(finding.level is Level.LATER for finding in reading.found)
    kind = Unsupported if later else InvalidRequest
    place, message = errors[0]["at"], errors[0]["message"]
    raise kind(message if message.startswith(place) else f"{place}: {message}", errors=errors)
