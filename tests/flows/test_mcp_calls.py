"""Calls of MCP servers in one running service: in children, asked about, with progress, out of time, cancelled."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.client import Client
from tests.flows.test_mcp import TREE, entry, environment, order, results, running, state
from tests.processes import until
from tests.service import WAIT_S, Service, finished

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def approved(client: Client, body: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A finished run whose questions were all answered with yes, and the calls that they were about."""
    started = await client.request("POST", "/v1/runs", body)
    asked = []
    async with asyncio.timeout(WAIT_S):
        async for frame in client.events(f"/v1/sessions/{started['session_id']}/events"):
            if frame.type == "permission.requested":
                asked.append(frame.data["data"]["call_id"])
                approval = frame.data["data"]["approval_id"]
                await client.request("POST", f"/v1/permissions/{approval}", {"decision": "allow_once"})
            if frame.type == "run.completed" and frame.data["run_id"] == started["id"]:
                break
    return await finished(client, started["id"]), asked


@dataclass(frozen=True)
class Shared:
    """A service that asks before each echo, with our server twice: as `ours`, and as `brief` with little time."""

    service: Service
    client: Client
    folder: Path
    env: Mapping[str, str]

    def calls(self, server: str = "ours") -> list[str]:
        """What a server was called with."""
        return (self.folder / server / "calls").read_text().splitlines()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shared]:
    folder = tmp_path_factory.mktemp("mcp")
    servers = {"ours": entry(folder), "brief": entry(folder, "brief", timeout_ms=300)}
    servers["ours"]["env"]["WORD"] = "${OUR_WORD}"
    env = {"SUBAGENTD_PERMISSIONS__RULES__ASK": '["mcp__ours__echo"]', "OUR_WORD": "swordfish-and-chips"}
    async with running(folder, servers, **env) as (service, client):
        yield Shared(service, client, folder, environment(folder, servers, **env))


@pytest.mark.spec("7.7", "8.4")
async def test_parent_child_and_grandchild_use_one_server_and_an_approval_holds_for_one_call_each(
    shared: Shared,
) -> None:
    run, asked = await approved(shared.client, TREE)
    assert "Lead: " in run["output"]
    assert "Worker: from the grandchild" in run["output"]
    assert len(set(asked)) == 3
    calls = [f"echo from the {who}" for who in ("lead", "child", "grandchild")]
    assert [line for line in shared.calls() if "from the" in line] == calls


@pytest.mark.case("B031")
async def test_two_approvals_in_two_turns_give_one_result_each(shared: Shared) -> None:
    run, asked = await approved(shared.client, order("twice"))
    found = await results(shared.client, run["session_id"])
    assert [(r["call_id"], r["content"], r["status"]) for r in found] == [
        (asked[0], "one", "ok"),
        (asked[1], "two", "ok"),
    ]
    assert [line for line in shared.calls() if line in ("echo one", "echo two")] == ["echo one", "echo two"]


@pytest.mark.spec("7.1", "7.4")
async def test_a_call_has_a_time_limit_that_ends_it_at_the_server(shared: Shared) -> None:
    body = order("hurried", tools=["mcp__brief"])
    run = await finished(shared.client, (await shared.client.request("POST", "/v1/runs", body))["id"])
    assert run["output"] == "Hurried: mcp__brief__slow did not finish within 300 ms and was stopped."
    await until(lambda: shared.calls("brief") == ["started", "slow ", "slow ended"])


@pytest.mark.spec("7.1", "7.4")
async def test_a_cancelled_run_cancels_its_call_at_the_server(shared: Shared) -> None:
    started = await shared.client.request("POST", "/v1/runs", order("patient"))
    await until(lambda: "slow " in shared.calls())
    await shared.client.request("POST", f"/v1/runs/{started['id']}/cancel")
    assert (await finished(shared.client, started["id"]))["status"] == "cancelled"
    await until(lambda: "slow ended" in shared.calls())


@pytest.mark.spec("11.4")
async def test_progress_of_a_servers_tool_is_in_the_stream(shared: Shared) -> None:
    body = dict(order("watched", tools=["mcp__ours__count"]))
    given, said = {"input": body.pop("input")}, ""
    path = f"/v1/sessions/{(await shared.client.request('POST', '/v1/sessions', body))['id']}"
    async with asyncio.timeout(WAIT_S):
        async for frame in shared.client.events(f"{path}/events"):
            if frame.type == "session.created":  # who comes later is not shown what has passed
                await shared.client.request("POST", f"{path}/runs", given)
            if frame.type == "tool.progress":
                said += frame.data["text"]
            if frame.type == "run.completed":
                break
    assert said.startswith("1/3 step 1\n")
    assert said.endswith("3/3 step 3\n")


@pytest.mark.spec("7.7")
async def test_a_server_that_dies_in_a_call_is_back_in_the_same_run(shared: Shared) -> None:
    run, _ = await approved(shared.client, order("unlucky"))
    assert run["output"] == "Unlucky: it is back"
    crash, echo = await results(shared.client, run["session_id"])
    assert crash["status"] == "error"
    assert "stopped during this call and is being restarted" in crash["content"]
    assert echo["status"] == "ok"


async def test_secrets_of_servers_are_put_in_from_the_environment_and_shown_nowhere(shared: Shared) -> None:
    await state(shared.client, "ours", "up")
    pid = int((shared.folder / "ours" / "pid").read_text())
    assert b"WORD=swordfish-and-chips" in Path(f"/proc/{pid}/environ").read_bytes()
    shown = subprocess.run(
        [sys.executable, "-m", "app", "settings"], env={**os.environ, **shared.env}, cwd=shared.folder,
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "mcp.servers.ours.env.WORD" in shown
    assert "swordfish" not in shown + shared.service.log
    assert "${OUR_WORD}" not in shown
