"""What somebody says to a run under way, and what is refused."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app.client import Client, ServiceError
from app.sessions.follow_ups import MAX_UNREAD
from tests.flows.paused import let_go, played, question, session_of, worker
from tests.service import events_of, finished, serving

ONE_SHOT = {"agent": "worker", "agents": [worker()]}


async def tell(client: Client, run_id: str, content: str) -> dict[str, Any]:
    """Say something to a run."""
    told: dict[str, Any] = await client.request("POST", f"/v1/runs/{run_id}/messages", {"content": content})
    return told


@pytest.mark.spec("9.7", "14.8")
async def test_a_message_is_stored_when_it_is_accepted_and_read_before_the_next_model_call(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        run = await client.request("POST", "/v1/runs", {**ONE_SHOT, "input": "wait"})
        await question(client, run["session_id"])
        told = await tell(client, run["id"], "Only the north.")
        assert (told["run_id"], told["status"]) == (run["id"], "waiting")
        with sqlite3.connect(f"file:{service.database}?mode=ro", uri=True) as db:
            (row,) = db.execute("SELECT status, content, run_id FROM notices WHERE id = ?", (told["notice_id"],))
        assert row == ("pending", "Only the north.", run["id"])
        await tell(client, run["id"], "And be short.")
        await let_go(client, run["session_id"])
        ended = await finished(client, run["id"])
        assert ended["output"] == "wait | Only the north.\n\nAnd be short."
        events = await events_of(client, f"/v1/runs/{run['id']}/events")
        notices = [e["data"] for e in events if e["type"] == "notice"]
        assert [(n["kind"], n["notice_id"] == told["notice_id"]) for n in notices] == [
            ("message", True), ("message", False),
        ]  # fmt: skip
        telling = [e["data"]["notices"] for e in events if e["type"] == "message" and e["data"].get("notices")]
        assert telling == [[n["notice_id"] for n in notices]]


@pytest.mark.spec("9.7")
async def test_a_run_that_has_not_begun_reads_its_messages_when_it_does(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        session = await session_of(client)
        await client.request("POST", f"/v1/sessions/{session}/runs", {"input": "wait"})
        await question(client, session)
        queued = await client.request("POST", f"/v1/sessions/{session}/runs", {"input": "two", "on_busy": "enqueue"})
        assert (await tell(client, queued["id"], "For the second."))["status"] == "queued"
        await let_go(client, session)
        assert (await finished(client, queued["id"]))["output"] == "wait | two | For the second."


@pytest.mark.spec("9.7", "14.8")
async def test_a_run_that_has_ended_takes_none_and_says_how_to_go_on(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        run = await client.request("POST", "/v1/runs", {**ONE_SHOT, "input": "x"})
        await finished(client, run["id"])
        with pytest.raises(ServiceError) as ended:
            await tell(client, run["id"], "Too late.")
        assert (ended.value.status, ended.value.problem["code"]) == (409, "run_ended")
        assert ended.value.problem["run_status"] == "completed"
        assert f"/v1/runs/{run['id']}/resume" in str(ended.value)
        with pytest.raises(ServiceError) as unknown:
            await tell(client, "run_00000000000000000000000000", "Nobody.")
        assert unknown.value.status == 404
        for body in ({}, {"content": ""}, {"content": 5}, {"content": "x" * 32_001}, {"content": "x", "to": "y"}):
            with pytest.raises(ServiceError) as bad:
                await client.request("POST", f"/v1/runs/{run['id']}/messages", body)
            assert (bad.value.status, bad.value.problem["errors"][0]["at"]) == (
                422,
                "to" if "to" in body else "content",
            )
        events = await events_of(client, f"/v1/sessions/{run['session_id']}/events")
        assert [e for e in events if e["type"] == "notice"] == []


@pytest.mark.spec("9.7")
async def test_an_inbox_that_nobody_reads_has_an_end(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        run = await client.request("POST", "/v1/runs", {**ONE_SHOT, "input": "wait"})
        await question(client, run["session_id"])
        await asyncio.gather(*(tell(client, run["id"], f"{number}") for number in range(MAX_UNREAD)))
        with pytest.raises(ServiceError) as full:
            await tell(client, run["id"], "one more")
        assert (full.value.status, full.value.problem["code"]) == (409, "inbox_full")
        await let_go(client, run["session_id"])
        ended = await finished(client, run["id"])
        said = ended["output"].removeprefix("wait | ").split("\n\n")
        assert sorted(map(int, said)) == list(range(MAX_UNREAD))


@pytest.mark.spec("9.7")
async def test_whatever_was_accepted_is_in_the_answer_however_close_it_comes_to_the_end(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        run = await client.request("POST", "/v1/runs", {**ONE_SHOT, "input": "wait", "max_steps": 100})
        await question(client, run["session_id"])
        accepted: list[str] = []

        async def talk(name: str) -> None:
            for number in range(20):
                try:
                    await tell(client, run["id"], f"<{name}{number}>")
                except ServiceError as ended:
                    assert ended.status == 409, ended
                    return
                accepted.append(f"<{name}{number}>")

        await asyncio.gather(let_go(client, run["session_id"]), *(talk(name) for name in "abc"))
        output = (await finished(client, run["id"]))["output"]
        assert accepted
        assert [text for text in accepted if text not in output] == []


@pytest.mark.spec("9.7", "12.6")
async def test_a_secret_in_a_message_reaches_no_row_and_no_event(tmp_path: Path) -> None:
    env = {**played(tmp_path), "MY_TOKEN": "hush-hush-hush-4711"}
    async with serving(tmp_path, env=env) as service, service.client() as client:
        run = await client.request("POST", "/v1/runs", {**ONE_SHOT, "input": "wait"})
        await question(client, run["session_id"])
        await tell(client, run["id"], "Use hush-hush-hush-4711.")
        await let_go(client, run["session_id"])
        await finished(client, run["id"])
    stored = b"".join(path.read_bytes() for path in service.folder.glob("service.db*"))
    assert b"hush-hush-hush-4711" not in stored + service.log.encode()
    assert b"Use " in stored


@pytest.mark.spec("9.7")
async def test_a_key_that_would_promise_more_than_is_kept_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        run = await client.request("POST", "/v1/runs", {**ONE_SHOT, "input": "wait"})
        headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
        url = f"{service.url}/v1/runs/{run['id']}/messages"
        async with aiohttp.ClientSession() as http, http.post(url, data='{"content": "x"}', headers=headers) as answer:
            assert (answer.status, (await answer.json())["code"]) == (422, "unsupported")
        await client.request("POST", f"/v1/runs/{run['id']}/cancel")
