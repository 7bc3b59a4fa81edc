"""What cannot be gone on with ends as interrupted, with the reason; nothing hangs, and the service starts."""

import asyncio
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.agent.errors import NotFound
from app.agent.hooks import FunctionHook, HookPoint, HookRegistry
from app.sessions.requests import OnBusy, RunInput
from tests.agent.probes import Stage
from tests.agent.tasks import BUSY, LONG
from tests.plan import ask, call, execute, task
from tests.sessions.lives import Story, forget_agent, row_problems, still
from tests.sessions.test_continuing import all_events, lives_of
from tests.world import World

pytestmark = pytest.mark.spec("12.7")


def held(plan: str, **session: Any) -> tuple[Story, Stage]:
    """A story whose first process dies while the tool `hold` is under way."""
    stage = Stage()

    async def begin(w: World) -> None:
        await w.run(plan, **session)
        await stage.reached("+x")
        await w.journal.flush()
        story.die()

    story = Story(begin, stage.tools)
    return story, stage


HOLD = {"calls": [call("hold", key="x")]}


async def ended(w: World) -> dict[int, tuple[str, str]]:
    """The status of the runs by their depth, and why."""
    assert await row_problems(w) == []
    return {row["depth"]: (row["status"], (row["error"] or {}).get("message", "")) for row in await w.rows("runs")}


async def test_a_model_that_is_gone_fails_its_run_and_nothing_else(tmp_path: Path) -> None:
    story, stage = held("")

    async def begin(w: World) -> None:
        shutil.copy(w.folder / "scripts" / "plan.py", w.folder / "scripts" / "other.py")
        await w.run(task({"calls": [ask(task(HOLD, "held"))]}, "The end."), model="scripted:other")
        await stage.reached("+x")
        await w.journal.flush()
        story.die()

    story.begin = begin
    await story.dies(tmp_path, 1_000_000, first=True)
    (tmp_path / "scripts" / "other.py").unlink()
    async with story.ends(tmp_path) as w:
        found = await ended(w)
        assert {status for status, _ in found.values()} <= {"interrupted", "failed"}
        assert any("other" in message for _, message in found.values()), found
        again = await w.finished(await w.run("go on"))
        assert again["output"] == "echo: go on"


async def test_an_agent_that_is_gone_interrupts_its_runs_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    story, _ = held(task({"calls": [ask(task(HOLD, "held"))]}, "The end."))
    await story.dies(tmp_path, 1_000_000, first=True)
    with caplog.at_level(logging.WARNING):
        async with story.begun(tmp_path, take_up=False) as w:
            w.sessions._roster.find = lambda _session, _name: None  # type: ignore[method-assign]
            await w.recovery.run()
            await still(w)
            found = await ended(w)
            assert {status for status, _ in found.values()} == {"interrupted"}
            assert "there is no agent 'node'" in found[0][1]
    assert "Traceback" not in caplog.text


@pytest.mark.spec("14.2")
@pytest.mark.parametrize("how", ["closed", "deleted", "cancelled"])
async def test_a_session_that_is_ended_while_it_is_taken_up_leaves_nothing_open(tmp_path: Path, how: str) -> None:
    plan = task({"calls": [ask(task({"calls": [ask(task(HOLD, "held"))]}, "mid"))]}, "The end.")
    story, _ = held(plan)
    await story.dies(tmp_path, 1_000_000, first=True)
    async with story.begun(tmp_path) as w:
        (session,) = await w.rows("sessions")
        if how == "closed":
            await w.sessions.update(w.tenant, session["id"], {}, close=True)
        elif how == "deleted":
            await w.sessions.delete(w.tenant, session["id"])
        else:
            await w.sessions.cancel_session(w.tenant, session["id"])
        await still(w)
        assert await w.store.open_runs() == []
        assert await w.store.open_handoffs() == []
        if how == "deleted":
            with pytest.raises(NotFound):
                await w.sessions.session(w.tenant, session["id"])
        else:
            assert {status for status, _ in (await ended(w)).values()} == {"cancelled"}


async def test_runs_of_a_session_that_was_closed_are_not_gone_on_with(tmp_path: Path) -> None:
    story, _ = held(task(HOLD, "The end."))
    await story.dies(tmp_path, 1_000_000, first=True)
    async with story.begun(tmp_path, take_up=False) as w:
        (session,) = await w.rows("sessions")
        known = await w.sessions.known(w.tenant, session["id"])
        w.sessions._known.keep(known.id, replace(known, closed=True))
        await w.recovery.run()
        await still(w)
        assert (await ended(w))[0] == (
            "interrupted", "the service stopped while this run was in flight; its session is closed",
        )  # fmt: skip


