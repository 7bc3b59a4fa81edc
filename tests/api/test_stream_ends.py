"""An operator sees that a stream ended, and why: in the access log, in the metrics, and of a cut in a warning."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from app.telemetry.metrics import Metrics
from tests.service import WAIT_S, Service, serving

KEY = "sk_test_for_the_ends_of_streams"


@contextlib.asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[tuple[Service, httpx.AsyncClient]]:
    """A server with keys that writes access lines and cuts off soon."""
    env = {
        "SUBAGENTD_KEY": KEY,
        "SUBAGENTD_MODEL": "scripted:echo",
        "SUBAGENTD_HTTP__ACCESS_LOG": "true",
        "SUBAGENTD_HTTP__MAX_BODY_BYTES": str(64 << 20),
        "SUBAGENTD_STREAM__SEND_TIMEOUT_S": "0.5",
        "SUBAGENTD_STREAM__HEARTBEAT_S": "0.2",
    }
    async with serving(folder, env=env) as service:
        given = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=service.url, timeout=WAIT_S, headers=given) as http:
            yield service, http


async def counted(http: httpx.AsyncClient, reason: str) -> float:
    """How many streams ended for this reason."""
    found = re.search(
        rf'^subagentd_streams_ended_total{{reason="{reason}"}} (\S+)', (await http.get("/metrics")).text, re.MULTILINE
    )
    return float(found[1]) if found else 0.0


async def told(service: Service, http: httpx.AsyncClient, path: str, reason: str) -> None:
    """Wait until one stream at this path has ended for this reason, with a line and with a count."""
    line = re.compile(rf"127\.0\.0\.1 GET {re.escape(path)} 200 \d+\.\d ms {reason}$", re.MULTILINE)
    async with asyncio.timeout(WAIT_S):
        while await counted(http, reason) != 1:
            await asyncio.sleep(0.01)
        while not line.search(_access(service)):
            await asyncio.sleep(0.01)
    assert len(line.findall(_access(service))) == 1


def _access(service: Service) -> str:
    """What the access log holds, without what the form of the log adds."""
    lines = [line for line in service.log.splitlines() if "app.access" in line]
    return "\n".join(re.sub(r'^.*?(127\.0\.0\.1 [^"]*).*$', r"\1", line) for line in lines)


@contextlib.asynccontextmanager
async def open_stream(service: Service, path: str, key: str) -> AsyncIterator[None]:
    """A client that has got the first event of a stream, on a connection of its own, and leaves at the end."""
    given = {"Authorization": f"Bearer {key}"}
    own = httpx.AsyncClient(base_url=service.url, timeout=WAIT_S, headers=given)
    async with own, own.stream("GET", path) as answer:
        assert answer.status_code == 200
        pieces = answer.aiter_bytes()
        async with asyncio.timeout(WAIT_S):
            while b"session.created" not in await anext(pieces):
                pass
        yield


@pytest.mark.spec("11.5", "14.17", "17.2")
@pytest.mark.case("B136", "B168")
async def test_every_end_of_a_stream_is_in_the_log_and_in_the_metrics(tmp_path: Path) -> None:
    async with watched(tmp_path) as (service, http):
        session = (await http.post("/v1/sessions", json={})).json()["id"]
        path = f"/v1/sessions/{session}/events"
        ticket = (await http.post("/v1/tickets", json={"path": path})).json()["ticket"]

        await http.post(f"/v1/sessions/{session}/runs", json={"input": "x"})
        assert (await http.get(path, params={"until": "idle", "ticket": ticket})).status_code == 200
        await told(service, http, path, "ended")

        async with open_stream(service, f"{path}?after=0", KEY):
            pass
        await told(service, http, path, "client_left")

        key = (await http.post("/v1/keys", json={"name": "reader", "scopes": ["read"]})).json()
        async with open_stream(service, path, key["key"]):
            await http.delete(f"/v1/keys/{key['id']}")
            await told(service, http, path, "revoked")

        async with open_stream(service, path, KEY):
            await service.stop()
        assert re.search(rf"GET {path} 200 \S+ ms shutdown$", _access(service), re.MULTILINE)
        for secret in (KEY, ticket, key["key"]):
            assert secret not in service.log


@pytest.mark.spec("11.5")
@pytest.mark.case("B136", "B156")
async def test_the_warning_of_a_cut_names_the_stream_and_the_id_of_its_key(tmp_path: Path) -> None:
    async with watched(tmp_path) as (service, http):
        session = (await http.post("/v1/sessions", json={})).json()["id"]
        path = f"/v1/sessions/{session}/events"
        key = (await http.post("/v1/keys", json={"name": "reader", "scopes": ["read"]})).json()
        address = urlsplit(service.url)
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, (address.hostname, address.port))
        _, writer = await asyncio.open_connection(sock=raw, limit=1024)
        head = f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {key['key']}\r\n\r\n"
        writer.write(head.encode())
        await http.post(f"/v1/sessions/{session}/runs", json={"input": "x" * (12 << 20)})
        await told(service, http, path, "not_read")
        writer.close()
    (line,) = [line for line in service.log.splitlines() if "its stream is cut off" in line]
    assert "warning" in line.lower()
    assert f"(GET {path} session {session}, key {key['id']})" in line
    assert key["key"] not in service.log


@pytest.mark.spec("14.17")
def test_ends_of_streams_are_counted_by_reason() -> None:
    metrics = Metrics()
    for reason in ("ended", "client_left", "ended"):
        metrics.stream_ended(reason)
    text = metrics.text({}).decode()
    assert 'subagentd_streams_ended_total{reason="ended"} 2.0' in text
    assert 'subagentd_streams_ended_total{reason="client_left"} 1.0' in text
