"""Background tasks over the deaths of processes: they end once, and whoever began them is told of it once."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.agent.tools import ToolContext
from app.sessions.requests import OnBusy
from tests.agent.probes import Probe, Stage
from tests.longer import times
from tests.plan import ask, call, execute, task
from tests.plan import behind as in_background
from tests.sessions.lives import Story, forget_agent, row_problems, still
from tests.sessions.test_continuing import all_events, lives_of
from tests.world import World

pytestmark = [pytest.mark.slow, pytest.mark.spec("12.7", "9.2")]
WORK = {"text": "w", "calls": [call("look", key="l"), call("touch", key="a")]}


def behind(*turns: Any, name: str = "t", **more: Any) -> dict[str, Any]:
    """A task in the background."""
    return call(
        "execute_task", name="node", description="d", prompt=task(*turns), run_in_background=True,
        subagent_name=name, **more,
    )  # fmt: skip


def touch(key: str) -> dict[str, Any]:
    """A step with an effect."""
    return {"calls": [call("touch", key=key)]}


async def whose_parent_goes_on(w: World) -> None:
    """The run that began it has more to do."""
    plan = task({"calls": [behind(WORK, "done")]}, touch("p1"), touch("p2"), "The end.")
    await w.run(plan, surfaces=["task"])


async def whose_parent_has_ended(w: World) -> None:
    """And the session's next turn is told."""
    session = await w.session(surfaces=["task"])
    await w.finished(await w.turn(session, task({"calls": [behind(WORK, touch("b"), "done")]}, "first")))
    await still(w)
    await w.turn(session, "And now?")


async def that_begins_another(w: World) -> None:
    """A level below, and ends before that."""
    session = await w.session(surfaces=["task"])
    outer = behind({"calls": [behind(WORK, "inner", name="in"), call("touch", key="x")]}, "outer", name="out")
    await w.finished(await w.turn(session, task({"calls": [outer]}, "first")))
    await still(w)
    await w.turn(session, "And now?")


async def beside_one_that_is_waited_for(w: World) -> None:
    """Two in the background, one in front."""
    front = call("execute_task", name="node", description="d", prompt=task(touch("c"), "f"), subagent_name="f")
    calls = [behind(WORK, "b1", name="t1"), behind(touch("b"), "b2", name="t2"), front]
    await w.run(task({"calls": calls}, "The end."), surfaces=["task"])


async def of_agents_that_remember(w: World) -> None:
    """One after the other on one memory."""

    def keeper(number: int) -> dict[str, Any]:
        plan = task(touch(f"k{number}"), f"kept {number}")
        return call("execute_task", name="keeper", description="d", prompt=plan, run_in_background=True)

    agents = [w.node(), w.node("keeper", session_mode="reuse_session")]
    plan = task({"calls": [keeper(1), keeper(2)]}, {"calls": [keeper(3)]}, "The end.")
    await w.run(plan, surfaces=["task"], agents=agents)


async def that_is_resumed(w: World) -> None:
    """And remembers what it had read."""
    session = await w.session(surfaces=["task"])
    reading = {"text": "I remember 77", "calls": [call("look", key="r")]}
    first = call("execute_task", name="node", description="d", prompt=task(reading, "one"), subagent_name="keeper")
    await w.finished(await w.turn(session, task({"calls": [first]}, "one.")))
    await still(w)
    await w.turn(session, task({"calls": [behind(touch("s"), "second", name="again", resume="keeper")]}, "The end."))


async def of_a_caller(w: World) -> None:
    """A delegation that nobody in here waits for."""
    deep = ask(task(touch("q"), "deep"))
    await w.delegate(task(WORK, {"calls": [deep]}, "done"), policy={"max_depth": 3})


async def of_a_caller_who_has_the_answer(w: World) -> None:
    """What the delegation had begun in the background, and has not waited for."""
    plan = task({"calls": [behind(WORK, touch("b"), "inner")]}, "done")
    await w.delegate(plan, agent=w.node(surfaces=["task"]), policy={"max_depth": 3})


