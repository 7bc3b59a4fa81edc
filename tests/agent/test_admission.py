"""Places: given in turn, never more than there are, none lost, whenever somebody is cancelled."""

import asyncio
import random
from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.agent.admission import Places, Slots
from tests.agent.purse import turns, waiting
from tests.longer import examples
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


# ── between keys ────────────────────────────────────────────────────────────────────────────────────────────────────


async def queued(slots: Slots, served: list[str], key: str, name: str, *, back: bool = False) -> asyncio.Task[None]:
    """Somebody who waits, and is written down when he is served."""

    async def come() -> None:
        await slots.acquire(key, back=back)
        served.append(name)

    task = asyncio.create_task(come())
    await asyncio.sleep(0)
    return task


async def drained(slots: Slots, tasks: Sequence[asyncio.Task[None]]) -> None:
    """Give one place on and on until all are served."""
    for task in tasks:
        assert not task.cancelled()
        slots.release()
        await asyncio.sleep(0)
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*tasks)


async def test_a_crowd_of_one_tenant_delays_another_ones_single_run_by_one_place() -> None:
    slots, served = Slots(1), list[str]()
    assert slots.take()
    crowd = [await queued(slots, served, "big", "big") for _ in range(10_000)]
    single = [await queued(slots, served, key, key) for key in ("b", "c")]
    assert (slots.in_use, slots.waiting) == (1, 10_002)
    await drained(slots, [*crowd, *single])
    assert served[:4] == ["big", "b", "c", "big"]
    slots.release()
    assert (slots.in_use, slots.waiting) == (0, 0)


async def test_who_was_at_work_before_comes_before_those_of_its_key_who_were_not_in_the_order_of_asking() -> None:
    slots, served = Slots(1), list[str]()
    assert slots.take()
    tasks = [await queued(slots, served, "a", f"a{number}") for number in range(2)]
    tasks += [await queued(slots, served, "b", "b0")]
    tasks += [await queued(slots, served, "a", f"back{number}", back=True) for number in range(2)]
    await drained(slots, tasks)
    assert served == ["back0", "b0", "back1", "a0", "a1"]


async def test_a_key_all_of_whose_waiters_are_cancelled_takes_no_turn() -> None:
    slots, served = Slots(1), list[str]()
    assert slots.take()
    gone = [await queued(slots, served, "a", "gone") for _ in range(3)]
    stays = await queued(slots, served, "b", "b")
    for task in gone:
        task.cancel()
    slots.release()  # before they have noticed
    await turns()
    assert (served, stays.done(), slots.waiting, slots.in_use) == (["b"], True, 0, 1)


