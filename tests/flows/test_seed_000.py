"""Seed 000 (AI4J) over HTTP, row by row: how a parent and its subagents talk, and how agents become tools.

What an agent keeps is the matter of `test_seed_000_definitions.py`, what governs a handoff that of
`test_seed_000_governance.py`. Rows that other flows prove are not repeated.
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.client import Client, ServiceError
from tests.flows.surface_world import World, boss, once, surface_world
from tests.flows.test_control import until
from tests.service import ROOT, agent, events_of, finished, script, serving
from tests.stubs.openai_stub import Answer, OpenAIStub, Request, call_chunk, calls, chunk, stream, text

BOSS, HELPER = "You are boss.", "You are helper."
KEY = "key-that-only-providers-may-see"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """One service and one model server."""
    async with surface_world(tmp_path) as made:
        yield made


@contextlib.asynccontextmanager
async def own_world(folder: Path, *args: str, **env: str) -> AsyncIterator[World]:
    """A service with options and modules of its operator, which lie in `folder`."""
    async with OpenAIStub() as stub:
        base = {"OPENAI_BASE_URL": stub.base_url, "OPENAI_API_KEY": KEY, "SUBAGENTD_MODEL": "openai:test"}
        env = {**base, "PYTHONPATH": f"{ROOT}:{folder}", **env}
        async with serving(folder, *args, env=env) as service, service.client() as client:
            yield World(service, client, stub)


def leader(**fields: Any) -> dict[str, Any]:
    """The parent, which has one tool for each agent unless it says otherwise."""
    return boss(**{"surfaces": ["per_agent"], **fields})


def prompt_of(request: Request) -> str:
    """Who asks."""
    return str(request.messages[0]["content"])


def results_in(request: Request) -> list[str]:
    """The tool results that the asking agent has."""
    return [m["content"] for m in request.messages if m["role"] == "tool"]


def tools_in(request: Request) -> list[str]:
    """The tools that the asking agent is shown."""
    return [tool["function"]["name"] for tool in request.body.get("tools", [])]


def history_of(request: Request) -> list[str]:
    """What the asking agent has read and said, its prompt left out."""
    return [m["content"] for m in request.messages[1:]]


def together(count: int) -> Callable[[Answer], Answer]:
    """Holds answers back until this many are there: none is given unless all of them are asked for side by side."""
    gate, waiting = asyncio.Event(), Counter[str]()

    def held(answer: Answer) -> Answer:
        waiting["all"] += 1
        if waiting["all"] == count:
            gate.set()
        return replace(answer, writes=(gate, *answer.writes))

    return held


async def handoffs_of(client: Client, run: dict[str, Any], kind: str = "handoff.start") -> list[dict[str, Any]]:
    """What the handoff events of a run and its descendants say."""
    events = await events_of(client, f"/v1/runs/{run['id']}/events", types=kind)
    return [event["data"] for event in events]


async def children_of(client: Client, run: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs that a run started."""
    tree = await client.request("GET", f"/v1/sessions/{run['session_id']}/tree")
    children: list[dict[str, Any]] = next(r for r in tree["runs"] if r["id"] == run["id"])["children"]
    return children


