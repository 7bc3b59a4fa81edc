"""A service that is told to stop, or is killed, and the next one, which goes on: over HTTP, with commands in flight."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.client import Client, Received, ServiceError
from tests.flows.paused import calling, played, question, worker
from tests.processes import until
from tests.service import INTERRUPT, ROOT, WAIT_S, Service, agent, events_of, finished, received, script, serving
from tests.strict import log_problems

TOOLS = '''
import asyncio
from pathlib import Path

from app.tools.function import tool


async def _held(key: str, folder: Path) -> str:
    with (folder / f"{key}.began").open("a") as diary:
        diary.write("x")
    while not (folder / f"{key}.go").exists():
        await asyncio.sleep(0.01)
    return f"result of {key}"


@tool
async def touch(key: str) -> str:
    """Does something that must not be done twice."""
    return await _held(key, Path(__file__).parent)


@tool(read_only=True)
async def look(key: str) -> str:
    """Only reads."""
    return await _held(key, Path(__file__).parent)
'''
PLAY = """
agents:
  - when: {system_contains: "You are boss"}
    turns:
      - calls:
          - {tool: dispatch_subagent, arguments: {agent_type: left, task: "one"}}
          - {tool: dispatch_subagent, arguments: {agent_type: right, task: "two"}}
      - {text: "All done: {{ result[0] }} / {{ result[1] }}"}
  - when: {system_contains: "You are left"}
    turns:
      - {text: "I touch.", calls: [{tool: touch, arguments: {key: t}}]}
      - {text: "left: {{ result[0] }}"}
  - when: {system_contains: "You are right"}
    turns:
      - {text: "I look.", calls: [{tool: look, arguments: {key: l}}]}
      - {text: "right: {{ result[0] }}"}
  - when: {system_contains: "You are asker"}
    turns:
      - {text: "I ask.", calls: [{tool: touch, arguments: {key: a}}]}
      - {text: "asked: {{ result[0] }}"}
  - when: {system_contains: "You are quick"}
    turns:
      - {text: "It takes a moment.", chunks: 10, delay_ms: 40}
