"""Attempts of a handoff: what is tried again, how often, after which pause, until when, and what is left of each."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.orders import Pacing
from app.agent.patience import Patience
from app.agent.runs import HandoffStatus
from app.agent.tools import ToolContext
from tests.agent.handoff_events import kinds, told
from tests.agent.probes import Probe, Stage
from tests.plan import CANCEL, ask, call, task
from tests.world import WAIT_S, World, world

BUSY = {"code": "model_overloaded", "message": "busy", "retryable": True}
LONG = Pacing(backoff_ms=60_000, max_backoff_ms=60_000)  # a pause that no test waits for


@dataclass(frozen=True, kw_only=True)
class Noted(Pacing):
    """No pause to speak of; keeps for which it was asked."""

    asked: list[tuple[int, int | None]] = field(default_factory=list)

    def delay_ms(self, tried: int, at_least: int | None) -> float:
        self.asked.append((tried, at_least))
        return 1.0


async def ended(w: World, session_id: str) -> dict[str, Any]:
    """The only `handoff.end` of a session."""
    (end,) = await w.events(session_id, "handoff.end")
    data: dict[str, Any] = end["data"]
    return data


async def children(w: World, session_id: str) -> Sequence[dict[str, Any]]:
    """The runs of depth 1, in order."""
    return sorted(await w.rows("runs", session_id=session_id, depth=1), key=lambda row: int(row["ordinal"]))


# ── what is tried again ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("2.4", "4.7", "5.7")
@pytest.mark.seed("000", 39)
@pytest.mark.case("B051")
@pytest.mark.parametrize(("retries", "status"), [(0, "failed"), (1, "failed"), (2, "completed"), (9, "completed")])
async def test_an_error_that_can_pass_is_tried_again_and_each_attempt_is_a_run_under_one_handoff_and_one_name(
    tmp_path: Path, retries: int, status: str
) -> None:
    async with world(tmp_path) as w:
        flaky = task({"error": BUSY, "times": 2, "text": "at last"})
        plan = task({"calls": [ask(flaky, subagent_name="Worker")]}, "end")
        row = await w.finished(await w.run(plan, policy={"max_retries": retries}))
        end, runs = await ended(w, row["session_id"]), await children(w, row["session_id"])
        attempts = min(retries + 1, 3)
        assert (end["status"], end["attempts"]) == (status, attempts)
        assert [run["status"] for run in runs] == ["failed"] * min(attempts, 2) + ["completed"] * (attempts == 3)
        assert end["run_ids"] == [run["id"] for run in runs]
        assert {(run["handoff_id"], run["name"]) for run in runs} == {(end["handoff_id"], "Worker")}
        assert len({run["memory_id"] for run in runs}) == attempts, "each begins anew"
        assert await kinds(w, row["session_id"]) == ["start", status]
        (result,) = await told(w, row["session_id"])
        assert ("busy" in result["content"]) == (attempts != 3)
        assert row["usage_total"]["model_calls"] == 2 + attempts


@pytest.mark.spec("4.7")
@pytest.mark.parametrize(
    ("plan", "code"),
    [
        (task({"error": BUSY}), "model_overloaded"),
        (task(CANCEL), "internal_error"),
        (task({"calls": [call("hold", key="never")]}), "timed_out"),
    ],
)
async def test_a_models_fault_an_internal_error_and_a_timeout_are_tried_again(
    tmp_path: Path, plan: str, code: str
) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        policy = {"max_retries": 2, "timeout_ms": 60}
        row = await w.finished(await w.run(task({"calls": [ask(plan)]}, "end"), policy=policy))
        end = await ended(w, row["session_id"])
        assert (end["attempts"], end["error"]["code"]) == (3, code)
        assert len(await children(w, row["session_id"])) == 3


@pytest.mark.spec("4.7", "4.2")
@pytest.mark.parametrize(
    ("plan", "fields", "attempts", "code"),
    [
        (task({"error": {"code": "quota", "message": "no quota left"}}), {}, 1, "quota"),
        (task("no number"), {"output_schema": {"type": "integer"}}, 1, "output_invalid"),
        (task("x"), {"budget": {"tokens": 1}}, 1, "budget_exhausted"),
        (task({"calls": [ask(task({"error": {"message": "no"}}))]}), {"on_error": "fail"}, 1, "handoff_failed"),
        (task("x"), {"denied_tools": ["dispatch_subagent(worker)"]}, 0, "handoff_denied"),
        (task("x"), {"input_filter": [{"inject": {"a": "b"}}], "max_depth": 0}, 0, "handoff_denied"),
    ],
)
async def test_what_cannot_pass_is_not_tried_again(
    tmp_path: Path, plan: str, fields: dict[str, Any], attempts: int, code: str
) -> None:
    own = {key: fields[key] for key in ("output_schema", "budget") if key in fields}
    handoff = {"on_error": fields.get("on_error")}
    limits: dict[str, Any] = {
        key: fields[key] for key in ("denied_tools", "input_filter", "max_depth") if key in fields
    }
    async with world(tmp_path) as w:
        agents = [w.node(), w.node("worker", handoff=handoff, **own)]
        policy = {"max_depth": 3, "max_retries": 3, **limits}
        row = await w.finished(
            await w.run(task({"calls": [ask(plan, agent="worker")]}, "end"), agents=agents, policy=policy)
        )
        (end,) = [
            e["data"] for e in await w.events(row["session_id"], "handoff.end") if e["data"]["subagent"] == "worker"
        ]
        assert (end["attempts"], end["error"]["code"]) == (attempts, code)
        assert len(await w.rows("runs", agent="worker")) == attempts


@pytest.mark.spec("4.3")
@pytest.mark.seed("000", 33)
async def test_a_policy_that_is_off_tries_once(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        policy = {"enabled": False, "max_retries": 5, "deadline_ms": 1}
        row = await w.finished(await w.run(task({"calls": [ask(task({"error": BUSY}))]}, "end"), policy=policy))
        assert (await ended(w, row["session_id"]))["attempts"] == 1
        (run,) = await children(w, row["session_id"])
        assert run["status"] == "failed", "and no deadline cuts it"


# ── pauses ──────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(1, 200), st.none() | st.integers(0, 10**9))
@pytest.mark.spec("4.7")
def test_a_pause_doubles_up_to_its_bound_and_is_never_shorter_than_the_provider_asks(
    backoff_ms: int, more_ms: int, tried: int, at_least: int | None
) -> None:
    pacing = Pacing(backoff_ms=backoff_ms, max_backoff_ms=backoff_ms + more_ms)
    full = min(backoff_ms * 2 ** (tried - 1), backoff_ms + more_ms)
    pause = pacing.delay_ms(tried, at_least)
    assert max(full / 2, at_least or 0) <= pause <= max(full, at_least or 0)


@pytest.mark.spec("4.7")
def test_pauses_differ_so_that_children_that_failed_together_do_not_come_back_together() -> None:
    assert len({Pacing().delay_ms(1, None) for _ in range(20)}) > 1


@pytest.mark.spec("4.7", "5.8")
async def test_before_each_attempt_there_is_a_pause_that_knows_how_often_it_was_tried_and_what_the_provider_asks(
    tmp_path: Path,
) -> None:
    pacing = Noted()
    async with world(tmp_path, pacing=pacing) as w:
        plan = task({"error": {**BUSY, "retry_after_ms": 700}})
        await w.finished(await w.run(task({"calls": [ask(plan)]}, "end"), policy={"max_retries": 2}))
        assert pacing.asked == [(1, 700), (2, 700)]


@pytest.mark.spec("4.7")
@pytest.mark.parametrize(
    ("error", "pacing", "policy"),
    [
        ({**BUSY, "retry_after_ms": 600_001}, Pacing(backoff_ms=1), {}),
        ({**BUSY, "retry_after_ms": 2_000}, Pacing(backoff_ms=1, deadline_ms=1_000), {}),
        (BUSY, Pacing(backoff_ms=4_000, max_backoff_ms=4_000, deadline_ms=1_000), {}),
        (BUSY, LONG, {"deadline_ms": 20_000}),
    ],
)
async def test_no_attempt_begins_after_the_deadline_and_nobody_waits_for_one_that_cannot(
    tmp_path: Path, error: dict[str, Any], pacing: Pacing, policy: dict[str, Any]
) -> None:
    patience = Patience(retries=0, max_wait_ms=1)  # the lead asks the same model, and waits at its gate
    async with world(tmp_path, pacing=pacing, patience=patience) as w:
        plan = task({"calls": [ask(task({"error": error}))]}, "end")
        row = await w.finished(await w.run(plan, policy={"max_retries": 9, **policy}))
        end = await ended(w, row["session_id"])
        assert (row["output"], end["attempts"], end["status"]) == ("end", 1, "failed")


@pytest.mark.spec("4.7")
async def test_no_attempt_begins_when_the_pause_took_longer_than_it_should(tmp_path: Path) -> None:
    class Late(Pacing):
        """The event loop is busy for the whole rest of the deadline."""

        def delay_ms(self, tried: int, at_least: int | None) -> float:
            asyncio.get_running_loop().call_soon(busy)
            return 50.0

    def busy() -> None:
        until.append(time.monotonic() + 0.3)
        while time.monotonic() < until[0]:
            pass

    until: list[float] = []
    async with world(tmp_path, pacing=Late()) as w:
        policy = {"max_retries": 9, "deadline_ms": 250}
        row = await w.finished(await w.run(task({"calls": [ask(task({"error": BUSY}))]}, "end"), policy=policy))
        assert len(until) == 1, "it was paused"
        assert (await ended(w, row["session_id"]))["attempts"] == 1


# ── the deadline over all attempts ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("4.4", "4.7")
async def test_an_explicit_deadline_cuts_a_running_attempt_and_leaves_nothing_of_it(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        deep = task({"calls": [ask(task({"calls": [call("hold", key="x")]}, "never"))]}, "never")
        policy = {"max_retries": 9, "deadline_ms": 150, "max_depth": 3}
        row = await w.finished(await w.run(task({"calls": [ask(deep)]}, "end"), policy=policy))
        assert row["output"] == "end"
        (run,) = await children(w, row["session_id"])
        assert run["status"] == "timed_out"
        assert stage.diary == ["+x", "!x"]


@pytest.mark.spec("4.7", "4.9")
async def test_an_explicit_deadline_also_cuts_an_attempt_that_waits_for_its_memory(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        keeper = w.node("keeper", session_mode="reuse_session", session_scope="tenant")
        held = task({"calls": [ask(task({"calls": [call("hold", key="x")]}, "first"), agent="keeper")]}, "end")
        first = await w.run(held, agents=[w.node(), keeper])
        await stage.reached("+x")
        queued = task({"calls": [ask(task("second"), agent="keeper")]}, "end")
        policy = {"deadline_ms": 60, "max_retries": 3}
        row = await w.finished(await w.run(queued, agents=[w.node(), keeper], policy=policy))
        (run,) = await children(w, row["session_id"])
        assert (run["status"], run["started_at"], row["output"]) == ("timed_out", None, "end")
        stage.open("x")
        assert (await w.finished(first))["output"] == "end"
        row = await w.finished(await w.run(queued, agents=[w.node(), keeper]))
        assert (await ended(w, row["session_id"]))["output"] == "second", "the memory goes on"


@pytest.mark.spec("4.4")
@pytest.mark.seed("000", 40)
async def test_a_timeout_is_that_of_one_attempt_and_not_of_all(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        plan = task({"calls": [ask(task({"calls": [call("hold", key="x")]}, "at last"))]}, "end")
        run = await w.run(plan, policy={"timeout_ms": 300, "max_retries": 50})
        await w.until(run.session_id, "run.timed_out", 2)
        stage.open("x")
        row = await w.finished(run)
        end = await ended(w, row["session_id"])
        assert (end["status"], end["output"]) == ("completed", "at last")
        assert end["attempts"] >= 3


# ── cancelled between attempts ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("4.7", "5.7")
async def test_a_parent_that_is_cancelled_during_the_pause_leaves_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, pacing=LONG) as w:
        plan = task({"calls": [ask(task({"error": BUSY})), ask(task({"error": BUSY}))]}, "never")
        run = await w.run(plan, policy={"max_retries": 3})
        await w.until(run.session_id, "run.failed", 2)
        await w.sessions.cancel(w.tenant, run.id)
        row = await w.finished(run)
        assert row["status"] == "cancelled"
        assert sorted(await kinds(w, row["session_id"])) == ["cancelled", "cancelled", "start", "start"]
        assert [e["data"]["attempts"] for e in await w.events(row["session_id"], "handoff.end")] == [1, 1]
        assert len(await children(w, row["session_id"])) == 2


@pytest.mark.spec("3.2", "4.7", "5.7")
async def test_a_handoff_that_is_cancelled_by_its_id_during_the_pause_is_not_tried_again_nor_falls_back(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, pacing=LONG) as w:
        policy = {"max_retries": 3, "on_error": {"answer": "instead"}}
        delegated = await w.delegate(task({"error": BUSY}), policy=policy)
        await w.until(delegated.session.id, "run.failed")
        handoffs = w.supervisor.handoffs
        assert await handoffs.open.cancel(delegated.session, delegated.handoff_id)
        async with asyncio.timeout(WAIT_S):
            result = await delegated.result
        assert (result.status, result.attempts, len(result.run_ids)) == (HandoffStatus.CANCELLED, 1, 1)
        assert not await handoffs.open.cancel(delegated.session, delegated.handoff_id), "it has ended"
        assert await kinds(w, delegated.session.id) == ["start", "cancelled"]


@pytest.mark.spec("4.7", "5.7", "9.6")
@pytest.mark.parametrize("status", [HandoffStatus.CANCELLED, HandoffStatus.INTERRUPTED])
async def test_handoffs_of_a_session_that_are_stopped_begin_nothing_further_and_those_of_others_go_on(
    tmp_path: Path, status: HandoffStatus
) -> None:
    async with world(tmp_path, pacing=Pacing(backoff_ms=400, max_backoff_ms=400)) as w:
        plan, policy = task({"error": BUSY}), {"max_retries": 1, "on_error": {"answer": "instead"}}
        stopped, other = await w.delegate(plan, policy=policy), await w.delegate(plan, policy=policy)
        await w.until(stopped.session.id, "run.failed")
        w.supervisor.handoffs.open.stop(stopped.session.id, status)
        async with asyncio.timeout(WAIT_S):
            result, untouched = await stopped.result, await other.result
        assert (result.status, result.attempts, result.output) == (status, 1, "")
        assert (untouched.status, untouched.attempts) == (HandoffStatus.FALLBACK, 2)


@pytest.mark.spec("4.7", "5.7")
async def test_a_child_that_somebody_cancels_is_not_tried_again(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        plan = task({"calls": [ask(task({"calls": [call("hold", key="x")]}, "never"))]}, "end")
        run = await w.run(plan, policy={"max_retries": 3, "on_error": {"answer": "instead"}})
        await stage.reached("+x")
        (child,) = await children(w, run.session_id)
        await w.sessions.cancel(w.tenant, child["id"])
        row = await w.finished(run)
        end = await ended(w, row["session_id"])
        assert (row["output"], end["status"], end["attempts"]) == ("end", "cancelled", 1)
        assert "fallback" not in end


# ── agents that remember ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("4.7", "4.9")
async def test_a_further_attempt_of_an_agent_that_remembers_goes_on_in_the_same_memory(tmp_path: Path) -> None:
    tries: list[str] = []

    async def stuck_once(_arguments: Mapping[str, Any], context: ToolContext) -> str:
        tries.append(context.run.id)
        if len(tries) == 1:
            await asyncio.Event().wait()
        return "at last"

    async with world(tmp_path, tools=[Probe("stuck", stuck_once)]) as w:
        keeper = w.node("keeper", session_mode="reuse_session")
        flaky = task({"text": "half", "calls": [call("stuck")]}, "whole")
        calls = [ask(task("earlier"), agent="keeper"), ask(flaky, agent="keeper"), ask(task("later"), agent="keeper")]
        plan = task(*({"calls": [each]} for each in calls), "end")
        row = await w.finished(
            await w.run(plan, agents=[w.node(), keeper], policy={"max_retries": 2, "timeout_ms": 700})
        )
        assert row["output"] == "end"
        runs = await children(w, row["session_id"])
        assert [run["status"] for run in runs] == ["completed", "timed_out", "completed", "completed"]
        assert [run["turn"] for run in runs] == [0, 1, 2, 3]
        assert len({run["memory_id"] for run in runs}) == 1
        last = [r for r in w.requests if "keeper" in r.messages[0].content][-1]
        assert [m.content for m in last.messages if m.role.value == "user"] == [
            task("earlier"), flaky, flaky, task("later"),
        ]  # fmt: skip
