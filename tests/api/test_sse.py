"""The stream contract over real HTTP: frames, headers, resumption, filters, ends, pings, clients that do not read."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.api.conftest import PLAY, body
from tests.service import WAIT_S, Service, script, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

SSE = {"accept": "text/event-stream"}
PAGE = {"accept": "application/json"}


async def ended_run(http: httpx.AsyncClient, name: str = "boss") -> dict[str, Any]:
    """A run that has ended."""
    started = (await http.post("/v1/runs", json=body(name))).json()
    run: dict[str, Any] = (await http.get(f"/v1/runs/{started['id']}", params={"wait_ms": 10_000})).json()
    assert run["status"] == "completed", run
    return run


def frames_of(text: str) -> list[dict[str, Any]]:
    """The frames of a stream: `id` (None), `event`, `data`."""
    found = []
    for raw in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in raw.split("\n") if ": " in line and not line.startswith(":"))
        if "event" in fields or "id" in fields:
            data = json.loads(fields["data"]) if "data" in fields else None
            found.append({"id": fields.get("id"), "event": fields.get("event"), "data": data})
    return found


async def frames(http: httpx.AsyncClient, path: str, headers: Any = None, **query: Any) -> list[dict[str, Any]]:
    """All frames of a stream that ends."""
    answer = await http.get(path, params=query, headers={**SSE, **(headers or {})})
    assert answer.status_code == 200, answer.text
    return frames_of(answer.text)


async def until(stream: AsyncIterator[str], what: str) -> str:
    """Read until something was said."""
    text = ""
    async with asyncio.timeout(WAIT_S):
        async for piece in stream:
            text += piece
            if what in text:
                return text
    raise AssertionError(f"the stream ended before {what!r}: {text[-500:]}")


@pytest.mark.spec("11.1", "11.3")
@pytest.mark.case("B149")
async def test_a_stream_has_the_headers_that_proxies_need_and_nothing_but_lf(http: httpx.AsyncClient) -> None:
    run = await ended_run(http)
    answer = await http.get(f"/v1/runs/{run['id']}/events", headers={**SSE, "accept-encoding": "gzip"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "no-transform" in answer.headers["cache-control"]
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in answer.headers
    assert b"\r" not in answer.content
    assert answer.text.startswith("retry: ")
    assert answer.text.endswith("\n\n")
    assert frames_of(answer.text)[-1]["event"] == "run.completed"


@pytest.mark.spec("11.3")
@pytest.mark.case("B162")
async def test_a_cursor_at_or_behind_the_end_of_the_view_is_answered_with_204(http: httpx.AsyncClient) -> None:
    run = await ended_run(http)
    path = f"/v1/runs/{run['id']}/events"
    last = (await frames(http, path))[-1]["id"]
    for headers, query in (
        ({"last-event-id": last}, ""),
        ({}, f"?after={last}"),
        ({"last-event-id": last}, "?after=0"),
    ):
        assert (await http.get(path + query, headers={**SSE, **headers})).status_code == 204
    before = await frames(http, path, {"last-event-id": str(int(last) - 1)})
    assert [frame["id"] for frame in before] == [last]
    page = (await http.get(f"{path}?after={last}", headers=PAGE)).json()
    assert page == {"items": [], "next": None}


@pytest.mark.spec("11.3")
@pytest.mark.parametrize("cursor", ["100000", "9" * 18, "9" * 19, str(1 << 63), "9" * 100])
async def test_a_cursor_behind_the_head_of_the_session_is_told_to_begin_anew(
    http: httpx.AsyncClient, cursor: str
) -> None:
    run = await ended_run(http)
    path = f"/v1/runs/{run['id']}/events"
    reset = await frames(http, path, {"last-event-id": cursor})
    assert reset[0]["event"] == "stream.reset"
    assert reset[0]["id"] is None
    assert reset[0]["data"]["head"] < 100
    assert reset[1]["event"] == "run.queued"
    answer = await http.get(f"{path}?after={cursor}", headers=PAGE)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")


@pytest.mark.spec("11.3")
@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "1e3", "9" * 101, "٣"])
async def test_a_cursor_that_is_none_is_a_400_that_names_it(http: httpx.AsyncClient, cursor: str) -> None:
    run = await ended_run(http, "quick")
    path = f"/v1/runs/{run['id']}/events"
    answers = [await http.get(path, params={"after": cursor}, headers=SSE)]
    if cursor.isascii():
        answers.append(await http.get(path, headers={**SSE, "last-event-id": cursor}))
    for answer in answers:
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (400, "invalid_cursor")
        assert problem["errors"][0]["at"] in ("after", "Last-Event-ID")


@pytest.mark.spec("11.3")
async def test_the_name_of_the_header_is_no_parameter(http: httpx.AsyncClient) -> None:
    run = await ended_run(http, "quick")
    answer = await http.get(f"/v1/runs/{run['id']}/events", params={"Last-Event-ID": "1"}, headers=SSE)
    assert (answer.status_code, answer.json()["errors"][0]["at"]) == (422, "Last-Event-ID")


@pytest.mark.spec("11.3")
@pytest.mark.case("B163")
async def test_filters_leave_frames_out_and_prev_says_so(http: httpx.AsyncClient) -> None:
    run = await ended_run(http)
    path = f"/v1/sessions/{run['session_id']}/events"
    everything = await frames(http, path, until="idle")
    ids = [int(frame["id"]) for frame in everything if frame["id"]]
    assert ids == list(range(1, len(ids) + 1))
    assert all("prev" not in frame["data"] for frame in everything if frame["id"])
    some = [f for f in await frames(http, path, until="idle", types="handoff.end, subagent.stop") if f["event"]]
    assert {frame["event"] for frame in some} == {"handoff.end", "subagent.stop"}
    assert len(some) == 4
    assert [frame["data"]["prev"] for frame in some] == [0, *(int(frame["id"]) for frame in some[:-1])]
    deep = [f for f in await frames(http, path, until="idle", depth=1) if f["event"]]
    assert {frame["data"]["depth"] for frame in deep if frame["id"]} == {1}
    second = [f for f in await frames(http, path, until="idle", run=2) if f["event"]]
    assert {frame["data"]["run"] for frame in second} == {2}
    wrong = await http.get(path, params={"types": "run.completed,run.finished"}, headers=SSE)
    assert wrong.status_code == 422
    assert "run.finished" in wrong.json()["detail"]
    assert "handoff.start" in wrong.json()["detail"]


@pytest.mark.spec("11.3", "11.1")
async def test_deltas_can_be_left_out(http: httpx.AsyncClient) -> None:
    shown = await http.post("/v1/runs", json=body("steady"), headers=SSE)
    run_id = shown.headers["location"].rsplit("/", 1)[-1]
    deltas = [frame for frame in frames_of(shown.text) if frame["event"] == "text.delta"]
    assert "".join(frame["data"]["text"] for frame in deltas) == "0123456789"
    assert all(frame["id"] is None for frame in deltas)
    async with httpx.AsyncClient(base_url=http.base_url, timeout=20) as other:
        second = (await other.post("/v1/runs", json=body("steady"))).json()
        quiet = await frames(other, f"/v1/runs/{second['id']}/events", deltas="false")
    assert not [frame for frame in quiet if frame["id"] is None]
    assert quiet[-1]["event"] == "run.completed"
    assert run_id != second["id"]


@pytest.mark.spec("11.4")
async def test_a_run_streamed_by_its_start_shows_what_its_stream_shows(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/runs", json=body("boss"), headers=SSE)
    assert answer.status_code == 200
    location = answer.headers["location"]
    live = [frame for frame in frames_of(answer.text) if frame["id"]]
    later = [frame for frame in await frames(http, f"{location}/events") if frame["id"]]
    assert live == later
    session = live[0]["data"]["session_id"]
    turn = await http.post(f"/v1/sessions/{session}/runs", json={"input": "again"}, headers=SSE)
    second = [frame for frame in frames_of(turn.text) if frame["id"]]
    assert second[0]["event"] == "run.queued"
    assert int(second[0]["id"]) > int(live[-1]["id"])
    assert second[-1]["event"] == "run.completed"


@pytest.mark.spec("11.4", "14.9")
async def test_a_delegation_streams_from_its_start_to_its_end(http: httpx.AsyncClient) -> None:
    order = {
        "agent": {"name": "looker", "description": "d", "prompt": "You are looker", "tools": ["glob"]},
        "task": "x",
    }
    answer = await http.post("/v1/delegations", json=order, headers=SSE)
    shown = [frame for frame in frames_of(answer.text) if frame["id"]]
    assert (shown[0]["event"], shown[-1]["event"]) == ("handoff.start", "handoff.end")
    assert {"run.queued", "tool.result", "run.completed"} <= {frame["event"] for frame in shown}
    location = answer.headers["location"]
    assert [frame for frame in await frames(http, f"{location}/events") if frame["id"]] == shown
    result = (await http.get(location)).json()
    assert (result["status"], result["output"]) == ("completed", "Looked.")


@pytest.mark.spec("4.1", "14.9")
@pytest.mark.case("B150")
async def test_a_denied_delegation_is_a_403_also_when_a_stream_was_wanted(http: httpx.AsyncClient) -> None:
    order = {"agent": "scout", "task": "x", "policy": {"max_depth": 0}}
    for headers in (PAGE, SSE):
        answer = await http.post("/v1/delegations", json=order, headers=headers)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (403, "handoff_denied")
        assert "handoff depth 1 exceeds max_depth 0" in problem["detail"]
        stored = (await http.get(f"/v1/delegations/{problem['handoff_id']}")).json()
        assert (stored["status"], stored["attempts"]) == ("denied", 0)


@pytest.mark.spec("11.3")
@pytest.mark.case("B148")
async def test_a_silent_stream_says_something_at_once_and_then_pings(http: httpx.AsyncClient) -> None:
    session = (await http.post("/v1/sessions", json={})).json()
    async with http.stream("GET", f"/v1/sessions/{session['id']}/events", headers=SSE) as answer:
        stream = answer.aiter_text()
        await until(stream, "event: session.created")
        text = await until(stream, ": ping\n\n: ping\n\n")
    assert frames_of(text) == []
    events = (await http.get(f"/v1/sessions/{session['id']}/events", headers=PAGE)).json()["items"]
    assert [event["type"] for event in events] == ["session.created"]


@pytest.mark.spec("11.3")
async def test_a_page_waits_for_its_first_event_and_says_where_to_go_on(http: httpx.AsyncClient) -> None:
    session = (await http.post("/v1/sessions", json=body("quick") | {"input": None})).json()
    assert session.get("code") == "invalid_request"  # a session has no input
    fields = {key: value for key, value in body("quick").items() if key != "input"}
    session = (await http.post("/v1/sessions", json=fields)).json()
    path = f"/v1/sessions/{session['id']}/events"
    first = (await http.get(path, headers=PAGE)).json()
    assert ([event["id"] for event in first["items"]], first["next"]) == ([1], "1")
    waiting = asyncio.create_task(http.get(path, params={"after": "1", "wait_ms": 20_000}, headers=PAGE))
    await http.post(f"/v1/sessions/{session['id']}/runs", json={"input": "go"})
    async with asyncio.timeout(WAIT_S):
        page = (await waiting).json()
    assert page["items"][0]["type"] == "run.queued"
    two = (await http.get(path, params={"after": 0, "limit": 2}, headers=PAGE)).json()
    assert ([event["id"] for event in two["items"]], two["next"]) == ([1, 2], "2")
    wrong = await http.get(path, params={"wait_ms": 10**9}, headers=PAGE)
    assert (wrong.status_code, wrong.json()["errors"][0]["at"]) == (422, "wait_ms")


@pytest.mark.spec("11.1")
@pytest.mark.case("B147")
async def test_no_text_can_forge_a_frame(http: httpx.AsyncClient) -> None:
    text = "a\revent: run.failed\rid: 999\r\n\nevent: run.failed\ndata: {}\n\n\u2028\u0085\x0bid: 998"
    answer = await http.post("/v1/runs", json=body("quick", text), headers=SSE)
    assert b"\r" not in answer.content
    shown = frames_of(answer.content.decode())
    assert "run.failed" not in {frame["event"] for frame in shown}
    assert shown[-1]["data"]["data"]["output"] == f"Answer to {text}."
    assert "".join(f["data"]["text"] for f in shown if f["event"] == "text.delta") == f"Answer to {text}."


@pytest.mark.spec("11.3")
async def test_head_shows_the_headers_and_begins_no_stream(http: httpx.AsyncClient) -> None:
    session = (await http.post("/v1/sessions", json={})).json()
    answer = await http.head(f"/v1/sessions/{session['id']}/events", headers=SSE)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.content == b""
    for path in ("/healthz", f"/v1/sessions/{session['id']}"):
        assert (await http.head(path)).status_code == 200


@pytest.mark.spec("11.3")
async def test_who_accepts_nothing_of_it_gets_406(http: httpx.AsyncClient) -> None:
    run = await ended_run(http, "quick")
    for accept in ("image/png", "text/event-stream;q=0"):
        answer = await http.get(f"/v1/runs/{run['id']}/events", headers={"accept": accept})
        assert (answer.status_code, answer.json()["code"]) == (406, "not_acceptable")


@pytest.mark.spec("11.5")
@pytest.mark.case("B168")
async def test_streams_that_are_opened_and_dropped_leave_nothing_behind(
    http: httpx.AsyncClient, service: Service
) -> None:
    session = (await http.post("/v1/sessions", json={})).json()
    address = urlsplit(service.url)
    request = f"GET /v1/sessions/{session['id']}/events HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode()
    kept = []
    for number in range(300):
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(request)
        await writer.drain()
        if number % 3:
            writer.close()  # before the first byte came
        else:
            kept.append(writer)
    async with asyncio.timeout(WAIT_S):
        while await metric(http, "subagentd_open_streams") < len(kept):
            pass
        for writer in kept:
            writer.transport.abort()
        while await metric(http, "subagentd_open_streams") > 0:
            pass
        while await metric(http, "process_open_fds") > 60:
            pass


@pytest.mark.spec("11.3")
async def test_a_page_whose_client_went_away_gives_its_place_back(http: httpx.AsyncClient, service: Service) -> None:
    session = (await http.post("/v1/sessions", json={})).json()
    address = urlsplit(service.url)
    path = f"/v1/sessions/{session['id']}/events?after=1&wait_ms=60000"
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nAccept: application/json\r\n\r\n".encode())
    async with asyncio.timeout(WAIT_S):
        while await metric(http, "subagentd_open_streams") < 1:
            pass
        writer.close()
        while await metric(http, "subagentd_open_streams") > 0:
            pass


async def metric(http: httpx.AsyncClient, name: str) -> float:
    """A figure of the server."""
    match = re.search(rf"^{name} (\S+)$", (await http.get("/metrics")).text, re.MULTILINE)
    assert match is not None
    return float(match[1])


@pytest.mark.spec("11.5")
@pytest.mark.case("B156", "B167")
async def test_a_client_that_does_not_read_is_cut_off_without_a_fault(tmp_path: Path) -> None:
    env = {
        **script(tmp_path, PLAY),
        "SUBAGENTD_STREAM__SEND_TIMEOUT_S": "0.5",
        "SUBAGENTD_STREAM__HEARTBEAT_S": "0.2",
        "SUBAGENTD_HTTP__MAX_BODY_BYTES": str(64 << 20),
    }
    async with serving(tmp_path, env=env) as service, httpx.AsyncClient(base_url=service.url, timeout=30) as http:
        address = urlsplit(service.url)
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, (address.hostname, address.port))
        reader, writer = await asyncio.open_connection(sock=raw, limit=1024)
        session = (await http.post("/v1/sessions", json={"agent": "quick", "agents": body("quick")["agents"]})).json()
        writer.write(f"GET /v1/sessions/{session['id']}/events HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
        await reader.readuntil(b"retry: ")
        started = (await http.post(f"/v1/sessions/{session['id']}/runs", json={"input": "x" * (12 << 20)})).json()
        run = (await http.get(f"/v1/runs/{started['id']}", params={"wait_ms": 20_000})).json()
        assert run["status"] == "completed"
        async with asyncio.timeout(WAIT_S):
            while await metric(http, "subagentd_open_streams") > 0:
                pass
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1 << 30)
        writer.close()
    assert "its stream is cut off" in service.log
