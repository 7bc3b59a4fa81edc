"""The one JSON form of kernel values: encoded once, the same bytes go to the log, into the hash and to every stream.

Knows neither HTTP nor the store.
"""

import json
import re
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from app.agent.events import Event, EventKind, Scope, StoredEvent
from app.agent.runs import Run

_encode = msgspec.json.encode
_decode = msgspec.json.decode
MAX_DEPTH = 200  # of nesting: two calls a level, so that the recursion limit is far away
MAX_INT_BITS = 14_000  # Python writes no integer of more than 4,300 digits
_BAD_TEXT = dict.fromkeys((0, *range(0xD800, 0xE000)), 0xFFFD)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d:\d\d(?:\.\d+)?)([Zz]|[+-]\d\d:\d\d))?", re.ASCII)
EXAMPLE = "2026-01-31T08:00:00Z or 2026-01-31T09:00:00+01:00"  # of a time as `microseconds_of` takes it
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)

_second = (-1, b"")


def timestamp(ts: int) -> str:
    """µs since 1970 as RFC 3339 UTC with milliseconds and `Z`."""
    return _timestamp(ts).decode()


def _timestamp(ts: int) -> bytes:
    global _second  # noqa: PLW0603  one entry is the right size: events come in order of time
    second, rest = divmod(ts, 1_000_000)
    if _second[0] != second:
        _second = (second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode())
    return b"%b.%03dZ" % (_second[1], rest // 1000)


def microseconds_of(text: str) -> int:
    """A time of RFC 3339 in µs since 1970; a date alone is its beginning in UTC. Raises `ValueError` for anything else,
    numbers and times without an offset among that: nobody knows which moment they mean."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:80]!r} is no time of RFC 3339")
    day, time_of_day, offset = found.groups()
    moment = datetime.fromisoformat(f"{day}T{time_of_day or '00:00:00'}{(offset or 'Z').upper()}")
    if not _FIRST <= moment <= _LAST:  # where it can be written in UTC as well
        raise ValueError(f"{text[:80]!r} is no time of the years 1 to 9999 in UTC")
    return (moment - _EPOCH) // _MICROSECOND


def clean(value: Any, depth: int = 0) -> Any:
    """The value with everything that JSON, SQL or a terminal cannot carry replaced by U+FFFD or text.

    Lone surrogates and NUL become U+FFFD, numbers that JSON cannot hold null, foreign objects their text; what is
    nested deeper than `MAX_DEPTH` becomes `…`.
    """
    if isinstance(value, str):
        return value.translate(_BAD_TEXT)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= MAX_INT_BITS else None
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, bytes | bytearray):
        return clean(bytes(value).decode("utf-8", "replace"))
    if depth >= MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        return {clean(str(key)): clean(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [clean(item, depth + 1) for item in value]
    return clean(str(value))


def clean_row(values: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row, cleaned; bytes stay."""
    return {name: value if isinstance(value, bytes) else clean(value) for name, value in values.items()}


def encode(value: Any) -> bytes:
    """JSON in UTF-8 on one line; what JSON cannot carry is cleaned first."""
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return json.dumps(clean(value), ensure_ascii=False, separators=(",", ":")).encode()


def encode_tree(value: Mapping[str, Any], below: Collection[str]) -> bytes:
    """A map as JSON whose lists under the keys `below` hold maps of the same kind, in however many levels. Each map is
    encoded for itself, so that neither the depth of the tree nor what stands in another map takes anything away."""
    pieces: list[bytes] = []
    waiting: list[bytes | Mapping[str, Any]] = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, bytes):
            pieces.append(item)
            continue
        own = {key: inner for key, inner in item.items() if key not in below}
        parts: list[bytes | Mapping[str, Any]] = [encode(own)[:-1]]
        comma = b"," if own else b""
        for key in [key for key in below if key in item]:
            parts.append(b"%b%b:[" % (comma, encode(key)))
            for at, inner in enumerate(item[key]):
                parts.extend((b",", inner) if at else (inner,))
            parts.append(b"]")
            comma = b","
        parts.append(b"}")
        waiting.extend(reversed(parts))
    return b"".join(pieces)


def decode(data: bytes | str) -> Any:
    """Read JSON; raises `ValueError`."""
    return _decode(data)


