"""Verifying the log: is what stands in the store what was written (spec 12.5). The port, the answer and its words.

Knows no SQL and no HTTP, and not how a hash is made.
"""

import asyncio
import threading
from dataclasses import dataclass
from typing import Any, Protocol

from app.agent.errors import InvalidRequest, NotFound

DAMAGE = (
    "This finds damage, not forgery: without audit.key, whoever can write to the database can also make the hashes and "
    "the head anew."
)
UNSEALED = "Whether events were removed for their age, or the checkpoint that says so was forged, is not told apart."
FORGERY = (
    "The head is sealed with audit.key: who does not have it can change, cut or add no event unseen. Not seen is a "
    "session that is gone as a whole, or one that was set back as a whole to an earlier state with the seal of then."
)
MAX_EVENTS = 100_000  # of one answer over HTTP: about a second of one core
MAX_S = 5.0  # however slow the store is


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How far a chain was found sound: its last event and that one's hash. `erased`: the first event without data that
    no later event has accounted for yet, 0: none."""

    seq: int = 0
    hash: bytes = bytes(32)
    erased: int = 0


BEGINNING = Place()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """The first event with which something is wrong, and what. An event that is missing counts, too."""

    id: int
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A chain up to `place`. `head` and `head_hash` are what the session's row says of its last event. `complete`: it
    was looked at up to there, or to the flaw."""

    place: Place
    head: int
    head_hash: bytes
    flaw: Flaw | None
    complete: bool
    removed: int = 0  # events before the checkpoint, where the chain begins


class ChainStore(Protocol):
    """Reads and recomputes chains. Synchronous: reading and hashing are called in a thread of their own."""

    def check(
        self, tenant: str, session_id: str, place: Place, *, limit: int, seconds: float, stop: threading.Event
    ) -> Checked | None:
        """Go on behind `place`, for at most so many events and seconds, or until `stop` is set. None: there is no
        such session, not even a deleted one. Raises `TransientStoreError` while the store cannot be read."""


class Verifying:
    """Answers clients. One at a time is worked on, so that however many ask, the runs keep their share of the
    processor; the others wait."""

    def __init__(self, store: ChainStore, *, keyed: bool) -> None:
        self._store = store
        self._keyed = keyed
        self._turn = asyncio.Lock()

    async def verify(
        self, tenant: str, session_id: str, *, cursor: str | None = None, limit: int = MAX_EVENTS
    ) -> dict[str, Any]:
        """A session's chain, from its first event or from a cursor on. Raises `NotFound` for unknown sessions and those
        of other tenants, `InvalidRequest` for a cursor that is none."""
        place = BEGINNING if cursor is None else read_cursor(cursor)
        stop = threading.Event()
        async with self._turn:
            try:
                checked = await asyncio.to_thread(
                    self._store.check, tenant, session_id, place, limit=limit, seconds=MAX_S, stop=stop
                )
            finally:
                stop.set()  # a caller that went away: the thread ends with its page
        if checked is None:
            raise NotFound(f"there is no session {session_id!r}")
        return report(session_id, checked, keyed=self._keyed)


def report(session_id: str, checked: Checked, *, keyed: bool) -> dict[str, Any]:
    """What is shown of a check. `ok` is None as long as nothing is wrong and events are left to be looked at."""
    flaw = checked.flaw
    return {
        "session_id": session_id,
        "ok": False if flaw is not None else True if checked.complete else None,
        "events": checked.place.seq,
        "removed": checked.removed,
        "head": {"id": checked.head, "hash": checked.head_hash.hex()},
        "first_bad": None if flaw is None else {"id": flaw.id, "problem": flaw.problem},
        "keyed": keyed,
        "says": FORGERY if keyed else f"{DAMAGE} {UNSEALED}" if checked.removed else DAMAGE,
        "next": None if checked.complete else write_cursor(checked.place),
    }


def write_cursor(place: Place) -> str:
    """Where a check goes on. The hash is in it, so that what was found sound cannot be exchanged in between."""
    return f"{place.seq}.{place.erased}.{place.hash.hex()}"


def read_cursor(cursor: str) -> Place:
    """The place in a cursor."""
    seq, _, rest = cursor.partition(".")
    erased, _, digest = rest.partition(".")
    decimal = all(part.isascii() and part.isdigit() and len(part) < 19 for part in (seq, erased))
    if decimal and len(digest) == 64 and set(digest) <= set("0123456789abcdef"):
        return Place(seq=int(seq), erased=int(erased), hash=bytes.fromhex(digest))
    raise InvalidRequest(
        f"cursor {cursor[:80]!r} is none of a verification: pass `next` of the answer before, or leave it out",
        code="invalid_cursor",
        errors=[{"at": "cursor", "message": "not a cursor of a verification"}],
    )