STORIES = (
    whose_parent_goes_on, whose_parent_has_ended, that_begins_another, beside_one_that_is_waited_for,
    of_agents_that_remember, that_is_resumed, of_a_caller, of_a_caller_who_has_the_answer,
)  # fmt: skip


async def ends(w: World) -> Counter[tuple[Any, ...]]:
    """How all runs have ended. What one says that has begun a task depends on when it was told."""
    begun = {row["run_id"] for row in await w.rows("handoffs", background=True)}
    return Counter(
        (row["depth"], row["agent"], row["status"], row["turn"],
         row["output"] if row["depth"] and row["id"] not in begun else "")
        for row in await w.rows("runs")
    )  # fmt: skip


async def handoffs(w: World) -> Counter[tuple[Any, ...]]:
    """How all delegations have ended."""
    return Counter((r["agent"], r["status"], r["background"], len(r["run_ids"])) for r in await w.rows("handoffs"))


@pytest.mark.slow
@pytest.mark.spec("9.4", "9.6")
@pytest.mark.parametrize("begin", STORIES, ids=lambda begin: begin.__name__)
@pytest.mark.parametrize("gap", [0, 4])
async def test_tasks_go_on_after_a_crash_at_any_event_and_their_ends_are_told_once(
    tmp_path: Path, begin: Any, gap: int
) -> None:
    story = Story(begin)
    whole = await story.whole(tmp_path)
    async with story.ends(tmp_path / "whole") as w:
        expected, delegated = await ends(w), await handoffs(w)
    for life in lives_of(whole)[:: times(5, 1)]:
        folder = tmp_path / str(life)
        await story.after(folder, life, *(gap, gap, gap) if gap else ())
        async with story.ends(folder) as w:
            assert await row_problems(w) == [], life
            assert await ends(w) - expected == Counter(), life
            assert await handoffs(w) - delegated == Counter(), life
            assert all(count == 1 for count in story.done.values()), life
            for run in await w.rows("runs", depth=0):
                assert run["status"] == "completed"
            await told_at_last(w)


async def told_at_last(w: World) -> None:
    """The next turn is told what nobody was told before."""
    (session,) = await w.rows("sessions")
    if session["agent"] is None:
        return
    await w.finished(await w.turn(session["id"], "Anything else?"))
    await still(w)
    assert [row for row in await w.rows("notices") if row["status"] == "pending"] == []
    assert await row_problems(w) == []


@pytest.mark.spec("9.3", "9.5")
async def test_the_end_of_a_grandchilds_task_is_told_to_the_nearest_open_run_above_also_after_a_restart(
    tmp_path: Path,
) -> None:
    gates = {"grandchild": asyncio.Event(), "middle": asyncio.Event()}

    async def hold(arguments: Mapping[str, Any], _context: ToolContext) -> str:
        await gates[str(arguments["key"])].wait()
        return "held"

    async def begin(w: World) -> None:
        session = await w.session(surfaces=["task"])
        grandchild = task({"calls": [call("hold", key="grandchild")]}, "grandchild")
        child = task({"calls": [in_background(grandchild)]}, "child")
        middle = task({"calls": [in_background(child)]}, {"calls": [call("hold", key="middle")]}, "the end")
        await w.turn(session, task({"calls": [execute(middle)]}, "root"))
        await w.until(session, "notice")
        gates["grandchild"].set()
        await w.until(session, "notice", count=2)
        await w.journal.flush()
        story.die()

    story = Story(begin, (Probe("hold", hold, read_only=True),))
    await story.dies(tmp_path, 1_000_000, first=True)
    gates["middle"].set()
    async with story.ends(tmp_path) as w:
        (middle,) = [row for row in await w.rows("runs") if row["depth"] == 1]
        messages = [e for e in await all_events(w) if e["type"] == "message" and e["data"].get("notices")]
        assert [(e["run_id"], len(e["data"]["notices"])) for e in messages] == [(middle["id"], 2)]
        assert {row["status"] for row in await w.rows("notices")} == {"delivered"}


