"""What each kind of limit does to a tree: tokens, money, tool calls, delegations, wall time."""

from pathlib import Path
from typing import Any

import pytest

from app.agent.messages import Usage
from app.llm.profile import Profile
from tests.agent.handoff_events import told
from tests.agent.probes import Probe, Stage, echo
from tests.plan import FORCED_TEXT, ask, call, task
from tests.world import World, world

pytestmark = pytest.mark.spec("4.8")
HONEST = {"input_tokens": 50, "output_tokens": 20}


def priced(name: str, currency: str = "USD", price: int = 1_000_000) -> Profile:
    """A model of that price (micro-units per million tokens) that plays plans."""
    return Profile(
        name=name, provider="scripted", model="plan", input_price=price, output_price=2 * price, currency=currency
    )


MODELS = {"dear": priced("dear"), "euro": priced("euro", "EUR"), "free": priced("free", "EUR", 0)}


async def children(w: World, session_id: str) -> list[dict[str, Any]]:
    """The rows of the runs at depth 1."""
    return await w.rows("runs", session_id=session_id, depth=1)


# ── tokens and money ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_every_request_is_bounded_by_the_tokens_that_are_left(tmp_path: Path) -> None:
    limit = 9_000
    steps = [
        {"calls": [call("glob", pattern=f"{at}*")], "usage": {"input_tokens": 900, "output_tokens": 600}}
        for at in range(8)
    ]
    async with world(tmp_path) as w:
        row = await w.finished(await w.run(task(*steps, "end", final="forced"), budget={"tokens": limit}))
        assert (row["status"], row["stop_reason"], row["output"]) == ("completed", "budget", "forced")
        spent = 0
        for request in w.requests[:-1]:
            assert request.max_tokens is not None
            assert 0 < request.max_tokens <= limit - spent
            spent += 1_500
        bounds = [request.max_tokens for request in w.requests]
        assert bounds[0] == 4096, "what an answer may have when nobody said how much"
        assert bounds[-2] is not None and bounds[-2] < 4096
        assert w.requests[-1].messages[-1].content == FORCED_TEXT
        assert bounds[-1] is not None and bounds[-1] >= 1024, "what the root kept back"
        total = row["usage_total"]
        assert total["input_tokens"] + total["output_tokens"] <= limit


