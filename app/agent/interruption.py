"""Awaiting code that may be deaf: what becomes of it when its time is over or nobody wants it any more (spec 7.4).

Knows neither tools nor runs, only a coroutine, how long it may take, and how long it is waited for after that.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

GRACE_MS = 5_000  # spec 7.4
CLEAN_UP_S = 1.0  # for what was let finish and did not: it has had its grace
LAST_WORD_S = 5.0  # for what is said of things that were ended, by all that end together
LEAST_WORD_S = 0.02  # so that those who answer at once are heard in any case

_left: set[asyncio.Task[Any]] = set()  # what did not end; or they may be collected while they run


class OutOfTime(Exception):
    """It did not end in its time and was cancelled; it may not have ended since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """How something is broken off. `finishes`: it is let go on for the grace; else it is cancelled at once and has the
    grace to clean up. `bound` says, in that moment, how much of a time there is."""

    grace_s: float = GRACE_MS / 1000
    finishes: bool = False
    bound: Callable[[float], float] = float


class LastWords:
    """The time in which hooks are told of what was ended, by one run or by a whole tree of them.

    It goes while anybody is told, and stands still while others are waited for: so runs side by side take it once.
    """

    __slots__ = ("_left_s", "_since", "_speaking")

    def __init__(self, seconds: float = LAST_WORD_S) -> None:
        self._left_s = seconds
        self._speaking = 0
        self._since = 0.0

    @contextlib.contextmanager
    def said(self, still: int) -> Iterator[float]:
        """Around one of them; gives how many seconds it may take. `still`: how many are to come one after the other,
        this one among them. What one leaves is there for those after it."""
        now = asyncio.get_running_loop().time()
        if self._speaking:
            self._left_s -= now - self._since
        self._since = now
        self._speaking += 1
        try:
            yield max(LEAST_WORD_S, self._left_s / still)
        finally:
            now = asyncio.get_running_loop().time()
            self._left_s -= now - self._since
            self._since = now
            self._speaking -= 1


def left_behind() -> int:
    """How many there are that go on though nobody waits for them any more."""
    return len(_left)


async def bounded(
    work: Coroutine[Any, Any, T], how: Interruption, *, timeout_s: float | None = None, name: str = "work"
) -> T:
    """The result of `work`, which runs in a task of its own. Raises `OutOfTime`, and what it raises.

    When the caller is cancelled this ends at most the grace and `CLEAN_UP_S` later, whatever `work` does: with its
    result if it has one by then, else with the cancellation. What does not end is left behind, and logged.
    """
    task = asyncio.create_task(work, name=name)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    except asyncio.CancelledError:
        if how.finishes:
            await _done(task, how.bound(how.grace_s))
        await _cancelled(task, how.bound(CLEAN_UP_S if how.finishes else how.grace_s))
        if not task.done() or task.cancelled():
            raise
        return task.result()
    if not task.done():
        if await _cancelled(task, how.bound(how.grace_s)):
            raise asyncio.CancelledError
        raise OutOfTime
    return await task  # done: its result, or what it raised


async def to_its_end(work: asyncio.Task[Any]) -> None:
    """Wait for the end of something that is bounded in time and must not be left, such as putting a process away, even
    when the caller is cancelled meanwhile: that is passed on after it. Raises nothing that `work` raises."""
    cancelled = False
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


async def _cancelled(task: asyncio.Task[Any], seconds: float) -> bool:
    """Cancel and wait for the end, so long and no longer. Whether the caller was cancelled meanwhile."""
    task.cancel()  # nothing when it is done
    meanwhile = await _done(task, seconds)
    if not task.done():
        log.error("%s does not end though it was cancelled: it is left behind", task.get_name())
        _left.add(task)
        task.add_done_callback(_forgotten)
    return meanwhile


async def _done(task: asyncio.Task[Any], seconds: float) -> bool:
    """Wait for the end, also when the caller is cancelled meanwhile: this ends soon. Whether it was."""
    loop = asyncio.get_running_loop()
    until, meanwhile = loop.time() + seconds, False
    while not task.done() and (left := until - loop.time()) > 0:
        try:
            await asyncio.wait({task}, timeout=left)
        except asyncio.CancelledError:
            meanwhile = True
    return meanwhile


def _forgotten(task: asyncio.Task[Any]) -> None:
    _left.discard(task)
    if not task.cancelled() and task.exception() is not None:
        log.warning("%s was left behind and ended with %r", task.get_name(), task.exception())
