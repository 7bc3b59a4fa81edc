"""Budgets over HTTP: what cannot be kept is refused at once, what is spent stays spent, what it cost can be read."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.client import Client, ServiceError
from tests.service import INTERRUPT, WAIT_S, Service, agent, events_of, finished, script, serving

pytestmark = pytest.mark.spec("4.8")
PROFILES = """
[models.profiles.dear]
provider = "scripted"
model = "play"
input_price = 1000000
output_price = 2000000

[models.profiles.free]
provider = "scripted"
model = "play"
input_price = 0
output_price = 0
currency = "EUR"
"""
PLAY = """
agents:
  - when: {system_contains: "You are boss"}
    turns:
      - calls:
          - {tool: dispatch_subagent, arguments: {agent_type: worker, task: "one"}}
          - {tool: dispatch_subagent, arguments: {agent_type: worker, task: "two"}}
        usage: {input_tokens: 100, output_tokens: 10}
      - {text: "Both are done.", usage: {input_tokens: 200, output_tokens: 20}}
    final: {text: "That is all I have.", usage: {input_tokens: 300, output_tokens: 30}}
  - when: {system_contains: "You are worker"}
    turns:
      - {calls: [{tool: glob, arguments: {pattern: "*"}}], usage: {input_tokens: 1000, output_tokens: 100}}
      - {text: "done", usage: {input_tokens: 5000, output_tokens: 500}}
    final: {text: "so far", usage: {input_tokens: 7, output_tokens: 7}}
"""
HANGING = PLAY.replace('text: "done", ', 'text: "done", delay_ms: 100000, ')
BOSS = agent("boss", mode="primary", tools=["dispatch_subagent"])
WORKER = agent("worker", tools=["glob"])
TREE: dict[str, Any] = {"agent": "boss", "agents": [BOSS, WORKER]}
MONEY = {"cost_micros": 1_000_000}


def environment(folder: Path) -> dict[str, str]:
    """The script, and the profiles in the file that the server reads."""
    (folder / "subagentd.toml").write_text(PROFILES)
    return script(folder, PLAY)


async def refusal(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The problem that a POST is answered with."""
    with pytest.raises(ServiceError) as error:
        await client.request("POST", path, body)
    assert error.value.status == 422, error.value
    return error.value.problem


async def test_money_without_a_price_is_refused_wherever_it_is_limited_and_nothing_is_started(tmp_path: Path) -> None:
    limited = {**BOSS, "budget": MONEY}
    async with serving(tmp_path, env=environment(tmp_path)) as service, service.client() as client:
        plain = await client.request("POST", "/v1/sessions", TREE)
        turn = f"/v1/sessions/{plain['id']}/runs"
        refused = [
            ("/v1/sessions", {**TREE, "budget": MONEY}),
            ("/v1/sessions", {**TREE, "policy": {"budget": MONEY}}),
            ("/v1/sessions", {**TREE, "agents": [limited, WORKER]}),
            (
                "/v1/sessions",
                {**TREE, "budget": MONEY, "model": "free", "agents": [BOSS, {**WORKER, "model": "scripted:play"}]},
            ),
            ("/v1/runs", {**TREE, "budget": MONEY, "input": "Go."}),
            ("/v1/runs", {**TREE, "policy": {"budget": MONEY}, "input": "Go."}),
            (turn, {"input": "Go.", "budget": MONEY}),
            ("/v1/delegations", {"agent": WORKER, "task": "Go.", "budget": MONEY}),
            ("/v1/delegations", {"agent": {**WORKER, "budget": MONEY}, "task": "Go."}),
            ("/v1/delegations", {"agent": "worker", "task": "Go.", "session_id": plain["id"], "budget": MONEY}),
            ("/v1/delegations", {"agent": WORKER, "task": "Go.", "policy": {"budget": MONEY}}),
        ]
        for path, body in refused:
            problem = await refusal(client, path, body)
            assert problem["code"] == "no_price", (path, body, problem)
            assert "'scripted:play' has no price" in problem["detail"], (path, body, problem)
            assert "input_price" in problem["detail"], "what to do next"
        assert [s["id"] for s in (await client.page("/v1/sessions"))["items"]] == [plain["id"]]
        assert (await client.page(turn))["items"] == []


