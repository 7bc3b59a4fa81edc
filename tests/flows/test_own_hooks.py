"""Hooks that agent files bring along: asked about that agent's runs and no others, after those of the service."""

import asyncio
import contextlib
import json
import shlex
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.client import Client
from tests.flows.test_hooks import SECRET, TREE_PLAY, hook, hooked
from tests.net.loopback import loopback, says
from tests.service import WAIT_S, Service, agent, events_of, finished, script
from tests.stubs.openai_stub import Answer, OpenAIStub, Request, calls, text

# Writes down under which name it was asked and what it was told; lets nobody write under the name `own`.
NOTE = """
import sys
from pathlib import Path

told = sys.stdin.read()
with Path(sys.argv[1]).open("a") as file:
    file.write(sys.argv[2] + " " + told.replace("\\n", " ") + "\\n")
if sys.argv[2] == "own" and '"hook_event_name":"PreToolUse"' in told:
    print("not for this one", file=sys.stderr)
    sys.exit(2)
"""
EVERY = ("OnSubagentStart", "PreToolUse", "PostToolUse", "OnSubagentStop")


def noting(folder: Path, name: str) -> str:
    """A command that writes down what it is told."""
    (folder / "note.py").write_text(NOTE)
    return shlex.join([sys.executable, "-I", str(folder / "note.py"), str(folder / "told"), name])


def told(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """Who was told what, in order."""
    path = folder / "told"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(name, json.loads(said)) for name, _, said in (line.partition(" ") for line in lines)]


def write(place: Path, name: str, hooks: Mapping[str, Any], tools: str = "Agent, put_file") -> None:
    """An agent file with hooks."""
    place.mkdir(exist_ok=True)
    head = f"name: {name}\ndescription: d\nmode: all\ntools: {tools}\nhooks: {json.dumps(hooks)}"
    (place / f"{name}.md").write_text(f"---\n{head}\n---\nYou are {name}.\n")


def asked(entry: dict[str, Any], *events: str, matcher: str = "") -> dict[str, Any]:
    """The same entry at these events."""
    return {event: [{"matcher": matcher, "hooks": [entry]}] for event in events}


@contextlib.asynccontextmanager
async def serving_files(folder: Path, *entries: dict[str, Any], **env: str) -> AsyncIterator[tuple[Service, Client]]:
    """A service with the agents in `ours`, which is trusted, and in `theirs`, which is not."""
    for name in ("ours", "theirs"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "subagentd.toml").write_text('agents = ["theirs", "ours"]\ntrusted_agents = ["ours"]\n')
    async with hooked(folder, list(entries), ["put_file"], env={**script(folder, TREE_PLAY), **env}) as made:
        yield made


async def run_of(client: Client, name: str) -> dict[str, Any]:
    """A finished run of one agent."""
    return await finished(client, (await client.request("POST", "/v1/runs", {"agent": name, "input": "x"}))["id"])


@pytest.mark.spec("6.1", "6.2", "6.3", "10.1")
async def test_hooks_of_a_file_are_asked_about_its_runs_only_after_those_of_the_service_and_named_in_the_record(
    tmp_path: Path,
) -> None:
    entry = {"type": "command", "command": noting(tmp_path, "own")}
    guard = asked(entry, "PreToolUse", matcher="Write|put_file")
    write(tmp_path / "ours", "middle", {**asked(entry, "SubagentStart", "PostToolUse", "Stop"), **guard})
    first = hook("server", "command", EVERY, command=noting(tmp_path, "server"))
    async with serving_files(tmp_path, first) as (service, client):
        tools = ["Agent", "put_file"]
        body = {
            "agent": "lead",
            "agents": [agent("lead", mode="primary", tools=tools), "middle", agent("worker", tools=tools)],
            "surfaces": ["dispatch"],
            "policy": {"max_depth": 2},
            "input": "Go.",
        }
        run = await finished(client, (await client.request("POST", "/v1/runs", body))["id"])
        assert run["output"] == "Lead is done."
        assert {path.name for path in service.workspace.iterdir()} == {"lead.txt", "worker.txt"}
        heard = told(tmp_path)
        of_own = [each for name, each in heard if name == "own"]
        assert {each["agent"] for each in of_own} == {"middle"}
        assert {each["depth"] for each in of_own} == {1}
        points = [each["hook_event_name"] for each in of_own]
        assert (points[0], points[-1]) == ("OnSubagentStart", "OnSubagentStop")
        # before its file and after its subagent, which are two calls of one step
        assert sorted(points[1:-1]) == ["PostToolUse", "PreToolUse"]
        calls_of_middle = [
            (name, each["tool_name"])
            for name, each in heard
            if each["hook_event_name"] == "PreToolUse" and each["agent"] == "middle"
        ]
        assert [name for name, tool in calls_of_middle if tool == "put_file"] == ["server", "own"]
        seen = await events_of(client, f"/v1/sessions/{run['session_id']}/events", types="hook.decision")
        decided = [(e["data"]["hook"], e["data"]["kind"], e["data"]["decision"], e["data"]["tool"]) for e in seen]
        assert decided == [("middle/PreToolUse/1", "command", "block", "put_file")]
        audited = (await client.page("/v1/audit", decision="any", run_id=seen[0]["run_id"], limit=10))["items"]
        assert {"not for this one" in item["reason"] for item in audited} == {True}


