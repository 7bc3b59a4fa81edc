"""Tenants and keys over HTTP: what is another tenant's does not exist, on every route that takes an id."""

import asyncio
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app.client import Client, ServiceError
from tests.commands import key_for, run
from tests.service import WAIT_S, agent, finished, script, serving

pytestmark = pytest.mark.slow

PLAY = """
agents:
  - when: {system_contains: "You are asker"}
    turns: [{calls: [{tool: glob, arguments: {pattern: "*"}}]}, {text: "Asked."}]
  - when: {system_contains: "You are talker"}
    turns: [{calls: [{tool: glob, arguments: {pattern: "*"}}]}, {text: "Talked."}]
  - turns: [{text: "Answer of {{ task }}."}]
"""
SMALL = {"SUBAGENTD_TOOLS__MAX_OUTPUT_CHARS": "1000", "SUBAGENTD_TOOLS__OUTPUT_HEAD_CHARS": "100"}
ROOT_KEY = "root-key-of-at-least-16-characters"
QUICK = {"agent": "quick", "agents": [agent("quick", mode="all", tools=[])], "input": "Hi."}
METHODS = ("get", "post", "put", "patch", "delete")


async def text(client: Client, path: str) -> str:
    """An answer that is no JSON."""
    return b"".join([piece async for piece in client.download(path)]).decode()


async def things_of(client: Client) -> dict[str, str]:
    """One of everything that has an id, by the name of the path parameter."""
    run = await client.request("POST", "/v1/runs", QUICK)
    await finished(client, run["id"])
    delegated = await client.request("POST", "/v1/delegations", {"agent": agent("quick", tools=[]), "task": "x"})
    order = {"agent": agent("quick", tools=[]), "task": "x", "background": True}
    task = await client.request("POST", "/v1/delegations", order)
    await client.request("GET", f"/v1/tasks/{task['task_id']}/output")
    await client.request("PUT", "/v1/agents/private", {k: v for k, v in agent("private").items() if k != "name"})
    key = await client.request("POST", "/v1/keys", {"name": "own", "scopes": ["read"]})
    asker = agent("asker", mode="all", tools=["glob"], permissions={"ask": ["Glob"]})
    asking = await client.request("POST", "/v1/runs", {"agent": "asker", "agents": [asker], "input": "x"})
    async with asyncio.timeout(WAIT_S):
        while not (asked := (await client.page("/v1/permissions"))["items"]):
            pass
    await client.request("POST", f"/v1/runs/{asking['id']}/cancel")
    talker = agent("talker", mode="all", tools=["glob"])
    talking = await client.request("POST", "/v1/runs", {"agent": "talker", "agents": [talker], "input": "x"})
    await finished(client, talking["id"])
    told = (await client.page(f"/v1/sessions/{talking['session_id']}/messages", role="tool"))["items"]
    return {
        "/v1/artifacts/": told[0]["metadata"]["artifact_id"],
        "/v1/permissions/": asked[0]["id"],
        "/v1/sessions/": run["session_id"],
        "/v1/runs/": run["id"],
        "/v1/delegations/": delegated["handoff_id"],
        "/v1/tasks/": task["task_id"],
        "/v1/agents/": "private",
        "/v1/keys/": key["id"],
    }


def unknown(value: str) -> str:
    """An id of the same form that nobody has."""
    return value[: value.index("_") + 1] + "0" * 26 if "_" in value else "nobody"


def bodies(path: str) -> Any:
    """A body that is valid for the route, so that only the id can be wrong."""
    if path.endswith("/runs"):
        return {"input": "x"}
    if path.endswith("/messages"):
        return {"content": "x"}
    if "/permissions/" in path:
        return {"decision": "deny"}
    return {"description": "d", "prompt": "p"} if "/agents/" in path else {}


