"""A task is resumed: a new run over the memory that the old one left; what names it, and who may not."""

from pathlib import Path
from typing import Any

import pytest

from app.agent.chat import ChatRequest
from app.agent.messages import Role
from app.agent.tools import OutputLimit
from app.llm.profile import Profile
from tests.agent.probes import Probe, Stage
from tests.agent.tasks import TASKS, handoffs, held, idle, told, turn
from tests.plan import behind, call, execute, fetch, known, run_of, task
from tests.world import World, world

pytestmark = pytest.mark.spec("9.4")
LEARNED = "learned code=77"
PART_ONE = task(turn(call("look")), LEARNED)
QUESTION = "Which code?"
BROKEN = {"error": {"code": "model_error", "message": "the provider is down"}}


def look(text: str = "the code is code=77") -> Probe:
    """A tool that tells the code."""

    async def body(_arguments: Any, _context: Any) -> str:
        return text

    return Probe("look", body, read_only=True, concurrency_safe=True)


def asked(w: World, question: str = QUESTION) -> ChatRequest:
    """The request of the run that was asked that."""
    return next(r for r in w.requests if r.messages[-1].content == question)


async def row_of(w: World, session: str, number: int = 0) -> dict[str, Any]:
    """The nth handoff of a session."""
    return (await handoffs(w, session))[number]


# ── what is resumed, and with what ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("2.1", "3.2")
@pytest.mark.seed("002", 77, 94)
@pytest.mark.case("B085")
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("by", ["task", "run", "name"])
async def test_a_task_goes_on_with_all_that_it_had_read(
    tmp_path: Path, by: str, background: bool, restarted: bool
) -> None:
    async with world(tmp_path, tools=[look()]) as w:
        run = await w.run(task(turn(execute(PART_ONE, subagent_name="Finder")), "end"), **TASKS)
        await w.finished(run)
        first = await row_of(w, run.session_id)
        wanted = {"task": first["id"], "run": first["run_ids"][0], "name": "Finder"}[by]
        plan = task(turn(execute(QUESTION, resume=wanted, run_in_background=background)), "end")
        if not restarted:
            await _resumed(w, run.session_id, plan, first)
    if restarted:
        async with world(tmp_path, tools=[look()]) as w:
            await _resumed(w, run.session_id, plan, first)


async def _resumed(w: World, session: str, plan: str, first: dict[str, Any]) -> None:
    await w.turn(session, plan)
    await w.until(session, "run.completed", 4)
    request = asked(w)
    assert [m.role for m in request.messages] == [
        Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT, Role.USER,
    ]  # fmt: skip
    assert request.messages[3].content == "the code is code=77"
    assert request.messages[4].content == LEARNED
    second = await row_of(w, session, 1)
    runs = {row["id"]: row for row in await w.rows("runs", session_id=session)}
    old, new = runs[first["run_ids"][0]], next(r for r in runs.values() if r["handoff_id"] == second["id"])
    assert (new["memory_id"], new["turn"]) == (old["memory_id"], old["turn"] + 1)
    assert new["id"] != old["id"]
    assert second["name"] == "Finder_2"
    (start,) = [e for e in await w.events(session, "handoff.start") if e["data"]["handoff_id"] == second["id"]]
    assert start["data"]["resumes"] == first["id"]


@pytest.mark.spec("5.4")
@pytest.mark.case("B085")
async def test_what_a_task_had_summed_up_is_there_when_it_is_resumed(tmp_path: Path) -> None:
    profile = Profile(name="small", provider="scripted", model="plan.py", context_window=2500)
    limit = OutputLimit(max_chars=400_000, head_chars=300_000, tail_chars=10_000)
    tools = [look("the code is code=77 " + "and nothing of note is found in the field today. " * 130)]
    async with world(tmp_path, tools=tools, profiles={"small": profile}, model="small", output_limit=limit) as w:
        run = await w.run(task(turn(execute(task(turn(call("look")), turn(call("look")), "one"))), "end"), **TASKS)
        await w.finished(run)
        wanted = (await row_of(w, run.session_id))["id"]
        assert await w.events(run.session_id, "compaction")
    async with world(tmp_path, tools=tools, profiles={"small": profile}, model="small", output_limit=limit) as w:
        await w.finished(await w.turn(run.session_id, task(turn(execute(QUESTION, resume=wanted)), "end")))
        text = "\n".join(message.content for message in asked(w).messages)
        assert "code=77" in text