@pytest.mark.spec("6.1")
async def test_as_a_lead_an_agent_has_its_hooks_around_calls_and_none_around_its_run(tmp_path: Path) -> None:
    entry = {"type": "command", "command": noting(tmp_path, "own")}
    write(tmp_path / "ours", "worker", asked(entry, "SubagentStart", "PreToolUse", "Stop"), "put_file")
    async with serving_files(tmp_path) as (service, client):
        run = await finished(
            client, (await client.request("POST", "/v1/runs", {"agent": "worker", "input": "x"}))["id"]
        )
        assert run["output"] == "Worker is done."
        assert list(service.workspace.iterdir()) == []
        assert [each["hook_event_name"] for _, each in told(tmp_path)] == ["PreToolUse"]


@pytest.mark.spec("6.3", "12.6")
async def test_a_webhook_of_a_file_is_signed_told_no_secret_and_shown_nowhere(tmp_path: Path) -> None:
    canary = "canary-word-20-letters"
    play = json.dumps(
        {"agents": [{"turns": [{"calls": [{"tool": "put_file", "arguments": {"path": canary}}]}, {"text": "x"}]}]}
    )
    async with loopback(says({"decision": "block", "reason": "no"})) as server, loopback(says({})) as listener:
        entry = {"type": "http", "url": server.url}
        write(tmp_path / "ours", "worker", asked(entry, "PreToolUse", matcher="Write|put_file"), "put_file")
        env = {
            "SUBAGENTD_HOOKS__HOSTS": json.dumps([server.host, listener.host]),
            "SUBAGENTD_HOOKS__SECRET_ENV": "HOOK_SECRET",
            "OUR_TOKEN": canary,
            **script(tmp_path, play, "other"),
        }
        configured = hook("listener", url=listener.url)
        async with serving_files(tmp_path, configured, **env) as (service, client):
            run = await run_of(client, "worker")
            assert list(service.workspace.iterdir()) == []
            seen = await events_of(client, f"/v1/runs/{run['id']}/events")
            shown = await client.request("GET", "/v1/agents/worker")
            assert [e["data"]["hook"] for e in seen if e["type"] == "hook.decision"] == ["worker/PreToolUse/1"]
        for each in (server, listener):
            (request,) = each.requests
            assert request.headers["webhook-signature"].startswith("v1,")
            assert request.json["tool_input"] == {"path": "[masked]"}
    text = json.dumps([seen, shown]) + service.log
    for secret in ("url-secret-1234", SECRET.removeprefix("whsec_"), server.host, canary):
        assert secret not in text


