"""Tasks in the background: what a call is told, who goes on, whose places, memories and budgets they use."""

from pathlib import Path

import pytest

from app.agent.texts import DEFAULT, filled
from tests.agent.probes import Stage
from tests.agent.tasks import BUSY, TASKS, handoffs, held, idle, told, turn
from tests.plan import behind, call, execute, fetch, task
from tests.world import world

# ── the call, and who goes on ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("3.2", "9.1")
@pytest.mark.seed("000", 7)
@pytest.mark.seed("002", 56, 57, 78, 80)
async def test_several_tasks_go_on_beside_their_parent_which_has_their_ids_at_once(tmp_path: Path) -> None:
    stage = Stage()
    begin = turn(*(behind(held(key), subagent_name=key) for key in "abc"))
    plan = task(begin, turn(call("hold", key="parent")), turn(*(fetch(n) for n in (1, 2, 3))), "end")
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(plan, **TASKS)
        await stage.reached("+a", "+b", "+c", "+parent")
        stage.open("a", "b", "c", "parent")
        assert (await w.finished(run))["output"] == "end"
        rows, results = await handoffs(w, run.session_id), await told(w, run.session_id)
        assert [row["name"] for row in rows] == ["a", "b", "c"]
        assert results[:3] == [filled(DEFAULT.task_started, task_id=row["id"]) for row in rows]
        assert len(results[0].splitlines()) == 3
        assert results[0].splitlines()[0] == f"task_id: {rows[0]['id']}"
        assert "get_task_output" in results[0].splitlines()[1]
        assert "notice" in results[0].splitlines()[2]
        assert [text.split("Result:\n")[1] for text in results[4:]] == ["answer a", "answer b", "answer c"]


@pytest.mark.spec("3.2", "9.2")
@pytest.mark.seed("002", 71, 84, 85)
@pytest.mark.case("B078")
async def test_a_task_is_looked_at_waited_for_listed_and_read_as_often_as_anybody_likes(tmp_path: Path) -> None:
    stage = Stage()
    looks = turn(fetch(1, block=False), fetch(1, timeout=1), fetch(1, block=False, timeout=700_000), call("list_tasks"))
    ends = turn(call("hold", key="parent"), *(fetch(n) for n in (4, 3, 2, 1, 4, 1)))
    begin = turn(*(behind(held(key), subagent_name=key) for key in "abcd"))
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(task(begin, looks, ends, turn(call("list_tasks")), "end"), **TASKS)
        await stage.reached("+a", "+b", "+c", "+d", "+parent")
        stage.open("a", "b", "c", "d", "parent")
        await w.finished(run)
        ids = [row["id"] for row in await handoffs(w, run.session_id)]
        results = (await told(w, run.session_id))[4:]
        running = f"Task ID: {ids[0]}\nStatus: Running\n\nTask still running..."
        assert results[0] == running
        assert results[1] == f"Error: task {ids[0]} did not end within 1 ms; it goes on. Ask again later."
        assert results[2].startswith(running)
        assert "lowered to 600000 ms" in results[2]
        assert results[3].split("\n") == [f"- {i} node ({n}): Running" for i, n in zip(ids, "abcd", strict=True)]
        outputs = [text.split("Result:\n")[1] for text in results[5:11]]
        assert outputs == [f"answer {key}" for key in "dcbada"]
        assert all(line.endswith(": Completed") for line in results[11].split("\n"))
        later = task(turn(*(call("get_task_output", task_id=each) for each in ids)), "end")
        await w.finished(await w.turn(run.session_id, later))
        assert [text.split("Result:\n")[1] for text in (await told(w, run.session_id))[-4:]] == outputs[3::-1]


