"""Limits of concurrency over HTTP: what works at a time is bounded, nested trees end, tenants take turns."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app.client import Client
from tests.commands import key_for, run
from tests.plan import ask, call, task
from tests.service import WAIT_S, Service, agent, events_of, finished, script, serving
from tests.stubs.openai_stub import Answer, OpenAIStub, Request, refusal, text

pytestmark = pytest.mark.spec("9.8")
ROOT_KEY = "root-key-of-at-least-16-characters"
NODE = agent("node", mode="all", tools=["Agent", "glob"])
TREE: dict[str, Any] = {"agent": "node", "agents": [NODE], "surfaces": ["dispatch"], "policy": {"max_depth": 3}}
SOLO: dict[str, Any] = {"agent": "solo", "agents": [agent("solo", mode="all", tools=[])]}


def limited(folder: Path, **limits: int) -> dict[str, str]:
    """The script of plans, and limits."""
    scripts = folder / "scripts"
    scripts.mkdir(exist_ok=True)
    (scripts / "plan.py").write_text("from tests.plan import reply\n")
    env = {f"SUBAGENTD_LIMITS__{name.upper()}": str(value) for name, value in limits.items()}
    return {"SUBAGENTD_MODELS__SCRIPTS": str(scripts), "SUBAGENTD_MODEL": "scripted:plan", **env}


def model_calls_at_once(events: list[dict[str, Any]], least_depth: int = 0) -> int:
    """The most model calls of a session that were under way together: from the start of a step to its message."""
    under_way: set[tuple[str, int]] = set()
    most = 0
    for event in events:
        if event.get("depth", 0) < least_depth:
            continue
        if event["type"] == "step.started":
            under_way.add((event["run_id"], event["step"]))
        elif event["type"] == "message" and event["data"]["role"] == "assistant":
            under_way.remove((event["run_id"], event["step"]))
        most = max(most, len(under_way))
    assert not under_way
    return most


def nest(depth: int, fan: int, name: str = "root") -> str:
    """A tree of that depth in which everybody works, delegates `fan` times and works again; no two tasks are equal."""
    first, second = ({"calls": [call("glob", pattern=pattern)], "delay_ms": 1} for pattern in ("a*", "b*"))
    if depth == 0:
        return task(first, name)
    below = {"calls": [ask(nest(depth - 1, fan, f"{name}.{at}")) for at in range(fan)]}
    return task(first, below, second, name)


@pytest.mark.case("B091")
@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("name", ["concurrent_runs", "concurrent_children"])
async def test_a_nested_tree_under_a_limit_gets_to_its_end_and_never_makes_more_model_calls_at_once(
    tmp_path: Path, name: str, limit: int
) -> None:
    async with serving(tmp_path, env=limited(tmp_path, **{name: limit})) as service, service.client() as client:
        run = await client.request("POST", "/v1/runs", {**TREE, "input": nest(3, 4)})
        row = await finished(client, run["id"])
        assert (row["status"], row["output"]) == ("completed", "root")
        events = await events_of(client, f"/v1/sessions/{run['session_id']}/events")
        assert sum(event["type"] == "run.completed" for event in events) == 1 + 4 + 16 + 64
        assert model_calls_at_once(events, 0 if name == "concurrent_runs" else 1) == limit


# ── between tenants ─────────────────────────────────────────────────────────────────────────────────────────────────


class Desk(OpenAIStub):
    """A provider that answers when a test says so, each request once. `order`: the tasks as they came."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.most = 0
        self.answered = 0
        self.decide(self._held)

    def _held(self, request: Request) -> Answer:
        name = str(request.messages[-1]["content"])
        self.order.append(name)
        self.most = max(self.most, len(self.order) - self.answered)
        gate = self.gates[name] = asyncio.Event()
        said = text(f"done: {name}")
        return Answer(writes=(gate, *said.writes))

    def answer(self, name: str) -> None:
        """Let a request have its answer."""
        self.answered += 1
        self.gates[name].set()


def asked(desk: Desk, **limits: int) -> dict[str, str]:
    """The provider, and limits."""
    env = {f"SUBAGENTD_LIMITS__{name.upper()}": str(value) for name, value in limits.items()}
    model = {"OPENAI_BASE_URL": desk.base_url, "OPENAI_API_KEY": "none", "SUBAGENTD_MODEL": "openai:stub"}
    return {**model, "SUBAGENTD_KEY": ROOT_KEY, **env}


