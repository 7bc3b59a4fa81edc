"""Ends that must come: at a deadline, at a wall time, with a parent that is told to end; and what they leave."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.agent.messages import Role
from app.agent.runs import Run
from app.agent.tools import OutputLimit, ToolContext
from tests.agent.handoff_events import told
from tests.agent.probes import Probe, Stage, echo
from tests.agent.test_session_modes import asked, keeper
from tests.plan import ask, call, task
from tests.world import WAIT_S, World, world

SHAPE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
WITH_SHAPE = pytest.mark.parametrize("shape", [None, SHAPE], ids=["text", "schema"])


def over(row: Mapping[str, Any], shape: object) -> None:
    """A child without time for an answer: with a form to keep it fails, else it ends in what it has."""
    if shape is None:
        assert (row["status"], row["stop_reason"], row["partial"]) == ("completed", "budget", True)
    else:
        assert (row["status"], row["error"]["code"]) == ("failed", "output_invalid")
        assert "no time left" in row["error"]["message"]


def short(w: World, shape: object, **fields: Any) -> dict[str, Any]:
    """An agent with little time, and perhaps a form for its answer."""
    return w.node("short", budget={"wall_ms": 1_500}, **({"output_schema": shape} if shape else {}), **fields)


async def child(w: World, session_id: str, agent: str) -> dict[str, Any]:
    """The end of the only run of an agent."""
    (found,) = await w.rows("runs", session_id=session_id, agent=agent)
    return await w.finished(found["id"])


# ── no room in time ─────────────────────────────────────────────────────────────────────────────────────────────


@WITH_SHAPE
@pytest.mark.spec("4.8", "5.5", "5.6")
async def test_a_forced_answer_does_not_wait_past_the_deadline_for_tokens_that_a_sibling_holds(
    tmp_path: Path, shape: dict[str, Any] | None
) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools, script=TOKENS) as w:
        agents = [w.node(), w.node("greedy", max_tokens=1_000_000), short(w, shape, max_tokens=500)]
        run = await w.run("go", agents=agents, budget={"tokens": 20_000})
        await stage.reached("+greedy", "+short")
        stage.open("greedy")
        row = await child(w, run.session_id, "short")
        over(row, shape)
        assert row["usage"]["model_calls"] == 1
        open_runs = await w.rows("runs", session_id=run.session_id, ended_at=None)
        assert [r["agent"] for r in open_runs] == ["node", "greedy"]
        await w.sessions.cancel(w.tenant, run.id)


TOKENS = """agents:
  - when: {system_contains: You are node}
    turns:
      - calls:
          - {tool: dispatch_subagent, arguments: {agent_type: greedy, task: much}}
          - {tool: dispatch_subagent, arguments: {agent_type: short, task: little}}
  - when: {system_contains: You are greedy}
    turns: [{calls: [{tool: hold, arguments: {key: greedy}}]}, {text: late, delay_ms: 60000}]
  - when: {system_contains: You are short}
    turns: [{text: so far, calls: [{tool: hold, arguments: {key: short}}]}]
    final: {text: never}
"""


@WITH_SHAPE
@pytest.mark.spec("4.8", "5.5", "5.6", "9.8")
async def test_a_run_that_gets_no_place_back_in_time_ends_as_one_without_an_answer(
    tmp_path: Path, shape: dict[str, Any] | None
) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools, script=PLACES) as w:
        agents = [w.node(), w.node("holder"), short(w, shape)]
        run = await w.run("go", agents=agents, budget={"max_concurrent": 1})
        await stage.reached("+place")
        row = await child(w, run.session_id, "short")
        over(row, shape)
        assert row["steps"] == 1, "the model was not asked again"
        stage.open("place")
        assert (await w.finished(run))["output"] == "end"


PLACES = """agents:
  - when: {task_contains: go}
    turns:
      - calls:
          - {tool: dispatch_subagent, arguments: {agent_type: short, task: little}}
          - {tool: dispatch_subagent, arguments: {agent_type: holder, task: long}}
      - {text: end}
  - when: {system_contains: You are holder}
    turns: [{calls: [{tool: hold, arguments: {key: place}}]}, {text: held}]
  - when: {system_contains: You are short}
    turns: [{text: I ask somebody., calls: [{tool: dispatch_subagent, arguments: {agent_type: node, task: x}}]}]
    final: {text: never}
