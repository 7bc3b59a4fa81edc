"""Hooks of an operator in a running service: broken ones decide as they are told to, and nobody below escapes them."""

import asyncio
import base64
import contextlib
import json
import shlex
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.client import Client
from tests.net.loopback import Loopback, http, loopback, says, unused_port
from tests.service import ROOT, WAIT_S, Service, agent, events_of, finished, script, serving
from tests.stubs.openai_stub import Answer, OpenAIStub, Request, calls, refusal, text

SECRET = f"whsec_{base64.b64encode(b'k' * 32).decode()}"
TOOLS = '''
from app.agent.tools import ToolContext
from app.tools.function import tool


def made(name):
    @tool(name=name, concurrency_safe=True)
    def put(path: str, context: ToolContext) -> str:
        """Writes a file."""
        (context.workspace / path).write_text(name)
        return f"{name} wrote {path}"

    return put


'''
# Writes down what it was told, one line for each call, and lets nobody write.
GUARD = """
import sys
from pathlib import Path

told = sys.stdin.read()
with Path(sys.argv[1]).open("a") as file:
    file.write(told.replace("\\n", " ") + "\\n")
if '"hook_event_name":"PreToolUse"' in told:
    print("nobody writes here", file=sys.stderr)
    sys.exit(2)
"""


def hook(name: str, kind: str = "webhook", points: tuple[str, ...] = ("PreToolUse",), **fields: Any) -> dict[str, Any]:
    """An entry of the settings."""
    own = {"secret_env": "HOOK_SECRET"} if kind == "webhook" else {}
    return {"name": name, "kind": kind, "points": list(points), **own, **fields}


