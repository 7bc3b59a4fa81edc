"""Whether a JSON Schema that somebody sent can be used without asking anybody else.

Knows nothing of definitions. A schema that points outside itself would be fetched by a validator, so it is refused.
"""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs

from app.fanout import Fanout

MAX_DEPTH = 40  # deeper than any form that a model could fill in; keeps encoders and validators away from recursion
MAX_CHARS = 65_536  # what the checker of values takes; a larger one would make every value invalid
_DRAFTS = frozenset(
    f"json-schema.org/{draft}/schema"
    for draft in ("draft-04", "draft-06", "draft-07", "draft/2019-09", "draft/2020-12")
)
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})


def schema_of(text: str) -> Any:
    """JSON text as a value, None when it is none."""
    try:
        return json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return None


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def object_problem(schema: Any) -> str | None:
    """Why this cannot be the schema of an object, or None."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return "it is no map with `type: object`"
    return schema_problem(schema)


def schema_problem(schema: Any) -> str | None:
    """Why this cannot be the schema of a value of any kind, or None."""
    if not isinstance(schema, dict):
        return "it is no map"
    for problem in _outside(schema):
        return problem
    try:
        size = len(json.dumps(schema, ensure_ascii=False))
        if size > MAX_CHARS:
            return f"it has {size} characters as JSON, at most {MAX_CHARS} are accepted"
        jsonschema_rs.meta.validate(schema)
        jsonschema_rs.validator_for(schema)  # finds what is a schema in form only: bad patterns, dead references
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, TypeError, ValueError) as error:
        return str(error).split("\n", 1)[0]
    return Fanout(schema).problem()


def _outside(schema: dict[str, Any]) -> Iterator[str]:
    waiting: list[tuple[Any, int]] = [(schema, 1)]
    while waiting:
        item, depth = waiting.pop()
        if depth > MAX_DEPTH:
            yield f"it is nested deeper than {MAX_DEPTH} levels"
        if isinstance(item, dict):
            for name, value in item.items():
                if name in _REFERENCES and isinstance(value, str) and not value.startswith("#"):
                    yield f"{name} {value[:60]!r} points outside the schema; only `#…` is read"
                if name == "$schema" and isinstance(value, str) and not _is_draft(value):
                    yield f"$schema {value[:60]!r} is none of the published drafts"
                waiting.append((value, depth + 1))
        elif isinstance(item, list):
            waiting.extend((value, depth + 1) for value in item)


def _is_draft(uri: str) -> bool:
    return uri.rpartition("://")[2].removesuffix("#") in _DRAFTS
