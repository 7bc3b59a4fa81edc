"""Definitions as JSON maps: how they come over the API, and how a session and a tenant keep them.

Strict where files are tolerant: a wrong type or a key of a later version is refused with its place.
"""

from collections.abc import Mapping
from typing import Any

from app.agent.definition import NO_POLICY, AgentDefinition, AgentMode, PolicyFields, Source
from app.agent.errors import InvalidRequest, Unsupported
from app.definitions.fields import assemble, build
from app.definitions.reading import Level, Reading, deeper_than

MAX_DEPTH = 50


def from_mapping(
    data: Any, *, source: Source, at: str = "", known_tools: frozenset[str] | None = None
) -> AgentDefinition:
    """A definition from a JSON map; keys as in files, and `prompt` for the body.

    `at` is the place of the map in the request (`agents[0]`). With `known_tools`, unknown tool names are refused;
    without, they are kept, and the registry will not find them (for what was stored under an earlier set of tools).
    Raises `InvalidRequest` with the places of everything that is wrong, `Unsupported` for what comes later.
    """
    prefix = f"{at}." if at else ""
    if not isinstance(data, Mapping):
        message = "an agent must be a map of its fields"
        raise InvalidRequest(f"{at or 'agent'}: {message}", errors=[{"at": at, "message": message}])
    if deeper_than(data, MAX_DEPTH):
        message = f"values are nested deeper than {MAX_DEPTH} levels"
        raise InvalidRequest(f"{at or 'agent'}: {message}", errors=[{"at": at, "message": message}])
    reading = Reading(strict=True, known_tools=known_tools)
    values = assemble(((str(key), value, 0) for key, value in data.items()), reading)
    for key in ("name", "description"):
        if key not in values and not any(finding.key == key for finding in reading.found):
            reading.error(key, f"{key} is missing")
    definition = build(values, reading, source)
    errors = [{"at": f"{prefix}{finding.key}", "message": finding.message} for finding in reading.found]
    first = "" if not errors else f"{errors[0]['at']}: {errors[0]['message']}"
    if definition is None:
        raise InvalidRequest(f"agent definition: {first}", errors=errors)
    if any(finding.level is Level.LATER for finding in reading.found):
        raise Unsupported(f"agent definition: {first}", errors=errors)
    return definition


def to_mapping(definition: AgentDefinition) -> dict[str, Any]:
    """The JSON map of a definition, without what is unset and without its source; `from_mapping` reads it back."""
    fields: dict[str, Any] = {
        "name": definition.name,
        "description": definition.description,
        "prompt": definition.prompt or None,
        "mode": None if definition.mode is AgentMode.SUBAGENT else definition.mode.value,
        "tools": _listed(definition.tools),
        "disallowed_tools": _listed(definition.disallowed_tools or None),
        "model": definition.model,
        "temperature": definition.temperature,
        "effort": definition.effort,
        "max_tokens": definition.max_tokens,
        "tool_choice": definition.tool_choice,
        "max_steps": definition.max_steps,
        "parallel_tool_calls": definition.parallel_tool_calls,
        "tool_name": definition.tool_name,
        "input_schema": None if definition.input_schema is None else dict(definition.input_schema),
        "surfaces": None if definition.surfaces is None else [_surface(s) for s in definition.surfaces],
        "agents": _listed(definition.agents),
        "handoff": None if definition.policy == NO_POLICY else policy_mapping(definition.policy),
        "metadata": dict(definition.metadata) or None,
    }
    return {key: value for key, value in fields.items() if value is not None}


def policy_mapping(policy: PolicyFields) -> dict[str, Any]:
    """The JSON map of the policy fields that are set; a null in it is a value (unlimited, no list)."""
    fields: dict[str, Any] = {}
    for name in ("enabled", "timeout_ms"):
        if getattr(policy, name) is not None:
            fields[name] = getattr(policy, name)
    for name in ("on_denied", "on_error"):
        if getattr(policy, name) is not None:
            fields[name] = getattr(policy, name).value
    if policy.max_depth is not None:
        fields["max_depth"] = policy.max_depth[0]
    for name in ("allowed_tools", "denied_tools"):
        boxed = getattr(policy, name)
        if boxed is not None:
            fields[name] = _listed(boxed[0])
    return fields


def _surface(surface: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": surface.kind.value}
    if surface.agents is not None:
        fields["agents"] = list(surface.agents)
    return fields


def _listed(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)
