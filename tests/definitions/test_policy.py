"""What a file says of its delegations: policy fields, surfaces, and that no limit is lost."""

import pytest

from app.agent.definition import NO_POLICY, OnProblem, PolicyFields, Surface, SurfaceKind
from app.definitions import Parsed, Severity, parse


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
            PolicyFields(on_denied=OnProblem.FAIL, on_error=OnProblem.REPORT),
        ),
        ("handoff: {max_retries: 0, input_filter: null}", NO_POLICY),
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
        ("surfaces: [nonsense]", "surfaces[0]"),
        ("surfaces: {kind: dispatch}", "surfaces"),
        ("surfaces: [{kind: dispatch, agents: {a: b}}]", "surfaces[0].agents"),
        ("surfaces: [{kind: dispatch, only: [a]}]", "surfaces[0].only"),
        ("agents: {a: b}", "agents"),
    ],
)
def test_a_limit_that_cannot_be_read_keeps_the_agent_out(lines: str, key: str) -> None:
    parsed = read(lines)
    assert parsed.definition is None
    assert key in [problem.key for problem in parsed.problems if problem.severity is Severity.ERROR]


@pytest.mark.spec("4.1")
@pytest.mark.parametrize(
    "field",
    [
        "max_retries: 2",
        "input_filter: shop.filters:short",
        "on_denied: fallback_to_primary",
        "on_error: {model: other}",
    ],
)
def test_policy_fields_of_a_later_version_are_named_and_not_set(field: str) -> None:
    parsed = read(f"handoff: {{{field}}}")
    assert parsed.definition is not None
    assert parsed.definition.policy == NO_POLICY
    assert [problem.key for problem in parsed.problems] == [f"handoff.{field.partition(':')[0]}"]
    assert "not supported yet" in parsed.problems[0].message


@pytest.mark.spec("10.1")
@pytest.mark.parametrize(
    ("lines", "surfaces"),
    [
        ("surfaces: dispatch", (Surface(kind=SurfaceKind.DISPATCH),)),
        ("surfaces: dispatch, per-agent", (Surface(kind=SurfaceKind.DISPATCH), Surface(kind=SurfaceKind.PER_AGENT))),
        ("surfaces: [per_agent]", (Surface(kind=SurfaceKind.PER_AGENT),)),
        ("surfaces: [{kind: dispatch, agents: [a]}]", (Surface(kind=SurfaceKind.DISPATCH, agents=("a",)),)),
        ("surfaces: []", ()),
        ("surfaces:", None),
    ],
)
def test_surfaces_are_kinds_or_maps(lines: str, surfaces: tuple[Surface, ...] | None) -> None:
    parsed = read(lines)
    assert parsed.definition is not None
    assert parsed.definition.surfaces == surfaces


@pytest.mark.parametrize("kind", ["task", "subagent"])
def test_a_surface_of_a_later_version_shows_nothing_and_is_named(kind: str) -> None:
    parsed = read(f"surfaces: [{kind}]")
    assert parsed.definition is not None
    assert parsed.definition.surfaces == ()
    assert [problem.message for problem in parsed.problems] == [f"surface {kind!r} comes in a later version"]
