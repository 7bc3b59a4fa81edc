"""What a stream shows of faults, of subagents and of thoughts, and that it ends by itself."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from app.client import Client, Received
from tests.flows.test_slow_readers import connect
from tests.service import WAIT_S, Service, agent, finished, received, script, serving
from tests.stubs.openai_stub import Answer, OpenAIStub, Request, calls, chunk, stream

BROKEN = {"error": {"message": "the model burned down", "code": 400}}
LONG = 200_000  # characters of a text that no socket buffer holds


@asynccontextmanager
async def played(folder: Path, *answers: Answer) -> AsyncIterator[tuple[Service, Client]]:
    """A service whose agents get these answers of a model, by the depth that their prompt names."""
    async with OpenAIStub() as stub:
        stub.script(*answers)
        env = {"OPENAI_BASE_URL": stub.base_url, "OPENAI_API_KEY": "test", "SUBAGENTD_MODEL": "openai:test"}
        async with serving(folder, env=env) as service, service.client() as client:
            yield service, client


def frames_of(raw: bytes) -> list[tuple[str, Any]]:
    """Type and data of whole frames; raises for one that is not whole."""
    found: list[tuple[str, Any]] = []
    for block in raw.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


@pytest.mark.spec("5.8", "11.6")
@pytest.mark.case("B151", "B155")
async def test_a_model_that_fails_in_mid_sentence_is_an_error_with_a_code_and_no_answer(tmp_path: Path) -> None:
    said = "Half a sentence. " * (LONG // 17)
    async with played(tmp_path, stream(chunk({"content": said}), BROKEN, done=False)) as (service, client):
        body = {"agent": "solo", "agents": [agent("solo", mode="all", tools=[])]}
        session = await client.request("POST", "/v1/sessions", body)
        reader, writer = await connect(service.url, f"/v1/sessions/{session['id']}/events?until=idle")
        head = await reader.readuntil(b"retry: ")
        assert b" 200 " in head
        run = await client.request("POST", f"/v1/sessions/{session['id']}/runs", {"input": "Go."})
        ended = await finished(client, run["id"])  # while the large frames wait for the slow reader
        async with asyncio.timeout(WAIT_S):
            raw = await reader.read(-1)
        writer.close()
        seen = frames_of(_unchunked(raw))
        types = [kind for kind, _ in seen]
        assert (types[-2:], types.count("run.failed")) == (["run.failed", "session.idle"], 1)
        (failed,) = [data["data"] for kind, data in seen if kind == "run.failed"]
        assert (failed["status"], failed["stop_reason"]) == ("failed", "error")
        assert failed["error"]["code"].startswith("model_")
        assert "burned down" in failed["error"]["message"]
        assert (ended["status"], ended["error"]) == ("failed", failed["error"])
        rows = (await client.request("GET", f"/v1/runs/{run['id']}/messages"))["items"]
        replies = [row for row in rows if row["role"] == "assistant"]
        assert [(row["content"], row["metadata"]["partial"]) for row in replies] == [(said, True)]
        assert not any("burned down" in row["content"] for row in rows), "a fault is nothing that an agent has said"


def _unchunked(raw: bytes) -> bytes:
    """The body of a chunked answer, whose head and first line were read."""
    _, _, rest = raw.partition(b"\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size or b"0", 16)
        body, rest = body + rest[:length], rest[length + 2 :]
        if not length:
            return body
    raise AssertionError("the stream has no end")


def _tree(request: Request) -> Answer:
    """A lead that has one child look three times; both think aloud."""
    system, results = request.messages[0]["content"], sum(m["role"] == "tool" for m in request.messages)
    thought = chunk({"reasoning_content": f"SECRET THOUGHT {system} {results}"})
    if "You are lead" in system:
        if not results:
            return calls(("dispatch_subagent", json.dumps({"agent_type": "looker", "task": "Look."})))
        return stream(thought, chunk({"content": "All seen."}), chunk({}, "stop"))
    if results < 3:
        return calls(("glob", json.dumps({"pattern": f"{results}*"})))
    return stream(thought, chunk({"content": "I looked."}), chunk({}, "stop"))


TREE = {
    "agent": "lead",
    "agents": [agent("lead", mode="primary", tools=["dispatch_subagent"]), agent("looker", tools=["glob"])],
    "surfaces": ["dispatch"],
    "input": "Go.",
}


def durable(frames: list[Received], kind: str) -> list[Mapping[str, Any]]:
    return [frame.data for frame in frames if frame.type == kind]


@pytest.mark.spec("11.1", "11.3", "11.6")
@pytest.mark.case("B157", "B158")
async def test_a_parents_stream_has_what_its_child_does_and_thoughts_are_told_from_what_is_said(
    tmp_path: Path,
) -> None:
    async with OpenAIStub() as stub:
        stub.decide(_tree)
        env = {"OPENAI_BASE_URL": stub.base_url, "OPENAI_API_KEY": "test", "SUBAGENTD_MODEL": "openai:test"}
        async with serving(tmp_path, env=env) as service, service.client() as client:
            run = await client.request("POST", "/v1/runs", TREE)
            path = f"/v1/runs/{run['id']}/events"
            frames = await received(client, path)
            (child,) = [e["run_id"] for e in durable(frames, "run.queued") if e["depth"] == 1]
            inner = [e for e in durable(frames, "tool.result") if e["run_id"] == child]
            assert [(e["depth"], e["path"], e["parent_run_id"]) for e in inner] == [(1, [1, 2], run["id"])] * 3
            assert len({e["data"]["call_id"] for e in inner}) == 3
            only_lead = await received(client, path, depth="0")
            assert durable(only_lead, "run.completed")
            assert {frame.data["depth"] for frame in only_lead if frame.id is not None and frame.type} == {0}

            said = [e for e in durable(frames, "message") if e["data"]["role"] == "assistant"]
            thought = [e["data"]["reasoning"] for e in said if e["data"].get("reasoning")]
            assert len(thought) == 2, "kept, as what it is"
            assert not any("SECRET THOUGHT" in e["data"]["content"] for e in said)
            shown = await received(client, path, types="tool.result,run.completed")
            assert "SECRET THOUGHT" not in json.dumps([frame.data for frame in shown])
            outputs = [e["data"]["output"] for e in durable(frames, "run.completed")]
            assert outputs == ["I looked.", "All seen."]
            assert not any("SECRET THOUGHT" in json.dumps(request.messages) for request in stub.requests[-1:])


@pytest.mark.spec("11.3")
@pytest.mark.case("B159")
async def test_streams_of_what_has_ended_give_their_connections_back(tmp_path: Path) -> None:
    play = 'agents: [{turns: [{text: "Done.", chunks: 3, delay_ms: 20}]}]'
    async with serving(tmp_path, env=script(tmp_path, play)) as service, service.client() as client:
        body = {"agent": "solo", "agents": [agent("solo", mode="all", tools=[])]}
        session = await client.request("POST", "/v1/sessions", body)
        # as a browser does: six connections to one server, and no more
        limits = httpx.Limits(max_connections=6)
        address = urlsplit(service.url)
        async with httpx.AsyncClient(base_url=f"http://{address.netloc}", limits=limits, timeout=WAIT_S) as browser:
            runs = [await client.request("POST", "/v1/runs", {**body, "input": "Go."}) for _ in range(5)]
            paths = [f"/v1/runs/{run['id']}/events" for run in runs]

            async def tab(path: str) -> str:
                async with browser.stream("GET", path, headers={"Accept": "text/event-stream"}) as answer:
                    return (await answer.aread()).decode()

            # one stream shows all turns of a session: the sixth is for as many as there are
            turns = asyncio.create_task(tab(f"/v1/sessions/{session['id']}/events"))
            tabs = [asyncio.create_task(tab(path)) for path in paths]
            for number in range(3):
                turn = await client.request("POST", f"/v1/sessions/{session['id']}/runs", {"input": str(number)})
                assert (await finished(client, turn["id"]))["status"] == "completed"
            assert (await browser.get("/v1/sessions")).status_code == 200
            for shown in await asyncio.gather(*tabs):
                assert shown.count("event: run.completed") == 1
            await client.request("PATCH", f"/v1/sessions/{session['id']}", {"closed": True})
            assert (await turns).count("event: run.completed") == 3
