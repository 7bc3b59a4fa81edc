"""Cancelling, deadlines, closing, deleting and stopping the service, over HTTP."""

import asyncio
import contextlib
import signal
import sqlite3
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app.client import Client, ServiceError
from tests.service import INTERRUPT, ROOT, WAIT_S, Service, agent, events_of, finished, received, script, serving

pytestmark = pytest.mark.slow

SLOW = """
agents:
  - when: {system_contains: "You are boss"}
    turns:
      - calls:
          - {tool: dispatch_subagent, arguments: {agent_type: slow, task: "one"}}
          - {tool: dispatch_subagent, arguments: {agent_type: slow, task: "two"}}
      - {text: "never said"}
  - when: {system_contains: "You are slow"}
    turns:
      - {text: "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau",
         chunks: 80, delay_ms: 250}
  - when: {system_contains: "You are talker"}
    turns:
      - {text: "0123456789", chunks: 10, delay_ms: 300}
  - when: {system_contains: "You are quick"}
    turns:
      - {text: "Quick answer."}
"""
TREE = {
    "agent": "boss",
    "agents": [agent("boss", mode="primary", tools=["dispatch_subagent"]), agent("slow", tools=[])],
    "input": "Go.",
}
QUICK = {"agent": "quick", "agents": [agent("quick", mode="all", tools=[])], "input": "Hi."}


async def stored(service: Service, question: str) -> None:
    """Wait until the database answers with a row."""
    async with asyncio.timeout(WAIT_S):
        with contextlib.closing(sqlite3.connect(service.database, timeout=WAIT_S)) as database:
            while not database.execute(question).fetchall():
                await asyncio.sleep(0.05)


async def until(client: Client, path: str, kind: str, count: int = 1) -> None:
    """Wait for the nth event of a type."""
    async with asyncio.timeout(WAIT_S):
        async for frame in client.events(path):
            count -= frame.type == kind
            if count == 0:
                return


async def begun_handoff(client: Client) -> str:
    """Wait for the handoff of a delegation that somebody else began; its id."""
    async with asyncio.timeout(WAIT_S):
        while not (sessions := (await client.page("/v1/sessions"))["items"]):
            pass
        async for frame in client.events(f"/v1/sessions/{sessions[0]['id']}/events"):
            if frame.type == "handoff.start":
                return str(frame.data["data"]["handoff_id"])
    raise AssertionError("the stream ended before a handoff began")


@pytest.mark.spec("5.7", "14.8")
async def test_cancelling_a_run_ends_its_subtree_children_first(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, SLOW)) as service, service.client() as client:
        started = await client.request("POST", "/v1/runs", TREE)
        await until(client, f"/v1/runs/{started['id']}/events", "text.delta", 2)
        answer = await client.request("POST", f"/v1/runs/{started['id']}/cancel")
        assert answer["status"] == "cancelled"
        assert len(answer["cancelled"]) == 3
        again = await client.request("POST", f"/v1/runs/{started['id']}/cancel")
        assert (again["status"], again["cancelled"]) == ("cancelled", [])
        events = await events_of(client, f"/v1/sessions/{started['session_id']}/events")
        ends = [(e["type"], e["depth"]) for e in events if e["type"] == "run.cancelled"]
        assert ends == [("run.cancelled", 1), ("run.cancelled", 1), ("run.cancelled", 0)]
        assert [e["type"] for e in events if e["type"] in ("subagent.start", "subagent.stop")].count(
            "subagent.stop"
        ) == 2
        assert events[-1]["type"] == "session.idle"
        partial = [e["data"] for e in events if e["type"] == "message" and e["data"].get("partial")]
        assert partial
        assert all("alpha beta gamma".startswith(message["content"][:16]) for message in partial)


@pytest.mark.spec("5.7")
@pytest.mark.case("B064")
async def test_an_early_cancel_always_wins_and_odd_cancels_are_never_a_fault(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, SLOW)) as service, service.client() as client:

        async def one() -> str:
            started = await client.request("POST", "/v1/runs", TREE)
            await client.request("POST", f"/v1/runs/{started['id']}/cancel")
            return str((await finished(client, started["id"]))["status"])

        assert set(await asyncio.gather(*(one() for _ in range(20)))) == {"cancelled"}
        with pytest.raises(ServiceError) as unknown:
            await client.request("POST", "/v1/runs/run_00000000000000000000000000/cancel")
        assert unknown.value.status == 404
        done = await client.request("POST", "/v1/runs", QUICK)
        await finished(client, done["id"])
        late = await client.request("POST", f"/v1/runs/{done['id']}/cancel")
        assert (late["status"], late["cancelled"]) == ("completed", [])


