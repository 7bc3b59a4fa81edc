"""The surfaces `per_agent` and `dispatch` over HTTP: what the model is shown, how its calls become inputs, what it is
told."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.client import ServiceError
from tests.flows import surface_world
from tests.flows.surface_world import World, once
from tests.service import agent, events_of
from tests.stubs.openai_stub import Answer, Request, calls, text

pytestmark = pytest.mark.slow


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """One service and one model server."""
    async with surface_world.surface_world(tmp_path) as made:
        yield made


def boss(**fields: Any) -> dict[str, Any]:
    """The parent; it dispatches unless it says otherwise."""
    return surface_world.boss(**{"surfaces": ["dispatch"], **fields})


@pytest.mark.spec("3.1")
@pytest.mark.seed("000", 20, 21, 22, 24)
async def test_each_agent_is_a_function_tool_of_its_own_with_a_normalised_name(world: World) -> None:
    agents = [boss(surfaces=["per_agent"]), agent("Code Reviewer!"), agent("3d-artist"), agent("x", tool_name="ask_x")]
    await world.run(once(("subagent_code_reviewer", '{"task": "t"}')), agents)
    tools = world.of("You are boss.")[0].body["tools"]
    names = [tool["function"]["name"] for tool in tools]
    assert names == ["subagent_code_reviewer", "subagent_agent_3d_artist", "ask_x"]
    schema = tools[0]["function"]["parameters"]
    assert set(schema["properties"]) == {"task", "context"}
    assert schema["required"] == ["task"]


@pytest.mark.seed("000", 25, 26, 27, 28, 29)
@pytest.mark.spec("3.1")
@pytest.mark.parametrize(
    ("arguments", "task"),
    [
        ("", "(empty task)"),
        ('{"task": "Do it."}', "Do it."),
        ('{"input": "Do that."}', "Do that."),
        ('{"task": "Do it.", "context": "Be quick."}', "Do it.\n\nContext:\nBe quick."),
        ("just do it", "just do it"),
    ],
)
async def test_the_arguments_of_a_per_agent_tool_become_the_childs_input(
    world: World, arguments: str, task: str
) -> None:
    run = await world.run(once(("subagent_helper", arguments)), [boss(surfaces=["per_agent"]), agent("helper")])
    assert run["status"] == "completed"
    (child,) = world.of("You are helper.")
    assert [m["content"] for m in child.messages] == ["You are helper.", task]
    result = json.loads(world.told()[0])
    assert result["subagent"] == "helper"
    assert result["toolName"] == "subagent_helper"
    assert result["output"] == "Child text."
    assert result["steps"] == 1


@pytest.mark.spec("3.1")
async def test_json_without_a_task_is_an_error_result_that_names_it_and_starts_nobody(world: World) -> None:
    run = await world.run(once(("subagent_helper", '{"goal": "x"}')), [boss(surfaces=["per_agent"]), agent("helper")])
    assert run["status"] == "completed"
    assert world.of("You are helper.") == []
    assert "`task`" in world.told()[0]


@pytest.mark.spec("3.1")
async def test_an_input_schema_replaces_task_and_context_and_the_input_is_canonical_json(world: World) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}, "required": ["a"]}
    agents = [boss(surfaces=["per_agent"]), agent("helper", input_schema=schema)]
    await world.run(once(("subagent_helper", '{"b": 2,  "a": "x"}')), agents)
    assert world.of("You are boss.")[0].body["tools"][0]["function"]["parameters"]["properties"].keys() == {"a", "b"}
    (child,) = world.of("You are helper.")
    assert child.messages[1]["content"] == '{"a":"x","b":2}'
    run = await world.run(once(("subagent_helper", '{"b": 2}')), agents)
    assert run["status"] == "completed"
    assert "Invalid arguments" in world.told()[0]


@pytest.mark.seed("000", 23)
@pytest.mark.spec("3.1")
async def test_two_tools_of_one_name_and_a_name_that_leaves_nothing_are_refused_when_the_session_is_made(
    world: World,
) -> None:
    for agents, code in (
        ([boss(surfaces=["per_agent"]), agent("a b"), agent("a-b")], "duplicate_tool_name"),
        ([boss(surfaces=["per_agent"]), agent("小黄门")], "no_tool_name"),
    ):
        with pytest.raises(ServiceError) as refused:
            await world.client.request("POST", "/v1/sessions", {"agent": "boss", "agents": agents})
        assert refused.value.status == 422
        assert refused.value.problem["code"] == code
    with pytest.raises(ServiceError, match="duplicate subagent tool name"):
        agents = [boss(surfaces=["per_agent"]), agent("a b"), agent("a-b")]
        await world.client.request("POST", "/v1/runs", {"agent": "boss", "agents": agents, "input": "x"})


@pytest.mark.seed("000", 31, 32, 41)
@pytest.mark.seed("003", 101, 102, 104)
@pytest.mark.spec("3.3", "4.6")
async def test_dispatch_lists_the_types_and_keeps_the_purpose_from_the_child(world: World) -> None:
    arguments = {"agent_type": "helper", "task": "Work.", "purpose": "for the log", "subagent_name": "Helper A"}
    run = await world.run(once(("dispatch_subagent", json.dumps(arguments))), [boss(), agent("helper"), agent("other")])
    assert run["output"] == "told: Child text."
    function = world.of("You are boss.")[0].body["tools"][0]["function"]
    assert function["name"] == "dispatch_subagent"
    assert function["parameters"]["properties"]["agent_type"]["enum"] == ["helper", "other"]
    assert "- helper: The helper." in function["description"]
    assert "in one turn" in " ".join(function["description"].split())
    (child,) = world.of("You are helper.")
    assert "for the log" not in json.dumps(child.body)
    events = await events_of(world.client, f"/v1/runs/{run['id']}/events")
    start = next(e for e in events if e["type"] == "handoff.start")["data"]
    end = next(e for e in events if e["type"] == "handoff.end")["data"]
    assert start["purpose"] == "for the log"
    assert start["name"] == end["name"] == "Helper_A"
    for key in ("handoff_id", "call_id", "tool", "subagent", "depth", "session_mode"):
        assert start[key] == end[key]
    assert (end["status"], end["attempts"], end["output"]) == ("completed", 1, "Child text.")
    assert end["duration_ms"] >= 0


@pytest.mark.spec("3.3")
@pytest.mark.case("B046")
@pytest.mark.parametrize("name", ["Helper ", '"helper"', "['helper']", "HELPER"])
async def test_a_type_that_differs_by_case_quotes_or_brackets_alone_is_understood(world: World, name: str) -> None:
    arguments = json.dumps({"agent_type": name, "task": "Work."})
    await world.run(once(("dispatch_subagent", arguments)), [boss(), agent("helper")])
    assert world.told() == ["Child text."]


@pytest.mark.spec("3.3")
@pytest.mark.case("B046")
async def test_an_unknown_type_is_an_error_with_the_valid_names_and_never_a_default_agent(world: World) -> None:
    arguments = json.dumps({"agent_type": "nobody", "task": "Work."})
    run = await world.run(once(("dispatch_subagent", arguments)), [boss(), agent("helper")])
    assert run["status"] == "completed"
    assert "helper" in world.told()[0]
    assert world.of("You are helper.") == []


@pytest.mark.seed("000", 4, 6)
@pytest.mark.seed("003", 113)
@pytest.mark.spec("3.5")
async def test_results_stand_in_the_order_of_the_calls_whatever_finishes_first(world: World) -> None:
    order: list[str] = []

    def decide(request: Request) -> Answer:
        prompt = request.messages[0]["content"]
        results = [m["content"] for m in request.messages if m["role"] == "tool"]
        if prompt == "You are boss.":
            if results:
                return text("|".join(results))
            wanted = [{"agent_type": "slow", "task": "a"}, {"agent_type": "quick", "task": "b"}]
            return calls(*(("dispatch_subagent", json.dumps(w)) for w in wanted))
        if prompt == "You are slow." and len(results) < 6:
            return calls(("glob", json.dumps({"pattern": f"*{len(results)}"})))
        order.append(prompt)
        return text(prompt)

    agents = [boss(), agent("slow", tools=["glob"], max_steps=20), agent("quick", tools=[])]
    run = await world.run(decide, agents)
    assert run["output"] == "You are slow.|You are quick."
    assert order == ["You are quick.", "You are slow."]


@pytest.mark.seed("000", 5)
@pytest.mark.spec("3.5")
async def test_parallel_tool_calls_false_runs_the_calls_of_a_turn_one_by_one(world: World) -> None:
    wanted = [{"agent_type": "one", "task": "a"}, {"agent_type": "two", "task": "b"}]
    decide = once(*(("dispatch_subagent", json.dumps(w)) for w in wanted))
    agents = [boss(parallel_tool_calls=False), agent("one"), agent("two")]
    run = await world.run(decide, agents)
    events = await events_of(world.client, f"/v1/runs/{run['id']}/events")
    kinds = [e["type"] for e in events if e["type"].startswith("handoff.")]
    assert kinds == ["handoff.start", "handoff.end", "handoff.start", "handoff.end"]
    assert world.of("You are boss.")[0].body["parallel_tool_calls"] is False


@pytest.mark.spec("3.7")
async def test_a_delegation_tool_hides_an_ordinary_tool_of_its_name(world: World) -> None:
    agents = [boss(surfaces=["per_agent"], tools=["Agent", "glob"]), agent("helper", tool_name="glob")]
    await world.run(once(("glob", '{"task": "Work."}')), agents)
    tools = world.of("You are boss.")[0].body["tools"]
    assert [tool["function"]["name"] for tool in tools] == ["glob"]
    assert set(tools[0]["function"]["parameters"]["properties"]) == {"task", "context"}
    assert len(world.of("You are helper.")) == 1


@pytest.mark.seed("003", 119)
@pytest.mark.spec("7.2")
async def test_a_call_outside_the_registry_is_an_error_that_lists_the_tools_there_are(world: World) -> None:
    def decide(request: Request) -> Answer:
        results = [m["content"] for m in request.messages if m["role"] == "tool"]
        return text("ok") if results else calls(("write_file", '{"path": "x", "content": "y"}'))

    await world.run(decide, [agent("boss", mode="primary", tools=["read_file", "glob"])])
    assert "read_file, glob" in world.told()[0]
    assert not list(world.service.workspace.iterdir())


@pytest.mark.seed("000", 34, 45)
@pytest.mark.spec("4.1", "4.2", "4.5")
async def test_a_depth_limit_hides_the_tool_and_denies_a_call_that_comes_anyway(world: World) -> None:
    def decide(request: Request) -> Answer:
        results = [m["content"] for m in request.messages if m["role"] == "tool"]
        if results:
            return text("told: " + results[0])
        return calls(("dispatch_subagent", json.dumps({"agent_type": "helper", "task": "Work."})))

    agents = [boss(), agent("helper", tools=["Agent", "glob"])]
    run = await world.run(decide, agents)
    (first, *_) = world.of("You are helper.")
    assert [tool["function"]["name"] for tool in first.body["tools"]] == ["glob"]
    assert "handoff depth 2 exceeds max_depth 1" in run["output"]
    events = await events_of(world.client, f"/v1/runs/{run['id']}/events")
    denied = [e["data"] for e in events if e["type"] == "handoff.end" and e["data"]["status"] == "denied"]
    assert [(d["attempts"], d["depth"]) for d in denied] == [(0, 2)]


@pytest.mark.spec("4.1", "4.2")
@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"allowed_tools": []}, "tool is not in allowed_tools"),
        ({"denied_tools": ["dispatch_subagent(helper)"]}, "tool is in denied_tools"),
        ({"max_depth": 0}, "handoff depth 1 exceeds max_depth 0"),
    ],
)
async def test_a_denial_says_why_and_under_report_the_parent_goes_on(
    world: World, policy: dict[str, Any], reason: str
) -> None:
    arguments = json.dumps({"agent_type": "helper", "task": "Work."})
    run = await world.run(
        once(("dispatch_subagent", arguments)), [boss(), agent("helper"), agent("other")], policy=policy
    )
    assert run["status"] == "completed"
    assert reason in world.told()[0]
    assert world.of("You are helper.") == []


@pytest.mark.spec("4.1")
async def test_under_fail_the_turns_other_calls_get_results_and_the_parent_fails(world: World) -> None:
    def decide(request: Request) -> Answer:
        prompt = request.messages[0]["content"]
        if prompt == "You are boss.":
            return calls(("subagent_bad", '{"task": "a"}'), ("subagent_good", '{"task": "b"}'))
        if prompt == "You are bad.":
            return Answer(status=401, writes=(b'{"error": {"message": "no"}}',), content_type="application/json")
        return calls(("glob", '{"pattern": "*"}'))  # goes on for ever

    agents = [boss(surfaces=["per_agent"]), agent("bad"), agent("good", tools=["glob"], max_steps=200)]
    run = await world.run(decide, agents)
    assert run["status"] == "failed"
    assert run["error"]["code"] == "handoff_failed"
    events = await events_of(world.client, f"/v1/sessions/{run['session_id']}/events")
    results = [e["data"] for e in events if e["type"] == "tool.result" and e["depth"] == 0]
    assert len(results) == 2
    assert all(result["is_error"] for result in results)
    tree = await world.client.request("GET", f"/v1/sessions/{run['session_id']}/tree")
    assert {c["agent"]: c["status"] for c in tree["runs"][0]["children"]} == {"bad": "failed", "good": "cancelled"}
    assert events[-1]["type"] == "session.idle"


@pytest.mark.spec("4.1")
async def test_a_failed_child_is_reported_on_dispatch_and_the_parent_reacts(world: World) -> None:
    def decide(request: Request) -> Answer:
        results = [m["content"] for m in request.messages if m["role"] == "tool"]
        if request.messages[0]["content"] == "You are boss.":
            wanted = json.dumps({"agent_type": "bad", "task": "a"})
            return text(results[0]) if results else calls(("dispatch_subagent", wanted))
        return Answer(status=400, writes=(b'{"error": {"message": "quota used up"}}',), content_type="application/json")

    run = await world.run(decide, [boss(), agent("bad")])
    assert run["status"] == "completed"
    assert run["output"].startswith("Error: ")
    assert "quota used up" in run["output"]


@pytest.mark.spec("5.5")
async def test_at_max_steps_one_more_call_without_tools_gives_the_answer(world: World) -> None:
    def decide(request: Request) -> Answer:
        if request.body.get("tools"):
            return calls(("glob", '{"pattern": "*"}'))
        return text("What I have.")

    run = await world.run(decide, [agent("boss", mode="primary", tools=["glob"], temperature=0.9)], max_steps=3)
    assert (run["status"], run["stop_reason"], run["forced"], run["partial"]) == ("completed", "max_steps", True, True)
    assert run["output"] == "What I have."
    assert run["steps"] == 4
    last = world.stub.requests[-1].body
    assert "tools" not in last
    assert last["temperature"] == 0.2
    assert last["messages"][-1]["role"] == "user"


@pytest.mark.spec("5.5")
@pytest.mark.case("B049")
async def test_an_empty_forced_answer_becomes_a_digest_and_calls_in_it_are_dropped(world: World) -> None:
    (world.service.workspace / "found.txt").write_text("x")

    def decide(request: Request) -> Answer:
        return calls(("glob", '{"pattern": "*"}'))

    run = await world.run(decide, [agent("boss", mode="primary", tools=["glob"])], max_steps=2)
    assert run["status"] == "completed"
    assert "found.txt" in run["output"]
    assert run["steps"] == 3
    assert len(world.stub.requests) == 3


@pytest.mark.spec("7.2")
async def test_agent_with_names_limits_every_surface_of_the_session(world: World) -> None:
    for surface in (
        {"kind": "per_agent", "agents": ["a", "b"]},
        "per_agent",
        {"kind": "dispatch", "agents": ["a", "b"]},
    ):
        agents = [boss(tools=["Agent(a)"]), agent("a"), agent("b")]
        await world.run(lambda _: text("done"), agents, surfaces=[surface])
        shown = json.dumps(world.of("You are boss.")[0].body["tools"])
        assert "The a." in shown
        assert "The b." not in shown


@pytest.mark.spec("7.2")
async def test_an_agent_without_tools_gets_the_read_only_built_in_ones(world: World) -> None:
    await world.run(lambda _: text("done"), [agent("boss", mode="primary")])
    names = [tool["function"]["name"] for tool in world.stub.requests[0].body["tools"]]
    assert names == ["read_file", "glob", "grep", "read_artifact"]