@contextlib.asynccontextmanager
async def with_a_guest_that_is_gone(folder: Path, plan: str) -> AsyncIterator[World]:
    """What becomes of a turn whose process dies while its calls `hold` are under way, when there is no agent `guest`
    any more."""
    stage = Stage()

    async def begin(w: World) -> None:
        await w.turn(await w.session(surfaces=["task"], agents=[w.node(), w.node("guest")]), plan)
        await stage.reached("+task", "+middle")
        await w.journal.flush()
        story.die()

    story = Story(begin, stage.tools)
    await story.dies(folder, 1_000_000, first=True)
    stage.open("task", "middle")
    async with story.begun(folder, take_up=False) as w:
        forget_agent(w, "guest")
        await w.recovery.run()
        await still(w)
        assert await row_problems(w) == []
        assert [row["status"] for row in await w.rows("runs", agent="guest")] == ["interrupted"]
        yield w


GUEST = in_background(task({"calls": [call("hold", key="task")]}, "held"), "guest")
MIDDLE = {"calls": [call("hold", key="middle")]}
HELD = {"calls": [call("hold", key="root")]}


@pytest.mark.spec("13.4")
async def test_what_a_task_has_used_that_cannot_go_on_counts_for_the_run_above_it(tmp_path: Path) -> None:
    async with with_a_guest_that_is_gone(tmp_path, task({"calls": [GUEST]}, MIDDLE, "root")) as w:
        rows = await w.rows("runs")
        (root,) = [row for row in rows if row["depth"] == 0]
        assert root["usage_total"]["model_calls"] == sum(row["usage"]["model_calls"] for row in rows) == 4


@pytest.mark.spec("9.3")
async def test_the_end_of_a_task_that_cannot_go_on_is_told_to_the_nearest_open_run_above(tmp_path: Path) -> None:
    child = task({"calls": [GUEST]}, "child")
    middle = task({"calls": [execute(child)]}, MIDDLE, "the end")
    async with with_a_guest_that_is_gone(tmp_path, task({"calls": [execute(middle)]}, "root")) as w:
        (above,) = [row for row in await w.rows("runs") if row["depth"] == 1]
        messages = [e for e in await all_events(w) if e["type"] == "message" and e["data"].get("notices")]
        assert [e["run_id"] for e in messages] == [above["id"]]


@pytest.mark.spec("11.3")
async def test_a_run_that_ends_before_the_tasks_below_it_are_taken_up_names_them_all_the_same(tmp_path: Path) -> None:
    ends: list[int] = []

    def told(stage: Stage, *, whole: bool) -> Story:
        async def begin(w: World) -> None:
            inner = in_background(task({"calls": [call("hold", key="inner")]}, "inner"))
            child = execute(task({"calls": [inner]}, {"calls": [call("hold", key="outer")]}, "child"))
            plan = task({"calls": [in_background(task({"calls": [child]}, "outer"))]}, HELD, "root")
            run = await w.run(plan, surfaces=["task"])
            await stage.reached("+inner", "+outer", "+root")
            stage.open("root")
            if whole:
                ends.append((await w.until(run.session_id, "run.completed"))["id"])
                story.die()

        story = Story(begin, stage.tools)
        return story

    (tmp_path / "whole").mkdir()
    await told(Stage(), whole=True).dies(tmp_path / "whole", 1_000_000, first=True)
    stage = Stage()
    story = told(stage, whole=False)
    await story.dies(tmp_path, ends[0] - 1, first=True)  # its answer is stored, and not its end
    async with story.begun(tmp_path) as w:
        (session,) = await w.rows("sessions")
        end = await w.until(session["id"], "run.completed")
        stage.open("inner", "outer")
        await still(w)
        tasks = [row["id"] for row in await w.rows("handoffs", background=True)]
        assert sorted(end["data"]["open_tasks"]) == sorted(tasks)
        assert len(tasks) == 2


