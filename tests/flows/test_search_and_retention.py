"""Texts are found over HTTP as soon as they were said; a log whose front was removed says so wherever it is read."""

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app.agent.events import Write
from app.agent.ids import now_us
from app.client import Client, CursorExpired, ServiceError
from app.store.database import Database
from tests.cli.test_audit import run
from tests.commands import key_for
from tests.flows.test_audit import PLAY, SEALED, done, verified
from tests.flows.test_tenants import ROOT_KEY
from tests.postgres import postgres_server, postgres_url  # noqa: F401  fixtures
from tests.service import Service, events_of, received, script, serving
from tests.store.facts import replaced

AUDIT_KEY = SEALED["SUBAGENTD_AUDIT__KEY"].encode()


async def refused(client: Client, path: str, **query: Any) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await client.page(path, **query)
    return caught.value


@pytest.mark.spec("12.4", "14.6", "16.4")
async def test_a_text_is_found_by_every_route_as_soon_as_it_was_said(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, env=script(tmp_path, PLAY)) as service,
        service.client() as client,
        aiohttp.ClientSession(service.url) as http,
    ):
        session = await done(client)
        await done(client)
        (looker,) = (await client.page(f"/v1/sessions/{session}/tree"))["runs"][0]["children"]
        for path, count in (
            ("/v1/audit", 4),
            (f"/v1/sessions/{session}/messages", 2),
            (f"/v1/runs/{looker['id']}/messages", 1),
        ):
            page = await client.page(path, text='你好, "ALL"', count=True)
            assert ([m["content"] for m in page["items"]] != [], page["count"]) == (True, count), path
            assert all('你好, "all"' in m["content"] for m in page["items"])
            assert (page["bounded"], page["count_bounded"], page["next"]) == (False, False, None)
            assert (await client.page(path, text="你坏, ", count=True))["count"] == 0
        assert "bounded" not in await client.page("/v1/audit")
        assert len((await client.page(f"/v1/sessions/{session}/messages", text="你好"))["items"]) == 2
        for path, text in (("/v1/audit", "你好"), ("/v1/audit", ""), ("/v1/audit", "x" * 1001)):
            assert (await refused(client, path, text=text)).status == 422
        assert (await refused(client, "/v1/audit", text="abc", decision="any")).status == 422
        for path in ("/v1/audit/export", f"/v1/sessions/{session}/export"):
            async with http.get(path, params={"text": "HYPERLINK"}) as answer:
                lines = [json.loads(line) for line in (await answer.text()).splitlines()]
            assert {line["content"] for line in lines} == {"=HYPERLINK(1)"}
        async with http.get("/v1/audit/export", params={"text": "no"}) as answer:
            assert answer.status == 422
        async with http.get("/readyz") as answer:
            assert (await answer.json())["search"] == "ok"
        for place in (("--url", service.url), ("--db", str(service.database))):
            shown = await run("show", "--text", "hyperlink", "--json", *place)
            assert [line["content"] for line in shown.lines] == ["=HYPERLINK(1)"] * 2
            written = await run("export", session, "--text", "hyperlink", *place)
            assert [json.loads(line)["content"] for line in written.out.splitlines()] == ["=HYPERLINK(1)"]
            short = await run("show", "--text", "no", *place)
            assert (short.code, "fewer than 3 characters" in short.err) == (2, True)


@pytest.mark.spec("12.4", "17.1")
async def test_nobody_searches_the_words_of_another_tenant(tmp_path: Path) -> None:
    env = {**script(tmp_path, PLAY), "SUBAGENTD_KEY": ROOT_KEY}
    async with serving(tmp_path, env=env) as service, service.client(ROOT_KEY) as client:
        session = await done(client)
        async with service.client(await key_for(service, "b", "read")) as other:
            assert (await other.page("/v1/audit", text="你好, ", count=True))["count"] == 0
            assert (await refused(other, f"/v1/sessions/{session}/messages", text="你好")).status == 404


