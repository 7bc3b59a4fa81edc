"""MCP servers in a running service: in children, under hooks and rules, down and back, changed and asked about."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.client import Client
from app.settings_mcp import Mcp
from app.wiring_mcp import server_of
from tests.flows.test_hooks import guard
from tests.processes import until
from tests.service import ROOT, WAIT_S, Service, agent, events_of, finished, script, serving
from tests.tools.mcp_world import PROGRAM, alive

pytestmark = pytest.mark.slow

PLAY = """
agents:
  - when: {system_contains: "You are lead"}
    turns:
      - {calls: [{tool: mcp__ours__echo, arguments: {text: "from the lead"}}]}
      - {calls: [{tool: dispatch_subagent, arguments: {agent_type: middle, task: "go on"}}]}
      - {text: "Lead: {{ result[-1] }}"}
  - when: {system_contains: "You are middle"}
    turns:
      - {calls: [{tool: mcp__ours__echo, arguments: {text: "from the child"}}]}
      - {calls: [{tool: dispatch_subagent, arguments: {agent_type: worker, task: "go on"}}]}
      - {text: "Middle: {{ result[-1] }}"}
  - when: {system_contains: "You are worker"}
    turns:
      - {calls: [{tool: mcp__ours__echo, arguments: {text: "from the grandchild"}}]}
      - {text: "Worker: {{ result[-1] }}"}
  - when: {system_contains: "You are twice"}
    turns:
      - {calls: [{tool: mcp__ours__echo, arguments: {text: "one"}}]}
      - {calls: [{tool: mcp__ours__echo, arguments: {text: "two"}}]}
      - {text: "Twice: {{ result[-1] }}"}
  - when: {system_contains: "You are unlucky"}
    turns:
      - {calls: [{tool: mcp__ours__crash, arguments: {}}]}
      - {calls: [{tool: mcp__ours__echo, arguments: {text: "it is back"}}]}
      - {text: "Unlucky: {{ result[-1] }}"}
  - when: {system_contains: "You are patient"}
    turns:
      - {calls: [{tool: mcp__ours__slow, arguments: {}}]}
      - {text: "Patient: {{ result[-1] }}"}
  - when: {system_contains: "You are hurried"}
    turns:
      - {calls: [{tool: mcp__brief__slow, arguments: {}}]}
      - {text: "Hurried: {{ result[-1] }}"}
  - when: {system_contains: "You are watched"}
    turns:
      - {calls: [{tool: mcp__ours__count, arguments: {}}]}
      - {text: "Watched."}
