"""Rules, questions to persons and their answers over HTTP: any depth, one inbox, restarts, tenants' rights."""

import asyncio
import contextlib
import csv
import io
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app.client import Client, ServiceError
from tests.commands import run as run_process
from tests.service import INTERRUPT, ROOT, WAIT_S, Service, agent, events_of, finished, script, serving

TOOLS = '''
from app.agent.tools import ToolContext
from app.tools.function import tool


@tool(name="run_command", concurrency_safe=True)
def run_command(command: str, context: ToolContext) -> str:
    """Writes down what it was to run."""
    with open(context.workspace / "ran.txt", "a") as file:
        file.write(command + "\\n")
    return f"ran {command}"
'''
PLAY = """
agents:
  - when: {system_contains: "You are lead"}
    turns:
      - calls:
          - {tool: dispatch_subagent, arguments: {agent_type: middle, task: "go on"}}
          - {tool: dispatch_subagent, arguments: {agent_type: worker, task: "make"}}
      - {text: "Lead is done."}
  - when: {system_contains: "You are middle"}
    turns:
      - {calls: [{tool: dispatch_subagent, arguments: {agent_type: worker, task: "make"}}]}
      - {text: "Middle is done."}
  - when: {system_contains: "You are worker"}
    turns:
      - {calls: [{tool: run_command, arguments: {command: "make all"}}]}
      - {text: "Worker is done."}
  - when: {system_contains: "You are careless"}
    turns:
      - calls:
          - {tool: run_command, arguments: {command: "git status && rm -rf x"}}
          - {tool: run_command, arguments: {command: "ls *.txt && git log 2>&1"}}
          - {tool: run_command, arguments: {command: "ls $(touch pwned)"}}
      - {text: "Careless is done."}
"""
ASK = {"SUBAGENTD_PERMISSIONS__RULES__ASK": '["Bash(make *)"]'}
WORKER = agent("worker", mode="all", tools=["run_command"])
TREE = {
    "agent": "lead",
    "agents": [agent("lead", mode="primary", tools=["Agent"]), agent("middle", tools=["Agent"]), WORKER],
    "surfaces": ["dispatch"],
    "policy": {"max_depth": 2},
}


@contextlib.asynccontextmanager
async def asked_service(folder: Path, **env: str) -> AsyncIterator[Service]:
    """A service with a `run_command` of the operator's."""
    async with serving(folder, env=asked_env(folder, **env)) as service:
        yield service


def asked_env(folder: Path, **env: str) -> dict[str, str]:
    (folder / "guarded_tools.py").write_text(TOOLS)
    own = {"PYTHONPATH": f"{ROOT}:{folder}", "SUBAGENTD_TOOLS__FUNCTIONS": '["guarded_tools:run_command"]'}
    return {**script(folder, PLAY), **own, **env}