async def prune(where: str, session: str, upto: int) -> None:
    """Remove the front of a log, as retention would once it is old."""
    await remove(where, session, upto=upto, created_at=1)


async def remove(where: str, session: str, **old: int) -> None:
    """What retention asks the writer for."""
    database = Database(where)
    await database.open()
    writer = database.writer(replaced, audit_key=AUDIT_KEY)
    values = {"tenant_id": "default", "session_id": session, **old}
    assert not await asyncio.to_thread(
        writer.write, [], [Write(table="checkpoints", values=values, key=("session_id",))]
    )
    writer.close()
    await database.close()


async def frames(http: aiohttp.ClientSession, path: str, **headers: str) -> tuple[int, list[tuple[str, Any]]]:
    """Status, and names and data of the frames of a stream that ends."""
    async with asyncio.timeout(20), http.get(path, headers={"Accept": "text/event-stream", **headers}) as answer:
        if answer.status != 200:
            return answer.status, [("", json.loads(await answer.text() or "{}"))]
        found = []
        for block in (await answer.text()).split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
            if "event" in fields:
                found.append((fields["event"], json.loads(fields["data"])))
        return answer.status, found


@pytest.mark.spec("11.3", "12.5")
async def test_a_log_without_its_front_says_so_to_every_reader(tmp_path: Path) -> None:
    env = {**script(tmp_path, PLAY), **SEALED}
    async with serving(tmp_path, env=env) as service, service.client() as client:
        session, deep = await done(client), await done(client)
        whole = await events_of(client, f"/v1/sessions/{session}/events")
        where = str(service.database)
    head = whole[-1]["id"]
    await prune(where, session, 10)
    await prune(where, deep, head - 3)
    async with (
        serving(tmp_path, env=env) as service,
        service.client() as client,
        aiohttp.ClientSession(service.url) as http,
    ):
        path = f"/v1/sessions/{session}/events"
        status, seen = await frames(http, f"{path}?until=idle")
        assert seen[0] == ("stream.reset", {"head": head, "oldest": 11})
        assert [data["id"] for _, data in seen[1:]] == list(range(11, head + 1))
        page = await client.page(path, limit=5)
        assert (page["oldest"], [e["id"] for e in page["items"]]) == (11, [11, 12, 13, 14, 15])
        page = await client.page(path, after=10, limit=2)
        assert ("oldest" in page, [e["id"] for e in page["items"]]) == (False, [11, 12])
        status, seen = await frames(http, f"{path}?until=idle&after=10")
        assert (status, seen[0][0] == "stream.reset", seen[0][1]["id"]) == (200, False, 11)

        for query in ({}, {"types": "message,session.idle"}, {"depth": 1}):
            shown = await received(client, path, until="idle", **query)
            wanted = [e["id"] for e in (await client.page(path, limit=500, **query))["items"]]
            assert [frame.type for frame in shown if frame.id is None] == ["stream.reset"]
            assert [frame.id for frame in shown if frame.id is not None] == wanted
            assert min(wanted) > 10
        with pytest.raises(CursorExpired) as expired:
            await received(client, path, 9, until="idle")
        before = int(expired.value.problem["oldest"]) - 1
        shown = await received(client, path, before, until="idle")
        assert ([frame.id for frame in shown], client.gaps) == (list(range(11, head + 1)), 0)

        gone = await refused(client, path, after=9)
        assert (gone.status, gone.problem["code"]) == (410, "events_gone")
        status, ((_, told),) = await frames(http, path, **{"Last-Event-ID": "3"})
        assert (status, told["oldest"], told["head"]) == (410, 11, head)
        assert told["type"] == "/problems/gone"
        assert (await client.page(told["state"]))["runs"][0]["status"] == "completed"
        root = (await client.page(told["state"]))["runs"][0]
        assert (await refused(client, f"/v1/runs/{root['id']}/events", after=3)).status == 410
        status, _ = await frames(http, f"/v1/runs/{root['id']}/events?after={head - 1}")
        assert status == 204
        status, seen = await frames(http, f"/v1/runs/{root['id']}/events?types=message")
        assert seen[0][0] == "stream.reset"
        assert seen[1][1]["id"] > 10

        (below,) = (await client.page(f"/v1/sessions/{deep}/tree"))["runs"][0]["children"]
        status, ((_, told),) = await frames(http, f"/v1/runs/{below['id']}/events")
        assert (status, told["oldest"], told["state"]) == (410, head - 2, f"/v1/sessions/{deep}/tree")

        found = await verified(client, session)
        assert (found["ok"], found["removed"], found["events"]) == (True, 10, head)
        part = await verified(client, session, limit=7)
        assert (part["ok"], part["events"]) == (None, 17)
        assert (await verified(client, session, cursor=part["next"]))["ok"] is True
        turn = await client.request("POST", f"/v1/sessions/{session}/runs", {"input": "Go."})
        assert turn["session_id"] == session
        kept = await client.page(f"/v1/runs/{turn['id']}/events", after=3, limit=1)  # its view begins far behind that
        assert [event["type"] for event in kept["items"]] == ["run.queued"]
        with sqlite3.connect(service.database, timeout=10) as database:
            database.execute("DELETE FROM checkpoints")
        assert (await verified(client, session))["first_bad"]["id"] == 1


