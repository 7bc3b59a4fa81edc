"""The examples of docs/tasks.md, one after the other, each with the ids that the ones before have given out."""

import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app import settings
from app.client import Client
from tests.pages import FENCED, TASKS, Block, lasting, of, requests
from tests.service import ROOT, agent, finished, script, serving

PLAY = """
agents:
  - when: {task_contains: "Ask a scout"}
    turns:
      - calls: [CALL]
      - {text: "{{ result[0] }}"}
  - when: {task_contains: "Take your time"}
    turns: [{text: "abcdef", chunks: 6, delay_ms: 60000}]
  - turns: [{text: "app/agent/attempts.py:96"}]
"""
LEAD = agent("boss", mode="all", tools=["Agent"])


def section(title: str) -> list[Block]:
    """The blocks under a heading."""
    text = (ROOT / TASKS).read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    return [Block(TASKS, kind, body) for kind, body in FENCED.findall(text)]


async def sent(client: Client, block: Block, ids: dict[str, str]) -> Any:
    """The answer to the request of a block; the ids in it are kept for the next ones, by what they begin with."""
    ((path, data, _),) = requests(block)
    method = re.search(r"-X (\w+)", block.text)
    for kind, value in ids.items():
        path, data = path.replace(f"{kind}_…", value), None if data is None else data.replace(f"{kind}_…", value)
    assert "…" not in path + (data or "")
    body = None if data is None else json.loads(data)
    answer = await client.request(method[1] if method else "GET" if data is None else "POST", path, body)
    for name in ("task_id", "session_id", "run_id") if isinstance(answer, dict) else ():
        if answer.get(name):
            ids[answer[name].split("_")[0]] = answer[name]
    return answer


def shown(value: Any) -> Any:
    """JSON as the page shows it."""
    return json.loads(lasting(json.dumps(value)))


@pytest.mark.spec("9.2", "13.1", "14.9", "14.10")
@pytest.mark.seed("002", 91)
async def test_the_tasks_of_the_page_are_begun_fetched_listed_and_removed(tmp_path: Path) -> None:
    call, model, order, answer = section("In the background")
    fetch, fetched, listing, cancel, remove, clear = section("Looking after tasks")
    env = script(tmp_path, PLAY.replace("CALL", call.text))
    ids: dict[str, str] = {}
    async with serving(tmp_path, env=env) as service, service.client() as client:
        asking = {"agent": "boss", "agents": [LEAD, "scout"], "input": "Ask a scout.", "texts": "en"}
        run = await finished(client, (await client.request("POST", "/v1/runs", asking))["id"])
        assert lasting(run["output"]) == model.text.strip()
        begun = await sent(client, order, ids)
        assert begun.keys() == json.loads(answer.text).keys()
        steady = ("task_id", "session_id", "parent_run_id", "agent", "name", "run_ids", "handoff_id", "events", "after")
        assert {k: shown(begun)[k] for k in steady} == {k: json.loads(answer.text)[k] for k in steady}
        assert shown(await sent(client, fetch, ids)) == json.loads(fetched.text)
        assert [task["task_id"] for task in (await sent(client, listing, ids))["items"]] == [begun["task_id"]]
        assert (await sent(client, cancel, ids))["cancelled"] is False
        assert await sent(client, remove, ids) is None
        assert await sent(client, clear, ids) == {"cleared": 0}


@pytest.mark.spec("9.4", "9.7", "13.1", "14.3", "14.8", "14.9")
async def test_the_runs_of_the_page_are_told_something_resumed_and_interrupted(tmp_path: Path) -> None:
    message, told = section("Messages")
    resume, again = section("Resuming")
    (busy,) = section("A busy session")
    env = script(tmp_path, PLAY.replace("CALL", "{tool: glob}"))
    async with serving(tmp_path, env=env) as service, service.client() as client:
        asking = {"agent": "boss", "agents": [LEAD, "scout"], "input": "Take your time."}
        run = await client.request("POST", "/v1/runs", asking)
        async for frame in client.events(f"/v1/runs/{run['id']}/events"):
            if frame.type == "step.started":
                break
        ids = {"run": run["id"], "ses": run["session_id"]}
        assert shown(await sent(client, message, ids)) == json.loads(told.text)
        instead = await sent(client, busy, ids)
        ended = await finished(client, instead["id"])
        assert (ended["status"], (await finished(client, run["id"]))["status"]) == ("completed", "cancelled")
        gone_on = await finished(client, (await sent(client, resume, ids))["id"])
        assert (gone_on["status"], gone_on["input"]) == ("completed", "And the backoff?")
        named = {"agent": "scout", "task": "Where?", "name": "north", "session_id": run["session_id"]}
        north = await client.request("POST", "/v1/delegations", named)
        result = await sent(client, again, ids)
        assert (result["status"], result["name"]) == ("completed", "north_2")
        namesake = await client.request("POST", "/v1/delegations", named)
        other = await client.request("POST", "/v1/delegations", {**named, "name": "My North"})
        assert [namesake["name"], other["name"]] == ["north_3", "My_North"]
        further = await sent(client, again, ids)
        all_of_them = [
            await client.request("GET", f"/v1/runs/{each['run_id']}") for each in (north, result, further, namesake)
        ]
        first, *ones, own = [(run["memory_id"], run["turn"]) for run in all_of_them]
        assert ones == [(first[0], 1), (first[0], 2)]
        assert own[0] != first[0]
        as_given = await client.request("POST", "/v1/delegations", {**named, "resume": "My North"})
        gone_on_with = await client.request("GET", f"/v1/runs/{as_given['run_id']}")
        assert gone_on_with["memory_id"] == (await client.request("GET", f"/v1/runs/{other['run_id']}"))["memory_id"]


@pytest.mark.spec("13.1")
async def test_the_answer_to_the_example_says_where_the_task_is_found(tmp_path: Path) -> None:
    (first, *_) = [block for block in section("In the background") if block.kind == "sh"]
    ((path, data, headers),) = requests(first)
    env = script(tmp_path, PLAY.replace("CALL", "{tool: glob}"))
    async with (
        serving(tmp_path, env=env) as service,
        aiohttp.ClientSession() as http,
        http.post(service.url + path, data=data, headers=headers) as answer,
    ):
        assert answer.status == 202
        assert re.fullmatch(r"/v1/tasks/ho_\w+", answer.headers["location"])


@pytest.mark.spec("13.1", "16.5")
def test_the_settings_of_the_page_are_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = of("toml", page=TASKS)
    (tmp_path / settings.TOML_FILE).write_text(block.text)
    monkeypatch.chdir(tmp_path)
    assert settings.load().tasks.retention_h == 48