class Office:
    """Slots, and a plain model of who is to be served next: keys in turn, within one the order of asking."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.limit = self.chance.randrange(1, 4)
        self.slots = Slots(self.limit)
        self.held: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.lines: dict[str, tuple[deque[str], deque[str]]] = {}  # in the order of their turns
        self.served: list[str] = []
        self.expected: list[str] = []

    async def _come(self, number: int) -> None:
        key, back = self.chance.choice("abc"), self.chance.random() < 0.3
        name = f"{key}{number}"
        if len(self.held) < self.limit:
            self.expected.append(name)
            self.held.append(name)
        else:
            lines = self.lines.setdefault(key, (deque(), deque()))
            lines[not back].append(name)
        self.tasks[name] = await queued(self.slots, self.served, key, name, back=back)

    def _release(self) -> None:
        self.held.pop(self.chance.randrange(len(self.held)))
        self.slots.release()
        if self.lines:
            key, lines = next(iter(self.lines.items()))
            name = (lines[0] or lines[1]).popleft()
            self.expected.append(name)
            self.held.append(name)
            del self.lines[key]
            if lines[0] or lines[1]:
                self.lines[key] = lines

    async def _cancel(self) -> None:
        key = self.chance.choice(list(self.lines))
        line = self.chance.choice([line for line in self.lines[key] if line])
        name = self.chance.choice(line)
        line.remove(name)
        if not any(self.lines[key]):
            del self.lines[key]
        self.tasks[name].cancel()
        if self.chance.random() < 0.5:
            await turns(1)  # else what comes next comes before it is noticed

    async def schedule(self, moves: int) -> None:
        """So many things that happen, in any order; then all go home."""
        for number in range(moves):
            what = self.chance.random()
            if what < 0.5:
                await self._come(number)
            elif what < 0.8 and self.held:
                self._release()
                await turns(self.chance.randrange(2))
            elif self.lines:
                await self._cancel()
        await turns(2)
        assert self.slots.in_use == len(self.held)
        assert self.slots.waiting == sum(len(line) for lines in self.lines.values() for line in lines)
        while self.held:
            self._release()
            await turns(1)
        assert sorted(self.served) == sorted(self.expected)
        assert (self.slots.in_use, self.slots.waiting, self.slots._queues) == (0, 0, {})


async def test_no_place_is_lost_and_keys_take_turns_over_ten_thousand_schedules() -> None:
    for seed in range(10_000):
        office = Office(seed)
        async with asyncio.timeout(WAIT_S):
            await office.schedule(14)
        assert office.served == office.expected, f"seed {seed}"


# ── trees ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Crowd:
    """Runs in a tree of limits that nest, wait for children and are cancelled, those of two keys; counts who is at work
    under each limit. `asks`: how often a call waits for a person before it works."""

    def __init__(self, seed: int, limits: list[int], asks: float) -> None:
        self.chance = random.Random(seed)
        self.levels = [Slots(limit) for limit in limits]
        self.limits = limits
        self.asks = asks
        self.at_work = [0] * len(limits)
        self.working: dict[int, int] = {}  # calls of each run that work
        self.too_many: list[str] = []
        self.done = 0

    async def run(self, depth: int, fan: int) -> None:
        """A run under the first `depth` limits that works, starts `fan` below it, waits for them and works again."""
        places = Places(self.levels[:depth], self.chance.choice("ab"))
        try:
            await places.take()
            await self._group(places, depth)
            if self.chance.random() < self.asks:
                async with places.away():  # for another try of a model call
                    await turns(self.chance.randrange(4))
            if depth < len(self.levels):
                async with places.calls(1, apart=True):
                    if self.chance.random() < self.asks:
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

    async def _call(self, places: Places, depth: int) -> None:
        began = False
        try:
            if self.chance.random() < self.asks:
                async with places.away():
                    await turns(self.chance.randrange(9))
            began = True
            self._works(places, depth, 1)
            await turns(self.chance.randrange(4))
        finally:
            if began:
                self._works(places, depth, -1)
            places.ended()

    def _works(self, places: Places, depth: int, more: int) -> None:
        before = self.working.get(id(places), 0)
        self.working[id(places)] = before + more
        if not before or not before + more:  # the run begins or ceases to work
            for level in range(depth):
                self.at_work[level] += more
                if self.at_work[level] > self.limits[level]:
                    self.too_many.append(f"{self.at_work[level]} under limit {self.limits[level]} of level {level}")


SEEDS, LIMITS = st.integers(0, 2**32), st.lists(st.integers(1, 3), min_size=1, max_size=3)
ASKS = st.sampled_from([0.0, 0.7])


@given(seed=SEEDS, limits=LIMITS, asks=ASKS, fan=st.integers(1, 4))
@settings(max_examples=examples(100), deadline=None)
async def test_nested_runs_never_exceed_a_limit_and_all_get_to_their_end(
    seed: int, limits: list[int], asks: float, fan: int
) -> None:
    crowd = Crowd(seed, limits, asks)
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(crowd.run(1, fan) for _ in range(fan)))
    assert crowd.too_many == []
    assert crowd.done == sum(fan ** (level + 1) for level in range(len(limits)))
    assert [(slots.in_use, slots.waiting) for slots in crowd.levels] == [(0, 0)] * len(limits)


@given(seed=SEEDS, limits=LIMITS, asks=ASKS)
@settings(max_examples=examples(150), deadline=None)
async def test_no_place_is_lost_by_cancellations_at_any_moment(seed: int, limits: list[int], asks: float) -> None:
    crowd = Crowd(seed, limits, asks)
    tasks = [asyncio.create_task(crowd.run(1, 2)) for _ in range(5)]
    for task in crowd.chance.sample(tasks, 3):
        await turns(crowd.chance.randrange(16))
        task.cancel()
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*tasks, return_exceptions=True)
        await turns()
    assert crowd.too_many == []
    assert crowd.done >= sum(not task.cancelled() for task in tasks), "who was not cancelled got to the end"
    assert [(slots.in_use, slots.waiting) for slots in crowd.levels] == [(0, 0)] * len(limits)


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


async def test_a_run_that_waits_between_its_calls_has_its_place_again_when_it_goes_on() -> None:
    slots = Slots(1)
    places, other = Places((slots,)), Places((slots,))
    await places.take()
    over = asyncio.Event()

    async def resting() -> None:
        async with places.away():
            await over.wait()

    rest = await waiting(resting())
    async with asyncio.timeout(WAIT_S):
        await other.take()
    over.set()
    await turns()
    assert not rest.done(), "another works"
    other.give()
    async with asyncio.timeout(WAIT_S):
        await rest
    assert slots.in_use == 1
    with pytest.raises(TimeoutError):
        async with places.calls(1, apart=True):
            raise TimeoutError  # a deadline: no call of the group goes on
    await places.take()
    async with places.away():
        assert slots.in_use == 0
    assert slots.in_use == 1
    places.give()