@pytest.mark.spec("5.7")
async def test_the_two_clocks_the_soft_one_forces_an_answer_the_hard_one_ends_the_run(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, SLOW)) as service, service.client() as client:
        soft = await client.request("POST", "/v1/runs", {**TREE, "deadline_ms": 600})
        run = await finished(client, soft["id"])
        assert (run["status"], run["stop_reason"], run["partial"], run["forced"]) == (
            "completed", "deadline", True, True,
        )  # fmt: skip
        tree = await client.request("GET", f"/v1/sessions/{soft['session_id']}/tree")
        assert {child["status"] for child in tree["runs"][0]["children"]} == {"cancelled"}
        delegated = await client.request(
            "POST", "/v1/delegations", {"agent": agent("slow", tools=[]), "task": "x", "timeout_ms": 300}
        )
        assert delegated["status"] == "timed_out"
        assert delegated["attempts"] == 1


@pytest.mark.spec("14.2", "14.3")
async def test_a_busy_session_refuses_a_second_turn_and_a_closed_one_every_turn(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, SLOW)) as service, service.client() as client:
        fields = {k: v for k, v in TREE.items() if k != "input"}
        session = await client.request("POST", "/v1/sessions", {**fields, "title": "first"})
        path = f"/v1/sessions/{session['id']}"
        await client.request("POST", f"{path}/runs", {"input": "Go."})
        with pytest.raises(ServiceError) as busy:
            await client.request("POST", f"{path}/runs", {"input": "Go."})
        assert (busy.value.status, busy.value.problem["code"]) == (409, "session_busy")
        assert (await client.request("GET", path))["status"] == "active"
        stopped = await client.request("POST", f"{path}/cancel")
        assert len(stopped["cancelled"]) >= 1
        changed = await client.request("PATCH", path, {"title": "second", "closed": True})
        assert (changed["title"], changed["status"]) == ("second", "closed")
        with pytest.raises(ServiceError) as closed:
            await client.request("POST", f"{path}/runs", {"input": "Go."})
        assert (closed.value.status, closed.value.problem["code"]) == (409, "session_closed")
        frames = await received(client, f"{path}/events")
        assert frames[-1].type == "session.closed"


@pytest.mark.spec("14.2", "12.5")
async def test_a_deleted_session_is_unknown_and_its_data_is_gone_but_the_chain_stays(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, SLOW)) as service, service.client() as client:
        started = await client.request("POST", "/v1/runs", {**QUICK, "input": "a secret thing"})
        await finished(client, started["id"])
        await stored(service, "SELECT 1 FROM text_index WHERE upto > 0")  # what was said has to leave it as well
        path = f"/v1/sessions/{started['session_id']}"
        await client.request("DELETE", path)
        for route in (path, f"{path}/events", f"{path}/messages", f"{path}/tree", f"/v1/runs/{started['id']}"):
            with pytest.raises(ServiceError) as gone:
                await client.request("GET", route)
            assert gone.value.status == 404, route
        page = await client.page("/v1/sessions")
        assert page["items"] == []
        assert (await client.page("/v1/audit"))["items"] == []
        await stored(service, "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM erased_texts)")
    db = sqlite3.connect(service.database)
    rows = db.execute("SELECT seq, data, length(data_digest), length(hash) FROM events ORDER BY seq").fetchall()
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
    assert all(row[1] is None for row in rows[:-1])
    assert {row[2:] for row in rows} == {(32, 32)}
    tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
    dump = [str(db.execute(f'SELECT * FROM "{name}"').fetchall()) for (name,) in db.execute(tables).fetchall()]
    db.close()
    assert "a secret thing" not in "\n".join(dump)


@pytest.mark.spec("11.3")
async def test_sigterm_ends_streams_cleanly_interrupts_runs_and_exits_with_0(tmp_path: Path) -> None:
    env = {**script(tmp_path, SLOW), "SUBAGENTD_HTTP__GRACE_S": "0.2", **INTERRUPT}
    async with serving(tmp_path, env=env) as service, service.client() as client:
        started = await client.request("POST", "/v1/runs", TREE)
        session = f"/v1/sessions/{started['session_id']}"
        async with aiohttp.ClientSession() as http, http.get(f"{service.url}{session}/events") as answer:
            assert service.process is not None
            body = b""
            async with asyncio.timeout(WAIT_S):
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if body.count(b"event: text.delta") == 2:
                        service.process.send_signal(signal.SIGTERM)
                        break
                async for chunk in answer.content.iter_any():  # a cut stream would raise here
                    body += chunk
        assert b"event: stream.closing" in body
        assert b'"reason":"shutdown"' in body
        assert b"\r" not in body
        assert await service.ended() == 0
        await service.start()
        async with service.client() as second:
            run = await second.request("GET", f"/v1/runs/{started['id']}")
            assert (run["status"], run["stop_reason"]) == ("interrupted", "shutdown")
            last = max(int(line[4:]) for line in body.split(b"\n") if line.startswith(b"id: "))
            rest = await received(second, f"{session}/events", after=last, until="idle")
            assert next(f.id for f in rest if f.id) == last + 1
            assert rest[-1].type == "session.idle"


