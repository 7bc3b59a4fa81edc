"""Budgets as values and as queues: what fits is given, what does not is refused with a reason, nobody waits in vain."""

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from app.agent.budget import (
    NOTHING,
    ONE_TOOL_CALL,
    Amount,
    Budget,
    Refusal,
    Reservation,
    check_prices,
    spent_on,
    take,
)
from app.agent.chat import Prices
from app.agent.errors import InvalidRequest
from app.agent.messages import Usage
from app.agent.policy import BudgetLimits
from tests.agent.purse import limited, turns, waiting
from tests.longer import examples

pytestmark = pytest.mark.spec("4.8")
KINDS = ("model_calls", "tokens", "cost_micros", "tool_calls", "delegations")
COMES_BACK = ("tokens", "cost_micros")
SOME = st.integers(0, 4)
AMOUNTS = st.builds(Amount, **dict.fromkeys(KINDS, SOME))
LIMITS = st.builds(BudgetLimits, **dict.fromkeys(KINDS, st.none() | st.integers(1, 8)))


def reserved(budget: Budget, amount: Amount, *, call: bool = False) -> Reservation:
    """A reservation that must be given."""
    got = budget.reserve(amount, call=call)
    assert isinstance(got, Reservation), got
    return got


def refused(budget: Budget, amount: Amount) -> Refusal:
    """A refusal that must be given."""
    got = budget.reserve(amount)
    assert isinstance(got, Refusal)
    return got


# ── reserving and settling ──────────────────────────────────────────────────────────────────────────────────────────


