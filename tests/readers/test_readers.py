"""Clients that others wrote, on lines that are cut at random, behind nginx where there is one: nobody sees an event
twice, misses one, or sees another than the one that is stored. `make readers` does it with browsers and at length."""

import asyncio
import contextlib
from pathlib import Path
from random import Random

import aiohttp
import pytest

from tests.longer import times
from tests.readers.between import NGINX, cutting, free_port, nginx
from tests.readers.followers import CURL, Follow, Shown, with_curl, with_httpx_sse, with_own_client
from tests.readers.judging import Verdict, stored
from tests.readers.talking import order, talking
from tests.service import Service, serving

VIEW_S = 60.0
FOLLOWERS = {"curl": with_curl, "httpx-sse": with_httpx_sse, "own client": with_own_client}


async def seen(follow: Follow, url: str, path: str) -> list[Shown]:
    """All that a client shows of a view."""
    async with asyncio.timeout(VIEW_S):
        return [shown async for shown in follow(url, path)]


async def killed_once(service: Service, dice: Random) -> None:
    """A service that dies in mid-run, and the next one."""
    await asyncio.sleep(dice.uniform(0.2, 0.5))  # no wait for anything: the moment is what is random
    await service.kill()
    await service.start()


@pytest.mark.spec("11.1", "11.2", "11.3")
@pytest.mark.case("B161")
async def test_clients_that_are_cut_again_and_again_see_every_event_once_and_whole_texts(tmp_path: Path) -> None:
    if CURL is None:
        pytest.skip("curl is not installed")
    dice = Random()
    (tmp_path / "nginx").mkdir()
    async with contextlib.AsyncExitStack() as stack:
        env = talking(tmp_path, delay_ms=8)
        service = await stack.enter_async_context(serving(tmp_path, "--port", str(free_port()), env=env))
        port = int(service.url.rpartition(":")[2])
        if NGINX is not None:
            port = await stack.enter_async_context(nginx(tmp_path / "nginx", service.url))
        lines = {name: await stack.enter_async_context(cutting(port, dice, most=12_000)) for name in FOLLOWERS}
        http = await stack.enter_async_context(aiohttp.ClientSession())
        verdicts = {name: Verdict() for name in FOLLOWERS}
        for number in range(times(1, 10)):
            async with service.client() as client:
                started = await client.request("POST", "/v1/runs", order(f"number {number}"))
            path = f"/v1/sessions/{started['session_id']}/events"
            *shown, _ = await asyncio.gather(
                *(seen(follow, lines[name].url, path) for name, follow in FOLLOWERS.items()),
                killed_once(service, dice),
            )
            log = await stored(http, f"{service.url}{path}")
            for name, frames in zip(FOLLOWERS, shown, strict=True):
                verdicts[name].look(frames, log)
        for name, verdict in verdicts.items():
            assert verdict.right, (name, verdict)
            assert lines[name].cuts, name
