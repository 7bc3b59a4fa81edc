"""What is refused before a request is looked at: foreign names and pages, bodies that are too large. And CORS."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.api.conftest import body, in_process
from tests.service import WAIT_S, Service

pytestmark = pytest.mark.asyncio(loop_scope="module")

OURS = "https://console.example"


@pytest.mark.spec("17.3")
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8080", 200),
        ("127.9.9.9", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("10.0.0.7:8080", 403),
        ("", 403),
    ],
)
async def test_only_names_of_this_machine_are_answered_by_default(
    http: httpx.AsyncClient, host: str, status: int
) -> None:
    answer = await http.get("/v1/sessions", headers={"host": host})
    assert answer.status_code == status
    for path in ("/healthz", "/readyz"):
        assert (await http.get(path, headers={"host": host})).status_code == 200
    if status == 403:
        assert answer.json()["code"] == "foreign_host"
        assert "http.hosts" in answer.json()["detail"]


@pytest.mark.spec("17.3")
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example", "file://"])
async def test_pages_of_other_origins_are_refused_also_for_reading(http: httpx.AsyncClient, origin: str) -> None:
    for method, path in (("GET", "/v1/sessions"), ("POST", "/v1/runs"), ("OPTIONS", "/v1/runs")):
        answer = await http.request(method, path, headers={"origin": origin})
        assert (answer.status_code, answer.json()["code"]) == (403, "foreign_origin")
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.spec("17.3")
async def test_a_page_of_this_service_may_ask(http: httpx.AsyncClient, service: Service) -> None:
    address = urlsplit(service.url).netloc
    for origin in (f"http://{address}", f"https://{address}"):
        assert (await http.get("/v1/sessions", headers={"origin": origin})).status_code == 200


@pytest.mark.spec("17.3")
async def test_named_hosts_and_origins_are_let_in_and_cors_tells_the_browser(tmp_path: Path) -> None:
    given: dict[str, Any] = {"hosts": ["agents.example"], "origins": [OURS]}
    async with in_process(tmp_path, http=given) as running, running.client(host="agents.example") as http:
        plain = await http.get("/v1/sessions")
        assert plain.status_code == 200
        assert "access-control-allow-origin" not in plain.headers
        assert (await http.get("/v1/sessions", headers={"host": "localhost"})).status_code == 403
        for path in ("/v1/sessions", "/v1/runs/unknown"):
            answer = await http.get(path, headers={"origin": OURS})
            assert answer.headers["access-control-allow-origin"] == OURS
            assert answer.headers["vary"] == "Origin"
        ask = {"origin": OURS, "access-control-request-method": "POST"}
        preflight = await http.options("/v1/runs", headers=ask)
        assert preflight.status_code == 204
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert "Authorization" in preflight.headers["access-control-allow-headers"]
        assert "Last-Event-ID" in preflight.headers["access-control-allow-headers"]
        assert "Idempotency-Key" in preflight.headers["access-control-allow-headers"]
        assert (await http.options("/v1/runs", headers={"origin": "https://evil.example"})).status_code == 403


@pytest.mark.spec("14.7")
async def test_a_body_that_is_too_large_is_refused_by_what_it_says_of_itself(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/runs", json={"input": "x" * (4 << 20)})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert "http.max_body_bytes" in answer.json()["detail"]
    assert (await http.get("/healthz")).status_code == 200  # on the same connection


@pytest.mark.spec("14.7")
async def test_a_body_of_a_terabyte_is_not_even_thrown_away(service: Service) -> None:
    address = urlsplit(service.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"POST /v1/runs HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {10**12}\r\n\r\n{{".encode())
    async with asyncio.timeout(WAIT_S):
        text = await reader.read()
    writer.close()
    assert text.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in text


@pytest.mark.spec("14.7")
async def test_a_body_without_a_length_is_counted_while_it_is_read(http: httpx.AsyncClient) -> None:
    async def small() -> AsyncIterator[bytes]:
        yield b'{"input": '
        yield b'"x"}'

    headers = {"content-type": "application/json"}
    assert (await http.post("/v1/runs", content=small(), headers=headers)).status_code == 202

    async def large() -> AsyncIterator[bytes]:
        for _ in range(6):
            yield b"x" * (1 << 20)

    answer = await http.post("/v1/runs", content=large(), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert (await http.get("/healthz")).status_code == 200  # on the same connection


@pytest.mark.spec("14.7")
async def test_a_body_without_an_end_is_cut_off(service: Service) -> None:
    address = urlsplit(service.url)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"POST /v1/runs HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    writer.write(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
    sent = 0
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(ConnectionError):
            while True:  # only the server can end this
                writer.write(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")
                await writer.drain()
                sent += 1 << 20
    writer.close()
    assert sent < 200 << 20


@pytest.mark.spec("17.3")
@pytest.mark.case("B136")
async def test_access_lines_hold_no_query(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with in_process(tmp_path, http={"access_log": True}) as running, running.client() as http:
        started = (await http.post("/v1/runs", json={"input": "x"})).json()
        ticket = (await http.post("/v1/tickets", json={"run_id": started["id"]})).json()
        with caplog.at_level(logging.INFO, "app.access"):
            assert (await http.get(ticket["url"])).status_code == 200
            assert (await http.get("/v1/runs/none?wait_ms=1")).status_code == 404
    lines = [record.getMessage() for record in caplog.records if record.name == "app.access"]
    assert [line.split()[1:4] for line in lines] == [
        ["GET", f"/v1/runs/{started['id']}/events", "200"],
        ["GET", "/v1/runs/none", "404"],
    ]
    assert not any("ticket" in line or "wait_ms" in line for line in lines)


async def test_nothing_is_logged_of_requests_by_default(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with in_process(tmp_path) as running, running.client() as http:
        with caplog.at_level(logging.DEBUG, "app.access"):
            assert (await http.post("/v1/runs", json={**body("quick"), "agent": "lead"})).status_code == 202
    assert not [record for record in caplog.records if record.name == "app.access"]
