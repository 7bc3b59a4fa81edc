"""Definitions as JSON maps: how they come over the API, and how a session and a tenant keep them.

Strict where files are tolerant: a wrong type or a key of a later version is refused with its place.
"""

from collections.abc import Mapping
from typing import Any

from app.agent.definition import AgentDefinition, AgentMode, InheritKind, SessionMode, SessionScope, Source
from app.agent.errors import InvalidRequest, Unsupported
from app.agent.permission_rules import Verdict
from app.agent.policy import NO_POLICY
from app.definitions.fields import assemble, build
from app.definitions.limits import budget_mapping
from app.definitions.policy import policy_mapping
from app.definitions.reading import Level, Reading, deeper_than
from app.definitions.rules import rules_mapping
from app.definitions.surfaces import surface_mapping

MAX_DEPTH = 50


def from_mapping(
    data: Any,
    *,
    source: Source,
    at: str = "",
    known_tools: frozenset[str] | None = None,
    agent_tools: frozenset[str] = frozenset(),
) -> AgentDefinition:
    """A definition from a JSON map; keys as in files, and `prompt` for the body.

    `at` is the place of the map in the request (`agents[0]`). With `known_tools`, unknown tool names are refused,
    unless agents have them as their own (`agent_tools`); without, they are kept, and the registry will not find them
    (for what was stored under an earlier set of tools).
    Raises `InvalidRequest` with the places of everything that is wrong, `Unsupported` for what comes later.
    """
    prefix = f"{at}." if at else ""
    if not isinstance(data, Mapping):
        message = "an agent must be a map of its fields"
        raise InvalidRequest(f"{at or 'agent'}: {message}", errors=[{"at": at, "message": message}])
    if deeper_than(data, MAX_DEPTH):
        message = f"values are nested deeper than {MAX_DEPTH} levels"
        raise InvalidRequest(f"{at or 'agent'}: {message}", errors=[{"at": at, "message": message}])
    reading = Reading(strict=True, known_tools=known_tools, agent_tools=agent_tools)
    values = assemble(((str(key), value, 0) for key, value in data.items()), reading)
    for key in ("name", "description"):
        if key not in values and not any(finding.key == key for finding in reading.found):
            reading.error(key, f"{key} is missing")
    values.pop("disable", None)
    definition = build(values, reading, source)
    errors = [{"at": f"{prefix}{finding.key}", "message": finding.message} for finding in reading.found]
    first = "" if not errors else f"{errors[0]['at']}: {errors[0]['message']}"
    if definition is None:
        raise InvalidRequest(f"agent definition: {first}", errors=errors)
    if any(finding.level is Level.LATER for finding in reading.found):
        raise Unsupported(f"agent definition: {first}", errors=errors)
    return definition


def to_mapping(definition: AgentDefinition) -> dict[str, Any]:
    """The JSON map of a definition, without what is unset and without its source. `from_mapping` reads it back, unless
    it names code of the server (`runner`, filters by import path). What a file brings along (hooks, servers) is for
    its operator to see, not for clients."""
    fields: dict[str, Any] = {
        "name": definition.name,
        "description": definition.description,
        "prompt": definition.prompt or None,
        "mode": None if definition.mode is AgentMode.SUBAGENT else definition.mode.value,
        "tools": _granted(definition),
        "disallowed_tools": [*definition.disallowed_tools, *_patterns(definition, Verdict.DENY)] or None,
        "model": definition.model,
        "temperature": definition.temperature,
        "effort": definition.effort,
        "thinking": None if definition.thinking is None else "on" if definition.thinking else "off",
        "max_tokens": definition.max_tokens,
        "tool_choice": definition.tool_choice,
        "max_steps": definition.max_steps,
        "parallel_tool_calls": definition.parallel_tool_calls,
        "abort_siblings": definition.abort_siblings,
        "background": definition.background or None,
        "detached": definition.detached or None,
        "tool_name": definition.tool_name,
        "input_schema": None if definition.input_schema is None else dict(definition.input_schema),
        "output_schema": None if definition.output_schema is None else dict(definition.output_schema),
        **_remembered(definition),
        "skills": list(definition.skills) or None,
        "mcp_servers": list(definition.mcp_servers) or None,
        "runner": definition.runner,
        "permissions": None if definition.permissions is None else rules_mapping(definition.permissions),
        "budget": None if definition.budget is None else budget_mapping(definition.budget),
        "surfaces": None if definition.surfaces is None else [surface_mapping(s) for s in definition.surfaces],
        "agents": _listed(definition.agents),
        "handoff": None if definition.policy == NO_POLICY else policy_mapping(definition.policy),
        "metadata": dict(definition.metadata) or None,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _remembered(definition: AgentDefinition) -> dict[str, str]:
    """What it remembers and what it is told of its caller, as far as that is not the default."""
    fields: dict[str, str] = {}
    if definition.session_mode is not SessionMode.NEW:
        fields["session_mode"] = definition.session_mode.value
    if definition.session_scope is not SessionScope.SESSION:
        fields["session_scope"] = definition.session_scope.value
    if definition.inherit_context.kind is not InheritKind.NONE:
        fields["inherit_context"] = str(definition.inherit_context)
    return fields


def _granted(definition: AgentDefinition) -> list[str] | None:
    """The whitelist as it was written: tools that are granted by patterns only, with those."""
    if definition.tools is None:
        return None
    by_pattern = {rule.tool for rule in definition.limits if rule.effect is Verdict.ALLOW}
    return [*(name for name in definition.tools if name not in by_pattern), *_patterns(definition, Verdict.ALLOW)]


def _patterns(definition: AgentDefinition, effect: Verdict) -> list[str]:
    return list(dict.fromkeys(str(rule) for rule in definition.limits if rule.effect is effect))


def _listed(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)
