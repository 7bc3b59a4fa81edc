"""What a file says of its delegations: policy fields with all their forms, and that no limit is lost."""

from typing import Any

import pytest

from app.agent.errors import InvalidRequest
from app.agent.policy import (
    FAIL,
    NO_POLICY,
    REPORT,
    TO_PRIMARY,
    BudgetLimits,
    FilterRef,
    OnProblem,
    PolicyFields,
    Reaction,
    ToolInherit,
)
from app.definitions import Parsed, Severity, parse
from app.definitions.reader import DefinitionReader
from app.definitions.toolnames import BUILT_IN


def read(lines: str) -> Parsed:
    return parse(f"---\nname: a\ndescription: d\n{lines}\n---\nbody", path="f.md")


@pytest.mark.spec("4.1", "10.1")
@pytest.mark.parametrize(
    ("lines", "policy"),
    [
        ("handoff:\n  enabled: off", PolicyFields(enabled=False)),
        ("handoff: {max_depth: 0}", PolicyFields(max_depth=(0,))),
        ("handoff: {max_depth: null}", PolicyFields(max_depth=(None,))),
        ("handoff: {maxDepth: 3, timeoutMs: 500}", PolicyFields(max_depth=(3,), timeout_ms=500)),
        ("handoff: {allowed_tools: []}", PolicyFields(allowed_tools=((),))),
        ("handoff: {allowed_tools: null}", PolicyFields(allowed_tools=(None,))),
        (
            "handoff: {allowed_tools: 'dispatch_subagent(a), subagent_b'}",
            PolicyFields(allowed_tools=(("dispatch_subagent(a)", "subagent_b"),)),
        ),
        ("handoff: {denied_tools: [subagent_b]}", PolicyFields(denied_tools=(("subagent_b",),))),
        (
            "handoff: {on_denied: fail, on_error: Report}",
            PolicyFields(on_denied=FAIL, on_error=REPORT),
        ),
        ("handoff: {max_retries: 2, deadline_ms: 60000}", PolicyFields(max_retries=2, deadline_ms=60_000)),
        ("handoff: {maxRetries: 0, input_filter: null}", PolicyFields(max_retries=0, input_filters=())),
        ("handoff: {on_denied: fallback_to_primary, on_error: null}", PolicyFields(on_denied=TO_PRIMARY)),
        (
            "handoff: {on_denied: {agent: Code Reviewer}, on_error: {model: 'openai:small'}}",
            PolicyFields(
                on_denied=OnProblem(reaction=Reaction.AGENT, target="Code Reviewer"),
                on_error=OnProblem(reaction=Reaction.MODEL, target="openai:small"),
            ),
        ),
        (
            "handoff:\n  on_error:\n    answer: |-\n      Nobody is here.\n      Try later.",
            PolicyFields(on_error=OnProblem(reaction=Reaction.ANSWER, target="Nobody is here.\nTry later.")),
        ),
        (
            "handoff: {budget: {tokens: 500, max_concurrent: 2}}",
            PolicyFields(budget=BudgetLimits(tokens=500, max_concurrent=2)),
        ),
        ("handoff: {limits: {modelCalls: 9}}", PolicyFields(budget=BudgetLimits(model_calls=9))),
        ("handoff: {inheritTools: Intersect}", PolicyFields(inherit_tools=ToolInherit.INTERSECT)),
        ("handoff: {inherit_tools: own}", PolicyFields(inherit_tools=ToolInherit.OWN)),
        ("handoff: {inherit_tools: null}", NO_POLICY),
        ("handoff: {budget: null}", NO_POLICY),
        ("handoff:", NO_POLICY),
        ("handoff: {}", NO_POLICY),
    ],
)
def test_policy_fields_that_are_set_are_read(lines: str, policy: PolicyFields) -> None:
    parsed = read(lines)
    assert parsed.definition is not None
    assert parsed.definition.policy == policy
    assert parsed.problems == ()


