"""What a Python function returned, as text for a model: strict JSON, whatever was in it.

Knows nothing of tools.
"""

import dataclasses
import datetime
import json
import math
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from typing import Any

from pydantic import BaseModel

NO_OUTPUT = "(no output)"
_MAX_DEPTH = 64


def as_text(value: Any) -> str:
    """A text as it is, nothing as `(no output)`, all else as JSON.

    What JSON cannot say is replaced: numbers that are not finite by null, dates by ISO 8601, bytes by their text,
    sets by lists, dataclasses and models by objects, anything else by `str` of it.
    """
    if value is None:
        return NO_OUTPUT
    if isinstance(value, str):
        return without_surrogates(value)
    return json.dumps(jsonable(value), ensure_ascii=False, allow_nan=False)


def safe_str(value: object) -> str:
    """`str(value)`, also when that raises."""
    try:
        return without_surrogates(str(value))
    except Exception:  # noqa: BLE001  border: foreign code
        return f"(a {type(value).__name__} without a text)"


def without_surrogates(text: str) -> str:
    """The text with pairs of surrogates joined and single ones replaced, so that it can be written as UTF-8."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def jsonable(value: Any, depth: int = 0) -> Any:
    """The value as dicts, lists, strings, finite numbers, booleans and None."""
    match value:
        case None | bool():
            return value
        case str():
            return without_surrogates(str.__str__(value))
        case int():
            return _integer(value)
        case float():
            return float(value) if math.isfinite(value) else None
        case bytes() | bytearray() | memoryview():
            return bytes(value).decode("utf-8", "replace")
        case datetime.date() | datetime.time():
            return value.isoformat()
        case Enum():
            return jsonable(value.value, depth + 1)
    return _container(value, depth) if depth < _MAX_DEPTH else safe_str(type(value).__name__)


def _integer(value: int) -> int | str:
    number = int(value)
    try:
        str(number)
    except ValueError:  # more digits than Python writes
        return hex(number)
    return number


def _container(value: Any, depth: int) -> Any:
    if isinstance(value, BaseModel):
        return _members(dict(value), depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _members({field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, depth)
    if isinstance(value, Mapping):
        return _members(value, depth)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _members(value._asdict(), depth)
    if isinstance(value, Set):
        items = [jsonable(item, depth + 1) for item in value]
        return sorted(items, key=lambda item: (type(item).__name__, safe_str(item)))  # sets have no order of their own
    if isinstance(value, Sequence):
        return [jsonable(item, depth + 1) for item in value]
    return safe_str(value)


def _members(members: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    return {_key(key): jsonable(item, depth + 1) for key, item in members.items()}


def _key(key: Any) -> str:
    plain = jsonable(key)
    return plain if isinstance(plain, str) else json.dumps(plain)