def encode_payload(payload: Mapping[str, object]) -> tuple[Mapping[str, Any], bytes]:
    """A payload without its None values, and its JSON. Text that a store refuses (NUL, lone surrogates) is cleaned
    in both, so that log, rows and streams agree."""
    kept = {key: value for key, value in payload.items() if value is not None}
    try:
        data = _encode(kept)
        if b"\\u0000" not in data:
            return kept, data
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass  # cleaned below
    kept = clean(kept)
    return kept, encode(kept)


def scope_bytes(scope: Scope) -> bytes:
    """The part of the envelope that all events of a run (or of a session) share."""
    if not isinstance(scope, Run):
        return b'"session_id":' + _encode(scope.session_id)
    fields: dict[str, Any] = {
        "session_id": scope.session_id,
        "run_id": scope.id,
        "run": scope.ordinal,
        "parent_run_id": scope.parent_id,
        "agent": scope.agent,
        "name": scope.name,
        "depth": scope.depth,
        "path": scope.path,
    }
    return encode({key: value for key, value in fields.items() if value is not None})[1:-1]


def envelope(seq: int, kind: EventKind[Any], ts: int, scope: bytes, step: int | None) -> bytes:
    """The envelope of a durable event as a JSON object without `data`; `scope` comes from `scope_bytes`."""
    head = b'{"id":%d,"type":"%b","v":%d,"ts":"%b",%b' % (seq, kind.name.encode(), kind.version, _timestamp(ts), scope)
    return b"%b}" % head if step is None else b'%b,"step":%d}' % (head, step)


def event_json(envelope_bytes: bytes, data: bytes) -> bytes:
    """Envelope and data as one JSON object."""
    return b'%b,"data":%b}' % (envelope_bytes[:-1], data)


def one_line(data: bytes) -> bytes:
    """JSON whose strings have escapes in place of U+0085, U+2028 and U+2029: readers that split text into lines
    (`str.splitlines`, `iter_lines` of httpx) end one there, though no server-sent event does."""
    if data.isascii():
        return data
    if b"\xe2" in data:  # with which these begin: most text has not even that
        data = data.replace(b"\xe2\x80\xa8", rb"\u2028").replace(b"\xe2\x80\xa9", rb"\u2029")
    return data.replace(b"\xc2\x85", rb"\u0085") if b"\xc2" in data else data


def frame(event: Event | StoredEvent, prev: int | None = None) -> bytes:
    """The event as a server-sent event with LF line ends; `prev` is the id of the frame before it in a filtered
    stream. Transient events have no id, so that they do not move a client's cursor."""
    if isinstance(event, Event) and not event.seq:
        return b"event: %b\ndata: %b\n\n" % (event.type.encode(), one_line(event.data))
    body = event_json(event.envelope, event.data)
    if not body.isascii():  # most are: this saves each of them a call
        body = one_line(body)
    if prev is not None:
        body = b'{"prev":%d,%b' % (prev, body[1:])
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.seq, event.type.encode(), body)


def transient_frame(name: str, payload: Mapping[str, Any]) -> bytes:
    """A frame that belongs to one connection only (snapshot, skipped, reset, closing)."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), one_line(encode(payload)))


class Envelope(msgspec.Struct):
    """The parts of a stored envelope that filters look at."""

    id: int
    type: str
    run_id: str = ""
    run: int = 0
    depth: int = 0
    path: tuple[int, ...] = ()


_envelopes = msgspec.json.Decoder(Envelope)


def read_envelope(data: bytes) -> Envelope:
    """What filters need of a stored envelope."""
    return _envelopes.decode(data)


def parse_arguments(raw: str) -> tuple[Mapping[str, Any] | None, str | None]:
    """(arguments, None), or (None, what is wrong with them). Strict JSON, an object; never repaired or guessed.

    Blank text and `null` are what servers send for no arguments: `{}`. Of equal keys the last one counts.
    """
    text = raw.strip()
    if not text or text == "null":
        return {}, None
    try:
        value = _decode(text)
    except RecursionError:
        return None, "the arguments are nested too deeply"
    except (msgspec.MsgspecError, UnicodeError) as error:
        return None, f"the arguments are not valid JSON ({error}): {_preview(text)}"
    if not isinstance(value, dict):
        return None, f"the arguments must be a JSON object, not {_kind(value)}: {_preview(text)}"
    return value, None


def _preview(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _kind(value: Any) -> str:
    names: tuple[tuple[type, str], ...] = ((bool, "a boolean"), (str, "a string"), (list, "a list"))
    return next((name for kind, name in names if isinstance(value, kind)), "a number")
