"""Policies only ever get narrower on the way down, and one predicate says what is denied."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.definition import (
    MAX_TOOL_NAME,
    NO_POLICY,
    AgentDefinition,
    HandoffPolicy,
    OnProblem,
    PolicyFields,
    normalised,
    tool_name_of,
)

ENTRIES = ("dispatch_subagent", "dispatch_subagent(a)", "dispatch_subagent(b)", "subagent_a", "subagent_b(b)")
LISTS = st.one_of(st.none(), st.lists(st.sampled_from(ENTRIES), max_size=4).map(tuple))
DEPTHS = st.one_of(st.none(), st.integers(0, 4))
PROBLEMS = st.one_of(st.none(), st.sampled_from(list(OnProblem)))


def boxed(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A field that may be unset, or set to a value, which can be None."""
    return st.one_of(st.none(), values.map(lambda value: (value,)))


FIELDS = st.builds(
    PolicyFields,
    enabled=st.one_of(st.none(), st.booleans()),
    max_depth=boxed(DEPTHS),
    timeout_ms=st.one_of(st.none(), st.integers(0, 5)),
    allowed_tools=boxed(LISTS),
    denied_tools=boxed(LISTS),
    on_denied=PROBLEMS,
    on_error=PROBLEMS,
)
POLICIES = st.builds(lambda fields: HandoffPolicy().replaced(fields), FIELDS)
QUESTIONS = [(tool, depth, agent) for tool in ("dispatch_subagent", "subagent_a", "subagent_b", "other")
             for depth in range(6) for agent in ("a", "b", "c")]  # fmt: skip


def allowed(policy: HandoffPolicy) -> set[tuple[str, int, str]]:
    """Every handoff that a policy lets through."""
    return {question for question in QUESTIONS if policy.denial(*question) is None}


def limit(policy: HandoffPolicy) -> float:
    """The timeout as a bound."""
    return policy.timeout_ms or float("inf")


@given(POLICIES, FIELDS)
@pytest.mark.spec("4.10")
def test_a_child_never_may_more_than_its_parent(parent: HandoffPolicy, own: PolicyFields) -> None:
    child = parent.narrowed(own)
    assert allowed(child) <= allowed(parent)
    assert limit(child) <= limit(parent)
    assert child.enabled or not parent.enabled


@given(POLICIES, st.lists(FIELDS, max_size=4))
@pytest.mark.spec("4.10")
def test_however_deep_the_nesting_goes_rights_only_shrink(root: HandoffPolicy, levels: list[PolicyFields]) -> None:
    policy = root
    for fields in levels:
        narrower = policy.narrowed(fields)
        assert allowed(narrower) <= allowed(policy)
        policy = narrower


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
    assert parent.narrowed(NO_POLICY) == parent


@given(FIELDS, FIELDS)
@pytest.mark.spec("4.10")
def test_at_the_root_the_later_fields_replace_the_earlier_ones(lead: PolicyFields, session: PolicyFields) -> None:
    policy = HandoffPolicy().replaced(lead).replaced(session)
    for name in ("enabled", "timeout_ms", "on_denied", "on_error"):
        first = [v for v in (getattr(session, name), getattr(lead, name)) if v is not None]
        assert getattr(policy, name) == (first[0] if first else getattr(HandoffPolicy(), name))
    for name in ("max_depth", "allowed_tools", "denied_tools"):
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
def test_lists_are_asked_before_the_depth_and_in_this_order() -> None:
    policy = HandoffPolicy(allowed_tools=("a",), denied_tools=("a", "b"), max_depth=1)
    assert policy.denial("b", 9, "x") == "tool is not in allowed_tools"
    assert policy.denial("a", 9, "x") == "tool is in denied_tools"
    assert HandoffPolicy(max_depth=1).denial("a", 2, "x") == "handoff depth 2 exceeds max_depth 1"
    assert HandoffPolicy(max_depth=0).denial("a", 1, "x") == "handoff depth 1 exceeds max_depth 0"
    assert HandoffPolicy(max_depth=None).denial("a", 99, "x") is None


@pytest.mark.spec("4.1", "4.2", "4.3")
def test_an_empty_list_allows_nothing_and_a_policy_that_is_off_denies_nothing() -> None:
    nothing = PolicyFields(allowed_tools=((),), max_depth=(0,))
    assert HandoffPolicy().replaced(nothing).denial("a", 1, "x") == "tool is not in allowed_tools"
    assert HandoffPolicy(enabled=False).replaced(nothing).denial("a", 9, "x") is None


def definition(name: str, tool_name: str | None = None) -> AgentDefinition:
    """A definition of that name."""
    return AgentDefinition(name=name, description="It is one.", tool_name=tool_name)


@pytest.mark.spec("3.1")
@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("Code Reviewer", "subagent_code_reviewer"),
        ("  --a__b--  ", "subagent_a_b"),
        ("7 dwarfs", "subagent_agent_7_dwarfs"),
        ("__9", "subagent_agent_9"),
        ("研究 agent", "subagent_agent"),
        ("İstanbul", "subagent_i_stanbul"),
    ],
)
def test_a_tool_name_is_made_of_the_agents_name(name: str, tool: str) -> None:
    assert tool_name_of(definition(name)) == tool


@pytest.mark.spec("3.1")
def test_a_name_that_leaves_nothing_or_too_much_asks_for_a_tool_name() -> None:
    for name in ("研究员", "___", "", "x" * 56):
        with pytest.raises(ValueError, match="set tool_name"):
            tool_name_of(definition(name))
    assert tool_name_of(definition("研究员", "ask_researcher")) == "ask_researcher"
    assert len(tool_name_of(definition("x" * 55))) == MAX_TOOL_NAME


@given(st.text(max_size=40))
@pytest.mark.spec("3.1")
def test_a_normalised_name_holds_only_what_a_function_name_may_hold(name: str) -> None:
    made = normalised(name)
    assert set(made) <= set("abcdefghijklmnopqrstuvwxyz0123456789_")
    assert "__" not in made
    assert made == made.strip("_")
    assert not made[:1].isdigit()
    assert normalised(made) == made
