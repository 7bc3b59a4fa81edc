"""Over HTTP: who shares a memory and who never does, own runners from an operator's files, sessions side by side."""

import asyncio
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.client import Client, Received, ServiceError
from tests.commands import key_for
from tests.flows.test_tenants import ROOT_KEY
from tests.plan import ask, call, task
from tests.service import INTERRUPT, WAIT_S, Service, agent, events_of, finished, received, serving
from tests.strict import log_problems

pytestmark = pytest.mark.slow

# What an agent that remembers was asked before is its answer, so that a client sees what its memory holds.
SCRIPT = """
from tests import plan

def reply(request):
    if request.messages[0].content.startswith("You are keeper"):
        return {"text": " ".join(m.content for m in request.messages if m.role.value == "user")}
    return plan.reply(request)
"""
KEEPER: dict[str, Any] = {"session_mode": "reuse_session", "tools": []}


TRUSTED = {"SUBAGENTD_TRUSTED_AGENTS": "true"}  # files that name code of the operator


def playing(folder: Path, **env: str) -> dict[str, str]:
    """The environment of a service whose model is the script."""
    (folder / "scripts").mkdir(exist_ok=True)
    (folder / "scripts" / "keep.py").write_text(SCRIPT)
    return {"SUBAGENTD_MODELS__SCRIPTS": str(folder / "scripts"), "SUBAGENTD_MODEL": "scripted:keep", **TRUSTED, **env}


