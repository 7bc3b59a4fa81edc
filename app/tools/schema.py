"""JSON Schema for tool arguments: is a value valid, and is a schema one; answers are worded for models.

References are resolved inside the schema only: nothing is fetched, neither from a network nor from a disk.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import Any

import jsonschema_rs

from app.fanout import Fanout

MAX_SCHEMA_CHARS = 64 * 1024
_MAX_COMPILED = 512
_MAX_VISITS = 10_000_000  # of subschemas for one value: a tenth of a second, and the library lets no other thread run
_MAX_TOLD = 5_000  # visits of a value of which all problems are collected: each problem costs thousands of plain visits
_MAX_PROBLEMS = 3
_MAX_PROBLEM_CHARS = 300
_MAX_OPTIONS = 20
_MAX_PREVIEW_CHARS = 80
_BACKTRACKS = 10_000  # only of patterns with look-around; all others run in linear time
_MASK = "the value"  # stands for the value in the library's messages, which would quote it whole


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compiled:
    """A schema ready for use. `unions`: its problems may hold those of all branches, so that even one can be large."""

    validator: jsonschema_rs.Validator
    fanout: Fanout
    unions: bool

    def problems(self, value: Any) -> list[jsonschema_rs.ValidationError] | None:
        """What is wrong with a value, one more than are told; None: something is, and it would take too long to say."""
        if self.fanout.steps(value, _MAX_TOLD) <= _MAX_TOLD:
            return list(islice(self.validator.iter_errors(value), _MAX_PROBLEMS + 1))
        if self.unions:
            return None
        try:
            self.validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return [error]
        return []


class JsonSchemaChecker:
    """`SchemaChecker` on jsonschema_rs; compiled schemas are kept. Safe to use from several threads.

    Formats (`date`, `uri` …) are notes for the reader, as the standard has it, and not checked.
    """

    def __init__(self) -> None:
        # By identity first, which is what a turn asks for again and again; the schema is held so that its id stays
        # its own. By text second, since equal schemas come with every session that brings its own definitions.
        self._by_identity: OrderedDict[int, tuple[Mapping[str, Any], _Compiled]] = OrderedDict()
        self._by_text: OrderedDict[str, _Compiled] = OrderedDict()
        self._lock = Lock()

    def check(self, schema: Mapping[str, Any], value: Any) -> str | None:
        """None when `value` is valid, otherwise what is wrong and where: at most three problems, bounded in length.

        A schema that cannot be used makes every value invalid, and so does one that would make too much work of it.
        """
        try:
            compiled = self._compiled(schema)
        except ValueError as error:
            return f"the schema cannot be used: {error}"
        try:
            plain = _plain(value)
            if compiled.fanout.visits(plain, _MAX_VISITS) > _MAX_VISITS:
                return "the value is too large and too deep for this schema, whose unions would all have to be tried"
            if compiled.validator.is_valid(plain):
                return None
            found = compiled.problems(plain)
        except (ValueError, RecursionError) as error:  # too deep, lone surrogates, values that are not JSON
            return f"the value is no JSON that can be checked: {_bounded(str(error))}"
        if not found:
            return "the value does not fit the schema; it is too large to say where"
        problems = [_bounded(_described(error, schema)) for error in found[:_MAX_PROBLEMS]]
        return "; ".join([*problems, "and more"] if len(found) > _MAX_PROBLEMS else problems)

    def _compiled(self, schema: Mapping[str, Any]) -> _Compiled:
        with self._lock:
            known = self._by_identity.get(id(schema))
            if known is not None:
                self._by_identity.move_to_end(id(schema))
                return known[1]
        text = _text_of(schema)
        with self._lock:
            compiled = self._by_text.pop(text, None) or _ready(text)
            self._by_text[text] = compiled
            self._by_identity[id(schema)] = (schema, compiled)
            for cache in (self._by_identity, self._by_text):
                if len(cache) > _MAX_COMPILED:
                    cache.popitem(last=False)
        return compiled


def check_schema(schema: Any) -> str | None:
    """Why `schema` cannot describe the arguments of a tool, or None: it is a valid JSON Schema of an object."""
    if not isinstance(schema, Mapping):
        return "the schema must be an object"
    if schema.get("type") != "object":
        return f"the schema must have type 'object', not {_preview(schema.get('type'))}"
    try:
        return _ready(_text_of(schema)).fanout.problem()
    except ValueError as error:
        return str(error)


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


def _ready(text: str) -> _Compiled:
    validator = _compiled(text)
    unions = any(f'"{name}"' in text for name in ("anyOf", "oneOf"))
    return _Compiled(validator=validator, fanout=Fanout(json.loads(text)), unions=unions)


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