"""
AGENTS = [
    agent("boss", mode="primary", tools=["dispatch_subagent"]),
    agent("left", tools=["touch"]),
    agent("right", tools=["look"]),
    agent("asker", mode="all", tools=["touch"], permissions={"ask": ["touch"]}),
    agent("quick", mode="all", tools=[]),
]
TREE = {"agent": "boss", "agents": AGENTS, "input": "Go."}
UNKNOWN = "it is not known whether it took effect"


@contextlib.asynccontextmanager
async def stage(folder: Path, where: str | None = None, **env: str) -> AsyncIterator[Service]:
    """A service with tools that wait for a file."""
    (folder / "held_tools.py").write_text(TOOLS)
    own = {"PYTHONPATH": f"{ROOT}:{folder}", "SUBAGENTD_TOOLS__FUNCTIONS": '["held_tools:touch", "held_tools:look"]'}
    async with serving(folder, env={**script(folder, PLAY), **own, **env}, where=where) as service:
        yield service


def go(folder: Path, *keys: str) -> None:
    """Let the tools of these keys end."""
    for key in keys:
        (folder / f"{key}.go").touch()


def times(folder: Path, key: str) -> int:
    """How often a tool was carried out."""
    path = folder / f"{key}.began"
    return len(path.read_text()) if path.exists() else 0


async def begun(client: Client, folder: Path) -> dict[str, Any]:
    """The tree, with both of its tools under way."""
    started: dict[str, Any] = await client.request("POST", "/v1/runs", TREE)
    await until(lambda: times(folder, "t") == 1 and times(folder, "l") == 1)
    return started


async def ended_well(service: Service, folder: Path, started: dict[str, Any]) -> list[dict[str, Any]]:
    """What the next process makes of the tree; its log."""
    go(folder, "t", "l")
    async with service.client() as client:
        run = await finished(client, started["id"])
        assert run["status"] == "completed", run
        assert UNKNOWN in run["output"]
        assert "right: result of l" in run["output"]
        assert (times(folder, "t"), times(folder, "l")) == (1, 2), "what may have had an effect is not done again"
        path = f"/v1/sessions/{started['session_id']}/events"
        events = await events_of(client, path)
        assert log_problems(events) == []
        tree = await client.request("GET", f"/v1/sessions/{started['session_id']}/tree")
        shown = [tree["runs"][0], *tree["runs"][0]["children"]]
        assert [(each["status"], each["attempt"]) for each in shown] == [("completed", 2)] * 3
        return events


@pytest.mark.spec("12.7", "9.6", "11.2")
@pytest.mark.case("B042")
async def test_a_tree_whose_service_is_killed_ends_in_the_next_one(tmp_path: Path) -> None:
    async with stage(tmp_path) as service:
        async with service.client() as client:
            started = await begun(client, tmp_path)
        await service.kill()
        await service.start()
        events = await ended_well(service, tmp_path, started)
        resumed = [e for e in events if e["type"] == "run.resumed" and e["data"]["reason"] == "restart"]
        assert [(e["data"]["attempt"], e["data"]["epoch"]) for e in resumed] == [(2, 2)] * 3


@pytest.mark.postgres
@pytest.mark.spec("12.7", "12.1")
async def test_a_tree_whose_service_is_killed_ends_in_the_next_one_on_postgresql_too(
    empty_postgres_url: str, tmp_path: Path
) -> None:
    async with stage(tmp_path, where=empty_postgres_url) as service:
        async with service.client() as client:
            started = await begun(client, tmp_path)
        await service.kill()
        await service.start()
        await ended_well(service, tmp_path, started)


@pytest.mark.spec("9.6", "12.7", "11.3")
async def test_what_does_not_fit_in_the_grace_waits_for_the_next_process_and_a_reader_misses_nothing(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, SUBAGENTD_HTTP__GRACE_S="0.4") as service:
        async with service.client() as client:
            started = await begun(client, tmp_path)
            path = f"/v1/sessions/{started['session_id']}/events"
            seen: list[Received] = []
            reading = asyncio.create_task(_read(client, path, seen))
            await until(lambda: any(frame.type == "tool.start" for frame in seen))
            assert await service.stop() == 0
            await asyncio.wait([reading], timeout=WAIT_S)
        assert seen[-1].type == "stream.closing"
        await service.start()
        events = await ended_well(service, tmp_path, started)
        async with service.client() as client:
            last = max(frame.id for frame in seen if frame.id is not None)
            rest = await received(client, path, after=last, until="idle")
        told = [frame.data["id"] for frame in [*seen, *rest] if frame.id is not None and frame.type != "stream.closing"]
        assert told == list(range(1, len(events) + 1))
        drained = [e for e in events if e["type"] == "run.waiting" and e["data"]["reason"] == "drain"]
        assert len({e["run_id"] for e in drained}) == len(drained) == 3
        assert events[drained[-1]["id"]]["type"] == "run.resumed", "nothing is said between the two processes"


async def _read(client: Client, path: str, seen: list[Received]) -> None:
    with contextlib.suppress(ServiceError, OSError):
        async for frame in client.events(path):
            seen.append(frame)
            if frame.type == "stream.closing":
                return


@pytest.mark.spec("9.6", "12.7")
async def test_what_fits_in_the_grace_finishes_and_nothing_is_begun_meanwhile(tmp_path: Path) -> None:
    async with stage(tmp_path, SUBAGENTD_HTTP__GRACE_S="20") as service, service.client() as client:
        body = {"agent": "quick", "agents": AGENTS, "input": "Go."}
        started = await client.request("POST", "/v1/runs", body)
        path = f"/v1/sessions/{started['session_id']}/events"
        async for frame in client.events(path):
            if frame.type == "text.delta":
                break
        assert service.process is not None
        service.process.terminate()
        with contextlib.suppress(OSError):
            async with asyncio.timeout(WAIT_S):
                while (await _health(client)) == 200:
                    await asyncio.sleep(0.005)
        assert await service.ended() == 0
        await service.start()
        async with service.client() as second:
            run = await second.request("GET", f"/v1/runs/{started['id']}")
            assert (run["status"], run["output"], run["attempt"]) == ("completed", "It takes a moment.", 1)


async def _health(client: Client) -> int:
    try:
        await client.request("GET", "/readyz")
    except ServiceError as error:
        return error.status
    return 200


async def asked(client: Client) -> tuple[dict[str, Any], str, str]:
    """A run that asks a person: it, the path of its events, and that of the question."""
    body = {"agent": "asker", "agents": AGENTS, "input": "Go."}
    started: dict[str, Any] = await client.request("POST", "/v1/runs", body)
    path = f"/v1/sessions/{started['session_id']}/events"
    async for frame in client.events(path):
        if frame.type == "permission.requested":
            break
    return started, path, f"/v1/permissions/{frame.data['data']['approval_id']}"


@pytest.mark.spec("9.6", "8.2", "14.11")
@pytest.mark.case("B180")
async def test_who_waits_for_a_person_does_not_use_up_the_grace_and_is_answered_after_the_restart(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, SUBAGENTD_HTTP__GRACE_S="600") as service:
        async with service.client() as client:
            started, path, question = await asked(client)
        assert await service.stop() == 0  # which waits less than the grace
        await service.start()
        async with service.client() as client:
            shown = await client.request("GET", question)
            assert shown["status"] == "pending"
            go(tmp_path, "a", "b")
            answer = {"decision": "allow_once", "arguments": {"key": "b"}}
            assert (await client.request("POST", question, answer))["status"] == "allowed"
            assert (await finished(client, started["id"]))["output"] == "asked: result of b"
            events = await events_of(client, path)
        assert log_problems(events) == []
        assert [e["data"]["approval_id"] for e in events if e["type"] == "permission.requested"] == [shown["id"]]
        assert (times(tmp_path, "a"), times(tmp_path, "b")) == (0, 1)


@pytest.mark.spec("9.6", "12.7", "14.8")
async def test_a_person_is_still_asked_after_more_stops_than_crashes_are_allowed_and_pollers_are_answered(
    tmp_path: Path,
) -> None:
    env = {"SUBAGENTD_HTTP__GRACE_S": "600", "SUBAGENTD_RECOVERY__MAX_ATTEMPTS": "2"}
    async with stage(tmp_path, **env) as service:
        async with service.client() as client:
            started, _path, question = await asked(client)
        for _ in range(4):
            async with service.client() as client:
                polling = asyncio.create_task(client.request("GET", f"/v1/runs/{started['id']}", wait_ms=60_000))
                await client.request("GET", question)
                assert await service.stop() == 0
                assert (await polling)["ended_at"] is None
            await service.start()
        async with service.client() as client:
            go(tmp_path, "a")
            assert (await client.request("POST", question, {"decision": "allow_once"}))["status"] == "allowed"
            assert (await finished(client, started["id"]))["output"] == "asked: result of a"


@pytest.mark.spec("9.6", "12.7")
async def test_in_the_mode_interrupt_what_does_not_fit_in_the_grace_ends(tmp_path: Path) -> None:
    async with stage(tmp_path, SUBAGENTD_HTTP__GRACE_S="0.1", **INTERRUPT) as service:
        async with service.client() as client:
            started = await begun(client, tmp_path)
        assert await service.stop() == 0
        await service.start()
        async with service.client() as client:
            run = await client.request("GET", f"/v1/runs/{started['id']}")
            assert (run["status"], run["stop_reason"], run["attempt"]) == ("interrupted", "shutdown", 1)
            events = await events_of(client, f"/v1/sessions/{started['session_id']}/events")
            assert log_problems(events) == []
            assert not [e for e in events if e["type"] == "run.waiting" and e["data"]["reason"] == "drain"]


@pytest.mark.spec("12.7", "4.9")
async def test_a_session_whose_row_is_gone_holds_no_place_of_others_at_a_memory(tmp_path: Path) -> None:
    diary = agent(
        "diary", mode="all", session_mode="reuse_session", session_scope="user", tools=["glob"],
        permissions={"ask": ["Glob"]},
    )  # fmt: skip
    body = {
        "agent": "worker",
        "agents": [worker(tools=["glob", "Agent"]), diary],
        "user": "u1",
        "surfaces": ["dispatch"],
    }

    def asking(task: str) -> str:
        return calling({"tool": "dispatch_subagent", "arguments": {"agent_type": "diary", "task": task}})

    service = await Service(tmp_path, env=played(tmp_path)).start()
    async with service.client() as client:
        gone, other = [(await client.request("POST", "/v1/sessions", body))["id"] for _ in range(2)]
        await client.request("POST", f"/v1/sessions/{gone}/runs", {"input": asking("wait")})
        await question(client, gone)
    await service.kill()
    with contextlib.closing(sqlite3.connect(service.database)) as db, db:
        db.execute("DELETE FROM sessions WHERE id = ?", (gone,))
    await service.start()
    try:
        async with service.client() as client:
            turn = await client.request("POST", f"/v1/sessions/{other}/runs", {"input": asking("quick")})
            ended = await finished(client, turn["id"])
            assert (ended["status"], "quick" in ended["output"]) == ("completed", True)
    finally:
        await service.stop()
    assert f"in flight in session {gone} is left as it is" in service.log