async def test_another_currency_is_no_price_and_a_free_model_needs_none(tmp_path: Path) -> None:
    async with serving(tmp_path, env=environment(tmp_path)) as service, service.client() as client:
        yen = {"cost_micros": 1_000_000, "currency": "JPY"}
        problem = await refusal(client, "/v1/runs", {**TREE, "model": "dear", "budget": yen, "input": "Go."})
        assert (problem["code"], "money in JPY" in problem["detail"]) == ("no_price", True)
        for model, budget in (("free", yen), ("dear", MONEY)):
            run = await client.request("POST", "/v1/runs", {**TREE, "model": model, "budget": budget, "input": "Go."})
            row = await finished(client, run["id"])
            assert (row["status"], row["stop_reason"], row["output"]) == ("completed", "answer", "Both are done.")


@pytest.mark.spec("13.4", "14.4")
@pytest.mark.case("B192")
async def test_the_tree_shows_what_every_run_cost_by_itself_and_with_all_below_it(tmp_path: Path) -> None:
    async with serving(tmp_path, env=environment(tmp_path)) as service, service.client() as client:
        run = await client.request("POST", "/v1/runs", {**TREE, "model": "dear", "input": "Go."})
        row = await finished(client, run["id"])
        tree = await client.request("GET", f"/v1/sessions/{run['session_id']}/tree")
        (root,) = tree["runs"]
        worker = 6000 + 2 * 600
        assert root["usage"]["cost"] == {"USD": 300 + 2 * 30}
        assert [child["usage_total"]["cost"] for child in root["children"]] == [{"USD": worker}] * 2
        assert root["usage_total"]["cost"] == tree["usage_total"]["cost"] == {"USD": 360 + 2 * worker}
        assert row["usage_total"] == root["usage_total"]
        assert (row["usage_total"]["model_calls"], row["usage_total"]["unpriced_calls"]) == (6, 0)


async def again(service: Service, *, kill: bool) -> None:
    """The next process on the same database."""
    await (service.kill() if kill else service.stop())
    await service.start()


@pytest.mark.parametrize("kill", [False, True])
async def test_what_a_session_has_spent_stays_spent_after_a_restart(tmp_path: Path, kill: bool) -> None:
    async with serving(tmp_path, env=environment(tmp_path)) as service:
        async with service.client() as client:
            session = await client.request("POST", "/v1/sessions", {**TREE, "budget": {"model_calls": 8}})
            runs = f"/v1/sessions/{session['id']}/runs"
            first = await finished(client, (await client.request("POST", runs, {"input": "Go."}))["id"])
            assert (first["stop_reason"], first["usage_total"]["model_calls"]) == ("answer", 6)
        await again(service, kill=kill)
        async with service.client() as client:
            second = await finished(client, (await client.request("POST", runs, {"input": "Go on."}))["id"])
            assert (second["status"], second["stop_reason"]) == ("completed", "budget")
            assert second["output"] == "That is all I have."
            tree = await client.request("GET", f"/v1/sessions/{session['id']}/tree")
            assert tree["usage_total"]["model_calls"] == 8
            last = tree["runs"][-1]
            assert [(c["status"], c["stop_reason"]) for c in last["children"]] == [("failed", "budget")] * 2
            assert {c["error"]["code"] for c in last["children"]} == {"budget_exhausted"}
            assert [h["status"] for h in last["handoffs"]] == ["failed", "failed"]


async def steps_started(client: Client, session_id: str) -> int:
    """How many model calls a session has made, also those that nobody saw end."""
    return len(await events_of(client, f"/v1/sessions/{session_id}/events", types="step.started"))