@pytest.mark.spec("4.1", "5.7")
@pytest.mark.case("B083")
@pytest.mark.parametrize("by", ["task", "run"])
@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_the_error_of_a_task_that_failed_or_was_cancelled_has_what_it_takes_to_resume_it(
    tmp_path: Path, how: str, by: str
) -> None:
    stage = Stage()
    last = BROKEN if how == "failed" else turn(call("hold", key="child"))
    child = task({"text": "I look.", **turn(call("look"))}, last)
    wanted = known(1) if by == "task" else run_of(1)
    plan = task(turn(execute(child)), turn(execute(QUESTION, resume=wanted)), "end")
    async with world(tmp_path, tools=[look(), *stage.tools]) as w:
        run = await w.run(plan, **TASKS)
        if how == "cancelled":
            await stage.reached("+child")
            (row,) = await w.rows("runs", session_id=run.session_id, depth=1)
            await w.sessions.cancel(w.tenant, row["id"])
        assert (await w.finished(run))["output"] == "end"
        first, second = await told(w, run.session_id)
        assert first.startswith(f"Error: the handoff to node ended {how}")
        assert "I look." in first
        assert second == f"echo: {QUESTION}"
        assert "the code is code=77" in [m.content for m in asked(w).messages]


@pytest.mark.spec("9.2")
@pytest.mark.case("B083")
async def test_a_background_task_that_was_cancelled_or_failed_can_be_resumed(tmp_path: Path) -> None:
    stage = Stage()
    begin = turn(behind(task(turn(call("hold", key="a")), "x")), behind(task(turn(call("look")), BROKEN)))
    end = turn(call("cancel_task", task_id=known(1)), fetch(2))
    again = turn(execute("one?", resume=known(1)), execute("two?", resume=known(2)))
    async with world(tmp_path, tools=[look(), *stage.tools]) as w:
        run = await w.run(task(begin, turn(call("hold", key="p")), end, again, "end"), **TASKS)
        await stage.reached("+a", "+p")
        stage.open("p")
        assert (await w.finished(run))["output"] == "end"
        assert (await told(w, run.session_id))[-2:] == ["echo: one?", "echo: two?"]
        assert [row["status"] for row in await handoffs(w, run.session_id)] == [
            "cancelled", "failed", "completed", "completed",
        ]  # fmt: skip


@pytest.mark.spec("4.9")
async def test_an_agent_that_remembers_is_resumed_in_the_memory_that_it_shares(tmp_path: Path) -> None:
    async with world(tmp_path, tools=[look()]) as w:
        agents = [w.node(), w.node("keeper", session_mode="reuse_session")]
        plan = task(
            turn(execute(PART_ONE, "keeper")),
            turn(execute(task("two"), "keeper")),
            turn(execute(QUESTION, "keeper", resume=known(1)), behind(task("one more"), "keeper")),
            "end",
        )  # the first result names no id: a task that completed is resumed by its name
        plan = plan.replace("<task 1>", "Keeper").replace('"prompt"', '"subagent_name": "Keeper", "prompt"')
        run = await w.run(plan, agents=agents, **TASKS)
        await w.finished(run)
        await idle(w, run.session_id)
        runs = await w.rows("runs", session_id=run.session_id, depth=1)
        assert len({row["memory_id"] for row in runs}) == 1
        assert sorted(row["turn"] for row in runs) == [0, 1, 2, 3]
        assert LEARNED in [m.content for m in asked(w).messages]


@pytest.mark.spec("4.1", "4.9")
async def test_another_agent_that_stands_in_for_a_resumed_one_does_not_get_its_memory(tmp_path: Path) -> None:
    async with world(tmp_path, tools=[look()]) as w:
        agents = [w.node(), w.node("helper", max_steps=1)]
        policy = {"on_error": {"agent": "helper"}}
        plan = task(turn(execute(PART_ONE, subagent_name="f")), turn(execute(task(BROKEN), resume="f")), "end")
        run = await w.run(plan, agents=agents, policy=policy, **TASKS)
        await w.finished(run)
        runs = {row["ordinal"]: row for row in await w.rows("runs", session_id=run.session_id, depth=1)}
        assert [runs[number]["agent"] for number in (2, 3, 4)] == ["node", "node", "helper"]
        assert runs[2]["memory_id"] == runs[3]["memory_id"] != runs[4]["memory_id"]
        helper = next(r for r in w.requests if r.messages[0].content == "You are helper.")
        assert len(helper.messages) == 2


@pytest.mark.spec("5.1", "9.4")
async def test_limits_of_the_definition_apply_anew(tmp_path: Path) -> None:
    busy = [turn(call("look")), turn(call("look"))]
    async with world(tmp_path, tools=[look()]) as w:
        agents = [w.node(), w.node("short", max_steps=2)]
        plan = task(
            turn(execute(task(*busy, "never", final="first"), "short", subagent_name="s")),
            turn(execute(task(*busy, "never", final="second"), "short", resume="s")),
            "end",
        )
        run = await w.run(plan, agents=agents, **TASKS)
        await w.finished(run)
        assert [text.split("\n")[0] for text in await told(w, run.session_id)] == ["first", "second"]
        assert {row["steps"] for row in await w.rows("runs", session_id=run.session_id, depth=1)} == {3}


