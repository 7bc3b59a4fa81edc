"""Keys and tickets over HTTP, and the key that comes with the settings."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.agent.errors import Unauthorized
from app.agent.ids import now_us
from app.sessions.access import new_key, revocation
from app.sessions.tickets import LIFE_US
from app.store.keys import SqlKeyStore
from tests.api.conftest import InProcess, in_process
from tests.service import WAIT_S

KEY = "bootstrap-key-of-the-settings"
ALL = {"authorization": f"Bearer {KEY}"}


@contextlib.asynccontextmanager
async def keyed(folder: Path) -> AsyncIterator[tuple[InProcess, httpx.AsyncClient]]:
    """A service with a bootstrap key, and a client without one."""
    async with in_process(folder, http={"key": KEY}) as running, running.client() as http:
        yield running, http


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def made(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await http.post("/v1/keys", json=fields, headers=ALL)
    assert answer.status_code == 201, answer.text
    key: dict[str, Any] = answer.json()
    return key


@pytest.mark.spec("14.16", "17.2")
async def test_a_key_is_shown_once_and_stored_as_its_hash(tmp_path: Path) -> None:
    async with keyed(tmp_path) as (_, http):
        key = await made(http, name="ci", scopes=["read", "run", "read"], expires_in_s=3600)
        assert key["key"].startswith("sk_sub_")
        assert len(key["key"]) == 50  # 256 bits
        assert key["scopes"] == ["read", "run"]
        listed = (await http.get("/v1/keys", headers=ALL)).json()["items"]
        assert [item["id"] for item in listed] == [key["id"]]
        assert "key" not in listed[0]
        assert "hash" not in listed[0]
        assert (await http.get("/v1/sessions", headers=bearer(key["key"]))).status_code == 200
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("x.db*"))
    assert key["key"].encode() not in stored
    assert KEY.encode() not in stored


@pytest.mark.spec("17.2")
async def test_who_has_no_valid_key_gets_401_with_the_way_in(tmp_path: Path) -> None:
    async with keyed(tmp_path) as (_, http):
        key = await made(http)
        for headers in ({}, bearer("nonsense"), bearer(key["key"][:-1]), {"authorization": f"Basic {KEY}"}, bearer("")):
            answer = await http.get("/v1/sessions", headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert "Bearer" in answer.json()["detail"] or "key" in answer.json()["detail"]
        in_query = await http.get("/v1/sessions", params={"api_key": KEY})
        assert (in_query.status_code, in_query.json()["code"]) == (401, "key_in_query")
        beside = await http.get("/v1/sessions", params={"api_key": KEY}, headers=ALL)
        assert (beside.status_code, beside.json()["errors"][0]["at"]) == (422, "api_key")
        assert (await http.post("/v1/runs", content="{" * 1000)).status_code in (401, 415)
        assert (await http.get("/v1/nowhere")).status_code == 401


@pytest.mark.spec("17.4")
async def test_probes_need_no_key_and_metrics_need_admin(tmp_path: Path) -> None:
    async with keyed(tmp_path) as (_, http):
        for path in ("/healthz", "/readyz", "/openapi.json"):
            assert (await http.get(path)).status_code == 200
        assert (await http.get("/metrics")).status_code == 401
        reader = await made(http, scopes=["read", "run", "approve"])
        assert (await http.get("/metrics", headers=bearer(reader["key"]))).status_code == 403
        admin = await made(http, scopes=["admin"])
        assert (await http.get("/metrics", headers=bearer(admin["key"]))).status_code == 200
        denied = (await http.get("/v1/sessions", headers=bearer(admin["key"]))).json()
        assert (denied["status"], denied["code"], denied["scope"]) == (403, "missing_scope", "read")


@pytest.mark.spec("14.16", "17.2")
@pytest.mark.parametrize(
    ("fields", "status", "at"),
    [
        ({"scopes": []}, 422, "scopes"),
        ({"scopes": ["root"]}, 422, "scopes[0]"),
        ({"expires_in_s": 0}, 422, "expires_in_s"),
        ({"expires_at": "2001-01-01T00:00:00Z"}, 422, "expires_at"),
        ({"expires_at": "soon"}, 422, "expires_at"),
        ({"expires_at": "2101-01-01T00:00:00"}, 422, "expires_at"),
        ({"expires_at": "21010101T000000Z"}, 422, "expires_at"),
        ({"expires_at": "9999-12-31T23:59:59-23:59"}, 422, "expires_at"),
        ({"expires_at": "2101-01-01T00:00:00Z", "expires_in_s": 5}, 422, ""),
        ({"tenant": "other"}, 403, None),
        ({"nmae": "x"}, 422, "nmae"),
    ],
)
async def test_a_key_that_cannot_be_is_refused(
    tmp_path: Path, fields: dict[str, Any], status: int, at: str | None
) -> None:
    async with keyed(tmp_path) as (_, http):
        answer = await http.post("/v1/keys", json=fields, headers=ALL)
        assert answer.status_code == status, answer.text
        if at is not None:
            assert answer.json()["errors"][0]["at"] == at
        assert (await http.get("/v1/keys", headers=ALL)).json()["items"] == []


@pytest.mark.spec("14.16")
async def test_a_key_name_that_no_store_takes_is_cleaned(tmp_path: Path) -> None:
    async with keyed(tmp_path) as (_, http):
        text = '{"name": "a\\ud800b\\u0000"}'
        answer = await http.post("/v1/keys", content=text, headers={**ALL, "content-type": "application/json"})
        assert answer.status_code == 201, answer.text
        assert answer.json()["name"] == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"


@pytest.mark.spec("17.2")
async def test_an_expired_key_opens_nothing_from_that_moment_on(tmp_path: Path) -> None:
    async with keyed(tmp_path) as (running, http):
        short = new_key(tenant="default", scopes=["read"], expires_at=now_us() + 300_000)
        for write in short.writes:
            await running.services.journal.write(write)
        assert (await http.get("/v1/sessions", headers=bearer(short.text))).status_code == 200
        async with asyncio.timeout(WAIT_S):
            while (answer := await http.get("/v1/sessions", headers=bearer(short.text))).status_code == 200:
                pass
        assert (answer.status_code, answer.json()["code"]) == (401, "invalid_key")
        assert "expired" in answer.json()["detail"]


@pytest.mark.spec("17.2")
async def test_a_revoked_key_is_refused_at_once_and_another_tenants_cannot_be_revoked(tmp_path: Path) -> None:
    async with keyed(tmp_path) as (running, http):
        key = await made(http)
        other = new_key(tenant="other", scopes=["admin"])
        for write in other.writes:
            await running.services.journal.write(write)
        assert (await http.get("/v1/sessions", headers=bearer(key["key"]))).status_code == 200
        gone = await http.delete(f"/v1/keys/{key['id']}", headers=ALL)
        assert (gone.status_code, gone.json()["revoked_at"] is not None) == (200, True)
        assert (await http.get("/v1/sessions", headers=bearer(key["key"]))).status_code == 401
        again = await http.delete(f"/v1/keys/{key['id']}", headers=ALL)
        assert again.json()["revoked_at"] == gone.json()["revoked_at"]
        foreign = await http.delete(f"/v1/keys/{other.id}", headers=ALL)
        unknown = await http.delete("/v1/keys/key_nobody", headers=ALL)
        assert foreign.status_code == unknown.status_code == 404
        assert foreign.json()["detail"].replace(other.id, "ID") == unknown.json()["detail"].replace("key_nobody", "ID")


@pytest.mark.spec("17.2")
async def test_streams_of_a_key_that_another_process_revoked_end_with_the_next_round(tmp_path: Path) -> None:
    async with keyed(tmp_path) as (running, http):
        key = await made(http, scopes=["read", "run"])
        services = running.services
        caller = await services.access.caller(key["key"])
        session = (await http.post("/v1/sessions", json={}, headers=bearer(key["key"]))).json()
        view = await services.sessions.session_stream("default", session["id"], until_idle=False)
        stream = services.feed.follow(view, 0, caller.key_id)
        services.access.watch(caller, services.feed)
        shown = b""
        async with asyncio.timeout(WAIT_S):
            while b"session.created" not in shown:
                shown += await anext(stream)
        await services.access.check(services.feed)
        assert services.feed.readers == 1
        (record,) = await SqlKeyStore(running.wired.database.reader).list("default")  # as another process would
        await services.journal.write(revocation(record, now_us()))
        await services.access.check(services.feed)
        async with asyncio.timeout(WAIT_S):
            rest = b"".join([chunk async for chunk in stream])
        assert b'"reason":"revoked"' in rest
        assert services.feed.readers == 0
        with pytest.raises(Unauthorized, match="revoked"):
            await services.access.caller(key["key"])


@pytest.mark.spec("17.2")
async def test_streams_of_a_key_that_has_expired_end_and_say_so(tmp_path: Path) -> None:
    async with keyed(tmp_path) as (running, http):
        services = running.services
        short = new_key(tenant="default", scopes=["read"], expires_at=now_us() + 300_000)
        for write in short.writes:
            await services.journal.write(write)
        session = (await http.post("/v1/sessions", json={}, headers=ALL)).json()
        caller = await services.access.caller(short.text)
        view = await services.sessions.session_stream("default", session["id"], until_idle=False)
        stream = services.feed.follow(view, 0, caller.key_id)
        services.access.watch(caller, services.feed)
        async with asyncio.timeout(WAIT_S):
            await anext(stream)
            while (await http.get("/v1/sessions", headers=bearer(short.text))).status_code == 200:
                pass
            await services.access.check(services.feed)
            rest = b"".join([chunk async for chunk in stream])
        assert b'"reason":"expired"' in rest


@pytest.mark.spec("17.1", "17.2")
async def test_the_first_key_ends_the_time_in_which_none_was_needed(tmp_path: Path) -> None:
    async with in_process(tmp_path) as running, running.client() as http:
        assert running.services.access.has_keys is False
        assert (await http.get("/v1/sessions")).status_code == 200
        assert (await http.get("/v1/sessions", headers=bearer("whatever"))).status_code == 200
        first = (await http.post("/v1/keys", json={"scopes": ["read"]})).json()
        assert (await http.get("/v1/sessions")).status_code == 401
        assert (await http.get("/v1/sessions", headers=bearer(first["key"]))).status_code == 200
        assert (await http.post("/v1/keys", json={}, headers=bearer(first["key"]))).status_code == 403


@pytest.mark.spec("14.16", "17.3")
async def test_a_ticket_opens_one_stream_of_its_tenant_once_and_for_a_minute(tmp_path: Path) -> None:
    async with keyed(tmp_path) as (running, http):
        started = (await http.post("/v1/runs", json={"input": "hello"}, headers=ALL)).json()
        await http.get(f"/v1/runs/{started['id']}", params={"wait_ms": 5000}, headers=ALL)
        path = f"/v1/runs/{started['id']}/events"

        async def ticket(**wanted: str) -> dict[str, Any]:
            answer = await http.post("/v1/tickets", json=wanted, headers=ALL)
            assert answer.status_code == 201, answer.text
            assert answer.headers["cache-control"] == "no-store"
            found: dict[str, Any] = answer.json()
            return found

        first = await ticket(run_id=started["id"])
        assert first["url"] == f"{path}?ticket={first['ticket']}"
        opened = await http.get(first["url"], headers={"accept": "text/event-stream"})
        assert b"run.completed" in opened.content
        assert (await http.get(first["url"])).status_code == 401
        second = await ticket(path=path)
        elsewhere = await http.get(f"/v1/sessions/{started['session_id']}/events?ticket={second['ticket']}")
        assert (elsewhere.status_code, elsewhere.json()["code"]) == (401, "invalid_ticket")
        assert (await http.get(second["url"])).status_code == 401  # it is used up by the attempt
        third = await ticket(session_id=started["session_id"])
        for method, other in (("GET", "/v1/sessions"), ("POST", "/v1/runs")):
            answer = await http.request(method, f"{other}?ticket={third['ticket']}")
            assert (answer.status_code, answer.json()["code"]) == (401, "invalid_ticket")
        fourth = await ticket(run_id=started["id"])
        running.services.tickets._clock = lambda: now_us() + LIFE_US
        assert (await http.get(fourth["url"])).status_code == 401


@pytest.mark.spec("14.16", "17.3")
async def test_a_ticket_is_used_up_only_by_a_request_that_opens_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keyed(tmp_path) as (running, http):
        started = (await http.post("/v1/runs", json={"input": "hello"}, headers=ALL)).json()
        await http.get(f"/v1/runs/{started['id']}", params={"wait_ms": 5000}, headers=ALL)
        url = (await http.post("/v1/tickets", json={"run_id": started["id"]}, headers=ALL)).json()["url"]
        assert (await http.head(url)).status_code == 200
        assert (await http.get(f"{url}&types=nothing")).status_code == 422
        assert (await http.get(f"{url}&after=x")).status_code == 400
        assert (await http.get(url, headers={"accept": "image/png"})).status_code == 406
        with monkeypatch.context() as full:
            full.setattr(running.services.feed, "_max_readers", 0)
            assert (await http.get(url)).status_code == 429
        both = await asyncio.gather(http.get(url), http.get(url))
        assert sorted(answer.status_code for answer in both) == [200, 401]
        assert (await http.get(url)).status_code == 401


@pytest.mark.spec("17.2", "17.3")
async def test_a_ticket_of_a_key_that_was_revoked_since_opens_nothing(tmp_path: Path) -> None:
    async with keyed(tmp_path) as (_, http):
        key = await made(http, scopes=["read", "run"])
        started = (await http.post("/v1/runs", json={"input": "hello"}, headers=bearer(key["key"]))).json()
        wanted = {"run_id": started["id"]}
        given = [(await http.post("/v1/tickets", json=wanted, headers=bearer(key["key"]))).json() for _ in range(2)]
        assert (await http.get(given[0]["url"])).status_code == 200
        await http.delete(f"/v1/keys/{key['id']}", headers=ALL)
        refused = await http.get(given[1]["url"])
        assert (refused.status_code, refused.json()["code"]) == (401, "invalid_key")


@pytest.mark.spec("14.16", "17.1")
async def test_a_ticket_is_given_only_for_a_stream_that_the_tenant_has(tmp_path: Path) -> None:
    async with keyed(tmp_path) as (running, http):
        session = (await http.post("/v1/sessions", json={}, headers=ALL)).json()
        other = new_key(tenant="other", scopes=["read"])
        for write in other.writes:
            await running.services.journal.write(write)
        foreign = await http.post("/v1/tickets", json={"session_id": session["id"]}, headers=bearer(other.text))
        assert foreign.status_code == 404
        for wanted in (
            {},
            {"run_id": "a", "session_id": "b"},
            {"path": "/v1/keys"},
            {"path": "/v1/runs/x/events?after=1"},
        ):
            assert (await http.post("/v1/tickets", json=wanted, headers=ALL)).status_code == 422
        runner = await made(http, scopes=["run"])
        refused = await http.post("/v1/tickets", json={"session_id": session["id"]}, headers=bearer(runner["key"]))
        assert refused.status_code == 403
