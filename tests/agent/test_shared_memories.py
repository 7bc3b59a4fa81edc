"""Queues of shared memories: one holder at a time, in the order of asking, and nobody who would wait for itself."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.agent import shared_memories
from app.agent.errors import Unavailable
from app.agent.messages import Message, Role
from app.agent.runs import MemoryState
from app.agent.shared_memories import SharedMemories
from tests.agent.forest import FIRST_TURN, TENANT, Forest, Store, childless, settled, state, taken
from tests.agent.steps import lines_of
from tests.longer import examples

# ── one after the other ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("4.9")
async def test_fifty_who_ask_together_hold_the_memory_in_the_order_of_asking_and_get_what_the_last_one_left() -> None:
    store = Store()
    memories = SharedMemories(store.load, childless)
    seats = [taken(memories) for _ in range(50)]
    order: list[int] = []

    async def use(number: int) -> None:
        held = await seats[number].hold()
        said = [message.content for message in held.messages]
        assert said == [str(earlier) for earlier in range(number)]
        order.append(number)
        await asyncio.sleep(0)
        assert order[-1] == number, "somebody else held it meanwhile"
        messages = (*held.messages, Message(role=Role.USER, content=str(number)))
        seats[number].leave(MemoryState(messages=messages))

    async with asyncio.timeout(10):
        await asyncio.gather(*(use(number) for number in reversed(range(50))))
    assert order == list(range(50))
    assert [seat.turn for seat in seats] == list(range(FIRST_TURN, FIRST_TURN + 50))
    assert store.reads == {"M": 1}


@pytest.mark.spec("4.9")
async def test_one_who_gives_up_while_it_waits_lets_the_next_ones_go_on_with_the_turns_that_they_had() -> None:
    memories = SharedMemories(Store().load, childless)
    first, second, third = (taken(memories) for _ in range(3))
    await first.hold()
    waiting = asyncio.create_task(second.hold())
    last = asyncio.create_task(third.hold())
    await settled()
    waiting.cancel()
    await asyncio.wait([waiting])
    second.leave()
    assert not last.done()
    first.leave(state("first"))
    async with asyncio.timeout(10):
        assert (await last).messages == state("first").messages
    assert (first.turn, second.turn, third.turn) == (FIRST_TURN, FIRST_TURN + 1, FIRST_TURN + 2)


async def test_one_who_is_cancelled_in_the_moment_of_its_turn_passes_it_on() -> None:
    memories = SharedMemories(Store().load, childless)
    first, second, third = (taken(memories) for _ in range(3))
    await first.hold()
    waiting = asyncio.create_task(second.hold())
    await settled()
    first.leave(state("first"))  # calls the second one …
    waiting.cancel()  # … who is cancelled before it can look
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    second.leave()
    async with asyncio.timeout(10):
        assert (await third.hold()).messages == state("first").messages


async def test_giving_a_place_up_twice_changes_nothing() -> None:
    memories = SharedMemories(Store().load, childless)
    first, second = taken(memories), taken(memories)
    first.leave(state("first"))
    first.leave()
    third = taken(memories)
    first.leave()
    async with asyncio.timeout(10):
        assert (await second.hold()).messages == state("first").messages
    assert list(third.ahead()) == [second]


async def test_a_memory_without_a_queue_is_read_again_since_others_may_have_changed_it() -> None:
    store = Store()
    memories = SharedMemories(store.load, childless)
    seat = taken(memories)
    await seat.hold()
    seat.leave(state("mine"))
    store.kept[(TENANT, "M")] = state("from the store")
    assert (await taken(memories).hold()).messages == state("from the store").messages
    assert store.reads == {"M": 2}


@pytest.mark.spec("4.9", "17.1")
async def test_two_tenants_never_meet_in_a_memory_even_if_its_id_is_the_same() -> None:
    store = Store()
    store.kept[("one", "M")], store.kept[("two", "M")] = state("of one"), state("of two")
    memories = SharedMemories(store.load, childless)
    one, two = taken(memories, tenant="one"), taken(memories, tenant="two")
    async with asyncio.timeout(10):
        assert (await one.hold()).messages == state("of one").messages
        assert (await two.hold()).messages == state("of two").messages, "it need not wait for the other tenant"


async def test_a_store_that_is_away_fails_all_who_wait_and_the_next_one_reads_again() -> None:
    store = Store()
    store.gate.clear()
    memories = SharedMemories(store.load, childless)
    seats = [taken(memories) for _ in range(3)]
    opening = [asyncio.create_task(seat.opened()) for seat in seats]
    await settled()
    store.broken = True
    store.gate.set()
    found = await asyncio.gather(*opening, return_exceptions=True)
    assert [type(error) for error in found] == [Unavailable] * 3
    for seat in seats:
        seat.leave()
    store.broken = False
    assert (await taken(memories).hold()).next_turn == FIRST_TURN


async def test_the_memory_is_read_for_the_others_when_the_one_who_began_to_read_goes_away() -> None:
    store = Store()
    store.gate.clear()
    memories = SharedMemories(store.load, childless)
    first, second = taken(memories), taken(memories)
    opening = asyncio.create_task(first.opened())
    waiting = asyncio.create_task(second.hold())
    await settled()
    opening.cancel()
    await asyncio.wait([opening])
    first.leave()
    store.gate.set()
    async with asyncio.timeout(10):
        assert (await waiting).next_turn == FIRST_TURN
    assert (second.turn, store.reads["M"]) == (FIRST_TURN + 1, 1)


@pytest.mark.spec("4.9", "14.2")
async def test_what_was_erased_from_the_store_is_not_handed_on_to_those_who_wait() -> None:
    store = Store()
    memories = SharedMemories(store.load, childless)
    first, second, third, fourth = (taken(memories) for _ in range(4))
    await first.hold()
    store.kept[(TENANT, "M")] = state("what is left")
    memories.reread()
    first.leave(state("what was erased, and more"))
    store.gate.clear()
    reading = asyncio.create_task(second.hold())
    await settled()
    reading.cancel()
    await asyncio.wait([reading])
    second.leave()
    store.gate.set()
    async with asyncio.timeout(10):
        assert await third.hold() == state("what is left")
        third.leave(state("and more"))
        assert await fourth.hold() == state("and more")
    assert [seat.turn for seat in (second, third, fourth)] == [FIRST_TURN + 1, FIRST_TURN + 2, FIRST_TURN + 3]
    assert store.reads["M"] == 3


@pytest.mark.spec("4.9", "14.2")
async def test_what_a_holder_leaves_that_is_being_erased_is_taken_up_by_nobody_before_it_is_gone() -> None:
    store = Store()
    memories = SharedMemories(store.load, childless)
    first, second, third, other = (*(taken(memories) for _ in range(3)), taken(memories, "N"))
    await first.hold()
    waiting = asyncio.create_task(second.hold())
    with memories.erasing([first, third]):
        first.leave(state("what is erased"))
        async with asyncio.timeout(10):
            assert (await other.hold()).next_turn == FIRST_TURN, "who waits for another memory goes on"
        await settled()
        assert not waiting.done()
        store.kept[(TENANT, "M")] = state("what is left")
    async with asyncio.timeout(10):
        assert await waiting == state("what is left")
        second.leave(state("and more"))
        assert await third.hold() == state("and more")


# ── who would wait for itself: against a simulation that lets everybody end who can ─────────────────────────────


STEPS = st.tuples(
    st.sampled_from(["delegate", "root", "ask", "launch", "end"]),
    st.integers(0, 10),
    st.sampled_from([None, "A", "B", "C"]),
)


@pytest.mark.spec("4.9")
@settings(max_examples=examples(300), deadline=None)
@given(st.lists(STEPS, min_size=5, max_size=40))
def test_a_place_is_refused_exactly_if_waiting_for_it_would_never_end_and_the_rest_get_their_turns(
    story: list[tuple[str, int, str | None]],
) -> None:
    async def played() -> None:
        forest = Forest()
        for kind, number, memory in story:
            await forest.step(kind, number, memory)
            await forest.check()
        while forest.nodes:  # what was not refused comes to its end
            busy = forest.parents()
            for node in [node for node in forest.nodes if not node.launched]:
                await forest.launch(node)
            await settled()
            able = [node for node in forest.nodes if node not in busy and node.works]
            assert able, f"nobody gets on: {[node.name for node in forest.nodes]}"
            await forest.end(able[0])
            await forest.check()
        assert not forest.memories.used

    asyncio.run(played())


@pytest.mark.spec("4.9")
async def test_the_shortest_ways_to_wait_for_oneself_are_refused() -> None:
    forest = Forest()
    forest.delegate(None, None)
    lead = forest.nodes[0]
    forest.delegate(lead, "A")
    forest.delegate(lead, "B")
    a, b = forest.nodes[1:]
    await forest.launch(a)
    await forest.launch(b)
    await forest.check()
    forest.delegate(a, "A")
    assert forest.refused == 1, "directly"
    forest.delegate(a, None)
    grandchild = forest.nodes[-1]
    forest.delegate(grandchild, "A")
    assert forest.refused == 2, "through a grandchild"
    forest.delegate(a, "B")
    assert forest.refused == 2, "a waits for b, which is on its way"
    forest.delegate(b, "A")
    assert forest.refused == 3, "and so b must not wait for a"


@pytest.mark.spec("4.9")
async def test_a_wait_is_seen_through_a_child_that_has_no_shared_memory_of_its_own() -> None:
    forest = Forest()
    forest.delegate(None, None)
    lead = forest.nodes[0]
    for memory in ("A", "B"):
        forest.delegate(lead, memory)
        await forest.launch(forest.nodes[-1])
    a, b = forest.nodes[1:]
    await forest.check()
    forest.delegate(a, None)
    forest.delegate(forest.nodes[-1], "B")
    assert forest.refused == 0
    forest.delegate(b, None)
    forest.delegate(forest.nodes[-1], "A")
    assert forest.refused == 1, "a waits for its child, which waits for b, which would wait for a"


def work_of_one_more(count: int, *, with_children: bool) -> tuple[int, int]:
    """For one more place behind so many, of runs or of the children of one: lines that are executed, lookups of
    children."""
    lookups = 0

    def children(_run_id: str) -> tuple[str, ...]:
        nonlocal lookups
        lookups += 1
        return ()

    memories = SharedMemories(Store().load, children)
    for number in range(count):
        seat = memories.take(TENANT, "M", "lead", ("lead",) if number == 0 else ())
        assert seat is not None
        memories.sit(seat, f"run_{number}")
    if with_children:  # they are those of the one that holds another memory
        first = memories.take(TENANT, "N", None, ())
        assert first is not None
        memories.sit(first, "lead")
    lookups = 0
    lines = lines_of(shared_memories, lambda: memories.take(TENANT, "N" if with_children else "M", "other", ("other",)))
    return lines, lookups


@pytest.mark.spec("4.9")
@pytest.mark.parametrize("with_children", [False, True])
async def test_the_work_for_one_more_who_waits_grows_with_the_queue_and_not_with_its_square(
    with_children: bool,
) -> None:
    few, many = (work_of_one_more(count, with_children=with_children) for count in (200, 800))
    assert (few[1], many[1]) == (200 + with_children, 800 + with_children), "every run is looked at once"
    assert many[0] < 6 * few[0]
