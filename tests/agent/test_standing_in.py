"""Rules about whom agents may start hold for whatever stands in for a subagent, and for what a caller orders itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.agent.approvals import AnswerKind
from app.agent.errors import Denied, InvalidRequest
from app.agent.hooks import FunctionHook, HookCall, HookPoint, HookRegistry, Verdict
from tests.agent.guarded import give, questions, results, ruled
from tests.agent.probes import Stage
from tests.agent.test_fallback_agents import HELPER
from tests.agent.test_fallbacks import FAILING, SURFACES, TWO_WAYS, call_of, end_of, policy_of, tool
from tests.agent.test_still_clocks import SHORT_MS, time_passes
from tests.plan import call, task
from tests.world import World, world


async def with_helper(w: World, way: str, surface: str = "dispatch", **session: Any) -> Any:
    """A turn in which `node` is denied or fails and `helper` is to stand in."""
    agents, policy = [w.node(), w.node("helper")], policy_of(way, {"agent": "helper"})
    return await w.run("go " + surface, agents=agents, surfaces=[surface], policy=policy, **session)


async def started(w: World) -> list[str]:
    return [run["agent"] for run in await w.rows("runs", agent="helper")]


@TWO_WAYS
@SURFACES
@pytest.mark.spec("8.1", "8.4", "4.1", "8.3")
async def test_an_agent_that_may_not_be_started_does_not_stand_in_on_any_surface(
    tmp_path: Path, surface: str, way: str
) -> None:
    async with world(tmp_path, script=HELPER, permissions=ruled(deny=["Agent(helper)"])) as w:
        row = await w.finished(await with_helper(w, way, surface))
        assert await started(w) == []
        end = await end_of(w, row)
        assert (end["status"], end.get("fallback")) == (way, None)
        assert "the fallback agent 'helper' is not allowed: Permission denied: " in end["error"]["message"]
        (event,) = await w.events(row["session_id"], "permission.resolved")
        assert (event["data"]["decision"], event["data"]["rule"]) == ("deny", "Agent(helper)")
        assert event["data"]["call_id"] == end["call_id"], "the record says for which call"


@pytest.mark.spec("8.1", "8.4")
async def test_a_rule_on_the_tool_of_an_agent_keeps_it_from_standing_in_as_well(tmp_path: Path) -> None:
    async with world(tmp_path, script=HELPER, permissions=ruled(deny=["subagent_helper"])) as w:
        await w.finished(await with_helper(w, "failed", "per_agent"))
        assert await started(w) == []


@TWO_WAYS
@pytest.mark.spec("8.1", "8.2", "8.3")
@pytest.mark.parametrize("kind", [AnswerKind.ALLOW_ONCE, AnswerKind.ALLOW_SESSION, AnswerKind.DENY])
async def test_a_person_is_asked_about_the_agent_that_is_to_stand_in(
    tmp_path: Path, kind: AnswerKind, way: str
) -> None:
    async with world(tmp_path, script=HELPER) as w:
        run = await with_helper(w, way, permissions={"ask": ["Agent(helper)"]})
        (asked,) = await questions(w, run.session_id, 1)
        assert (asked["arguments"]["agent"], asked["suggested_rule"]) == ("helper", "Agent(helper)")
        with pytest.raises(InvalidRequest, match="the task stays as it is"):
            await give(w, asked["approval_id"], arguments={"agent": "node"})
        await give(w, asked["approval_id"], kind, message="No." if kind is AnswerKind.DENY else "")
        row = await w.finished(run)
        end = await end_of(w, row)
        if kind is AnswerKind.DENY:
            assert (end["status"], await started(w)) == (way, [])
            assert "A person denied this call. No." in end["error"]["message"]
        else:
            assert (end["status"], end["output"]) == ("fallback", "helped with: the work")


@pytest.mark.spec("4.4", "8.2")
async def test_the_deadline_of_a_handoff_stands_still_while_it_is_asked_who_stands_in(tmp_path: Path) -> None:
    stage = Stage()
    stage.open("work")
    work = task({"calls": [call("hold", key="work")]}, {"error": {"code": "quota", "message": "no quota left"}})
    async with world(tmp_path, tools=stage.tools, permissions=ruled(ask=["Agent(helper)"])) as w:
        policy = policy_of("failed", {"agent": "helper"}, deadline_ms=SHORT_MS)
        plan = task({"calls": [call_of("dispatch", work)]}, "end")
        run = await w.run(plan, agents=[w.node(), w.node("helper")], surfaces=["dispatch"], policy=policy)
        (asked,) = await questions(w, run.session_id, 1)
        await time_passes(w)
        stage.gate("work").clear()
        await give(w, asked["approval_id"])
        await w.until(run.session_id, "tool.start", 3)  # that of `helper`, which would have been cut off by now
        stage.open("work")
        end = await end_of(w, await w.finished(run))
        assert (end["status"], len(await started(w))) == ("failed", 1), "it failed by itself, like the first one"


@pytest.mark.spec("4.3", "8.2")
async def test_a_question_about_who_stands_in_is_withdrawn_with_the_run(tmp_path: Path) -> None:
    async with world(tmp_path, script=HELPER, permissions=ruled(ask=["Agent(helper)"])) as w:
        run = await with_helper(w, "failed")
        (asked,) = await questions(w, run.session_id, 1)
        await w.sessions.cancel(w.tenant, run.id)
        assert (await w.finished(run))["status"] == "cancelled"
        assert (await w.inbox.get(w.tenant, asked["approval_id"]))["status"] == "cancelled"
        assert await started(w) == []


# ── a caller's own order ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("3.6", "8.1", "8.3")
@pytest.mark.parametrize("rules", [{"deny": ["Agent(node)"]}, {"ask": ["Agent(node)"]}, {"allow": ["Agent(scout)"]}])
async def test_a_caller_may_not_order_an_agent_that_a_rule_forbids_or_asks_about(
    tmp_path: Path, rules: dict[str, list[str]]
) -> None:
    async with world(tmp_path, permissions=ruled(**rules)) as w:
        delegated = await w.delegate(task("done"))
        with pytest.raises(Denied, match="node"):
            await w.delegations.result(w.tenant, delegated)
        assert await w.rows("runs") == []
        (decided,) = await w.rows("decisions")
        assert (decided["decision"], decided["call_id"], decided["tool"]) == ("deny", None, "subagent_node")


@pytest.mark.spec("3.6", "8.1")
async def test_what_a_caller_says_in_its_order_binds_the_order(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        delegated = await w.delegate(task("done"), permissions={"deny": ["Agent(no*)"]})
        with pytest.raises(Denied, match="Agent"):
            await w.delegations.result(w.tenant, delegated)


@pytest.mark.spec("3.6", "8.1")
async def test_where_only_the_default_asks_a_caller_has_decided_by_its_order(tmp_path: Path) -> None:
    async with world(tmp_path, permissions=ruled(ask=["Agent(other)"], default="ask")) as w:
        delegated = await w.delegate(task("done"))
        assert (await w.delegations.result(w.tenant, delegated))["output"] == "done"


@pytest.mark.spec("3.6", "4.1", "8.1")
async def test_an_agent_that_is_forbidden_does_not_stand_in_for_what_a_caller_ordered(tmp_path: Path) -> None:
    async with world(tmp_path, permissions=ruled(deny=["Agent(scout)"])) as w:
        delegated = await w.delegate(FAILING, policy={"on_error": {"agent": "scout"}})
        result = await w.delegations.result(w.tenant, delegated)
        assert "the fallback agent 'scout' is not allowed: " in result["error"]["message"]
        assert [run["agent"] for run in await w.rows("runs")] == ["node"]


# ── the ordinary tool of that name ──────────────────────────────────────────────────────────────────────────────


@TWO_WAYS
@pytest.mark.spec("6.2", "6.5", "3.7")
@pytest.mark.parametrize(("surface", "name"), [("dispatch", "dispatch_subagent"), ("per_agent", "subagent_node")])
async def test_the_ordinary_tool_gets_what_a_hook_made_of_the_call(
    tmp_path: Path, surface: str, name: str, way: str
) -> None:
    primary, changed = tool(name, read_only=True), FAILING.replace("no quota left", "nothing at all")

    def guard(asked: HookCall) -> Verdict:
        given: dict[str, Any] = (
            json.loads(asked.arguments) if isinstance(asked.arguments, str) else dict(asked.arguments or {})
        )
        return Verdict(arguments={**given, "task": changed})

    hooks = HookRegistry([FunctionHook(name="guard", function=guard, points=frozenset({HookPoint.PRE_TOOL_USE}))])
    async with world(tmp_path, tools=[primary], hooks=hooks) as w:
        policy = policy_of(way, "fallback_to_primary")
        await w.finished(await w.run(task({"calls": [call_of(surface)]}, "end"), surfaces=[surface], policy=policy))
        assert [given["task"] for given in primary.arguments] == [changed]


@pytest.mark.spec("8.2", "8.3", "3.7")
@pytest.mark.parametrize(("surface", "name"), [("dispatch", "dispatch_subagent"), ("per_agent", "subagent_node")])
async def test_the_ordinary_tool_gets_what_a_person_made_of_the_call_and_is_judged_with_it(
    tmp_path: Path, surface: str, name: str
) -> None:
    primary, changed = tool(name, read_only=True), FAILING.replace("no quota left", "nothing at all")
    edited = {"task": changed} if surface == "per_agent" else {"task": changed, "agent_type": "node"}
    async with world(tmp_path, tools=[primary], permissions=ruled(ask=["Agent(node)", name])) as w:
        policy = policy_of("failed", "fallback_to_primary")
        run = await w.run(task({"calls": [call_of(surface)]}, "end"), surfaces=[surface], policy=policy)
        (first,) = await questions(w, run.session_id, 1)
        await give(w, first["approval_id"], arguments=edited)
        _, second = await questions(w, run.session_id, 2)
        assert second["arguments"] == edited, "the ordinary tool is a call of its own"
        await give(w, second["approval_id"])
        await w.finished(run)
        assert [given["task"] for given in primary.arguments] == [changed]
        assert await results(w, run.session_id) == [("ok", "done by hand")]
