"""The main job with a model of Anthropic, over real HTTP on both sides: a parent, two children, two turns."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.llm.asking import KEY
from tests.service import agent, finished, serving
from tests.stubs.anthropic_stub import SIGNED, AnthropicStub, message, thinking, tool, words
from tests.stubs.openai_stub import Answer, Request

AGENTS = [
    agent("boss", mode="primary", tools=["Agent"]),
    agent("reader", tools=["read_file"]),
    agent("finder", tools=["glob"]),
]
TASKS = {"reader": "Read a.txt", "finder": "Find text files"}


def delegate(name: str) -> dict[str, Any]:
    return tool("dispatch_subagent", json.dumps({"agent_type": name, "task": TASKS[name]}))


def last(request: Request) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = request.messages[-1]["content"]
    return content


def who(request: Request) -> str:
    prompt: str = request.body["system"][0]["text"]
    return prompt.removeprefix("You are ").removesuffix(".")


def decide(request: Request) -> Answer:
    """The boss asks both children, each child uses its tool, and everybody thinks before every step."""
    hm = thinking(f"What does {who(request)} need?")
    results = [block["content"] for block in last(request) if block["type"] == "tool_result"]
    usage: dict[str, Any] = {"input_tokens": 100, "cache_read_input_tokens": 50}
    if results:
        return message(hm, words(" / ".join(results)), **usage)
    match who(request):
        case "boss" if len(request.messages) == 1:
            return message(hm, words("I ask two."), delegate("reader"), delegate("finder"), **usage)
        case "boss":
            return message(hm, words("Nothing more."), **usage)
        case "reader":
            return message(hm, tool("read_file", '{"path": "a.txt"}'), **usage)
        case _:
            return message(hm, tool("glob", '{"pattern": "*.txt"}'), **usage)


@pytest.mark.spec("13.1", "13.3", "13.4")
@pytest.mark.case("B034")
async def test_a_parent_and_two_children_work_and_their_reasoning_goes_back_as_it_was_signed(tmp_path: Path) -> None:
    async with AnthropicStub() as stub:
        stub.decide(decide)
        env = {
            "ANTHROPIC_BASE_URL": stub.base_url,
            "ANTHROPIC_API_KEY": KEY,
            "SUBAGENTD_MODEL": "anthropic:claude-sonnet-4-5",
        }
        async with serving(tmp_path, env=env) as service, service.client() as client:
            (service.workspace / "a.txt").write_text("hello world\n")
            body = {"agent": "boss", "agents": AGENTS, "input": "Look around.", "thinking": "on"}
            started = await client.request("POST", "/v1/runs", {**body, "surfaces": ["dispatch"]})
            run = await finished(client, started["id"])
            assert run["status"] == "completed", run
            assert "hello world" in run["output"] and "a.txt" in run["output"]
            assert run["usage_total"]["model_calls"] == 6
            assert (run["usage_total"]["input_tokens"], run["usage_total"]["cached_tokens"]) == (900, 300)
            assert run["usage_total"]["output_tokens"] == 30
            again = await client.request(
                "POST", f"/v1/sessions/{started['session_id']}/runs", {"input": "Anything else?"}
            )
            assert (await finished(client, again["id"]))["output"] == "Nothing more."
            assert KEY not in json.dumps(await client.page(f"/v1/sessions/{started['session_id']}/events"))
    assert sorted(who(request) for request in stub.requests) == ["boss"] * 3 + ["finder"] * 2 + ["reader"] * 2
    assert all(request.body["thinking"]["type"] == "enabled" for request in stub.requests)
    turns = [entry for entry in stub.requests[-1].messages if entry["role"] == "assistant"]
    assert [[block["type"] for block in entry["content"] if block["type"] in SIGNED] for entry in turns] == [
        ["thinking"], ["thinking"],
    ]  # fmt: skip
