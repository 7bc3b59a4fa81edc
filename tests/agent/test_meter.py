"""The meter of a run: asked before each model call, told after it; a root's last answer is kept back."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.agent.budget import FORCED_TOKENS, OUTPUT_TOKENS, Amount, Budget, Meter
from app.agent.chat import Prices
from app.agent.errors import BudgetSpent
from app.agent.messages import Message, Role, Usage
from app.agent.policy import BudgetLimits
from app.agent.tokens import rough_messages, rough_tools
from app.agent.tools import ToolSpec
from tests.agent.purse import limited, turns, waiting
from tests.longer import examples
from tests.world import WAIT_S

pytestmark = pytest.mark.spec("4.8")
PRICES = Prices(input=1_000_000, output=2_000_000)  # one and two micro-units a token
ASKED = (Message(role=Role.USER, content="x" * 300),)
ASKED_TOKENS = rough_messages(ASKED)


def meter(
    budget: Budget | None, *, root: bool = False, prices: Prices | None = None, wanted: int | None = None
) -> Meter:
    """The meter of a run under that budget."""
    return Meter(budget, prices, wanted, root=root)


def used(tokens_in: int = 0, tokens_out: int = 0) -> Usage:
    """What one call used."""
    return Usage(input_tokens=tokens_in, output_tokens=tokens_out, model_calls=1)


async def asked(of: Meter, *, last: bool = False) -> int | None:
    """One call from its reservation to its end."""
    bound = await of.before(ASKED, (), last=last)
    of.after(used(), ASKED, "", counted=True)
    return bound


async def test_without_a_budget_a_call_is_bounded_by_what_the_agent_is_to_say() -> None:
    assert await meter(None, root=True, wanted=77).before(ASKED, ()) == 77
    assert await meter(None).before(ASKED, ()) is None
    assert await meter(limited(model_calls=1), wanted=77).before(ASKED, ()) == 77


@pytest.mark.spec("9.8")
@pytest.mark.parametrize("last", [False, True])
async def test_a_call_that_is_put_off_leaves_its_room_to_others_but_a_root_still_has_its_last_answer(
    last: bool,
) -> None:
    budget = limited(model_calls=2)
    root, child = meter(budget, root=True), meter(budget)
    await root.before(ASKED, (), last=last)
    root.put_off()
    root.put_off()  # a second time changes nothing
    assert budget.left("model_calls") == 1, "what it keeps back"
    await asked(child)
    with pytest.raises(BudgetSpent):
        await child.before(ASKED, ())
    await asked(root, last=True)
    assert budget.used.model_calls == 2


async def test_a_call_of_a_child_that_is_put_off_keeps_nothing() -> None:
    budget = limited(model_calls=1)
    first, second = meter(budget), meter(budget)
    await first.before(ASKED, ())
    first.put_off()
    await asked(second)
    with pytest.raises(BudgetSpent):
        await first.before(ASKED, ())
    meter(None).put_off()


@pytest.mark.parametrize("limit", [1, 2, 3, 9])
async def test_a_root_keeps_its_last_call_back_and_a_child_does_not(limit: int) -> None:
    budget = limited(model_calls=limit)
    root = meter(budget, root=True)
    for _ in range(limit - 1):
        await asked(root)
    with pytest.raises(BudgetSpent, match=f"model_calls {limit}"):
        await root.before(ASKED, ())
    await asked(root, last=True)
    with pytest.raises(BudgetSpent):
        await root.before(ASKED, (), last=True)
    assert budget.used.model_calls == limit
    child_budget = limited(model_calls=limit)
    child = meter(child_budget)
    for _ in range(limit):
        await asked(child)
    with pytest.raises(BudgetSpent):
        await child.before(ASKED, (), last=True)
    assert child_budget.used.model_calls == limit


async def test_children_cannot_use_what_the_root_keeps_back() -> None:
    budget = limited(model_calls=3)
    root = meter(budget, root=True)
    await asked(root)
    child = meter(budget)
    await asked(child)
    with pytest.raises(BudgetSpent):
        await child.before(ASKED, ())
    assert await asked(root, last=True) is None
    assert budget.used.model_calls == 3


async def test_a_root_keeps_a_thousand_tokens_and_its_context_back() -> None:
    budget = limited(tokens=10_000)
    root = meter(budget, root=True)
    bound = await root.before(ASKED, ())
    assert bound == OUTPUT_TOKENS
    assert budget.left("tokens") == 10_000 - 2 * ASKED_TOKENS - OUTPUT_TOKENS - FORCED_TOKENS
    root.after(used(200, 100), ASKED, "", counted=True)
    assert budget.left("tokens") == 10_000 - 300 - ASKED_TOKENS - FORCED_TOKENS
    root.release()
    assert budget.left("tokens") == 10_000 - 300


async def test_what_is_kept_back_grows_with_the_context() -> None:
    budget = limited(tokens=20_000)
    root = meter(budget, root=True)
    await root.before(ASKED, ())
    root.after(used(1000, 50), ASKED, "", counted=True)
    more = (*ASKED, Message(role=Role.ASSISTANT, content="y" * 9_000), Message(role=Role.USER, content="z" * 3_000))
    await root.before(more, ())
    root.after(used(), more, "", counted=True)
    now = 1050 + rough_messages(more[2:])  # what the provider counted, and an estimate of what came after the reply
    assert budget.left("tokens") == 20_000 - 1050 - now - FORCED_TOKENS


async def test_the_bound_of_an_answer_is_never_more_than_what_is_left() -> None:
    budget = limited(tokens=3_000)
    child = meter(budget)
    bound = await child.before(ASKED, ())
    assert bound == 3_000 - ASKED_TOKENS
    child.after(used(ASKED_TOKENS, 2_000), ASKED, "", counted=True)
    left = 3_000 - ASKED_TOKENS - 2_000
    bound = await meter(budget).before(ASKED, ())
    assert bound == left - ASKED_TOKENS


async def test_the_bound_keeps_money_in_its_limit_whatever_is_answered() -> None:
    for limit in (700, 1_001, 5_000):
        budget = limited(cost_micros=limit)
        child = meter(budget, prices=PRICES)
        bound = await child.before(ASKED, ())
        assert bound is not None
        assert PRICES.cost(ASKED_TOKENS, bound) <= limit
        assert PRICES.cost(ASKED_TOKENS, bound + 2) > limit or bound == OUTPUT_TOKENS


async def test_cached_tokens_that_cost_more_than_others_do_not_pass_the_limit() -> None:
    dear = Prices(input=1_000_000, output=1_000_000, cached=2_000_000)
    budget = limited(cost_micros=1_000)
    child = meter(budget, prices=dear)
    bound = await child.before(ASKED, ())
    assert bound is not None
    assert dear.cost(ASKED_TOKENS, bound, ASKED_TOKENS) <= 1_000


async def test_a_call_waits_for_what_others_give_back_and_then_goes_on() -> None:
    budget = limited(tokens=3_000)
    first, second = meter(budget), meter(budget)
    await first.before(ASKED, ())
    waiter = await waiting(second.before(ASKED, ()))
    first.after(used(ASKED_TOKENS, 100), ASKED, "", counted=True)
    async with asyncio.timeout(WAIT_S):
        assert await waiter == 3_000 - 2 * ASKED_TOKENS - 100


async def test_who_waits_is_refused_when_nothing_can_come_back_any_more() -> None:
    budget = limited(tokens=1_000)
    first, second = meter(budget), meter(budget)
    bound = await first.before(ASKED, ())
    assert bound is not None
    waiter = await waiting(second.before(ASKED, ()))
    first.after(used(ASKED_TOKENS, bound), ASKED, "", counted=True)
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(BudgetSpent, match="tokens 1000"):
            await waiter


async def test_who_was_woken_comes_before_the_one_who_gave_back() -> None:
    budget = limited(tokens=2_000)
    greedy, patient = meter(budget), meter(budget)
    served: list[str] = []

    async def work(name: str, of: Meter, calls: int) -> None:
        for _ in range(calls):
            await of.before(ASKED, ())
            served.append(name)
            await turns(2)
            of.after(used(1, 1), ASKED, "", counted=True)

    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        group.create_task(work("greedy", greedy, 5))
        group.create_task(work("patient", patient, 1))
    assert served.index("patient") == 1, served


async def test_a_root_waits_for_its_kept_answer_while_another_root_of_the_session_asks() -> None:
    budget = limited(tokens=3_000)
    other, root = meter(budget), meter(budget, root=True)
    await other.before(ASKED, ())
    waiter = await waiting(root.before(ASKED, ()))
    other.after(used(ASKED_TOKENS, 10), ASKED, "", counted=True)
    async with asyncio.timeout(WAIT_S):
        assert await waiter is not None


class Watched(Budget):
    """Counts how often somebody begins to wait."""

    waits = 0

    async def freed(self) -> None:
        self.waits += 1
        await super().freed()


async def test_those_who_wait_rest_until_something_is_given_back() -> None:
    budget = Watched(BudgetLimits(tokens=7_000))
    other, roots = meter(budget), [meter(budget, root=True) for _ in range(3)]
    for root in roots:
        await asked(root)
    await other.before(ASKED, ())
    waiters = [await waiting(root.before(ASKED, ())) for root in roots]
    await turns(50)
    assert budget.waits == 3, "nobody wakes the others by looking"
    other.after(used(1, 1), ASKED, "", counted=True)
    async with asyncio.timeout(WAIT_S):
        for root, waiter in zip(roots, waiters, strict=True):
            await waiter
            root.after(used(1, 1), ASKED, "", counted=True)


async def test_a_summary_for_a_child_does_not_lower_what_the_root_keeps_for_its_context() -> None:
    long = (Message(role=Role.USER, content="x" * 6_000),)
    budget = limited(tokens=20_000)
    root = meter(budget, root=True)
    await root.before(long, ())
    root.after(used(2_000, 10), long, "", counted=True)
    before = budget.left("tokens")
    assert await root.before(ASKED, (), bound=500) == 500
    root.after(used(50, 10), ASKED, "", counted=True, aside=True)
    assert before is not None
    assert budget.left("tokens") == before - 60


async def test_a_run_that_ends_between_its_reservation_and_its_call_gives_everything_back() -> None:
    budget = limited(tokens=3_000, model_calls=2)
    root, child = meter(budget, root=True), meter(budget)
    await root.before(ASKED, ())
    root.release()
    assert (budget.left("tokens"), budget.left("model_calls")) == (3_000, 2)
    await child.before(ASKED, ())


async def test_a_provider_that_counts_nothing_is_charged_by_the_estimate() -> None:
    tools = (ToolSpec(name="look", description="Looks.", parameters={"type": "object"}),)
    budget = limited(tokens=50_000, cost_micros=50_000)
    child = meter(budget, prices=PRICES)
    await child.before(ASKED, tools)
    child.after(Usage(model_calls=1), ASKED, "z" * 30, counted=False)
    tokens_in = ASKED_TOKENS + rough_tools(tools)
    assert budget.used == Amount(model_calls=1, tokens=tokens_in + 10, cost_micros=PRICES.cost(tokens_in, 10))


@given(
    seed=st.integers(0, 2**32),
    actors=st.integers(1, 6),
    limit=st.integers(300, 6_000),
    calls=st.integers(1, 12),
    root=st.booleans(),
)
@settings(max_examples=examples(150), deadline=None)
async def test_whoever_asks_side_by_side_gets_an_answer_and_no_limit_is_passed(
    seed: int, actors: int, limit: int, calls: int, root: bool
) -> None:
    chance = random.Random(seed)
    session = Budget(BudgetLimits(tokens=limit, model_calls=calls, cost_micros=2 * limit))
    made = 0

    async def act(of: Meter) -> None:
        nonlocal made
        try:
            while True:
                bound = await of.before(ASKED, (), last=chance.random() < 0.1)
                assert bound is not None
                made += 1
                try:
                    await turns(chance.randrange(6))
                except asyncio.CancelledError:
                    of.after(Usage(model_calls=1), ASKED, "", counted=False)
                    raise
                if chance.random() < 0.1:
                    of.after(Usage(model_calls=1), ASKED, "", counted=False)  # it failed
                else:
                    of.after(used(chance.randint(0, ASKED_TOKENS), chance.randint(0, bound)), ASKED, "", counted=True)
                for level in session.chain():
                    assert level.used.tokens <= limit
        except BudgetSpent:
            return
        finally:
            of.release()

    def one(at: int) -> Meter:
        own = Budget(BudgetLimits(tokens=chance.randint(300, 3_000)), session) if chance.random() < 0.3 else session
        return meter(own, root=root and at == 0, prices=PRICES)

    tasks = [asyncio.create_task(act(one(at))) for at in range(actors)]
    for task in tasks:
        await turns(chance.randrange(4))
        if chance.random() < 0.2:
            task.cancel()
    async with asyncio.timeout(WAIT_S):
        done = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(end is None or isinstance(end, asyncio.CancelledError) for end in done), done
    assert made <= calls
    assert session.used.tokens <= limit
    assert session.used.cost_micros <= 2 * limit
