"""Whom a background task ends with, at whatever moment, and what hooks and persons see of it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from app.agent.duplicates import DuplicateLimits
from app.agent.hooks import HookCall, HookPoint, Verdict
from tests.agent.guarded import commands, give, questions, ruled, time_passes
from tests.agent.probes import Probe, Stage, echo
from tests.agent.tasks import BUSY, LONG, TASKS, handoffs, held, idle, told, turn
from tests.agent.test_subagent_hooks import BOTH, STOP, Diary, hooks
from tests.plan import THEN, behind, call, execute, fetch, known, task
from tests.strict import FINAL
from tests.world import world

# ── whom a task ends with ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("9.3", "9.5", "11.3", "11.6", "13.4")
@pytest.mark.case("B055", "B089")
async def test_a_parent_that_completes_names_what_goes_on_and_the_session_is_idle_after_that(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(task(turn(behind(held("a")), behind(held("b"))), {"text": " "}), **TASKS)
        row = await w.finished(run)
        ids = [each["id"] for each in await handoffs(w, run.session_id)]
        (end,) = await w.events(run.session_id, "run.completed")
        assert sorted(end["data"]["open_tasks"]) == sorted(ids)
        assert row["usage_total"]["model_calls"] == row["usage"]["model_calls"] == 2
        assert await w.events(run.session_id, "session.idle") == []
        await stage.reached("+a", "+b")
        stage.open("a", "b")
        await idle(w, run.session_id)
        events = await w.events(run.session_id)
        ends = [e for e in events if e["type"] == "handoff.end"]
        assert [("run_id" in e, e["data"]["status"]) for e in ends] == [(False, "completed")] * 2
        assert [e["type"] for e in events].count("session.idle") == 1
        assert events[-1]["type"] == "session.idle"


ENDS: dict[str, dict[str, Any]] = {
    "failed": {"last": {"error": {"code": "model_error", "message": "no more"}}},
    "cancelled": {"last": turn(call("hold", key="parent"))},
    "timed_out": {"last": turn(call("hold", key="parent")), "timeout_ms": 700},
}


@pytest.mark.spec("5.7", "9.5")
@pytest.mark.case("B063")
@pytest.mark.parametrize(
    ("how", "depth"), [("failed", 0), ("failed", 1), ("cancelled", 0), ("cancelled", 1), ("timed_out", 0)]
)
async def test_with_a_parent_that_does_not_complete_its_tasks_end_before_it_unless_they_are_detached(
    tmp_path: Path, how: str, depth: int
) -> None:
    stage, plan = Stage(), dict(ENDS[how])
    inner = task(turn(behind(held("grandchild"))), turn(call("hold", key="child")), "mid")
    beside = [execute(held("front"))] if how != "failed" else []
    begin = turn(behind(held("a")), behind(inner), behind(held("kept"), "kept"))
    last = plan.pop("last")
    if beside:
        last = turn(*beside, *last["calls"])
    ready = turn(call("hold", key="ready"))
    async with world(tmp_path, tools=stage.tools) as w:
        agents = [w.node(), w.node("kept", detached=True)]
        parent = task(begin, ready, last)
        fields: dict[str, Any] = {**TASKS, "agents": agents, "policy": {"max_depth": 4}}
        if depth:
            agents.append(w.node("middle"))
            whole = task(turn(execute(parent, "middle")), "end")
            run = await w.run(whole, **fields)
        else:
            run = await w.run(parent, limits=plan, **fields)
        await stage.reached("+a", "+grandchild", "+child", "+kept", "+ready")
        stage.open("ready")
        rows = await w.rows("runs", session_id=run.session_id, depth=depth)
        target = rows[0]["id"]
        if how == "cancelled":
            await stage.reached("+parent", "+front")
            assert len(await w.supervisor.cancel(target)) == 5
        row = await w.finished(target)
        assert row["status"] == how
        shown = {each["name"]: each for each in await handoffs(w, run.session_id)}
        states = {
            r["agent"] + str(r["depth"] - depth): r["status"] for r in await w.rows("runs", session_id=run.session_id)
        }
        assert states["kept1"] == "running"
        assert states["node2"] == "cancelled"
        done = [each["status"] for each in shown.values() if each["agent"] == "node"]
        assert set(done) == {"cancelled"}, done
        events = await w.events(run.session_id)
        own_end = next(e for e in events if e["type"] in FINAL and e["run_id"] == target)
        kept = next(each["id"] for each in shown.values() if each["agent"] == "kept")
        assert own_end["data"]["open_tasks"] == [kept]
        stage.open("kept")
        await idle(w, run.session_id)
        if not depth:
            again = await w.finished(await w.turn(run.session_id, task("next")))
            assert again["output"] == "next"


@pytest.mark.spec("5.7", "9.5", "11.6")
@pytest.mark.case("B063")
async def test_at_whatever_moment_a_parent_is_told_to_end_its_tasks_end_first(tmp_path: Path) -> None:
    """The strict check of the log finds a task that outlives the parent that it ends with."""
    stage, ended = Stage(), set[str]()
    stage.open("x")
    short = task(turn(call("hold", key="x")), "short")
    nested = task(turn(behind(short), call("hold", key="x")), "mid")
    plan = task(turn(behind(held("never")), behind(nested)), turn(call("hold", key="x")), turn(behind(nested)), "end")
    endless = task(turn(behind(held("never")), behind(nested)), turn(call("hold", key="never")), "end")
    async with world(tmp_path, tools=stage.tools) as w:
        for moment in range(0, 160, 2):
            session = await w.session(**TASKS)
            run = await w.turn(session, plan if moment % 8 else endless)  # on a slow machine some would be over already
            for _ in range(moment):
                await asyncio.sleep(0)
            await w.supervisor.cancel(run.id)
            ended.add((await w.finished(run))["status"])
            await w.sessions.cancel_session(w.tenant, session)
            assert not w.supervisor.busy(session), moment
    assert ended <= {"cancelled", "completed"}
    assert "cancelled" in ended


@pytest.mark.spec("5.7", "9.5", "11.6")
@pytest.mark.case("B063")
async def test_a_parent_that_is_told_to_end_while_it_answers_ends_after_its_tasks(tmp_path: Path) -> None:
    stage, cancels = Stage(), list[asyncio.Task[Any]]()
    plan = task(turn(behind(held("a"))), turn(call("hold", key="parent")), {"text": "end", "then": "cancel"})
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(plan, **TASKS)
        THEN["cancel"] = lambda: cancels.append(asyncio.create_task(w.supervisor.cancel(run.id)))
        await stage.reached("+a", "+parent")
        stage.open("parent")
        row = await w.finished(run)
        assert (row["status"], row["output"]) == ("cancelled", "end")
        assert len(await cancels[0]) == 2
        ends = [e["depth"] for e in await w.events(run.session_id, "run.cancelled")]
        assert ends == [1, 0]


@pytest.mark.spec("9.5")
@pytest.mark.case("B082")
async def test_a_grandchild_of_an_ended_child_is_listed_and_cancelled_by_the_root(tmp_path: Path) -> None:
    stage = Stage()
    child = task(turn(behind(held("grandchild"))), "child")
    plan = task(
        turn(behind(child)),
        turn(fetch(1)),
        turn(call("list_tasks")),
        turn(call("cancel_task", task_id=known(2))),
        "end",
    )
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(plan, **TASKS)
        assert (await w.finished(run))["output"] == "end"
        _, _, listed, cancelled = await told(w, run.session_id)
        first, second = [row["id"] for row in await handoffs(w, run.session_id)]
        assert [line.split(": ")[1] for line in listed.split("\n")] == ["Completed", "Running"]
        assert cancelled == f"Task ID: {second}\nStatus: Cancelled"
        ends = {e["data"]["handoff_id"]: e for e in await w.events(run.session_id, "handoff.end")}
        assert ("run_id" in ends[first], "run_id" in ends[second]) == (True, False)
        (end,) = [e for e in await w.events(run.session_id, "run.completed") if e["depth"] == 0]
        assert end["data"]["open_tasks"] == []


@pytest.mark.spec("9.5")
@pytest.mark.case("B082")
async def test_a_grandchild_that_was_adopted_ends_with_the_root_that_fails(tmp_path: Path) -> None:
    stage = Stage()
    child = task(turn(behind(held("grandchild"))), "child")
    plan = task(
        turn(execute(child)), turn(call("hold", key="root")), {"error": {"code": "model_error", "message": "no"}}
    )
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(plan, **TASKS)
        await stage.reached("+grandchild", "+root")
        stage.open("root")
        assert (await w.finished(run))["status"] == "failed"
        assert stage.diary[-1] == "!grandchild"


@pytest.mark.spec("3.2", "9.5")
@pytest.mark.case("B082")
async def test_nobody_cancels_the_task_above_it_also_when_the_one_between_has_ended(tmp_path: Path) -> None:
    stage = Stage()
    inner = task(turn(call("list_tasks")), turn(call("cancel_task", task_id=known(1)), fetch(1)), "inner")
    middle = task(turn(behind(task(turn(call("hold", key="inner")), *_turns(inner)))), "middle")
    outer = task(turn(execute(middle)), turn(call("hold", key="outer")), "outer")
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(task(turn(behind(outer)), turn(fetch(1)), "end"), policy={"max_depth": 4}, **TASKS)
        await stage.reached("+inner", "+outer")
        stage.open("inner")
        await w.until(run.session_id, "run.completed", 2)
        stage.open("outer")
        assert (await w.finished(run))["output"] == "end"
        results = await told(w, run.session_id, depth=3)
        assert "is one that you work on" in results[2]
        assert "Task still running..." in results[3]


def _turns(plan: str) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = json.loads(plan)["turns"]
    return turns


@pytest.mark.spec("9.2", "9.5")
@pytest.mark.parametrize("how", ["task", "session", "close", "delete"])
async def test_a_task_that_pauses_between_two_attempts_is_ended_and_nothing_follows(tmp_path: Path, how: str) -> None:
    async with world(tmp_path, pacing=LONG) as w:
        plan = task(turn(behind(task({"error": BUSY}))), "end")
        run = await w.run(plan, policy={"max_retries": 3}, **TASKS)
        await w.until(run.session_id, "run.failed")
        await w.finished(run)
        (row,) = await handoffs(w, run.session_id)
        if how == "task":
            session = await w.sessions.known(w.tenant, run.session_id)
            both = [w.supervisor.handoffs.open.cancel(session, row["id"]) for _ in range(2)]
            assert sorted(await asyncio.gather(*both)) == [False, True]
        elif how == "session":
            await w.sessions.cancel_session(w.tenant, run.session_id)
        elif how == "close":
            await w.sessions.update(w.tenant, run.session_id, {}, close=True)
        else:
            await w.sessions.delete(w.tenant, run.session_id)
            return
        (row,) = await handoffs(w, run.session_id)
        assert (row["status"], row["attempts"]) == ("cancelled", 1)


@pytest.mark.spec("9.2", "14.10")
async def test_a_cancel_that_comes_after_the_end_was_decided_does_not_say_that_it_cancelled(tmp_path: Path) -> None:
    asked, heard = asyncio.Event(), asyncio.Event()

    async def slowly(_told: HookCall) -> None:
        asked.set()
        await heard.wait()

    broken = task({"error": {"code": "model_error", "message": "the provider is down"}})
    plan = task(turn(behind(broken)), turn(call("hold", key="x"), call("cancel_task", task_id=known(1))), "end")
    stage = Stage()
    async with world(tmp_path, tools=stage.tools, hooks=hooks(("slow", STOP, slowly))) as w:
        run = await w.run(plan, **TASKS)
        session = await w.sessions.known(w.tenant, run.session_id)
        await asyncio.gather(asked.wait(), stage.reached("+x"))
        stage.open("x")
        await w.until(run.session_id, "tool.start", where=lambda e: e["data"]["tool"] == "cancel_task")
        (row,) = await handoffs(w, run.session_id)
        also = asyncio.create_task(w.supervisor.handoffs.open.cancel(session, row["id"]))
        await asyncio.sleep(0)
        heard.set()
        assert await also is False
        await w.finished(run)
        (row,) = await handoffs(w, run.session_id)
        assert row["status"] == "failed"
        said = (await told(w, run.session_id))[-1]
        assert said.startswith(f"Task ID: {row['id']}\nStatus: Failed: the provider is down\n\n")
        assert said.endswith("It had already ended; nothing was cancelled.")


@pytest.mark.spec("9.2", "9.6")
async def test_a_task_that_pauses_between_two_attempts_is_interrupted_when_the_service_stops(tmp_path: Path) -> None:
    async with world(tmp_path, pacing=LONG) as w:
        plan = task(turn(behind(task({"error": BUSY}))), "end")
        run = await w.run(plan, policy={"max_retries": 3}, **TASKS)
        await w.until(run.session_id, "run.failed")
        await w.finished(run)
    async with world(tmp_path, recover=False) as w:
        (row,) = await handoffs(w, run.session_id)
        assert row["status"] == "interrupted"
        again = await w.finished(await w.turn(run.session_id, task("next")))
        assert again["output"] == "next"


@pytest.mark.spec("6.1", "9.5", "13.4")
async def test_whoever_ended_long_ago_still_links_a_task_to_those_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.agent.aloft.ENDED_RUNS", 0)
    stage, diary = Stage(), Diary()
    plan = task(turn(execute(task(turn(behind(held("a"))), "mid"))), turn(call("hold", key="root")), "end")
    top = task(turn(execute(plan)), "top")
    async with world(tmp_path, tools=stage.tools, hooks=hooks(("diary", BOTH, diary.ask))) as w:
        run = await w.run(top, **TASKS)
        await stage.reached("+a", "+root")
        stage.open("a")
        await w.until(run.session_id, "notice")
        stage.open("root")
        row = await w.finished(run)
        runs = {each["depth"]: each for each in await w.rows("runs", session_id=run.session_id)}
        assert runs[1]["usage_total"]["model_calls"] == 7
        assert row["usage_total"]["model_calls"] == 9
        assert [len(said.lineage) for said in diary.told if said.run_id == runs[3]["id"]] == [3, 3]
        (told_by,) = [e["run_id"] for e in await w.events(run.session_id, "message") if e["data"].get("notices")]
        assert told_by == runs[1]["id"]


@pytest.mark.spec("4.8", "9.5")
async def test_the_time_of_a_budget_is_that_of_its_tasks_too_when_the_turn_is_over(tmp_path: Path) -> None:
    stage = Stage()
    plan = task(turn(behind(task(turn(call("hold", key="never")), "x", final="what I had"))), "end")
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(plan, budget={"wall_ms": 1500}, **TASKS)
        await w.finished(run)
        await idle(w, run.session_id)
        (child,) = await w.rows("runs", session_id=run.session_id, depth=1)
        assert (child["status"], child["stop_reason"], child["output"]) == ("completed", "budget", "what I had")


@pytest.mark.spec("5.3", "3.2")
@pytest.mark.case("B093")
async def test_a_task_may_be_asked_for_as_long_as_the_answers_differ(tmp_path: Path) -> None:
    stage = Stage()
    looks = [turn(fetch(1, block=False))] * 2
    plan = task(turn(behind(held("a"))), *looks, turn(call("hold", key="p")), *looks, turn(call("list_tasks")), "end")
    async with world(tmp_path, tools=stage.tools, duplicates=DuplicateLimits()) as w:
        run = await w.run(plan, **TASKS)
        await stage.reached("+a", "+p")
        stage.open("a")
        await w.until(run.session_id, "notice")
        stage.open("p")
        assert (await w.finished(run))["output"] == "end"
        assert await w.events(run.session_id, "duplicate.blocked") == []
        states = [text.split("\n")[1] for text in await told(w, run.session_id) if text.startswith("Task ID")]
        assert states == ["Status: Running"] * 2 + ["Status: Completed"] * 2


# ── persons and hooks ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("4.4", "8.2", "9.1")
@pytest.mark.case("B119")
async def test_a_question_in_a_task_stops_its_own_clock_and_not_that_of_a_parent_that_does_not_wait(
    tmp_path: Path,
) -> None:
    stage = Stage()
    asks = task(turn(call("run_command", command="ls")), "asked")
    plan = task(turn(behind(asks)), turn(call("hold", key="parent")), "end")
    async with world(tmp_path, tools=[commands(), *stage.tools], permissions=ruled(ask=["Bash"])) as w:
        slow = await w.run(plan, policy={"timeout_ms": 700}, **TASKS)
        quick = await w.run(plan, limits={"timeout_ms": 700}, **TASKS)
        (question,) = await questions(w, slow.session_id, 1)
        await questions(w, quick.session_id, 1)
        await time_passes(w)
        assert (await w.finished(quick))["status"] == "timed_out"
        assert [row["status"] for row in await handoffs(w, quick.session_id)] == ["cancelled"]
        await give(w, question["approval_id"])
        await w.until(slow.session_id, "handoff.end")
        assert [row["status"] for row in await handoffs(w, slow.session_id)] == ["completed"]
        stage.open("parent")
        assert (await w.finished(slow))["output"] == "end"


@pytest.mark.spec("8.2", "9.5")
@pytest.mark.case("B119")
async def test_a_person_is_asked_by_a_task_whose_parent_has_ended(tmp_path: Path) -> None:
    asks = task(turn(call("run_command", command="ls")), "asked")
    async with world(tmp_path, tools=[commands()], permissions=ruled(ask=["Bash"])) as w:
        run = await w.run(task(turn(behind(task(turn(behind(asks)), "mid"))), "end"), **TASKS)
        await w.finished(run)
        (question,) = await questions(w, run.session_id, 1)
        (event,) = await w.events(run.session_id, "permission.requested")
        assert event["path"] == [1, 2, 3]
        await give(w, question["approval_id"])
        await idle(w, run.session_id)
        assert {row["status"] for row in await handoffs(w, run.session_id)} == {"completed"}


@pytest.mark.spec("6.1", "6.4", "9.5")
@pytest.mark.case("B103", "B106")
async def test_hooks_are_told_of_each_start_and_end_with_the_whole_lineage_also_when_the_parent_has_ended(
    tmp_path: Path,
) -> None:
    stage, diary = Stage(), Diary()
    inner = task(turn(behind(held("c"))), turn(call("hold", key="b")), "b")
    plan = task(turn(behind(task(turn(behind(inner)), "a"))), "end")
    with_both = hooks(("diary", BOTH | {HookPoint.PRE_TOOL_USE}, diary.ask))
    async with world(tmp_path, tools=stage.tools, hooks=with_both) as w:
        run = await w.run(plan, **TASKS)
        await w.finished(run)
        await stage.reached("+b", "+c")
        runs = sorted(await w.rows("runs", session_id=run.session_id), key=lambda row: int(row["depth"]))
        stage.open("b")
        await w.until(run.session_id, "run.completed", 3)
        stage.open("c")
        await idle(w, run.session_id)
        started, stopped = diary.pairs()
        assert started == stopped
        assert len(started) == 3
        ids = [row["id"] for row in runs]
        for said in diary.told:
            assert list(said.lineage) == ids[: ids.index(said.run_id)], said.point
        assert {said.run_id for said in diary.at(HookPoint.PRE_TOOL_USE)} == set(ids)


@pytest.mark.spec("6.4", "8.1", "9.1")
@pytest.mark.case("B098")
async def test_what_hooks_forbid_is_forbidden_in_a_task_and_where_it_is_resumed(tmp_path: Path) -> None:
    diary = Diary(lambda said: Verdict(block="no writing") if said.tool == "write" else None)
    write = Probe("write", echo)
    plan = task(turn(call("write")), "tried")
    whole = task(turn(behind(plan)), turn(fetch(1)), turn(execute(plan, resume=known(1))), "end")
    with_hook = hooks(("guard", frozenset({HookPoint.PRE_TOOL_USE}), diary.ask))
    async with world(tmp_path, tools=[write], hooks=with_hook) as w:
        run = await w.run(whole, **TASKS)
        assert (await w.finished(run))["output"] == "end"
        assert write.arguments == []
        assert ["no writing" in text for text in await told(w, run.session_id, depth=1)] == [True, True]
        assert [(said.depth, len(said.lineage)) for said in diary.told if said.tool == "write"] == [(1, 1), (1, 1)]


@pytest.mark.spec("6.4", "9.1", "9.4")
@pytest.mark.case("B100")
async def test_a_hook_of_the_delegating_tool_keeps_tasks_and_resumed_ones_from_starting(tmp_path: Path) -> None:
    diary = Diary(lambda said: Verdict(block="nobody now") if said.tool == "execute_task" else None)
    points = BOTH | {HookPoint.PRE_TOOL_USE}
    plan = task(turn(behind(task("x"))), turn(execute(task("x"), resume="ho_1")), "end")
    async with world(tmp_path, hooks=hooks(("guard", points, diary.ask))) as w:
        run = await w.run(plan, **TASKS)
        assert (await w.finished(run))["output"] == "end"
        assert all("nobody now" in text for text in await told(w, run.session_id))
        assert await handoffs(w, run.session_id) == []
        assert diary.at(HookPoint.SUBAGENT_START) == []
