"""The log over HTTP: verified while the service runs, exported as it is asked for."""

import contextlib
import csv
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app.client import Client, ServiceError
from app.sessions.exporting import MESSAGES
from tests.postgres import postgres_server, postgres_url  # noqa: F401  fixtures
from tests.service import Service, agent, finished, script, serving

PLAY = """
agents:
  - when: {system_contains: "You are boss"}
    turns:
      - {calls: [{tool: dispatch_subagent, arguments: {agent_type: looker, task: "look"}}]}
      - {text: "=HYPERLINK(1)"}
  - turns:
      - {calls: [{tool: glob, arguments: {pattern: "*"}}]}
      - {text: "你好, \\"all\\""}
"""
BOSS = agent("boss", mode="primary", tools=["dispatch_subagent"])
BODY = {"agent": "boss", "agents": [BOSS, agent("looker", tools=["glob"])], "input": "Go.", "surfaces": ["dispatch"]}
SEALED = {"SUBAGENTD_AUDIT__KEY": "a key that nobody guesses"}


async def done(client: Client) -> str:
    """A session in which a run has ended."""
    run = await finished(client, (await client.request("POST", "/v1/runs", BODY))["id"])
    assert run["status"] == "completed", run
    return str(run["session_id"])


def spoil(service: Service, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(service.database, timeout=10)) as database, database:
        assert database.execute(statement).rowcount


async def verified(client: Client, session: str, **query: Any) -> dict[str, Any]:
    return await client.page(f"/v1/sessions/{session}/audit/verify", **query)


@pytest.mark.spec("12.5", "14.6")
async def test_a_session_is_verified_while_it_runs_and_after_it_was_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path, env={**script(tmp_path, PLAY), **SEALED}) as service, service.client() as client:
        session, other = await done(client), await done(client)
        good = await verified(client, session)
        assert (good["ok"], good["first_bad"], good["keyed"], good["next"]) == (True, None, True, None)
        assert good["events"] == good["head"]["id"] > 20
        part = await verified(client, session, limit=7)
        assert (part["ok"], part["events"]) == (None, 7)
        assert (await verified(client, session, cursor=part["next"]))["ok"] is True
        await client.request("DELETE", f"/v1/sessions/{session}")
        gone = await verified(client, session)
        assert (gone["ok"], gone["events"]) == (True, good["events"] + 1)
        spoil(service, f"UPDATE events SET data = X'7B7D' WHERE session_id = '{other}' AND seq = 9")
        bad = await verified(client, other)
        assert (bad["ok"], bad["events"]) == (False, 8)
        assert bad["first_bad"] == {"id": 9, "problem": "its data was changed"}
        for path, status in (("ses_0/audit/verify", 404), (f"{other}/audit/verify?cursor=x", 422)):
            with pytest.raises(ServiceError) as refused:
                await client.page(f"/v1/sessions/{path}")
            assert refused.value.status == status


