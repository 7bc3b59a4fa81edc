"""Completion webhooks over a real network: the stored bytes, signed, at least once, whatever breaks in between."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app import settings
from app.client import Client, ServiceError, Unreachable
from app.wire import event_json
from tests.flows.receiver import BROKEN, HANG, SECRET, Receiver, is_signed, receiving
from tests.net.loopback import Request, http, loopback, unused_port
from tests.pages import FENCED
from tests.service import ROOT, WAIT_S, Service, agent, events_of, finished, script, serving

PLAY = """
agents:
  - when: {task_contains: slow}
    turns: [{text: "late", delay_ms: 60000, chunks: 1}]
  - when: {task_contains: fail}
    turns: [{text: "", error: {code: bad_model, message: "it broke", retryable: false}}]
  - turns: [{text: "It is done."}]
"""
QUICK = {"first_pause_s": "0.01", "max_pause_s": "0.05", "timeout_s": "0.5"}


@contextlib.asynccontextmanager
async def telling(
    folder: Path, *hosts: str, where: str | None = None, **own: str
) -> AsyncIterator[tuple[Service, Client]]:
    """A service that may tell these hosts."""
    given = {**QUICK, **own, "hosts": json.dumps(hosts), "secret": SECRET}
    env = {f"SUBAGENTD_WEBHOOKS__{name.upper()}": value for name, value in given.items()}
    env |= script(folder, PLAY) | {"SUBAGENTD_RECOVERY__MODE": "interrupt"}  # what a crash broke off ends with it
    async with serving(folder, env=env, where=where) as service, service.client() as client:
        yield service, client


def solo(task: str, url: str) -> dict[str, Any]:
    """A run of one agent without tools."""
    return {"agent": "solo", "agents": [agent("solo", mode="all", tools=[])], "input": task, "webhook": url}


async def settled(client: Client, path: str) -> dict[str, Any]:
    """Wait until nobody is to be told any more."""
    async with asyncio.timeout(WAIT_S):
        while True:
            shown: dict[str, Any] = (await client.request("GET", path))["webhook"]
            if shown["status"] != "pending":
                return shown
            await asyncio.sleep(0.02)


async def tried(client: Client, path: str) -> dict[str, Any]:
    """Wait until it was tried once."""
    async with asyncio.timeout(WAIT_S):
        while True:
            shown: dict[str, Any] = (await client.request("GET", path))["webhook"]
            if shown["attempts"]:
                return shown
            await asyncio.sleep(0.02)


def rows(service: Service, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """What stands in the database."""
    with contextlib.closing(sqlite3.connect(service.database)) as database:
        return database.execute(statement, values).fetchall()


def stored(service: Service, request: Request) -> bytes:
    """The event of which a request tells, as the log has it."""
    told = request.json
    where = "SELECT envelope, data FROM events WHERE session_id = ? AND seq = ?"
    ((envelope, data),) = rows(service, where, told["session_id"], told["id"])
    return event_json(envelope, data)


# ── what is told ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("9.9", "14.7", "14.8")
async def test_the_last_event_of_a_run_arrives_signed_and_byte_for_byte_as_the_log_has_it(tmp_path: Path) -> None:
    async with receiving() as receiver, telling(tmp_path, receiver.host) as (service, client):
        run = await client.request("POST", "/v1/runs", solo("x", receiver.url))
        (request,) = await receiver.got(1)
        shown = await settled(client, f"/v1/runs/{run['id']}")
        assert (shown["host"], shown["status"], shown["attempts"]) == (receiver.host, "delivered", 1)
        assert (shown["last_error"], shown["next_at"]) == (None, None)
        assert request.path == "/done?token=url-parameter-1234"
        assert request.headers["content-type"] == "application/json"
        assert is_signed(request)
        told = request.json
        assert (told["type"], told["run_id"], told["data"]["output"]) == ("run.completed", run["id"], "It is done.")
        assert request.body == stored(service, request)
        seen = await events_of(client, f"/v1/sessions/{run['session_id']}/events")
        assert told in seen
        assert "url-parameter" not in json.dumps(seen) + service.log
        assert rows(service, "SELECT url FROM webhooks") == [(None,)]
        assert 'subagentd_webhooks_total{outcome="delivered"} 1.0' in await text_of(client, "/metrics")
        other = await client.request("POST", "/v1/runs", {"input": "x"})
        assert "webhook" not in await finished(client, other["id"])


async def text_of(client: Client, path: str) -> str:
    """A page that is no JSON."""
    async with aiohttp.ClientSession() as http_client, http_client.get(client.url + path) as answer:
        return await answer.text()


@pytest.mark.spec("9.9", "14.3")
@pytest.mark.parametrize(("task", "kind"), [("fail", "run.failed"), ("slow", "run.cancelled")])
async def test_a_turn_that_fails_or_is_cancelled_is_told_as_well(tmp_path: Path, task: str, kind: str) -> None:
    async with receiving() as receiver, telling(tmp_path, receiver.host) as (service, client):
        body = solo(task, receiver.url)
        turn = {"input": body.pop("input"), "webhook": body.pop("webhook")}
        session = await client.request("POST", "/v1/sessions", body)
        run = await client.request("POST", f"/v1/sessions/{session['id']}/runs", turn)
        if task == "slow":
            waiting = (await client.request("GET", f"/v1/runs/{run['id']}"))["webhook"]
            assert (waiting["status"], waiting["attempts"], waiting["next_at"]) == ("pending", 0, None)
            await client.request("POST", f"/v1/runs/{run['id']}/cancel")
        (request,) = await receiver.got(1)
        assert (request.json["type"], request.json["run_id"]) == (kind, run["id"])
        assert is_signed(request)
        assert request.body == stored(service, request)


@pytest.mark.spec("9.9", "12.7")
async def test_a_run_that_a_crash_cut_short_is_told_of_after_the_restart(tmp_path: Path) -> None:
    async with receiving() as receiver, telling(tmp_path, receiver.host) as (service, client):
        run = await client.request("POST", "/v1/runs", solo("slow", receiver.url))
        await service.kill()
        await service.start()
        (request,) = await receiver.got(1)
        assert (request.json["type"], request.json["run_id"]) == ("run.interrupted", run["id"])
        async with service.client() as again:
            assert (await settled(again, f"/v1/runs/{run['id']}"))["status"] == "delivered"


@pytest.mark.spec("9.9", "12.7")
async def test_a_delegation_that_a_crash_cut_short_is_told_of_after_the_restart(tmp_path: Path) -> None:
    async with receiving() as receiver, telling(tmp_path, receiver.host) as (service, client):
        body = {"agent": agent("worker", tools=[]), "task": "slow", "webhook": receiver.url}
        asking = asyncio.create_task(client.request("POST", "/v1/delegations", body))
        async with asyncio.timeout(WAIT_S):
            while not (found := rows(service, "SELECT id FROM webhooks")):
                await asyncio.sleep(0.02)
        await service.kill()
        with pytest.raises(Unreachable):
            await asking
        await service.start()
        (request,) = await receiver.got(1)
        told = request.json
        assert (told["type"], told["data"]["status"]) == ("handoff.end", "interrupted")
        assert [(told["data"]["handoff_id"],)] == found


@pytest.mark.spec("9.9", "12.6", "12.7")
async def test_the_url_stands_in_no_event_of_a_delegation_which_goes_on_when_its_host_is_not_allowed_any_more(
    tmp_path: Path,
) -> None:
    async with receiving() as receiver, telling(tmp_path, receiver.host) as (service, client):
        body = {"agent": agent("worker", tools=[]), "task": "slow", "webhook": receiver.url, "background": True}
        task = await client.request("POST", "/v1/delegations", body)
        await service.kill()
        service.env |= {"SUBAGENTD_WEBHOOKS__HOSTS": '["b.example.org"]', "SUBAGENTD_RECOVERY__MODE": "continue"}
        await service.start()
        async with service.client() as again:
            assert (await again.request("POST", f"/v1/tasks/{task['task_id']}/cancel"))["cancelled"]
            events = await events_of(again, f"/v1/delegations/{task['task_id']}/events")
        assert "handoff.start" in [event["type"] for event in events]
        assert receiver.host not in json.dumps(events)


@pytest.mark.spec("9.9", "14.9")
@pytest.mark.parametrize("denied", [False, True])
async def test_of_a_delegation_the_end_of_its_handoff_is_told(tmp_path: Path, denied: bool) -> None:
    async with receiving() as receiver, telling(tmp_path, receiver.host) as (service, client):
        body: dict[str, Any] = {"agent": agent("worker", tools=[]), "task": "x", "webhook": receiver.url}
        if denied:
            with pytest.raises(ServiceError) as caught:
                await client.request("POST", "/v1/delegations", {**body, "policy": {"max_depth": 0}})
            assert caught.value.status == 403
            handoff_id = caught.value.problem["handoff_id"]
        else:
            handoff_id = (await client.request("POST", "/v1/delegations", body))["handoff_id"]
        (request,) = await receiver.got(1)
        shown = await settled(client, f"/v1/delegations/{handoff_id}")
        assert shown["status"] == "delivered"
        told = request.json
        assert (told["type"], told["data"]["handoff_id"]) == ("handoff.end", handoff_id)
        assert told["data"]["status"] == ("denied" if denied else "completed")
        assert request.body == stored(service, request)
        assert len(receiver.requests) == 1


@pytest.mark.spec("9.9", "12.6")
async def test_secrets_are_masked_in_what_is_told_and_the_key_is_shown_nowhere(tmp_path: Path) -> None:
    play = 'agents: [{turns: [{text: "the word is canary-word-20-letters"}]}]'
    async with receiving() as receiver:
        env = {"hosts": json.dumps([receiver.host]), "secret": SECRET}
        given = {f"SUBAGENTD_WEBHOOKS__{name.upper()}": value for name, value in env.items()}
        given |= {**script(tmp_path, play), "OUR_TOKEN": "canary-word-20-letters"}
        async with serving(tmp_path, env=given) as service, service.client() as client:
            await client.request("POST", "/v1/runs", solo("x", receiver.url))
            (request,) = await receiver.got(1)
        assert request.json["data"]["output"] == "the word is [masked]"
    kept = service.log.encode() + b"".join(path.read_bytes() for path in tmp_path.glob("service.db*"))
    for secret in ("canary-word-20-letters", SECRET.removeprefix("whsec_")):
        assert secret.encode() not in kept


@pytest.mark.spec("9.9", "13.1")
async def test_the_page_says_how_to_allow_it_and_how_to_tell_what_is_genuine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = dict(FENCED.findall((ROOT / "docs" / "webhooks.md").read_text()))
    (tmp_path / settings.TOML_FILE).write_text(blocks["toml"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUBAGENTD_WEBHOOKS__SECRET", SECRET)
    assert settings.load().webhooks.hosts == ["hooks.example.org", "relay.internal:9000"]
    (tmp_path / settings.TOML_FILE).unlink()
    names: dict[str, Any] = {}
    exec(blocks["python"], names)
    async with receiving() as receiver, telling(tmp_path, receiver.host) as (_, client):
        run = await client.request("POST", "/v1/runs", solo("x", receiver.url))
        (request,) = await receiver.got(1)
        shown = await settled(client, f"/v1/runs/{run['id']}")
    assert set(json.loads(blocks["json"])["webhook"]) == set(shown)
    assert names["is_genuine"](SECRET, request.headers, request.body)
    assert not names["is_genuine"](SECRET, request.headers, request.body + b" ")
    assert not names["is_genuine"](SECRET, {**request.headers, "webhook-timestamp": "1"}, request.body)


# ── again and again ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("9.9")
async def test_errors_silence_redirects_and_broken_answers_are_tried_again_under_the_same_id(tmp_path: Path) -> None:
    async with loopback() as elsewhere:
        answers = (BROKEN, b"", HANG, http(status="302 Found", Location=elsewhere.url), _busy(3600), b"no HTTP\r\n\r\n")
        async with receiving(*answers) as receiver, telling(tmp_path, receiver.host) as (service, client):
            run = await client.request("POST", "/v1/runs", solo("x", receiver.url))
            requests = await receiver.got(7)
            shown = await settled(client, f"/v1/runs/{run['id']}")
            assert (shown["status"], shown["attempts"], shown["last_error"]) == ("delivered", 7, None)
            assert len({request.headers["webhook-id"] for request in requests}) == 1
            assert len({request.body for request in requests}) == 1
            assert all(is_signed(request) for request in requests)
            assert elsewhere.requests == []
            assert "url-parameter" not in service.log


def _busy(seconds: int) -> bytes:
    return http(status="503 Service Unavailable", Retry_After=str(seconds))


@pytest.mark.spec("9.9")
async def test_a_receiver_that_is_not_there_yet_is_told_when_it_comes(tmp_path: Path) -> None:
    port = unused_port()
    receiver = Receiver()
    receiver.port = port
    async with telling(tmp_path, receiver.host) as (_, client):
        run = await client.request("POST", "/v1/runs", solo("x", receiver.url))
        shown = await tried(client, f"/v1/runs/{run['id']}")
        assert (shown["status"], "cannot connect" in shown["last_error"]) == ("pending", True)
        assert "token" not in shown["last_error"]
        assert shown["next_at"] is not None
        await receiver.listen(port)
        try:
            assert (await settled(client, f"/v1/runs/{run['id']}"))["status"] == "delivered"
        finally:
            await receiver.close()
    assert len(receiver.requests) == 1


@pytest.mark.spec("9.9")
async def test_a_receiver_that_asks_for_time_gets_it_up_to_the_bound(tmp_path: Path) -> None:
    async with receiving(rest=_busy(600)) as receiver, telling(tmp_path, receiver.host, max_pause_s="3600") as made:
        _, client = made
        run = await client.request("POST", "/v1/runs", solo("x", receiver.url))
        shown = await tried(client, f"/v1/runs/{run['id']}")
        ended = (await client.request("GET", f"/v1/runs/{run['id']}"))["ended_at"]
        pause = datetime.fromisoformat(shown["next_at"]) - datetime.fromisoformat(ended)
        assert 600 <= pause.total_seconds() < 600 + WAIT_S
        assert shown["last_error"] == f"{receiver.host} answered with status 503"


@pytest.mark.spec("9.9")
async def test_killed_in_the_middle_of_a_try_the_message_comes_again_under_the_same_id(tmp_path: Path) -> None:
    async with receiving(HANG, HANG) as receiver, telling(tmp_path, receiver.host, timeout_s="60") as (service, client):
        run = await client.request("POST", "/v1/runs", solo("x", receiver.url))
        for count in (1, 2):
            await receiver.got(count)
            await service.kill()
            await service.start()
        requests = await receiver.got(3)
        async with service.client() as again:
            assert (await settled(again, f"/v1/runs/{run['id']}"))["status"] == "delivered"
        assert len({(request.headers["webhook-id"], request.body) for request in requests}) == 1
        assert all(is_signed(request) for request in requests)
        await service.stop()
        await service.start()
        async with service.client() as third:
            second = await third.request("POST", "/v1/runs", solo("y", receiver.url))
            await settled(third, f"/v1/runs/{second['id']}")
        assert [request.json["run_id"] for request in receiver.requests[3:]] == [second["id"]]


@pytest.mark.spec("9.9", "12.1")
@pytest.mark.postgres
async def test_on_postgresql_too_a_message_outlives_errors_and_a_crash(empty_postgres_url: str, tmp_path: Path) -> None:
    async with (
        receiving(BROKEN) as receiver,
        telling(tmp_path, receiver.host, where=empty_postgres_url) as (service, client),
    ):
        done = await client.request("POST", "/v1/runs", solo("x", receiver.url))
        assert (await settled(client, f"/v1/runs/{done['id']}"))["attempts"] == 2
        cut = await client.request("POST", "/v1/runs", solo("slow", receiver.url))
        await service.kill()
        await service.start()
        requests = await receiver.got(3)
        assert [request.json["run_id"] for request in requests] == [done["id"], done["id"], cut["id"]]
        async with service.client() as again:
            await again.request("DELETE", f"/v1/sessions/{cut['session_id']}")


@pytest.mark.spec("9.9")
@pytest.mark.parametrize(("answer", "total", "why"), [("410 Gone", "86400", "410"), ("404 Not Found", "0", "404")])
async def test_one_that_wants_no_more_or_took_nothing_in_time_is_left_alone(
    tmp_path: Path, answer: str, total: str, why: str
) -> None:
    async with receiving(rest=http(status=answer)) as receiver, telling(tmp_path, receiver.host, total_s=total) as made:
        service, client = made
        run = await client.request("POST", "/v1/runs", solo("x", receiver.url))
        shown = await settled(client, f"/v1/runs/{run['id']}")
        assert (shown["status"], shown["attempts"], shown["next_at"]) == ("given_up", 1, None)
        assert why in shown["last_error"]
        assert len(receiver.requests) == 1
        assert rows(service, "SELECT url FROM webhooks") == [(None,)]


@pytest.mark.spec("9.9")
async def test_a_receiver_that_never_answers_delays_neither_runs_nor_other_receivers(tmp_path: Path) -> None:
    async with (
        receiving(rest=HANG) as dead,
        receiving() as alive,
        telling(tmp_path, dead.host, alive.host, timeout_s="60", per_host="2") as (_, client),
    ):
        starts = [client.request("POST", "/v1/runs", solo("x", dead.url)) for _ in range(12)]
        for run in await asyncio.gather(*starts):
            assert (await finished(client, run["id"]))["status"] == "completed"
        await dead.got(2)
        run = await client.request("POST", "/v1/runs", solo("x", alive.url))
        assert (await settled(client, f"/v1/runs/{run['id']}"))["status"] == "delivered"
        assert len(dead.requests) == 2


# ── what is refused, and what is erased ─────────────────────────────────────────────────────────────────────────


async def refused(client: Client, path: str, body: dict[str, Any]) -> str:
    """What a request is told that is refused for its webhook."""
    with pytest.raises(ServiceError) as caught:
        await client.request("POST", path, body)
    problem = caught.value.problem
    assert (caught.value.status, problem["code"], problem["errors"][0]["at"]) == (422, "webhook_refused", "webhook")
    return str(problem["detail"])


@pytest.mark.spec("9.9", "14.3", "14.7", "14.9")
async def test_hosts_that_no_setting_names_are_refused_with_its_name_and_nothing_begins(tmp_path: Path) -> None:
    async with telling(tmp_path, "hooks.example.org", "127.0.0.1:9000") as (service, client):
        named = {
            "https://elsewhere.example.org/x": "webhooks.hosts",
            "https://hooks.example.org:8443/x": "webhooks.hosts",
            "http://hooks.example.org/x": "webhooks.hosts",
            "http://127.0.0.1/x": "webhooks.hosts",
            "ftp://hooks.example.org/x": "https://",
            "hooks": "https://",
            "https://me:word@hooks.example.org/x": "user name",
            "https://me@hooks.example.org/x": "user name",
            "https://hooks.example.org/" + "x" * 2048: "2048",
            "https://hooks.example.org/a\r\nX-Evil: 1": "control character",
            "https://hooks.example.org/a\tb": "control character",
            "https://hooks.example.org/a#b": "fragment",
            "https://hooks.example.org/?key=sk-ant-api03-" + "a1B2" * 24: "looks like a secret",
        }
        for url, word in named.items():
            assert word in await refused(client, "/v1/runs", solo("x", url)), url
        bad = "https://elsewhere.example.org/x"
        task = {"agent": agent("worker", tools=[]), "task": "x", "webhook": bad}
        assert "webhooks.hosts" in await refused(client, "/v1/delegations", task)
        session = await client.request("POST", "/v1/sessions", {})
        path = f"/v1/sessions/{session['id']}/runs"
        assert "webhooks.hosts" in await refused(client, path, {"input": "x", "webhook": bad})
        assert [item["id"] for item in (await client.request("GET", "/v1/sessions"))["items"]] == [session["id"]]
        assert rows(service, "SELECT id FROM runs UNION SELECT id FROM webhooks") == []


@pytest.mark.spec("9.9", "16.5")
async def test_without_hosts_a_request_is_told_which_setting_and_hosts_without_a_key_keep_from_starting(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        assert "webhooks.hosts" in await refused(client, "/v1/runs", solo("x", "https://hooks.example.org/x"))
    for given, word in (({}, "webhooks.secret"), ({"SUBAGENTD_WEBHOOKS__SECRET": "whsec_c2hvcnQ="}, "24 to 64")):
        env = {"SUBAGENTD_WEBHOOKS__HOSTS": '["hooks.example.org"]', **given}
        without = Service(tmp_path, env=env)
        with pytest.raises(AssertionError, match=word):
            await without.start()
        assert await without.ended() == 2
        assert "whsec_c2" not in without.log


@pytest.mark.spec("9.9", "14.2")
async def test_what_waits_is_erased_with_its_session_and_nobody_is_told_any_more(tmp_path: Path) -> None:
    async with receiving(BROKEN) as receiver:
        async with telling(tmp_path, receiver.host, first_pause_s="3600", max_pause_s="3600") as (service, client):
            done = await client.request("POST", "/v1/runs", solo("x", receiver.url))
            await tried(client, f"/v1/runs/{done['id']}")
            slow = await client.request("POST", "/v1/runs", solo("slow", receiver.url))
            assert len(rows(service, "SELECT url FROM webhooks")) == 2
            for run in (done, slow):
                await client.request("DELETE", f"/v1/sessions/{run['session_id']}")
            assert rows(service, "SELECT url FROM webhooks") == []
            await service.kill()
            await service.start()
            async with service.client() as again:
                last = await again.request("POST", "/v1/runs", solo("x", receiver.url))
                await settled(again, f"/v1/runs/{last['id']}")
        assert [request.json["run_id"] for request in receiver.requests] == [done["id"], last["id"]]
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("service.db*"))
    assert b"url-parameter-1234" not in kept
