"""Identifiers: a prefix that names the kind, and a monotonic ULID in lower case; and names for people.

Ids made by one process sort by their time of creation, also within one millisecond, so that an index on an id is
an index on time. The random part is 80 bits; within a millisecond it is counted up.
"""

import os
import re
import time

NAME_CHARS = 64
_NOT_WORD = re.compile(r"[^\w-]+")
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]  # 10 bits at a time: half the steps


class _Clock:
    """The last ULID made; the next one is larger."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        fresh = time.time_ns() // 1_000_000 << 80
        if fresh <= self.last:  # same millisecond, or the clock was set back: go on from the last one
            self.last += 1 + (os.getpid() & 0xFF)
        else:
            self.last = fresh | int.from_bytes(os.urandom(10))
        return self.last


_clock = _Clock()


def new_id(prefix: str) -> str:
    """`<prefix>_<26 characters>`; prefixes: ses, mem, run, ho, msg, call, apr, art, ntc, key."""
    value = _clock.next()
    pairs = _PAIRS
    tail = "".join([pairs[(value >> shift) & 1023] for shift in (120, 110, 100, 90, 80, 70, 60, 50, 40, 30, 20, 10, 0)])
    return f"{prefix}_{tail}"


def now_us() -> int:
    """Microseconds since 1970, UTC: the unit of every time in the store."""
    return time.time_ns() // 1000


def readable(text: str) -> str:
    """A label of letters, digits, `_` and `-`, 64 characters at most; empty when nothing is left of the text."""
    return _NOT_WORD.sub("_", text).strip("_")[:NAME_CHARS]