@pytest.mark.spec("2.5")
async def test_what_a_task_inherits_is_not_lost_when_the_process_dies_before_it_has_begun(tmp_path: Path) -> None:
    async def begin(w: World) -> None:
        plan = task({"text": "said before", "calls": [in_background(task("inner"), "heir")]}, touch("p"), "end")
        await w.run(plan, surfaces=["task"], agents=[w.node(), w.node("heir", inherit_context="last:3")])

    story = Story(begin)
    await story.whole(tmp_path)
    async with story.ends(tmp_path / "whole") as w:
        (whole,) = await w.rows("runs", depth=1)
        types = [event["type"] for event in await w.events(whole["session_id"])]
    assert "said before" in whole["input"]
    begun, run = types.index("handoff.start") + 1, types.index("run.queued", types.index("handoff.start")) + 1
    assert "tool.result" in types[begun:run]
    for life in range(begun, run):
        await story.after(tmp_path / str(life), life)
        async with story.ends(tmp_path / str(life)) as w:
            assert [row["input"] for row in await w.rows("runs", depth=1)] == [whole["input"]], life
            assert await row_problems(w) == []


@pytest.mark.spec("4.8", "9.6")
@pytest.mark.parametrize(("calls", "status"), [(9, "completed"), (4, "failed")])
async def test_a_task_of_a_delegation_that_has_ended_goes_on_within_what_its_caller_allows(
    tmp_path: Path, calls: int, status: str
) -> None:
    stage = Stage()

    async def begin(w: World) -> None:
        below = {"calls": [call("hold", key="x")]}, {"calls": [call("look", key="y")]}, "inner"
        plan = task({"calls": [behind(*below)]}, "done")
        agent = w.node(surfaces=["task"])
        done = await w.delegate(plan, agent=agent, policy={"max_depth": 3}, budget={"model_calls": calls})
        assert (await done.result).output == "done"
        await stage.reached("+x")
        await w.journal.flush()
        story.die()

    story = Story(begin, stage.tools)
    await story.dies(tmp_path, 1_000_000, first=True)
    stage.open("x")
    async with story.ends(tmp_path) as w:
        assert await row_problems(w) == []
        (inner,) = await w.rows("runs", depth=2)
        assert (inner["status"], inner["attempt"]) == (status, 2)
        assert (inner["output"] == "inner") is (status == "completed")


async def test_the_result_of_a_task_is_fetched_after_a_restart_also_while_it_is_only_being_taken_up(
    tmp_path: Path,
) -> None:
    async def begin(w: World) -> None:
        session = await w.session(surfaces=["task"])
        await w.finished(await w.turn(session, task({"calls": [behind(WORK, touch("b"), "done")]}, "first")))

    story = Story(begin)
    whole, fetched_once = await story.whole(tmp_path), 0
    for life in range(14, whole, times(14, 1)):
        folder = tmp_path / str(life)
        await story.after(folder, life)
        async with story.begun(folder) as w:
            rows = await w.rows("handoffs")
            if not rows:
                continue
            fetch = call("get_task_output", task_id=rows[0]["id"])
            turn = await w.turn(rows[0]["session_id"], task({"calls": [fetch]}, "fetched"), on_busy=OnBusy.ENQUEUE)
            row = await w.finished(turn)
            assert row["status"] == "completed"
            await still(w)
            assert await row_problems(w) == []
            told = [row["status"] for row in await w.rows("notices")]
            if told == ["delivered"]:
                continue  # it was told before it could ask
            fetched_once += 1
            results = [e["data"] for e in await all_events(w) if e["type"] == "tool.result"]
            (fetched,) = [data["content"] for data in results if data["tool"] == "get_task_output"]
            assert fetched == f"Task ID: {rows[0]['id']}\nStatus: Completed\n\nResult:\ndone"
            assert told == ["acknowledged"]
    assert fetched_once
