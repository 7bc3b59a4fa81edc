"""Who may work now: places that are given in the order of asking.

Knows neither runs nor why their number is limited. A run that waits for children or for a person holds no place (spec
9.8), so whoever holds one gets on without anybody else, and waiting for one always ends.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager


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
    """What one run needs to work: a place in each of several queues, taken in one order by everybody.

    They are held while anything of the run works. While all its calls under way wait for persons, and while it waits
    for children, others have them.
    """

    __slots__ = ("_apart", "_away", "_held", "_open", "_slots", "_taking")

    def __init__(self, slots: Sequence[Slots] = ()) -> None:
        self._slots = tuple(slots)
        self._held: list[Slots] = []
        self._taking = asyncio.Lock()  # several calls that go on at once take one set
        self._open = 0  # calls under way
        self._away = 0  # of these: that wait for a person
        self._apart = False  # the run waits for children

    def __bool__(self) -> bool:
        return bool(self._slots)

    async def take(self) -> None:
        """Wait for all of them; those that are held are kept. What was taken before a cancellation is held until
        `give`."""
        async with self._taking:
            for slots in self._slots[len(self._held) :]:
                await slots.acquire()
                self._held.append(slots)

    def give(self) -> None:
        """Give back what is held."""
        while self._held:
            self._held.pop().release()

    @asynccontextmanager
    async def calls(self, count: int, *, apart: bool) -> AsyncIterator[None]:
        """Around a group of calls. `apart`: one of them waits for children, so that the run works without a place
        until all of them have ended. Afterwards the run holds its places again."""
        self._open, self._away, self._apart = count, 0, apart
        if apart:
            self.give()
        yield
        self._apart = False
        await self.take()

    def ended(self) -> None:
        """A call of the group has ended."""
        self._open -= 1
        self._rest()

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Around a call's wait for a person. It goes on when the run has its places again; a call that is cancelled
        needs none."""
        self._away += 1
        self._rest()
        try:
            yield
        finally:
            self._away -= 1
        if not self._apart:
            await self.take()

    def _rest(self) -> None:
        """Nothing of the run works: others may."""
        if self._away and self._away == self._open:
            self.give()
