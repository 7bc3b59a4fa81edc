"""Workspaces over HTTP: a directory that was swapped for a link leads nowhere, and tenants share no files."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from app.boxes.box import Level
from app.client import Client, ServiceError
from tests.boxes.outside import need, open_folder, own
from tests.commands import key_for
from tests.flows.test_tenants import ROOT_KEY
from tests.service import WAIT_S, agent, finished, script, serving

SECRET = "canary-90b1"
TOOLS = ["glob", "grep", "read_file", "write_file", "edit_file"]
CALLS = [
    {"tool": "read_file", "arguments": {"path": "secret"}},
    {"tool": "grep", "arguments": {"pattern": "."}},
    {"tool": "write_file", "arguments": {"path": "planted", "content": "x"}},
    {"tool": "write_file", "arguments": {"path": "made/planted", "content": "x"}},
]
COMMAND = {"tool": "run_command", "arguments": {"command": "cat secret; echo x > planted"}}


def playing(*calls: dict[str, Any]) -> str:
    """A lead that asks before its first call, and then makes the others one by one."""
    turns = [{"calls": [one]} for one in ({"tool": "glob", "arguments": {"pattern": "*"}}, *calls)]
    return json.dumps({"agents": [{"turns": [*turns, {"text": "Done."}]}]})


async def results_of(client: Client, session: str) -> list[tuple[str, str]]:
    """Status and content of each call of a session, in order."""
    items = (await client.page(f"/v1/sessions/{session}/events", limit=100))["items"]
    return [(one["data"]["status"], one["data"]["content"]) for one in items if one["type"] == "tool.result"]


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("commands", [False, True], ids=["files", "commands"])
async def test_a_run_whose_workspace_is_swapped_for_a_link_reaches_nothing_more(commands: bool) -> None:
    if commands:
        need(Level.FULL)
    with open_folder() as folder:
        (folder / "outside").mkdir()
        (folder / "outside" / "secret").write_text(SECRET)
        own(folder / "outside")
        env = script(folder, playing(*CALLS, *([COMMAND] if commands else [])))
        env |= {"SUBAGENTD_TOOLS__RUN_COMMAND": str(commands).lower()}
        async with serving(folder, env=env) as service, service.client() as client:
            (service.workspace / "x").mkdir()
            for path in (service.workspace, service.workspace / "x"):
                own(path)
            tools = [*TOOLS, "run_command"] if commands else TOOLS
            lead = agent("worker", mode="all", tools=tools, permissions={"ask": ["Glob"], "allow": ["Write", "Bash"]})
            asked = {"agent": "worker", "agents": [lead], "input": "Go.", "workspace": "x"}
            run = await client.request("POST", "/v1/runs", asked)
            async with asyncio.timeout(WAIT_S):
                while not (questions := (await client.page("/v1/permissions"))["items"]):
                    pass
            (service.workspace / "x").rename(service.workspace / "y")
            (service.workspace / "x").symlink_to(folder / "outside")
            await client.request("POST", f"/v1/permissions/{questions[0]['id']}", {"decision": "allow_once"})
            assert (await finished(client, run["id"]))["status"] == "completed"
            results = await results_of(client, run["session_id"])
            assert len(results) == 1 + len(CALLS) + commands
            assert all(status != "ok" and "workspace" in content for status, content in results), results
            assert SECRET not in str(results)
            with pytest.raises(ServiceError) as refused:
                await client.request("POST", "/v1/runs", asked)
            assert (refused.value.status, refused.value.problem["code"]) == (422, "no_workspace")
            again = await client.request("POST", f"/v1/sessions/{run['session_id']}/runs", {"input": "Again."})
            assert (await finished(client, again["id"]))["status"] == "failed"
        assert [path.name for path in (folder / "outside").iterdir()] == ["secret"]


@pytest.mark.spec("17.1", "7.3")
async def test_no_name_of_one_tenant_reaches_a_file_of_another(tmp_path: Path) -> None:
    write = {"tool": "write_file", "arguments": {"path": "ta/secret", "content": SECRET}}
    read = [{"tool": "read_file", "arguments": {"path": path}} for path in ("ta/secret", "secret", "a/ta/secret")]
    read += [{"tool": "grep", "arguments": {"pattern": "canary"}}]
    env = {**script(tmp_path, playing(write)), **script(tmp_path, playing(*read), "reads"), "SUBAGENTD_KEY": ROOT_KEY}
    env["SUBAGENTD_MODEL"] = "scripted:reads"
    lead = agent("worker", mode="all", tools=TOOLS, permissions={"allow": ["Glob", "Write"]})
    asked = {"agent": "worker", "agents": [lead], "input": "Go."}
    async with serving(tmp_path, env=env) as service:
        keys = {tenant: await key_for(service, tenant, "run", "read") for tenant in ("a", "b", "workspace", "..")}
        keys["default"] = ROOT_KEY
        async with service.client(keys["a"]) as client:
            run = await client.request("POST", "/v1/runs", {**asked, "model": "scripted:play"})
            await finished(client, run["id"])
            assert [status for status, _ in await results_of(client, run["session_id"])] == ["ok", "ok"]
        kept = tmp_path / "workspace.tenants" / "a" / "ta" / "secret"
        assert kept.read_text() == SECRET
        for tenant, key in keys.items():
            async with service.client(key) as client:
                for name in ("ta", "a", "a/ta", "../a", "../workspace.tenants/a", str(kept.parent)):
                    if (tenant, name) == ("a", "ta"):
                        continue
                    with pytest.raises(ServiceError) as refused:
                        await client.request("POST", "/v1/runs", {**asked, "workspace": name})
                    assert (refused.value.status, refused.value.problem["code"]) == (422, "no_workspace"), (
                        tenant,
                        name,
                    )
                run = await client.request("POST", "/v1/runs", asked)
                await finished(client, run["id"])
                shown = any(SECRET in content for _, content in await results_of(client, run["session_id"]))
                assert shown is (tenant == "a"), tenant
