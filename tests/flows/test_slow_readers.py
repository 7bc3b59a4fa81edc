"""A reader that stops reading slows nobody down, and loses no durable event when it goes on."""

import asyncio
import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.service import WAIT_S, agent, events_of, finished, received, script, serving

PLAY = """
agents:
  - turns:
      - text: "{{ task }}{{ task }}{{ task }}"
        chunks: 400
        delay_ms: 1
        calls: [{tool: glob, arguments: {pattern: "*"}}]
      - text: "{{ task }}{{ task }}{{ task }}"
        chunks: 400
        delay_ms: 1
        calls: [{tool: glob, arguments: {pattern: "*"}}]
      - {text: "Done."}
"""


async def connect(url: str, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A raw stream whose receive buffer is as small as it can be."""
    address = urlsplit(url)
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, (address.hostname, address.port))
    reader, writer = await asyncio.open_connection(sock=raw, limit=1 << 12)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n".encode())
    await writer.drain()
    return reader, writer


@pytest.mark.spec("11.5")
@pytest.mark.case("B156")
async def test_a_reader_that_stalls_is_told_what_it_missed_and_gets_every_durable_event(tmp_path: Path) -> None:
    env = {**script(tmp_path, PLAY), "SUBAGENTD_STREAM__BUFFER_BYTES": str(1 << 16)}
    async with serving(tmp_path, env=env) as service, service.client() as client:
        body = {"agent": "solo", "agents": [agent("solo", mode="all", tools=["glob"])], "input": "x" * 1_200_000}
        started = await client.request("POST", "/v1/runs", body)
        path = f"/v1/runs/{started['id']}/events"
        reader, writer = await connect(service.url, path)
        await reader.read(1000)  # then it stops
        healthy = await received(client, path)
        run = await finished(client, started["id"])
        assert run["status"] == "completed"
        shown = sum(len(f.data["text"]) for f in healthy if f.type in ("text.delta", "text.snapshot"))
        assert shown >= 2 * 3_600_000
        rest = b""
        async with asyncio.timeout(WAIT_S):
            while b"event: run.completed" not in rest[-4096:]:
                piece = await reader.read(1 << 16)
                assert piece, "the stalled reader was cut off"
                rest = rest[-4096:] + piece if b"event: stream.skipped" not in rest else rest + piece
        writer.close()
        assert b"event: stream.skipped" in rest


@pytest.mark.spec("11.5")
async def test_a_resumed_reader_finds_the_same_events_as_one_that_kept_up(tmp_path: Path) -> None:
    env = {**script(tmp_path, PLAY), "SUBAGENTD_STREAM__BUFFER_BYTES": str(1 << 14)}
    async with serving(tmp_path, env=env) as service, service.client() as client:
        body = {"agent": "solo", "agents": [agent("solo", mode="all", tools=["glob"])], "input": "y" * 60_000}
        started = await client.request("POST", "/v1/runs", body)
        path = f"/v1/runs/{started['id']}/events"
        frames = await received(client, path)
        pages = await events_of(client, path)
        without = [{k: v for k, v in f.data.items() if k != "prev"} for f in frames if f.id is not None]
        assert json.dumps(without) == json.dumps(pages)
