"""The agent parts of requests, read strictly (port `AgentReader` of the service).

Knows which tools there are, so that a misspelt name is refused where it was written.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.agent.definition import AgentDefinition, Source, Surface
from app.agent.errors import InvalidRequest, Unsupported
from app.agent.permission_rules import PermissionRule, PermissionRules, Scope, Verdict
from app.agent.policy import NO_POLICY, BudgetLimits, PolicyFields
from app.agent.texts import Texts
from app.definitions.attributes import read_output_schema
from app.definitions.limits import read_budget
from app.definitions.mapping import from_mapping, to_mapping
from app.definitions.policy import read_policy
from app.definitions.reading import MAX_NAMES, Level, Reading, too_many
from app.definitions.rules import read_call, read_rule, read_rules
from app.definitions.surfaces import read_surfaces
from app.definitions.toolnames import (
    AGENT,
    PER_AGENT_PREFIX,
    SURFACE_TOOLS,
    is_delegation,
    is_off,
    mapped,
    squeezed,
)
from app.definitions.wording import read_texts

INLINE = Source(kind="inline")
_TOOL_NAME = squeezed("tool_name")


class DefinitionReader:
    """Reads inline definitions, policies, surfaces, budgets, schemas and texts.

    `known_tools`: the ordinary tools of this service. `agent_tools`: which names a tenant's agents have as tools.
    """

    def __init__(
        self, known_tools: frozenset[str], agent_tools: Callable[[str], frozenset[str]] = lambda tenant: frozenset()
    ) -> None:
        self._known_tools = known_tools
        self._agent_tools = agent_tools

    def tool_names(self, entries: Sequence[Any], tenant: str) -> frozenset[str]:
        """The names that a whitelist may hold since agents have them as tools: those of the inline definitions among
        `entries`, not yet read, and those of the tenant's agents."""
        inline = (
            value.strip()
            for entry in entries
            if isinstance(entry, Mapping)
            for key, value in entry.items()
            if squeezed(str(key)) == _TOOL_NAME and isinstance(value, str)
        )
        return self._agent_tools(tenant).union(inline)

    def definition(
        self,
        data: Mapping[str, Any],
        at: str,
        *,
        stored: bool = False,
        agent_tools: frozenset[str] = frozenset(),
    ) -> AgentDefinition:
        """An inline definition; `stored`: accepted earlier, so that tools which are gone since do not spoil it.
        `agent_tools`: names that its whitelist may hold besides those of tools (`tool_names`)."""
        known = None if stored else self._known_tools
        return from_mapping(data, source=INLINE, at=at, known_tools=known, agent_tools=agent_tools)

    def mapping(self, definition: AgentDefinition) -> dict[str, Any]:
        """The wire form of a definition."""
        return to_mapping(definition)

    def tools(self, names: Sequence[str], at: str, agent_tools: frozenset[str] = frozenset()) -> tuple[str, ...]:
        """Tool names of a whitelist, mapped to ours. Raises `Unsupported` for tools that are switched off,
        `InvalidRequest` for unknown ones."""
        reading = self._reading()
        too_many(reading, at, len(names), MAX_NAMES, "names")
        _refuse(reading)
        known = self._known_tools | SURFACE_TOOLS | agent_tools | {AGENT}
        found = [mapped(name, self._known_tools) for name in names]
        for index, name in enumerate(found):
            if is_off(name, known):
                raise Unsupported(
                    f"{at}[{index}]: the tool {name} is switched off on this server; leave it out",
                    errors=[{"at": f"{at}[{index}]", "message": f"tool that is switched off: {name}"}],
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
        reading = self._reading()
        fields = read_policy(reading, at, dict(data))
        _refuse(reading)
        return fields or NO_POLICY

    def surfaces(self, data: Sequence[str | Mapping[str, Any]], at: str) -> tuple[Surface, ...]:
        """Delegation surfaces."""
        reading = self._reading()
        surfaces = read_surfaces(reading, at, [s if isinstance(s, str) else dict(s) for s in data])
        _refuse(reading)
        return surfaces or ()

    def permissions(self, data: Mapping[str, Any], at: str) -> PermissionRules | None:
        """The permission rules of a session or call; None where they say nothing."""
        reading = self._reading()
        rules = read_rules(reading, at, dict(data), Scope.SESSION)
        _refuse(reading)
        return rules if rules is not None and (rules.rules or rules.default is not None) else None

    def allowed(self, text: str) -> Sequence[PermissionRule]:
        """The rule of an answer that holds for the session. Raises ValueError when it cannot be read any more."""
        return read_rule(text, Verdict.ALLOW, self._known_tools)

    def call(self, text: str, at: str) -> tuple[str, bool, dict[str, Any]]:
        """A call that is written like a rule: our tool, whether it delegates, its arguments."""
        try:
            tool, arguments = read_call(text, self._known_tools)
        except ValueError as error:
            raise InvalidRequest(f"{at}: {error}", errors=[{"at": at, "message": str(error)}]) from None
        return tool, is_delegation(tool), arguments

    def budget(self, data: Mapping[str, Any], at: str) -> BudgetLimits:
        """The limits of a budget."""
        reading = self._reading()
        limits = read_budget(reading, at, dict(data))
        _refuse(reading)
        return limits or BudgetLimits()

    def schema(self, data: Mapping[str, Any], at: str) -> Mapping[str, Any]:
        """A JSON Schema that an answer is to satisfy."""
        reading = self._reading()
        schema = read_output_schema(reading, at, dict(data))
        _refuse(reading)
        return schema or {}

    def texts(self, data: str | Mapping[str, Any], at: str, base: Texts) -> Texts:
        """What the service says to models: a language, or a map of `language` and texts; the rest is of `base`."""
        reading = self._reading()
        texts = read_texts(reading, at, data, base)
        _refuse(reading)
        return texts

    def _reading(self) -> Reading:
        return Reading(strict=True, known_tools=self._known_tools)


def _refuse(reading: Reading) -> None:
    """Raise for what was found; a later version's field or value is told apart from a wrong one."""
    errors = [{"at": finding.key, "message": finding.message} for finding in reading.found]
    if not errors:
        return
    later = all(finding.level is Level.LATER for finding in reading.found)
    kind = Unsupported if later else InvalidRequest
    place, message = errors[0]["at"], errors[0]["message"]
    raise kind(message if message.startswith(place) else f"{place}: {message}", errors=errors)