# ── who is not resumed ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("3.2")
@pytest.mark.seed("002", 92)
@pytest.mark.case("B084")
@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("3f2b8f0e-8a51-4a53-9a83-0f7f4f2f6f10", "there is no task '3f2b8f0e-8a51-4a53-9a83-0f7f4f2f6f10'"),
        ("", "resume is empty"),
        (" \n", "resume is empty"),
        ("../../etc/passwd", "there is no task '../../etc/passwd'"),
        ("ho_/../ho_", "there is no task"),
        ("x" * 5000, "there is no task"),
        ("' OR 1=1 --", "there is no task"),
        ("run_parent", "there is no task"),
        ("\u0000\ud800", "there is no task"),
    ],
    ids=["uuid", "empty", "blank", "path", "slashes", "long", "sql", "own", "signs"],
)
@pytest.mark.parametrize("background", [False, True])
async def test_an_id_that_names_nothing_here_is_an_error_that_names_it_and_starts_nobody(
    tmp_path: Path, wanted: str, why: str, background: bool
) -> None:
    async with world(tmp_path) as w:
        session = await w.session(**TASKS)
        wrong = turn(execute("x", resume=wanted, run_in_background=background))
        row = await w.finished(await w.turn(session, task(wrong, "end")))
        assert (row["status"], row["output"]) == ("completed", "end")
        (result,) = await told(w, session)
        assert result.startswith("Error: ")
        assert why in result
        assert result.endswith("nothing was started.")
        assert len(result) < 400
        assert len(await w.rows("runs", session_id=session)) == 1
        assert await handoffs(w, session) == []


@pytest.mark.spec("3.2")
@pytest.mark.case("B084")
async def test_tasks_of_other_sessions_own_runs_and_other_agents_are_not_resumed(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        agents = [w.node(), w.node("other")]
        elsewhere = await w.run(task(turn(execute(task("x"), subagent_name="there")), "end"), agents=agents, **TASKS)
        await w.finished(elsewhere)
        there = await row_of(w, elsewhere.session_id)
        run = await w.run(task(turn(execute(task("x"), subagent_name="here")), "end"), agents=agents, **TASKS)
        await w.finished(run)
        here = await row_of(w, run.session_id)
        wrong = [execute("x", resume=each) for each in (there["id"], there["run_ids"][0], "there", run.id)]
        wrong.append(execute("x", "other", resume=here["id"]))
        await w.finished(await w.turn(run.session_id, task(turn(*wrong), "end")))
        results = (await told(w, run.session_id))[1:]
        assert all(result.startswith("Error: there is no task") for result in results[:4])
        assert "is one of the agent 'node', not of 'other'" in results[4]
        assert len(await handoffs(w, run.session_id)) == 1


@pytest.mark.spec("3.2")
async def test_a_task_that_was_denied_has_nothing_to_resume(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        policy = {"denied_tools": ["execute_task(other)"]}
        denied = execute(task("x"), "other", subagent_name="no")
        plan = task(turn(denied), turn(execute("x", resume="no")), "end")
        run = await w.run(plan, agents=[w.node(), w.node("other")], policy=policy, **TASKS)
        await w.finished(run)
        assert "never began: there is nothing to resume" in (await told(w, run.session_id))[1]


@pytest.mark.spec("3.2")
@pytest.mark.case("B086")
async def test_a_task_that_goes_on_is_not_resumed(tmp_path: Path) -> None:
    stage = Stage()
    again = [execute("x", resume=each) for each in ("a", known(1))]
    begin = turn(behind(held("a"), subagent_name="a"))
    plan = task(begin, turn(call("hold", key="p")), turn(*again), turn(fetch(1)), "end")
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(plan, **TASKS)
        await stage.reached("+a", "+p")
        stage.open("p")
        await w.until(run.session_id, "tool.result", 4)
        stage.open("a")
        assert (await w.finished(run))["output"] == "end"
        results = await told(w, run.session_id)
        assert all("has not ended: wait for its result" in text for text in results[2:4])
        assert len(await handoffs(w, run.session_id)) == 1


@pytest.mark.spec("3.2")
@pytest.mark.case("B086")
async def test_of_two_that_resume_a_task_at_once_one_wins_and_nobody_comes_in_between(tmp_path: Path) -> None:
    stage = Stage()
    both = turn(*(behind(held(key), resume="f") for key in ("one", "two")))
    later = turn(execute("x", resume="f"), execute("x", resume=known(1)))
    plan = task(turn(execute(task("first"), subagent_name="f")), both, turn(call("hold", key="p")), later, "end")
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(plan, **TASKS)
        await stage.reached("+p")
        await w.until(run.session_id, "run.queued", 3)
        stage.open("p")
        await w.finished(run)
        assert len({"+one", "+two"} & set(stage.diary)) == 1
        results = (await told(w, run.session_id))[-2:]
        assert all(text.startswith("Error: ") for text in results), results
        stage.open("one", "two")
        await idle(w, run.session_id)
        rows = await handoffs(w, run.session_id)
        assert [row["status"] for row in rows if row["run_ids"]] == ["completed", "completed"]
        assert all(row["error"]["code"] == "memory_busy" for row in rows if not row["run_ids"])
        assert len(await w.rows("runs", session_id=run.session_id, depth=1)) == 2
