"""The hash chain of each session's events (spec 12.5), and the heads that the writer goes on from.

Knows no database. An event's hash is SHA-256(hash of the one before ‖ envelope ‖ SHA-256(data)); the first one follows
32 zero bytes. Both ends have a fixed length, so that no other cut of the bytes gives the same hash, and the envelope
names the session, so that no event fits into another chain.
"""

import hmac
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

GENESIS = bytes(32)


class Head(NamedTuple):
    """Where a session's chain goes on: the next number, and the hash of the last event. `sealed` False: it was read
    without the seal that it should have. Nothing that follows is sealed: a seal would vouch for what stands before."""

    next_seq: int
    hash: bytes
    sealed: bool = True


START = Head(1, GENESIS)


def digest(data: bytes) -> bytes:
    """What stays of an event's data when it is erased."""
    return sha256(data).digest()


def link(previous: bytes, envelope: bytes, data_digest: bytes) -> bytes:
    """The hash of an event."""
    return sha256(previous + envelope + data_digest).digest()


def seal(key: bytes, head: Head) -> bytes:
    """HMAC-SHA256 over the head's hash and the number of its event (8 bytes, big-endian)."""
    return hmac.digest(key, head.hash + (head.next_seq - 1).to_bytes(8), "sha256")


def is_seal(found: Any, right: bytes) -> bool:
    """Whether what stands in the place of a seal, whatever that is, is this one."""
    return isinstance(found, bytes) and hmac.compare_digest(found, right)


class Checkpoint(NamedTuple):
    """Where a session's chain begins once its front was removed: the last number that is gone, its hash, how many are
    gone, and when the last of them went (µs)."""

    upto: int
    hash: bytes
    removed: int
    created_at: int


def seal_checkpoint(key: bytes, session_id: str, point: Checkpoint) -> bytes:
    """HMAC-SHA256 over all of a checkpoint and its session. The message is longer than that of a head, so that neither
    seal passes for the other."""
    numbers = b"".join(number.to_bytes(8) for number in (point.upto, point.removed, point.created_at))
    return hmac.digest(key, b"checkpoint:" + point.hash + numbers + session_id.encode(), "sha256")


class Heads:
    """The heads of the sessions that were written last; those of a transaction count from `keep` on."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[tuple[str, str], Head] = OrderedDict()

    def get(self, key: tuple[str, str]) -> Head | None:
        return self._kept.get(key)

    def keep(self, heads: Mapping[tuple[str, str], Head]) -> None:
        """The transaction is committed."""
        for key, head in heads.items():
            self._kept[key] = head
            self._kept.move_to_end(key)
        while len(self._kept) > self._limit:
            self._kept.popitem(last=False)

    def forget(self) -> None:
        """Nothing is certain: look into the store again."""
        self._kept.clear()