async def gauges(service: Service, *names: str) -> list[float]:
    """What `/metrics` says of these."""
    headers = {"Authorization": f"Bearer {service.key}"} if service.key else {}
    async with aiohttp.ClientSession(headers=headers) as http, http.get(f"{service.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return [float(found[f"subagentd_{name}"]) for name in names]


async def started(client: Client, name: str) -> dict[str, Any]:
    """A run that asks the provider once."""
    run: dict[str, Any] = await client.request("POST", "/v1/runs", {**SOLO, "input": name})
    return run


@pytest.mark.spec("9.8", "17.1")
@pytest.mark.parametrize("limit", [1, 2])
async def test_a_crowd_of_one_tenant_does_not_keep_the_run_of_another_one_waiting(tmp_path: Path, limit: int) -> None:
    async with Desk() as desk, serving(tmp_path, env=asked(desk, concurrent_runs=limit)) as service:
        async with service.client() as a, service.client(await key_for(service, "b", "run", "read")) as b:
            runs = [(a, await started(a, f"a{number}")) for number in range(12)]
            await desk.seen(limit)
            runs += [(b, await started(b, f"b{number}")) for number in range(2)]
            rows = [await client.request("GET", f"/v1/runs/{run['id']}") for client, run in runs]
            assert [row["status"] for row in rows[limit:]] == ["queued"] * (14 - limit)
            assert await gauges(service, "runs_queued", "runs_at_work") == [14 - limit, limit]
            for number in range(14):
                await desk.seen(min(14, number + limit))
                desk.answer(desk.order[number])
            for client, run in runs:
                assert (await finished(client, run["id"]))["status"] == "completed"
        assert desk.order[limit : limit + 4] == [f"a{limit}", "b0", f"a{limit + 1}", "b1"]
        others = [name for name in desk.order[limit:] if name.startswith("a")]
        assert others == [f"a{number}" for number in range(limit, 12)]
        assert desk.most == limit


# ── who holds no place ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("9.8", "5.7")
async def test_a_queued_run_is_cancelled_at_once_and_the_next_one_has_its_turn(tmp_path: Path) -> None:
    async with Desk() as desk:
        env = asked(desk, concurrent_runs=1)
        async with serving(tmp_path, env=env) as service, service.client() as client:
            first = await started(client, "first")
            await desk.seen(1)
            second, third = await started(client, "second"), await started(client, "third")
            await client.request("POST", f"/v1/runs/{second['id']}/cancel")
            row = await client.request("GET", f"/v1/runs/{second['id']}")
            assert (row["status"], row["started_at"]) == ("cancelled", None)
            assert desk.order == ["first"], "the first one still has the place"
            desk.answer("first")
            await desk.seen(2)
            desk.answer("third")
            for run, name in ((first, "first"), (third, "third")):
                assert (await finished(client, run["id"]))["output"] == f"done: {name}"
            assert desk.order == ["first", "third"]


@pytest.mark.spec("9.8", "5.8")
async def test_a_run_whose_provider_sent_it_away_leaves_its_place_to_runs_of_other_models(tmp_path: Path) -> None:
    async with Desk() as desk:
        desk.script(refusal(429, {"message": "slow down"}, Retry_After="60"))
        env = {**asked(desk, concurrent_runs=1), **script(tmp_path, "agents: [{turns: [{text: scripted}]}]")}
        async with serving(tmp_path, env=env) as service, service.client() as client:
            body = {**SOLO, "model": "openai:stub", "input": "x"}
            first = await client.request("POST", "/v1/runs", body)
            await desk.seen(1)
            second = await client.request("POST", "/v1/runs", {**SOLO, "input": "y"})
            assert (await finished(client, second["id"]))["output"] == "scripted"
            row = await client.request("GET", f"/v1/runs/{first['id']}")
            assert (row["status"], row["wait_reason"]) == ("waiting", "retry")
            await client.request("POST", f"/v1/runs/{first['id']}/cancel")
            assert (await client.request("GET", f"/v1/runs/{first['id']}"))["status"] == "cancelled"


ASKING = """
agents:
  - when: {system_contains: "You are lead"}
    turns:
      - {calls: [{tool: dispatch_subagent, arguments: {agent_type: worker, task: look}}]}
      - {text: "Lead is done."}
  - when: {system_contains: "You are worker"}
    turns: [{calls: [{tool: glob, arguments: {pattern: "*"}}]}, {text: "Worker is done."}]
  - turns: [{text: scripted}]
"""
ASKED: Mapping[str, Any] = {
    "agent": "lead",
    "agents": [agent("lead", mode="primary", tools=["Agent"]), agent("worker", tools=["glob"])],
    "surfaces": ["dispatch"],
    "input": "Go.",
}


@pytest.mark.spec("9.8", "8.2")
async def test_a_tree_that_waits_for_a_person_holds_no_place_and_goes_on_when_that_one_has_answered(
    tmp_path: Path,
) -> None:
    limits = {"SUBAGENTD_LIMITS__CONCURRENT_RUNS": "1", "SUBAGENTD_LIMITS__CONCURRENT_CHILDREN": "1"}
    env = {**script(tmp_path, ASKING), **limits, "SUBAGENTD_PERMISSIONS__RULES__ASK": '["Glob"]'}
    async with serving(tmp_path, env=env) as service, service.client() as client:
        run = await client.request("POST", "/v1/runs", ASKED)
        async with asyncio.timeout(WAIT_S):
            while not (questions := (await client.page("/v1/permissions", status="pending"))["items"]):
                await client.request("GET", f"/v1/runs/{run['id']}", wait_ms=50)
        assert await gauges(service, "runs_in_flight", "runs_queued", "runs_at_work") == [2, 0, 0]
        other = await client.request("POST", "/v1/runs", {**SOLO, "input": "y"})
        assert (await finished(client, other["id"]))["output"] == "scripted"
        path = f"/v1/permissions/{questions[0]['id']}"
        await client.request("POST", path, {"decision": "allow_once"})
        assert (await finished(client, run["id"]))["output"] == "Lead is done."
        assert await gauges(service, "runs_in_flight", "runs_queued", "runs_at_work") == [0, 0, 0]


@pytest.mark.spec("9.8", "16.5")
@pytest.mark.parametrize("name", ["concurrent_runs", "concurrent_children"])
async def test_a_limit_of_nobody_is_refused_before_the_service_starts(tmp_path: Path, name: str) -> None:
    refused = await run("serve", "--port", "0", folder=tmp_path, env={f"SUBAGENTD_LIMITS__{name.upper()}": "0"})
    assert refused.code != 0
    assert f"limits.{name}" in refused.err
    assert "Traceback" not in refused.err