@pytest.mark.spec("12.5")
async def test_without_a_key_the_answer_says_that_it_finds_damage_and_not_forgery(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        found = await verified(client, await done(client))
        assert (found["ok"], found["keyed"]) == (True, False)
        assert "damage, not forgery" in found["says"]


@pytest.mark.postgres
@pytest.mark.spec("12.5", "14.6", "12.1")
async def test_a_log_in_postgresql_is_verified_as_well(tmp_path: Path, postgres_url: str) -> None:  # noqa: F811
    env = {**script(tmp_path, PLAY), **SEALED}
    async with serving(tmp_path, env=env, where=postgres_url) as service, service.client() as client:
        found = await verified(client, await done(client))
        assert (found["ok"], found["keyed"]) == (True, True)
        assert found["events"] == found["head"]["id"]


@pytest.mark.spec("12.4", "14.4", "14.6")
async def test_a_cursor_of_another_session_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        session, other = await done(client), await done(client)
        turn = await client.request("POST", f"/v1/sessions/{session}/runs", {"input": "Again."})
        await finished(client, turn["id"])
        for part, others in (("messages", ("/messages", "/messages?role=user")), ("runs", ("/runs",))):
            page = await client.page(f"/v1/sessions/{session}/{part}", limit=1)
            assert (await client.page(f"/v1/sessions/{session}/{part}", cursor=page["next"]))["items"]
            for path in others:
                with pytest.raises(ServiceError) as refused:
                    await client.page(f"/v1/sessions/{other}{path}", cursor=page["next"])
                assert (refused.value.status, refused.value.problem["code"]) == (422, "invalid_cursor")


@pytest.mark.spec("12.4", "14.6", "14.12")
async def test_whatever_there_is_of_a_session_or_run_makes_it_known_and_nothing_else_does(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, env=script(tmp_path, PLAY)) as service,
        service.client() as client,
        aiohttp.ClientSession(service.url) as http,
    ):
        session, other = await done(client), await done(client)
        (run,) = (await client.page(f"/v1/sessions/{session}/runs"))["items"]

        async def found(path: str, **query: str) -> tuple[int, list[str]]:
            async with http.get(path, params=query) as answer:
                text = await answer.text()
                if answer.status != 200:
                    return answer.status, [json.loads(text)["detail"]]
                lines = [json.loads(line) for line in text.splitlines()]
                return 200, sorted(line["id"] for line in (lines if path.endswith("export") else lines[0]["items"]))

        own = f"/v1/sessions/{session}"
        for paths, named in (
            (("/v1/audit", "/v1/audit/export"), {"session_id": session}),
            (("/v1/audit", "/v1/audit/export", f"{own}/messages", f"{own}/export"), {"run_id": run["id"]}),
        ):
            answers = [await found(path, **named) for path in paths]
            assert [status for status, _ in answers] == [200] * len(paths)
            assert answers == [answers[0]] * len(paths)
            assert len(answers[0][1]) >= 3
            for path in paths:
                (name,) = named
                status, (detail,) = await found(path, **{name: "no_such"})
                assert (status, detail) == (404, f"there is no {name.removesuffix('_id')} 'no_such'"), path
        assert await found(f"/v1/sessions/{other}/export", run_id=run["id"]) == (200, []), (
            "it is there, but not in that one"
        )

        page = await client.page("/v1/audit", session_id=session, limit=1)
        await client.request("DELETE", f"/v1/sessions/{session}")
        assert await found("/v1/audit", session_id=session) == (200, []), "deleted ones are known, as they are verified"
        assert (await client.page("/v1/audit", session_id=session, limit=1, cursor=page["next"]))["items"] == []
        assert (await found("/v1/audit", run_id=run["id"]))[0] == 404
        (run,) = (await client.page(f"/v1/sessions/{other}/runs"))["items"]
        spoil(service, f"DELETE FROM runs WHERE id = '{run['id']}'")
        status, ids = await found("/v1/audit", run_id=run["id"])
        assert (status, len(ids) >= 3) == (200, True), "what there is of it is never hidden"


@pytest.mark.spec("12.4", "14.6")
async def test_messages_are_exported_in_the_form_that_is_asked_for(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, env=script(tmp_path, PLAY)) as service,
        service.client() as client,
        aiohttp.ClientSession(service.url) as http,
    ):
        session = await done(client)
        await done(client)

        async def export(path: str, accept: str = "*/*") -> tuple[str, str, str]:
            async with http.get(path, headers={"Accept": accept}) as answer:
                return answer.content_type, answer.headers.get("Content-Disposition", ""), await answer.text()

        whole, own = "/v1/audit/export", f"/v1/sessions/{session}/export"
        for accept, query, form in (
            ("*/*", "", "ndjson"),
            ("application/x-ndjson, text/csv", "", "ndjson"),
            ("text/csv", "", "csv"),
            ("text/csv, */*;q=0.1", "", "csv"),
            ("application/json", "?format=csv", "csv"),
            ("text/csv", "?format=ndjson", "ndjson"),
        ):
            for path in (whole, own):
                kind, name, _ = await export(path + query, accept)
                assert kind == ("text/csv" if form == "csv" else "application/x-ndjson"), (accept, query)
                assert name.endswith(f'.{form}"')
        for path in (whole, own):
            async with http.get(path, headers={"Accept": "image/png"}) as answer:
                assert answer.status == 406
            async with http.get(f"{path}?format=xlsx") as answer:
                assert (answer.status, "ndjson and csv" in (await answer.json())["detail"]) == (422, True)

        lines = [json.loads(line) for line in (await export(own))[2].splitlines()]
        pages = (await client.page(f"/v1/sessions/{session}/messages", limit=500))["items"]
        assert lines == pages
        rows = list(csv.DictReader(io.StringIO((await export(f"{own}?format=csv"))[2], newline="")))
        assert [tuple(row) for row in rows] == [MESSAGES.columns] * len(pages)
        assert [row["id"] for row in rows] == [page["id"] for page in pages]
        assert [row["content"] for row in rows][-2:] == ['你好, "all"', "'=HYPERLINK(1)"]
        both = [json.loads(line) for line in (await export(whole))[2].splitlines()]
        assert [line for line in both if line["session_id"] == session] == lines
        assert len(both) == 2 * len(lines)
        tools = [json.loads(line) for line in (await export(f"{whole}?tool=glob&session_id={session}"))[2].splitlines()]
        assert [(line["role"], line["depth"]) for line in tools] == [("tool", 1)]