@pytest.mark.spec("9.1", "10.1")
@pytest.mark.seed("002", 78)
async def test_a_definition_may_run_in_the_background_unless_the_call_says_otherwise(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        agents = [w.node(), w.node("quiet", background=True)]
        calls = [execute(task("one"), "quiet"), execute(task("two"), "quiet", run_in_background=False)]
        calls += [execute(task("three"), "quiet", run_in_background=None), execute(task("four"))]
        run = await w.run(task(turn(*calls), "end"), agents=agents, **TASKS)
        await w.finished(run)
        await idle(w, run.session_id)
        assert [row["background"] for row in await handoffs(w, run.session_id)] == [True, False, True, False]
        assert [text.startswith("task_id: ") for text in await told(w, run.session_id)] == [True, False, True, False]


@pytest.mark.spec("4.2", "9.1")
async def test_a_task_that_is_denied_is_denied_at_once_and_nobody_is_told_of_it_later(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        policy = {"denied_tools": ["execute_task(other)"]}
        plan = task(turn(behind(task("x"), "other")), "end")
        run = await w.run(plan, agents=[w.node(), w.node("other")], policy=policy, **TASKS)
        assert (await w.finished(run))["output"] == "end"
        (result,) = await told(w, run.session_id)
        assert result.startswith("Error: the handoff to other was denied: tool is in denied_tools")
        assert await w.events(run.session_id, "notice", "subagent.start") == []


@pytest.mark.spec("4.8", "9.3")
async def test_a_task_that_the_budget_has_no_room_for_fails_and_the_parent_is_told(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        plan = task(turn(behind(task("x")), behind(task("y"))), turn(fetch(1), fetch(2)), "end")
        run = await w.run(plan, budget={"delegations": 1}, **TASKS)
        assert (await w.finished(run))["output"] == "end"
        assert [row["status"] for row in await handoffs(w, run.session_id)] == ["completed", "failed"]
        assert "delegations" in (await told(w, run.session_id))[3]


@pytest.mark.spec("4.1", "4.7", "9.1")
async def test_retries_and_fallbacks_are_those_of_any_handoff(tmp_path: Path) -> None:
    failing = task({"error": BUSY})
    async with world(tmp_path) as w:
        agents = [w.node(), w.node("helper", max_steps=1)]
        plan = task(turn(behind(failing)), turn(fetch(1)), "end")
        policy = {"max_retries": 2, "on_error": {"answer": "stood in"}}
        run = await w.run(plan, agents=agents, policy=policy, **TASKS)
        await w.finished(run)
        (row,) = await handoffs(w, run.session_id)
        assert (row["status"], row["attempts"], len(row["run_ids"])) == ("fallback", 3, 3)
        assert (await told(w, run.session_id))[1].endswith("Status: Completed\n\nResult:\nstood in")


@pytest.mark.spec("2.5", "9.1")
async def test_what_a_task_inherits_is_the_conversation_at_the_time_of_the_call(tmp_path: Path) -> None:
    """A summary is the parent's own call, also when it ends at once."""
    async with world(tmp_path) as w:
        heir = w.node("heir", inherit_context="summary")
        run = await w.run(task(turn(behind(task("x"), "heir")), "end"), agents=[w.node(), heir], **TASKS)
        row = await w.finished(run)
        await idle(w, run.session_id)
        asked = next(r for r in w.requests if r.messages[0].content == "You are heir.")
        assert DEFAULT.inherited in asked.messages[1].content
        assert row["usage"]["model_calls"] == 3


# ── places and memories ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("4.8", "9.8")
@pytest.mark.case("B057")
async def test_two_waits_at_once_give_one_place_back_once(tmp_path: Path) -> None:
    stage = Stage()
    plan = task(
        turn(behind(held("a")), behind(held("b"))), turn(fetch(1), fetch(2)), turn(call("hold", key="c")), "mid"
    )
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(task(turn(execute(plan)), "end"), budget={"max_concurrent": 1}, **TASKS)
        await stage.reached("+a")
        assert stage.diary == ["+a"]
        stage.open("a", "b", "c")
        assert (await w.finished(run))["output"] == "end"
        assert stage.diary == ["+a", "-a", "+b", "-b", "+c", "-c"]
        results = await told(w, run.session_id, depth=1)
        assert [text.split("Result:\n")[-1] for text in results[2:4]] == ["answer a", "answer b"]


@pytest.mark.spec("4.9", "9.1")
async def test_tasks_that_share_a_memory_run_one_by_one_and_nobody_waits_for_itself(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        keeper = w.node("keeper", session_mode="reuse_session")
        inner = task(turn(behind(held("inner"), "keeper")), turn(fetch(1, timeout=1)), "outer")
        begin = turn(behind(held("a"), "keeper"), behind(inner, "keeper"))
        run = await w.run(task(begin, "end"), agents=[w.node(), keeper], **TASKS)
        await stage.reached("+a")
        assert stage.diary == ["+a"]
        stage.open("a", "inner")
        await idle(w, run.session_id)
        assert [row["status"] for row in await handoffs(w, run.session_id)] == ["completed"] * 3
        assert stage.diary == ["+a", "-a", "+inner", "-inner"]
