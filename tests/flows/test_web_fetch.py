"""`web_fetch` over HTTP: what an operator opened is reached, the rest of the machine not; rules hold on redirects."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.client import Client, ServiceError
from tests.net.standin import Site, page, redirect
from tests.service import agent, events_of, finished, script, serving

ARTICLE = b"<title>Notes</title><article><h1>Notes</h1>" + b"<p>The moon is made of rock, as is known.</p>" * 9


@contextlib.asynccontextmanager
async def site(host: str = "127.0.0.1") -> AsyncIterator[Site]:
    """A server on this machine."""
    made = Site()
    server = await asyncio.start_server(made.serve, host, 0)
    made.where = server.sockets[0].getsockname()[:2]
    try:
        yield made
    finally:
        server.close()
        await made.close()
        await server.wait_closed()


def play(*urls: str) -> str:
    """A model that fetches these, one after another."""
    turns: list[dict[str, Any]] = [{"calls": [{"tool": "web_fetch", "arguments": {"url": url}}]} for url in urls]
    return json.dumps({"agents": [{"turns": [*turns, {"text": "done"}]}]})


async def results(client: Client, **fields: Any) -> list[dict[str, Any]]:
    """What the calls of one run gave."""
    own = agent("own", mode="all", tools=["web_fetch"], **fields)
    run = await client.request("POST", "/v1/runs", {"input": "Do it.", "agent": "own", "agents": [own]})
    assert (await finished(client, run["id"]))["status"] == "completed"
    events = await events_of(client, f"/v1/sessions/{run['session_id']}/events")
    return [event["data"] for event in events if event["type"] == "tool.result"]


@pytest.mark.spec("7.3", "10.4")
@pytest.mark.case("B129")
async def test_what_an_operator_opened_is_fetched_and_the_rest_of_the_machine_is_not_reached(tmp_path: Path) -> None:
    async with site() as docs, site() as inner:
        docs.answers |= {"/": redirect("/notes"), "/notes": page(ARTICLE)}
        inner.answers["/"] = page(b"INNER MARKER")
        closed = [f"http://{host}:{inner.where[1]}/" for host in ("127.0.0.1", "localhost", "2130706433", "[::1]", "0")]
        metadata = "http://169.254.169.254/latest/meta-data/"
        env = script(tmp_path, play(f"http://127.0.0.1:{docs.where[1]}/", *closed, metadata))
        env["SUBAGENTD_TOOLS__FETCH_ALLOW"] = json.dumps([f"127.0.0.1:{docs.where[1]}"])
        async with serving(tmp_path, env=env) as service, service.client() as client:
            given = await results(client)
            shown = await client.request("GET", "/v1/agents/researcher")
            assert "web_fetch" in shown["effective_tools"]
    first, *others = given
    assert (first["status"], docs.paths) == ("ok", ["/", "/notes"])
    assert "The moon is made of rock" in first["content"]
    assert f"http://127.0.0.1:{docs.where[1]}/notes answered with status 200, text/html" in first["content"]
    assert [one["status"] for one in others] == ["error"] * 6
    assert all("Not fetched: " in one["content"] for one in others)
    assert (inner.connections, "MARKER" in json.dumps(given)) == (0, False)


@pytest.mark.spec("7.3", "8.4")
@pytest.mark.case("B127", "B130")
async def test_a_rule_about_a_host_holds_when_another_host_redirects_there(tmp_path: Path) -> None:
    async with site() as allowed, site() as denied:
        there = f"http://localhost:{denied.where[1]}/secret"
        allowed.answers |= {"/": redirect("/next"), "/next": redirect(there)}
        denied.answers["/secret"] = page(b"DENIED MARKER", kind="text/plain")
        env = script(tmp_path, play(f"http://127.0.0.1:{allowed.where[1]}/", there))
        env["SUBAGENTD_TOOLS__FETCH_ALLOW"] = json.dumps(
            [f"127.0.0.1:{allowed.where[1]}", f"localhost:{denied.where[1]}", f"127.0.0.1:{denied.where[1]}"]
        )
        async with serving(tmp_path, env=env) as service, service.client() as client:
            told, refused = await results(client, permissions={"deny": ["WebFetch(domain:localhost)"]})
            assert (denied.connections, allowed.paths) == (0, ["/", "/next"])
            told_again, fetched = await results(client)  # without the rule, what it was told works
    assert told["status"] == told_again["status"] == "ok"
    assert told["content"].endswith(f"call web_fetch with its URL:\n{there}")
    assert (refused["status"], "DENIED" in json.dumps([told, refused])) == ("denied", False)
    assert (denied.paths, "DENIED MARKER" in fetched["content"]) == (["/secret"], True)


@pytest.mark.spec("7.3", "7.2")
async def test_an_operator_can_switch_it_off(tmp_path: Path) -> None:
    env = {**script(tmp_path, play()), "SUBAGENTD_TOOLS__WEB_FETCH": "false"}
    async with serving(tmp_path, env=env) as service, service.client() as client:
        shown = await client.request("GET", "/v1/agents/researcher")
        assert ("web_fetch" in shown["effective_tools"], "web_fetch" in shown["missing_tools"]) == (False, True)
        with pytest.raises(ServiceError, match="switched off"):
            await client.request("POST", "/v1/delegations", {"agent": "scout", "task": "x", "tools": ["web_fetch"]})


@pytest.mark.spec("7.3")
async def test_a_host_to_open_that_cannot_be_read_stops_the_start_with_its_text(tmp_path: Path) -> None:
    env = {**script(tmp_path, play()), "SUBAGENTD_TOOLS__FETCH_ALLOW": '["10.0.0.1/8"]'}
    with pytest.raises(AssertionError, match=r"10\.0\.0\.1/8"):
        async with serving(tmp_path, env=env, check_log=False):
            pass