# ── communication and depth (0) ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("2.1", "2.2", "3.1", "14.3")
@pytest.mark.seed("000", 1, 2, 3)
async def test_a_delegation_is_one_call_and_one_result_and_nothing_passes_in_between(world: World) -> None:
    gate = asyncio.Event()

    def decide(request: Request) -> Answer:
        if prompt_of(request) == BOSS:
            return text("Done.") if results_in(request) else calls(("subagent_helper", '{"task": "Look."}'))
        if results_in(request):
            return replace(text("The outcome."), writes=(gate, *text("The outcome.").writes))
        aside = {"role": "assistant", "reasoning_content": "private thought", "content": "An aside."}
        look = call_chunk(0, id="look", type="function", name="glob", arguments='{"pattern": "*"}')
        return stream(chunk(aside), look, chunk({}, "tool_calls"))

    world.stub.decide(decide)
    body = {"agent": "boss", "agents": [leader(), agent("helper", tools=["glob"])], "input": "Go."}
    started = await world.client.request("POST", "/v1/runs", body)
    await until(world.client, f"/v1/runs/{started['id']}/events", "run.waiting")
    parent = await world.client.request("GET", f"/v1/runs/{started['id']}")
    assert (parent["status"], parent["wait_reason"]) == ("waiting", "child")
    with pytest.raises(ServiceError) as busy:
        await world.client.request("POST", f"/v1/sessions/{started['session_id']}/runs", {"input": "Hurry up."})
    assert busy.value.status == 409
    await world.stub.seen(3)
    gate.set()
    run = await finished(world.client, started["id"])

    assert (run["status"], run["output"]) == ("completed", "Done.")
    assert [prompt_of(request) for request in world.stub.requests] == [BOSS, HELPER, HELPER, BOSS]
    first, second = world.of(HELPER)
    assert second.messages[:2] == first.messages, "nobody said anything to the child while it worked"
    assert [m["role"] for m in second.messages[2:]] == ["assistant", "tool"], "but itself and its tool"
    asked, told = world.of(BOSS)
    assert [m["role"] for m in told.messages] == ["system", "user", "assistant", "tool"]
    assert [c["id"] for c in told.messages[2]["tool_calls"]] == [told.messages[3]["tool_call_id"]]
    assert json.loads(told.messages[3]["content"])["output"] == "The outcome."
    for request in (asked, told):
        assert not any(word in request.raw.decode() for word in ("private thought", "An aside.", "glob"))


@pytest.mark.spec("4.2", "4.5", "4.6")
@pytest.mark.seed("000", 8, 9, 34, 48)
async def test_children_have_children_and_the_depth_is_right_while_all_of_a_level_work_side_by_side(
    world: World,
) -> None:
    chiefs, workers = together(2), together(4)

    def decide(request: Request) -> Answer:
        prompt, results = prompt_of(request), results_in(request)
        if results:
            return text("|".join(results))
        wanted = {BOSS: "chief", "You are chief.": "worker"}.get(prompt)
        if wanted is None:  # a worker tries to delegate although it is shown nothing to do that with
            return workers(calls(("dispatch_subagent", '{"agent_type": "worker", "task": "Deeper."}')))
        orders = [json.dumps({"agent_type": wanted, "task": f"Part {number}."}) for number in (1, 2)]
        answer = calls(*(("dispatch_subagent", order) for order in orders))
        return answer if prompt == BOSS else chiefs(answer)

    agents = [leader(surfaces=["dispatch"]), agent("chief", tools=["Agent"]), agent("worker", tools=["Agent", "glob"])]
    run = await world.run(decide, agents, policy={"max_depth": 2})
    assert run["status"] == "completed"
    assert run["output"].count("handoff depth 3 exceeds max_depth 2") == 4
    ends = await handoffs_of(world.client, run, "handoff.end")
    assert Counter((end["subagent"], end["depth"], end["status"]) for end in ends) == {
        ("chief", 1, "completed"): 2,
        ("worker", 2, "completed"): 4,
        ("worker", 3, "denied"): 4,
    }
    for chief in await children_of(world.client, run):
        assert (chief["depth"], chief["parent_run_id"]) == (1, run["id"])
        assert [(w["agent"], w["depth"], w["parent_run_id"]) for w in chief["children"]] == [
            ("worker", 2, chief["id"]),
            ("worker", 2, chief["id"]),
        ]
        assert [w["children"] for w in chief["children"]] == [[], []]
    assert {tuple(tools_in(request)) for request in world.of("You are worker.")} == {("glob",)}


# ── a tool surface first (1, 2, 3, 12) ──────────────────────────────────────────────────────────────────────────

OWN_TOOLS = '''
from pathlib import Path

from app.tools.function import tool


@tool
def lookup(task: str) -> str:
    """Look something up."""
    Path("looked-up.txt").write_text(task)
    return "the ordinary lookup"


@tool
def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right
'''


