"""kill -9 at a random moment: what any client has received is in the store afterwards, byte for byte."""

import asyncio
import json
import os
import random
import sqlite3
from pathlib import Path

import aiohttp
import pytest

from tests.service import Service, agent, script

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("SUBAGENTD_TEST_KILLS", "25"))
RUNS = 50
STREAMS = 12
PLAY = """
defaults: {chunks: 6, delay_ms: 4}
agents:
  - when: {system_contains: "You are boss"}
    turns:
      - calls:
          - {tool: dispatch_subagent, arguments: {agent_type: left, task: "one"}}
          - {tool: dispatch_subagent, arguments: {agent_type: right, task: "two"}}
      - {text: "Both are done."}
  - when: {system_contains: "You are"}
    turns:
      - {text: "I look.", calls: [{tool: glob, arguments: {pattern: "*"}}]}
      - {text: "I look again.", calls: [{tool: glob, arguments: {pattern: "**"}}]}
      - {text: "An answer that takes a while to say."}
"""
BODY = {
    "agent": "boss",
    "agents": [
        agent("boss", mode="primary", tools=["dispatch_subagent"]),
        agent("left", tools=["glob"]),
        agent("right", tools=["glob"]),
    ],
    "input": "Go.",
}
Seen = dict[tuple[str, int], bytes]


async def _listen(http: aiohttp.ClientSession, url: str, session: str, seen: Seen) -> None:
    """Record every event with an id until the connection breaks."""
    buffer = b""
    async with http.get(f"{url}/v1/sessions/{session}/events") as answer:
        assert answer.status == 200, await answer.text()
        async for chunk in answer.content.iter_any():
            *frames, buffer = (buffer + chunk).split(b"\n\n")
            for frame in frames:
                head, _, data = frame.partition(b"\ndata: ")
                if head.startswith(b"id: "):
                    seen[session, int(head.split(b"\n")[0][4:])] = data


async def _load(service: Service, seconds: float, seen: Seen) -> int:
    """50 runs in the air, some watched, killed after a while; how many of them the service said it had started."""
    killed = False
    async with aiohttp.ClientSession() as http:

        async def start(index: int) -> bool:
            started = False
            try:
                async with http.post(f"{service.url}/v1/runs", json=BODY) as answer:
                    if killed and not answer.ok:
                        return False
                    assert answer.status == 202, await answer.text()
                    session = (await answer.json())["session_id"]
                started = True
                if index < STREAMS:
                    await _listen(http, service.url, session, seen)
            except (aiohttp.ClientError, ConnectionError):
                assert killed, "the connection broke before the service was killed"
            return started

        load = [asyncio.create_task(start(index)) for index in range(RUNS)]
        await asyncio.wait(load, timeout=seconds)
        killed = True
        await service.kill()
        async with asyncio.timeout(10):
            results = await asyncio.gather(*load, return_exceptions=True)
    faults = [result for result in results if isinstance(result, BaseException)]
    assert faults == []
    return sum(result is True for result in results)


def _problems(database: Path, seen: Seen) -> list[str]:
    """What of the seen events the store does not have, and sessions whose numbers have gaps."""
    found: list[str] = []
    with sqlite3.connect(database) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        stored = {
            (session, seq): envelope[:-1] + b',"data":' + data + b"}"
            for session, seq, envelope, data in db.execute("SELECT session_id, seq, envelope, data FROM events")
        }
        for place, data in seen.items():
            if stored.get(place) != data:
                found.append(f"{place} was seen and is not stored as seen")
        for session, count, last in db.execute("SELECT session_id, count(*), max(seq) FROM events GROUP BY 1"):
            if count != last:
                found.append(f"{session} has {count} events up to {last}")
    db.close()
    return found


def _open_rows(database: Path) -> list[tuple[str, str]]:
    db = sqlite3.connect(database)
    rows = db.execute("SELECT id, status FROM runs WHERE ended_at IS NULL").fetchall()
    rows += db.execute("SELECT id, status FROM handoffs WHERE ended_at IS NULL").fetchall()
    rows += db.execute(
        "SELECT run_id, count(*) FROM events WHERE type LIKE 'run.%' AND type IN ('run.completed', 'run.failed', "
        "'run.cancelled', 'run.timed_out', 'run.interrupted') GROUP BY run_id HAVING count(*) > 1"
    ).fetchall()
    db.close()
    return rows


@pytest.mark.timeout(400)
@pytest.mark.spec("11.2", "12.3")
async def test_every_event_that_a_client_received_survives_a_kill(tmp_path: Path) -> None:
    seen: Seen = {}
    started = 0
    dice = random.Random(20)
    service = Service(tmp_path, env=script(tmp_path, PLAY))
    try:
        for _ in range(KILLS):
            await service.start()
            assert _open_rows(service.database) == []  # the start closed what the kill had left open
            started += await _load(service, dice.uniform(0.2, 1.2), seen)
            assert _problems(service.database, seen) == []
        await service.start()
        assert _open_rows(service.database) == []
        assert await service.stop() == 0
    finally:
        if service.process is not None and service.process.returncode is None:
            await service.kill()
    assert _problems(service.database, seen) == []
    assert started >= RUNS // 2, "too few runs were started for the test to mean anything"
    assert len(seen) > 20 * KILLS, "too little was seen for the test to mean anything"
    assert all(json.loads(data)["id"] == number for (_, number), data in seen.items())
