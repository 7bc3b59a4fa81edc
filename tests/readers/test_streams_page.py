"""The examples of docs/streams.md, carried out."""

import asyncio
import json
import re
import shutil
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.pages import FENCED
from tests.readers.between import NGINX, nginx
from tests.readers.followers import with_httpx_sse
from tests.readers.talking import order, talking
from tests.service import ROOT, WAIT_S, events_of, finished, serving

NODE = shutil.which("node")
BROWSER = Path(__file__).with_name("browser.mjs")
PAGE = (ROOT / "docs/streams.md").read_text()


def of(kind: str) -> list[str]:
    """The blocks of a language."""
    return [text for found, text in FENCED.findall(PAGE) if found == kind]


def function(block: str) -> Callable[..., Any]:
    """The function that a block defines."""
    names: dict[str, Any] = {}
    exec(block, names)
    follow: Callable[..., Any] = names["follow"]
    return follow


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
        for text in ("second", "third"):
            run = await client.request("POST", f"{path}/runs", {"input": text})
            await finished(client, run["id"])
        await client.request("PATCH", path, {"title": "Three turns"})
        (example,) = of("js")
        listened = re.findall(r'"([\w.]+)"', re.search(r"const types = (.*);", example)[1])  # type: ignore[index]
        browser = await asyncio.create_subprocess_exec(
            str(NODE), str(BROWSER), service.url, f"{path}/events", stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        async with asyncio.timeout(WAIT_S):
            out, err = await browser.communicate(example.encode())
        assert browser.returncode == 0, err.decode()
        shown = [event["id"] for event in map(json.loads, out.splitlines()) if "id" in event]
        events = await events_of(client, f"{path}/events")
        assert shown == [event["id"] for event in events if event["type"] in listened]
        assert [event["type"] for event in events].count("session.idle") == 3
        assert events[-1]["type"] == "session.updated"


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
