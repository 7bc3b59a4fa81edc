"""The examples of docs/streams.md, carried out."""

import asyncio
import contextlib
import json
import re
import shutil
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from tests.flows.surface_world import boss, surface_world
from tests.pages import FENCED
from tests.readers.between import NGINX, cutting, nginx
from tests.readers.followers import with_httpx_sse
from tests.readers.talking import order, talking
from tests.service import ROOT, WAIT_S, events_of, finished, serving
from tests.stubs.openai_stub import Answer, calls, chunk, sse, text

NODE = shutil.which("node")
BROWSER = Path(__file__).with_name("browser.mjs")
PAGE = (ROOT / "docs/streams.md").read_text()


def of(kind: str) -> list[str]:
    """The blocks of a language."""
    return [block for found, block in FENCED.findall(PAGE) if found == kind]


def function(block: str) -> Callable[..., Any]:
    """The function that a block defines."""
    names: dict[str, Any] = {}
    exec(block, names)
    follow: Callable[..., Any] = names["follow"]
    return follow


@contextlib.asynccontextmanager
async def browser(url: str, path: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """What the example for browsers shows, line by line, up to its end, which must be a good one."""
    process = await asyncio.create_subprocess_exec(
        str(NODE), str(BROWSER), url, path, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(WAIT_S):
            process.stdin.write("".join(of("js")).encode())
            process.stdin.close()
            yield (json.loads(line) async for line in process.stdout)
            assert await process.wait() == 0, (await process.stderr.read()).decode()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def up_to(lines: AsyncIterator[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
    """The next lines, up to one that has these fields."""
    found = []
    async for line in lines:
        found.append(line)
        if fields.items() <= line.items():
            return found
    raise AssertionError(f"no line with {fields}, but {found}")


def listened(events: list[dict[str, Any]]) -> list[int]:
    """The ids of the events that the example for browsers listens to."""
    (types,) = re.findall(r"const types = \[(.*?)\];", "".join(of("js")), re.DOTALL)
    return [event["id"] for event in events if f'"{event["type"]}"' in types]


@pytest.mark.spec("11.3")
async def test_the_examples_in_python_follow_a_run(tmp_path: Path) -> None:
    async with serving(tmp_path, env=talking(tmp_path, delay_ms=1)) as service, service.client() as client:
        started = await client.request("POST", "/v1/runs", order("the page"))
        with_loop, without = map(function, of("python"))
        shown: list[str | None] = []
        answer = await with_loop(service.url, started["id"], shown.append)
        run = await finished(client, started["id"])
        assert (run["status"], answer) == ("completed", run["output"])
        assert answer.startswith("Together, "), "it has called tools before that"
        said = await client.page(f"/v1/sessions/{started['session_id']}/messages", role="assistant", limit=100)
        assert all(any(m["content"].startswith(part or "") for m in said["items"]) for part in shown)
        types = await asyncio.to_thread(without, service.url, started["id"])
        assert types == ["run.started"] * 3 + ["run.completed"] * 3


@pytest.mark.spec("11.3")
@pytest.mark.skipif(NODE is None, reason="node is not installed")
async def test_the_example_for_browsers_follows_a_session_over_all_its_turns(tmp_path: Path) -> None:
    async with serving(tmp_path, env=talking(tmp_path, delay_ms=1)) as service, service.client() as client:
        started = await client.request("POST", "/v1/runs", order("first"))
        path = f"/v1/sessions/{started['session_id']}"
        await finished(client, started["id"])
        for subject in ("second", "third"):
            run = await client.request("POST", f"{path}/runs", {"input": subject})
            await finished(client, run["id"])
        await client.request("PATCH", path, {"title": "Three turns"})
        async with browser(service.url, f"{path}/events") as lines:
            shown = [line async for line in lines]
        assert shown.pop() == {"status": 204}
        events = await events_of(client, f"{path}/events")
        assert [line["id"] for line in shown] == listened(events)
        assert [event["type"] for event in events].count("session.idle") == 3
        assert events[-1]["type"] == "session.updated"
        await client.request("DELETE", path)
        async with browser(service.url, f"{path}/events") as lines:
            assert [line async for line in lines][1:] == [{"status": 404}]


@pytest.mark.spec("11.1", "11.3", "12.7")
@pytest.mark.skipif(NODE is None, reason="node is not installed")
async def test_the_example_for_browsers_comes_again_when_the_service_dies_and_when_an_answer_is_cut(
    tmp_path: Path,
) -> None:
    all_of_it = [*(sse(chunk({"content": part}), done=False) for part in ("All", " 🎈")), text(" of it.").writes]
    gates = [asyncio.Event(), asyncio.Event()]
    async with surface_world(tmp_path) as world:
        world.stub.script(
            calls(("glob", '{"pattern": "*"}')),
            Answer(writes=sse(chunk({"content": "Half of it"}), done=False), end="hang"),
            Answer(writes=(*all_of_it[0], gates[0], *all_of_it[1], gates[1], *all_of_it[2])),
        )
        body = {"agent": "boss", "agents": [boss(tools=["glob"])], "input": "Go."}
        started = await world.client.request("POST", "/v1/runs", body)
        path, port = f"/v1/sessions/{started['session_id']}/events", int(world.service.url.rpartition(":")[2])
        first = await anext(frame async for frame in world.client.events(path) if frame.type == "text.delta")
        assert first.data["text"] == "Half of it"
        bounds = {"least": 1 << 30, "most": 1 << 30}  # it is cut when the test says so
        async with cutting(port, Random(), **bounds) as line, browser(line.url, path) as lines:
            shown = await up_to(lines, type="text.snapshot", text="Half of it")
            await world.service.kill()
            shown += await up_to(lines, ticket=None)
            world.service.args = ("--port", str(port))
            await world.service.start()
            shown += await up_to(lines, type="step.retried", text=None)
            shown += await up_to(lines, text="All")
            await line.close()
            shown += await up_to(lines, type="text.snapshot", text="All")
            gates[0].set()
            shown += await up_to(lines, text="All 🎈")
            gates[1].set()
            shown += await up_to(lines, text="All 🎈 of it.")
            shown += [each async for each in lines]
        events = await events_of(world.client, path)
    assert shown.pop() == {"status": 204}
    assert [each["id"] for each in shown if each.get("id")] == listened(events)
    assert (events[-2]["type"], events[-2]["data"]["output"]) == ("run.completed", "All 🎈 of it.")


@pytest.mark.spec("17.3", "11.3")
@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
async def test_behind_nginx_as_the_page_has_it_tickets_are_given_to_its_own_pages_and_streams_come_through(
    tmp_path: Path,
) -> None:
    (tmp_path / "nginx").mkdir()
    async with serving(tmp_path, env=talking(tmp_path, delay_ms=1)) as service:
        (block,) = of("nginx")
        location = re.sub(r"http://[\d.:]+", service.url, block)
        async with (
            nginx(tmp_path / "nginx", service.url, location) as port,
            service.client() as client,
            aiohttp.ClientSession(headers={"Origin": f"http://127.0.0.1:{port}"}) as http,
        ):
            started = await client.request("POST", "/v1/runs", order("nginx"))
            path, url = f"/v1/sessions/{started['session_id']}/events", f"http://127.0.0.1:{port}"
            async with http.post(f"{url}/v1/tickets", json={"path": path}) as answer:
                assert answer.status == 201, await answer.text()
                ticket = await answer.json()
            async with http.get(f"{url}{ticket['url']}&until=idle") as stream:
                shown = await stream.text()
            assert shown.count("event: run.completed") == 3
            async with http.get(f"{url}{ticket['url']}") as used:
                assert used.status == 401
            again = [shown.type async for shown in with_httpx_sse(url, path)]
            assert again[-1] == "session.idle"
