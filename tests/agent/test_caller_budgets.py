"""What a caller says itself: it bounds a whole handoff, over its attempts and what stands in, and wins over files."""

from pathlib import Path
from typing import Any

import pytest

from app.agent.errors import InvalidRequest
from app.agent.messages import Usage
from app.llm.profile import Profile
from tests.agent.handoff_events import told
from tests.agent.probes import Stage
from tests.plan import CANCEL, ask, call, task
from tests.world import WAIT_S, World, world

BUSY = task({"error": {"code": "overloaded", "message": "busy", "retryable": True}})
NOWHERE = {"on_error": {"model": "nowhere:x"}}
DEAR = Profile(name="dear", provider="scripted", model="plan", input_price=1_000_000, output_price=2_000_000)


async def result_of(w: World, text: str, **fields: Any) -> dict[str, Any]:
    """How a direct delegation ends, as its caller sees it."""
    return await w.delegations.result(w.tenant, await w.delegate(text, **fields))


# ── one budget for the whole handoff ────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("3.6", "4.7", "4.8")
@pytest.mark.parametrize("where", ["budget", "policy"])
@pytest.mark.parametrize(
    ("retries", "reaction"),
    [(3, None), (1, {"agent": "scout"}), (1, {"model": "scripted:plan"}), (3, {"agent": "scout"})],
)
async def test_what_a_caller_allows_is_for_all_attempts_and_what_stands_in_together(
    tmp_path: Path, where: str, retries: int, reaction: dict[str, str] | None
) -> None:
    limits = {"model_calls": 3}
    policy: dict[str, Any] = {"max_retries": retries, "on_error": reaction}
    given: dict[str, Any] = {"budget": limits} if where == "budget" else {}
    if where == "policy":
        policy["budget"] = limits
    async with world(tmp_path) as w:
        view = await result_of(w, BUSY, policy=policy, **given)
        # with nothing left for a fourth attempt this one ends in what there is, as every root does
        assert (view["status"], view["stop_reason"]) == (
            ("completed", "budget") if retries > 2 else ("failed", "error")
        )
        assert len(w.requests) == 3
        assert view["usage_total"]["model_calls"] == 3
        again = await result_of(w, task("fine"), policy=policy, **given)
        assert again["output"] == "fine", "and it is of this handoff alone"