async def asked(client: Client, session_id: str, count: int) -> list[dict[str, Any]]:
    """Wait until the stream of a session has shown that many questions; their events."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(WAIT_S):
        async for frame in client.events(f"/v1/sessions/{session_id}/events"):
            if frame.type == "permission.requested":
                found.append(dict(frame.data))
                if len(found) == count:
                    return found
    raise AssertionError("the stream ended before they were asked")


async def refusal(client: Client, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
    """Status and code of an answer that is not taken."""
    with pytest.raises(ServiceError) as refused:
        await client.request("POST", path, dict(body))
    return refused.value.status, str(refused.value.problem["code"])


def ran(service: Service) -> list[str]:
    """What commands were run."""
    path = service.workspace / "ran.txt"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.spec("8.2", "8.3", "14.11", "11.6")
@pytest.mark.case("B118", "B119", "B121")
async def test_a_child_and_a_grandchild_are_answered_by_id_on_the_roots_inbox(tmp_path: Path) -> None:
    async with asked_service(tmp_path, **ASK) as service, service.client() as client:
        run = await client.request("POST", "/v1/runs", {**TREE, "input": "Go."})
        events = await asked(client, run["session_id"], 2)
        by_depth = {event["depth"]: event for event in events}
        assert {depth: len(event["path"]) for depth, event in by_depth.items()} == {1: 2, 2: 3}
        inbox = (await client.page("/v1/permissions", session_id=run["session_id"], status="pending"))["items"]
        assert {item["id"]: (item["depth"], item["agent"], item["path"]) for item in inbox} == {
            event["data"]["approval_id"]: (depth, "worker", event["path"]) for depth, event in by_depth.items()
        }
        child, grandchild = (f"/v1/permissions/{by_depth[depth]['data']['approval_id']}" for depth in (1, 2))
        denied = await client.request("POST", child, {"decision": "deny", "message": "One is enough."})
        assert (denied["status"], denied["decision"], denied["message"]) == ("denied", "deny", "One is enough.")
        edited = {"decision": "allow_once", "arguments": {"command": "make test"}}
        assert (await refusal(client, grandchild, {**edited, "decision": "deny"}))[0] == 422
        assert (await refusal(client, grandchild, {**edited, "arguments": {"order": "make"}}))[0] == 422
        allowed = await client.request("POST", grandchild, edited)
        assert (allowed["status"], allowed["edited_arguments"]) == ("allowed", {"command": "make test"})
        assert allowed["arguments"] == {"command": "make all"}
        assert (await finished(client, run["id"]))["output"] == "Lead is done."
        assert ran(service) == ["make test"]
        assert await refusal(client, child, {"decision": "allow_once"}) == (409, "not_pending")
        assert await client.request("GET", child) == denied
        assert (await client.page("/v1/permissions", status="pending"))["items"] == []
        with pytest.raises(ServiceError) as unknown:
            await client.request("GET", "/v1/permissions/apr_" + "0" * 26)
        assert unknown.value.status == 404


@pytest.mark.spec("8.2", "8.3", "4.4", "5.7")
@pytest.mark.case("B118", "B119")
async def test_the_clocks_of_a_run_stand_still_until_nobody_has_answered(tmp_path: Path) -> None:
    env = {**ASK, "SUBAGENTD_PERMISSIONS__EXPIRES_S": "3.5"}
    async with asked_service(tmp_path, **env) as service, service.client() as client:
        bodies = [{"agent": WORKER, "task": "make", name: 2500} for name in ("timeout_ms", "deadline_ms")]
        bodies.append({"agent": WORKER, "task": "make", "policy": {"timeout_ms": 2500}})
        ended = await asyncio.gather(*(client.request("POST", "/v1/delegations", body) for body in bodies))
        assert [(one["status"], one["stop_reason"]) for one in ended] == [("completed", "answer")] * 3
        items = (await client.page("/v1/permissions"))["items"]
        assert [(item["status"], item["decided_by"]) for item in items] == [("expired", None)] * 3
        assert ran(service) == []
        found = await client.page("/v1/audit", tool="run_command", session_id=ended[0]["session_id"])
        assert "nobody answered" in found["items"][0]["content"]


@pytest.mark.spec("8.2", "12.7", "14.11")
@pytest.mark.case("B180")
async def test_a_restart_withdraws_what_is_open_and_keeps_what_was_allowed_for_the_session(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        service = await stack.enter_async_context(asked_service(tmp_path, **ASK, **INTERRUPT))
        session = {"agent": "worker", "agents": [WORKER]}
        async with service.client() as client:
            first = await client.request("POST", "/v1/runs", {**session, "input": "Go."})
            (question,) = await asked(client, first["session_id"], 1)
            path = f"/v1/permissions/{question['data']['approval_id']}"
            assert (await client.request("POST", path, {"decision": "allow_session"}))["status"] == "allowed"
            await finished(client, first["id"])
            second = await client.request("POST", "/v1/runs", {**session, "input": "Go."})
            (open_one,) = await asked(client, second["session_id"], 1)
        await service.kill()
        await service.start()
        async with service.client() as client:
            path = f"/v1/permissions/{open_one['data']['approval_id']}"
            shown = await client.request("GET", path)
            assert (shown["status"], shown["decision"]) == ("cancelled", "cancelled")
            assert await refusal(client, path, {"decision": "allow_once"}) == (409, "not_pending")
            assert (await finished(client, second["id"]))["status"] == "interrupted"
            again = await client.request("POST", f"/v1/sessions/{first['session_id']}/runs", {"input": "Again."})
            assert (await finished(client, again["id"]))["status"] == "completed"
            assert ran(service) == ["make all"] * 2
            events = await events_of(client, f"/v1/sessions/{second['session_id']}/events")
            assert [e["type"] for e in events][-4:] == [
                "permission.resolved", "tool.result", "run.interrupted", "session.idle",
            ]  # fmt: skip


@pytest.mark.spec("8.1", "8.4")
@pytest.mark.case("B107", "B109", "B111")
async def test_each_part_of_a_command_is_judged_and_the_strictest_verdict_wins(tmp_path: Path) -> None:
    rules = {
        "SUBAGENTD_PERMISSIONS__RULES__ALLOW": '["Bash(git *)", "Bash(ls *)"]',
        "SUBAGENTD_PERMISSIONS__RULES__DENY": '["Bash(rm *)"]',
        "SUBAGENTD_PERMISSIONS__DEFAULT": "ask",
    }
    careless = agent("careless", tools=["run_command"])
    async with asked_service(tmp_path, **rules) as service, service.client() as client:
        delegated = asyncio.create_task(client.request("POST", "/v1/delegations", {"agent": careless, "task": "x"}))
        async with asyncio.timeout(WAIT_S):
            while not (items := (await client.page("/v1/permissions", status="pending"))["items"]):
                pass
        (item,) = items
        assert item["arguments"] == {"command": "ls $(touch pwned)"}
        assert "touch pwned" in item["reason"] or "ls $" in item["reason"]
        await client.request("POST", f"/v1/permissions/{item['id']}", {"decision": "deny"})
        assert (await delegated)["status"] == "completed"
        assert ran(service) == ["ls *.txt && git log 2>&1"]
        decided = (await client.page("/v1/audit", decision="deny"))["items"]
        assert {(one["kind"], one["rule"], one["scope"]) for one in decided} == {
            ("rule", "Bash(rm *)", "server"),
            ("person", None, None),
        }


@pytest.mark.spec("8.5", "14.11")
async def test_a_call_can_be_explained_without_being_made(tmp_path: Path) -> None:
    rules = {
        "SUBAGENTD_PERMISSIONS__RULES__ALLOW": '["Bash(git *)"]',
        "SUBAGENTD_PERMISSIONS__RULES__DENY": '["Bash(git push *)", "WebFetch"]',
    }
    strict = agent("strict", permissions={"deny": ["Read(./vault/**)"]}, tools=["run_command", "read_file"])
    async with asked_service(tmp_path, **rules) as service, service.client() as client:
        session = await client.request("POST", "/v1/sessions", {**TREE, "agents": [*TREE["agents"], strict]})
        inside = {"session_id": session["id"], "agent": "strict", "depth": 1}

        async def explained(call: str, **query: Any) -> dict[str, Any]:
            found: dict[str, Any] = await client.request("GET", "/v1/permissions", explain=call, **query)
            return found

        push = await explained("Bash(git pull && git push origin)", **inside)
        assert (push["verdict"], push["rule"], push["scope"]) == ("deny", "Bash(git push *)", "server")
        assert (push["tool"], push["agents"], push["depth"]) == ("run_command", ["lead", "strict"], 1)
        assert {found["verdict"] for found in push["findings"]} == {"allow", "deny"}
        other = await explained("Bash(cargo build)", **inside)
        assert (other["verdict"], other["suggested_rule"]) == ("ask", "Bash(cargo build)")
        (service.workspace / "vault").mkdir()
        (service.workspace / "door").symlink_to("vault")
        read = await explained("Read(door/key)", **inside)
        assert (read["verdict"], read["rule"], read["owner"]) == ("deny", "Read(./vault/**)", "strict")
        assert (await explained("Read(door/key)", session_id=session["id"]))["verdict"] == "allow"
        hidden = await explained("web_fetch(https://example.org/x)")
        assert (hidden["hidden"], hidden["verdict"], hidden["depth"]) == (True, "deny", 0)
        for query, at in (
            ("explain=Bash(", "explain"),
            ("explain=note(x)", "explain"),
            ("explain=Read&agent=nobody", "agent"),
            ("explain=Read&agent=a&agent=b&agent=c&depth=1", "depth"),
            ("agent=lead", "agent"),
        ):
            with pytest.raises(ServiceError) as refused:
                await client.request("GET", f"/v1/permissions?{query}")
            assert refused.value.status == 422, query
            assert refused.value.problem["errors"][0]["at"] == at
        assert (await client.page("/v1/permissions"))["items"] == []


@pytest.mark.spec("12.4", "8.3", "14.12")
async def test_decisions_are_found_by_what_was_decided_in_pages(tmp_path: Path) -> None:
    env = {"SUBAGENTD_PERMISSIONS__RULES__DENY": '["Bash(rm *)"]'}
    async with asked_service(tmp_path, **env) as service, service.client() as client:
        bodies: list[dict[str, Any]] = [
            {"agent": agent(f"careless{n}", tools=["run_command"]), "task": "x"} for n in range(3)
        ]
        for body in bodies:
            body["permissions"] = {"allow": ["Bash"]}
            body["agent"]["prompt"] = "You are careless."
            await client.request("POST", "/v1/delegations", body)
        page = await client.page("/v1/audit", decision="deny", limit=2, count="true")
        rest = await client.page("/v1/audit", decision="deny", limit=2, cursor=page["next"])
        agents = [item["agent"] for item in (*page["items"], *rest["items"])]
        assert (agents, rest["next"], page["count"]) == (["careless2", "careless1", "careless0"], None, 3)
        one = (await client.page("/v1/audit", decision="any", agent="careless1", order="oldest"))["items"]
        assert {item["decision"] for item in one} == {"deny", "allow"}
        run_id = one[0]["run_id"]
        of_run = (await client.page("/v1/audit", decision="any", run_id=run_id))["items"]
        assert sorted(item["seq"] for item in of_run) == sorted(item["seq"] for item in one)
        with pytest.raises(ServiceError) as mixed:
            await client.page("/v1/audit", decision="deny", role="tool")
        assert mixed.value.status == 422


@pytest.mark.spec("12.4", "8.3", "16.4")
async def test_decisions_are_shown_and_exported_over_http_and_by_the_command_alike(tmp_path: Path) -> None:
    env = {"SUBAGENTD_PERMISSIONS__RULES__DENY": '["Bash(rm *)"]'}
    async with (
        asked_service(tmp_path, **env) as service,
        service.client() as client,
        aiohttp.ClientSession(service.url) as http,
    ):
        careless = agent("careless", tools=["run_command"]) | {"prompt": "You are careless."}
        body = {"agent": careless, "task": "x", "permissions": {"allow": ["Bash"]}}
        await client.request("POST", "/v1/delegations", body)
        for query in ({"decision": "any"}, {"decision": "deny", "agent": "careless"}, {"decision": "expired"}):
            shown = (await client.page("/v1/audit", **query, order="oldest"))["items"]
            assert bool(shown) == (query["decision"] != "expired")
            filters = [word for name, value in query.items() for word in (f"--{name}", value)]
            for form, kind in (("ndjson", "application/x-ndjson"), ("csv", "text/csv")):
                async with http.get("/v1/audit/export", params={**query, "format": form}) as answer:
                    assert (answer.status, answer.content_type) == (200, kind)
                    assert answer.headers["Content-Disposition"] == f'attachment; filename="decisions.{form}"'
                    whole = await answer.text()
                if form == "ndjson":
                    assert [json.loads(line) for line in whole.splitlines()] == shown
                else:
                    rows = list(csv.DictReader(io.StringIO(whole, newline="")))
                    assert [(row["seq"], row["decision"]) for row in rows] == [
                        (str(item["seq"]), item["decision"]) for item in shown
                    ]
                for place in (("--url", service.url), ("--db", str(service.database))):
                    command = ("audit", "export", "--format", form, *filters, *place)
                    ended = await run_process(*command, folder=tmp_path)
                    assert (ended.code, ended.out) == (0, whole), ended.err
            for place in (("--url", service.url), ("--db", str(service.database))):
                ended = await run_process("audit", "show", "--json", *filters, *place, folder=tmp_path)
                assert (ended.code, ended.lines) == (0, shown), ended.err
        assert ended.err == "no decision is of that kind\n"
        told = await run_process("audit", "show", "--decision", "deny", "--url", service.url, folder=tmp_path)
        assert "  [sub] run_command deny (rule Bash(rm *) server careless): `rm -rf x` falls" in told.out, told.out
        for path in ("/v1/audit/export", "/v1/audit"):
            async with http.get(path, params={"decision": "any", "text": "hello"}) as answer:
                assert (answer.status, (await answer.json())["errors"][0]["at"]) == (422, "text")
        refused = await run_process("audit", "export", "--decision", "any", "--role", "tool", folder=tmp_path)
        assert (refused.code, "--role is about messages" in refused.err) == (2, True)


@pytest.mark.spec("17.2", "14.11", "8.3")
async def test_answering_needs_a_key_that_may_approve_and_the_record_names_it(tmp_path: Path) -> None:
    env = {**ASK, "SUBAGENTD_KEY": "root-key-of-at-least-16-characters"}
    async with asked_service(tmp_path, **env) as service, service.client() as root:
        runner = await root.request("POST", "/v1/keys", {"name": "runner", "scopes": ["run", "read"]})
        boss = await root.request("POST", "/v1/keys", {"name": "boss", "scopes": ["approve"]})
        async with service.client(runner["key"]) as client, service.client(boss["key"]) as approver:
            run = await client.request("POST", "/v1/runs", {"agent": "worker", "agents": [WORKER], "input": "Go."})
            (question,) = await asked(client, run["session_id"], 1)
            path = f"/v1/permissions/{question['data']['approval_id']}"
            assert await refusal(client, path, {"decision": "allow_once"}) == (403, "missing_scope")
            long = {"decision": "deny", "message": "x" * 4_001}
            assert await refusal(approver, path, long) == (422, "invalid_request"), "it would stand in the log for ever"
            settled = await approver.request("POST", path, {"decision": "allow_once"})
            assert settled["decided_by"] == boss["id"]
            await finished(client, run["id"])
            assert (await client.page("/v1/audit", decision="allow_once"))["items"][0]["decided_by"] == boss["id"]


@pytest.mark.spec("16.5", "8.4")
async def test_a_rule_of_the_server_that_cannot_be_read_keeps_it_from_starting(tmp_path: Path) -> None:
    service = Service(tmp_path, env={"SUBAGENTD_PERMISSIONS__RULES__DENY": '["Bash(rm"]'})
    with pytest.raises(AssertionError, match="Bash"):
        await service.start()
    assert await service.ended() == 2
    assert "permissions" in service.log
