"""Who may work now: places that are given in the order of asking.

Knows neither runs nor why their number is limited. A run that waits for children holds no place (spec 9.8), so whoever
holds one gets on without anybody else, and waiting for one always ends.
"""

import asyncio
from collections import deque
from collections.abc import Sequence


class Slots:
    """A number of places. First come, first served; a waiter that is cancelled leaves the queue."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return sum(not waiter.done() for waiter in self._waiting)

    async def acquire(self) -> None:
        """Take a place, now or when one is free."""
        if self._free > 0 and not self.waiting:
            self._free -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release()  # the place came in the same moment as the cancellation
            raise

    def release(self) -> None:
        """Give a place back: to the one who waits longest, if anybody does."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1


class Places:
    """What one run needs to work: a place in each of several queues, taken in one order by everybody."""

    __slots__ = ("_held", "_slots")

    def __init__(self, slots: Sequence[Slots] = ()) -> None:
        self._slots = tuple(slots)
        self._held: list[Slots] = []

    def __bool__(self) -> bool:
        return bool(self._slots)

    async def take(self) -> None:
        """Wait for all of them. What was taken before a cancellation is held until `give`."""
        for slots in self._slots[len(self._held) :]:
            await slots.acquire()
            self._held.append(slots)

    def give(self) -> None:
        """Give back what is held."""
        while self._held:
            self._held.pop().release()
