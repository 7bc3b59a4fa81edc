"""A real server whose store takes nothing for a while: what clients are told meanwhile, and that nothing is lost."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.service import WAIT_S
from tests.trouble import kinds
from tests.trouble.load import Load
from tests.trouble.world import Plan, Server, missing

# Above what the log of the service has, below what SQLite's log has after some runs: nothing more goes into that.
LIMIT = 64 << 10


@contextlib.asynccontextmanager
async def no_disk(server: Server) -> AsyncIterator[None]:
    """The system takes no more of what the server writes, as if the disk were full."""
    assert server.process is not None
    log = Path(f"{server.database}-wal")
    async with asyncio.timeout(WAIT_S):
        while log.stat().st_size < LIMIT:
            await asyncio.sleep(0.01)
    without = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (LIMIT, without[1]))
    try:
        yield
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, without)


def locked(server: Server) -> contextlib.AbstractAsyncContextManager[None]:
    """Another process has the write lock."""
    return kinds.locked(server.database)


@contextlib.asynccontextmanager
async def loaded(folder: Path, **plan: Any) -> AsyncIterator[tuple[Server, Load]]:
    """A server with four clients that start one run after the other; all of them end well afterwards."""
    env = {"SUBAGENTD_STORE__BUSY_TIMEOUT_MS": "0"}
    server = await Server(folder, Plan(steps=4, delay_ms=2, cold=False, env=env, **plan)).start()
    try:
        async with Load(server.url, 4) as load:
            load.begin()
            async with asyncio.timeout(WAIT_S):
                while sum(seen.ended for seen in load.seen) < 4:
                    await asyncio.sleep(0.01)
            yield server, load
            await load.finish(WAIT_S)
            received = await load.check()
            assert (load.wrong, received > 0) == ([], True)
    finally:
        code = await server.stop()
    assert (code, "Traceback" in server.log) == (0, False), server.log


async def until_ready(load: Load, *, is_ready: bool) -> str:
    """Wait for readiness to be like that; the reasons that it gives then."""
    async with asyncio.timeout(WAIT_S):
        while True:
            async with load.http.get(f"{load.url}/readyz") as answer:
                told = await answer.json()
                if told["ready"] is is_ready:
                    assert answer.status == (200 if is_ready else 503)
                    return " ".join(told["checks"].values())
            await asyncio.sleep(0.01)


@pytest.mark.spec("12.3", "11.2", "14.17")
@pytest.mark.case("B171")
@pytest.mark.parametrize(("trouble", "reason"), [(locked, "is locked"), (no_disk, "disk I/O error")])
async def test_a_store_that_takes_nothing_is_told_refuses_new_work_and_loses_nothing(
    tmp_path: Path, trouble: Callable[[Server], contextlib.AbstractAsyncContextManager[None]], reason: str
) -> None:
    async with loaded(tmp_path) as (server, load):
        async with trouble(server):
            assert reason in await until_ready(load, is_ready=False)
            for method, path, body in (
                ("POST", "/v1/runs", {"input": "x"}),
                ("POST", "/v1/sessions", {}),
                ("POST", "/v1/keys", {"scopes": ["read"]}),
                ("PUT", "/v1/agents/other", {"description": "Another.", "prompt": "You are."}),
                ("POST", f"/v1/sessions/{load.seen[0].session_id}/runs", {"input": "x"}),
            ):
                async with load.http.request(method, load.url + path, json=body) as answer:
                    told = await answer.json()
                    assert (answer.status, told["code"]) == (503, "store_unavailable"), (path, told)
                    assert int(answer.headers["Retry-After"]) >= 1
            for path in (f"/v1/sessions/{load.seen[0].session_id}/messages", f"/v1/runs/{load.seen[0].run_id}"):
                async with load.http.get(load.url + path) as answer:
                    assert answer.status == 200, await answer.text()
            shown = [(seen.session_id, number) for seen in load.seen for number in seen.events]
            assert missing(server.database, shown) == [], "events were shown that are not stored"
        received = len(load.moments)
        await until_ready(load, is_ready=True)
        async with asyncio.timeout(WAIT_S):
            while len(load.moments) == received:
                await asyncio.sleep(0.01)
        assert "the store is back" in server.log


@pytest.mark.spec("12.3", "11.2")
async def test_commits_that_take_long_delay_events_and_lose_none(tmp_path: Path) -> None:
    async with loaded(tmp_path) as (server, load):
        ended = sum(seen.ended for seen in load.seen)
        with kinds.slow(server.folder, 60):
            async with asyncio.timeout(WAIT_S):
                while sum(seen.ended for seen in load.seen) < ended + 4:
                    await asyncio.sleep(0.01)
