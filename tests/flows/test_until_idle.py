"""Views of a session until it is idle: the end is where nothing comes any more, for streams, pages and the client."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.client import Client
from tests.net.listening import listening
from tests.service import INTERRUPT, WAIT_S, Service, agent, events_of, finished, received, script, serving

PLAY = """
agents:
  - when: {task_contains: "long"}
    turns: [{text: "abcdefgh", chunks: 8, delay_ms: 60000}]
  - when: {task_contains: "background"}
    turns:
      - calls: [{tool: execute_task, arguments: {name: kid, description: "d", prompt: "long", run_in_background: true}}]
      - {text: "started"}
  - turns: [{text: "Hello.", repeat: true}]
"""
SESSION: dict[str, Any] = {
    "agent": "boss",
    "agents": [agent("boss", mode="primary", tools=["execute_task"]), agent("kid", tools=[])],
    "surfaces": ["task"],
}


async def idle(client: Client, path: str, count: int) -> list[int]:
    """Wait until a session has been idle so often; the numbers of its events."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await events_of(client, path)
            if sum(event["type"] == "session.idle" for event in found) == count:
                return [event["id"] for event in found]
            await asyncio.sleep(0.01)


async def turns(client: Client, count: int) -> str:
    """A session that has had so many turns; the path of its events."""
    session = await client.request("POST", "/v1/sessions", SESSION)
    path = f"/v1/sessions/{session['id']}"
    for number in range(count):
        run = await client.request("POST", f"{path}/runs", {"input": "hello"})
        await finished(client, run["id"])
        await idle(client, f"{path}/events", number + 1)
    return f"{path}/events"


async def pages(client: Client, path: str, after: int, limit: int, **filters: Any) -> list[int]:
    """The numbers of all events of a view, in pages."""
    ids: list[int] = []
    following: str | None = str(after)
    async with asyncio.timeout(WAIT_S):
        while following is not None:
            page = await client.page(path, until="idle", after=following, limit=limit, **filters)
            ids += [item["id"] for item in page["items"]]
            following = page["next"]
    return ids


@contextlib.asynccontextmanager
async def cut_behind(url: str, event: int) -> AsyncIterator[str]:
    """The address of a line to the service on which the first connection ends, cleanly, behind this event."""
    host, _, port = url.removeprefix("http://").partition(":")
    whole = True

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal whole
        head = await reader.readuntil(b"\r\n\r\n")
        there, back = await asyncio.open_connection(host, int(port))
        back.write(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        got = b""
        try:
            while piece := await there.read(1 << 16):
                got += piece
                mark = got.find(b"id: %d\n" % event) if whole else -1
                if mark >= 0 and (end := got.find(b"\n\n", mark)) >= 0:
                    whole = False
                    head, _, body = got[: end + 2].partition(b"\r\n\r\n")
                    # what came up to there, as a body that ends as it should
                    kept = [line for line in head.split(b"\r\n") if b"ransfer-encoding" not in line]
                    text = b"".join(body.split(b"\r\n")[1::2])
                    writer.write(b"\r\n".join((*kept, b"connection: close", b"", text)))
                    return
                if not whole:
                    writer.write(got)
                    got = b""
            writer.write(got)
        finally:
            back.close()
            writer.close()

    async with listening(carry) as own:
        yield f"http://127.0.0.1:{own}"


@pytest.mark.spec("11.3", "9.3", "12.7")
async def test_a_stream_until_idle_ends_after_a_kill_though_a_task_was_still_under_way(tmp_path: Path) -> None:
    service = await Service(tmp_path, env={**script(tmp_path, PLAY), **INTERRUPT}).start()
    async with service.client() as client:
        run = await client.request("POST", "/v1/runs", {**SESSION, "input": "background"})
        path = f"/v1/sessions/{run['session_id']}/events"
        assert (await finished(client, run["id"]))["output"] == "started"
    await service.kill()
    await service.start()
    try:
        async with service.client() as client:
            ids = await idle(client, path, 1)
            assert [f.id for f in await received(client, path, until="idle") if f.id] == ids
            kinds = [event["type"] for event in await events_of(client, path)]
            assert kinds[-2:] == ["notice", "session.idle"], kinds
            assert await pages(client, path, 0, 3) == ids
    finally:
        assert await service.stop() == 0, service.log


@pytest.mark.spec("11.3")
async def test_stream_and_pages_until_idle_show_the_same_from_every_cursor_also_what_comes_behind_the_idle(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        path = await turns(client, 2)
        for title in (None, "One", "Another"):
            if title is not None:
                await client.request("PATCH", path.removesuffix("/events"), {"title": title})
            ids = await idle(client, path, 2)
            for after in range(len(ids) + 1):
                behind = ids[after:]
                assert [f.id for f in await received(client, path, after, until="idle") if f.id] == behind, after
                for limit in (1, 2, 3, 100):
                    assert await pages(client, path, after, limit) == behind, (after, limit)


@pytest.mark.spec("11.3")
@pytest.mark.parametrize("filters", [{"types": "message,session.updated"}, {"depth": 0, "types": "message"}])
async def test_what_filters_leave_of_a_view_until_idle_is_the_same_as_stream_and_as_pages_from_every_cursor(
    tmp_path: Path, filters: dict[str, Any]
) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as client:
        path = await turns(client, 2)
        await client.request("PATCH", path.removesuffix("/events"), {"title": "One"})
        events = await events_of(client, path)
        seen = [event["id"] for event in events if event["type"] in filters["types"].split(",")]
        for after in range(len(events) + 1):
            behind = [number for number in seen if number > after]
            stream = await received(client, path, after, until="idle", **filters)
            assert [f.id for f in stream if f.type and f.id] == behind, after
            for limit in (1, 2, 100):
                assert await pages(client, path, after, limit, **filters) == behind, (after, limit)


@pytest.mark.spec("11.3", "16.3")
async def test_a_line_that_ends_behind_any_event_is_not_the_end_of_a_session_for_the_client(tmp_path: Path) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service, service.client() as direct:
        path = await turns(direct, 3)
        ids = await idle(direct, path, 3)
        for event in ids:
            async with cut_behind(service.url, event) as url, Client(url, service.key, reconnect_s=0.01) as client:
                found = [f.id for f in await received(client, path, until="idle") if f.id]
                assert (found, client.gaps) == (ids, 0), event