"""
TOOLS = ["Agent", "mcp__ours"]
TREE = {
    "agent": "lead",
    "agents": [agent("lead", mode="primary", tools=TOOLS), agent("middle", tools=TOOLS), agent("worker", tools=TOOLS)],
    "surfaces": ["dispatch"],
    "policy": {"max_depth": 2},
    "input": "go",
}


def order(name: str, tools: Sequence[str] = ("mcp__ours",)) -> dict[str, Any]:
    """A run of one agent that has these tools."""
    return {"agent": name, "agents": [agent(name, mode="all", tools=list(tools))], "input": "go"}


def entry(folder: Path, name: str = "ours", **fields: Any) -> dict[str, Any]:
    """Our server in the settings."""
    (folder / name).mkdir(exist_ok=True)
    environment = {"MCP_TEST": str(folder / name), "PYTHONPATH": str(ROOT)}
    return {"command": sys.executable, "args": [PROGRAM], "env": environment, **fields}


def environment(folder: Path, servers: Mapping[str, Any] | None = None, **env: str) -> dict[str, str]:
    """A service with our server, or with these."""
    given = {"ours": entry(folder)} if servers is None else servers
    return {**script(folder, PLAY), "SUBAGENTD_MCP__SERVERS": json.dumps(given), **env}


@contextlib.asynccontextmanager
async def running(
    folder: Path, servers: Mapping[str, Any] | None = None, /, **env: str
) -> AsyncIterator[tuple[Service, Client]]:
    """A service with MCP servers; nothing of them may be left."""
    async with serving(folder, env=environment(folder, servers, **env)) as service, service.client() as client:
        yield service, client
    assert not [pid for pid in folder.glob("*/pid") if alive(int(pid.read_text()))]


async def run_of(client: Client, name: str, **fields: Any) -> dict[str, Any]:
    """A finished run of one agent that has our server."""
    started = await client.request("POST", "/v1/runs", {**order(name), **fields})
    return await finished(client, started["id"])


async def tools_of(client: Client) -> dict[str, dict[str, Any]]:
    """What `GET /v1/tools` tells of MCP tools."""
    page = await client.page("/v1/tools", limit=100)
    return {tool["name"]: tool for tool in page["items"] if tool["name"].startswith("mcp__")}


async def results(client: Client, session_id: str) -> list[dict[str, Any]]:
    """The results of all tool calls of a session."""
    found = await events_of(client, f"/v1/sessions/{session_id}/events")
    return [event["data"] for event in found if event["type"] == "tool.result"]


async def state(client: Client, name: str, wanted: str) -> None:
    """Wait until a server is so."""
    async with asyncio.timeout(WAIT_S):
        while (await client.request("GET", "/v1/tools"))["mcp"][name] != wanted:
            await asyncio.sleep(0.02)  # no event tells of it


@pytest.mark.case("B098")
@pytest.mark.spec("6.1")
async def test_a_hook_that_blocks_a_servers_tool_blocks_it_in_children_too(tmp_path: Path) -> None:
    hook, told = guard(tmp_path, matcher="mcp__ours__.*")
    env = {"SUBAGENTD_HOOKS__ENTRIES": json.dumps([hook])}
    async with running(tmp_path, **env) as (_, client):
        started = await client.request("POST", "/v1/runs", TREE)
        await finished(client, started["id"])
        blocked = [r for r in await results(client, started["session_id"]) if r["tool"] == "mcp__ours__echo"]
        assert [r["status"] for r in blocked] == ["denied"] * 3
    assert (tmp_path / "ours" / "calls").read_text().splitlines() == ["started"]
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    assert {line["tool_name"] for line in lines if line["hook_event_name"] == "PreToolUse"} == {"mcp__ours__echo"}


@pytest.mark.case("B203")
async def test_servers_that_are_down_delay_nothing_and_are_named_to_whoever_misses_their_tools(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "mode").write_text("hang")
    servers = {
        "ours": entry(tmp_path, startup_ms=600),
        "gone": {"command": "/no/such/program"},
        "refused": {"url": "http://127.0.0.1:1/mcp"},
    }
    async with running(tmp_path, servers) as (service, client):
        ready = await client.request("GET", "/readyz")
        assert ready["ready"] is True
        assert sum(ready["mcp"].values()) == 3
        assert "gone" not in ready["mcp"], "whoever has no key is told no names"
        await state(client, "ours", "down")
        reads = agent("twice", mode="all", tools=["mcp__ours", "glob"])  # without any tool a model is not heard
        run = await run_of(client, "twice", agents=[reads])
        assert run["output"].startswith("Twice: There is no tool 'mcp__ours__echo' here. It is missing: mcp__ours (")
        assert "the MCP server ours is down" in run["output"]
        assert "goes without mcp__ours (the MCP server ours is down)" in service.log
        await state(client, "gone", "down")
        await state(client, "refused", "down")
        assert (await client.request("GET", "/readyz"))["mcp"] == {"down": 3}


@pytest.mark.spec("7.7", "8.5")
async def test_a_tool_that_changed_while_the_service_was_away_is_asked_about_until_a_rule_allows_it(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as (_, client):
        await state(client, "ours", "up")
        assert (await tools_of(client))["mcp__ours__echo"]["asks"] is None
        assert (await run_of(client, "twice"))["output"] == "Twice: two"
    (tmp_path / "ours" / "changed").touch()
    async with running(tmp_path, SUBAGENTD_PERMISSIONS__EXPIRES_S="0.2") as (_, client):
        await state(client, "ours", "up")
        told = (await tools_of(client))["mcp__ours__echo"]
        assert (told["server"], told["state"]) == ("ours", "up")
        assert told["asks"] == "the MCP server changed this tool since it was first seen"
        run = await run_of(client, "twice")
        assert "nobody answered the permission request in time" in run["output"]
        asked = (await client.page("/v1/permissions", session_id=run["session_id"]))["items"]
        assert {item["reason"] for item in asked} == {told["asks"]}
        assert {item["suggested_rule"] for item in asked} == {"mcp__ours__echo"}
        explained = await client.request("GET", "/v1/permissions", explain="mcp__ours__echo", agent="scout")
        assert explained["verdict"] == "ask"
    rule = {"SUBAGENTD_PERMISSIONS__RULES__ALLOW": '["mcp__ours__echo"]'}
    async with running(tmp_path, **rule) as (_, client):
        await state(client, "ours", "up")
        assert (await run_of(client, "twice"))["output"] == "Twice: two"


def test_the_example_of_the_page_can_be_used() -> None:
    page = (ROOT / "docs" / "mcp.md").read_text()
    example = tomllib.loads(page.split("```toml\n")[1].split("```")[0])
    given = Mcp(**example["mcp"])
    files, tickets = (server_of(name, entry, {"TICKETS_TOKEN": "t"}) for name, entry in given.servers.items())
    assert (files.command, files.trusted) == ("npx", True)
    assert (dict(tickets.headers), tickets.tools) == ({"Authorization": "Bearer t"}, ("search", "get_ticket"))


async def test_a_variable_that_is_not_set_is_named_at_the_start(tmp_path: Path) -> None:
    given = {"url": "http://127.0.0.1:1/mcp", "headers": {"Authorization": "Bearer ${NO_SUCH_VARIABLE}"}}
    env = environment(tmp_path, {"far": given})
    ended = subprocess.run(
        [sys.executable, "-m", "app", "serve", "--port", "0"], env={**os.environ, **env}, cwd=tmp_path,
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert ended.returncode != 0
    assert "mcp.servers.far.headers: the environment variable NO_SUCH_VARIABLE is not set" in ended.stderr


async def test_a_service_without_servers_never_imports_the_protocol(tmp_path: Path) -> None:
    code = """
import asyncio, sys
from app.settings import load
from app.wiring import build

async def main():
    wired = await build(load(store={"url": sys.argv[1]}))
    await wired.close()

asyncio.run(main())
print([name for name in sys.modules if name.split(".")[0] in ("mcp", "mcp_types", "httpx2", "anyio")])
"""
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x.db")], env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = told.stdout.strip().splitlines()[-1]
    assert "'mcp" not in loaded
    assert "httpx2" not in loaded


async def test_a_service_that_is_killed_leaves_no_server_behind(tmp_path: Path) -> None:
    service = Service(tmp_path, env=environment(tmp_path))
    await service.start()
    async with service.client() as client:
        await state(client, "ours", "up")
    pid = int((tmp_path / "ours" / "pid").read_text())
    await service.kill()
    try:
        await until(lambda: not alive(pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
