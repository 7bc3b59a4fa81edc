"""Governed delegation: who may, how deep, what a denied or failed one does to its parent; its two events always."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from app.tools.function import FunctionTool
from tests.agent.handoff_events import child_call, kinds, told
from tests.agent.probes import Stage
from tests.plan import ask, call, task
from tests.processes import alive, linux, numbers_in, until
from tests.stubs.openai_stub import Answer, OpenAIStub, Request, calls, chunk, sse, text
from tests.world import agent, world

FAILING = task({"error": {"code": "quota", "message": "no quota left"}})


BOTH = pytest.mark.parametrize("surface", ["dispatch", "per_agent"])


@BOTH
@pytest.mark.spec("3.1", "3.3", "3.5", "4.6")
async def test_delegations_of_one_turn_run_side_by_side_and_answer_in_the_order_of_the_calls(
    tmp_path: Path, surface: str
) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        plans = [task({"calls": [call("hold", key=key)]}, f"answer {key}") for key in "abc"]
        run = await w.run(task({"calls": [child_call(p, surface) for p in plans]}, "end"), surfaces=[surface])
        await stage.reached("+a", "+b", "+c")
        stage.open("c")
        await w.until(run.session_id, "handoff.end")
        stage.open("b")
        await w.until(run.session_id, "handoff.end", 2)
        stage.open("a")
        assert (await w.finished(run))["output"] == "end"
        results = [r["content"] for r in await told(w, run.session_id)]
        if surface == "dispatch":
            assert results == ["answer a", "answer b", "answer c"]
        else:
            shapes = [json.loads(result) for result in results]
            assert [shape["output"] for shape in shapes] == ["answer a", "answer b", "answer c"]
            assert [list(shape) for shape in shapes] == [
                ["subagent", "toolName", "output", "steps", "status", "run_id"]
            ] * 3
            assert {(s["subagent"], s["toolName"], s["steps"], s["status"]) for s in shapes} == {
                ("node", "subagent_node", 2, "completed")
            }
        assert await kinds(w, run.session_id) == ["start"] * 3 + ["completed"] * 3


@BOTH
@pytest.mark.spec("4.1")
@pytest.mark.case("B051", "B053")
@pytest.mark.parametrize("chosen", [None, "report", "fail"])
async def test_a_failed_child_fails_or_is_reported(tmp_path: Path, surface: str, chosen: str | None) -> None:
    async with world(tmp_path) as w:
        policy = {"max_depth": 3, **({"on_error": chosen} if chosen else {})}
        calls = [child_call(task("fine"), surface), child_call(FAILING, surface), call("glob", pattern="*")]
        row = await w.finished(await w.run(task({"calls": calls}, "end"), surfaces=[surface], policy=policy))
        fails = chosen == "fail" or (chosen is None and surface == "per_agent")
        results = await told(w, row["session_id"])
        assert len(results) == 3, "every call of the turn has a result"
        assert (results[1]["is_error"], "no quota left" in results[1]["content"]) == (True, True)
        if fails:
            assert (row["status"], row["error"]["code"]) == ("failed", "handoff_failed")
            assert "no quota left" in row["error"]["message"]
            assert len(w.requests) == 3, "the parent is not asked again"
        else:
            assert (row["status"], row["output"]) == ("completed", "end")
            assert "fine" in results[0]["content"]
        assert sorted(await kinds(w, row["session_id"])) == sorted(["start", "start", "completed", "failed"])
        following = await w.finished(await w.turn(row["session_id"], task("next turn")))
        assert following["output"] == "next turn"


@BOTH
@pytest.mark.spec("4.1", "4.2", "4.5", "4.6")
@pytest.mark.parametrize("chosen", [None, "report", "fail"])
async def test_a_denied_handoff_fails_or_is_reported_and_starts_nothing(
    tmp_path: Path, surface: str, chosen: str | None
) -> None:
    async with world(tmp_path) as w:
        policy = {"max_depth": 0, **({"on_denied": chosen} if chosen else {})}
        run = await w.run(task({"calls": [child_call(task("x"), surface)]}, "end"), surfaces=[surface], policy=policy)
        row = await w.finished(run)
        fails = chosen == "fail" or (chosen is None and surface == "per_agent")
        assert row["status"] == ("failed" if fails else "completed")
        assert (row["error"] or {}).get("code") == ("handoff_denied" if fails else None)
        (result,) = await told(w, row["session_id"])
        assert "handoff depth 1 exceeds max_depth 0" in result["content"]
        start, end = await w.events(row["session_id"], "handoff.start", "handoff.end")
        assert (end["data"]["status"], end["data"]["attempts"], end["data"]["run_ids"]) == ("denied", 0, [])
        assert end["data"]["error"]["code"] == "handoff_denied"
        assert start["data"]["input"] == task("x")
        assert len(await w.rows("runs")) == 1


@pytest.mark.spec("4.5", "7.2")
async def test_at_the_limit_delegation_tools_are_not_shown_and_a_call_that_comes_anyway_is_denied(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        inner = task({"calls": [ask(task("too deep"))]}, "inner")
        row = await w.finished(await w.run(task({"calls": [ask(inner)]}, "end"), policy={"max_depth": 1}))
        assert row["output"] == "end"
        shown = [[spec.name for spec in request.tools] for request in w.requests]
        assert ["dispatch_subagent" in names for names in shown] == [True, False, False, True]
        (denied,) = await told(w, row["session_id"], 1)
        assert (denied["status"], "exceeds max_depth 1" in denied["content"]) == ("denied", True)


@pytest.mark.spec("4.1", "4.2")
@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"allowed_tools": []}, "tool is not in allowed_tools"),
        ({"allowed_tools": ["dispatch_subagent(other)"]}, "tool is not in allowed_tools"),
        ({"denied_tools": ["dispatch_subagent(node)"]}, "tool is in denied_tools"),
        ({"allowed_tools": ["dispatch_subagent"], "denied_tools": ["dispatch_subagent"]}, "tool is in denied_tools"),
        ({"allowed_tools": ["dispatch_subagent(node)"]}, None),
        ({"enabled": False, "allowed_tools": [], "max_depth": 0}, None),
    ],
)
async def test_lists_name_tools_or_a_tool_with_its_agent(
    tmp_path: Path, policy: dict[str, Any], reason: str | None
) -> None:
    async with world(tmp_path) as w:
        row = await w.finished(await w.run(task({"calls": [ask(task("x"))]}, "end"), policy=policy))
        (result,) = await told(w, row["session_id"])
        assert row["status"] == "completed"
        assert result["content"] == "x" if reason is None else reason in result["content"]
        assert await kinds(w, row["session_id"]) == ["start", "denied" if reason else "completed"]


@pytest.mark.spec("4.3", "4.4")
async def test_a_policy_that_is_off_still_bounds_the_time_and_an_error_follows_the_surface(tmp_path: Path) -> None:
    stage = Stage()
    slow = task({"calls": [call("hold", key="x")]}, "never")
    for surface, status in (("dispatch", "completed"), ("per_agent", "failed")):
        folder = tmp_path / surface
        folder.mkdir()
        async with world(folder, tools=stage.tools) as w:
            policy = {"enabled": False, "timeout_ms": 50, "on_error": "report" if surface == "per_agent" else "fail"}
            row = await w.finished(
                await w.run(task({"calls": [child_call(slow, surface)]}, "end"), policy=policy, surfaces=[surface])
            )
            assert row["status"] == status
            assert await kinds(w, row["session_id"]) == ["start", "timed_out"]


@pytest.mark.spec("4.4", "4.6")
async def test_an_attempt_over_its_time_is_ended_for_real_and_its_siblings_go_on(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        slow = task({"calls": [ask(task({"calls": [call("hold", key="deep")]}, "x"))]}, "never")
        row = await w.finished(
            await w.run(task({"calls": [ask(slow), ask(task("quick"))]}, "end"),
                        policy={"max_depth": 3, "timeout_ms": 120})
        )  # fmt: skip
        first, second = await told(w, row["session_id"])
        assert (row["output"], second["content"]) == ("end", "quick")
        assert "ended timed_out" in first["content"]
        assert stage.diary == ["+deep", "!deep"]
        rows = await w.rows("runs", session_id=row["session_id"])
        assert sorted((r["depth"], r["status"]) for r in rows) == [
            (0, "completed"), (1, "completed"), (1, "timed_out"), (2, "cancelled"),
        ]  # fmt: skip


@pytest.mark.spec("4.1", "5.2")
async def test_under_fail_the_other_calls_of_the_turn_are_stopped_and_later_ones_not_begun(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        other = ask(task({"calls": [call("hold", key="other")]}, "x"))
        calls = [call("hold", key="side"), other, ask(FAILING), call("solo", key="later")]
        row = await w.finished(await w.run(task({"calls": calls}, "never"), policy={"on_error": "fail"}))
        assert (row["status"], row["error"]["code"]) == ("failed", "handoff_failed")
        assert {"+later"}.isdisjoint(stage.diary)
        results = await told(w, row["session_id"])
        assert [r["status"] for r in results] == ["cancelled", "cancelled", "error", "not_run"]
        assert sorted(await kinds(w, row["session_id"])) == ["cancelled", "failed", "start", "start"]


@pytest.mark.spec("4.1")
async def test_two_failures_at_once_end_the_parent_once(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        plan = task({"calls": [ask(FAILING), ask(FAILING), ask(FAILING)]}, "never")
        row = await w.finished(await w.run(plan, policy={"on_error": "fail"}))
        assert (row["status"], row["error"]["code"]) == ("failed", "handoff_failed")
        assert len(await told(w, row["session_id"])) == 3


@pytest.mark.spec("4.1", "4.10")
async def test_a_failure_climbs_only_as_far_as_the_policies_say(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        middle = agent("middle", handoff={"on_error": "fail"})
        plan = task({"calls": [ask(task({"calls": [ask(FAILING, agent="node")]}, "never"), agent="middle")]}, "end")
        row = await w.finished(await w.run(plan, agents=[w.node(), middle], policy={"max_depth": 3}))
        assert (row["status"], row["output"]) == ("completed", "end")
        (result,) = await told(w, row["session_id"])
        assert "handoff_failed" not in result["content"]
        assert "no quota left" in result["content"]
        middle_row = next(r for r in await w.rows("runs", agent="middle"))
        assert middle_row["error"]["code"] == "handoff_failed"


@pytest.mark.spec("4.10")
async def test_a_definition_deeper_down_cannot_widen_what_its_parent_may(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        eager = agent("eager", handoff={"max_depth": None, "allowed_tools": None, "enabled": True})
        inner = task({"calls": [ask(task("too deep"), agent="node")]}, "inner")
        row = await w.finished(
            await w.run(task({"calls": [ask(inner, agent="eager")]}, "end"), agents=[w.node(), eager],
                        policy={"max_depth": 1})
        )  # fmt: skip
        assert (await told(w, row["session_id"], 1))[0]["status"] == "denied"


@pytest.mark.spec("4.6")
async def test_the_events_of_a_handoff_say_everything_that_is_known(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        plan = task({"calls": [ask(task("out"), purpose="for people", subagent_name="Helper")]}, "end")
        row = await w.finished(await w.run(plan))
        start, end = await w.events(row["session_id"], "handoff.start", "handoff.end")
        (child,) = await w.rows("runs", depth=1)
        (made,) = await w.rows("tool_calls")
        shared = {
            "handoff_id": child["handoff_id"], "call_id": made["id"], "tool": "dispatch_subagent", "subagent": "node",
            "name": "Helper", "depth": 1, "session_mode": "new_session",
        }  # fmt: skip
        assert start["data"] == {
            **shared, "surface": "dispatch", "background": False, "input": task("out"), "purpose": "for people",
        }  # fmt: skip
        duration = end["data"].pop("duration_ms")
        assert duration >= 0
        assert end["data"] == {
            **shared, "status": "completed", "attempts": 1, "output": "out", "run_ids": [child["id"]],
        }  # fmt: skip
        assert "for people" not in json.dumps([m.content for m in w.requests[1].messages])


# ── an attempt over its time ────────────────────────────────────────────────────────────────────────────────────


def sleepers(folder: Path) -> tuple[list[list[int]], tuple[FunctionTool, ...]]:
    """Own tools that start a process and wait for it; in the list, which of the processes of earlier attempts lived
    when a further one began."""
    found: list[list[int]] = []
    pids = folder / "pids"

    def in_a_thread() -> str:
        """Sleep in a process of a thread."""
        found.append([number for number in numbers_in(pids) if alive(number)])
        command = "echo $$ >> pids; sleep 1000 & echo $! >> pids; sleep 1000 & echo $! >> pids; wait"
        subprocess.run(command, shell=True, cwd=folder, check=False)
        return "never"

    async def on_the_loop() -> str:
        """Sleep in a process of the event loop."""
        found.append([number for number in numbers_in(pids) if alive(number)])
        process = await asyncio.create_subprocess_shell("echo $$ >> pids; exec sleep 1000", cwd=folder)
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return "never"

    return found, tuple(FunctionTool.from_function(function) for function in (in_a_thread, on_the_loop))


@linux
@pytest.mark.spec("4.4", "4.7", "5.7", "7.4")
@pytest.mark.seed("000", 40)
@pytest.mark.case("B062", "B066", "B069")
@pytest.mark.parametrize(("way", "processes"), [("in_a_thread", 6), ("on_the_loop", 2), ("stream", 0)])
async def test_when_a_handoff_has_ended_by_its_timeout_no_process_and_no_connection_of_any_attempt_is_left(
    tmp_path: Path, way: str, processes: int
) -> None:
    found, tools = sleepers(tmp_path)
    never = asyncio.Event()

    def decide(request: Request) -> Answer:
        if request.messages[1]["content"] == "go":
            order = '{"agent_type": "node", "task": "work"}'
            return text("end") if request.messages[-1]["role"] == "tool" else calls(("dispatch_subagent", order))
        if way == "stream":
            return Answer(writes=(*sse(chunk({"content": "…"}), done=False), never))
        return calls((way, "{}"))

    async with OpenAIStub() as stub, world(tmp_path, tools=tools, base_url=stub.base_url) as w:
        stub.decide(decide)
        run = await w.run("go", policy={"timeout_ms": 700, "max_retries": 1})
        end = (await w.until(run.session_id, "handoff.end"))["data"]
        left = [number for number in numbers_in(tmp_path / "pids") if alive(number)]
        assert (left, len(numbers_in(tmp_path / "pids"))) == ([], processes)
        await stub.client_left(2 if way == "stream" else 0)
        assert (end["status"], end["attempts"]) == ("timed_out", 2)
        assert found == ([] if way == "stream" else [[], []]), "the next attempt begins when nothing is left"
        assert (await w.finished(run))["output"] == "end"
        order = [(e["type"], e["run_id"]) for e in await w.events(run.session_id, "run.queued", "run.timed_out")]
        first, second = end["run_ids"]
        assert order[1:] == [
            ("run.queued", first), ("run.timed_out", first), ("run.queued", second), ("run.timed_out", second),
        ]  # fmt: skip
        assert len(stub.requests) == 4
        assert [row["status"] for row in await w.rows("tool_calls", tool=way)] == ["cancelled"] * len(found)


@linux
@pytest.mark.spec("5.7", "7.4")
@pytest.mark.case("B069")
@pytest.mark.parametrize("way", ["in_a_thread", "on_the_loop"])
async def test_when_a_run_is_cancelled_the_processes_of_its_tools_end_and_no_later_call_is_made(
    tmp_path: Path, way: str
) -> None:
    _, tools = sleepers(tmp_path)
    async with world(tmp_path, tools=tools) as w:
        run = await w.run(task({"calls": [ask(task({"calls": [call(way), call(way)]}, "never"))]}, "never"))
        await until(lambda: len(numbers_in(tmp_path / "pids")) == (3 if way == "in_a_thread" else 1))
        await w.sessions.cancel(w.tenant, run.id)
        assert [number for number in numbers_in(tmp_path / "pids") if alive(number)] == []
        assert (await w.finished(run))["status"] == "cancelled"
        assert [row["status"] for row in await w.rows("tool_calls", tool=way)] == ["cancelled", "cancelled"]
        assert len(await w.events(run.session_id, "tool.start")) == 2, "the delegation and the first of its calls"
        assert len(w.requests) == 2
