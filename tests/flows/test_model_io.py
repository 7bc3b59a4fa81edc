"""What models were asked and what they said is kept when an operator wants that, and only then."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app.client import Client
from tests.service import agent, events_of, finished, script, serving

SECRET = "sk-live-0123456789abcdef"
PLAY = f"""
agents:
  - when: {{system_contains: "You are boss"}}
    turns:
      - {{reasoning: "hm, {SECRET}", calls: [{{tool: glob, arguments: {{pattern: "{SECRET}*"}}}}]}}
      - {{calls: [{{tool: dispatch_subagent, arguments: {{agent_type: broken, task: "go"}}}}]}}
      - {{text: "It is {SECRET}.", usage: {{input_tokens: 7, output_tokens: 3}}}}
  - when: {{system_contains: "You are broken"}}
    turns: [{{error: {{code: model_error, message: "no {SECRET}", retryable: false}}}}]
"""
BODY = {
    "agent": "boss",
    "agents": [agent("boss", mode="primary", tools=["Agent", "glob"]), agent("broken", tools=[])],
    "surfaces": ["dispatch"],
    "input": f"Use {SECRET}.",
}


async def recorded(client: Client) -> list[dict[str, Any]]:
    """What was kept of the model calls of a run and its child, in order."""
    run = await client.request("POST", "/v1/runs", BODY)
    assert (await finished(client, run["id"]))["status"] == "completed"
    events = await events_of(client, f"/v1/sessions/{run['session_id']}/events")
    return [event for event in events if event["type"] == "model.recorded"]


@pytest.mark.spec("12.8", "12.6")
@pytest.mark.seed("002", 98)
@pytest.mark.seed("002", 98)
async def test_each_request_and_reply_is_an_artifact_without_secrets(tmp_path: Path) -> None:
    env = {**script(tmp_path, PLAY), "SUBAGENTD_DEBUG__RECORD_MODEL_IO": "true"}
    async with serving(tmp_path, env=env) as service, service.client() as client:
        events = await recorded(client)
        assert [(event["depth"], "reply" in event["data"]) for event in events] == [
            (0, True),
            (0, True),
            (1, False),  # it broke off
            (0, True),
        ]
        data = [event["data"] for event in events]
        requests = [await client.request("GET", f"/v1/artifacts/{item['request']}") for item in data]
        replies = [await client.request("GET", f"/v1/artifacts/{item['reply']}") for item in data if "reply" in item]
    assert SECRET not in str([requests, replies])
    first, *_, last = requests
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert first["messages"][1]["content"] == "Use [masked]."
    assert {tool["name"] for tool in first["tools"]} == {"glob", "dispatch_subagent"}
    assert [m["role"] for m in last["messages"]] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert replies[0]["reasoning"] == "hm, [masked]"
    assert replies[0]["tool_calls"][0]["name"] == "glob"
    assert (replies[-1]["text"], replies[-1]["usage"]["input_tokens"]) == ("It is [masked].", 7)


@pytest.mark.spec("12.8", "11.6")
async def test_what_is_kept_is_served_as_json_and_its_event_is_described(tmp_path: Path) -> None:
    env = {**script(tmp_path, PLAY), "SUBAGENTD_DEBUG__RECORD_MODEL_IO": "true"}
    async with serving(tmp_path, env=env) as service, service.client() as client, aiohttp.ClientSession() as plain:
        first, *_ = await recorded(client)
        async with plain.get(f"{service.url}/v1/artifacts/{first['data']['request']}") as answer:
            assert answer.content_type == "application/json"
            assert answer.headers["Content-Disposition"] == f'attachment; filename="{first["data"]["request"]}.json"'
        described = (await client.request("GET", "/v1/events/schema"))["events"]["model.recorded"]
        assert (described["durable"], described["schema"]["required"]) == (True, ["model", "request"])
        path = (await client.request("GET", "/openapi.json"))["paths"]["/v1/artifacts/{artifact_id}"]
        assert path["get"]["responses"]["200"]["content"].keys() == {"text/plain", "application/json"}


@pytest.mark.spec("12.8")
async def test_nothing_is_kept_by_default(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        assert await recorded(client) == []
