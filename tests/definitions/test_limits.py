"""Budgets: every limit is read, in files and over the API, and one that cannot be read is never no limit."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.errors import InvalidRequest
from app.agent.policy import BudgetLimits
from app.definitions import Severity
from app.definitions.limits import MAX_COUNT, MAX_MS, budget_mapping
from app.definitions.reader import DefinitionReader
from app.definitions.toolnames import BUILT_IN
from tests.definitions.world import NAMED, loaded, read

READER = DefinitionReader(BUILT_IN)
WHOLE = {
    "model_calls": 9,
    "tokens": 50_000,
    "cost_micros": 250_000,
    "currency": "EUR",
    "tool_calls": 30,
    "delegations": 4,
    "max_concurrent": 2,
    "wall_ms": 60_000,
}


@pytest.mark.spec("4.8")
@pytest.mark.parametrize(
    ("lines", "budget"),
    [
        ("budget: {tokens: 50000}", BudgetLimits(tokens=50_000)),
        ("budget: {maxConcurrent: 2, wallMs: 5}", BudgetLimits(max_concurrent=2, wall_ms=5)),
        ("limits: {tokens: 5}", None),
        ("budget: {cost_micros: 10, currency: eur}", BudgetLimits(cost_micros=10, currency="EUR")),
        ("budget: {tokens: ~, tool_calls: '3'}", BudgetLimits(tool_calls=3)),
        ("budget: {}", BudgetLimits()),
        ("budget:", None),
        ("max_budget_usd: 1.5", BudgetLimits(cost_micros=1_500_000)),
        ("maxBudgetUsd: 2", BudgetLimits(cost_micros=2_000_000)),
        ("max_budget_per_run: 0.1", BudgetLimits(cost_micros=100_000)),
        ("max_budget_per_run: null", None),
    ],
)
def test_a_file_has_a_budget_in_ours_or_another_services_words(lines: str, budget: BudgetLimits | None) -> None:
    assert loaded(NAMED + lines).budget == budget


@pytest.mark.spec("4.8")
@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("budget: small", "budget"),
        ("budget: {token: 5}", "budget.token"),
        ("budget: {tokens: 0}", "budget.tokens"),
        ("budget: {tokens: many}", "budget.tokens"),
        ("budget: {tokens: 1.5}", "budget.tokens"),
        ("budget: {tokens: 5, Tokens: 6}", "budget.Tokens"),
        ("budget: {wall_ms: 604800001}", "budget.wall_ms"),
        ("budget: {cost_micros: 5, currency: dollars}", "budget.currency"),
        ("budget: {currency: USD}", "budget.currency"),
        ("max_budget_usd: 0", "max_budget_usd"),
        ("max_budget_usd: cheap", "max_budget_usd"),
        ("budget: {tokens: 5}\nBudget: {tokens: 6}", "Budget"),
        ("budget: {tokens: 5}\nmax_budget_usd: 1", "max_budget_usd"),
    ],
)
def test_a_budget_that_cannot_be_read_keeps_the_agent_out(lines: str, key: str) -> None:
    parsed = read(NAMED + lines)
    assert parsed.definition is None
    assert [problem.key for problem in parsed.problems if problem.severity is Severity.ERROR] == [key]


@pytest.mark.spec("4.8", "14.1")
def test_a_budget_over_the_api_has_every_kind_of_limit() -> None:
    assert READER.budget(WHOLE, "budget") == BudgetLimits(**WHOLE)  # type: ignore[arg-type]
    assert READER.budget({}, "budget") == BudgetLimits()


@pytest.mark.spec("4.8", "14.1")
@pytest.mark.parametrize(
    ("data", "at", "word"),
    [
        ({"tokens": 0}, "budget.tokens", "from 1"),
        ({"tokens": "5"}, "budget.tokens", "whole number"),
        ({"tokens": True}, "budget.tokens", "whole number"),
        ({"tokens": 2**53}, "budget.tokens", "whole number"),
        ({"calls": 5}, "budget.calls", "model_calls, tokens"),
        ({"cost_micros": 5, "currency": "€"}, "budget.currency", "USD"),
        ({"currency": "EUR"}, "budget.currency", "cost_micros"),
    ],
)
def test_a_wrong_budget_over_the_api_is_refused_with_its_place(data: dict[str, Any], at: str, word: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        READER.budget(data, "budget")
    assert [error["at"] for error in caught.value.errors] == [at]
    assert word in caught.value.message


COUNTS = st.none() | st.integers(1, MAX_COUNT)
BUDGETS = st.builds(
    lambda currency, **limits: BudgetLimits(
        **limits, currency=currency if limits["cost_micros"] is not None else "USD"
    ),
    model_calls=COUNTS,
    tokens=COUNTS,
    cost_micros=COUNTS,
    currency=st.sampled_from(["USD", "EUR", "CNY"]),
    tool_calls=COUNTS,
    delegations=COUNTS,
    max_concurrent=COUNTS,
    wall_ms=st.none() | st.integers(1, MAX_MS),
)


@pytest.mark.spec("4.8")
@given(BUDGETS)
def test_a_budget_comes_back_from_its_stored_form(budget: BudgetLimits) -> None:
    assert READER.budget(budget_mapping(budget), "budget") == budget


@given(st.floats(0.000001, 1_000_000))
def test_dollars_become_millionths_to_the_nearest(dollars: float) -> None:
    budget = loaded(f"{NAMED}max_budget_usd: {dollars:.12f}").budget
    assert budget is not None
    assert budget.cost_micros is not None
    assert abs(budget.cost_micros - float(f"{dollars:.12f}") * 1_000_000) <= 0.5 + 1e-6
    assert budget.cost_micros >= 1
