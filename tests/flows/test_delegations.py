"""Delegations by a program that has its own parent: one call, one result; same core, policy, events and audit."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from app.client import ServiceError
from tests.service import WAIT_S, agent, events_of, received, script, serving

PLAY = """
agents:
  - when: {system_contains: "You are reader"}
    turns:
      - {calls: [{tool: read_file, arguments: {path: a.txt}}]}
      - {text: "It says {{ lines(result[0])[0] }}.", chunks: 4, delay_ms: 40}
  - when: {system_contains: "You are echo"}
    turns: [{text: "{{ task }}"}]
"""


@pytest.mark.spec("3.6", "4.6", "14.9")
async def test_one_call_delegates_one_task_and_the_result_can_be_read_again(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        (service.workspace / "a.txt").write_text("hello\n")
        body = {"agent": agent("reader", tools=["read_file"]), "task": "Read a.txt", "name": "My Reader"}
        result = await client.request("POST", "/v1/delegations", body)
        assert (result["status"], result["output"], result["steps"]) == ("completed", "It says hello.", 2)
        assert (result["depth"], result["name"], result["attempts"]) == (1, "My_Reader", 1)
        assert result["usage"]["model_calls"] == 2
        assert (result["forced"], result["partial"]) == (False, False)
        again = await client.request("GET", f"/v1/delegations/{result['handoff_id']}")
        assert again == result
        rows = (await client.page("/v1/audit", agent="reader", order="oldest"))["items"]
        assert [row["role"] for row in rows] == ["system", "user", "assistant", "tool", "assistant"]
        assert all(row["is_subagent"] and row["depth"] == 1 for row in rows)
        events = await events_of(client, f"/v1/sessions/{result['session_id']}/events")
        kinds = [event["type"] for event in events]
        assert kinds[:3] == ["session.created", "handoff.start", "run.queued"]
        assert kinds[-3:] == ["run.completed", "handoff.end", "session.idle"]


@pytest.mark.spec("3.6", "11.3", "11.4")
async def test_a_delegations_stream_ends_with_its_handoff_also_on_the_post_itself(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        (service.workspace / "a.txt").write_text("hello\n")
        body = {"agent": agent("reader", tools=["read_file"]), "task": "Read a.txt"}
        async with (
            aiohttp.ClientSession(headers={"Accept": "text/event-stream"}) as http,
            http.post(f"{service.url}/v1/delegations", json=body) as answer,
            asyncio.timeout(WAIT_S),
        ):
            assert answer.status == 200
            assert answer.content_type == "text/event-stream"
            text = (await answer.read()).decode()
        kinds = [line[7:] for line in text.split("\n") if line.startswith("event: ")]
        assert kinds[0] == "handoff.start"
        assert kinds[-1] == "handoff.end"
        assert "text.delta" in kinds or "text.snapshot" in kinds
        session = (await client.page("/v1/sessions"))["items"][0]["id"]
        start = next(
            e for e in await events_of(client, f"/v1/sessions/{session}/events") if e["type"] == "handoff.start"
        )
        path = f"/v1/delegations/{start['data']['handoff_id']}/events"
        frames = await received(client, path)
        assert [f.type for f in frames if f.id] == [k for k in kinds if "delta" not in k and "snapshot" not in k]


@pytest.mark.spec("3.6", "4.1", "14.9")
async def test_a_denial_is_a_403_and_a_failed_child_a_result_with_its_status(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        body = {"agent": agent("echo", tools=[]), "task": "x", "policy": {"max_depth": 0}}
        with pytest.raises(ServiceError) as denied:
            await client.request("POST", "/v1/delegations", body)
        assert denied.value.status == 403
        assert "handoff depth 1 exceeds max_depth 0" in str(denied.value)
        kept = await client.request("GET", f"/v1/delegations/{denied.value.problem['handoff_id']}")
        assert (kept["status"], kept["attempts"], kept["run_id"]) == ("denied", 0, None)
        failed = await client.request("POST", "/v1/delegations", {"agent": agent("nobody", tools=[]), "task": "x"})
        assert failed["status"] == "failed"
        assert failed["error"]["code"]


@pytest.mark.spec("3.6", "14.5", "14.9")
async def test_a_delegation_inside_a_session_shares_its_stream_and_names_stay_unique(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        session = await client.request("POST", "/v1/sessions", {"title": "shared"})
        body = {"agent": agent("echo", tools=[]), "task": "x", "context": "y", "session_id": session["id"], "name": "A"}
        results = await asyncio.gather(*(client.request("POST", "/v1/delegations", body) for _ in range(3)))
        assert {result["output"] for result in results} == {"x\n\nContext:\ny"}
        assert sorted(result["name"] for result in results) == ["A", "A_2", "A_3"]
        frames = await received(client, f"/v1/sessions/{session['id']}/events", until="idle")
        assert [f.type for f in frames].count("handoff.end") == 3
        assert frames[-1].type == "session.idle"
        assert [f.id for f in frames if f.id] == list(range(1, frames[-1].id + 1))


@pytest.mark.spec("10.2", "14.9")
async def test_the_tools_of_a_call_are_mapped_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        (service.workspace / "a.txt").write_text("hello\n")
        body = {"agent": agent("reader", tools=["Read", "Grep"]), "task": "Read a.txt", "tools": ["Read"]}
        result = await client.request("POST", "/v1/delegations", body)
        assert result["output"] == "It says hello."
        run = await client.request("GET", f"/v1/runs/{result['run_id']}")
        assert run["tools"] == ["read_file"]
        with pytest.raises(ServiceError, match="nope") as refused:
            await client.request("POST", "/v1/delegations", {**body, "tools": ["Read", "nope"]})
        assert (refused.value.status, refused.value.problem["code"]) == (422, "unknown_tool")