@pytest.mark.spec("9.5", "12.7")
async def test_what_a_task_has_taken_over_from_a_run_that_has_ended_ends_with_it(tmp_path: Path) -> None:
    taken_over = execute(task(HOLD, "held"), run_in_background=True)
    guest = task({"calls": [execute(task({"calls": [taken_over]}, "child"))]}, HOLD, "guest")
    plan = task({"calls": [execute(guest, "guest", run_in_background=True)]}, {"calls": [call("hold", key="y")]}, "end")
    stage = Stage()

    async def begin(w: World) -> None:
        run = await w.run(plan, surfaces=["task"], agents=[w.node(), w.node("guest")])
        await w.until(run.session_id, "tool.start", 3, where=lambda event: event["data"]["tool"] == "hold")
        await w.journal.flush()
        story.die()

    story = Story(begin, stage.tools)
    await story.dies(tmp_path, 1_000_000, first=True)
    stage.open("x", "y")
    async with story.begun(tmp_path, take_up=False) as w:
        forget_agent(w, "guest")
        await w.recovery.run()
        await still(w)
        assert await row_problems(w) == []
        rows = {(row["depth"], row["agent"]): row["status"] for row in await w.rows("runs")}
        assert rows == {
            (0, "node"): "completed", (1, "guest"): "interrupted", (2, "node"): "completed", (3, "node"): "interrupted",
        }  # fmt: skip


@pytest.mark.spec("4.9", "12.7")
async def test_what_a_call_does_not_go_on_with_ends_and_keeps_nobody_from_its_memory(tmp_path: Path) -> None:
    guest = task({"calls": [execute(task(HOLD, "held"), "keeper")]}, "guest")
    plan = task({"calls": [execute(guest, "guest")]}, {"calls": [execute(task("kept"), "keeper")]}, "end")
    stage = Stage()

    async def begin(w: World) -> None:
        agents = [w.node(), w.node("guest"), w.node("keeper", session_mode="reuse_session")]
        await w.run(plan, surfaces=["task"], agents=agents)
        await stage.reached("+x")
        await w.journal.flush()
        story.die()

    story = Story(begin, stage.tools)
    await story.dies(tmp_path, 1_000_000, first=True)
    async with story.begun(tmp_path, take_up=False) as w:
        roster = w.sessions._roster
        delegable = roster.delegable
        roster.delegable = lambda session: [each for each in delegable(session) if each.name != "guest"]  # type: ignore[method-assign]
        await w.recovery.run()
        await still(w)
        assert await row_problems(w) == []
        assert sorted((row["depth"], row["agent"], row["status"]) for row in await w.rows("runs")) == [
            (0, "node", "completed"), (1, "guest", "interrupted"), (1, "keeper", "completed"),
            (2, "keeper", "interrupted"),
        ]  # fmt: skip


@pytest.mark.spec("9.5", "12.7")
async def test_a_task_between_two_attempts_ends_with_the_turn_that_cannot_go_on(tmp_path: Path) -> None:
    tried = execute(task({"error": BUSY}), run_in_background=True)
    plan = task({"calls": [execute(task({"calls": [tried]}, "child"))]}, HOLD, "end")
    stage = Stage()

    async def begin(w: World) -> None:
        agents = [w.node(), w.node("lead", mode="all")]
        session = await w.session(
            agent="lead", surfaces=["task"], agents=agents, policy={"max_depth": 3, "max_retries": 3}
        )
        await w.turn(session, plan)
        await asyncio.gather(stage.reached("+x"), w.until(session, "run.failed"))
        await w.journal.flush()
        story.die()

    story = Story(begin, stage.tools, pacing=LONG)
    await story.dies(tmp_path, 1_000_000, first=True)
    async with story.begun(tmp_path, take_up=False) as w:
        forget_agent(w, "lead")
        await w.recovery.run()
        await still(w)
        assert await row_problems(w) == []
        assert {(row["background"], row["status"]) for row in await w.rows("handoffs")} == {
            (False, "completed"), (True, "failed"),
        }  # fmt: skip


async def test_a_fallback_that_was_under_way_ends_and_its_parent_goes_on(tmp_path: Path) -> None:
    bad = task({"calls": [call("touch", key="a")]}, {"error": {"code": "quota", "message": "no quota left"}})

    async def begin(w: World) -> None:
        agents = [w.node(), w.node("helper")]
        policy = {"max_depth": 3, "on_error": {"agent": "helper"}}
        await w.run(task({"calls": [ask(bad)]}, "The end."), agents=agents, policy=policy)

    story = Story(begin)
    whole = await story.whole(tmp_path)
    for life in lives_of(whole):
        folder = tmp_path / str(life)
        await story.after(folder, life)
        async with story.ends(folder) as w:
            found = await ended(w)
            assert found[0][0] == "completed", (life, found)


