"""When a request that failed for now is sent again, and when it is given up.

Knows no connection: `client.py` waits by it.
"""

import random
import time

from app.frames import Gap

RECONNECT_S = 1.0  # before a stream is taken up again, when the server does not say
LONGEST_PAUSE_S = 15.0
PATIENCE_S = 90.0  # without a sign of life, before a stream is given up; a restart may take the grace and longer
GAPS = 3  # in a row at one place, before a stream is given up


class Unreachable(Exception):
    """Nothing answers at that address."""


class CutOff(Unreachable):
    """An answer began and did not come to its end."""


class BrokenStream(Unreachable):
    """What answers there is no event stream of this service, or leaves events out each time it is asked."""


class Pauses:
    """When a stream that was cut is taken up again, and when it is given up. `moved`: the last connection showed
    something new, `over`: there is nothing more."""

    def __init__(self, fixed_s: float | None, patience_s: float) -> None:
        self.over = self.moved = False
        self.asked_ms: int | None = None
        self.pause_s = 0.0
        self.gaps = 0
        self._fixed_s = fixed_s
        self._patience_s = patience_s
        self._tries = 0
        self._alive_at = time.monotonic()

    @property
    def exhausted(self) -> bool:
        """Whether nobody was there for too long."""
        return time.monotonic() - self._alive_at > self._patience_s

    def alive(self) -> None:
        """Something came."""
        self._alive_at, self._tries = time.monotonic(), 0

    def cut(self, why: str, wait_s: float | None = None, *, at_once: bool = False) -> None:
        """Decide how long to wait: at least `wait_s`, but never beyond the patience. Raises `Unreachable`."""
        if self.exhausted:
            raise Unreachable(f"{why}; given up after {self._patience_s:g} s")
        asked_s = RECONNECT_S if self.asked_ms is None else self.asked_ms / 1000
        base_s = asked_s if self._fixed_s is None else self._fixed_s
        # all clients of a server that went away come back: not at the same moment, and ever more slowly
        pause_s = min(base_s * 1.5 ** min(self._tries, 20), max(base_s, LONGEST_PAUSE_S)) * random.uniform(0.5, 1.5)
        rest_s = max(0.0, self._alive_at + self._patience_s - time.monotonic())  # then it is tried a last time
        self.pause_s = 0.0 if at_once else min(max(pause_s, wait_s or 0.0), rest_s)
        self._tries += 1

    def gap(self, gap: Gap) -> None:
        """Events are missing: ask for them once more. Raises `BrokenStream`."""
        self.gaps += 1
        if self.gaps >= GAPS:
            raise BrokenStream(str(gap)) from gap
        self.cut(str(gap))
