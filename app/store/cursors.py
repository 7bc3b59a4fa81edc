"""Cursors of pages: the key of the last row, made opaque, and bound to the order that it belongs to.

Knows no table.
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from app.agent.errors import InvalidRequest
from app.wire import encode

MAX_INT = 2**63 - 1  # what a column can hold
_Column = Annotated[int, msgspec.Meta(ge=-MAX_INT, le=MAX_INT)]


def under(order: str, filters: Mapping[str, Any]) -> str:
    """An order of its own for each choice of filters, so that a cursor of one does not fit another."""
    chosen = encode(sorted(filters.items()))
    return f"{order}/{hashlib.sha256(chosen).hexdigest()[:16]}"


def pack(order: str, key: Sequence[Any]) -> str:
    """The cursor after a row with this key."""
    return base64.urlsafe_b64encode(msgspec.json.encode([order, *key])).rstrip(b"=").decode()


def unpack(cursor: str, order: str, kinds: Sequence[type]) -> tuple[Any, ...]:
    """The key in a cursor. Raises `InvalidRequest` when it is none of ours or belongs to another order."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        value = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=list[str | _Column])
    except (binascii.Error, UnicodeError, msgspec.DecodeError):
        value = []
    if not value or value[0] != order or [type(part) for part in value[1:]] != list(kinds):
        shown = cursor if len(cursor) <= 80 else f"{cursor[:80]}…"
        raise InvalidRequest(
            f"cursor {shown!r} does not belong to this question: pass `next` of the page before with the same filters "
            "and order, or leave it out for the first page",
            code="invalid_cursor",
            errors=[{"at": "cursor", "message": "not a cursor of this question"}],
        )
    return tuple(value[1:])