@pytest.mark.spec("3.6", "4.8")
async def test_what_a_caller_allows_bounds_what_its_subagent_delegates_too(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        deep = task({"calls": [ask(task("a")), ask(task("b")), ask(task("c"))]}, "never", final="so far")
        agents = w.node(surfaces=["dispatch"], handoff={"max_depth": 2})
        view = await result_of(w, deep, agent=agents, budget={"model_calls": 4})
        assert (view["status"], view["stop_reason"], view["output"]) == ("completed", "budget", "so far")
        assert len(w.requests) == view["usage_total"]["model_calls"] == 4


@pytest.mark.spec("4.8", "4.10")
@pytest.mark.parametrize(("of_lead", "of_session"), [(3, 50), (50, 3)])
async def test_the_budget_in_the_file_of_the_lead_and_that_of_the_session_s_policy_both_bound(
    tmp_path: Path, of_lead: int, of_session: int
) -> None:
    async with world(tmp_path) as w:
        lead = w.node(handoff={"budget": {"model_calls": of_lead}})
        policy = {"max_depth": 3, "budget": {"model_calls": of_session}}
        plan = task(*({"calls": [call("glob", pattern=f"{at}*")]} for at in range(9)), "end", final="so far")
        row = await w.finished(await w.run(plan, agents=[lead], policy=policy))
        assert (row["status"], row["stop_reason"], row["output"]) == ("completed", "budget", "so far")
        assert len(w.requests) == 3


# ── one deadline ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("4.1", "4.7")
async def test_what_stands_in_has_no_deadline_of_its_own(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools, script=SLOW) as w:
        agents = [w.node(), w.node("slow"), w.node("helper")]
        policy = {"deadline_ms": 300, "on_error": {"agent": "helper"}}
        row = await w.finished(await w.run("go", agents=agents, policy=policy))
        assert row["output"] == "end"
        (end,) = [e["data"] for e in await w.events(row["session_id"], "handoff.end")]
        assert end["status"] == "timed_out"
        assert end["fallback"] == {"kind": "agent", "target": "helper"}
        runs = sorted(await w.rows("runs", session_id=row["session_id"], depth=1), key=lambda r: int(r["ordinal"]))
        assert [(r["agent"], r["status"]) for r in runs] == [("slow", "timed_out"), ("helper", "timed_out")]
        assert stage.diary == ["+slow", "!slow"], "no time was left for it"


SLOW = """agents:
  - when: {task_contains: go}
    turns:
      - calls: [{tool: dispatch_subagent, arguments: {agent_type: slow, task: work}}]
      - {text: end}
  - when: {system_contains: You are slow}
    turns: [{calls: [{tool: hold, arguments: {key: slow}}]}, {text: never}]
  - when: {system_contains: You are helper}
    turns: [{calls: [{tool: glob, arguments: {pattern: "*"}}]}, {calls: [{tool: hold, arguments: {key: helper}}]}]
"""


# ── what its view says ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("3.6", "13.4")
async def test_a_delegation_says_what_all_its_runs_used(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        used = {"input_tokens": 100, "output_tokens": 10}
        child = {"text": "child", "usage": {"input_tokens": 7, "output_tokens": 1}}
        error = {"code": "overloaded", "retryable": True}
        plan = task({"calls": [ask(task(child))], "usage": used}, {"error": error})
        policy = {"max_depth": 2, "max_retries": 1, "on_error": {"model": "scripted:plan"}}
        view = await result_of(w, plan, policy=policy)
        assert len(view["run_ids"]) == 3
        rows = await w.rows("runs", session_id=view["session_id"], depth=1)
        for field in ("usage", "usage_total"):
            alone = [Usage.from_dict(row[field]) for row in rows]
            assert view[field] == (alone[0] + alone[1] + alone[2]).as_dict()
        assert view["usage"]["input_tokens"] == 300
        assert view["usage_total"]["input_tokens"] == 321
        assert view["usage_total"]["model_calls"] == len(w.requests) == 9
        assert await w.delegations.get(w.tenant, view["handoff_id"]) == view


# ── model and thinking ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("3.6", "5.9")
@pytest.mark.parametrize(
    ("given", "applies"),
    [
        ({}, ("scripted:plan", False)),
        ({"model": "scripted:spare"}, ("scripted:spare", False)),
        ({"thinking": True}, ("scripted:plan", True)),
        ({"model": "scripted:spare", "thinking": True}, ("scripted:spare", True)),
    ],
)
async def test_the_model_and_the_thinking_of_a_caller_win_over_those_of_the_definition(
    tmp_path: Path, given: dict[str, Any], applies: tuple[str, bool]
) -> None:
    async with world(tmp_path) as w:
        (tmp_path / "scripts" / "spare.py").write_text("from tests.plan import reply\n")
        definition = w.node(model="scripted:plan", thinking=False)
        view = await result_of(w, task("done"), agent=definition, **given)
        assert view["output"] == "done"
        (started,) = await w.events(view["session_id"], "run.started")
        assert (started["data"]["model"], w.requests[0].thinking) == applies


@pytest.mark.spec("4.1", "13.3")
async def test_a_model_that_stands_in_and_does_not_exist_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        refused: list[InvalidRequest] = []
        sides: list[tuple[Any, Any]] = [(NOWHERE, {}), (None, NOWHERE)]
        for policy, fields in sides:
            with pytest.raises(InvalidRequest, match="nowhere:x") as by_session:
                await w.session(agents=[w.node(handoff=fields)], policy=policy)
            with pytest.raises(InvalidRequest, match="nowhere:x") as by_delegation:
                await w.delegate(task("x"), agent=w.node(handoff=fields), policy=policy)
            refused += [by_session.value, by_delegation.value]
        assert {error.code for error in refused} == {"unknown_model"}
        assert await w.rows("sessions") == []


# ── calls of which nobody says what they used ───────────────────────────────────────────────────────────────────

SAID = "many words " * 40
UNTOLD = {
    "no usage": task({"text": SAID, "usage": None}),
    "an error": task({"text": SAID, "error": {"code": "quota"}}),
    "a broken connection": task(CANCEL),
    "the error of a child": task({"calls": [ask(task({"text": SAID, "error": {"code": "quota"}}))]}, "end"),
}


@pytest.mark.spec("4.8", "13.4")
@pytest.mark.parametrize("plan", UNTOLD.values(), ids=UNTOLD.keys())
@pytest.mark.parametrize("kind", ["tokens", "cost_micros"])
async def test_calls_whose_use_is_estimated_count_after_a_restart_as_before(
    tmp_path: Path, plan: str, kind: str
) -> None:
    limit = 100_000_000
    models: dict[str, Any] = {"profiles": {"dear": DEAR}, "model": "dear"}
    async with world(tmp_path, **models) as w:
        session = await w.session(budget={kind: limit})
        row = await w.finished(await w.turn(session, plan))
        spent = await w.store.spent(w.tenant, session, "USD")
        with w.supervisor.work(await w.sessions.known(w.tenant, session), _never()):
            before = w.supervisor.budget(session)
        assert before is not None
        counted = getattr(before.used, kind)
        assert counted == spent[kind] > 0
        assert row["usage_total"]["estimated_tokens"] > 0
    async with world(tmp_path, **models) as w:
        async with w.sessions.opened(await w.sessions.known(w.tenant, session)):
            after = w.supervisor.budget(session)
        assert after is not None
        assert getattr(after.used, kind) == counted


def _never() -> Any:
    """Numbers of a session that the supervisor has at hand, so that it does not look at these."""


@pytest.mark.spec("4.8")
async def test_a_session_that_used_its_tokens_without_being_told_so_asks_nobody_after_a_restart(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.session(budget={"tokens": 8_000}, agents=[w.node(max_tokens=100)])
        plan = task(*({"calls": [call("glob", pattern=f"{at}*")], "usage": None} for at in range(20)), "end")
        row = await w.finished(await w.turn(session, plan))
        assert (row["stop_reason"], row["usage"]["input_tokens"]) == ("budget", 0)
    async with world(tmp_path) as w:
        row = await w.finished(await w.turn(session, task("x")))
        assert (row["status"], row["stop_reason"], w.requests) == ("completed", "budget", [])


@pytest.mark.spec("2.5", "4.8")
async def test_a_summary_whose_use_is_estimated_counts_too(tmp_path: Path) -> None:
    async with world(tmp_path, script=SUMMARY) as w:
        agents = [w.node(), w.node("reader", inherit_context="summary")]
        session = await w.session(agents=agents, budget={"tokens": 100_000})
        row = await w.finished(await w.turn(session, "go"))
        assert [r["content"] for r in await told(w, session)] == ["read"]
        assert row["usage"]["model_calls"] == 3
        assert row["usage"]["estimated_tokens"] > 0
        assert (await w.row(row["id"], WAIT_S))["output"] == "end"


SUMMARY = """agents:
  - when: {system_contains: You are reader}
    turns: [{text: read}]
  - when: {system_contains: You are node}
    turns:
      - text: I ask.
        calls: [{tool: dispatch_subagent, arguments: {agent_type: reader, task: Read.}}]
      - {text: end}
  - turns: [{text: in short, usage: null}]
"""
