"""Runs that go on with the memory of an earlier one, asked for over HTTP: turns, subagents, delegations."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app.agent.texts import CHINESE, ENGLISH
from app.client import Client, ServiceError
from tests.flows.paused import let_go, played, question, session_of, statuses, worker
from tests.service import WAIT_S, Service, agent, events_of, finished, serving

WORKER = {"agent": "worker", "agents": [worker()]}


async def resumed(client: Client, run_id: str, **body: Any) -> dict[str, Any]:
    """Resume a run and wait for the end of the one that goes on."""
    started = await client.request("POST", f"/v1/runs/{run_id}/resume", body)
    assert started["id"] != run_id
    return await finished(client, started["id"])


async def refused(client: Client, path: str, body: dict[str, Any]) -> ServiceError:
    """The problem that a request ends in."""
    with pytest.raises(ServiceError) as problem:
        await client.request("POST", path, body)
    return problem.value


async def delegated(client: Client, task: str, **fields: Any) -> dict[str, Any]:
    """A delegation that has ended."""
    body = {"agent": worker(), "task": task, **fields}
    result: dict[str, Any] = await client.request("POST", "/v1/delegations", body)
    return result


@pytest.mark.spec("9.4", "14.8")
async def test_a_turn_is_gone_on_with_in_the_memory_of_its_session(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        first = await client.request("POST", "/v1/runs", {**WORKER, "input": "wait for code=77"})
        await question(client, first["session_id"])
        await client.request("POST", f"/v1/runs/{first['id']}/cancel")
        second = await resumed(client, first["id"])
        assert second["input"] == ENGLISH.resume
        assert second["output"] == f"wait for code=77 | {ENGLISH.resume}"
        assert (second["memory_id"], second["turn"], second["depth"]) == (first["memory_id"], 1, 0)
        third = await resumed(client, first["id"], input="Which code?", max_steps=1)
        assert third["output"].endswith("| Which code?")
        assert (third["turn"], third["max_steps"]) == (2, 1)


@pytest.mark.spec("9.4", "5.9")
async def test_without_an_input_the_language_of_the_session_says_what_to_do(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        first = await client.request("POST", "/v1/runs", {**WORKER, "input": "x", "texts": "zh"})
        await finished(client, first["id"])
        assert (await resumed(client, first["id"]))["input"] == CHINESE.resume
        assert (await resumed(client, first["id"], input=""))["input"] == ""
        async with aiohttp.ClientSession() as http, http.post(f"{service.url}/v1/runs/{first['id']}/resume") as bare:
            assert bare.status == 202
            assert bare.headers["location"] == f"/v1/runs/{(await bare.json())['id']}"


@pytest.mark.spec("9.4", "14.8")
async def test_a_run_that_goes_on_is_not_resumed_and_of_two_at_once_one_wins(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        first = await client.request("POST", "/v1/runs", {**WORKER, "input": "wait"})
        await question(client, first["session_id"])
        path = f"/v1/runs/{first['id']}/resume"
        still = await refused(client, path, {})
        assert (still.status, still.problem["code"], still.problem["run_status"]) == (409, "run_open", "waiting")
        await let_go(client, first["session_id"])
        await finished(client, first["id"])
        both = await asyncio.gather(
            *(client.request("POST", path, {"input": "wait again"}) for _ in range(2)), return_exceptions=True
        )
        (won,) = [answer for answer in both if isinstance(answer, dict)]
        (lost,) = [answer for answer in both if isinstance(answer, ServiceError)]
        assert (lost.status, lost.problem["code"]) == (409, "session_busy")
        await let_go(client, first["session_id"], 2)
        assert await statuses(client, won["id"]) == ["completed"]
        assert len((await client.page(f"/v1/sessions/{first['session_id']}/runs"))["items"]) == 2


@pytest.mark.spec("9.4", "14.8")
@pytest.mark.case("B085")
async def test_a_subagent_goes_on_with_all_that_it_was_told_under_the_limits_of_its_definition(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        body = {"agent": worker(max_steps=3), "task": "code=77", "max_steps": 7}
        first = await client.request("POST", "/v1/delegations", body)
        again = await resumed(client, first["run_id"], input="Which code?", timeout_ms=9_000)
        assert again["output"] == "code=77 | Which code?"
        assert (again["depth"], again["agent"], again["turn"], again["max_steps"]) == (1, "worker", 1, 3)
        events = await events_of(client, f"/v1/sessions/{first['session_id']}/events")
        started = [e for e in events if e["type"] == "handoff.start"]
        assert [e["data"].get("resumes") for e in started] == [None, first["handoff_id"]]
        assert again["handoff_id"] == started[1]["data"]["handoff_id"] != first["handoff_id"]
        names = [e["data"]["name"] for e in started]
        assert names[1] == f"{names[0]}_2"
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        later = await resumed(client, first["run_id"], input="And now?")
        assert later["output"] == "code=77 | Which code? | And now?"
        assert (later["turn"], later["memory_id"]) == (2, again["memory_id"])


@pytest.mark.spec("9.4", "14.8", "14.9")
@pytest.mark.case("B086")
async def test_a_subagent_that_goes_on_is_not_resumed_and_of_two_at_once_one_wins(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        task = await delegated(client, "wait", background=True)
        session, path = task["session_id"], f"/v1/runs/{task['run_id']}/resume"
        await question(client, session)
        assert (await refused(client, path, {})).problem["code"] == "run_open"
        order = {"task": "x", "resume": task["task_id"]}
        running = await refused(client, "/v1/delegations", order)
        assert (running.status, running.problem["code"]) == (409, "task_running")
        await let_go(client, session)
        await client.request("GET", f"/v1/tasks/{task['task_id']}/output")
        for number, (where, body) in enumerate(
            [(path, {"input": "wait"}), ("/v1/delegations", {**order, "task": "wait", "background": True})], 2
        ):
            both = await asyncio.gather(
                *(client.request("POST", where, body) for _ in range(2)), return_exceptions=True
            )
            (won,) = [answer for answer in both if isinstance(answer, dict)]
            (lost,) = [answer for answer in both if isinstance(answer, ServiceError)]
            assert (lost.status, lost.problem["code"] in ("memory_busy", "task_running")) == (409, True)
            await let_go(client, session, number)
            assert await statuses(client, won.get("run_id") or won["id"]) == ["completed"]
        tree = await client.request("GET", f"/v1/sessions/{session}/tree")
        assert len(tree["runs"]) == 3


@pytest.mark.spec("9.4", "14.9")
async def test_a_delegation_resumes_by_task_run_or_name_and_takes_the_agent_over(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        first = await delegated(client, "one", name="My north: 北")
        assert first["name"] == "My_north_北"
        session = first["session_id"]
        orders: list[dict[str, Any]] = [
            {"resume": first["handoff_id"]},
            {"resume": first["run_id"]},
            {"resume": "My_north_北", "session_id": session},
            {"resume": "My north: 北", "session_id": session},
            {"resume": first["handoff_id"], "agent": "worker"},
            {"resume": first["handoff_id"], "agent": worker(), "session_id": session},
        ]
        await delegated(client, "another", name=first["run_id"], session_id=session)  # a name is no id
        for number, order in enumerate(orders):
            result = await client.request("POST", "/v1/delegations", {"task": f"more {number}", **order})
            assert result["output"].startswith("one | more 0")
            assert result["output"].endswith(f"more {number}")
            assert (result["agent"], result["session_id"]) == ("worker", session)


@pytest.mark.spec("9.4", "14.9")
@pytest.mark.case("B084")
async def test_what_cannot_be_resumed_is_named_and_starts_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        first, other = await delegated(client, "one", name="north"), await delegated(client, "two")
        mine = first["session_id"]
        unknown = ("ho_00000000000000000000000000", "run_00000000000000000000000000")
        wrong: list[tuple[dict[str, Any], int, str]] = [
            *(({"resume": name}, 404, "unknown_task") for name in unknown),
            ({"resume": "7b6bd2cc-6a0b-4f5b-9b5c-0a3f6d1e7f00"}, 422, "invalid_request"),
            ({"resume": "7b6bd2cc-6a0b-4f5b-9b5c-0a3f6d1e7f00", "session_id": mine}, 404, "unknown_task"),
            ({"resume": ""}, 422, "invalid_request"),
            ({"resume": "../../etc/passwd", "session_id": mine}, 404, "unknown_task"),
            ({"resume": "ho_/../x"}, 404, "unknown_task"),
            ({"resume": other["handoff_id"], "session_id": mine}, 404, "unknown_task"),
            ({"resume": first["handoff_id"], "agent": agent("somebody")}, 422, "other_agent"),
            ({"resume": first["handoff_id"], "user": "ann"}, 422, "invalid_request"),
            ({}, 422, "invalid_request"),
        ]
        sessions = (await client.page("/v1/sessions"))["items"]
        for order, status, code in wrong:
            problem = await refused(client, "/v1/delegations", {"task": "x", **order})
            assert (problem.status, problem.problem["code"]) == (status, code), order
            if status == 422:
                assert problem.problem["errors"], order
        for name in (unknown[1], "%2e%2e%2fx", "x"):
            assert (await refused(client, f"/v1/runs/{name}/resume", {})).status == 404
        assert [s["id"] for s in (await client.page("/v1/sessions"))["items"]] == [s["id"] for s in sessions]
        for session in (mine, other["session_id"]):
            assert len((await client.request("GET", f"/v1/sessions/{session}/tree"))["runs"]) == 1


@pytest.mark.spec("9.4", "14.8")
async def test_one_that_never_began_or_whose_session_is_closed_is_not_resumed(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        denied = await refused(client, "/v1/delegations", {"agent": worker(), "task": "x", "policy": {"max_depth": 0}})
        never = await refused(client, "/v1/delegations", {"task": "x", "resume": denied.problem["handoff_id"]})
        assert (never.status, never.problem["code"]) == (409, "nothing_to_resume")
        first = await delegated(client, "one")
        await client.request("PATCH", f"/v1/sessions/{first['session_id']}", {"closed": True})
        for path, body in (
            (f"/v1/runs/{first['run_id']}/resume", {}),
            ("/v1/delegations", {"task": "x", "resume": first["handoff_id"]}),
        ):
            closed = await refused(client, path, body)
            assert (closed.status, closed.problem["code"]) == (409, "session_closed")


@pytest.mark.spec("9.4")
@pytest.mark.case("B083")
async def test_a_subagent_that_failed_or_was_cancelled_can_be_resumed(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        failed = await delegated(client, "fail with code=77")
        assert (failed["status"], failed["error"]["code"]) == ("failed", "broken")
        again = await resumed(client, failed["run_id"], input="Which code?")
        assert again["output"] == "fail with code=77 | Which code?"
        task = await delegated(client, "wait for code=78", background=True)
        await question(client, task["session_id"])
        await client.request("POST", f"/v1/tasks/{task['task_id']}/cancel")
        again = await resumed(client, task["run_id"], input="Which code?")
        assert again["output"] == "wait for code=78 | Which code?"


@pytest.mark.spec("9.4", "11.4", "14.8")
async def test_what_is_resumed_can_be_watched_from_the_start(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        turn = await client.request("POST", "/v1/runs", {**WORKER, "input": "one"})
        await finished(client, turn["id"])
        child = await delegated(client, "one")
        for run_id in (turn["id"], child["run_id"]):
            kinds = await watched(service, f"/v1/runs/{run_id}/resume")
            assert (kinds[0], kinds[-1]) == ("run.queued", "run.completed")


async def watched(service: Service, path: str) -> list[str]:
    """The types of the events that a request answers with."""
    async with (
        aiohttp.ClientSession(headers={"Accept": "text/event-stream"}) as http,
        http.post(service.url + path, json={}) as answer,
        asyncio.timeout(WAIT_S),
    ):
        text = await answer.text()
        assert answer.status == 200, text
        return [line[7:] for line in text.split("\n") if line.startswith("event: ")]


@pytest.mark.spec("4.1", "9.4", "14.8")
async def test_a_definition_that_is_narrower_by_now_holds_for_what_goes_on(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        wide = {"description": "d", "prompt": "p", "tools": ["glob"], "max_steps": 9}
        await client.request("PUT", "/v1/agents/clerk", wide)
        session = await session_of(client)
        first = await client.request(
            "POST", "/v1/delegations", {"agent": "clerk", "task": "one", "session_id": session}
        )
        await client.request("PUT", "/v1/agents/clerk", {**wide, "tools": [], "max_steps": 2})
        again = await resumed(client, first["run_id"])
        assert (again["tools"], again["max_steps"]) == ([], 2)
        await client.request("DELETE", "/v1/agents/clerk")
        gone = await refused(client, f"/v1/runs/{first['run_id']}/resume", {})
        assert (gone.status, gone.problem["code"]) == (422, "unknown_agent")
