"""Seed 002 (Agents-Flex) over HTTP, as far as no task of a model runs in the background: agents and their front matter,
own runners, tasks that are looked at while they go on, limits, nesting, and what can be found out afterwards.

A task that goes on is one that somebody delegated beside the model: it is looked at by its handoff's id.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.client import ServiceError
from tests.flows.surface_world import World, boss, once, surface_world
from tests.service import WAIT_S, agent, events_of, finished
from tests.stubs.openai_stub import Answer, Request, calls, chunk, stream, text

SETTINGS = 'agents = ["agents"]\ntrusted_agents = ["agents"]\n'
RUNNERS = '''
async def count(task, context):
    """Stands in for the loop of the agent that names it."""
    if task == "fail":
        raise RuntimeError("the counter is broken")
    if task == "":
        return "Error: there is nothing to count."
    return f"{len(task)} {context.metadata['unit']}"
'''
COUNTER = """---
name: counter
description: Counts letters.
runner: seed_runners:count
unit: letters
---
You count.
"""
REVIEWER = """---
name: code-reviewer
description: Use this agent after writing code, to review it for <bugs>.
role: Senior Developer & reviewer
limits: {files: 3, languages: [java, go]}
2nd-look: "no name of an element can begin with a digit"
handoff: {timeoutMs: 60000}
tools: Read
---
You are code-reviewer.
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """One service with a directory of an operator's agents, and one model server."""
    (tmp_path / "subagentd.toml").write_text(SETTINGS)
    (tmp_path / "seed_runners.py").write_text(RUNNERS)
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "counter.md").write_text(COUNTER)
    (folder / "reviewer.md").write_text(REVIEWER)
    (folder / "reviewer_again.md").write_text(REVIEWER.replace("Senior", "Junior"))
    async with surface_world(tmp_path) as made:
        yield made


def execute(name: str, prompt: str = "Work.") -> tuple[str, str]:
    """A call of `execute_task`."""
    return "execute_task", json.dumps({"name": name, "description": "do some work", "prompt": prompt})


def output_of(task_id: str, **arguments: Any) -> tuple[str, str]:
    """A call of `get_task_output`."""
    return "get_task_output", json.dumps({"task_id": task_id, **arguments})


def turns(gate: asyncio.Event, *answers: Answer) -> Callable[[Request], Answer]:
    """The parent plays these answers, one a request; a child gives its answer once the gate is open."""

    def decide(request: Request) -> Answer:
        if request.messages[0]["content"] != "You are boss.":
            late = text("Late result.")
            return replace(late, writes=(gate, *late.writes))
        asked = sum(message["role"] == "assistant" for message in request.messages)
        return answers[asked] if asked < len(answers) else text("done")

    return decide


async def delegated(world: World, gate: asyncio.Event, **fields: Any) -> tuple[str, str, asyncio.Task[Any]]:
    """A session of `boss` in which a task for `helper` is under way: session, task id, and the call that waits."""
    agents = [boss(), agent("helper", tools=[])]
    session = await world.client.request("POST", "/v1/sessions", {"agent": "boss", "agents": agents})
    world.stub.decide(turns(gate))
    body = {"agent": "helper", "task": "Work.", "session_id": session["id"], **fields}
    waiting = asyncio.create_task(world.client.request("POST", "/v1/delegations", body))
    task_id = ""
    async with asyncio.timeout(WAIT_S):
        async for frame in world.client.events(f"/v1/sessions/{session['id']}/events"):
            if frame.type == "handoff.start":
                task_id = frame.data["data"]["handoff_id"]
            if frame.type == "step.started":
                break
    await world.stub.seen(1)
    return session["id"], task_id, waiting


async def turn(world: World, session_id: str) -> str:
    """The next turn of `boss`: the id of its run."""
    run = await world.client.request("POST", f"/v1/sessions/{session_id}/runs", {"input": "Look."})
    return str(run["id"])