@pytest.mark.spec("17.1", "17.2")
@pytest.mark.case("B188")
async def test_every_route_with_the_ids_of_one_tenant_and_the_key_of_another_answers_like_an_unknown_id(
    tmp_path: Path,
) -> None:
    env = {**script(tmp_path, PLAY), **SMALL, "SUBAGENTD_KEY": ROOT_KEY}
    async with serving(tmp_path, env=env) as service:
        (service.folder / "workspace.tenants" / "b").mkdir(parents=True)
        for number in range(60):
            (service.folder / "workspace.tenants" / "b" / f"a name of some length {number}").touch()
        scopes = ("run", "read", "approve", "admin")
        key_a, key_b = await key_for(service, "a", *scopes), await key_for(service, "b", *scopes)
        async with service.client(key_b) as client:
            theirs = await things_of(client)
            paths = (await client.request("GET", "/openapi.json"))["paths"]
        tried = 0
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key_a}"}) as http:
            for path, operations in paths.items():
                prefix = next((p for p in theirs if path.startswith(p + "{")), None)
                if prefix is None or path == "/v1/tasks/clear":
                    assert "{" not in path, f"{path} is not covered by this test"
                    continue
                for method in set(METHODS) & set(operations):
                    if method == "put":
                        continue  # makes one's own of that name
                    answers = []
                    for value in (theirs[prefix], unknown(theirs[prefix])):
                        url = service.url + re.sub(r"\{\w+\}", value, path)
                        async with http.request(method, url, json=bodies(path)) as answer:
                            text = (await answer.text()).replace(value, "ID")
                            answers.append((answer.status, re.sub(r'"request_id":"[^"]*"', "", text)))
                    assert answers[0][0] == 404, (method, path, answers[0])
                    assert answers[0] == answers[1], (method, path)
                    tried += 1
        assert tried >= 26
        async with service.client(key_a) as client:
            assert (await client.page("/v1/sessions"))["items"] == []
            assert await client.request("POST", "/v1/tasks/clear", {}) == {"cleared": 0}
            for path in ("/v1/audit", "/v1/audit?decision=any", "/v1/permissions", "/v1/tasks"):
                assert (await client.page(path))["items"] == []
            for path in (
                "/v1/permissions",
                "/v1/permissions?explain=Read",
                "/v1/tasks",
                "/v1/audit",
                "/v1/audit?decision=any",
                "/v1/audit/export",
            ):
                with pytest.raises(ServiceError) as not_theirs:
                    await client.page(path, session_id=theirs["/v1/sessions/"])
                assert not_theirs.value.status == 404
            names = [item["name"] for item in (await client.request("GET", "/v1/agents"))["items"]]
            assert "private" not in names
            with pytest.raises(ServiceError) as refused:
                await client.request(
                    "POST",
                    "/v1/delegations",
                    {"agent": agent("quick", tools=[]), "task": "x", "session_id": theirs["/v1/sessions/"]},
                )
            assert refused.value.status == 404
            for resume in (theirs["/v1/tasks/"], theirs["/v1/runs/"]):
                with pytest.raises(ServiceError) as not_mine:
                    await client.request("POST", "/v1/delegations", {"task": "x", "resume": resume})
                assert (not_mine.value.status, not_mine.value.problem["code"]) == (404, "unknown_task")
            with pytest.raises(ServiceError) as unseen:
                await client.request("POST", "/v1/delegations", {"agent": "private", "task": "x"})
            assert (unseen.value.status, unseen.value.problem["code"]) == (422, "unknown_agent")


@pytest.mark.spec("17.2")
async def test_a_scope_opens_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    env = {**script(tmp_path, PLAY), "SUBAGENTD_KEY": ROOT_KEY}
    async with serving(tmp_path, env=env) as service:
        reader, runner = await key_for(service, "t", "read"), await key_for(service, "t", "run")
        async with service.client(runner) as client:
            started = await client.request("POST", "/v1/runs", QUICK)
            for path in (f"/v1/runs/{started['id']}", "/v1/audit", "/v1/keys", "/metrics"):
                with pytest.raises(ServiceError) as refused:
                    await client.request("GET", path)
                assert refused.value.status == 403, path
        async with service.client(reader) as client:
            await finished(client, started["id"])
            for method, path, body in (
                ("POST", "/v1/runs", QUICK),
                ("POST", f"/v1/runs/{started['id']}/cancel", {}),
                ("POST", f"/v1/runs/{started['id']}/messages", {"content": "x"}),
                ("POST", f"/v1/runs/{started['id']}/resume", {}),
                ("POST", "/v1/tasks/clear", {}),
                ("DELETE", f"/v1/sessions/{started['session_id']}", None),
                ("PUT", "/v1/agents/mine", {"description": "d", "prompt": "p"}),
                ("POST", "/v1/keys", {"scopes": ["read"]}),
                ("GET", "/v1/keys", None),
            ):
                with pytest.raises(ServiceError) as refused:
                    await client.request(method, path, body)
                assert refused.value.status == 403, path
        for key in ("", "sk_sub_nonsense", ROOT_KEY[:-1]):
            async with Client(service.url, key) as client:
                with pytest.raises(ServiceError) as unknown_key:
                    await client.request("GET", "/v1/sessions")
                assert unknown_key.value.status == 401
                assert await client.request("GET", "/healthz")


