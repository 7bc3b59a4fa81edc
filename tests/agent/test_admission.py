"""Places: given in the order of asking, never more than there are, none lost, whenever somebody is cancelled."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.agent.admission import Places, Slots
from tests.agent.purse import turns, waiting
from tests.world import WAIT_S

pytestmark = pytest.mark.spec("9.8", "4.8")


async def free(slots: Slots, most: int = 5) -> int:
    """How many places can be had at once now; gives them back."""
    tasks = [asyncio.create_task(slots.acquire()) for _ in range(most)]
    await turns()
    got = sum(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for _ in range(got):
        slots.release()
    return got


async def test_places_are_given_in_the_order_of_asking() -> None:
    slots, order = Slots(1), []
    await slots.acquire()

    async def come(name: int) -> None:
        await slots.acquire()
        order.append(name)
        await turns(1)
        slots.release()

    tasks = [asyncio.create_task(come(name)) for name in range(5)]
    await turns()
    assert (slots.waiting, order) == (5, [])
    slots.release()
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*tasks)
    assert (order, slots.waiting, await free(slots)) == ([0, 1, 2, 3, 4], 0, 1)


async def test_nobody_passes_those_who_wait() -> None:
    slots = Slots(1)
    await slots.acquire()
    first = await waiting(slots.acquire())
    slots.release()  # the place is the first one's now, though he has not moved yet
    second = await waiting(slots.acquire())
    assert first.done()
    slots.release()
    await turns()
    assert second.done()


async def test_a_waiter_that_is_cancelled_leaves_the_queue_and_the_next_one_moves_up() -> None:
    slots = Slots(1)
    await slots.acquire()
    first, second = await waiting(slots.acquire()), await waiting(slots.acquire())
    first.cancel()
    await turns()
    assert slots.waiting == 1
    slots.release()
    await turns()
    assert (first.cancelled(), second.done(), second.cancelled()) == (True, True, False)


async def test_a_place_that_comes_together_with_a_cancellation_goes_to_the_next_one() -> None:
    slots = Slots(1)
    await slots.acquire()
    first, second = await waiting(slots.acquire()), await waiting(slots.acquire())
    slots.release()
    first.cancel()
    await turns()
    assert (first.cancelled(), second.done()) == (True, True)
    slots.release()
    assert await free(slots) == 1


async def test_a_place_that_comes_together_with_the_last_cancellation_is_free_again() -> None:
    slots = Slots(1)
    await slots.acquire()
    only = await waiting(slots.acquire())
    slots.release()
    only.cancel()
    await turns()
    assert (only.cancelled(), slots.waiting, await free(slots)) == (True, 0, 1)


async def test_what_was_taken_before_a_cancellation_is_given_back() -> None:
    outer, inner = Slots(1), Slots(1)
    await inner.acquire()
    places = Places((outer, inner))
    task = await waiting(places.take())
    task.cancel()
    await turns()
    assert await free(outer) == 0
    places.give()
    places.give()
    assert await free(outer) == 1
    inner.release()
    async with asyncio.timeout(WAIT_S):
        await places.take()
        await places.take()  # what is held is not taken twice
    assert (await free(outer), await free(inner)) == (0, 0)
    places.give()
    assert (await free(outer), await free(inner)) == (1, 1)


async def test_without_queues_there_is_nothing_to_wait_for() -> None:
    places = Places()
    await places.take()
    places.give()
    assert not places
    assert Places((Slots(1),))


class Crowd:
    """Runs in a tree of limits that nest, pause and are cancelled; counts who is at work under each limit."""

    def __init__(self, seed: int, limits: list[int]) -> None:
        self.chance = random.Random(seed)
        self.levels = [Slots(limit) for limit in limits]
        self.limits = limits
        self.at_work = [0] * len(limits)
        self.too_many: list[str] = []
        self.done = 0

    async def _work(self, depth: int) -> None:
        for level in range(depth):
            self.at_work[level] += 1
            if self.at_work[level] > self.limits[level]:
                self.too_many.append(f"{self.at_work[level]} under limit {self.limits[level]} of level {level}")
        try:
            await turns(self.chance.randrange(4))
        finally:
            for level in range(depth):
                self.at_work[level] -= 1

    async def run(self, depth: int, fan: int) -> None:
        """A run under the first `depth` limits, that starts `fan` below it, waits for them and goes on."""
        places = Places(self.levels[:depth])
        try:
            await places.take()
            await self._work(depth)
            if depth < len(self.levels):
                places.give()
                await asyncio.gather(*(self.run(depth + 1, fan) for _ in range(fan)))
                await places.take()
                await self._work(depth)
            self.done += 1
        finally:
            places.give()


@given(seed=st.integers(0, 2**32), limits=st.lists(st.integers(1, 3), min_size=1, max_size=3), fan=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
async def test_nested_runs_never_exceed_a_limit_and_all_get_to_their_end(
    seed: int, limits: list[int], fan: int
) -> None:
    crowd = Crowd(seed, limits)
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(crowd.run(1, fan) for _ in range(fan)))
    assert crowd.too_many == []
    assert crowd.done == sum(fan ** (level + 1) for level in range(len(limits)))
    assert [await free(slots) for slots in crowd.levels] == limits


@given(seed=st.integers(0, 2**32), limits=st.lists(st.integers(1, 3), min_size=1, max_size=3))
@settings(max_examples=100, deadline=None)
async def test_no_place_is_lost_by_cancellations_at_any_moment(seed: int, limits: list[int]) -> None:
    crowd = Crowd(seed, limits)
    tasks = [asyncio.create_task(crowd.run(1, 2)) for _ in range(5)]
    for task in crowd.chance.sample(tasks, 3):
        await turns(crowd.chance.randrange(8))
        task.cancel()
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*tasks, return_exceptions=True)
        await turns()
    assert crowd.too_many == []
    assert crowd.done >= sum(not task.cancelled() for task in tasks), "who was not cancelled got to the end"
    assert [(await free(slots), slots.waiting) for slots in crowd.levels] == [(limit, 0) for limit in limits]


# ── questions to persons ────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_place_is_free_while_all_calls_of_a_run_wait_for_persons_and_no_longer() -> None:
    slots = Slots(1)
    places = Places((slots,))
    await places.take()
    answers = [asyncio.Event(), asyncio.Event()]

    async def asking(answer: asyncio.Event) -> None:
        async with places.away():
            await answer.wait()
        assert await free(slots) == 0
        places.ended()

    async with places.calls(2, apart=False):
        first = await waiting(asking(answers[0]))
        assert await free(slots) == 0, "the other call works"
        second = await waiting(asking(answers[1]))
        assert await free(slots) == 1, "nobody works"
        answers[0].set()
        await first
        assert await free(slots) == 1, "only the second question is left"
        answers[1].set()
        await second
        assert await free(slots) == 0, "the run itself goes on"
    places.give()
    assert await free(slots) == 1


async def test_a_run_that_waits_for_children_takes_no_place_when_a_person_has_answered() -> None:
    slots = Slots(1)
    places = Places((slots,))
    await places.take()
    async with places.calls(1, apart=True):
        assert await free(slots) == 1
        async with places.away():
            pass
        assert await free(slots) == 1, "the child needs it"
        places.ended()
    assert await free(slots) == 0


async def test_a_question_that_is_cancelled_needs_no_place_and_one_that_waits_for_its_place_loses_none() -> None:
    slots = Slots(1)
    places, other = Places((slots,)), Places((slots,))
    await places.take()
    answer = asyncio.Event()

    async def asking() -> None:
        try:
            async with places.away():
                await answer.wait()
        finally:
            places.ended()

    with pytest.raises(asyncio.CancelledError):
        async with places.calls(2, apart=False):
            tasks = [await waiting(asking()) for _ in range(2)]
            await other.take()  # both ask, so another has it
            tasks[0].cancel()
            await turns()
            assert tasks[0].cancelled(), "it does not wait for a place"
            answer.set()
            await turns()
            assert not tasks[1].done(), "it does"
            tasks[1].cancel()
            await turns()
            await tasks[1]
    other.give()
    places.give()
    assert await free(slots) == 1


class Asking(Crowd):
    """Runs whose calls ask persons, side by side, before and after they start others."""

    async def _call(self, places: Places, depth: int) -> None:
        try:
            if self.chance.random() < 0.7:
                async with places.away():
                    await turns(self.chance.randrange(9))
            self.calls[id(places)] = self.calls.get(id(places), 0) + 1
            if self.calls[id(places)] == 1:
                await self._begin(depth)
            await turns(self.chance.randrange(4))
        finally:
            self._over(places, depth)
            places.ended()

    async def _begin(self, depth: int) -> None:
        for level in range(depth):
            self.at_work[level] += 1
            if self.at_work[level] > self.limits[level]:
                self.too_many.append(f"{self.at_work[level]} under limit {self.limits[level]} of level {level}")

    def _over(self, places: Places, depth: int) -> None:
        left = self.calls.get(id(places), 0)
        if not left:
            return  # it was cancelled before it went on
        self.calls[id(places)] = left - 1
        if left == 1:
            for level in range(depth):
                self.at_work[level] -= 1

    async def run(self, depth: int, fan: int) -> None:
        """A run that takes its places, asks in several calls, starts `fan` runs below it, and asks again."""
        places = Places(self.levels[:depth])
        try:
            await places.take()
            await self._group(places, depth)
            if depth < len(self.levels):
                async with places.calls(1, apart=True):
                    async with places.away():  # may it delegate at all?
                        await turns(self.chance.randrange(4))
                    await asyncio.gather(*(self.run(depth + 1, fan) for _ in range(fan)))
                    places.ended()
                await self._group(places, depth)
            self.done += 1
        finally:
            places.give()

    async def _group(self, places: Places, depth: int) -> None:
        count = self.chance.randrange(1, 4)
        async with places.calls(count, apart=False):
            tasks = [asyncio.create_task(self._call(places, depth)) for _ in range(count)]
            try:
                await asyncio.gather(*tasks)
            except asyncio.CancelledError:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                raise

    def __init__(self, seed: int, limits: list[int]) -> None:
        super().__init__(seed, limits)
        self.calls: dict[int, int] = {}  # of each run: that work


@given(seed=st.integers(0, 2**32), limits=st.lists(st.integers(1, 3), min_size=1, max_size=3), fan=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
async def test_runs_that_ask_persons_at_every_depth_never_exceed_a_limit_and_all_get_to_their_end(
    seed: int, limits: list[int], fan: int
) -> None:
    crowd = Asking(seed, limits)
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(crowd.run(1, fan) for _ in range(fan)))
    assert crowd.too_many == []
    assert crowd.done == sum(fan ** (level + 1) for level in range(len(limits)))
    assert [await free(slots) for slots in crowd.levels] == limits


@given(seed=st.integers(0, 2**32), limits=st.lists(st.integers(1, 3), min_size=1, max_size=3))
@settings(max_examples=100, deadline=None)
async def test_no_place_is_lost_by_cancellations_while_persons_are_asked(seed: int, limits: list[int]) -> None:
    crowd = Asking(seed, limits)
    tasks = [asyncio.create_task(crowd.run(1, 2)) for _ in range(5)]
    for task in crowd.chance.sample(tasks, 3):
        await turns(crowd.chance.randrange(16))
        task.cancel()
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*tasks, return_exceptions=True)
        await turns()
    assert crowd.too_many == []
    assert crowd.done >= sum(not task.cancelled() for task in tasks), "who was not cancelled got to the end"
    assert [(await free(slots), slots.waiting) for slots in crowd.levels] == [(limit, 0) for limit in limits]
