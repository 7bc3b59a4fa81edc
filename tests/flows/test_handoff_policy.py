"""The handoff policy over HTTP: retries, fallbacks, filters, timeouts, and what an operator's own code adds to them."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.client import Client, ServiceError
from tests.processes import alive, linux, numbers_in
from tests.service import ROOT, WAIT_S, agent, events_of, finished, script, serving

pytestmark = pytest.mark.slow

TOKEN = "sk-the-token-of-the-operator"
OWN = '''
"""Own tools, filters and runners of an operator."""

import dataclasses
import pathlib
import subprocess

HERE = pathlib.Path(__file__).parent


def sleeper() -> str:
    """Sleep for long."""
    subprocess.run("echo $$ >> pids; sleep 1000 & echo $! >> pids; wait", shell=True, cwd=HERE)
    return "slept"


def subagent_helper(task: str, context: str = "") -> str:
    """Do a task by hand.

    Args:
        task: What to do.
        context: What else there is.
    """
    return f"by hand: {task}"


def shout(given):
    return dataclasses.replace(given, task=given.task.upper())


def broken(given):
    raise LookupError("no such row")


async def flaky(task, context):
    tried = HERE / "tried"
    tried.write_text((tried.read_text() if tried.exists() else "") + context.run_id + "\\n")
    if len(tried.read_text().split()) < 3:
        raise ConnectionError("the engine is not up yet")
    return f"the engine did: {task}"
'''
PLAY = """
agents:
  - when: {system_contains: "You are boss", task_contains: "sleep"}
    turns:
      - {calls: [{tool: dispatch_subagent, arguments: {agent_type: helper, task: sleep now}}]}
      - {text: "told: {{ result[0] }}"}
  - when: {system_contains: "You are boss", task_contains: "other"}
    turns:
      - {calls: [{tool: subagent_other, arguments: {task: the work}}]}
      - {text: "told: {{ result[0] }}"}
  - when: {system_contains: "You are boss"}
    turns:
      - {calls: [{tool: subagent_helper, arguments: {task: the work}}]}
      - {text: "told: {{ result[0] }}"}
  - when: {system_contains: "You are helper", task_contains: "sleep now"}
    turns: [{calls: [{tool: sleeper}]}, {text: never}]
  - when: {system_contains: "You are helper", task_contains: "fine"}
    turns: [{text: "{{ task }}"}]
  - when: {system_contains: "You are helper", task_contains: "flaky"}
    turns: [{text: "at last", error: {message: busy, retryable: true}, times: 2}]
  - when: {system_contains: "You are helper"}
    turns: [{error: {code: quota, message: no quota left}}]
  - when: {system_contains: "You are first"}
    turns: [{error: {code: quota, message: no quota left}}]
  - when: {system_contains: "You are other"}
    turns: [{text: "other did {{ task }}"}]
"""


TRUSTED = {"SUBAGENTD_TRUSTED_AGENTS": "true"}  # files that name code of the operator


def operated(folder: Path, *tools: str) -> dict[str, str]:
    """The environment of a service whose operator has a module of own things, and a script."""
    (folder / "own_things.py").write_text(OWN)
    functions = json.dumps([f"own_things:{name}" for name in tools])
    found = {"PYTHONPATH": f"{ROOT}:{folder}", "SUBAGENTD_TOOLS__FUNCTIONS": functions}
    # attempts of a handoff are counted here, not tries of a step
    return {**script(folder, PLAY), **found, "OPERATOR_TOKEN": TOKEN, "SUBAGENTD_LOOP__RETRIES": "0", **TRUSTED}


def definition(folder: Path, name: str, *lines: str) -> str:
    """A definition in a file of the operator; returns its directory."""
    agents = folder / "agents"
    agents.mkdir(exist_ok=True)
    front = "\n".join([f"name: {name}", f"description: The {name}.", *lines])
    (agents / f"{name}.md").write_text(f"---\n{front}\n---\nYou are {name}.")
    return str(agents)


async def run_of(client: Client, said: str = "go", **fields: Any) -> dict[str, Any]:
    """A finished run of `boss`, who may delegate to `helper` and `other`, with its session."""
    agents = [BOSS, *fields.pop("agents", [agent("helper", tools=[]), OTHER])]
    body = {"agent": "boss", "agents": agents, "surfaces": ["per_agent"], "input": said, **fields}
    return await finished(client, (await client.request("POST", "/v1/runs", body))["id"])


# with a tool besides: without any, the scripted model asks for none
BOSS = agent("boss", mode="primary", tools=["Agent", "read_file"])
OTHER = agent("other", tools=[])


async def handoff_of(client: Client, run: Mapping[str, Any]) -> dict[str, Any]:
    """What the only `handoff.end` of a run's session says; the tree and the delegation must say the same."""
    (end,) = await events_of(client, f"/v1/sessions/{run['session_id']}/events", types="handoff.end")
    data: dict[str, Any] = end["data"]
    seen = await client.request("GET", f"/v1/delegations/{data['handoff_id']}")
    tree = await client.request("GET", f"/v1/sessions/{run['session_id']}/tree")
    (node,) = tree["runs"][0]["handoffs"]
    for view in (seen, node):
        assert view["status"] == data["status"]
        assert view["attempts"] == data["attempts"]
        assert view["fallback"] == data.get("fallback")
    return data