@pytest.mark.spec("16.1")
async def test_a_second_signal_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    env = {**script(tmp_path, SLOW), "SUBAGENTD_HTTP__GRACE_S": "600", **INTERRUPT}
    async with serving(tmp_path, env=env) as service, service.client() as client:
        started = await client.request("POST", "/v1/runs", TREE)
        path = f"/v1/sessions/{started['session_id']}/events"
        await until(client, path, "text.delta", 2)
        async with aiohttp.ClientSession() as http, http.get(f"{service.url}{path}") as answer:
            assert service.process is not None
            service.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(WAIT_S):
                await answer.read()  # ends when the first signal was heard
        service.process.send_signal(signal.SIGINT)
        assert await service.ended() == 0
        await service.start()
        async with service.client() as second:
            run = await second.request("GET", f"/v1/runs/{started['id']}")
            assert (run["status"], run["stop_reason"]) == ("interrupted", "shutdown")


@pytest.mark.spec("14.4", "12.2")
async def test_a_second_turn_goes_on_with_the_memory_of_the_first_also_after_a_restart(tmp_path: Path) -> None:
    play = """
agents:
  - turns: [{text: "You said: {{ task }}"}]
"""
    body: dict[str, Any] = {"agent": "echo", "agents": [agent("echo", mode="all", tools=[])]}
    async with serving(tmp_path, env=script(tmp_path, play)) as service:
        async with service.client() as client:
            session = await client.request("POST", "/v1/sessions", body)
            path = f"/v1/sessions/{session['id']}"
            first = await client.request("POST", f"{path}/runs", {"input": "one"})
            assert (await finished(client, first["id"]))["output"] == "You said: one"
        await service.kill()
        await service.start()
        async with service.client() as client:
            second = await client.request("POST", f"{path}/runs", {"input": "two"})
            run = await finished(client, second["id"])
            assert (run["turn"], run["run"], run["output"]) == (1, 2, "You said: two")
            rows = (await client.page(f"{path}/messages", order="oldest"))["items"]
            assert [row["content"] for row in rows] == [
                "You are echo.", "one", "You said: one", "two", "You said: two",
            ]  # fmt: skip
            assert [row["memory_seq"] for row in rows] == [1, 2, 3, 4, 5]
            listed = await client.page(f"{path}/runs")
            assert [r["id"] for r in listed["items"]] == [first["id"], second["id"]]


@pytest.mark.spec("11.5", "14.9")
async def test_a_client_that_goes_away_cancels_nothing_and_reads_the_result_later(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, SLOW)) as service, service.client() as client:
        body = {"agent": agent("talker", tools=[]), "task": "talk"}
        asking = asyncio.create_task(client.request("POST", "/v1/delegations", body))
        handoff = await begun_handoff(client)
        asking.cancel()  # closes the connection
        with pytest.raises(asyncio.CancelledError):
            await asking
        frames = await received(client, f"/v1/delegations/{handoff}/events")
        assert frames[-1].type == "handoff.end"
        result = await client.request("GET", f"/v1/delegations/{handoff}")
        assert (result["status"], result["output"]) == ("completed", "0123456789")


DEAF = '''
import asyncio

from app.tools.function import tool


@tool
async def deaf(text: str) -> str:
    """Never ends, whatever it is told."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue
'''


@pytest.mark.spec("5.7", "7.8")
@pytest.mark.case("B069")
async def test_a_tool_that_is_deaf_to_its_cancellation_does_not_keep_the_service(tmp_path: Path) -> None:
    play = """
agents:
  - turns: [{calls: [{tool: deaf, arguments: {text: x}}]}, {text: "never"}]
"""
    (tmp_path / "deaf_tools.py").write_text(DEAF)
    env = {
        **script(tmp_path, play),
        "SUBAGENTD_TOOLS__FUNCTIONS": '["deaf_tools:deaf"]',
        "SUBAGENTD_HTTP__GRACE_S": "0.1",
        **INTERRUPT,
        "PYTHONPATH": f"{ROOT}:{tmp_path}",
    }
    async with serving(tmp_path, env=env) as service, service.client() as client:
        body = {"agent": "solo", "agents": [agent("solo", mode="all", tools=["deaf"])], "input": "x"}
        started = await client.request("POST", "/v1/runs", body)
        await until(client, f"/v1/runs/{started['id']}/events", "tool.start")
        assert await service.stop() == 0
        await service.start()
        async with service.client() as second:
            run = await second.request("GET", f"/v1/runs/{started['id']}")
            assert run["status"] == "interrupted"
