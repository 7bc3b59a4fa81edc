"""Seed 004 (AstroResearch) over HTTP: the tool `subagent`, how its run begins, what it streams and what it costs the
parent. What is inside of its loop is in `test_seed_004_loop.py`."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.agent.texts import LANGUAGES
from tests.flows import surface_world
from tests.flows.surface_world import World, once
from tests.service import ROOT, WAIT_S, agent, events_of, serving
from tests.stubs.openai_stub import Answer, OpenAIStub, Request, call_chunk, calls, chunk, stream, text

# A model that can be told to think or not.
SETTINGS = """
[models.profiles.deep]
provider = "openai"
model = "deep-1"
base_url = "{url}"
thinking_style = "enable_thinking"
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """One service and one model server."""
    async with surface_world.surface_world(tmp_path) as made:
        yield made


def boss(**fields: Any) -> dict[str, Any]:
    """The parent; it has the tool `subagent`, unless it says otherwise."""
    return surface_world.boss(**{"surfaces": ["subagent"], **fields})


def research(prompt: str = "Look.", **fields: Any) -> tuple[str, str]:
    """A call of `subagent`."""
    return "subagent", json.dumps({"research_prompt": prompt, **fields})


def results(request: Request) -> list[str]:
    """The tool results in a history."""
    return [m["content"] for m in request.messages if m["role"] == "tool"]


def glob_for(number: int) -> Answer:
    """A turn with one call, another one for each number."""
    return calls(("glob", json.dumps({"pattern": f"*.{number % 10}"})))


def searching(wanted: list[tuple[str, str]], steps: int | None = None) -> Callable[[Request], Answer]:
    """The parent makes the calls; a child searches for that many steps, or for as long as it is shown tools."""

    def decide(request: Request) -> Answer:
        told = results(request)
        if request.messages[0]["content"] == "You are boss.":
            return text("done") if told else calls(*wanted)
        more = request.body.get("tools") if steps is None else len(told) < steps
        return glob_for(len(told)) if more else text("Found.")

    return decide