# ── attempts ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("4.6", "4.7", "14.4", "14.9")
@pytest.mark.seed("000", 39, 41)
async def test_retries_are_runs_under_one_handoff_in_events_tree_and_delegation(tmp_path: Path) -> None:
    async with serving(tmp_path, env=operated(tmp_path)) as service, service.client() as client:
        body = {"agent": agent("helper", tools=[]), "task": "flaky work", "name": "Worker"}
        once = await client.request("POST", "/v1/delegations", body)
        assert (once["status"], once["attempts"], once["error"]["message"]) == ("failed", 1, "busy")
        body["task"] = "flaky again"
        result = await client.request("POST", "/v1/delegations", {**body, "policy": {"max_retries": 2}})
        assert (result["status"], result["output"], result["attempts"]) == ("completed", "at last", 3)
        events = await events_of(client, f"/v1/delegations/{result['handoff_id']}/events")
        kinds = [
            e["type"] for e in events if e["type"].startswith(("handoff.", "run.queued", "run.failed", "run.comp"))
        ]
        assert kinds == [
            "handoff.start", "run.queued", "run.failed", "run.queued", "run.failed", "run.queued", "run.completed",
            "handoff.end",
        ]  # fmt: skip
        assert {e["name"] for e in events if e["type"] == "run.queued"} == {"Worker"}
        tree = await client.request("GET", f"/v1/sessions/{result['session_id']}/tree")
        assert [run["status"] for run in tree["runs"]] == ["failed", "failed", "completed"]
        assert tree["handoffs"][0]["run_ids"] == [run["id"] for run in tree["runs"]]


@linux
@pytest.mark.spec("4.4", "7.4", "7.8")
@pytest.mark.seed("000", 40)
@pytest.mark.case("B069")
async def test_when_a_client_sees_the_end_of_a_timed_out_handoff_no_process_of_its_tools_is_left(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, env=operated(tmp_path, "sleeper")) as service, service.client() as client:
        helper = agent("helper", tools=["sleeper"])
        body = {
            "agent": "boss", "agents": [BOSS, helper], "input": "sleep",
            "surfaces": ["dispatch"], "policy": {"timeout_ms": 800, "max_retries": 1},
        }  # fmt: skip
        started = await client.request("POST", "/v1/runs", body)
        left: list[int] | None = None
        async with asyncio.timeout(WAIT_S):
            async for frame in client.events(f"/v1/runs/{started['id']}/events"):
                if frame.type == "handoff.end":
                    left = [number for number in numbers_in(tmp_path / "pids") if alive(number)]
        assert (left, len(numbers_in(tmp_path / "pids"))) == ([], 4)
        run = await finished(client, started["id"])
        assert "timed_out" in run["output"]
        end = await handoff_of(client, run)
        assert (end["status"], end["attempts"], end["error"]["code"]) == ("timed_out", 2, "timed_out")


