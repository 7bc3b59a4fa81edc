"""Tools over REST that are not there: those that are switched off and unknown ones are refused by name on every route,
and kept with a remark in files; a name that an agent has as its tool is one that is there."""

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from app.client import Client, ServiceError
from tests.service import agent, finished, script, serving

PLAY = "agents: [{turns: [{text: done}]}]\n"
OFF = ("run_command", "load_skill")


async def refused(client: Client, method: str, path: str, body: dict[str, Any], tool: str, at: str) -> None:
    with pytest.raises(ServiceError) as caught:
        await client.request(method, path, body)
    problem = caught.value.problem
    assert (caught.value.status, problem["code"]) == (422, "unsupported"), problem
    assert tool in problem["detail"]
    (error,) = problem["errors"]
    assert error["at"].endswith(at)


@pytest.mark.spec("7.2", "10.2", "14.9", "14.14")
async def test_a_tool_that_is_switched_off_is_refused_by_name_wherever_a_request_may_name_it(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        for tool in OFF:
            own = agent("own", tools=["read_file", tool])
            run = {"input": "Do it.", "agent": "own", "agents": [own]}
            await refused(client, "POST", "/v1/runs", run, tool, "agents[0].tools")
            await refused(client, "PUT", "/v1/agents/own", own, tool, "tools")
            task = {"agent": "scout", "task": "Do it.", "tools": ["read_file", tool]}
            await refused(client, "POST", "/v1/delegations", task, tool, "tools[1]")
            inline = {"agent": own, "task": "Do it."}
            await refused(client, "POST", "/v1/delegations", inline, tool, ".tools")
        with pytest.raises(ServiceError) as caught:
            await client.request("GET", "/v1/agents/own")
        assert caught.value.status == 404


@pytest.mark.spec("7.2", "14.9")
async def test_another_services_name_is_refused_as_what_it_means_and_an_unknown_tool_as_unknown(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        task = {"agent": "scout", "task": "Do it."}
        await refused(client, "POST", "/v1/delegations", {**task, "tools": ["Bash"]}, "run_command", "tools[0]")
        await refused(client, "PUT", "/v1/agents/own", agent("own", tools={"bash": True}), "run_command", "tools")
        with pytest.raises(ServiceError) as caught:
            await client.request("POST", "/v1/delegations", {**task, "tools": ["teleport"]})
        assert (caught.value.status, caught.value.problem["code"]) == (422, "unknown_tool")
        # what takes a tool away asks for nothing that is missing
        kept = await client.request("PUT", "/v1/agents/own", agent("own", disallowed_tools=["Bash"]))
        assert kept["disallowed_tools"] == ["run_command"]


@pytest.mark.spec("10.3", "14.14")
async def test_agents_of_files_and_stored_ones_with_such_tools_still_load(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "filed.md").write_text("---\nname: filed\ndescription: F.\ntools: [Read, Bash]\n---\nYou are filed.\n")
    env = script(tmp_path, PLAY)
    async with serving(tmp_path, "--agents", str(folder), env=env) as service, service.client() as client:
        filed = await client.request("GET", "/v1/agents/filed")
        assert (filed["effective_tools"], filed["missing_tools"]) == (["read_file"], ["run_command"])
        warnings = (await client.request("GET", "/v1/agents"))["warnings"]
        assert any(w["path"].endswith("filed.md") and "run_command" in w["message"] for w in warnings)
        await client.request("PUT", "/v1/agents/stored", agent("stored", tools=["read_file"]))
    stored = agent("stored", tools=["read_file", "run_command", "execute_task", "gone"])
    with contextlib.closing(sqlite3.connect(service.database)) as database, database:
        changed = database.execute("UPDATE agents SET definition = ? WHERE name = 'stored'", (json.dumps(stored),))
        assert changed.rowcount == 1
    async with serving(tmp_path, env=env) as service, service.client() as client:
        shown = await client.request("GET", "/v1/agents/stored")
        assert shown["effective_tools"] == ["read_file"]
        assert {"run_command", "gone"} <= set(shown["missing_tools"])
        run = await client.request("POST", "/v1/runs", {"input": "Do it.", "agent": "stored"})
        assert (await finished(client, run["id"]))["status"] == "completed"


@pytest.mark.spec("7.2", "14.1", "14.14", "17.1")
async def test_a_whitelist_may_name_the_tool_that_an_agent_of_the_request_or_the_tenant_is(tmp_path: Path) -> None:
    lead = agent("own", mode="primary", tools=["read_file", "ask_clerk", "execute_task"])
    clerk = agent("clerk", tool_name="ask_clerk")
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:

        async def unknown(method: str, path: str, body: dict[str, Any], at: str) -> None:
            with pytest.raises(ServiceError) as caught:
                await client.request(method, path, body)
            problem = caught.value.problem
            assert (caught.value.status, problem["code"]) == (422, "invalid_request"), problem
            assert "ask_clerk" in problem["detail"]
            assert [error["at"] for error in problem["errors"]] == [at]

        await unknown("PUT", "/v1/agents/own", lead, "tools")
        await unknown("POST", "/v1/sessions", {"agent": "own", "agents": [lead]}, "agents[0].tools")
        made = await client.request("POST", "/v1/sessions", {"agent": "own", "agents": [lead, clerk]})
        assert made["agent"] == "own"
        await client.request("PUT", "/v1/agents/clerk", clerk)
        await client.request("POST", "/v1/sessions", {"agent": "own", "agents": [lead]})
        shown = await client.request("PUT", "/v1/agents/own", lead)
        assert shown["tools"] == ["read_file", "ask_clerk", "execute_task"]
        assert shown["delegation_tools"] == ["ask_clerk", "execute_task"]
        assert (shown["effective_tools"], shown["missing_tools"]) == (["read_file"], [])
        await client.request("DELETE", "/v1/agents/clerk")
        assert (await client.request("GET", "/v1/agents/own"))["missing_tools"] == ["ask_clerk"]