@pytest.mark.spec("17.2")
async def test_revoking_a_key_ends_its_open_streams(tmp_path: Path) -> None:
    env = {**script(tmp_path, PLAY), "SUBAGENTD_KEY": ROOT_KEY}
    async with serving(tmp_path, env=env) as service, service.client() as root:
        made = await root.request("POST", "/v1/keys", {"name": "short", "scopes": ["read", "run"]})
        async with service.client(made["key"]) as client:
            session = await client.request("POST", "/v1/sessions", {k: v for k, v in QUICK.items() if k != "input"})
            header = {"Authorization": f"Bearer {made['key']}"}
            url = f"{service.url}/v1/sessions/{session['id']}/events"
            async with aiohttp.ClientSession(headers=header) as http, http.get(url) as answer:
                body = b""
                revoked = False
                async with asyncio.timeout(35):
                    async for chunk in answer.content.iter_any():
                        body += chunk
                        if not revoked and b"session.created" in body:
                            revoked = True
                            await root.request("DELETE", f"/v1/keys/{made['id']}")
                assert b'"reason":"revoked"' in body
                async with http.get(url) as again:
                    assert again.status == 401


@pytest.mark.spec("11.3", "17.2")
async def test_pages_that_wait_leave_room_for_other_keys_and_end_when_theirs_is_revoked(tmp_path: Path) -> None:
    limit = 2
    env = {**script(tmp_path, PLAY), "SUBAGENTD_KEY": ROOT_KEY, "SUBAGENTD_STREAM__MAX_PER_OWNER": str(limit)}
    async with serving(tmp_path, env=env) as service, service.client() as root:
        made = await root.request("POST", "/v1/keys", {"name": "greedy", "scopes": ["read", "run"]})
        async with service.client(made["key"]) as client, asyncio.timeout(WAIT_S):
            session = await client.request("POST", "/v1/sessions", {k: v for k, v in QUICK.items() if k != "input"})
            path = f"/v1/sessions/{session['id']}/events"
            head = (await client.page(path))["items"][-1]["id"]
            polls = [asyncio.create_task(client.page(path, after=head, wait_ms=60_000)) for _ in range(limit)]
            while f"\nsubagentd_open_streams {limit}" not in await text(root, "/metrics"):
                pass
            with pytest.raises(ServiceError, match="max_per_owner") as refused:
                await client.page(path, after=head, wait_ms=60_000)
            assert (refused.value.status, refused.value.retry_after_s) == (429, 5)
            assert [e["id"] for e in (await client.page(path))["items"]] == list(range(1, head + 1))
            assert (await root.page(path, after=head, wait_ms=1))["items"] == []
            await root.request("DELETE", f"/v1/keys/{made['id']}")
            assert [(await poll)["items"] for poll in polls] == [[], []]


@pytest.mark.spec("17.3")
async def test_a_ticket_opens_one_stream_once(tmp_path: Path) -> None:
    env = {**script(tmp_path, PLAY), "SUBAGENTD_KEY": ROOT_KEY}
    async with serving(tmp_path, env=env) as service, service.client() as client:
        started = await client.request("POST", "/v1/runs", QUICK)
        await finished(client, started["id"])
        ticket = await client.request("POST", "/v1/tickets", {"run_id": started["id"]})
        url = f"{service.url}/v1/runs/{started['id']}/events"
        async with aiohttp.ClientSession() as http:
            async with http.get(url, params={"ticket": ticket["ticket"]}) as answer:
                assert answer.status == 200
                assert b"run.completed" in await answer.read()
            async with http.get(url, params={"ticket": ticket["ticket"]}) as answer:
                assert answer.status == 401
            other = await client.request("POST", "/v1/tickets", {"run_id": started["id"]})
            elsewhere = f"{service.url}/v1/sessions/{started['session_id']}/events"
            async with http.get(elsewhere, params={"ticket": other["ticket"]}) as answer:
                assert answer.status == 401
            async with http.get(url, params={"key": ROOT_KEY}) as answer:
                assert (answer.status, (await answer.json())["code"]) == (401, "key_in_query")
        assert ticket["ticket"] not in service.log


@pytest.mark.spec("17.3")
async def test_foreign_hosts_and_origins_are_refused_also_on_loopback(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, aiohttp.ClientSession() as http:
        for headers, code in (
            ({"Host": "evil.example"}, "foreign_host"),
            ({"Origin": "https://evil.example"}, "foreign_origin"),
        ):
            async with http.get(f"{service.url}/v1/sessions", headers=headers) as answer:
                assert (answer.status, (await answer.json())["code"]) == (403, code), headers
                assert answer.content_type == "application/problem+json"
        async with http.get(f"{service.url}/healthz", headers={"Host": "evil.example"}) as answer:
            assert answer.status == 200
        async with http.post(
            f"{service.url}/v1/runs", data="input=x", headers={"Content-Type": "text/plain"}
        ) as answer:
            assert answer.status == 415


@pytest.mark.spec("17.2")
async def test_another_address_than_loopback_without_a_key_is_refused_with_the_way_out(tmp_path: Path) -> None:
    place = ("--host", "0.0.0.0", "--port", "0", "--db", str(tmp_path / "x.db"))
    refused = await run("serve", *place, folder=tmp_path)
    assert refused.code == 2
    assert "SUBAGENTD_KEY" in refused.err