@pytest.mark.spec("4.1")
@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("handoff: strict", "handoff"),
        ("handoff: [max_depth]", "handoff"),
        ("handoff: {max_depth: -1}", "handoff.max_depth"),
        ("handoff: {max_depth: deep}", "handoff.max_depth"),
        ("handoff: {timeout_ms: 1.5}", "handoff.timeout_ms"),
        ("handoff: {enabled: perhaps}", "handoff.enabled"),
        ("handoff: {allowed_tools: {a: b}}", "handoff.allowed_tools"),
        ("handoff: {on_denied: shrug}", "handoff.on_denied"),
        ("handoff: {alowed_tools: [a]}", "handoff.alowed_tools"),
        ("handoff:\n  max_depth: 1\n  max_depth: 9", "handoff"),
        ("handoff: {max_depth: 1, maxDepth: 9}", "handoff.maxDepth"),
        ("handoff: {budget: {tokens: 1}, limits: {tokens: 9}}", "handoff.limits"),
        ("handoff: {max_retries: -1}", "handoff.max_retries"),
        ("handoff: {max_retries: 101}", "handoff.max_retries"),
        ("handoff: {deadline_ms: soon}", "handoff.deadline_ms"),
        ("handoff: {inherit_tools: all}", "handoff.inherit_tools"),
        ("handoff: {inherit_tools: [intersect]}", "handoff.inherit_tools"),
        ("handoff: {retry: 2}", "handoff.retry"),
        ("handoff: {on_error: [fail]}", "handoff.on_error"),
        ("handoff: {on_error: {}}", "handoff.on_error"),
        ("handoff: {on_error: {tool: grep}}", "handoff.on_error"),
        ("handoff: {on_error: {agent: a, model: b}}", "handoff.on_error"),
        ("handoff: {on_error: {agent: ''}}", "handoff.on_error.agent"),
        ("handoff: {on_error: {agent: null}}", "handoff.on_error.agent"),
        ("handoff: {on_error: {answer: [a]}}", "handoff.on_error.answer"),
        ("handoff: {on_denied: {model: other}}", "handoff.on_denied.model"),
        ("handoff: {input_filter: mask_secret}", "handoff.input_filter[0]"),
        ("handoff: {input_filter: inject}", "handoff.input_filter[0]"),
        ("handoff: {input_filter: {inject: {}}}", "handoff.input_filter.inject"),
        ("handoff: {input_filter: {inject: a}}", "handoff.input_filter.inject"),
        ("handoff: {input_filter: {cut_context: 0}}", "handoff.input_filter.cut_context"),
        ("handoff: {input_filter: {cut_context: 5, mask_secrets: true}}", "handoff.input_filter"),
        ("handoff: {input_filter: ['shop.filters']}", "handoff.input_filter[0]"),
        ("handoff: {input_filter: ['shop filters:short']}", "handoff.input_filter[0]"),
        ("handoff: {input_filter: {path: 'shop.filters'}}", "handoff.input_filter.path"),
        (f"handoff: {{input_filter: [{', '.join(['mask_secrets'] * 21)}]}}", "handoff.input_filter"),
        ("handoff: {budget: {token: 5}}", "handoff.budget.token"),
        ("agents: {a: b}", "agents"),
    ],
)
def test_a_limit_that_cannot_be_read_keeps_the_agent_out(lines: str, key: str) -> None:
    parsed = read(lines)
    assert parsed.definition is None
    assert key in [problem.key for problem in parsed.problems if problem.severity is Severity.ERROR]


@pytest.mark.spec("4.1", "4.2")
@pytest.mark.parametrize(
    ("text", "filters"),
    [
        ("mask_secrets", (FilterRef(name="mask_secrets"),)),
        ("mask_secrets, cut_context", (FilterRef(name="mask_secrets"), FilterRef(name="cut_context"))),
        ("{cut_context: 2000}", (FilterRef(name="cut_context", argument=2000),)),
        ("[cut_context: 7, mask_secrets]", (FilterRef(name="cut_context", argument=7), FilterRef(name="mask_secrets"))),
        (
            "{inject: {tenant: 7, note: 'be short', deep: {a: [true]}}}",
            (FilterRef(name="inject", argument={"tenant": 7, "note": "be short", "deep": {"a": [True]}}),),
        ),
        ("shop.filters:short", (FilterRef(name="shop.filters:short"),)),
        ("{path: 'shop.filters:Filters.short'}", (FilterRef(name="shop.filters:Filters.short"),)),
        ("[]", ()),
        ("null", ()),
    ],
)
def test_an_input_filter_is_one_or_several_names_maps_and_import_paths(
    text: str, filters: tuple[FilterRef, ...]
) -> None:
    parsed = read(f"handoff:\n  input_filter: {text}")
    assert parsed.definition is not None, parsed.problems
    assert parsed.definition.policy == PolicyFields(input_filters=filters)


# ── over the API ────────────────────────────────────────────────────────────────────────────────────────────────

READER = DefinitionReader(BUILT_IN)


@pytest.mark.spec("4.1")
def test_a_policy_over_the_api_has_the_same_fields() -> None:
    data = {
        "max_retries": 3,
        "deadline_ms": 0,
        "on_denied": {"answer": " Not now. "},
        "on_error": {"model": "openai:small"},
        "input_filter": ["mask_secrets", {"inject": {"team": "a"}}],
        "budget": {"tool_calls": 4, "tokens": None},
    }
    assert READER.policy(data, "policy") == PolicyFields(
        max_retries=3,
        deadline_ms=0,
        on_denied=OnProblem(reaction=Reaction.ANSWER, target=" Not now. "),
        on_error=OnProblem(reaction=Reaction.MODEL, target="openai:small"),
        input_filters=(FilterRef(name="mask_secrets"), FilterRef(name="inject", argument={"team": "a"})),
        budget=BudgetLimits(tool_calls=4),
    )


@pytest.mark.spec("4.1", "10.5")
@pytest.mark.parametrize(
    ("data", "at", "word"),
    [
        ({"input_filter": "shop.filters:short"}, "policy.input_filter", "operator"),
        ({"input_filter": ["mask_secrets", "shop.filters:short"]}, "policy.input_filter[1]", "operator"),
        ({"input_filter": {"path": "shop.filters:short"}}, "policy.input_filter.path", "operator"),
        ({"input_filter": "mask_secrets, cut_context"}, "policy.input_filter", "cut_context"),
        ({"input_filter": {"cut_context": "2000"}}, "policy.input_filter.cut_context", "whole number"),
        ({"max_retries": -1}, "policy.max_retries", "from 0"),
        ({"max_retries": "1"}, "policy.max_retries", "whole number"),
        ({"on_denied": {"model": "other"}}, "policy.on_denied.model", "what was denied"),
        ({"on_error": {"agent": " "}}, "policy.on_error.agent", "name of the agent"),
        ({"on_error": "retry"}, "policy.on_error", "fallback_to_primary"),
        ({"budget": {"tokens": 0}}, "policy.budget.tokens", "from 1"),
    ],
)
def test_a_wrong_policy_over_the_api_is_refused_with_its_place_and_what_to_write(
    data: dict[str, Any], at: str, word: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        READER.policy(data, "policy")
    assert [error["at"] for error in caught.value.errors] == [at]
    assert word in caught.value.message
    assert at in caught.value.message