async def test_calls_that_a_killed_process_did_not_see_the_end_of_are_spent(tmp_path: Path) -> None:
    (tmp_path / "subagentd.toml").write_text(PROFILES)
    async with serving(tmp_path, env={**script(tmp_path, HANGING), **INTERRUPT}) as service:
        async with service.client() as client, asyncio.timeout(WAIT_S):
            session = (await client.request("POST", "/v1/sessions", {**TREE, "budget": {"model_calls": 6}}))["id"]
            runs = f"/v1/sessions/{session}/runs"
            await client.request("POST", runs, {"input": "Go."})
            while await steps_started(client, session) < 5:  # both workers are at their second call
                await client.request("GET", f"/v1/sessions/{session}")
        await again(service, kill=True)
        async with service.client() as client:
            second = await finished(client, (await client.request("POST", runs, {"input": "Go on."}))["id"])
            assert (second["status"], second["stop_reason"], second["forced"]) == ("completed", "budget", True)
            third = await finished(client, (await client.request("POST", runs, {"input": "Go on."}))["id"])
            assert (third["status"], third["stop_reason"], third["forced"]) == ("completed", "budget", False)
            assert await steps_started(client, session) == 6
            tree = await client.request("GET", f"/v1/sessions/{session}/tree")
            assert tree["usage_total"]["model_calls"] == 6
            assert [run["status"] for run in tree["runs"]] == ["interrupted", "completed", "completed"]


@pytest.mark.spec("5.5", "14.9")
async def test_a_delegation_at_its_limit_is_answered_with_what_there_is(tmp_path: Path) -> None:
    async with serving(tmp_path, env=environment(tmp_path)) as service, service.client() as client:
        body = {"agent": WORKER, "task": "Go.", "budget": {"model_calls": 1}}
        result = await client.request("POST", "/v1/delegations", body)
        assert (result["status"], result["stop_reason"], result["output"]) == ("completed", "budget", "so far")
        assert (result["forced"], result["partial"], result["usage"]["model_calls"]) == (True, True, 1)


@pytest.mark.case("B091")
async def test_turns_and_delegations_at_the_same_time_share_the_budget_of_their_session(tmp_path: Path) -> None:
    async with serving(tmp_path, env=environment(tmp_path)) as service, service.client() as client:
        session = await client.request("POST", "/v1/sessions", {**TREE, "budget": {"model_calls": 9}})
        body = {"agent": "worker", "task": "Go.", "session_id": session["id"]}
        turn = await client.request("POST", f"/v1/sessions/{session['id']}/runs", {"input": "Go."})
        results = await asyncio.gather(*(client.request("POST", "/v1/delegations", body) for _ in range(8)))
        row = await finished(client, turn["id"])
        tree = await client.request("GET", f"/v1/sessions/{session['id']}/tree")
        assert 1 < tree["usage_total"]["model_calls"] <= 9
        ends = {(r["status"], r["stop_reason"]) for r in (row, *results)}
        assert ends <= {("completed", "answer"), ("completed", "budget"), ("failed", "budget")}
        assert ("completed", "budget") in ends


async def test_a_budget_that_cannot_be_read_is_refused_and_its_place_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path, env=environment(tmp_path)) as service, service.client() as client:
        for budget, place in (
            ({"model_calls": 0}, "budget.model_calls"),
            ({"tokens": -1}, "budget.tokens"),
            ({"calls": 5}, "budget.calls"),
            ({"wall_ms": "soon"}, "budget.wall_ms"),
        ):
            for path, body in (
                ("/v1/sessions", TREE),
                ("/v1/runs", {**TREE, "input": "Go."}),
                ("/v1/delegations", {"agent": WORKER, "task": "Go."}),
            ):
                problem = await refusal(client, path, {**body, "budget": budget})
                assert place in str(problem), (path, budget, problem)
        assert (await client.page("/v1/sessions"))["items"] == []