def lead(*agents: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """A session whose lead plays plans."""
    node = agent("node", mode="all", tools=["Agent", "read_file", "glob", "grep"])
    return {"agent": "node", "agents": [node, *agents], "surfaces": ["dispatch"], **fields}


async def knows(client: Client, scope: str, text: str, **fields: Any) -> str:
    """What an agent of that scope remembers, once it was told this as well."""
    keeper = agent("keeper", **KEEPER, session_scope=scope)
    result = await client.request("POST", "/v1/delegations", {"agent": keeper, "task": text, **fields})
    assert result["status"] == "completed"
    return str(result["output"])


async def verified(client: Client, session_id: str) -> list[dict[str, Any]]:
    """The events of a session, which must tell the truth."""
    events = await events_of(client, f"/v1/sessions/{session_id}/events")
    assert log_problems(events) == []
    return events


@pytest.mark.spec("4.9", "17.1")
@pytest.mark.seed("000", 54)
async def test_tenants_never_share_a_memory_whatever_user_or_key_they_name(tmp_path: Path) -> None:
    async with serving(tmp_path, env=playing(tmp_path, SUBAGENTD_KEY=ROOT_KEY)) as service:
        keys = [await key_for(service, tenant, "run", "read") for tenant in ("red", "blue")]
        async with service.client(keys[0]) as red, service.client(keys[1]) as blue:
            for scope, given in (("user", {"user": "ann"}), ("tenant", {}), ("key", {"session_key": "k"})):
                assert await knows(red, scope, "red1", **given) == "red1"
                assert await knows(blue, scope, "blue1", **given) == "blue1"
                assert await knows(red, scope, "red2", **given) == "red1 red2"
                assert await knows(blue, scope, "blue2", **given) == "blue1 blue2"
            both = [knows(client, "tenant", f"again{n}") for n in range(5) for client in (red, blue)]
            found = await asyncio.gather(*both)
            assert all("blue" not in text for text in found[::2])
            assert all("red" not in text for text in found[1::2])
            for client, other in ((red, "blue"), (blue, "red")):
                rows = (await client.page("/v1/audit", agent="keeper", limit=500))["items"]
                assert rows
                assert not any(row["content"].startswith(other) for row in rows)


@pytest.mark.spec("4.9", "14.2", "14.9")
async def test_a_user_s_memory_goes_over_sessions_and_restarts_and_outlives_those_that_are_deleted(
    tmp_path: Path,
) -> None:
    env = playing(tmp_path)
    async with serving(tmp_path, env=env) as service, service.client() as client:
        for text in ("one", "two"):
            await knows(client, "user", text, user="ann")
        assert await knows(client, "user", "x", user="bob") == "x"
    async with serving(tmp_path, env=env) as service, service.client() as client:
        assert await knows(client, "user", "three", user="ann") == "one two three"
        sessions = (await client.page("/v1/sessions"))["items"]
        oldest = next(s for s in reversed(sessions) if s["user"] == "ann")
        await client.request("DELETE", f"/v1/sessions/{oldest['id']}")
        assert await knows(client, "user", "four", user="ann") == "two three four"
        assert await knows(client, "user", "five", user="ann") == "two three four five"


@pytest.mark.spec("4.9", "12.3", "12.7")
async def test_a_memory_goes_on_after_the_process_was_killed_while_it_was_held(tmp_path: Path) -> None:
    async with serving(tmp_path, env=playing(tmp_path) | INTERRUPT) as service:
        diary = agent("diary", session_mode="reuse_session", session_scope="user", tools=["glob"])
        looks = {"text": "I look.", "calls": [call("glob", pattern="*")]}
        async with service.client() as client:
            first = {"agent": diary, "task": task(looks, "one"), "user": "ann"}
            assert (await client.request("POST", "/v1/delegations", first))["output"] == "one"
            session = await client.request("POST", "/v1/sessions", {"user": "ann"})
            slow = task(looks, {"text": "half an answer", "chunks": 2, "delay_ms": 60_000})
            held = {**first, "task": slow, "session_id": session["id"]}
            body = {key: value for key, value in held.items() if key != "user"}
            waiting = [asyncio.create_task(client.request("POST", "/v1/delegations", body)) for _ in range(2)]
            async with asyncio.timeout(WAIT_S):
                async for frame in client.events(f"/v1/sessions/{session['id']}/events"):
                    if frame.type == "tool.result":
                        break
            await service.kill()
            await asyncio.gather(*waiting, return_exceptions=True)
        await service.start()
        async with service.client() as client:
            result = await client.request("POST", "/v1/delegations", {**first, "task": task(looks, "after")})
            assert (result["status"], result["output"]) == ("completed", "after")
            rows = (await client.page("/v1/audit", agent="diary", limit=500))["items"]
            rows.sort(key=lambda row: (row["turn"], row["step"], row["sub"]))
            assert len({row["memory_id"] for row in rows}) == 1
            assert [row["content"] for row in rows if row["role"] == "assistant" and not row["tool_calls"]] == [
                "one", "after",
            ]  # fmt: skip
            assert {row["turn"] for row in rows} == {0, 1, 3}, "the one that waited had a turn and said nothing"


@pytest.mark.spec("4.9", "3.5", "12.2")
@pytest.mark.seed("000", 43)
async def test_fifty_calls_of_one_turn_share_a_memory_in_their_order(tmp_path: Path) -> None:
    async with serving(tmp_path, env=playing(tmp_path)) as service, service.client() as client:
        calls = [ask(f"t{number}", agent="keeper") for number in range(50)]
        body = lead(agent("keeper", **KEEPER), input=task({"calls": calls}, "end"))
        started = await client.request("POST", "/v1/runs", body)
        assert (await finished(client, started["id"]))["output"] == "end"
        events = await verified(client, started["session_id"])
        results = [e["data"] for e in events if e["type"] == "tool.result"]
        said = [r["content"] for r in sorted(results, key=lambda r: r["sub"])]
        assert said == [" ".join(f"t{earlier}" for earlier in range(number + 1)) for number in range(50)]
        page = await client.page(f"/v1/sessions/{started['session_id']}/messages", agent="keeper", limit=500)
        rows = sorted(page["items"], key=lambda row: (row["turn"], row["step"], row["sub"]))
        assert [row["role"] for row in rows] == ["system", *["user", "assistant"] * 50]


@pytest.mark.spec("2.5", "14.1")
async def test_a_child_inherits_over_http_what_its_definition_gives(tmp_path: Path) -> None:
    async with serving(tmp_path, env=playing(tmp_path)) as service, service.client() as client:
        turn = {"text": "Said before.", "calls": [ask("Work.", agent="heir"), ask("Alone.", agent="other")]}
        agents = [agent("heir", tools=[], inherit_context="last:1"), agent("other", tools=[])]
        started = await client.request("POST", "/v1/runs", lead(*agents, input=task(turn, "end")))
        await finished(client, started["id"])
        tasks = {}
        for name in ("heir", "other"):
            page = await client.page(f"/v1/sessions/{started['session_id']}/messages", agent=name, role="user")
            (tasks[name],) = [row["content"] for row in page["items"]]
        assert tasks["heir"].startswith("Work.\n\n")
        assert tasks["heir"].endswith("\n> assistant: Said before.")
        assert tasks["other"] == "Alone."


# ── own runners ─────────────────────────────────────────────────────────────────────────────────────────────────

CLERK = """
import asyncio

async def answer(task, context):
    context.progress("looking it up … ")
    await asyncio.sleep(0)
    return f"{context.metadata['office']}: {task} ({context.agent} at {context.depth}, {len(context.history)} before)"

def answer_in_a_thread(task, context):
    context.progress("thinking … ")
    return task.upper()

async def failing(task, context):
    raise RuntimeError("the office is closed")
"""
FILE = """---
name: {name}
description: Answers from the files of the office.
mode: all
runner: clerk_of_the_office:{function}
session_mode: reuse_session
office: Room 5
---
You are a function.
"""


def with_clerks(folder: Path) -> str:
    """Own runners with their definitions, as an operator puts them beside the service."""
    (folder / "clerk_of_the_office.py").write_text(CLERK)
    (folder / "agents").mkdir()
    for name, function in (("clerk", "answer"), ("thread", "answer_in_a_thread"), ("closed", "failing")):
        (folder / "agents" / f"{name}.md").write_text(FILE.format(name=name, function=function))
    return str(folder / "agents")


@pytest.mark.spec("10.5", "13.3", "14.7", "14.9")
async def test_an_own_runner_leads_a_session_and_takes_delegations_without_any_model(tmp_path: Path) -> None:
    async with serving(tmp_path, "--agents", with_clerks(tmp_path), env=TRUSTED) as service, service.client() as client:
        names = [a["name"] for a in (await client.page("/v1/agents"))["items"]]
        assert {"clerk", "thread", "closed"} <= set(names)
        run = await client.request("POST", "/v1/runs", {"agent": "clerk", "input": "Who?"})
        row = await finished(client, run["id"])
        assert (row["status"], row["output"]) == ("completed", "Room 5: Who? (clerk at 0, 0 before)")
        turn = await client.request("POST", f"/v1/sessions/{run['session_id']}/runs", {"input": "And?"})
        assert (await finished(client, turn["id"]))["output"] == "Room 5: And? (clerk at 0, 3 before)"
        await verified(client, run["session_id"])
        result = await client.request("POST", "/v1/delegations", {"agent": "clerk", "task": "Where?"})
        assert (result["output"], result["usage"]["model_calls"]) == ("Room 5: Where? (clerk at 1, 0 before)", 0)
        loud = await client.request("POST", "/v1/delegations", {"agent": "thread", "task": "quiet"})
        assert loud["output"] == "QUIET"
        failed = await client.request("POST", "/v1/delegations", {"agent": "closed", "task": "Open?"})
        assert (failed["status"], failed["error"]["code"]) == ("failed", "runner_failed")
        assert "the office is closed" in failed["error"]["message"]
        rows = (await client.page("/v1/audit", agent="thread", order="oldest"))["items"]
        assert [(r["role"], r["content"]) for r in rows] == [
            ("system", "You are a function."), ("user", "quiet"), ("assistant", "QUIET"),
        ]  # fmt: skip


@pytest.mark.spec("10.5", "11.3")
async def test_an_own_runner_below_a_model_s_run_is_seen_like_any_child(tmp_path: Path) -> None:
    agents = with_clerks(tmp_path)
    async with serving(tmp_path, "--agents", agents, env=playing(tmp_path)) as service, service.client() as client:
        body = lead()
        session = await client.request("POST", "/v1/sessions", {**body, "agents": [*body["agents"], "clerk", "closed"]})
        path = f"/v1/sessions/{session['id']}"
        calls = [ask("One?", agent="clerk"), ask("Two?", agent="closed"), ask("Three?", agent="clerk")]
        frames: list[Received] = []
        async with asyncio.timeout(WAIT_S):
            async for frame in client.events(f"{path}/events"):
                frames.append(frame)
                if frame.type == "session.created":  # who comes later is not shown what has passed
                    run = await client.request("POST", f"{path}/runs", {"input": task({"calls": calls}, "end")})
                if frame.type == "session.idle":
                    break
        assert (await finished(client, run["id"]))["output"] == "end"
        events = await verified(client, session["id"])
        results = sorted((e["data"] for e in events if e["type"] == "tool.result"), key=lambda data: data["sub"])
        assert [r["is_error"] for r in results] == [False, True, False]
        assert results[0]["content"] == "Room 5: One? (clerk at 1, 0 before)"
        assert results[2]["content"] == "Room 5: Three? (clerk at 1, 3 before)"
        clerk = next(e["run"] for e in events if e["type"] == "run.started" and e.get("agent") == "clerk")
        shown = [f.data for f in frames if f.type == "text.delta" and f.data["run"] == clerk]
        assert "".join(delta["text"] for delta in shown) == "looking it up … "


@pytest.mark.spec("10.5")
async def test_an_agent_that_comes_over_the_api_may_not_name_code_of_the_server(tmp_path: Path) -> None:
    agents = with_clerks(tmp_path)
    async with serving(tmp_path, "--agents", agents, env=playing(tmp_path)) as service, service.client() as client:
        own = agent("mine", mode="all", runner="clerk_of_the_office:answer")
        stored = {key: value for key, value in own.items() if key != "name"}
        for method, path, body in (
            ("POST", "/v1/runs", {"agent": "mine", "agents": [own], "input": "x"}),
            ("POST", "/v1/sessions", {"agents": [own]}),
            ("POST", "/v1/delegations", {"agent": own, "task": "x"}),
            ("PUT", "/v1/agents/mine", stored),
        ):
            with pytest.raises(ServiceError) as refused:
                await client.request(method, path, body)
            assert refused.value.status == 422, path
            assert "runner" in str(refused.value)


# ── sessions and children side by side ──────────────────────────────────────────────────────────────────────────


async def explored(service: Service, client: Client, name: str, other: str, tools: list[str]) -> list[dict[str, Any]]:
    """A session in a workspace of its own whose two children read and search there, as far as they may."""
    (service.workspace / name).mkdir()
    (service.workspace / name / "a.txt").write_text(f"the file of {name}\n")
    calls = [call("read_file", path="a.txt"), call("read_file", path=f"../{other}/a.txt"), call("grep", pattern="file")]
    work = task({"calls": calls}, "done")
    child = agent("child", tools=tools)
    body = lead(child, workspace=name, input=task({"calls": [ask(work, agent="child")] * 2}, "end"))
    started = await client.request("POST", "/v1/runs", body)
    assert (await finished(client, started["id"]))["output"] == "end"
    events = await verified(client, started["session_id"])
    return [e["data"] for e in events if e["type"] == "tool.result" and e["depth"] == 1]


@pytest.mark.spec("7.2", "7.3", "14.1")
@pytest.mark.case("B187")
async def test_sessions_side_by_side_keep_their_own_workspace_and_whitelist(tmp_path: Path) -> None:
    async with serving(tmp_path, env=playing(tmp_path)) as service, service.client() as client:
        async with asyncio.timeout(WAIT_S):
            found = await asyncio.gather(
                *(explored(service, client, f"w{n}", f"w{1 - n}", ["read_file", "grep"][: n + 1]) for n in (0, 1))
            )
        for number, results in enumerate(found):
            assert len(results) == 6
            reads = [r for r in results if r["tool"] == "read_file"]
            assert sum(f"the file of w{number}" in r["content"] for r in reads) == 2
            assert sum(r["is_error"] for r in reads) == 2, "the other session's file is out of reach"
            assert not any(f"the file of w{1 - number}" in r["content"] for r in results)
        assert [r["status"] for r in found[0] if r["tool"] == "grep"] == ["unknown_tool"] * 2
        assert [r["is_error"] for r in found[1] if r["tool"] == "grep"] == [False] * 2


@pytest.mark.spec("11.1", "3.5")
@pytest.mark.case("B061")
async def test_what_parallel_children_of_one_agent_say_is_told_apart_while_it_comes(tmp_path: Path) -> None:
    async with serving(tmp_path, env=playing(tmp_path)) as service, service.client() as client:
        session = await client.request("POST", "/v1/sessions", lead(agent("twin", tools=[])))
        path = f"/v1/sessions/{session['id']}"
        seen = asyncio.create_task(received(client, f"{path}/events", until="idle"))
        texts = {letter: " ".join(f"{letter}{number}" for number in range(120)) for letter in "ab"}
        calls = [ask(task({"text": text, "chunks": 60, "delay_ms": 5}), agent="twin") for text in texts.values()]
        run = await client.request("POST", f"{path}/runs", {"input": task({"calls": calls}, "end")})
        assert (await finished(client, run["id"]))["output"] == "end"
        frames = await seen
        asked = {
            c["call_id"]: json.loads(c["arguments"])["task"]
            for f in frames
            if f.type == "message"
            for c in f.data["data"].get("tool_calls") or ()
        }
        twins = {
            f.data["run"]: asked[f.data["data"]["parent_call_id"]]
            for f in frames
            if f.type == "run.queued" and f.data["depth"] == 1
        }
        deltas = [f.data for f in frames if f.type == "text.delta" and f.data["run"] in twins]
        order = [delta["run"] for delta in deltas]
        assert sum(one != other for one, other in itertools.pairwise(order)) > 2, "they came mixed"
        for run_number, plan in twins.items():
            mine = [delta for delta in deltas if delta["run"] == run_number]
            text = "".join(delta["text"] for delta in mine)
            assert text in plan
            assert text in texts.values()
            assert [delta["at"] for delta in mine] == [
                sum(len(earlier["text"]) for earlier in mine[:number]) for number in range(len(mine))
            ]