class Ledger(RuleBasedStateMachine):
    """Trees of budgets under any order of reserving, settling and giving back, kept a second time by plain sums."""

    budgets = Bundle[Budget]("budgets")
    kept = Bundle[Reservation]("kept")

    def __init__(self) -> None:
        super().__init__()
        self.above: dict[Budget, Budget | None] = {}
        self.open: dict[Reservation, tuple[Budget, bool]] = {}
        self.spent: list[tuple[Budget, Amount]] = []

    @initialize(target=budgets, limits=LIMITS)
    def session(self, limits: BudgetLimits) -> Budget:
        return self._made(limits, None)

    @rule(target=budgets, above=budgets, limits=LIMITS)
    def run_below(self, above: Budget, limits: BudgetLimits) -> Budget:
        return self._made(limits, above)

    def _made(self, limits: BudgetLimits, above: Budget | None) -> Budget:
        budget = Budget(limits, above)
        self.above[budget] = above
        return budget

    def _lineage(self, budget: Budget) -> list[Budget]:
        found: list[Budget] = []
        level: Budget | None = budget
        while level is not None:
            found.append(level)
            level = self.above[level]
        return found

    def _taken(self, level: Budget, kind: str) -> int:
        held: int = sum(getattr(r.amount, kind) for r, (b, _) in self.open.items() if level in self._lineage(b))
        spent: int = sum(getattr(amount, kind) for b, amount in self.spent if level in self._lineage(b))
        return held + spent

    def _missing(self, budget: Budget, amount: Amount) -> tuple[str, int, Budget | None] | None:
        """Innermost budget and kind without room, and whether it is worth waiting."""
        for level in self._lineage(budget):
            for kind in KINDS:
                limit = getattr(level.limits, kind)
                if limit is not None and self._taken(level, kind) + getattr(amount, kind) > limit:
                    under_way = any(call and level in self._lineage(b) for b, call in self.open.values())
                    return kind, limit, level if kind in COMES_BACK and under_way else None
        return None

    @rule(target=kept, budget=budgets, amount=AMOUNTS, call=st.booleans())
    def reserve(self, budget: Budget, amount: Amount, call: bool) -> Reservation | MultipleResults[Reservation]:
        missing = self._missing(budget, amount)
        got = budget.reserve(amount, call=call)
        if missing is not None:
            assert isinstance(got, Refusal)
            assert (got.kind, got.limit, got.level) == missing
            return multiple()
        assert isinstance(got, Reservation)
        self.open[got] = (budget, call)
        return got

    @rule(reservation=consumes(kept), share=st.integers(0, 4))
    def settle(self, reservation: Reservation, share: int) -> None:
        used = Amount(**{kind: getattr(reservation.amount, kind) * share // 4 for kind in KINDS})
        reservation.settle(used)
        reservation.settle(used)  # a second time changes nothing
        budget, _ = self.open.pop(reservation)
        self.spent.append((budget, used))

    @rule(budget=budgets, amount=AMOUNTS)
    def spend_at_once(self, budget: Budget, amount: Amount) -> None:
        missing = self._missing(budget, amount)
        refusal = take(budget, amount)
        assert (refusal is None) == (missing is None)
        if missing is None:
            self.spent.append((budget, amount))

    @invariant()
    def nothing_is_above_its_limit(self) -> None:
        for level in self.above:
            for kind in KINDS:
                limit = getattr(level.limits, kind)
                taken = self._taken(level, kind)
                assert limit is None or taken <= limit
                lefts = [
                    getattr(b.limits, kind) - self._taken(b, kind)
                    for b in self._lineage(level)
                    if getattr(b.limits, kind) is not None
                ]
                assert level.left(kind) == (min(lefts) if lefts else None)


test_no_order_of_reserving_and_settling_passes_a_limit_of_any_budget_in_a_tree = Ledger.TestCase
Ledger.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)


def test_the_innermost_budget_that_has_no_room_is_named() -> None:
    session = limited(model_calls=1, tool_calls=1)
    run = Budget(BudgetLimits(model_calls=2, tool_calls=1), session)
    child = Budget(BudgetLimits(), run)
    assert refused(child, Amount(model_calls=3)).what == "model_calls 2"
    assert refused(child, Amount(model_calls=2)).what == "model_calls 1"
    assert take(child, ONE_TOOL_CALL) is None
    assert refused(child, ONE_TOOL_CALL).what == "tool_calls 1"
    assert session.used == run.used == child.used == ONE_TOOL_CALL
    error = refused(child, ONE_TOOL_CALL).error()
    assert (error.code, "tool_calls 1" in error.message) == ("budget_exhausted", True)


def test_a_refused_reservation_takes_nothing_anywhere() -> None:
    session = limited(tokens=10)
    run = Budget(BudgetLimits(tokens=100), session)
    assert refused(run, Amount(tokens=11)).what == "tokens 10"
    assert (run.left("tokens"), session.left("tokens")) == (10, 10)
    reserved(run, Amount(tokens=10))


def test_what_was_spent_before_a_restart_is_spent() -> None:
    session = Budget(BudgetLimits(model_calls=3), spent=Amount(model_calls=2))
    assert session.left("model_calls") == 1
    reserved(session, Amount(model_calls=1))
    assert refused(session, Amount(model_calls=1)).what == "model_calls 3"


def test_more_spent_than_the_limit_leaves_nothing_and_still_lets_through_what_costs_nothing() -> None:
    session = Budget(BudgetLimits(tokens=10, tool_calls=1), spent=Amount(tokens=15))
    assert refused(session, Amount(tokens=1)).kind == "tokens"
    assert take(session, ONE_TOOL_CALL) is None


def test_without_a_budget_everything_fits() -> None:
    assert take(None, Amount(tool_calls=1_000_000)) is None


# ── waiting for what is given back ──────────────────────────────────────────────────────────────────────────────────


def test_only_tokens_and_money_are_waited_for_and_only_while_a_call_is_under_way() -> None:
    budget = limited(tokens=10, model_calls=1, cost_micros=10)
    call = reserved(budget, Amount(tokens=10, model_calls=1, cost_micros=10), call=True)
    assert refused(budget, Amount(model_calls=1)).level is None
    assert refused(budget, Amount(tokens=1)).level is budget
    assert refused(budget, Amount(cost_micros=1)).level is budget
    call.settle(Amount(tokens=10, model_calls=1, cost_micros=10))
    assert refused(budget, Amount(tokens=1)).level is None
    held = limited(tokens=10)
    reserved(held, Amount(tokens=10))
    assert refused(held, Amount(tokens=1)).level is None, "what is kept back comes back from nobody's call"


async def test_settling_wakes_all_who_wait_at_any_budget_above() -> None:
    session = limited(tokens=10)
    runs = [Budget(BudgetLimits(), session) for _ in range(3)]
    call = reserved(runs[0], Amount(tokens=10), call=True)
    waiters = [await waiting(refusal.freed()) for refusal in [session, session]]
    own = await waiting(runs[1].freed())
    call.settle(NOTHING)
    await turns()
    assert [waiter.done() for waiter in (*waiters, own)] == [True, True, False]
    own.cancel()


async def test_a_waiter_that_is_cancelled_hinders_nobody() -> None:
    session = limited(tokens=10)
    call = reserved(session, Amount(tokens=10), call=True)
    first, second = await waiting(session.freed()), await waiting(session.freed())
    first.cancel()
    await turns()
    call.settle(NOTHING)
    await turns()
    assert (first.cancelled(), second.done(), second.cancelled()) == (True, True, False)


# ── prices ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_money_without_a_price_is_refused_by_the_name_of_the_model() -> None:
    with pytest.raises(InvalidRequest, match="'dear' has no price") as refusal:
        check_prices({"USD"}, "dear", None)
    assert refusal.value.code == "no_price"
    with pytest.raises(InvalidRequest, match="money in EUR, USD,"):
        check_prices({"USD", "EUR"}, "dear", None)
    with pytest.raises(InvalidRequest, match="money in EUR,"):
        check_prices({"USD", "EUR"}, "dear", Prices(input=1, output=1))
    with pytest.raises(InvalidRequest):
        check_prices({"USD"}, "dear", Prices(input=0, output=0, cached=1, currency="EUR"))


def test_what_costs_nothing_passes_in_every_currency_and_no_limit_asks_for_no_price() -> None:
    check_prices({"USD", "EUR"}, "free", Prices(input=0, output=0, cached=0, currency="CNY"))
    check_prices((), "dear", None)
    check_prices({"EUR"}, "dear", Prices(input=1, output=1, currency="EUR"))


def test_only_money_of_the_limited_currencies_is_spent() -> None:
    usage = Usage(input_tokens=3, output_tokens=4, model_calls=2, cost={"USD": 5, "EUR": 7})
    assert spent_on(usage, {"EUR"}) == Amount(model_calls=2, tokens=7, cost_micros=7)
    assert spent_on(usage, set()) == Amount(model_calls=2, tokens=7)
    assert Budget(BudgetLimits(cost_micros=1, currency="EUR"), limited(cost_micros=2)).currencies() == {"EUR", "USD"}


# ── wall time and places ────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_clock_runs_while_any_work_goes_on_and_counts_overlapping_work_once() -> None:
    loop = asyncio.get_running_loop()
    budget = Budget(BudgetLimits(wall_ms=60_000), wall_ms=20_000)
    assert budget.wall_left_ms() == 40_000, "what was used before a restart is used"
    assert limited(tokens=1).wall_left_ms() is None
    before = loop.time()
    budget.begin()
    budget.begin()
    budget.end()
    await turns()
    running = budget.wall_left_ms()
    budget.end()
    most = (loop.time() - before) * 1000
    stopped = budget.wall_left_ms()
    await turns()
    assert running is not None and stopped is not None
    assert 40_000 - most <= stopped <= running < 40_000
    assert budget.wall_left_ms() == stopped, "it stands still while nothing goes on"
    assert Budget(BudgetLimits(wall_ms=5), wall_ms=9).wall_left_ms() == 0


def test_places_are_those_of_every_budget_above_from_the_outside_in() -> None:
    session = limited(max_concurrent=3)
    child = Budget(BudgetLimits(max_concurrent=1), Budget(BudgetLimits(tokens=5), session))
    assert child.places() == (session.slots, child.slots)
    assert limited(tokens=5).places() == ()