@pytest.mark.spec("3.7", "4.2", "4.5", "7.8")
@pytest.mark.seed("000", 10, 11, 12, 30)
async def test_delegation_tools_stand_among_the_ordinary_ones_and_calls_are_told_apart_by_name(tmp_path: Path) -> None:
    (tmp_path / "own_tools_of_000.py").write_text(OWN_TOOLS)
    functions = '["own_tools_of_000:lookup", "own_tools_of_000:add"]'
    agents = [leader(tools=["Agent", "lookup", "add"]), agent("helper", tool_name="lookup", tools=[])]
    decide = once(("lookup", '{"task": "Work."}'), ("add", '{"left": 2, "right": 3}'))
    looked_up = tmp_path / "looked-up.txt"
    async with own_world(tmp_path, SUBAGENTD_TOOLS__FUNCTIONS=functions) as world:
        run = await world.run(decide, agents)
        shown = world.shown()
        assert list(shown) == ["lookup", "add"]
        assert set(shown["lookup"]["parameters"]["properties"]) == {"task", "context"}
        assert set(shown["add"]["parameters"]["properties"]) == {"left", "right"}
        delegated, added = world.told()
        assert (json.loads(delegated)["subagent"], json.loads(delegated)["output"]) == ("helper", "Child text.")
        assert added == "5"
        assert [start["tool"] for start in await handoffs_of(world.client, run)] == ["lookup"]
        called = [e["data"] for e in await events_of(world.client, f"/v1/runs/{run['id']}/events", types="tool.call")]
        assert called[1]["arguments"] == {"left": 2, "right": 3}

        # What is exposed does not depend on how it is governed; what happens when it is called does.
        await world.run(decide, agents, policy={"input_filter": {"inject": {"ticket": 7}}, "max_retries": 2})
        assert world.shown() == shown
        assert history_of(world.of(HELPER)[0]) == ["Work.\n\nContext:\nticket: 7"]

        # Spec 4.5: the model is not even shown what it may not call. A call that comes anyway is the executor's matter.
        await world.run(decide, agents, policy={"denied_tools": ["lookup"], "on_denied": "report"})
        assert list(world.shown()) == ["add"]
        assert "tool is in denied_tools" in world.told()[0]
        assert world.told()[1] == "5"
        assert world.of(HELPER) == []
        assert not looked_up.exists(), "the ordinary tool never learned of any of these calls"

        await world.run(decide, [leader(tools=["lookup", "add"]), *agents[1:]], surfaces=[])
        assert world.told()[0] == "the ordinary lookup"
        assert looked_up.read_text() == "Work."


@pytest.mark.spec("3.1", "3.2", "3.3", "3.4", "11.6", "14.15")
@pytest.mark.seed("000", 14)
async def test_there_are_no_teams_only_delegation_from_a_parent_to_a_child(world: World) -> None:
    surfaces = ["per_agent", "task", "dispatch", "subagent"]
    agents = [boss(), agent("helper", tools=["glob"])]
    await world.run(once(("subagent_helper", "Work.")), agents, surfaces=surfaces, default_subagent="helper")
    companions = {"get_task_output", "cancel_task", "list_tasks"}
    assert set(world.shown()) == {"subagent_helper", "execute_task", "dispatch_subagent", "subagent"} | companions
    assert tools_in(world.of(HELPER)[0]) == ["glob"], "a child has no way to talk to anybody but by its result"
    paths = (await world.client.request("GET", "/openapi.json"))["paths"]
    names = [tool["name"] for tool in (await world.client.page("/v1/tools", limit=500))["items"]]
    types = json.dumps(await world.client.request("GET", "/v1/events/schema")).casefold()
    assert paths
    assert names
    for word in ("team", "board", "mailbox", "broadcast"):
        assert not any(word in known.casefold() for known in [*paths, *names])
        assert word not in types
    with pytest.raises(ServiceError) as unknown:
        await world.client.request("POST", "/v1/teams", {})
    assert unknown.value.status == 404


