"""Tools that a person is asked about before each call, because of what they are: who may allow them, and who not."""

import pytest

from app.agent.permission_rules import PermissionRule, PermissionRules, Scope, Verdict
from app.agent.permissions import Decision, DecisionKind, Means, PermissionPolicy, under_whitelist
from app.agent.tools import ToolSpec
from app.tools.bash import BashParser

WHY = "the MCP server changed this tool since it was first seen"
CHANGED = ToolSpec(name="mcp__files__read", description="", parameters={}, ask=WHY)


def rules(scope: Scope, *some: tuple[Verdict, str], default: Verdict | None = None) -> PermissionRules:
    return PermissionRules(
        scope=scope, rules=tuple(PermissionRule(effect=effect, tool=name) for effect, name in some), default=default
    )


def decide(policy: PermissionPolicy | None, *answers: str) -> Decision:
    given = tuple(PermissionRule(effect=Verdict.ALLOW, tool=name) for name in answers)
    means = Means(parser=BashParser(), resolve_path=lambda path: path, answers=given)
    return (policy or PermissionPolicy("lead")).decide(CHANGED, {"path": "a"}, means)


@pytest.mark.spec("7.7", "8.2")
def test_without_a_rule_a_person_is_asked_and_told_why() -> None:
    found = decide(None)
    assert (found.verdict, found.reason, found.kind) == (Verdict.ASK, WHY, DecisionKind.DEFAULT)
    assert str(found.suggested_rule) == "mcp__files__read"


@pytest.mark.spec("8.2")
def test_an_answer_for_the_session_is_not_asked_for_again() -> None:
    found = decide(None, "mcp__files__read")
    assert (found.verdict, found.kind, found.scope) == (Verdict.ALLOW, DecisionKind.ANSWER, Scope.SESSION)
    assert decide(None, "mcp__files__write").verdict is Verdict.ASK


@pytest.mark.spec("8.1", "10.5")
@pytest.mark.parametrize("scope", list(Scope))
@pytest.mark.parametrize("name", ["mcp__files__read", "mcp__files"])
def test_only_rules_of_operators_allow_it(scope: Scope, name: str) -> None:
    found = decide(PermissionPolicy("lead", [rules(scope, (Verdict.ALLOW, name))]))
    operators = scope in (Scope.SERVER, Scope.TENANT)
    assert found.verdict is (Verdict.ALLOW if operators else Verdict.ASK)


@pytest.mark.spec("7.2")
def test_a_whitelist_that_names_it_has_not_looked_at_it() -> None:
    limits = [PermissionRule(effect=Verdict.ALLOW, tool="run_command", pattern="git *")]
    policy = under_whitelist(None, "lead", ("run_command", CHANGED.name), limits)
    assert decide(policy).verdict is Verdict.ASK


@pytest.mark.spec("8.1")
def test_what_is_denied_stays_denied_and_a_child_is_asked_like_its_parent() -> None:
    denied = PermissionPolicy("lead", [rules(Scope.SERVER, (Verdict.DENY, "mcp__files"))])
    assert decide(denied, "mcp__files__read").verdict is Verdict.DENY
    assert decide(PermissionPolicy("lead").inherit("child")).verdict is Verdict.ASK
    strict = PermissionPolicy("lead", [rules(Scope.SERVER, default=Verdict.DENY)])
    assert decide(strict).verdict is Verdict.DENY