async def test_turns_that_waited_are_not_kept_by_one_that_cannot_go_on(tmp_path: Path) -> None:
    stage = Stage()

    async def begin(w: World) -> None:
        session = await w.session()
        await w.turn(session, task(HOLD, "first"))
        await stage.reached("+x")
        await w.sessions.start(w.tenant, session, RunInput(input="second", on_busy=OnBusy.ENQUEUE))
        await w.journal.flush()
        story.die()

    story = Story(begin, stage.tools, max_attempts=1)
    await story.dies(tmp_path, 1_000_000, first=True)
    async with story.ends(tmp_path) as w:
        assert await row_problems(w) == []
        rows = sorted(await w.rows("runs"), key=lambda row: int(row["ordinal"]))
        assert [row["status"] for row in rows] == ["interrupted", "completed"]
        assert (await w.finished(await w.turn(rows[0]["session_id"], "third")))["output"] == "echo: third"


@pytest.mark.spec("9.6")
async def test_a_service_that_is_stopped_while_it_takes_up_leaves_all_as_it_is_for_the_next(tmp_path: Path) -> None:
    story, stage = held(task({"calls": [ask(task(HOLD, "held"))]}, "The end."))
    await story.dies(tmp_path, 1_000_000, first=True)
    async with story.begun(tmp_path, take_up=False, verify=False) as w:
        w.sessions.stopping = True
        await w.recovery.run()
        await w.recovery.stop()
        assert all(row["ended_at"] is None for row in await w.rows("runs"))
    stage.open("x")
    async with story.ends(tmp_path) as w:
        assert {status for status, _ in (await ended(w)).values()} == {"completed"}


@pytest.mark.spec("6.4")
async def test_hooks_are_told_of_the_end_of_what_is_not_gone_on_with(tmp_path: Path) -> None:
    told: list[str] = []
    hook = FunctionHook(
        name="g", points=frozenset({HookPoint.SUBAGENT_STOP}), function=lambda call: told.append(call.run_id)
    )
    stage = Stage()

    async def begin(w: World) -> None:
        await w.run(task({"calls": [ask(task(HOLD, "held"))]}, "The end."))
        await stage.reached("+x")
        await w.journal.flush()
        story.die()

    story = Story(begin, stage.tools, hooks=HookRegistry([hook]), max_attempts=1)
    await story.dies(tmp_path, 1_000_000, first=True)
    told.clear()
    async with story.ends(tmp_path) as w:
        await w.recovery.told()
        (child,) = await w.rows("runs", depth=1)
        assert told == [child["id"]]
        assert {status for status, _ in (await ended(w)).values()} == {"interrupted"}
        stops = [e for e in await all_events(w) if e["type"] == "subagent.stop"]
        assert [e["data"]["status"] for e in stops] == ["interrupted"]


@pytest.mark.spec("9.6", "9.8")
async def test_a_service_whose_runs_only_wait_does_not_use_up_its_grace(tmp_path: Path) -> None:
    async def begin(w: World) -> None:
        session = await w.session(permissions={"ask": ["touch"]})
        plan = task({"calls": [ask(task({"calls": [call("touch", key="a")]}, "asked"))]}, "first")
        await w.turn(session, plan)
        await w.turn(session, "second", on_busy=OnBusy.ENQUEUE)
        await w.until(session, "permission.requested")
        async with asyncio.timeout(5):
            await w.sessions.close(600)

    story = Story(begin)
    await story.dies(tmp_path, 1_000_000, first=True)
    async with story.begun(tmp_path, take_up=False, verify=False) as w:
        events = await all_events(w)
        drained = [e["depth"] for e in events if e["type"] == "run.waiting" and e["data"]["reason"] == "drain"]
        assert sorted(drained) == [0, 1], "the turn that had not begun waits anyway"
        assert all(row["ended_at"] is None for row in await w.rows("runs"))


@pytest.mark.spec("14.1")
async def test_a_workspace_that_is_gone_ends_its_run_and_the_service_starts(tmp_path: Path) -> None:
    stage = Stage()

    async def begin(w: World) -> None:
        (w.folder / "workspace" / "project").mkdir()
        await w.run(task(HOLD, {"calls": [call("glob", pattern="*")]}, "The end."), workspace="project")
        await stage.reached("+x")
        await w.journal.flush()
        story.die()

    story = Story(begin, stage.tools)
    await story.dies(tmp_path, 1_000_000, first=True)
    shutil.rmtree(tmp_path / "workspace" / "project")
    stage.open("x")
    async with story.ends(tmp_path) as w:
        ((status, _),) = (await ended(w)).values()
        assert status in ("completed", "failed", "interrupted")
        assert (await w.finished(await w.run("go on")))["output"] == "echo: go on"
