"""Policies only ever get narrower on the way down, and one predicate says what is denied."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.policy import (
    FAIL,
    NO_POLICY,
    REPORT,
    TO_PRIMARY,
    BudgetLimits,
    FilterRef,
    HandoffPolicy,
    OnProblem,
    PolicyFields,
    Reaction,
    ToolInherit,
)

ENTRIES = ("dispatch_subagent", "dispatch_subagent(a)", "dispatch_subagent(b)", "subagent_a", "subagent_b(b)")
LISTS = st.one_of(st.none(), st.lists(st.sampled_from(ENTRIES), max_size=4).map(tuple))
DEPTHS = st.one_of(st.none(), st.integers(0, 4))
PROBLEMS = st.one_of(
    st.none(), st.sampled_from([FAIL, REPORT, TO_PRIMARY, OnProblem(reaction=Reaction.AGENT, target="a")])
)
FILTERS = st.lists(
    st.sampled_from(
        [FilterRef(name="mask_secrets"), FilterRef(name="cut_context", argument=5), FilterRef(name="a.b:c")]
    ),
    max_size=3,
    unique_by=lambda ref: ref.name,
).map(tuple)
BUDGETS = st.builds(BudgetLimits, tokens=st.none() | st.integers(1, 9), model_calls=st.none() | st.integers(1, 9))


def boxed(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A field that may be unset, or set to a value, which can be None."""
    return st.one_of(st.none(), values.map(lambda value: (value,)))


FIELDS = st.builds(
    PolicyFields,
    enabled=st.one_of(st.none(), st.booleans()),
    max_depth=boxed(DEPTHS),
    max_retries=st.one_of(st.none(), st.integers(0, 3)),
    timeout_ms=st.one_of(st.none(), st.integers(0, 5)),
    deadline_ms=st.one_of(st.none(), st.integers(0, 5)),
    allowed_tools=boxed(LISTS),
    denied_tools=boxed(LISTS),
    on_denied=PROBLEMS,
    on_error=PROBLEMS,
    input_filters=st.none() | FILTERS,
    inherit_tools=st.none() | st.sampled_from(ToolInherit),
    budget=st.none() | BUDGETS,
)
POLICIES = st.builds(lambda fields: HandoffPolicy().replaced(fields), FIELDS)
QUESTIONS = [(tool, depth, agent) for tool in ("dispatch_subagent", "subagent_a", "subagent_b", "other")
             for depth in range(6) for agent in ("a", "b", "c")]  # fmt: skip


def allowed(policy: HandoffPolicy) -> set[tuple[str, int, str]]:
    """Every handoff that a policy lets through."""
    return {question for question in QUESTIONS if policy.denial(*question) is None}


def bound(time_ms: int) -> float:
    """A limit of time as a bound."""
    return time_ms or float("inf")


@given(POLICIES, FIELDS)
@pytest.mark.spec("4.10")
def test_a_child_never_may_more_than_its_parent(parent: HandoffPolicy, own: PolicyFields) -> None:
    child = parent.narrowed(own)
    assert allowed(child) <= allowed(parent)
    assert bound(child.timeout_ms) <= bound(parent.timeout_ms)
    assert bound(child.deadline_ms) <= bound(parent.deadline_ms)
    assert child.max_retries <= parent.max_retries
    assert child.enabled or not parent.enabled


@given(POLICIES, st.lists(FIELDS, max_size=3))
@pytest.mark.spec("4.2", "4.10")
def test_filters_of_all_ancestors_stay_in_force_and_a_childs_own_come_last_in_their_order(
    root: HandoffPolicy, levels: list[PolicyFields]
) -> None:
    policy = root
    for own in levels:
        child, added = policy.narrowed(own), own.input_filters or ()
        assert child.input_filters[: len(policy.input_filters)] == policy.input_filters
        assert child.input_filters[len(child.input_filters) - len(added) :] == added
        policy = child


@pytest.mark.spec("4.2", "4.10")
def test_the_same_filters_on_two_levels_are_carried_out_once_and_one_that_must_come_last_is_kept() -> None:
    mask, add = FilterRef(name="mask_secrets"), FilterRef(name="inject", argument={"key": "k"})
    parent = HandoffPolicy(input_filters=(add, mask))
    assert parent.narrowed(PolicyFields(input_filters=(add, mask))).input_filters == (add, mask)
    assert parent.narrowed(PolicyFields(input_filters=(mask,))).input_filters == (add, mask)
    assert HandoffPolicy(input_filters=(mask,)).narrowed(PolicyFields(input_filters=(add, mask))).input_filters == (
        mask, add, mask,
    )  # fmt: skip


@given(POLICIES, FIELDS)
@pytest.mark.spec("4.8", "4.10")
def test_a_budget_is_not_inherited_since_the_parents_bounds_the_child_anyway(
    parent: HandoffPolicy, own: PolicyFields
) -> None:
    assert parent.narrowed(own).budget == own.budget


@given(POLICIES, FIELDS)
@pytest.mark.spec("4.10")
def test_what_happens_on_a_problem_is_the_childs_own_choice_or_the_parents(
    parent: HandoffPolicy, own: PolicyFields
) -> None:
    child = parent.narrowed(own)
    assert child.on_denied == (parent.on_denied if own.on_denied is None else own.on_denied)
    assert child.on_error == (parent.on_error if own.on_error is None else own.on_error)


