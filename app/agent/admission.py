"""Who may work now: places that are given in turn.

Knows neither runs nor why their number is limited. A run that waits for children, for a person or for another try of a
model call holds no place (spec 9.8), so whoever holds one gets on without anybody else, and waiting for one always
ends.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

CONCURRENT_RUNS = 2_000  # in the process (spec 9.8) …
CONCURRENT_CHILDREN = 20  # … and in a session


class _Queue:
    """Those who wait under one key. Who was at work before comes before those who were not: it holds what its children
    have found, and its end frees more than a beginning does, so that trees are finished one after the other instead of
    all being begun. Nobody waits for ever behind such: while one of them waits nobody begins, so they get fewer."""

    __slots__ = ("back", "new")

    def __init__(self) -> None:
        self.back: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self.new: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.back) + len(self.new)

    def first(self) -> asyncio.Future[None]:
        """Take out the one who is next."""
        return (self.back or self.new).popitem(last=False)[0]


class Slots:
    """A number of places, shared by keys.

    A free place goes to the keys in turn, so that whoever asks for one waits for at most one place of each other key,
    however many wait there. Within a key it is first come, first served, behind those who were at work before. A waiter
    that is cancelled leaves the queue. Every operation takes constant time.
    """

    __slots__ = ("_free", "_limit", "_queues")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = limit  # while anybody waits there is none
        self._queues: OrderedDict[str, _Queue] = OrderedDict()  # those in which somebody waits, the next one first

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return sum(len(queue) for queue in self._queues.values())

    @property
    def in_use(self) -> int:
        """How many places are taken."""
        return self._limit - self._free

    def take(self) -> bool:
        """Take a place if there is one now."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def acquire(self, key: str = "", *, back: bool = False) -> None:
        """Take a place, now or when it is this one's turn. `back`: for a run that was at work before."""
        if self.take():
            return
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue()
        line = queue.back if back else queue.new
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line[waiter] = None
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release()  # the place came in the same moment as the cancellation
            else:
                line.pop(waiter, None)  # unless its turn came in that moment, and passed
                if not queue and self._queues.get(key) is queue:
                    del self._queues[key]
            raise

    def release(self) -> None:
        """Give a place back: to the one whose turn it is, if anybody waits."""
        while self._queues:
            key, queue = next(iter(self._queues.items()))
            waiter = queue.first()
            if not queue:
                del self._queues[key]
            if waiter.done():
                continue  # it is being cancelled: its key keeps its turn
            if queue:
                self._queues.move_to_end(key)
            waiter.set_result(None)
            return
        self._free += 1


class Places:
    """What one run needs to work: a place in each of several queues, under its tenant's key.

    They are held while anything of the run works. While all its calls under way wait for persons or for another try,
    and while it waits for children, others have them.

    Everybody takes them in one order: those of budgets, the outermost first, then that of the session, then that of the
    process. Whoever waits for one holds only such as come before it, so from a run to the one whose place it waits for,
    and on to the next one, places come later and later: these steps never lead back in a circle, and at their end
    stands a run that works. That one waits for no child and no person while it holds anything, so it gets to where it
    gives its places back. Any one order would do for that. In this one, who waits behind the limit of its own budget or
    session keeps no place from other tenants.
    """

    __slots__ = ("_apart", "_away", "_back", "_held", "_key", "_open", "_slots", "_taking")

    def __init__(self, slots: Sequence[Slots] = (), key: str = "") -> None:
        self._slots = tuple(slots)
        self._key = key
        self._held = 0  # so many of them, from the first on
        self._back = False  # it had all of them before
        self._taking = asyncio.Lock()  # several calls that go on at once take one set
        self._open = 0  # calls under way
        self._away = 0  # of these: that wait for a person or for another try
        self._apart = False  # the run waits for children

    def __bool__(self) -> bool:
        return bool(self._slots)

    async def take(self) -> None:
        """Wait for all of them; those that are held are kept. What was taken before a cancellation is held until
        `give`."""
        if self._held == len(self._slots) or (not self._taking.locked() and self._at_once()):
            return
        async with self._taking:
            while self._held < len(self._slots):
                await self._slots[self._held].acquire(self._key, back=self._back)
                self._held += 1
        self._back = True

    def _at_once(self) -> bool:
        """Take what is free; whether these are all."""
        for slots in self._slots[self._held :]:
            if not slots.take():
                return False
            self._held += 1
        self._back = True
        return True

    def give(self) -> None:
        """Give back what is held."""
        while self._held:
            self._held -= 1
            self._slots[self._held].release()

    @asynccontextmanager
    async def calls(self, count: int, *, apart: bool) -> AsyncIterator[None]:
        """Around a group of calls. `apart`: one of them waits for children, so that the run works without a place
        until all of them have ended. Afterwards the run holds its places again."""
        self._open, self._away, self._apart = count, 0, apart
        if apart:
            self.give()
        try:
            yield
        finally:
            self._open, self._apart = 0, False
        await self.take()

    def ended(self) -> None:
        """A call of the group has ended."""
        self._open -= 1
        self._rest()

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Around a wait of a call, or of the run itself between its calls, in which it does not work. It goes on when
        the run has its places again; what is cancelled needs none."""
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
        if self._away and self._away >= self._open:
            self.give()
