"""MCP servers that agent files bring along: begun with their file, for its agent alone, gone with it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.client import Client, ServiceError
from tests.flows.test_mcp import entry, results, tools_of
from tests.service import WAIT_S, Service, agent, finished, script, serving
from tests.stubs.openai_stub import Answer, OpenAIStub, Request, calls, text
from tests.tools.mcp_world import alive

PLAY = """
agents:
  - when: {system_contains: "You are lead"}
    turns:
      - {calls: [{tool: dispatch_subagent, arguments: {agent_type: heir, task: "go on"}}]}
      - {text: "Lead: {{ result[0] }}"}
  - when: {system_contains: "You are"}
    turns:
      - {calls: [{tool: mcp__own__echo, arguments: {text: "heard"}}]}
      - {text: "It said: {{ result[0] }}"}
"""


def write(folder: Path, name: str, servers: Any = None, place: str = "ours", **fields: Any) -> Path:
    """An agent file, with servers of its own or without."""
    head = {"name": name, "description": "d", "mode": "all", **fields}
    head |= {"mcpServers": servers} if servers else {}
    (folder / place).mkdir(exist_ok=True)
    path = folder / place / f"{name}.md"
    path.write_text("\n".join(["---", *(f"{key}: {json.dumps(value)}" for key, value in head.items()), "---"]))
    path.write_text(path.read_text() + f"\nYou are {name}.\n")
    return path


@contextlib.asynccontextmanager
async def serving_files(folder: Path, **env: str) -> AsyncIterator[tuple[Service, Client]]:
    """A service with the agents in `ours`, which is trusted, and in `theirs`, which is not; no process may be left."""
    for name in ("ours", "theirs"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "subagentd.toml").write_text('agents = ["theirs", "ours"]\ntrusted_agents = ["ours"]\nwatch = "off"\n')
    async with serving(folder, env={**script(folder, PLAY), **env}) as service, service.client() as client:
        yield service, client
    pid = folder / "ours" / "pid"
    assert not pid.exists() or not alive(int(pid.read_text()))


async def run_of(client: Client, name: str, **fields: Any) -> dict[str, Any]:
    """A finished run of one agent."""
    started = await client.request("POST", "/v1/runs", {"agent": name, "input": "go", **fields})
    return await finished(client, started["id"])


async def up(client: Client) -> None:
    """Wait until the server's tools are there."""
    async with asyncio.timeout(WAIT_S):
        while "mcp__own__echo" not in await tools_of(client):
            await asyncio.sleep(0.02)


@pytest.mark.spec("7.7", "7.2", "10.1")
async def test_a_server_of_a_file_is_there_for_its_agent_and_whoever_takes_over_its_tools_and_for_nobody_else(
    tmp_path: Path,
) -> None:
    own = [{"own": entry(tmp_path)}]
    write(tmp_path, "user", own, tools="Read")
    write(tmp_path, "lead", own, tools="Agent")
    write(tmp_path, "all", tools="mcp__*, Read")
    write(tmp_path, "named", tools="mcp__own__echo, Read")
    write(tmp_path, "heir")
    async with serving_files(tmp_path) as (_, client):
        await up(client)
        assert (await run_of(client, "user"))["output"] == "It said: heard"
        led = await run_of(client, "lead", agents=["lead", "heir"], surfaces=["dispatch"])
        assert "It said: heard" in led["output"]
        for name in ("all", "named", "heir"):
            assert "There is no tool 'mcp__own__echo' here" in (await run_of(client, name))["output"], name
            assert "mcp__own__echo" not in (await client.request("GET", f"/v1/agents/{name}"))["effective_tools"]
        shown = await client.request("GET", "/v1/agents/user")
        assert shown["mcp_servers"] == ["own"]
        assert "mcp__own__echo" in shown["effective_tools"]
        for tools in (["mcp__own__echo"], ["mcp__own"]):
            with pytest.raises(ServiceError) as caught:
                await client.request("PUT", "/v1/agents/mine", agent("mine", tools=tools))
            assert caught.value.status == 422
    calls_made = (tmp_path / "ours" / "calls").read_text().splitlines()
    assert calls_made == ["started", "echo heard", "echo heard"], "one process for both files"