@pytest.mark.spec("3.2", "9.2")
@pytest.mark.seed("002", 58, 70, 71, 72, 83, 84, 85, 86, 87)
async def test_a_task_is_looked_at_while_it_runs_waited_for_in_vain_and_waited_for_to_its_end(world: World) -> None:
    gate = asyncio.Event()
    session_id, task_id, waiting = await delegated(world, gate)
    before = await world.client.request("GET", f"/v1/delegations/{task_id}")
    assert (before["status"], before["output"], before["error"]) == ("running", None, None)

    looks = (output_of(task_id, block=False), output_of(task_id, timeout=30), output_of("ho_nobody"))
    world.stub.decide(turns(gate, calls(*looks), calls(output_of(task_id)), calls(output_of(task_id, timeout=700_000))))
    run_id = await turn(world, session_id)
    looked = 0
    async with asyncio.timeout(WAIT_S):
        async for frame in world.client.events(f"/v1/runs/{run_id}/events"):
            looked += frame.type == "tool.start"
            if looked == len(looks) + 1:
                gate.set()  # the wait that named neither `block` nor `timeout` is on
    assert (await finished(world.client, run_id))["status"] == "completed"

    running, expired, unknown, ended, clamped = world.told()
    assert running == f"Task ID: {task_id}\nStatus: Running\n\nTask still running..."
    assert expired.startswith(f"Error: task {task_id} did not end within 30 ms")
    assert unknown.startswith("Error: there is no task 'ho_nobody'")
    assert ended == f"Task ID: {task_id}\nStatus: Completed\n\nResult:\nLate result."
    assert clamped == f"{ended}\n\n(timeout 700000 was lowered to 600000 ms, the most that is allowed)"
    asked = world.shown()["get_task_output"]["parameters"]["properties"]
    assert (asked["block"]["default"], asked["timeout"]["default"]) == (True, 30_000)
    after = await waiting
    assert after == await world.client.request("GET", f"/v1/delegations/{task_id}")
    assert (after["status"], after["output"], after.get("error")) == ("completed", "Late result.", None)


@pytest.mark.spec("3.2", "5.7")
@pytest.mark.seed("002", 58, 71, 73)
async def test_cancelling_a_task_ends_its_model_call_and_its_status_says_so_from_then_on(world: World) -> None:
    session_id, task_id, waiting = await delegated(world, asyncio.Event())
    cancel = ("cancel_task", json.dumps({"task_id": task_id}))
    world.stub.decide(turns(asyncio.Event(), calls(cancel), calls(output_of(task_id), cancel)))
    run_id = await turn(world, session_id)
    assert (await finished(world.client, run_id))["status"] == "completed"
    await world.stub.client_left(1)
    head = f"Task ID: {task_id}\nStatus: Cancelled"
    first, looked, second = world.told()
    assert first == head
    assert looked.startswith(head)
    assert second == f"{head}\n\nIt had already ended; nothing was cancelled."
    result = await waiting
    assert (result["status"], result["handoff_id"]) == ("cancelled", task_id)


@pytest.mark.spec("3.2", "4.4")
@pytest.mark.seed("002", 71, 93, 96)
async def test_a_child_that_hangs_is_ended_by_its_timeout_and_nobody_waits_for_ever(world: World) -> None:
    session_id, task_id, waiting = await delegated(world, asyncio.Event(), timeout_ms=1000)
    result = await waiting
    assert result["status"] == "timed_out"
    await world.stub.client_left(1)
    world.stub.decide(turns(asyncio.Event(), calls(output_of(task_id))))
    await finished(world.client, await turn(world, session_id))
    (looked,) = world.told()
    assert looked.startswith(f"Task ID: {task_id}\nStatus: Failed: timed out\n\nError:\n")

    hanging = turns(asyncio.Event(), calls(execute("helper")))
    run = await world.run(hanging, [boss(), agent("helper", tools=[])], policy={"timeout_ms": 1000})
    assert run["status"] == "completed"
    assert world.told()[0].startswith("Error: the handoff to helper ended timed_out: ")
    await world.stub.client_left(2)