@given(POLICIES, st.lists(FIELDS, min_size=3, max_size=3))
@pytest.mark.spec("4.10")
def test_over_three_levels_no_field_is_ever_wider_than_on_any_level_above(
    root: HandoffPolicy, levels: list[PolicyFields]
) -> None:
    above = [root]
    for own in levels:
        policy = above[-1].narrowed(own)
        for ancestor in above:
            assert allowed(policy) <= allowed(ancestor)
            assert bound(policy.timeout_ms) <= bound(ancestor.timeout_ms)
            assert bound(policy.deadline_ms) <= bound(ancestor.deadline_ms)
            assert policy.max_retries <= ancestor.max_retries
            assert policy.enabled or not ancestor.enabled
        above.append(policy)


@given(POLICIES, FIELDS)
@pytest.mark.spec("4.10")
def test_what_both_levels_allow_stays_allowed(parent: HandoffPolicy, own: PolicyFields) -> None:
    alone = HandoffPolicy(max_depth=None).replaced(own)
    child = parent.narrowed(own)
    if parent.enabled and alone.enabled and child.enabled:
        assert allowed(child) == allowed(parent) & allowed(alone)


@given(POLICIES)
@pytest.mark.spec("4.10")
def test_a_definition_that_sets_nothing_inherits_everything(parent: HandoffPolicy) -> None:
    assert parent.narrowed(NO_POLICY) == replace(parent, budget=None)


@given(FIELDS, FIELDS)
@pytest.mark.spec("4.10")
def test_at_the_root_the_later_fields_replace_the_earlier_ones(lead: PolicyFields, session: PolicyFields) -> None:
    policy = HandoffPolicy().replaced(lead).replaced(session)
    boxes_of = ("max_depth", "allowed_tools", "denied_tools")
    plain = [field.name for field in fields(PolicyFields) if field.name not in boxes_of]
    assert len(plain) == 9
    for name in plain:
        first = [v for v in (getattr(session, name), getattr(lead, name)) if v is not None]
        assert getattr(policy, name) == (first[0] if first else getattr(HandoffPolicy(), name))
    for name in boxes_of:
        boxes = [b for b in (getattr(session, name), getattr(lead, name)) if b is not None]
        assert getattr(policy, name) == (boxes[0][0] if boxes else getattr(HandoffPolicy(), name))


@pytest.mark.spec("4.10")
def test_a_tool_that_the_parent_allows_and_the_child_limits_to_one_agent_is_allowed_for_that_agent() -> None:
    parent = HandoffPolicy(allowed_tools=("dispatch_subagent",))
    child = parent.narrowed(PolicyFields(allowed_tools=(("dispatch_subagent(a)",),)))
    assert child.denial("dispatch_subagent", 1, "a") is None
    assert child.denial("dispatch_subagent", 1, "b") == "tool is not in allowed_tools"
    grandchild = child.narrowed(PolicyFields(allowed_tools=(("dispatch_subagent",),)))
    assert grandchild.denial("dispatch_subagent", 1, "a") is None
    assert grandchild.denial("dispatch_subagent", 1, "b") == "tool is not in allowed_tools"


@pytest.mark.spec("4.2", "4.5")
@pytest.mark.seed("000", 35, 36, 48)
def test_lists_are_asked_before_the_depth_and_in_this_order() -> None:
    policy = HandoffPolicy(allowed_tools=("a",), denied_tools=("a", "b"), max_depth=1)
    assert policy.denial("b", 9, "x") == "tool is not in allowed_tools"
    assert policy.denial("a", 9, "x") == "tool is in denied_tools"
    assert HandoffPolicy(max_depth=1).denial("a", 2, "x") == "handoff depth 2 exceeds max_depth 1"
    assert HandoffPolicy(max_depth=0).denial("a", 1, "x") == "handoff depth 1 exceeds max_depth 0"
    assert HandoffPolicy(max_depth=None).denial("a", 99, "x") is None


@pytest.mark.spec("4.1", "4.2", "4.3")
@pytest.mark.seed("000", 33, 46)
def test_an_empty_list_allows_nothing_and_a_policy_that_is_off_denies_nothing() -> None:
    nothing = PolicyFields(allowed_tools=((),), max_depth=(0,))
    assert HandoffPolicy().replaced(nothing).denial("a", 1, "x") == "tool is not in allowed_tools"
    assert HandoffPolicy(enabled=False).replaced(nothing).denial("a", 9, "x") is None


@pytest.mark.spec("4.1", "4.2")
@pytest.mark.seed("000", 44, 45, 46)
def test_the_defaults_are_those_of_the_contract_and_a_negative_retry_is_refused() -> None:
    policy = HandoffPolicy()
    assert (policy.enabled, policy.max_depth, policy.max_retries, policy.timeout_ms) == (True, 1, 0, 0)
    assert (policy.allowed_tools, policy.denied_tools, policy.input_filters) == (None, None, ())
    assert (policy.on_denied, policy.on_error) == (None, None)
    assert (policy.deadline_ms, policy.budget, policy.inherit_tools) == (0, None, ToolInherit.OWN)
    with pytest.raises(ValueError, match="max_retries is -1"):
        HandoffPolicy(max_retries=-1)


class Compared(str):
    """A name that counts how often it is compared with another one."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Compared.compared += 1
        return str.__eq__(self, other) is True

    __hash__ = str.__hash__


@pytest.mark.spec("4.10")
def test_long_lists_of_both_levels_are_put_together_without_comparing_each_with_each() -> None:
    parent = HandoffPolicy(allowed_tools=tuple(Compared(f"tool_{n}(a)") for n in range(2_000)))
    own = PolicyFields(allowed_tools=(tuple(Compared(f"tool_{n}") for n in range(1_000, 3_000)),))
    Compared.compared = 0
    assert parent.narrowed(own).allowed_tools == tuple(f"tool_{n}(a)" for n in range(1_000, 2_000))
    assert Compared.compared < 20_000
