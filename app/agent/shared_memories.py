"""Memories that several runs use one after the other: who is next, and who would wait for itself.

One queue for each memory, in the order of asking. What a run leaves is handed to the next one; the store is read only
when a memory has no queue. Knows neither runs nor sessions by more than their ids.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from app.agent.runs import MemoryState

Load = Callable[[str, str], Coroutine[Any, Any, MemoryState]]


class _Shared:
    """One memory with its queue; the first seat holds it."""

    __slots__ = ("free", "key", "queue", "reading", "stale", "state", "taken")

    def __init__(self, key: tuple[str, str]) -> None:
        self.key = key
        self.queue: deque[MemorySeat] = deque()
        self.reading: asyncio.Future[MemoryState] | None = None
        self.state: MemoryState | None = None
        self.stale = False  # something of it was erased since
        self.free = asyncio.Event()  # not set: what its holder leaves is being erased
        self.free.set()
        self.taken = 0  # seats that were given since the memory was read


class MemorySeat:
    """A place in the queue (port `Seat`). `parent_id`: the run that delegates; `run_id`: the one that sits on it;
    `unwanted`: whoever came later wants that run to end, before it has begun."""

    __slots__ = ("_all", "_mine", "_number", "_shared", "parent_id", "run_id", "unwanted")

    def __init__(self, all_seats: "SharedMemories", shared: _Shared, number: int, parent_id: str | None) -> None:
        self._all = all_seats
        self._shared = shared
        self._number = number
        self._mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.parent_id = parent_id
        self.run_id: str | None = None
        self.unwanted = False

    @property
    def memory_id(self) -> str:
        """Which memory."""
        return self._shared.key[1]

    @property
    def turn(self) -> int:
        """The ordinal of the run in the memory: in the order of the seats, also when one of them is given up."""
        reading = self._shared.reading
        assert reading is not None and reading.done(), "opened() comes first"
        return reading.result().next_turn + self._number

    async def opened(self) -> None:
        """Wait until the memory is read."""
        reading = self._shared.reading
        if reading is None or (reading.done() and (reading.cancelled() or reading.exception() is not None)):
            reading = asyncio.create_task(self._all.read(*self._shared.key), name="read memory")
            self._shared.reading = reading
        await asyncio.shield(reading)

    async def hold(self) -> MemoryState:
        """Wait for one's turn; what the memory holds then."""
        await self.opened()
        if self._shared.queue[0] is not self:
            await self._mine
        shared = self._shared
        await shared.free.wait()
        while shared.stale:
            shared.stale = False
            try:
                shared.state = await self._all.read(*shared.key)
            except BaseException:  # border to the store: whatever it is, also a cancel, nothing was read
                shared.stale = True  # for whoever comes next
                raise
        assert shared.reading is not None
        return shared.state if shared.state is not None else shared.reading.result()

    def held(self) -> _Shared | None:
        """The memory whose first seat this is, if it is."""
        queue = self._shared.queue
        return self._shared if queue and queue[0] is self else None

    def leave(self, state: MemoryState | None = None) -> None:
        """Give the place up, with what the memory holds now if it was held."""
        if state is not None:
            self._shared.state = state
        self._all.left(self, self._shared)

    def ahead(self) -> Iterable["MemorySeat"]:
        """Those who come before this one."""
        for seat in self._shared.queue:
            if seat is self:
                return
            yield seat

    def call(self) -> None:
        """It is this one's turn."""
        if not self._mine.done():
            self._mine.set_result(None)


class SharedMemories:
    """All queues of a process."""

    def __init__(self, load: Load, children: Callable[[str], Collection[str]]) -> None:
        """`load` reads a memory from the store; `children` are the open runs that a run has started."""
        self.read = load
        self._children = children
        self._memories: dict[tuple[str, str], _Shared] = {}
        # of its children, with a run or not yet, in the order of asking
        self._of_parent: dict[str, dict[MemorySeat, None]] = {}

    @property
    def used(self) -> bool:
        """Whether anybody has a place anywhere."""
        return bool(self._memories or self._of_parent)

    def length(self, tenant: str, memory_id: str) -> int:
        """How many have a place at a memory."""
        shared = self._memories.get((tenant, memory_id))
        return 0 if shared is None else len(shared.queue)

    def take(
        self,
        tenant: str,
        memory_id: str,
        parent_id: str | None,
        lineage: Collection[str],
        *,
        fresh: bool = False,
        again: bool = False,
    ) -> MemorySeat | None:
        """The last place in the queue; None when one of those ahead waits for `lineage`: the runs which this place
        keeps waiting. `fresh`: the memory is a new one, and empty; `again`: for a run that has its number already."""
        shared = self._memories.get((tenant, memory_id))
        if shared is None:
            shared = self._memories[(tenant, memory_id)] = _Shared((tenant, memory_id))
            if fresh:
                shared.reading = asyncio.get_running_loop().create_future()
                shared.reading.set_result(MemoryState())
        elif self._waits(shared.queue, lineage):
            return None
        seat = MemorySeat(self, shared, shared.taken, parent_id)
        shared.taken += not again
        shared.queue.append(seat)
        if parent_id is not None:
            self._of_parent.setdefault(parent_id, {})[seat] = None
        return seat

    def reread(self) -> None:
        """Something was erased from the store: the next ones get what is left of their memories there."""
        for shared in self._memories.values():
            shared.stale = True

    @contextmanager
    def erasing(self, seats: Iterable[MemorySeat]) -> Iterator[None]:
        """While what the runs on these seats did is erased from the store, nobody takes up a memory that one of them
        holds: it would be handed on, or read, before it is gone."""
        held = [shared for seat in seats if (shared := seat.held()) is not None]
        for shared in held:
            shared.free.clear()
        try:
            yield
        finally:
            for shared in held:
                shared.free.set()
            self.reread()

    def sit(self, seat: MemorySeat, run_id: str) -> None:
        """The seat belongs to that run from now on."""
        seat.run_id = run_id

    def _waits(self, ahead: Iterable[MemorySeat], lineage: Collection[str]) -> bool:
        """Whether anybody ahead gets on only after one of `lineage` has ended."""
        if not lineage:
            return False
        seen: set[object] = set(ahead)
        runs = [seat.run_id for seat in ahead if seat.run_id is not None]
        while runs:
            run = runs.pop()
            if run in lineage:
                return True
            if run in seen:
                continue
            seen.add(run)
            runs.extend(self._children(run))
            for seat in reversed(self._of_parent.get(run, {})):  # the last one in a queue has all others ahead of it
                if seat not in seen:  # then nobody ahead of it needs to be looked at again either
                    seen.add(seat)
                    before = [other for other in seat.ahead() if other not in seen]
                    seen.update(before)
                    runs.extend(other.run_id for other in (seat, *before) if other.run_id is not None)
        return False

    def left(self, seat: MemorySeat, shared: _Shared) -> None:
        """A seat was given up."""
        if seat not in shared.queue:
            return
        first = shared.queue[0] is seat
        shared.queue.remove(seat)
        if seat.parent_id is not None:
            own = self._of_parent.get(seat.parent_id, {})
            own.pop(seat, None)
            if not own:
                self._of_parent.pop(seat.parent_id, None)
        if not shared.queue:
            self._memories.pop(shared.key, None)
        elif first:
            shared.queue[0].call()
