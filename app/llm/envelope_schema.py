"""The response schema of a JSON envelope: which calls a turn may make, and that everything in it ends.

Knows no messages. A schema is the only thing that holds a weak model, so it bounds strings and lists too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from app.agent.tools import ToolSpec

MAX_ITEMS = 16
BRIEF_ITEMS = 4
# Words about a schema are for readers; the grammar made from it does not know them.
_NOTES = frozenset({"$schema", "$id", "title", "description", "default", "examples", "deprecated"})


def envelope_schema(
    tools: Sequence[ToolSpec], *, choice: str | None, most: int, string_chars: int, brief: bool
) -> dict[str, Any]:
    """The schema of one turn. `choice` as in `ChatRequest`; `most` calls in one turn.

    A forced tool that has a choice of its own (an enum, as delegation tools have for the agent) is called `most`
    times, each value once when they are not more than that: so a model that cannot plan still delegates side by side.
    """
    answer = _object({"answer": {"type": "string", "maxLength": string_chars}})
    if not tools or choice == "none":
        return answer
    forced = next((spec for spec in tools if spec.name == choice), None)
    if forced is not None:
        one = _call(forced, string_chars, brief)
        values = _enum_of(forced)
        if most == 1 or values is None:
            return one
        return _calls(_each_value(one, *values, most), most, least=most)
    calls = [_call(spec, string_chars, brief) for spec in tools]
    if most > 1:
        calls = [_calls(calls[0] if len(calls) == 1 else {"anyOf": calls}, most, least=1)]
    options = calls if choice == "required" else [*calls, answer]
    return options[0] if len(options) == 1 else {"anyOf": options}


def arguments_schema(parameters: Mapping[str, Any], string_chars: int, *, brief: bool) -> dict[str, Any]:
    """A tool's own schema with bounds; `brief` leaves out what is not required."""
    schema: dict[str, Any] = _bounded(parameters, string_chars, BRIEF_ITEMS if brief else MAX_ITEMS)
    schema.setdefault("type", "object")
    properties = schema.setdefault("properties", {})
    if brief:
        required = [name for name in schema.get("required", ()) if name in properties]
        schema["properties"] = {name: properties[name] for name in required}
        schema["required"] = required
    schema.setdefault("additionalProperties", False)
    return schema


def _call(spec: ToolSpec, string_chars: int, brief: bool) -> dict[str, Any]:
    arguments = arguments_schema(spec.parameters, string_chars, brief=brief)
    return _object({"tool": {"const": spec.name}, "arguments": arguments})


def _calls(items: dict[str, Any] | list[dict[str, Any]], most: int, *, least: int) -> dict[str, Any]:
    key = "prefixItems" if isinstance(items, list) else "items"
    return _object({"calls": {"type": "array", key: items, "minItems": least, "maxItems": most}})


def _each_value(
    call: dict[str, Any], parameter: str, values: Sequence[str], most: int
) -> dict[str, Any] | list[dict[str, Any]]:
    if len(values) > most:
        return call
    schemas = []
    for position in range(most):
        arguments = call["properties"]["arguments"]
        value = {"const": values[position % len(values)]}
        fixed = {**arguments, "properties": {**arguments["properties"], parameter: value}}
        schemas.append(_object({"tool": call["properties"]["tool"], "arguments": fixed}))
    return schemas


def _enum_of(spec: ToolSpec) -> tuple[str, Sequence[str]] | None:
    """The first required parameter with several values to choose from, and these."""
    properties = spec.parameters.get("properties", {})
    for name in spec.parameters.get("required", ()):
        values = properties.get(name, {}).get("enum")
        if isinstance(values, (list, tuple)) and len(values) > 1:
            return name, values
    return None


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _bounded(schema: Any, chars: int, items: int) -> Any:
    if isinstance(schema, (list, tuple)):
        return [_bounded(item, chars, items) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
            kept[key] = {name: _bounded(item, chars, items) for name, item in value.items()}
        elif key in ("enum", "const", "required"):
            kept[key] = list(value) if isinstance(value, tuple) else value
        elif key not in _NOTES:
            kept[key] = _bounded(value, chars, items)
    kinds = kept.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "string" in kinds and not kept.keys() & {"enum", "const", "pattern", "format"}:
        kept["maxLength"] = min(chars, kept.get("maxLength", chars))
    if "array" in kinds:
        kept["maxItems"] = min(items, kept.get("maxItems", items))
    return kept
