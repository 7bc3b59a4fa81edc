"""Rules of a run without a parent: server, tenant, agent and session together, and none widens what stands above it."""

from pathlib import Path
from typing import Any

import pytest

from app.agent.definition import AgentDefinition, Source
from app.agent.permissions import DecisionKind, Means, PermissionPolicy, PermissionRule, PermissionRules, Scope, Verdict
from app.agent.runs import Session
from app.agent.tools import ToolSpec
from app.sessions.policies import Policies
from app.settings_rules import Permissions, Rules, TenantRules
from app.wiring_permissions import tenant_rules
from tests.agent.guarded import commands, results
from tests.agent.test_permissions import Words, resolved
from tests.plan import call, task
from tests.world import agent, world

ALLOW, ASK, DENY = Verdict.ALLOW, Verdict.ASK, Verdict.DENY
COMMAND = ToolSpec(name="run_command", description="", parameters={"type": "object"})
MEANS = Means(parser=Words(), resolve_path=resolved)


def rules(scope: Scope, default: Verdict | None = None, **patterns: str) -> PermissionRules:
    """Rules of one scope on commands: `allow="git *"` and so on."""
    found = [PermissionRule(effect=Verdict(e), tool="run_command", pattern=p or None) for e, p in patterns.items()]
    return PermissionRules(scope=scope, rules=tuple(found), default=default)


def session(tenant: str, permissions: PermissionRules | None = None) -> Session:
    return Session(id="ses_1", tenant=tenant, memory_id="mem_1", agent="lead", created_at=0, permissions=permissions)


def lead(trusted: bool = True, permissions: PermissionRules | None = None) -> AgentDefinition:
    source = Source(kind="directory" if trusted else "tenant")
    return AgentDefinition(name="lead", description="", permissions=permissions, source=source)


def judged(policy: PermissionPolicy | None, command: str) -> tuple[Verdict, Scope | None]:
    """What holds for a command, and who said so."""
    assert policy is not None
    found = policy.decide(COMMAND, {"command": command}, MEANS)
    return found.verdict, found.scope


@pytest.mark.spec("8.1")
def test_rules_of_a_tenant_hold_for_it_alone_and_are_named_in_the_record() -> None:
    by = Policies(tenants={"acme": rules(Scope.TENANT, deny="rm *", ask="make *")})
    acme = by.lead(session("acme"), lead())
    assert judged(acme, "rm x") == (DENY, Scope.TENANT)
    assert judged(acme, "make all") == (ASK, Scope.TENANT)
    assert judged(acme, "ls")[0] is ALLOW
    assert by.lead(session("other"), lead()) is by.caller(session("other"), None) is None
    assert judged(by.caller(session("acme"), None), "rm x") == (DENY, Scope.TENANT)


@pytest.mark.spec("8.1", "10.5")
@pytest.mark.parametrize(
    "server",
    [rules(Scope.SERVER, DENY), rules(Scope.SERVER, ASK), rules(Scope.SERVER, allow="git *"),
     rules(Scope.SERVER, deny="make *"), rules(Scope.SERVER, ask="make *")],
)  # fmt: skip
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_what_a_tenant_allows_must_be_allowed_by_the_server_as_well(server: PermissionRules, depth: int) -> None:
    by = Policies(server, {"acme": rules(Scope.TENANT, ALLOW, allow="make *")})
    alone = Policies(server)
    for start in (by.lead(session("acme"), lead()), by.caller(session("acme"), None)):
        policy, strict = start, alone.lead(session("acme"), lead())
        assert policy is not None
        assert strict is not None
        for _ in range(depth):
            policy, strict = policy.inherit("child"), strict.inherit("child")
        assert judged(policy, "make all")[0] is judged(strict, "make all")[0] is not ALLOW
        assert judged(policy, "git log")[0] is not ALLOW or judged(strict, "git log")[0] is ALLOW


@pytest.mark.spec("8.1", "10.5")
def test_what_comes_over_the_api_must_be_allowed_by_server_and_tenant() -> None:
    widest = rules(Scope.SESSION, ALLOW, allow="")
    by = Policies(rules(Scope.SERVER, allow="git *"), {"acme": rules(Scope.TENANT, allow="git log *")})
    for policy in (by.lead(session("acme", widest), lead()), by.caller(session("acme"), widest)):
        assert judged(policy, "make all")[0] is ASK
        assert judged(policy, "git log x")[0] is ALLOW
    closed = Policies(None, {"acme": rules(Scope.TENANT, DENY)})
    own = rules(Scope.DEFINITION, allow="")
    assert judged(closed.lead(session("acme", widest), lead(False, own)), "ls") == (DENY, Scope.TENANT)
    assert judged(closed.lead(session("acme"), lead(True, own)), "ls")[0] is ALLOW, "a file of the operator's may"


@pytest.mark.spec("8.1", "16.5")
def test_rules_of_tenants_are_read_like_those_of_the_server_and_a_wrong_one_names_its_setting() -> None:
    given = Permissions(tenants={"acme": TenantRules(deny=["Bash(rm *)"], default=ASK), "idle": TenantRules()})
    (found,) = tenant_rules(given, frozenset()).items()
    assert found == ("acme", PermissionRules(
        scope=Scope.TENANT, default=ASK,
        rules=(PermissionRule(effect=DENY, tool="run_command", pattern="rm *", text="Bash(rm *)"),),
    ))  # fmt: skip
    with pytest.raises(ValueError, match=r"permissions\.tenants\.acme\.allow\[0\].*no closing bracket"):
        tenant_rules(Permissions(tenants={"acme": TenantRules(allow=["Bash(rm"])}), frozenset())


@pytest.mark.spec("8.1", "8.3", "17.1")
@pytest.mark.parametrize(("tenant", "status"), [("acme", "denied"), ("other", "ok")])
async def test_a_call_is_judged_by_the_rules_of_its_own_tenant(tmp_path: Path, tenant: str, status: str) -> None:
    given = Permissions(rules=Rules(), tenants={"acme": TenantRules(deny=["Bash(rm *)"])})
    tool = commands()
    async with world(tmp_path, tools=[tool], permissions=given, tenant=tenant) as w:
        plan = task({"calls": [call("run_command", command="rm x")]}, "end")
        run = await w.run(plan, agent="solo", agents=[agent("solo", tools=["run_command"])])
        await w.finished(run)
        assert [found for found, _ in await results(w, run.session_id)] == [status]
        decided: list[Any] = [e["data"] for e in await w.events(run.session_id, "permission.resolved")]
        said = [(d["decision"], d["kind"], d["scope"], d["rule"]) for d in decided]
        assert said == ([("deny", DecisionKind.RULE.value, "tenant", "Bash(rm *)")] if tenant == "acme" else [])
