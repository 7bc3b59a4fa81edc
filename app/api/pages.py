"""Ready answers: JSON from values, pages from lists, and cursors that say nothing to a client."""

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Query
from pydantic import AfterValidator, Field
from starlette.responses import Response

from app.agent.errors import InvalidRequest
from app.wire import encode, encode_tree


def given(value: str) -> str:
    """A filter. Taken for none, an empty one would widen the answer; taken as it is, it would fit nothing."""
    if not value:
        raise ValueError("it is empty: say what to look for, or leave it out")
    return value


Wanted = Annotated[str, AfterValidator(given), Field(json_schema_extra={"minLength": 1})]
Limit = Annotated[int, Query(ge=1, le=500, description="How many, at most.")]
Cursor = Annotated[str | None, Query(description="`next` of the page before.")]
WaitMs = Annotated[int, Query(ge=0, le=60_000, description="How long to wait for something new.")]
JSON = "application/json"
MAX_DIGITS = 18  # of the number in a cursor: it goes into a column


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as JSON."""
    return Response(encode(value), status, headers, JSON)


def tree_answer(value: Mapping[str, Any], *below: str) -> Response:
    """A tree as JSON, however deep; `below` are the keys of the lists that hold its nodes."""
    return Response(encode_tree(value, below), media_type=JSON)


def page_of(items: Sequence[bytes], following: str | None, **more: Any) -> Response:
    """A page of items that are JSON already; `more` fields that are None are left out."""
    rest = b"".join(b",%b:%b" % (encode(name), encode(value)) for name, value in more.items() if value is not None)
    return Response(b'{"items":[%b],"next":%b%b}' % (b",".join(items), encode(following), rest), media_type=JSON)


def part_of(items: Sequence[Any], cursor: str | None, limit: int) -> dict[str, Any]:
    """A page of a list that is at hand as a whole."""
    first = number_of(cursor)
    last = first + limit
    return {"items": items[first:last], "next": cursor_after(last) if last < len(items) else None}


def cursor_after(number: int, of: str = "") -> str:
    """The cursor of the page that begins behind a number; `of`: whose list it is, where there are several."""
    return base64.urlsafe_b64encode(b"n%d%b" % (number, _owner(of))).rstrip(b"=").decode()


def _owner(of: str) -> bytes:
    return b"." + hashlib.sha256(of.encode("utf-8", "replace")).hexdigest()[:16].encode() if of else b""


def number_of(cursor: str | None, of: str = "") -> int:
    """The number in a cursor, 0 without one. Raises `InvalidRequest` for one that is none of ours, or of the list of
    another."""
    if cursor is None:
        return 0
    try:
        text = base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        number, owner = text[1:].removesuffix(_owner(of)), _owner(of)
        if text == b"n%b%b" % (number, owner) and number.isdigit() and len(number) <= MAX_DIGITS:
            return int(number)
    except (ValueError, binascii.Error):
        pass
    raise InvalidRequest(
        f"cursor {cursor[:80]!r} does not belong to this list: pass `next` of the page before, or leave it out",
        code="invalid_cursor",
        errors=[{"at": "cursor", "message": "not a cursor of this list"}],
    )