@pytest.mark.spec("11.3", "12.5")
async def test_a_view_whose_end_was_removed_is_over_and_nobody_is_sent_round_in_circles(tmp_path: Path) -> None:
    env = {**script(tmp_path, PLAY), **SEALED}
    async with serving(tmp_path, env=env) as service, service.client() as client:
        session = await done(client)
        path = f"/v1/sessions/{session}/events"
        await received(client, path, until="idle")
        await client.request("PATCH", f"/v1/sessions/{session}", {"title": "Another"})
        whole = await events_of(client, path)
        where = str(service.database)
    head = whole[-1]["id"]
    assert [event["type"] for event in whole[-2:]] == ["session.idle", "session.updated"]
    await prune(where, session, head - 1)
    async with serving(tmp_path, env=env) as service, service.client() as client:
        shown = await received(client, path, until="idle")
        assert [(frame.id, frame.type) for frame in shown] == [(None, "stream.reset"), (head, "session.updated")]
        page = await client.page(path, until="idle")
        assert ([event["id"] for event in page["items"]], page["next"], page["oldest"]) == ([head], None, head)
        gone = await refused(client, path, after=3, until="idle")
        assert (gone.status, gone.problem["oldest"]) == (410, head)
        assert f"go on without a cursor, or after {head - 1}" in gone.problem["detail"]
        assert [frame.id for frame in await received(client, path, head - 1, until="idle")] == [head]
        assert await received(client, path, head, until="idle") == []

        (root,) = (await client.page(gone.problem["state"]))["runs"]
        for after in (0, 3):
            gone = await refused(client, f"/v1/runs/{root['id']}/events", after=after)
            assert (gone.status, "nothing follows" in gone.problem["detail"]) == (410, True)
        assert (await client.page(f"/v1/runs/{root['id']}/events", after=head - 2))["next"] is None
        await client.request("PATCH", f"/v1/sessions/{session}", {"closed": True})
    await remove(where, session, before=now_us(), tasks_before=now_us())
    async with serving(tmp_path, env=env) as service, service.client() as client:
        for after in (0, 3, head - 2):
            assert (await refused(client, f"/v1/runs/{root['id']}/events", after=after)).status == 404


@pytest.mark.spec("12.5", "16.2")
async def test_a_log_is_not_kept_for_less_than_others_read_it(tmp_path: Path) -> None:
    wrong = {"SUBAGENTD_AUDIT__RETENTION_H": "-1"}
    refused_by = await run("verify", "--all", "--db", str(tmp_path / "x.db"), env=wrong)
    assert refused_by.code == 2
    assert "retention_h" in refused_by.err
    service = Service(tmp_path, env={**script(tmp_path, PLAY), "SUBAGENTD_AUDIT__RETENTION_H": "23"})
    with pytest.raises(AssertionError, match="at least 24"):
        await service.start()