@pytest.mark.spec("3.2", "10.5")
@pytest.mark.seed("002", 61, 67)
async def test_an_operators_function_executes_a_subagent_and_its_text_error_text_or_exception_comes_back(
    world: World,
) -> None:
    wanted = [execute("counter", "abc"), execute("counter", ""), execute("counter", "fail")]
    agents: list[Any] = [boss(), "counter"]
    run = await world.run(once(*wanted), agents)
    assert run["status"] == "completed"
    counted, empty, failed = world.told()
    assert counted == "3 letters"
    assert empty == "Error: there is nothing to count."
    assert failed.startswith("Error: the handoff to counter ended failed: ")
    assert "the counter is broken" in failed
    assert world.of("You count.") == [], "no model was asked for it"
    events = await events_of(world.client, f"/v1/runs/{run['id']}/events")
    ends = [(e["type"], e["agent"]) for e in events if e["type"].startswith("run.") and e["depth"] == 1]
    assert ends.count(("run.completed", "counter")) == 2
    assert ends.count(("run.failed", "counter")) == 1


@pytest.mark.spec("3.2", "10.1", "10.3")
@pytest.mark.seed("002", 63, 64, 65, 66)
async def test_front_matter_of_any_kind_becomes_xml_in_the_description_and_names_are_unique(world: World) -> None:
    agents: list[Any] = [boss(), "code-reviewer"]
    await world.run(lambda _: text("done"), agents)
    said = world.shown()["execute_task"]["description"]
    assert (
        "<task_agent>\n"
        "  <name>code-reviewer</name>\n"
        "  <description>Use this agent after writing code, to review it for &lt;bugs&gt;.</description>\n"
        "  <role>Senior Developer &amp; reviewer</role>\n"
        '  <limits>{"files": 3, "languages": ["java", "go"]}</limits>\n'
        "</task_agent>"
    ) in said
    listed = await world.client.request("GET", "/v1/agents")
    (kept,) = [item for item in listed["items"] if item["name"] == "code-reviewer"]
    assert kept["metadata"]["role"] == "Senior Developer & reviewer"
    assert kept["source"]["path"].endswith("reviewer.md")
    reported = [item for item in listed["broken"] if item["path"].endswith("reviewer_again.md")]
    assert len(reported) == 1
    assert "code-reviewer" in reported[0]["message"]
    with pytest.raises(ServiceError) as twice:
        body = {"agent": "boss", "agents": [boss(), agent("helper"), agent("helper")]}
        await world.client.request("POST", "/v1/sessions", body)
    assert (twice.value.status, twice.value.problem["code"]) == (422, "duplicate_agent")


@pytest.mark.spec("2.1", "2.5")
@pytest.mark.seed("002", 59, 90)
async def test_a_child_gets_its_prompt_and_nothing_else_unless_its_definition_lets_it_read_along(world: World) -> None:
    agents = [boss(), agent("alone", tools=[]), agent("reader", tools=[], inherit_context="last:1")]
    await world.run(once(execute("alone"), execute("reader")), agents, input="A secret plan.")
    (alone,), (reader,) = world.of("You are alone."), world.of("You are reader.")
    assert [m["content"] for m in alone.messages] == ["You are alone.", "Work."]
    assert [m["role"] for m in reader.messages] == ["system", "user"]
    assert reader.messages[1]["content"].startswith("Work.\n\n")
    assert "A secret plan." in reader.messages[1]["content"]