@pytest.mark.spec("4.7", "10.5")
async def test_an_operators_runner_that_fails_is_tried_again(tmp_path: Path) -> None:
    agents = definition(tmp_path, "engine", "runner: own_things:flaky")
    async with serving(tmp_path, "--agents", agents, env=operated(tmp_path)) as service, service.client() as client:
        body = {"agent": "engine", "task": "the work", "policy": {"max_retries": 5}}
        result = await client.request("POST", "/v1/delegations", body)
        assert (result["status"], result["output"], result["attempts"]) == ("completed", "the engine did: the work", 3)
        runs = [run["id"] for run in (await client.request("GET", f"/v1/sessions/{result['session_id']}/tree"))["runs"]]
        assert (tmp_path / "tried").read_text().split() == runs


# ── admission and fallbacks ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("4.1", "4.2")
@pytest.mark.seed("000", 35, 36, 44, 46, 47, 48)
@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"allowed_tools": ["delegate_other"], "max_depth": 0}, "tool is not in allowed_tools"),
        ({"allowed_tools": []}, "tool is not in allowed_tools"),
        ({"allowed_tools": ["helper"]}, "tool is not in allowed_tools"),
        ({"denied_tools": ["subagent_helper"], "max_depth": 0}, "tool is in denied_tools"),
        ({"max_depth": 0}, "handoff depth 1 exceeds max_depth 0"),
        ({"denied_tools": ["helper"]}, None),
        ({"allowed_tools": None, "denied_tools": None}, None),
        ({}, None),
    ],
)
async def test_by_default_a_denied_handoff_fails_the_parent_with_the_reason(
    tmp_path: Path, policy: dict[str, Any], said: str | None
) -> None:
    async with serving(tmp_path, env=operated(tmp_path)) as service, service.client() as client:
        run = await run_of(client, policy=policy)
        end = await handoff_of(client, run)
        if said is None:
            assert (end["status"], run["error"]["code"], end["attempts"]) == ("failed", "handoff_failed", 1)
        else:
            assert (run["status"], run["error"]["code"]) == ("failed", "handoff_denied")
            assert said in run["error"]["message"]
            assert (end["status"], end["error"]["message"], end["attempts"]) == ("denied", said, 0)


@pytest.mark.spec("3.7", "4.1")
@pytest.mark.seed("000", 10, 11, 30, 49, 50, 51)
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    "policy", [{"on_denied": "fallback_to_primary", "max_depth": 0}, {"on_error": "fallback_to_primary"}]
)
async def test_the_same_call_goes_to_the_operators_tool_of_that_name_or_is_said_to_be_unavailable(
    tmp_path: Path, own: bool, policy: dict[str, Any]
) -> None:
    env = operated(tmp_path, *(["subagent_helper"] if own else []))
    async with serving(tmp_path, env=env) as service, service.client() as client:
        tools = ["Agent", "read_file", *(["subagent_helper"] if own else [])]
        boss = agent("boss", mode="primary", tools=tools)
        body = {
            "agent": "boss", "agents": [boss, agent("helper", tools=[])], "surfaces": ["per_agent"], "input": "go",
            "policy": policy,
        }  # fmt: skip
        run = await finished(client, (await client.request("POST", "/v1/runs", body))["id"])
        assert run["status"] == "completed"
        end = await handoff_of(client, run)
        if own:
            assert run["output"] == "told: by hand: the work"
            assert (end["status"], end["output"]) == ("fallback", "by hand: the work")
            assert end["fallback"] == {"kind": "primary", "target": "subagent_helper"}
        else:
            assert "handoff unavailable" in run["output"]
            assert end["status"] == ("denied" if "on_denied" in policy else "failed")