"""


@pytest.mark.spec("4.8", "5.5")
@pytest.mark.parametrize("kind", ["wall_ms", "model_calls"])
async def test_a_turn_of_a_session_with_nothing_left_ends_in_a_digest_without_a_model_call(
    tmp_path: Path, kind: str
) -> None:
    stage = Stage()
    late = {"text": "never", "delay_ms": 20_000}
    turns = {
        "wall_ms": (300, task({"calls": [call("hold", key="x")]}, final=late)),
        "model_calls": (1, task("x")),
    }
    async with world(tmp_path, tools=stage.tools) as w:
        limit, first = turns[kind]
        session = await w.session(budget={kind: limit})
        await w.finished(await w.turn(session, first))
        before = len(w.requests)
        row = await w.finished(await w.turn(session, task("x")))
        assert (row["status"], row["stop_reason"], row["error"]) == ("completed", "budget", None)
        assert (row["output"], row["forced"]) == ("(no answer was given and nothing was collected)", False)
        assert (row["steps"], row["usage"]["model_calls"], len(w.requests)) == (0, 0, before)
        begun = await w.events(session, "step.started", "answer.forced")
        assert [e for e in begun if e["run_id"] == row["id"]] == []


# ── a parent that was told to end ───────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def parent_that_ends_slowly(folder: Path, reaction: Any, primary: Probe) -> AsyncIterator[tuple[World, Run]]:
    """A tree whose root is told to end while one of its children takes its time and the other one ends at once."""
    begun, ending, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await ended.wait()
        return "never"

    async with world(folder, tools=[primary, Probe("slow", slow)]) as w:
        agents = [w.node(), w.node("failing"), w.node("helper")]
        fails = task({"text": "x", "delay_ms": 1_000, "error": {"code": "overloaded", "retryable": True}})
        plan = task({"calls": [ask(fails, "failing"), ask(task({"calls": [call("slow")]}, "never"))]}, "never")
        policy = {"max_depth": 1, "max_retries": 2, "on_error": reaction}
        run = await w.run(plan, agents=agents, policy=policy)
        await asyncio.wait_for(begun.wait(), WAIT_S)
        cancelling = asyncio.create_task(w.sessions.cancel(w.tenant, run.id))
        await asyncio.wait_for(ending.wait(), WAIT_S)
        (failing,) = await w.rows("runs", session_id=run.session_id, agent="failing")
        assert (await w.finished(failing["id"]))["status"] == "cancelled"
        await w.until(run.session_id, "handoff.end")
        ended.set()
        await asyncio.wait_for(cancelling, WAIT_S)
        yield w, run


@pytest.mark.spec("4.1", "4.7", "5.7")
@pytest.mark.parametrize(
    "reaction", ["report", {"agent": "helper"}, {"model": "scripted:plan"}, "fallback_to_primary"], ids=str
)
async def test_after_a_parent_was_told_to_end_nothing_begins_in_its_handoffs(
    tmp_path: Path, reaction: Any, caplog: pytest.LogCaptureFixture
) -> None:
    primary = Probe("dispatch_subagent", echo)
    async with parent_that_ends_slowly(tmp_path, reaction, primary) as (w, run):
        assert (await w.finished(run))["status"] == "cancelled"
        rows = await w.rows("runs", session_id=run.session_id)
        assert sorted((r["agent"], r["status"]) for r in rows) == [
            ("failing", "cancelled"), ("node", "cancelled"), ("node", "cancelled"),
        ]  # fmt: skip
        assert primary.arguments == []
        first = (await w.events(run.session_id, "handoff.end"))[0]["data"]
        assert (first["subagent"], first["status"], first["attempts"]) == ("failing", "cancelled", 1)
        assert first["error"]["code"] == "cancelled"
        assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


# ── what a turn that a handoff ended leaves ─────────────────────────────────────────────────────────────────────


@pytest.mark.spec("4.1", "4.9", "12.6")
async def test_whoever_goes_on_with_a_memory_whose_turn_a_handoff_ended_reads_what_the_log_says(tmp_path: Path) -> None:
    secret = "sk-very-secret-value-0123456789"
    limit = OutputLimit(max_chars=600, head_chars=400, tail_chars=100)
    async with world(tmp_path, secrets=[secret], output_limit=limit) as w:
        error = {"code": "quota", "message": f"{secret} " + "is not known here " * 500}
        stops = task({"calls": [call("subagent_node", task=task({"error": error}))]}, "never")
        calls = [ask(stops, "keeper"), ask(task("after"), "keeper")]
        agents = [w.node(), keeper(w, surfaces=["per_agent"])]
        run = await w.run(task({"calls": calls}, "end"), agents=agents, policy={"max_depth": 2})
        assert (await w.finished(run))["output"] == "end"
        (stopped,) = [r for r in await told(w, run.session_id, 1) if r["tool"] == "subagent_node"]
        (result,) = [m for m in asked(w)[-1].messages if m.role is Role.TOOL]
        assert (result.content, result.is_error) == (stopped["content"], True)
        assert secret not in result.content
        assert len(result.content) <= limit.max_chars
        first = (await w.rows("runs", session_id=run.session_id, agent="keeper"))[0]
        stored = await w.load(w.tenant, first["memory_id"])
        assert result in stored.messages