@pytest.mark.spec("3.2", "3.5", "5.9")
@pytest.mark.seed("002", 81, 83, 89, 90, 92)
@pytest.mark.parametrize(
    ("language", "phrases", "waiting"),
    [
        (
            "en",
            (
                "<name>helper</name>",
                "a label of 3 to 5 words",
                "all that the subagent gets to read",
                "what not to do (research only, or writing as well)",
                "begins with `Error:`",
                "sees nothing of this conversation",
                "complete work order (goal, scope, output format, limits)",
                "independent delegations together in one turn",
            ),
            "default 30000, at most 600000",
        ),
        (
            "zh",
            (
                "<name>helper</name>",
                "3 到 5 个词的标签",
                "子代理唯一能看到的内容",
                "不要做什么（只调研还是也要写代码）",
                "以 `Error:` 开头",
                "看不到当前对话",
                "完整工单（目标、范围、输出格式、边界条件）",
                "相互独立的委派请在同一轮中一起发出",
            ),
            "默认 30000，最大 600000",
        ),
    ],
)
async def test_the_description_tells_the_model_how_to_delegate_in_its_language(
    world: World, language: str, phrases: tuple[str, ...], waiting: str
) -> None:
    await world.run(lambda _: text("done"), [boss(), agent("helper")], texts=language)
    shown = world.shown()
    said = shown["execute_task"]["description"]
    assert [phrase for phrase in phrases if phrase not in said] == []
    assert waiting in shown["get_task_output"]["description"]


@pytest.mark.spec("3.2", "4.5", "7.2")
@pytest.mark.seed("002", 97)
async def test_a_child_with_execute_task_delegates_in_turn_as_deep_as_the_policy_lets_it(world: World) -> None:
    def decide(request: Request) -> Answer:
        prompt = request.messages[0]["content"]
        results = [m["content"] for m in request.messages if m["role"] == "tool"]
        below = {"You are boss.": "middle", "You are middle.": "bottom"}.get(prompt)
        if below is None or results:
            return text(f"{prompt} {' '.join(results)}".strip())
        return calls(execute(below))

    agents = [boss(), agent("middle", tools=["execute_task"]), agent("bottom", tools=["execute_task", "glob"])]
    run = await world.run(decide, agents, policy={"max_depth": 2})
    assert run["output"] == "You are boss. You are middle. You are bottom."
    (bottom,) = world.of("You are bottom.")
    assert [tool["function"]["name"] for tool in bottom.body["tools"]] == ["glob"], "no endless recursion"
    events = await events_of(world.client, f"/v1/runs/{run['id']}/events")
    started = [(e["data"]["subagent"], e["data"]["depth"]) for e in events if e["type"] == "handoff.start"]
    assert started == [("middle", 1), ("bottom", 2)]


@pytest.mark.spec("4.6", "12.2", "12.4")
@pytest.mark.seed("002", 98)
async def test_arguments_definition_and_the_models_own_words_of_a_child_can_be_read_afterwards(world: World) -> None:
    raw = '{ "pattern":   "*" }'

    def decide(request: Request) -> Answer:
        results = [m["content"] for m in request.messages if m["role"] == "tool"]
        if request.messages[0]["content"] == "You are boss.":
            return text("done") if results else calls(execute("helper", "Look around."))
        if not results:
            return calls(("glob", raw))
        thought = chunk({"role": "assistant", "reasoning_content": "Nothing there."})
        return stream(thought, chunk({"content": "Empty."}), chunk({}, "stop"))

    run = await world.run(decide, [boss(), agent("helper", tools=["glob"], role="finder")])
    events = await events_of(world.client, f"/v1/runs/{run['id']}/events")
    call = next(e["data"] for e in events if e["type"] == "tool.call" and e["depth"] == 0)
    assert call["arguments"] == {"name": "helper", "description": "do some work", "prompt": "Look around."}
    session = await world.client.request("GET", f"/v1/sessions/{run['session_id']}")
    (definition,) = [item for item in session["agents"] if item["name"] == "helper"]
    assert (definition["tools"], definition["role"]) == (["glob"], "finder")
    rows = (await world.client.page("/v1/audit", agent="helper", order="oldest"))["items"]
    assert [row["role"] for row in rows] == ["system", "user", "assistant", "tool", "assistant"]
    assert rows[2]["tool_calls"][0]["arguments"] == raw, "as the model wrote them"
    assert (rows[4]["reasoning"], rows[4]["content"]) == ("Nothing there.", "Empty.")
    assert all(row["is_subagent"] and row["depth"] == 1 for row in rows)