@pytest.mark.spec("4.1", "4.6", "14.9")
@pytest.mark.seed("000", 41)
@pytest.mark.parametrize(
    ("reaction", "output", "fallback"),
    [
        ({"answer": "Nobody is here."}, "Nobody is here.", {"kind": "answer", "target": ""}),
        ({"agent": "other"}, "other did the work", {"kind": "agent", "target": "other"}),
        ({"model": "scripted:spare"}, "spare did the work", {"kind": "model", "target": "scripted:spare"}),
    ],
)
async def test_an_answer_an_agent_or_a_model_stands_in_for_a_failed_child(
    tmp_path: Path, reaction: dict[str, str], output: str, fallback: dict[str, str]
) -> None:
    env = operated(tmp_path)
    script(tmp_path, "agents: [{turns: [{text: 'spare did {{ task }}'}]}]", "spare")
    agents = definition(tmp_path, "other", "tools: []")
    async with serving(tmp_path, "--agents", agents, env=env) as service, service.client() as client:
        run = await run_of(client, policy={"on_error": reaction})
        assert json.loads(run["output"].removeprefix("told: "))["output"] == output
        end = await handoff_of(client, run)
        assert (end["status"], end["output"], end["attempts"]) == ("fallback", output, 1)
        assert end["fallback"] == fallback
        body = {"agent": agent("helper", tools=[]), "task": "the work", "policy": {"on_error": reaction}}
        direct = await client.request("POST", "/v1/delegations", body)
        assert (direct["status"], direct["output"], direct["fallback"]) == ("fallback", output, fallback)
        assert direct["attempts"] == 1
        again = await client.request("GET", f"/v1/delegations/{direct['handoff_id']}")
        assert again == direct


@pytest.mark.spec("3.6", "4.1", "14.9")
async def test_over_http_a_denial_is_a_403_unless_something_stands_in(tmp_path: Path) -> None:
    async with serving(tmp_path, env=operated(tmp_path)) as service, service.client() as client:
        body = {"agent": agent("helper", tools=[]), "task": "fine"}
        policy: dict[str, Any] = {"max_depth": 0}
        for on_denied in (None, "fail", "report", "fallback_to_primary"):
            policy["on_denied"] = on_denied
            with pytest.raises(ServiceError) as denied:
                await client.request("POST", "/v1/delegations", {**body, "policy": policy})
            assert (denied.value.status, denied.value.problem["code"]) == (403, "handoff_denied")
        policy["on_denied"] = {"answer": "not today"}
        result = await client.request("POST", "/v1/delegations", {**body, "policy": policy})
        assert (result["status"], result["output"], result["attempts"]) == ("fallback", "not today", 0)


@pytest.mark.spec("4.10")
async def test_an_agent_that_stands_in_for_a_caller_keeps_the_limits_of_its_own_definition(tmp_path: Path) -> None:
    limits = "handoff: {denied_tools: [subagent_helper]}"
    agents = definition(tmp_path, "boss", "tools: [Agent, read_file]", "surfaces: [per_agent]", limits)
    definition(tmp_path, "helper", "tools: []")
    definition(tmp_path, "first", "tools: []")
    async with serving(tmp_path, "--agents", agents, env=operated(tmp_path)) as service, service.client() as client:
        policy = {"max_depth": 5, "on_error": {"agent": "boss"}}
        body = {"agent": "first", "task": "the work", "policy": policy}
        result = await client.request("POST", "/v1/delegations", body)
        ends = await events_of(client, f"/v1/sessions/{result['session_id']}/events", types="handoff.end")
        assert [(e["data"]["subagent"], e["data"]["status"]) for e in ends] == [
            ("helper", "denied"),
            ("first", "failed"),
        ]


# ── the policy that is off ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("4.3")
@pytest.mark.seed("000", 33)
async def test_a_policy_that_is_off_keeps_its_events_and_its_timeout_and_nothing_else(tmp_path: Path) -> None:
    async with serving(tmp_path, env=operated(tmp_path, "sleeper")) as service, service.client() as client:
        off = {
            "enabled": False, "allowed_tools": [], "max_depth": 0, "max_retries": 3, "timeout_ms": 700,
            "on_error": {"answer": "instead"}, "input_filter": [{"inject": {"a": "b"}}],
        }  # fmt: skip
        run = await run_of(client, policy=off)
        end = await handoff_of(client, run)
        assert (run["status"], end["status"], end["attempts"], end.get("fallback")) == ("failed", "failed", 1, None)
        messages = (await client.page(f"/v1/sessions/{run['session_id']}/messages", agent="helper"))["items"]
        assert [m["content"] for m in messages if m["role"] == "user"] == ["the work"]
        helper = agent("helper", tools=["sleeper"])
        run = await run_of(client, "sleep", agents=[helper], policy=off, surfaces=["dispatch"])
        assert (await handoff_of(client, run))["status"] == "timed_out"
