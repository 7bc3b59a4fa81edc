"""Exports as answers: what becomes of one whose client stalls, whose store goes away, or that nobody wants."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from app.agent.errors import Unavailable
from app.sessions.audit import Exported
from app.store.messages import SqlAuditStore
from tests.api.conftest import PLAY, body, in_process
from tests.fuzz.asking import Asked
from tests.fuzz.playing import Exchange
from tests.service import WAIT_S, script, serving

PATH = "/v1/audit/export"


@pytest.mark.spec("12.4")
async def test_an_export_whose_client_does_not_read_is_cut_off(tmp_path: Path) -> None:
    env = {
        **script(tmp_path, PLAY),
        "SUBAGENTD_STREAM__SEND_TIMEOUT_S": "0.5",
        "SUBAGENTD_HTTP__MAX_BODY_BYTES": str(64 << 20),
    }
    async with serving(tmp_path, env=env) as service, httpx.AsyncClient(base_url=service.url, timeout=30) as http:
        started = (await http.post("/v1/runs", json=body("quick", "x" * (6 << 20)))).json()
        run = (await http.get(f"/v1/runs/{started['id']}", params={"wait_ms": 20_000})).json()
        assert run["status"] == "completed"
        address = urlsplit(service.url)
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, (address.hostname, address.port))
        reader, writer = await asyncio.open_connection(sock=raw, limit=1024)
        writer.write(f"GET {PATH} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
        await reader.readuntil(b"200 OK")
        async with asyncio.timeout(WAIT_S):
            while "its stream is cut off" not in service.log:
                await asyncio.sleep(0.05)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1 << 30)
        writer.close()
        whole = (await http.get(PATH)).text
        assert whole.count("\n") == 3, "who reads gets all of it"


@pytest.mark.spec("12.4")
async def test_an_export_that_cannot_be_read_on_is_cut_and_is_no_fault_of_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def away(*_: Any) -> AsyncIterator[Sequence[Exported]]:
        raise Unavailable("the store is away")
        yield ()

    monkeypatch.setattr(SqlAuditStore, "export", away)
    async with in_process(tmp_path) as running:
        headers = ((b"host", b"127.0.0.1:8080"),)
        asked = Asked(method="GET", path=PATH, query=b"format=csv", headers=headers, body=b"", leaves=None)
        exchange = Exchange(running.app, asked)
        asyncio.get_running_loop().call_later(0.1, exchange.gone.set)
        await exchange.run()
    answered = exchange.answered
    assert (answered.status, answered.complete, answered.raised) == (200, False, None)
    assert answered.body.startswith(b"ts,session_id")
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.spec("12.4")
async def test_who_asks_for_the_head_of_an_export_has_nothing_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def read(*given: Any) -> AsyncIterator[Sequence[Exported]]:
        asked.append(given)
        yield ()

    monkeypatch.setattr(SqlAuditStore, "export", read)
    async with in_process(tmp_path) as running, running.client() as http:
        answer = await http.head(PATH, params={"format": "csv"})
    assert (answer.status_code, answer.content, asked) == (200, b"", [])
    assert answer.headers["content-type"].startswith("text/csv")