async def children_of(world: World, run: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs directly below a run."""
    tree = await world.client.request("GET", f"/v1/sessions/{run['session_id']}/tree")
    children: list[dict[str, Any]] = tree["runs"][0]["children"]
    return children


@pytest.mark.spec("3.4", "5.1", "5.5")
@pytest.mark.seed("004", 122, 131, 141, 153, 154, 155, 178)
@pytest.mark.parametrize("language", ["zh", "en"])
async def test_a_child_searches_five_steps_at_most_ten_and_then_has_to_answer_without_tools(
    world: World, language: str
) -> None:
    said = LANGUAGES[language]
    wanted = [research("five"), research("ten", max_steps=99), research("none", max_steps=0), ("subagent", "{}")]
    run = await world.run(searching(wanted), [boss(), agent("finder", tools=["glob"])], texts=language)
    limits = {child["input"]: (child["max_steps"], child["steps"]) for child in await children_of(world, run)}
    assert limits == {"five": (5, 6), "ten": (10, 11)}
    for task, most in (("five", 5), ("ten", 10)):
        asked = [r for r in world.of("You are finder.") if r.messages[1]["content"] == task]
        assert ["tools" in request.body for request in asked] == [True] * most + [False]
        assert asked[-1].messages[-1] == {"role": "user", "content": said.forced_answer}
        assert asked[-1].body["temperature"] == 0.2
    assert all(child["forced"] and child["stop_reason"] == "max_steps" for child in await children_of(world, run))
    told = world.told()
    assert all(result.startswith(said.heading) and "Found." in result for result in told[:2])
    assert told[2].startswith(f"{said.subagent_failed}max_steps is 0")
    assert "research_prompt" in told[3]
    parameters = world.shown()["subagent"]["parameters"]
    assert parameters["required"] == ["research_prompt"]
    assert parameters["properties"]["max_steps"]["default"] == 5


@pytest.mark.spec("5.7", "7.4")
@pytest.mark.seed("004", 123)
async def test_a_cancelled_parent_ends_its_child_first_and_waits_for_it(world: World) -> None:
    def decide(request: Request) -> Answer:
        if request.messages[0]["content"] == "You are boss.":
            return calls(research())
        return replace(text("Never said."), writes=(asyncio.Event(),))

    world.stub.decide(decide)
    body = {"agent": "boss", "agents": [boss(), agent("finder", tools=[])], "input": "Go."}
    run = await world.client.request("POST", "/v1/runs", body)
    await world.stub.seen(2)
    cancelled = await world.client.request("POST", f"/v1/runs/{run['id']}/cancel")
    await world.stub.client_left(1)
    assert (cancelled["status"], len(cancelled["cancelled"])) == ("cancelled", 2)
    events = await events_of(world.client, f"/v1/runs/{run['id']}/events")
    ends = ("run.cancelled", "handoff.end", "tool.result")
    order = [(e["type"], e["depth"]) for e in events if e["type"] in ends]
    assert order == [("run.cancelled", 1), ("handoff.end", 0), ("tool.result", 0), ("run.cancelled", 0)]


@pytest.mark.spec("3.6", "7.2", "14.9")
@pytest.mark.seed("004", 124, 125)
async def test_a_child_is_set_up_from_its_parent_plainly_with_every_option_or_with_tools_of_its_own(
    world: World,
) -> None:
    finder = agent("finder")
    run = await world.run(once(research()), [boss(tools=["Agent", "glob"]), finder])
    (child,) = await children_of(world, run)
    assert child["tools"] == ["glob"], "the tools of its parent, without delegation"
    assert child["session_id"] == run["session_id"]
    events = await events_of(world.client, f"/v1/sessions/{run['session_id']}/events")
    seen = {e["type"] for e in events if e.get("run_id") == child["id"]}
    assert {"run.started", "step.started", "message", "run.completed"} <= seen, "its progress, on its parent's stream"

    async def tools_of(**fields: Any) -> dict[str, Any]:
        result = await world.client.request("POST", "/v1/delegations", {"agent": finder, "task": "Look.", **fields})
        alone: dict[str, Any] = await world.client.request("GET", f"/v1/runs/{result['run_id']}")
        return alone

    plain = await tools_of()
    assert (plain["tools"], plain["max_steps"]) == (["read_file", "glob", "grep", "read_artifact"], 5)
    own = await tools_of(tools=["grep"])
    assert own["tools"] == ["grep"]
    options = {"name": "Scout", "context": "Be quick.", "max_steps": 7, "timeout_ms": 60_000, "thinking": "on"}
    full = await tools_of(session_id=run["session_id"], policy={"max_retries": 1}, **options)
    assert (full["name"], full["max_steps"], full["session_id"]) == ("Scout", 7, run["session_id"])
    assert full["input"] == "Look.\n\nContext:\nBe quick."


@pytest.mark.spec("5.9")
@pytest.mark.seed("004", 126)
async def test_the_parents_switch_for_thinking_goes_to_the_child(tmp_path: Path) -> None:
    switches: dict[str | None, bool | None] = {"on": True, "off": False, None: None}
    async with OpenAIStub() as stub:
        (tmp_path / "subagentd.toml").write_text(SETTINGS.format(url=stub.base_url))
        async with serving(tmp_path, env={"SUBAGENTD_MODEL": "deep"}) as service, service.client() as client:
            world = World(service, client, stub)
            for switch, told in switches.items():
                run = await world.run(once(research()), [boss(), agent("finder", tools=[])], thinking=switch)
                assert run["status"] == "completed", run
                for prompt in ("You are boss.", "You are finder."):
                    asked = [request.body.get("enable_thinking") for request in world.of(prompt)]
                    assert set(asked) == {told}, (switch, prompt)


@pytest.mark.spec("2.1", "2.4", "6.6", "12.2")
@pytest.mark.seed("004", 127, 128, 129, 179)
async def test_a_child_is_named_then_started_then_its_first_two_messages_are_kept(world: World) -> None:
    run = await world.run(once(research(), research(name="星系 finder")), [boss(), agent("finder", tools=[])])
    events = await events_of(world.client, f"/v1/sessions/{run['session_id']}/events")
    starts = [e for e in events if e["type"] == "handoff.start"]
    names = [e["data"]["name"] for e in starts]
    assert re.fullmatch("sub_[0-9a-f]{8}", names[0])
    assert names[1] == "星系_finder"
    assert [child["name"] for child in await children_of(world, run)] == names
    for child, start in zip(await children_of(world, run), starts, strict=True):
        of_child = [e for e in events if e.get("run_id") == child["id"]]
        order = ["run.queued", "run.started", "subagent.start", "message", "message", "step.started"]
        assert [e["type"] for e in of_child[:6]] == order
        assert start["id"] < of_child[0]["id"], "the name was given before anything was begun"
        began = of_child[2]["data"]
        assert (began["agent"], began["name"], began["prompt"]) == ("finder", child["name"], "Look.")
        assert [e["data"]["role"] for e in of_child[3:5]] == ["system", "user"]
        rows = (await world.client.page(f"/v1/runs/{child['id']}/messages"))["items"]
        assert [(row["role"], row["content"]) for row in rows[:2]] == [("system", "You are finder."), ("user", "Look.")]
        assert {(row["name"], row["is_subagent"], row["turn"]) for row in rows} == {(child["name"], True, 0)}
    assert all(len(request.messages) == 2 for request in world.of("You are finder."))


@pytest.mark.spec("11.6")
@pytest.mark.seed("004", 132)
async def test_reasoning_text_and_calls_of_a_child_are_streamed_while_they_come(world: World) -> None:
    watched = asyncio.Event()

    def decide(request: Request) -> Answer:
        told = results(request)
        if request.messages[0]["content"] == "You are boss.":
            return text("done") if told else calls(research())
        if told:
            return text("Three text pieces.", pieces=3)
        thinking = stream(
            chunk({"role": "assistant", "reasoning_content": "First I "}),
            chunk({"reasoning_content": "look."}),
            call_chunk(0, id="call_0", type="function", name="glob", arguments='{"pattern"'),
            call_chunk(0, arguments=': "*"}'),
            chunk({}, "tool_calls"),
        )
        return replace(thinking, writes=(watched, *thinking.writes))

    world.stub.decide(decide)
    body = {"agent": "boss", "agents": [boss(), agent("finder", tools=["glob"])], "input": "Go."}
    run = await world.client.request("POST", "/v1/runs", body)
    deltas: dict[str, str] = {}
    calls_of_child: list[Any] = []
    async with asyncio.timeout(WAIT_S):
        async for frame in world.client.events(f"/v1/runs/{run['id']}/events"):
            if frame.type == "step.started" and frame.data["depth"] == 1:
                watched.set()
            if frame.type.endswith(".delta") and frame.data["run"] == 2:
                assert frame.data["at"] == len(deltas.get(f"{frame.type} {frame.data['step']}", ""))
                key = f"{frame.type} {frame.data['step']}"
                deltas[key] = deltas.get(key, "") + frame.data["text"]
            if frame.type == "tool.call" and frame.data["depth"] == 1:
                calls_of_child.append(frame.data["data"]["arguments"])
    assert deltas == {
        "reasoning.delta 1": "First I look.",
        "tool.arguments.delta 1": '{"pattern": "*"}',
        "text.delta 2": "Three text pieces.",
    }
    assert calls_of_child == [{"pattern": "*"}], "and the calls as a whole, once they are complete"


@pytest.mark.spec("11.7")
@pytest.mark.seed("004", 133)
async def test_people_see_labels_for_a_childs_work_and_the_wire_carries_none(world: World, tmp_path: Path) -> None:
    world.stub.decide(searching([research()], steps=1))
    for definition in (boss(tools=["Agent(finder)"]), agent("finder", tools=["glob"])):
        fields = {key: value for key, value in definition.items() if key != "name"}
        await world.client.request("PUT", f"/v1/agents/{definition['name']}", fields)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app", "run", "boss", "Go.", "--url", world.service.url,
        stdout=asyncio.subprocess.PIPE, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"},
    )  # fmt: skip
    async with asyncio.timeout(WAIT_S):
        out, _ = await process.communicate()
    assert process.returncode == 0
    shown = out.decode()
    assert "[子代理] finder" in shown
    assert "[sub] glob" in shown
    assert "[sub] subagent" not in shown, "that is the parent's own call"
    (session,) = (await world.client.page("/v1/sessions"))["items"]
    wire = json.dumps(
        await events_of(world.client, f"/v1/sessions/{session['id']}/events", depth=1), ensure_ascii=False
    )
    assert "glob" in wire
    assert "[sub]" not in wire
    assert "[子代理]" not in wire


@pytest.mark.spec("2.2")
@pytest.mark.seed("004", 143)
async def test_the_parents_context_costs_the_same_after_one_and_after_nine_steps_below(world: World) -> None:
    sizes: list[int] = []
    told: set[str] = set()
    for steps in (1, 9):
        decide = searching([research(max_steps=10)], steps)
        run = await world.run(decide, [boss(), agent("finder", tools=["glob"])])
        assert run["status"] == "completed"
        assert len(world.of("You are finder.")) == steps + 1
        sizes.append(len(world.of("You are boss.")[-1].raw))
        told.add(re.sub(r"\d+", "N", world.told()[0]))
    assert len(told) == 1, "the record of activity differs in its numbers only"
    assert abs(sizes[0] - sizes[1]) <= 8, "a few digits of milliseconds, nowhere near a step"
