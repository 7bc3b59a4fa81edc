"""JSON Schema for tool arguments: is a value valid, and is a schema one; answers are worded for models.

References are resolved inside the schema only: nothing is fetched, neither from a network nor from a disk.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import islice
from threading import Lock
from typing import Any

import jsonschema_rs

MAX_SCHEMA_CHARS = 64 * 1024
_MAX_COMPILED = 512
_MAX_PROBLEMS = 3
_MAX_PROBLEM_CHARS = 300
_MAX_OPTIONS = 20
_MAX_PREVIEW_CHARS = 80
_BACKTRACKS = 10_000  # only of patterns with look-around; all others run in linear time
_MASK = "the value"  # stands for the value in the library's messages, which would quote it whole


class JsonSchemaChecker:
    """`SchemaChecker` on jsonschema_rs; compiled schemas are kept. Safe to use from several threads.

    Formats (`date`, `uri` …) are notes for the reader, as the standard has it, and not checked.
    """

    def __init__(self) -> None:
        # By identity first, which is what a turn asks for again and again; the schema is held so that its id stays
        # its own. By text second, since equal schemas come with every session that brings its own definitions.
        self._by_identity: OrderedDict[int, tuple[Mapping[str, Any], jsonschema_rs.Validator]] = OrderedDict()
        self._by_text: OrderedDict[str, jsonschema_rs.Validator] = OrderedDict()
        self._lock = Lock()

    def check(self, schema: Mapping[str, Any], value: Any) -> str | None:
        """None when `value` is valid, otherwise what is wrong and where: at most three problems, bounded in length.

        A schema that cannot be used makes every value invalid.
        """
        try:
            validator = self._validator(schema)
        except ValueError as error:
            return f"the schema cannot be used: {error}"
        try:
            found = list(islice(validator.iter_errors(_plain(value)), _MAX_PROBLEMS + 1))
        except (ValueError, RecursionError) as error:  # too deep, lone surrogates, values that are not JSON
            return f"the value is no JSON that can be checked: {_bounded(str(error))}"
        if not found:
            return None
        problems = [_bounded(_described(error, schema)) for error in found[:_MAX_PROBLEMS]]
        return "; ".join([*problems, "and more"] if len(found) > _MAX_PROBLEMS else problems)

    def _validator(self, schema: Mapping[str, Any]) -> jsonschema_rs.Validator:
        with self._lock:
            known = self._by_identity.get(id(schema))
            if known is not None:
                self._by_identity.move_to_end(id(schema))
                return known[1]
        text = _text_of(schema)
        with self._lock:
            validator = self._by_text.pop(text, None) or _compiled(text)
            self._by_text[text] = validator
            self._by_identity[id(schema)] = (schema, validator)
            for cache in (self._by_identity, self._by_text):
                if len(cache) > _MAX_COMPILED:
                    cache.popitem(last=False)
        return validator


def check_schema(schema: Any) -> str | None:
    """Why `schema` cannot describe the arguments of a tool, or None: it is a valid JSON Schema of an object."""
    if not isinstance(schema, Mapping):
        return "the schema must be an object"
    if schema.get("type") != "object":
        return f"the schema must have type 'object', not {_preview(schema.get('type'))}"
    try:
        _compiled(_text_of(schema))
    except ValueError as error:
        return str(error)
    return None


def _text_of(schema: Mapping[str, Any]) -> str:
    """The schema as JSON. Raises ValueError when it is none or too large."""
    try:
        text = json.dumps(_plain(schema), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {_bounded(str(error))}") from None
    if len(text) > MAX_SCHEMA_CHARS:
        raise ValueError(f"larger than {MAX_SCHEMA_CHARS:,} characters")
    return text


def _compiled(text: str) -> jsonschema_rs.Validator:
    """Raises ValueError that says where the schema is wrong."""
    try:
        return jsonschema_rs.validator_for(
            text,
            mask=_MASK,
            retriever=_refuse,
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACKS),
        )
    except jsonschema_rs.ValidationError as error:
        raise ValueError(_bounded(_described(error, {}))) from None
    except ValueError as error:
        raise ValueError(_bounded(str(error))) from None


def _refuse(uri: str) -> Any:
    raise ValueError("only references inside the schema ('#/…') are resolved")


def _plain(value: Any) -> Any:
    """The value with plain dicts and lists, which is all that the library takes."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _described(error: jsonschema_rs.ValidationError, schema: Mapping[str, Any]) -> str:
    where = _path(error.instance_path)
    text = _problem(error, schema)
    return f"{where}: {text}" if where else text


def _problem(error: jsonschema_rs.ValidationError, schema: Mapping[str, Any]) -> str:
    kind = error.kind.as_dict()
    match error.kind.name:
        case "required":
            return f"missing required property {kind['property']!r}"
        case "additionalProperties" | "unevaluatedProperties":
            allowed = _allowed_properties(schema, error.schema_path[:-1])
            return f"unknown property {_listed(kind['unexpected'])}" + (f"; allowed: {allowed}" if allowed else "")
        case "enum":
            return f"must be one of {_listed(kind['options'])}, not {_preview(error.instance)}"
        case "const":
            return f"must be {_preview(kind['expected_value'])}, not {_preview(error.instance)}"
        case "type":
            return f"must be {' or '.join(kind['types'])}, not {_preview(error.instance)}"
        case "anyOf" | "oneOf":
            branches = [_described(branch[0], {}) for branch in kind["context"] if branch]
            reasons = f" ({'; or '.join(branches[:4])})" if branches else ""
            return f"fits {'none' if branches else 'not exactly one'} of the allowed forms{reasons}"
        case _:
            about = "" if error.instance is None else f" (it is {_preview(error.instance)})"
            return f"{error.message}{about}"


def _allowed_properties(schema: Mapping[str, Any], path: Iterable[str | int]) -> str:
    """The names that the schema at `path` knows; empty when it cannot be found or knows none."""
    node: Any = schema
    for step in path:
        try:
            node = node[step]
        except (KeyError, IndexError, TypeError):
            return ""
    properties = node.get("properties") if isinstance(node, Mapping) else None
    return _listed(list(properties)) if properties else ""


def _path(steps: Iterable[str | int]) -> str:
    """`items[2].name`."""
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _listed(values: list[Any]) -> str:
    more = ", …" if len(values) > _MAX_OPTIONS else ""
    return ", ".join(_preview(value) for value in values[:_MAX_OPTIONS]) + more


def _preview(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return f"an array of {len(value)}"
    if isinstance(value, str) and len(value) > _MAX_PREVIEW_CHARS:
        value = value[:_MAX_PREVIEW_CHARS] + "…"
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:  # an integer of more digits than Python writes
        return "a number that is far too large"
    return text if len(text) <= 2 * _MAX_PREVIEW_CHARS else text[: 2 * _MAX_PREVIEW_CHARS] + "…"


def _bounded(text: str) -> str:
    return text if len(text) <= _MAX_PROBLEM_CHARS else text[: _MAX_PROBLEM_CHARS - 1] + "…"