async def test_the_bound_of_a_definition_holds_where_it_is_lower(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        agents = [w.node(max_tokens=300)]
        await w.finished(await w.run(task("end"), agents=agents, budget={"tokens": 9_000}))
        await w.finished(await w.run(task("end"), agents=agents, budget={"model_calls": 9}))
        await w.finished(await w.run(task("end"), budget={"model_calls": 9}))
        assert [request.max_tokens for request in w.requests] == [300, 300, None]


@pytest.mark.parametrize("limits", [{"tokens": 12_000}, {"cost_micros": 12_000}])
async def test_children_wait_for_what_others_give_back_and_all_answer(tmp_path: Path, limits: dict[str, int]) -> None:
    child = task({"calls": [call("glob", pattern="*")], "usage": HONEST}, {"text": "found", "usage": HONEST})
    plan = task({"calls": [ask(child) for _ in range(6)], "usage": HONEST}, {"text": "end", "usage": HONEST})
    async with world(tmp_path, profiles=MODELS, model="dear") as w:
        run = await w.run(plan, budget=limits)
        row = await w.finished(run)
        assert (row["status"], row["stop_reason"], row["output"]) == ("completed", "answer", "end")
        assert [child["output"] for child in await children(w, run.session_id)] == ["found"] * 6
        bounds = [request.max_tokens or 0 for request in w.requests[1:7]]
        assert sum(bounds) > 12_000, "they could not all have reserved this at once"
        assert row["usage_total"]["cost"] == {"USD": 14 * (50 + 2 * 20)}


@pytest.mark.parametrize("limits", [{"tokens": 20_000}, {"cost_micros": 30_000}])
async def test_children_that_use_what_they_may_never_pass_the_limit(tmp_path: Path, limits: dict[str, int]) -> None:
    used = {"input_tokens": 10, "output_tokens": 1_000}
    child = task(*({"calls": [call("glob", pattern=f"{at}*")], "usage": used} for at in range(4)), "found")
    plan = task({"calls": [ask(child) for _ in range(6)], "usage": HONEST}, final={"text": "forced", "usage": HONEST})
    async with world(tmp_path, profiles=MODELS, model="dear") as w:
        run = await w.run(plan, budget=limits)
        row = await w.finished(run)
        total = Usage.from_dict(row["usage_total"])
        assert total.input_tokens + total.output_tokens <= limits.get("tokens", 30_000)
        assert total.cost["USD"] <= limits.get("cost_micros", 40_000)
        ends = {(child["status"], child["stop_reason"]) for child in await children(w, run.session_id)}
        assert ("failed", "budget") in ends
        assert (row["status"], row["output"]) == ("completed", "forced")


@pytest.mark.parametrize("model", ["free", "dear"])
async def test_a_model_with_a_price_or_none_to_pay_passes(tmp_path: Path, model: str) -> None:
    async with world(tmp_path, profiles=MODELS, model=model) as w:
        row = await w.finished(await w.run(task({"calls": [ask(task("x"))]}, "end"), budget={"cost_micros": 50_000}))
        assert (row["status"], row["stop_reason"]) == ("completed", "answer")


@pytest.mark.parametrize("model", ["euro", "scripted:plan"])
async def test_a_child_whose_model_has_no_price_fails_its_handoff_and_the_reason_is_told(
    tmp_path: Path, model: str
) -> None:
    async with world(tmp_path, profiles=MODELS, model="dear") as w:
        agents = [w.node(), w.node("other", model=model, budget={"cost_micros": 50_000})]
        run = await w.run(task({"calls": [ask(task("x"), "other"), ask(task("y"))]}, "end"), agents=agents)
        assert (await w.finished(run))["output"] == "end"
        results = await told(w, run.session_id)
        assert [result["is_error"] for result in results] == [True, False]
        assert f"model '{model}' has no price" in results[0]["content"] or "no price in it" in results[0]["content"]
        failed = (await children(w, run.session_id))[0]
        assert (failed["status"], failed["error"]["code"], failed["steps"]) == ("failed", "no_price", 0)
        assert len(w.requests) == 3


async def test_a_fallback_to_a_model_without_a_price_is_refused_as_well(tmp_path: Path) -> None:
    failing = task({"error": {"code": "quota", "message": "no quota"}})
    policy = {"max_depth": 1, "on_error": {"model": "scripted:plan"}}
    async with world(tmp_path, profiles=MODELS, model="dear") as w:
        plan = task({"calls": [ask(failing)]}, "end")
        run = await w.run(plan, policy=policy, budget={"cost_micros": 50_000})
        assert (await w.finished(run))["output"] == "end"
        assert [c["error"]["code"] for c in await children(w, run.session_id)] == ["quota", "no_price"]
        (end,) = await w.events(run.session_id, "handoff.end")
        assert (end["data"]["status"], end["data"]["error"]["code"]) == ("failed", "no_price")


# ── tool calls and delegations ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_tool_call_above_the_limit_is_not_run_and_then_the_answer_is_forced(tmp_path: Path) -> None:
    stage = Stage()
    stage.open("a", "b", "c", "d")
    child = task({"calls": [call("solo", key="a")]}, "child")
    plan = task(
        {"calls": [ask(child), call("solo", key="b"), call("solo", key="c"), call("solo", key="d")]}, final="so far"
    )
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(plan, budget={"tool_calls": 2})
        row = await w.finished(run)
        assert (row["status"], row["stop_reason"], row["output"]) == ("completed", "budget", "so far")
        assert sorted(stage.diary) == ["+a", "+b", "-a", "-b"]
        results = await told(w, run.session_id)
        assert [result["status"] for result in results] == ["ok", "ok", "denied", "denied"]
        assert all("budget" in r["content"] and "tool_calls 2" in r["content"] for r in results[2:])
        starts = await w.events(run.session_id, "tool.start")
        assert len(starts) == 3, "a delegation and two calls"
        assert w.requests[-1].messages[-1].content == FORCED_TEXT


async def test_parallel_tool_calls_share_what_is_left(tmp_path: Path) -> None:
    stage = Stage()
    keys = "abcdefgh"
    stage.open(*keys)
    async with world(tmp_path, tools=stage.tools) as w:
        plan = task({"calls": [call("hold", key=key) for key in keys]}, final="so far")
        row = await w.finished(await w.run(plan, budget={"tool_calls": 5}))
        assert (row["stop_reason"], row["output"]) == ("budget", "so far")
        assert len([entry for entry in stage.diary if entry.startswith("+")]) == 5


async def test_a_child_that_may_call_no_more_tools_is_forced_to_answer_too(tmp_path: Path) -> None:
    child = task({"calls": [call("glob", pattern="*"), call("glob", pattern="a*")]}, final="child so far")
    async with world(tmp_path) as w:
        run = await w.run(task({"calls": [ask(child)]}, "end"), budget={"tool_calls": 1})
        assert (await w.finished(run))["stop_reason"] == "answer"
        (row,) = await children(w, run.session_id)
        assert (row["status"], row["stop_reason"], row["output"]) == ("completed", "budget", "child so far")
        assert (row["forced"], row["partial"]) == (True, True)
        (result,) = await told(w, run.session_id)
        assert "[partial: the subagent stopped at budget]" in result["content"]


async def test_a_delegation_above_the_limit_fails_without_an_attempt_and_the_parent_goes_on(tmp_path: Path) -> None:
    nested = task({"calls": [ask(task("leaf"))]}, "middle")
    async with world(tmp_path) as w:
        run = await w.run(
            task({"calls": [ask(nested), ask(task("x")), ask(task("y"))]}, "end"), budget={"delegations": 3}
        )
        row = await w.finished(run)
        assert (row["status"], row["stop_reason"], row["output"]) == ("completed", "answer", "end")
        ends = [e["data"] for e in await w.events(run.session_id, "handoff.end")]
        (refused,) = [end for end in ends if end["status"] != "completed"]
        assert (refused["status"], refused["attempts"], refused["run_ids"]) == ("failed", 0, [])
        assert refused["error"]["code"] == "budget_exhausted"
        assert "delegations 3" in refused["error"]["message"]
        assert len(await w.rows("runs", session_id=run.session_id)) == 4
        texts = [r["content"] for depth in (0, 1) for r in await told(w, run.session_id, depth)]
        assert sum("delegations 3" in text for text in texts) == 1


async def test_attempts_are_no_further_delegations_and_a_fixed_answer_stands_in_for_what_cannot_be_paid(
    tmp_path: Path,
) -> None:
    failing = task({"error": {"code": "overloaded", "retryable": True}})
    policy = {"max_depth": 1, "max_retries": 2, "on_error": {"answer": "instead"}}
    async with world(tmp_path) as w:
        plan = task({"calls": [ask(failing)]}, {"calls": [ask(task("x"))]}, "end")
        run = await w.run(plan, policy=policy, budget={"delegations": 1})
        assert (await w.finished(run))["output"] == "end"
        ends = [e["data"] for e in await w.events(run.session_id, "handoff.end")]
        assert [(end["status"], end["attempts"]) for end in ends] == [("fallback", 3), ("fallback", 0)]
        assert [end["error"]["code"] for end in ends] == ["overloaded", "budget_exhausted"]
        assert len(await children(w, run.session_id)) == 3


async def test_another_agent_cannot_stand_in_for_a_delegation_that_cannot_be_paid(tmp_path: Path) -> None:
    policy = {"max_depth": 1, "on_error": {"agent": "other"}}
    async with world(tmp_path) as w:
        plan = task({"calls": [ask(task("x")), ask(task("y"))]}, "end")
        run = await w.run(plan, policy=policy, agents=[w.node(), w.node("other")], budget={"delegations": 1})
        assert (await w.finished(run))["output"] == "end"
        ends = [e["data"] for e in await w.events(run.session_id, "handoff.end")]
        assert sorted((end["status"], end["attempts"], len(end["run_ids"])) for end in ends) == [
            ("completed", 1, 1),
            ("failed", 0, 0),
        ]


# ── wall time ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("5.5", "5.7")
async def test_when_the_wall_time_is_over_the_tree_ends_in_a_forced_answer(tmp_path: Path) -> None:
    stage = Stage()
    deep = task({"calls": [ask(task({"calls": [call("hold", key="leaf")]}, "leaf"))]}, "middle")
    plan = task({"calls": [ask(deep), call("glob", pattern="*")]}, "end", final="so far")
    async with world(tmp_path, tools=stage.tools) as w:
        session = await w.session(budget={"wall_ms": 1_500})
        row = await w.finished(await w.turn(session, plan))
        assert (row["status"], row["stop_reason"], row["output"]) == ("completed", "budget", "so far")
        assert (row["forced"], row["partial"]) == (True, True)
        below = [r["status"] for r in await w.rows("runs", session_id=session) if r["depth"]]
        assert below == ["cancelled", "cancelled"]
        assert stage.diary == ["+leaf", "!leaf"]


@pytest.mark.spec("5.7")
async def test_the_wall_time_of_a_child_ends_it_and_not_its_parent(tmp_path: Path) -> None:
    stage = Stage()
    holding = task({"calls": [call("hold", key="x")]}, "never", final="child so far")
    async with world(tmp_path, tools=stage.tools) as w:
        agents = [w.node(), w.node("short", budget={"wall_ms": 1_000})]
        run = await w.run(task({"calls": [ask(holding, "short")]}, "end"), agents=agents)
        row = await w.finished(run)
        assert (row["stop_reason"], row["output"]) == ("answer", "end")
        (child,) = await children(w, run.session_id)
        assert (child["status"], child["stop_reason"], child["output"]) == ("completed", "budget", "child so far")


@pytest.mark.spec("4.8", "12.7")
async def test_after_a_restart_a_session_has_spent_what_its_budget_had_counted(tmp_path: Path) -> None:
    search = Probe("execute_task", echo)  # an ordinary tool that the delegation tool of its name hides
    unknown = call("execute_task", name="nobody", description="three short words", prompt="x")
    fails = task({"error": {"code": "quota", "message": "none left", "retryable": False}})
    failing = call("execute_task", name="node", description="three short words", prompt=fails)
    plan = task(
        {"calls": [call("glob", pattern="*"), call("list_tasks"), unknown]},
        {"calls": [call("get_task_output", task_id="ho_none"), call("nothing"), failing]},
        "end",
    )
    async with world(tmp_path, tools=[search]) as w:
        tools = ["Agent", "glob", "execute_task"]
        policy = {"max_depth": 2, "on_error": "fallback_to_primary"}
        session = await w.session(
            agents=[w.node(tools=tools)], surfaces=["task"], policy=policy, budget={"tool_calls": 50, "delegations": 50}
        )
        row = await w.finished(await w.turn(session, plan))
        assert (row["output"], len(search.arguments)) == ("end", 1)
        budget = w.supervisor.budget(session)
        assert budget is not None
        used = (budget.used.tool_calls, budget.used.delegations)
        assert used == (4, 1), "glob, two that look after tasks, the tool that stood in; one handoff"
    async with world(tmp_path, tools=[search]) as w:
        spent = await w.store.spent(w.tenant, session, "USD")
        assert (spent["tool_calls"], spent["delegations"]) == used
