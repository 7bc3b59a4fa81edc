"""The chains of many sessions, verified by several processes side by side: hashing one after the other keeps a core.

Knows neither what a chain is nor how what was found is shown.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import islice
from multiprocessing import get_context
from types import TracebackType
from typing import Self

from app.sessions.verifying import Checked
from app.store.database import looking_connection
from app.store.location import Location
from app.store.verifying import Chains, SessionHead

MANY = 200_000  # events in one list of sessions, from which on it is worth to start processes
SHARE = 10  # sessions that a process takes at a time
MOST = 8  # processes


class Shares:
    """Verifies sessions in this process or, where they are many, in one for each core. `rows` as in `Chains.checked`.
    Used as a context, which ends the processes."""

    def __init__(self, chains: Chains, location: Location, key: bytes | None, *, rows: bool, many: int = MANY) -> None:
        self._chains = chains
        self._given = (location, key, rows)
        self._rows = rows
        self._many = many
        self._processes = min(_cores(), MOST)
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def checked(self, heads: Sequence[SessionHead]) -> Iterator[Checked]:
        """What was found, in the order of the sessions."""
        if self._pool is None and self._processes > 1 and sum(map(_events, heads)) >= self._many:
            # not forked: a child would have the connection of this process
            context = get_context("spawn")
            self._pool = ProcessPoolExecutor(self._processes, context, initializer=_begin, initargs=self._given)
        if self._pool is None:
            yield from self._chains.checked(heads, rows=self._rows)
            return
        left = iter(heads)
        shares = list(iter(lambda: list(islice(left, SHARE)), []))
        for found in self._pool.map(_check, shares):
            yield from found


def _events(head: SessionHead) -> int:
    return head.next_seq if isinstance(head.next_seq, int) else 0


def _cores() -> int:
    with suppress(AttributeError):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ── in one of those processes ───────────────────────────────────────────────────────────────────────────────────

_given: list[tuple[Location, bytes | None, bool]] = []


def _begin(location: Location, key: bytes | None, rows: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command itself is told, and ends this one
    _given.append((location, key, rows))


@cache
def _at_work() -> tuple[Chains, bool]:
    """Opened by the first share, whose answer says what is wrong: a process that cannot begin says nothing."""
    ((location, key, rows),) = _given
    return Chains(looking_connection(location), key), rows


def _check(heads: Sequence[SessionHead]) -> list[Checked]:
    chains, rows = _at_work()
    return list(chains.checked(heads, rows=rows))