@pytest.mark.spec("10.5", "10.3", "6.3")
async def test_hooks_of_a_file_that_is_not_trusted_are_never_asked_and_unusable_ones_keep_an_agent_away(
    tmp_path: Path,
) -> None:
    entry = {"type": "command", "command": noting(tmp_path, "own")}
    write(tmp_path / "theirs", "worker", asked(entry, "PreToolUse"), "put_file")
    unusable = {
        "far": asked({"type": "http", "url": "https://elsewhere.example/x", "secret_env": "HOOK_SECRET"}, "PreToolUse"),
        "unsigned": asked({"type": "http", "url": "http://127.0.0.1:1/"}, "PreToolUse"),
        "unset": asked({"type": "http", "url": "http://127.0.0.1:1/", "secret_env": "NO_SUCH"}, "PreToolUse"),
        "pattern": asked(entry, "PreToolUse", matcher="("),
        "pointless": asked(entry, "Stop", matcher="Bash"),
        "event": asked(entry, "PreCompact"),
    }
    for name, hooks in unusable.items():
        write(tmp_path / "ours", name, hooks, "put_file")
    async with serving_files(tmp_path, SUBAGENTD_HOOKS__HOSTS='["127.0.0.1"]') as (service, client):
        run = await finished(
            client, (await client.request("POST", "/v1/runs", {"agent": "worker", "input": "x"}))["id"]
        )
        assert run["output"] == "Worker is done."
        assert [path.name for path in service.workspace.iterdir()] == ["worker.txt"]
        assert told(tmp_path) == []
        listed = await client.request("GET", "/v1/agents")
        (warned,) = [each for each in listed["warnings"] if each["key"] == "hooks"]
        assert (Path(warned["path"]).name, warned["line"]) == ("worker.md", 6)
        assert "trusted_agents" in warned["message"]
        broken = {Path(each["path"]).stem: (each["line"], each["message"]) for each in listed["broken"]}
        assert {name: line for name, (line, _) in broken.items()} == dict.fromkeys(unusable, 6)
        says_why = {
            "far": "elsewhere.example", "unsigned": "hooks.secret_env", "unset": "NO_SUCH", "pattern": "is no pattern",
            "pointless": "matcher is for the names of tools", "event": "PreCompact",
        }  # fmt: skip
        assert [name for name, why in says_why.items() if why not in broken[name][1]] == []


@pytest.mark.spec("10.3", "6.3")
async def test_a_hook_that_is_added_to_a_file_holds_for_the_next_run(tmp_path: Path) -> None:
    write(tmp_path / "ours", "worker", {}, "put_file")
    async with serving_files(tmp_path, SUBAGENTD_WATCH="off") as (service, client):
        await run_of(client, "worker")
        (service.workspace / "worker.txt").unlink()
        entry = {"type": "command", "command": noting(tmp_path, "own")}
        write(tmp_path / "ours", "worker", asked(entry, "PreToolUse"), "put_file")
        await client.request("POST", "/v1/agents/reload")
        await run_of(client, "worker")
        assert list(service.workspace.iterdir()) == []
        assert len(told(tmp_path)) == 1


@pytest.mark.spec("6.4", "12.7")
@pytest.mark.case("B103")
async def test_a_hook_of_a_file_that_was_told_of_a_start_is_told_of_the_end_after_a_crash(tmp_path: Path) -> None:
    entry = {"type": "command", "command": noting(tmp_path, "file")}
    write(tmp_path / "ours", "worker", asked(entry, "SubagentStart", "SubagentStop"), "put_file")
    working, never = asyncio.Event(), asyncio.Event()

    def decide(request: Request) -> Answer:
        if request.messages[0]["content"] == "You are boss.":
            if any(message["role"] == "tool" for message in request.messages):
                return text("Boss is done.")
            return calls(
                *[("dispatch_subagent", json.dumps({"agent_type": who, "task": "x"})) for who in ("worker", "own")]
            )
        if request.messages[0]["content"] == "You are worker.":
            working.set()
        return Answer(writes=(never,))

    async with OpenAIStub() as stub:
        stub.decide(decide)
        env = {"OPENAI_BASE_URL": stub.base_url, "OPENAI_API_KEY": "test", "SUBAGENTD_MODEL": "openai:test"}
        env["SUBAGENTD_RECOVERY__MODE"] = "interrupt"
        async with serving_files(tmp_path, **env) as (service, client):
            agents = [agent("boss", mode="primary", tools=["Agent"]), "worker", agent("own", tools=[])]
            body = {"agent": "boss", "agents": agents, "surfaces": ["dispatch"], "input": "Go."}
            run = await client.request("POST", "/v1/runs", body)
            async with asyncio.timeout(WAIT_S):
                await working.wait()
                while not await _begun(client, run["session_id"]):  # what is not stored yet, a crash forgets
                    await asyncio.sleep(0.02)
            await service.kill()
            before = [each for _, each in told(tmp_path)]
            assert [(each["hook_event_name"], each["agent"]) for each in before] == [("OnSubagentStart", "worker")]
            await service.start()
            async with asyncio.timeout(WAIT_S):
                while len(told(tmp_path)) < 2:
                    await asyncio.sleep(0.02)
    (_, start), (_, stop) = told(tmp_path)
    assert (stop["hook_event_name"], stop["run_id"], stop["is_error"]) == ("OnSubagentStop", start["run_id"], True)


async def _begun(client: Client, session_id: str) -> bool:
    seen = await events_of(client, f"/v1/sessions/{session_id}/events", types="subagent.start")
    return any(event["data"]["agent"] == "worker" for event in seen)