@contextlib.asynccontextmanager
async def hooked(
    folder: Path,
    entries: list[dict[str, Any]],
    tools: list[str],
    hosts: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[tuple[Service, Client]]:
    """A service with these hooks, and a tool of each of these names that writes its own name to `path`."""
    (folder / "writing_tools.py").write_text(TOOLS + "\n".join(f"{name} = made({name!r})" for name in tools))
    own = {
        "PYTHONPATH": f"{ROOT}:{folder}",
        "SUBAGENTD_TOOLS__FUNCTIONS": json.dumps([f"writing_tools:{name}" for name in tools]),
        "SUBAGENTD_HOOKS__HOSTS": json.dumps(list(hosts)),
        "SUBAGENTD_HOOKS__ENTRIES": json.dumps(entries),
        "HOOK_SECRET": SECRET,
    }
    async with serving(folder, env={**own, **(env or {})}) as service, service.client() as client:
        yield service, client


def guard(folder: Path, **fields: Any) -> tuple[dict[str, Any], Path]:
    """The entry of a command that writes down what it is told, and where."""
    (folder / "guard.py").write_text(GUARD)
    told = folder / "told.jsonl"
    command = shlex.join([sys.executable, "-I", str(folder / "guard.py"), str(told)])
    return hook("guard", "command", command=command, **fields), told


def lines(path: Path) -> list[dict[str, Any]]:
    """What the command was told, in order."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# ── webhooks that break ─────────────────────────────────────────────────────────────────────────────────────────────

HUGE = http(json.dumps({"reason": "x" * (2 << 20)}).encode())
FAULTS: dict[str, tuple[bytes | None, bool, str]] = {  # what it answers, whether it hangs, what the log says of it
    "dead": (None, False, "cannot connect"),
    "slow": (b"", True, "no answer"),
    "half": (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
        False,
        "connection broke",
    ),
    "failing": (http(b"{}", status="500 Internal Server Error"), False, "status 500"),
    "moved": (http(b"", status="302 Found", Location="http://127.0.0.1:1/"), False, "redirects"),
    "page": (http(b"<html>hello</html>", kind="text/html"), False, "text/html"),
    "nonsense": (http(b"{no json"), False, "not JSON"),
    "liar": (says({"decision": "perhaps"}), False, "perhaps"),
    "typo": (says({"mutate_input": "path=x"}), False, "wrong type"),
    "wrong": (says({"mutate_input": {"way": "up"}}), False, "not valid"),
    "huge": (HUGE, False, "more than"),
}


@pytest.mark.spec("6.3", "6.2", "6.5", "12.4")
@pytest.mark.seed("004", 163, 165)
async def test_a_webhook_that_is_dead_slow_lies_or_answers_nonsense_counts_as_it_is_told_to_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        entries, hosts, tools = [], [], []
        for fault, (answer, hang, _) in FAULTS.items():
            host = f"127.0.0.1:{unused_port()}"
            if answer is not None:
                host = (await stack.enter_async_context(loopback(answer, hang=hang))).host
            hosts.append(host)
            for effect in ("block", "allow"):
                tools.append(f"{fault}_{effect}")
                timing: dict[str, Any] = {"timeout_s": 0.3} if hang else {}
                url = f"http://{host}/hook?token=url-secret-1234"
                entries.append(hook(tools[-1], url=url, matcher=tools[-1], on_failure=effect, **timing))
        play = [{"calls": [{"tool": name, "arguments": {"path": name}} for name in tools]}, {"text": "All is said."}]
        env = script(tmp_path, json.dumps({"agents": [{"turns": play}]}))
        service, client = await stack.enter_async_context(hooked(tmp_path, entries, tools, hosts, env))
        body = {"agent": "writer", "agents": [agent("writer", mode="all", tools=tools)], "input": "Go."}
        run = await finished(client, (await client.request("POST", "/v1/runs", body))["id"])
        assert (run["status"], run["output"]) == ("completed", "All is said.")
        written = {path.name for path in service.workspace.iterdir()}
        assert written == {name for name in tools if name.endswith("_allow")}
        seen = await events_of(client, f"/v1/runs/{run['id']}/events", types="hook.decision,tool.result")
        decisions = {e["data"]["hook"]: e["data"] for e in seen if e["type"] == "hook.decision"}
        results = {e["data"]["tool"]: e["data"] for e in seen if e["type"] == "tool.result"}
        assert set(decisions) == set(results) == set(tools)
        for name in tools:
            fault, effect = name.split("_")
            told, reason = decisions[name], FAULTS[fault][2]
            assert (told["decision"], told["effect"], told["kind"], told["tool"]) == ("failed", effect, "webhook", name)
            assert reason in told["reason"], told
            assert (results[name]["status"], reason in results[name]["content"]) == (
                ("denied", True) if effect == "block" else ("ok", False)
            )
        audited = (await client.page("/v1/audit", decision="any", run_id=run["id"], limit=100))["items"]
        assert {item["tool"] for item in audited} == set(tools)
        assert all(FAULTS[item["tool"].split("_")[0]][2] in item["reason"] for item in audited)
        assert "url-secret-1234" not in json.dumps([seen, audited]) + service.log
        assert SECRET.removeprefix("whsec_") not in json.dumps([seen, audited]) + service.log


@pytest.mark.spec("6.3", "6.4")
async def test_a_dead_webhook_keeps_a_subagent_from_starting_but_not_from_ending(tmp_path: Path) -> None:
    host = f"127.0.0.1:{unused_port()}"
    for point, status in (("OnSubagentStart", "failed"), ("OnSubagentStop", "completed")):
        folder = tmp_path / point
        folder.mkdir()
        entry = hook("far", points=(point,), url=f"http://{host}/")
        async with hooked(folder, [entry], ["put_file"], [host], script(folder, TREE_PLAY)) as (_, client):
            run = await finished(client, (await client.request("POST", "/v1/runs", tree()))["id"])
            assert (run["status"], run["output"]) == ("completed", "Lead is done.")
            seen = await events_of(client, f"/v1/sessions/{run['session_id']}/events")
            ended = {e["depth"]: e["type"] for e in seen if e["type"] in ("run.completed", "run.failed")}
            assert (ended[1], len(ended)) == (f"run.{status}", 2 if status == "failed" else 3)
            seen = [e for e in seen if e["type"] == "hook.decision"]
            assert {e["data"]["effect"] for e in seen} == {"block" if status == "failed" else "allow"}
            assert all("cannot connect" in e["data"]["reason"] for e in seen)


# ── the same hooks for everybody ────────────────────────────────────────────────────────────────────────────────────

TREE_PLAY = """
agents:
  - when: {system_contains: "You are lead"}
    turns:
      - calls:
          - {tool: put_file, arguments: {path: lead.txt}}
          - {tool: dispatch_subagent, arguments: {agent_type: middle, task: "go on"}}
      - {text: "Lead is done."}
  - when: {system_contains: "You are middle"}
    turns:
      - calls:
          - {tool: put_file, arguments: {path: middle.txt}}
          - {tool: dispatch_subagent, arguments: {agent_type: worker, task: "write"}}
      - {text: "Middle is done."}
  - when: {system_contains: "You are worker"}
    turns:
      - {calls: [{tool: put_file, arguments: {path: worker.txt}}]}
      - {text: "Worker is done."}
"""


def tree() -> dict[str, Any]:
    """A lead, its child and its grandchild."""
    tools = ["Agent", "put_file"]
    return {
        "agent": "lead",
        "agents": [
            agent("lead", mode="primary", tools=tools),
            agent("middle", tools=tools),
            agent("worker", tools=tools),
        ],
        "surfaces": ["dispatch"],
        "policy": {"max_depth": 2},
        "input": "Go.",
    }


@pytest.mark.spec("6.1", "6.2", "6.3")
@pytest.mark.seed("004", 163, 164, 166, 167)
@pytest.mark.case("B098", "B099", "B105")
async def test_one_command_keeps_parent_child_and_grandchild_from_writing_and_is_told_who_they_are(
    tmp_path: Path,
) -> None:
    every = ("OnSubagentStart", "PreToolUse", "PostToolUse", "OnSubagentStop")
    entry, told = guard(tmp_path, points=every, matcher="put_file")
    async with hooked(tmp_path, [entry], ["put_file"], env=script(tmp_path, TREE_PLAY)) as (service, client):
        run = await finished(client, (await client.request("POST", "/v1/runs", tree()))["id"])
        assert (run["status"], run["output"]) == ("completed", "Lead is done.")
        assert list(service.workspace.iterdir()) == []
        seen = await events_of(client, f"/v1/sessions/{run['session_id']}/events")
        results = [e for e in seen if e["type"] == "tool.result" and e["data"]["tool"] == "put_file"]
        assert sorted(e["depth"] for e in results) == [0, 1, 2]
        assert {(e["data"]["status"], "nobody writes here" in e["data"]["content"]) for e in results} == {
            ("denied", True)
        }
        queued = {e["depth"]: e for e in seen if e["type"] == "run.queued"}
        ids = [queued[depth]["run_id"] for depth in range(3)]
        heard = lines(told)
        of = {point: [each for each in heard if each["hook_event_name"] == point] for point in every}
        # a file is written beside the subagent that is called in the same step: either may be told of first
        of["PreToolUse"].sort(key=lambda each: each["depth"])
        assert [[each["depth"] for each in of[point]] for point in every] == [[1, 2], [0, 1, 2], [], [2, 1]]
        for each in heard:
            depth = each["depth"]
            assert (each["session_id"], each["run_id"], each["agent_id"]) == (run["session_id"], ids[depth], ids[depth])
            assert each["agent_type"] == ("lead", "middle", "worker")[depth]
            assert (each.get("parent_run_id"), each["lineage"]) == (ids[depth - 1] if depth else None, ids[:depth])
            assert (len(each["path"]), each["cwd"]) == (depth + 1, str(service.workspace))
        assert [each["tool_input"] for each in of["PreToolUse"]] == [
            {"path": f"{name}.txt"} for name in ("lead", "middle", "worker")
        ]
        assert [each["prompt"] for each in of["OnSubagentStart"]] == ["go on", "write"]
        assert [(each["result"], each["is_error"]) for each in of["OnSubagentStop"]] == [
            ("Worker is done.", False), ("Middle is done.", False),
        ]  # fmt: skip


@pytest.mark.spec("6.2", "6.3")
@pytest.mark.seed("004", 165, 167)
async def test_a_webhook_changes_what_a_tool_is_given_and_what_it_gave_at_every_depth(tmp_path: Path) -> None:
    before, after = says({"mutate_input": {"path": "safe.txt"}}), says({"mutate_output": "[checked]"})
    async with loopback(before) as changing, loopback(after) as checking:
        entries = [
            hook("changing", url=changing.url, matcher="put_file"),
            hook("checking", points=("PostToolUse",), url=checking.url, matcher="put_file"),
        ]
        hosts = [changing.host, checking.host]
        async with hooked(tmp_path, entries, ["put_file"], hosts, script(tmp_path, TREE_PLAY)) as (service, client):
            run = await finished(client, (await client.request("POST", "/v1/runs", tree()))["id"])
            assert [path.name for path in service.workspace.iterdir()] == ["safe.txt"]
            seen = await events_of(client, f"/v1/sessions/{run['session_id']}/events", types="tool.result")
            contents = [e["data"]["content"] for e in seen if e["data"]["tool"] == "put_file"]
            assert contents == ["[checked]"] * 3
        assert sorted(request.json["depth"] for request in changing.requests) == [0, 1, 2]  # they run side by side
        assert _responses(checking) == ["put_file wrote safe.txt"] * 3


def _responses(server: Loopback) -> list[str]:
    return [request.json["tool_response"] for request in server.requests]


# ── starts and stops ────────────────────────────────────────────────────────────────────────────────────────────────


def _burst(request: Request) -> Answer:
    if request.messages[0]["content"] != "You are boss.":
        return refusal(500, {"message": "the model is on fire"})
    if any(message["role"] == "tool" for message in request.messages):
        return text("Boss is done.")
    return calls(*[("dispatch_subagent", json.dumps({"agent_type": "worker", "task": f"part {n}"})) for n in range(8)])


@pytest.mark.spec("6.4", "5.8")
@pytest.mark.case("B104")
async def test_eight_children_whose_provider_fails_have_eight_starts_and_eight_stops(tmp_path: Path) -> None:
    entry, told = guard(tmp_path, points=("OnSubagentStart", "OnSubagentStop"))
    async with OpenAIStub() as stub:
        stub.decide(_burst)
        env = {"OPENAI_BASE_URL": stub.base_url, "OPENAI_API_KEY": "test", "SUBAGENTD_MODEL": "openai:test"}
        env |= {"SUBAGENTD_LOOP__RETRIES": "1", "SUBAGENTD_LOOP__BACKOFF_MS": "1"}
        async with hooked(tmp_path, [entry], [], env=env) as (_, client):
            agents = [agent("boss", mode="primary", tools=["Agent"]), agent("worker", tools=[])]
            body = {"agent": "boss", "agents": agents, "surfaces": ["dispatch"], "input": "Go."}
            run = await finished(client, (await client.request("POST", "/v1/runs", body))["id"])
            assert (run["status"], run["output"]) == ("completed", "Boss is done.")
        heard = lines(told)
        started, stopped = (
            sorted(
                (each["run_id"], each["agent_type"], each["name"]) for each in heard if each["hook_event_name"] == point
            )
            for point in ("OnSubagentStart", "OnSubagentStop")
        )
        assert (len(set(started)), len(started)) == (8, 8)
        assert started == stopped
        stops = [each for each in heard if each["hook_event_name"] == "OnSubagentStop"]
        assert all(each["is_error"] and "the model is on fire" in each["result"] for each in stops)


@pytest.mark.spec("6.4", "5.7")
@pytest.mark.seed("004", 165)
@pytest.mark.case("B103")
async def test_a_child_that_is_cancelled_over_http_has_its_stop(tmp_path: Path) -> None:
    entry, told = guard(tmp_path, points=("OnSubagentStart", "OnSubagentStop"))
    never = asyncio.Event()

    def decide(request: Request) -> Answer:
        return _burst(request) if request.messages[0]["content"] == "You are boss." else Answer(writes=(never,))

    async with OpenAIStub() as stub:
        stub.decide(decide)
        env = {"OPENAI_BASE_URL": stub.base_url, "OPENAI_API_KEY": "test", "SUBAGENTD_MODEL": "openai:test"}
        async with hooked(tmp_path, [entry], [], env=env) as (_, client):
            agents = [agent("boss", mode="primary", tools=["Agent"]), agent("worker", tools=[])]
            body = {"agent": "boss", "agents": agents, "surfaces": ["dispatch"], "input": "Go."}
            started = await client.request("POST", "/v1/runs", body)
            begun = 0  # a hook that is asked about a start when the run is cancelled is killed at whatever it writes
            async with asyncio.timeout(WAIT_S):
                async for frame in client.events(f"/v1/runs/{started['id']}/events"):
                    begun += frame.type == "subagent.start"
                    if begun == 8:
                        break
            await client.request("POST", f"/v1/runs/{started['id']}/cancel")
            run = await finished(client, started["id"])
            assert run["status"] == "cancelled"
            pairs = await events_of(
                client, f"/v1/sessions/{run['session_id']}/events", types="subagent.start,subagent.stop"
            )
    started, ended = (
        sorted(e["run_id"] for e in pairs if e["type"] == kind) for kind in ("subagent.start", "subagent.stop")
    )
    assert (started, len(started)) == (ended, 8)
    assert sorted(each["run_id"] for each in lines(told) if each["hook_event_name"] == "OnSubagentStop") == ended
