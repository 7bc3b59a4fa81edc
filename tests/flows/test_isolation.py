"""Context isolation: what the parent's model is sent does not grow with the work below it."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.service import agent, finished, serving
from tests.stubs.openai_stub import Answer, OpenAIStub, Request, calls, text

ANSWER = "The child's answer."
DISPATCH = ("dispatch_subagent", json.dumps({"agent_type": "worker", "task": "Work."}))
PER_AGENT = ("subagent_worker", json.dumps({"task": "Work."}))
LENGTHS = (1, 50, 199)  # of the child's work, in steps
LETTERS = [chr(code) for code in range(0x30, 0xA000) if chr(code).isalpha() or chr(code).isdigit()]


def playing(steps: int, noise: str, delegating: tuple[str, str] = DISPATCH) -> Any:
    """A model that delegates once; the child makes `steps` noisy tool calls before it answers."""

    def decide(request: Request) -> Answer:
        messages = request.messages
        results = [m for m in messages if m["role"] == "tool"]
        if messages[0]["content"] == "You are boss.":
            if results:
                return text("Done.")
            return calls(delegating)
        if len(results) < steps:
            return calls(("grep", json.dumps({"pattern": f"{noise}{len(results)}"})))
        return text(ANSWER)

    return decide


def body(steps: int, **fields: Any) -> dict[str, Any]:
    """A parent with one child that may take that many steps."""
    worker = agent("worker", tools=["grep"], max_steps=min(200, steps + 1))
    return {
        "agent": "boss",
        "agents": [agent("boss", mode="primary", tools=["Agent"]), worker],
        "input": "Go.",
        "surfaces": ["dispatch"],
        **fields,
    }


def requests_of(stub: OpenAIStub, prompt: str) -> list[Request]:
    """The requests of one agent."""
    return [request for request in stub.requests if request.messages[0]["content"] == prompt]


@pytest.mark.spec("2.1", "2.2", "7.2")
async def test_the_parents_request_is_the_same_after_1_50_and_200_steps_below(tmp_path: Path) -> None:
    sizes: dict[int, int] = {}
    seen: dict[int, Any] = {}
    async with OpenAIStub() as stub:
        env = {"OPENAI_BASE_URL": stub.base_url, "OPENAI_API_KEY": "test", "SUBAGENTD_MODEL": "openai:test"}
        async with serving(tmp_path, env=env) as service, service.client() as client:
            for steps in LENGTHS:
                stub.requests.clear()
                stub.decide(playing(steps, "needle"))
                started = await client.request("POST", "/v1/runs", body(steps))
                run = await finished(client, started["id"])
                assert run["status"] == "completed", run
                parent = requests_of(stub, "You are boss.")
                assert len(parent) == 2
                sizes[steps] = len(parent[-1].raw)
                seen[steps] = parent[-1].messages[-1]["content"]
                child = requests_of(stub, "You are worker.")
                assert len(child) == steps + 1
                # the child begins with exactly its prompt and its task, whatever the parent's history holds
                assert [m["content"] for m in child[0].messages] == ["You are worker.", "Work."]
                assert "needle" not in json.dumps(parent[-1].messages)
    assert set(seen.values()) == {ANSWER}
    # ids have one length, so that for equal output nothing at all may differ in size
    assert len(set(sizes.values())) == 1, sizes


@pytest.mark.spec("2.2", "3.1")
async def test_a_per_agent_result_differs_in_the_digits_of_steps_and_the_id_of_the_run_only(tmp_path: Path) -> None:
    sizes: dict[int, int] = {}
    alike: set[str] = set()
    async with OpenAIStub() as stub:
        env = {"OPENAI_BASE_URL": stub.base_url, "OPENAI_API_KEY": "test", "SUBAGENTD_MODEL": "openai:test"}
        async with serving(tmp_path, env=env) as service, service.client() as client:
            for steps in LENGTHS:
                stub.requests.clear()
                stub.decide(playing(steps, "needle", PER_AGENT))
                started = await client.request("POST", "/v1/runs", body(steps, surfaces=["per_agent"]))
                run = await finished(client, started["id"])
                assert run["status"] == "completed", run
                assert len(requests_of(stub, "You are worker.")) == steps + 1
                (_, last) = requests_of(stub, "You are boss.")
                result = last.messages[-1]["content"]
                shape = json.loads(result)
                assert (shape["output"], shape["steps"]) == (ANSWER, steps + 1)
                alike.add(_without_steps_and_run(result))
                sizes[steps] = len(last.raw)
    assert len(alike) == 1, alike
    # "2", "51", "200": run ids have one length, so only the digits of `steps` are left to differ
    assert [sizes[steps] - sizes[LENGTHS[0]] for steps in LENGTHS] == [0, 1, 2]


def _without_steps_and_run(result: str) -> str:
    return re.sub(r'"run_id": "run_\w+"', '"run_id": ""', re.sub(r'"steps": \d+', '"steps": 0', result))


@pytest.mark.spec("2.2")
async def test_no_text_of_a_childs_work_reaches_the_parent_whatever_it_is(tmp_path: Path) -> None:
    dice = random.Random(22)
    async with OpenAIStub() as stub:
        env = {"OPENAI_BASE_URL": stub.base_url, "OPENAI_API_KEY": "test", "SUBAGENTD_MODEL": "openai:test"}
        async with serving(tmp_path, env=env) as service, service.client() as client:
            for _ in range(15):
                steps, noise = dice.randint(0, 12), "".join(dice.choices(LETTERS, k=dice.randint(3, 20)))
                stub.requests.clear()
                stub.decide(playing(steps, noise))
                started = await client.request("POST", "/v1/runs", body(steps))
                run = await finished(client, started["id"])
                assert run["status"] == "completed", run
                (_, last) = requests_of(stub, "You are boss.")
                contents = [m["content"] for m in last.messages if m["role"] == "tool"]
                assert contents == [ANSWER], (steps, noise)
                assert noise not in json.dumps(last.messages, ensure_ascii=False), (steps, noise)
