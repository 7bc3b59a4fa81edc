"""What is wrong with one event of a chain, or with the place where it stands. Knows no statement."""

import time
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from app.store.as_stored import UNREADABLE, shown


class Row(NamedTuple):
    """An event as it stands in its table."""

    seq: Any  # nothing is trusted to be what it should; of this it makes a difference
    type: str
    run_id: str | None
    ts: int
    envelope: bytes
    data: bytes | None
    digest: bytes
    hash: bytes


class _Envelope(msgspec.Struct):
    """What stands in an envelope and in columns beside it."""

    id: int
    type: str
    ts: str
    session_id: str
    run_id: str | None = None


class _Closed(msgspec.Struct):
    reason: str = ""


_envelopes = msgspec.json.Decoder(_Envelope)
_closings = msgspec.json.Decoder(_Closed)


GONE = "its data is gone, though its session was not deleted"
UNEXPLAINED = "its data is gone, and no event behind it says that the session was deleted"
UNDELETED = "its data is there, though its session's row says that the session was deleted"


def says_deleted(kind: str, data: bytes) -> bool:
    """Whether an event says that its session was deleted."""
    return kind == "session.closed" and _closings.decode(data).reason == "deleted"


def problem_of(row: Row, number: int, previous: bytes, session_id: str) -> str | None:
    """What is wrong with the event that should be this `number`, behind one with this hash."""
    if not isinstance(row.seq, int):
        return f"a row with the number {shown(row.seq)} stands in its place: added, or changed"
    if row.seq != number:
        lost = f"event {number} is" if row.seq == number + 1 else f"events {number} to {row.seq - 1} are"
        return f"{lost} missing: event {row.seq} stands behind event {number - 1}"
    inner = row.digest if row.data is None else sha256(row.data).digest()
    if inner != row.digest or sha256(previous + row.envelope + inner).digest() != row.hash:
        return _changed(row, previous, inner, session_id)
    return _columns(row, session_id)


def _changed(row: Row, previous: bytes, inner: bytes, session_id: str) -> str:
    """Which part of an event does not fit the others."""
    try:
        told = _envelopes.decode(row.envelope)
    except UNREADABLE:
        return "its envelope was changed"
    if told.id != row.seq or told.session_id != session_id:
        other = "" if told.session_id == session_id else f" of session {shown(told.session_id)}"
        return f"event {told.id}{other} stands in its place: swapped, moved or changed"
    if inner == row.digest:
        return "its envelope or its hash was changed"
    if sha256(previous + row.envelope + row.digest).digest() == row.hash:
        return "its data was changed"
    if sha256(previous + row.envelope + inner).digest() == row.hash:
        return "the digest of its data was changed"
    return "its data and its hash, envelope or digest were changed"


@lru_cache(maxsize=256)
def _second(seconds: int) -> str:
    """The form of `wire.timestamp`, which belongs to the thread of the event loop."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _columns(row: Row, session_id: str) -> str | None:
    """Streams and filters go by columns that no hash covers: they say what the envelope says."""
    told = _envelopes.decode(row.envelope)
    if told.id != row.seq or told.session_id != session_id:
        other = f"event {told.id} of session {shown(told.session_id)}"
        return f"{other} stands in its place: the service did not write this"
    if told.type != row.type:
        return f"its column type says {shown(row.type)}, its envelope {shown(told.type)}"
    if told.run_id != row.run_id:
        return f"its column run_id says {shown(row.run_id)}, its envelope {shown(told.run_id)}"
    if told.ts != f"{_second(row.ts // 1_000_000)}.{row.ts // 1000 % 1000:03d}Z":
        return "its column ts says another time than its envelope"
    return None