@pytest.mark.spec("7.7", "10.3")
async def test_a_server_begins_changes_and_ends_with_its_file_and_a_run_under_way_is_told_that_it_is_gone(
    tmp_path: Path,
) -> None:
    given = entry(tmp_path)
    asked, go_on = asyncio.Event(), asyncio.Event()

    def decide(request: Request) -> Answer:
        done = [message for message in request.messages if message["role"] == "tool"]
        if len(done) == 2:
            return text(done[-1]["content"])
        if done:
            asked.set()
        made = calls(("mcp__own__echo", json.dumps({"text": f"call {len(done)}"})))
        return Answer(writes=(made.writes[0], go_on, *made.writes[1:])) if done else made

    async with OpenAIStub() as stub:
        stub.decide(decide)
        env = {"OPENAI_BASE_URL": stub.base_url, "OPENAI_API_KEY": "k", "SUBAGENTD_MODEL": "openai:m"}
        async with serving_files(tmp_path, **env) as (_, client):
            assert await tools_of(client) == {}
            file = write(tmp_path, "user", {"own": given}, tools="Read")
            await client.request("POST", "/v1/agents/reload")
            await up(client)
            first = int((tmp_path / "ours" / "pid").read_text())
            await client.request("POST", "/v1/agents/reload")
            assert alive(first), "nothing has changed"
            write(tmp_path, "user", {"own": {**given, "env": {**given["env"], "MORE": "1"}}}, tools="Read")
            await client.request("POST", "/v1/agents/reload")
            await up(client)
            second = int((tmp_path / "ours" / "pid").read_text())
            assert (alive(first), alive(second)) == (False, True)
            started = await client.request("POST", "/v1/runs", {"agent": "user", "input": "go"})
            async with asyncio.timeout(WAIT_S):
                await asked.wait()
            file.unlink()
            await client.request("POST", "/v1/agents/reload")
            assert not alive(second)
            assert "mcp" not in await client.request("GET", "/readyz")
            assert await tools_of(client) == {}
            go_on.set()
            run = await finished(client, started["id"])
            assert run["output"] == ("Not called: the MCP server own is stopped. Go on without it, or try later.")
            assert [result["status"] for result in await results(client, run["session_id"])] == ["ok", "error"]


@pytest.mark.spec("10.5", "10.3")
async def test_servers_of_files_that_are_not_trusted_or_cannot_be_begun_are_told_and_never_started(
    tmp_path: Path,
) -> None:
    write(tmp_path, "stranger", {"own": entry(tmp_path)}, "theirs", tools="Read, mcp__own__echo")
    unusable = {
        "both": {"command": "sh", "url": "http://127.0.0.1:1/"},
        "neither": {"args": ["x"]},
        "misspelt": {"comand": "hush-hush"},
        "unset": {"command": "sh", "env": {"TOKEN": "${NO_SUCH_VARIABLE}"}},
        "sse": {"type": "sse", "url": "http://127.0.0.1:1/"},
        "a__b": {"command": "sh"},
    }
    write(tmp_path, "ours", unusable, tools="Read")
    async with serving_files(tmp_path) as (service, client):
        assert "There is no tool 'mcp__own__echo' here" in (await run_of(client, "stranger"))["output"]
        listed = await client.request("GET", "/v1/agents")
        assert listed["broken"] == []
        warned = [each for each in listed["warnings"] if each["key"] == "mcpServers"]
        (stranger,) = [each for each in warned if "theirs" in each["path"]]
        assert (stranger["line"], "trusted_agents" in stranger["message"]) == (6, True)
        told = {each["message"].split(".")[1].split(":")[0]: each for each in warned if each is not stranger}
        assert list(told) == list(unusable)
        assert {each["line"] for each in told.values()} == {6}
        assert "NO_SUCH_VARIABLE" in told["unset"]["message"]
        assert "comand" in told["misspelt"]["message"]
        assert "hush-hush" not in json.dumps(listed) + service.log
        assert "mcp" not in await client.request("GET", "/readyz")
    assert not (tmp_path / "ours" / "calls").exists()


@pytest.mark.spec("12.6")
async def test_secrets_of_a_server_of_a_file_are_masked_wherever_they_come_back(tmp_path: Path) -> None:
    given = entry(tmp_path)
    given["env"] = {**given["env"], "WORD": "${OUR_WORD}", "API_KEY": "written-in-the-file"}
    write(tmp_path, "user", {"own": {"type": "stdio", **given}}, tools="Read")
    play = PLAY.replace("heard", "swordfish-and-chips written-in-the-file")
    env = {**script(tmp_path, play, "said"), "OUR_WORD": "swordfish-and-chips"}
    async with serving_files(tmp_path, **env) as (service, client):
        await up(client)
        pid = int((tmp_path / "ours" / "pid").read_text())
        assert b"WORD=swordfish-and-chips" in Path(f"/proc/{pid}/environ").read_bytes()
        run = await run_of(client, "user")
        assert run["output"] == "It said: [masked] [masked]"
        shown = json.dumps([await results(client, run["session_id"]), await client.request("GET", "/v1/agents/user")])
    assert "swordfish" not in shown + service.log
    assert "written-in-the-file" not in shown + service.log