@pytest.mark.spec("10.4", "14.1")
@pytest.mark.seed("000", 15)
async def test_one_more_entry_in_the_list_of_agents_attaches_a_subagent(world: World) -> None:
    ask_scout = once(("subagent_scout", '{"task": "Look."}'))
    alone = await world.run(ask_scout, [leader()])
    assert world.shown() == {}
    assert "There is no tool 'subagent_scout' here" in alone["output"]
    agents: list[Any] = [leader(), "scout"]
    run = await world.run(ask_scout, agents)
    assert list(world.shown()) == ["subagent_scout"]
    assert json.loads(world.told()[0])["output"] == "Child text."
    (child,) = await children_of(world.client, run)
    assert (child["agent"], child["status"]) == ("scout", "completed")


FILE = """---
name: {name}
description: The {name} of a file.
mode: {mode}
tools: {tools}
---
You are {name}{more}.
"""


@pytest.mark.spec("10.3", "14.1")
@pytest.mark.seed("000", 16)
async def test_what_a_session_brings_itself_wins_over_what_lies_in_files(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    for name, mode, tools, more in (("boss", "primary", "Agent", ""), ("helper", "subagent", "[]", " of a file")):
        page = FILE.format(name=name, mode=mode, tools=tools, more=more)
        (tmp_path / "agents" / f"{name}.md").write_text(page)
    async with own_world(tmp_path, "--agents", str(tmp_path / "agents")) as world:
        world.stub.decide(once(("subagent_helper", '{"task": "Work."}')))
        for agents, prompt, others in (
            (None, "You are helper of a file.", True),
            (["helper"], "You are helper of a file.", False),
            ([agent("helper", tools=[])], HELPER, False),
        ):
            world.stub.requests.clear()
            body = {"agent": "boss", "input": "Go.", "surfaces": ["per_agent"], "agents": agents}
            run = await world.client.request("POST", "/v1/runs", body)
            assert (await finished(world.client, run["id"]))["status"] == "completed"
            assert prompt_of(world.stub.requests[1]) == prompt
            assert ("subagent_scout" in world.shown()) is others, "an explicit list is the whole list"
            assert "subagent_helper" in world.shown()


PAGE = """
agents:
  - when: {system_contains: "You manage"}
    turns:
      - {calls: [{tool: delegate_worker, arguments: {task: analyze}}]}
      - {text: "{{ result[0] }}"}
  - when: {system_contains: "You review"}
    turns: [{text: "Two risks in: {{ task }}"}]
"""


@pytest.mark.spec("3.1", "4.1", "13.1")
@pytest.mark.seed("000", 17)
async def test_the_examples_of_the_page_run_with_a_scripted_model_and_without_a_network(tmp_path: Path) -> None:
    reviewer = agent("code-reviewer", prompt="You review.", tool_name="delegate_worker", tools=[])
    manager = agent("manager", prompt="You manage.", mode="primary", tools=["Agent", "glob"], surfaces=["per_agent"])
    body = {"agent": "manager", "agents": [manager, reviewer], "input": "analyze"}
    hardened = {"allowed_tools": ["delegate_worker"], "max_depth": 1, "max_retries": 1}
    closed = {"allowed_tools": ["delegate_other"]}
    async with serving(tmp_path, env=script(tmp_path, PAGE)) as service, service.client() as client:
        runs = []
        for policy in (None, hardened, closed, {**closed, "on_denied": "fallback_to_primary"}):
            started = await client.request("POST", "/v1/runs", {**body, "policy": policy})
            runs.append(await finished(client, started["id"]))
    minimal, tightened, refused, handed_back = runs
    for run in (minimal, tightened):
        assert run["status"] == "completed"
        assert json.loads(run["output"])["output"] == "Two risks in: analyze"
    assert (refused["status"], refused["error"]["code"]) == ("failed", "handoff_denied")
    assert "tool is not in allowed_tools" in refused["error"]["message"]
    assert handed_back["status"] == "completed"
    assert handed_back["output"].startswith("handoff unavailable")
