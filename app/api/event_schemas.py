"""JSON Schemas of all events, made from the payload types of the kernel (spec 11.6).

Written by hand, since the kernel's types are those of the standard library, which the validator's own generator
refuses on Python 3.11.
"""

import types
from collections.abc import Mapping
from functools import cache
from typing import Any, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from app.agent.events import KINDS, EventKind
from app.wire import encode

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN: Mapping[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
}


@cache
def encoded() -> bytes:
    """All schemas as JSON: `envelope`, and `events` by type."""
    return encode({"envelope": envelope(), "events": {name: _described(kind) for name, kind in KINDS.items()}})


def _described(kind: EventKind[Any]) -> dict[str, Any]:
    return {"durable": kind.durable, "final": kind.final, "v": kind.version, "schema": payload_schema(kind.payload)}


def payload_schema(payload: type) -> dict[str, Any]:
    """The schema of `data` (of the whole frame for transient events). A key whose value may be null is left out on
    the wire when it is, so that it is not required."""
    schema = _object(payload, leaves_out_null=True)
    return {"$schema": DIALECT, "title": payload.__name__, "description": (payload.__doc__ or "").strip(), **schema}


def envelope() -> dict[str, Any]:
    """The schema of a durable event around its `data`."""
    text, count = _PLAIN[str], {"type": "integer", "minimum": 0}
    optional = {
        "prev": count,
        "run_id": text,
        "run": count,
        "parent_run_id": text,
        "agent": text,
        "name": text,
        "depth": count,
        "path": {"type": "array", "items": count},
        "step": count,
    }
    required = {
        "id": {"type": "integer", "minimum": 1},
        "type": {"enum": [name for name, kind in KINDS.items() if kind.durable]},
        "v": {"type": "integer", "minimum": 1},
        "ts": {"type": "string", "format": "date-time"},
        "session_id": text,
        "data": {"type": "object"},
    }
    return {"$schema": DIALECT, "type": "object", "properties": required | optional, "required": list(required)}


def _object(kind: type, *, leaves_out_null: bool = False) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    properties, required = {}, []
    for name, hint in hints.items():
        optional = get_origin(hint) is NotRequired
        inner = get_args(hint)[0] if optional else hint
        properties[name] = _schema(inner)
        if not optional and not (leaves_out_null and type(None) in get_args(inner)):
            required.append(name)
    return {"type": "object", "properties": properties, "required": required}


def _schema(hint: Any) -> dict[str, Any]:
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    if is_typeddict(hint):
        return _object(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(argument) for argument in arguments]}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    raise TypeError(f"no JSON Schema for {hint!r}: payloads hold plain JSON types")
