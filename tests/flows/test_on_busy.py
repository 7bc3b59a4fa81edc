"""What becomes of a turn that is asked for while the session has one under way: refused, queued, or in its place."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app.client import Client, ServiceError
from tests.flows.paused import let_go, played, question, session_of, statuses
from tests.service import WAIT_S, events_of, finished, serving


async def turn(client: Client, session_id: str, text: str, on_busy: str | None = None) -> dict[str, Any]:
    """Ask for a turn."""
    body = {"input": text} if on_busy is None else {"input": text, "on_busy": on_busy}
    started: dict[str, Any] = await client.request("POST", f"/v1/sessions/{session_id}/runs", body)
    return started


async def test_without_a_choice_a_busy_session_refuses_and_names_the_choices(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        session = await session_of(client)
        first = await turn(client, session, "wait")
        await question(client, session)
        for choice in (None, "reject"):
            with pytest.raises(ServiceError) as busy:
                await turn(client, session, "x", choice)
            assert (busy.value.status, busy.value.problem["code"]) == (409, "session_busy")
            assert "on_busy: enqueue or interrupt" in str(busy.value)
        with pytest.raises(ServiceError) as odd:
            await turn(client, session, "x", "wait")
        assert (odd.value.status, odd.value.problem["errors"][0]["at"]) == (422, "on_busy")
        await let_go(client, session)
        assert await statuses(client, first["id"]) == ["completed"]
        assert len((await client.page(f"/v1/sessions/{session}/runs"))["items"]) == 1


@pytest.mark.spec("14.3")
async def test_queued_turns_answer_at_once_and_run_one_after_the_other_over_the_same_memory(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        session = await session_of(client)
        runs = [await turn(client, session, "wait", "enqueue")]  # nobody is busy: it starts at once
        await question(client, session)
        runs += [await turn(client, session, text, "enqueue") for text in ("two", "three", "four")]
        assert [run["turn"] for run in runs] == [0, 1, 2, 3]
        waiting = [await client.request("GET", f"/v1/runs/{run['id']}") for run in runs[1:]]
        assert [(run["status"], run["started_at"]) for run in waiting] == [("queued", None)] * 3
        await let_go(client, session)
        ended = [await finished(client, run["id"]) for run in runs]
        assert [run["output"] for run in ended] == ["wait", "wait | two", "wait | two | three",
                                                    "wait | two | three | four"]  # fmt: skip
        events = await events_of(client, f"/v1/sessions/{session}/events")
        order = [(e["run_id"], e["type"]) for e in events if e["type"] in ("run.started", "run.completed")]
        assert order == [(run["id"], kind) for run in runs for kind in ("run.started", "run.completed")]
        assert [e["type"] for e in events].count("session.idle") == 1


@pytest.mark.spec("14.3")
async def test_a_queued_turn_outlives_the_cancel_of_the_one_ahead_and_may_itself_be_cancelled(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        session = await session_of(client)
        first = await turn(client, session, "wait")
        await question(client, session)
        second, third, fourth = [await turn(client, session, text, "enqueue") for text in ("two", "three", "four")]
        stopped = await client.request("POST", f"/v1/runs/{third['id']}/cancel")
        assert stopped["cancelled"] == [third["id"]]
        await client.request("POST", f"/v1/runs/{first['id']}/cancel")
        ids = [run["id"] for run in (first, second, third, fourth)]
        assert await statuses(client, *ids) == ["cancelled", "completed", "cancelled", "completed"]
        last = await finished(client, fourth["id"])
        assert last["output"].endswith("two | four")
        assert "three" not in last["output"]


@pytest.mark.spec("14.3")
async def test_an_interrupting_turn_ends_the_one_under_way_and_all_that_wait_and_then_starts(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        session = await session_of(client)
        first = await turn(client, session, "wait")
        await question(client, session)
        second = await turn(client, session, "two", "enqueue")
        instead = await turn(client, session, "instead", "interrupt")
        assert (await finished(client, instead["id"]))["status"] == "completed"
        assert await statuses(client, first["id"], second["id"]) == ["cancelled", "cancelled"]
        events = await events_of(client, f"/v1/sessions/{session}/events")
        order = [e["run_id"] for e in events if e["type"] in ("run.cancelled", "run.completed")]
        assert set(order[:2]) == {first["id"], second["id"]}
        assert order[2:] == [instead["id"]]
        nobody_there = await turn(client, session, "again", "interrupt")
        assert (await finished(client, nobody_there["id"]))["status"] == "completed"


@pytest.mark.spec("14.3")
async def test_of_turns_that_interrupt_each_other_at_once_exactly_one_is_left(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        session = await session_of(client)
        first = await turn(client, session, "wait")
        await question(client, session)
        many = await asyncio.gather(*(turn(client, session, f"wait {number}", "interrupt") for number in range(8)))
        last = max(many, key=lambda run: run["turn"])
        others = [first, *(run for run in many if run is not last)]
        assert set(await statuses(client, *(run["id"] for run in others))) == {"cancelled"}
        assert (await client.request("GET", f"/v1/runs/{last['id']}"))["ended_at"] is None
        await client.request("POST", f"/v1/sessions/{session}/cancel")


@pytest.mark.spec("11.4", "14.3")
async def test_a_queued_turn_can_be_watched_from_its_place_in_the_queue(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        session = await session_of(client)
        first = await turn(client, session, "wait")
        await question(client, session)
        body = {"input": "two", "on_busy": "enqueue"}
        async with (
            aiohttp.ClientSession(headers={"Accept": "text/event-stream"}) as http,
            http.post(f"{service.url}/v1/sessions/{session}/runs", json=body) as answer,
            asyncio.timeout(WAIT_S),
        ):
            assert answer.status == 200
            seen = await answer.content.readuntil(b"event: run.queued")
            assert b"run.started" not in seen
            await let_go(client, session)
            seen = await answer.content.read()
        kinds = [line[7:] for line in seen.decode().split("\n") if line.startswith("event: ")]
        assert (kinds[0], kinds[-1]) == ("run.started", "run.completed")
        assert await statuses(client, first["id"]) == ["completed"]


@pytest.mark.spec("14.2", "14.3")
async def test_closing_a_session_ends_the_turns_that_wait_in_it(tmp_path: Path) -> None:
    async with serving(tmp_path, env=played(tmp_path)) as service, service.client() as client:
        session = await session_of(client)
        first = await turn(client, session, "wait")
        await question(client, session)
        second = await turn(client, session, "two", "enqueue")
        await client.request("PATCH", f"/v1/sessions/{session}", {"closed": True})
        assert await statuses(client, first["id"], second["id"]) == ["cancelled", "cancelled"]
        with pytest.raises(ServiceError) as closed:
            await turn(client, session, "three", "enqueue")
        assert (closed.value.status, closed.value.problem["code"]) == (409, "session_closed")
