"""What others may tell a run that is under way: that it is to end, and by when; and what its children have used.

Knows neither what the run does (`loop.py`) nor who tells it (`supervisor.py`).
"""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from app.agent.interruption import LAST_WORD_S, LastWords
from app.agent.messages import NO_USAGE, Usage
from app.agent.runs import RunOutcome, RunStatus, StopReason

RESERVE_SHARE = 0.2  # of a deadline, kept for the forced answer …
RESERVE_MAX_S = 15.0  # … and at most this much (spec 5.7)


@dataclass(frozen=True, slots=True)
class _Ends:
    """When a clock ends: softly, with a reserve for the forced answer, and for good."""

    soft_at: float
    hard_at: float

    @classmethod
    def after(cls, now: float, total_ms: float) -> "_Ends":
        """Those of a clock that begins now."""
        total = total_ms / 1000
        return cls(now + total - min(RESERVE_MAX_S, total * RESERVE_SHARE), now + total)

    def later(self, seconds: float) -> "_Ends":
        """Those of a clock that stood still for so long."""
        return _Ends(self.soft_at + seconds, self.hard_at + seconds)


class Control:
    """What others may tell a run that is under way, and what its children have used.

    Two clocks may run, from `start` on: the deadline of its request and the wall time of a budget. `soft_at` and
    `hard_at`, on the clock of the event loop, are those of the one that ends first, `soft_reason` says whose; None: no
    deadline. `above`: the control of the run that waits for this one.
    """

    __slots__ = ("_deadline", "_held", "_held_at", "_limit", "_wall", "_words", "above", "requested", "usage_below")

    def __init__(self, above: "Control | None" = None) -> None:
        self._limit: asyncio.Timeout | None = None
        self._held = 0
        self._held_at = 0.0
        self._deadline: _Ends | None = None
        self._wall: _Ends | None = None
        self._words: tuple[LastWords, int] | None = None
        self.above = above
        self.requested: RunStatus | None = None
        self.usage_below: Usage = NO_USAGE

    def start(self, deadline_ms: float | None, wall_ms: float | None) -> None:
        """Both clocks run from now."""
        now = asyncio.get_running_loop().time()
        self._deadline = None if deadline_ms is None else _Ends.after(now, deadline_ms)
        self._wall = None if wall_ms is None else _Ends.after(now, wall_ms)

    @property
    def soft_at(self) -> float | None:
        """When the run is to give its answer."""
        return min((ends.soft_at for ends in self._ends()), default=None)

    @property
    def hard_at(self) -> float | None:
        """When it must have given it."""
        return min((ends.hard_at for ends in self._ends()), default=None)

    @property
    def soft_reason(self) -> StopReason:
        """Which of the clocks ends first."""
        wall = self._wall
        return StopReason.BUDGET if wall is not None and wall.soft_at == self.soft_at else StopReason.DEADLINE

    def _ends(self) -> Iterator[_Ends]:
        if self._deadline is not None:
            yield self._deadline.later(self._stood())
        if self._wall is not None:
            yield self._wall

    def _stood(self) -> float:
        return asyncio.get_running_loop().time() - self._held_at if self._held else 0.0

    def check(self) -> None:
        """Stop here when the run was told to end: an ending child must not set its parent going again."""
        if self.requested is not None:
            raise asyncio.CancelledError

    def watch(self, limit: asyncio.Timeout | None) -> None:
        """The soft deadline as the loop keeps it; None: it is over."""
        self._limit = limit
        self._reschedule()

    def hold(self) -> None:
        """A person is asked, here or below: the deadline stands still (spec 4.4). The wall time of a budget does
        not."""
        self._held += 1
        if self._held == 1:
            self._held_at = asyncio.get_running_loop().time()
            self._reschedule()

    def go_on(self) -> None:
        """That person has answered."""
        if self._held == 1 and self._deadline is not None:
            self._deadline = self._deadline.later(self._stood())
        self._held -= 1
        self._reschedule()

    def _reschedule(self) -> None:
        if self._limit is None or self._limit.expired():
            return
        wall = self._wall.soft_at if self._wall is not None else None
        self._limit.reschedule(wall if self._held else self.soft_at)

    def share(self, words: LastWords, below: int) -> None:
        """Runs that end together share the time of their last words; so many levels `below` the first of them."""
        if self._words is None:
            self._words = (words, below)

    def last_word(self, *, call: bool) -> AbstractContextManager[float]:
        """Around the last words of the run, or of a `call` of it; gives how many seconds they may take. Whoever waits
        for the run keeps half of the time that it has left, and the run itself does while it goes on."""
        if self.requested is None and call:
            return LastWords(half_left(self)).said(1)
        words, below = self._words or (LastWords(half_left(self.above)), 0)
        return words.said(2 * below + (2 if call else 1))

    def grace_s(self, full: float) -> float:
        """How much of a grace there is for what the run is at: half of the time that is left for an answer of its own,
        or, where it was told to end, of those above it."""
        now, left = asyncio.get_running_loop().time(), full
        control = self if self.requested is None else self.above
        while control is not None:
            if control.hard_at is not None:
                left = min(left, (control.hard_at - now) / 2)
            control = control.above
        return max(0.0, left)

    def settle(self, outcome: RunOutcome) -> None:
        """Count what a child and its subtree used."""
        self.usage_below = self.usage_below + outcome.usage_total


def half_left(control: Control | None) -> float:
    """How long last words may keep that run and those above it: half of the time that they have left, at most
    `LAST_WORD_S`."""
    now, left = asyncio.get_running_loop().time(), LAST_WORD_S
    while control is not None:
        if control.hard_at is not None:
            left = min(left, (control.hard_at - now) / 2)
        control = control.above
    return max(0.0, left)
