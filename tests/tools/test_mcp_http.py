"""MCP servers over HTTP: one failing call is one failing call, and a server that went away is found again."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from app.agent.errors import ToolError
from app.agent.tools import ToolContext, ToolShelf
from app.masking import ValueMasker
from app.tools.mcp_config import McpServer
from app.tools.mcp_pins import Forgetful
from app.tools.mcp_servers import McpServers, State
from tests.net.loopback import unused_port
from tests.service import ROOT
from tests.tools.mcp_world import PROGRAM, WAIT_S, Standing


class Program:
    """Our server as a program with a port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = unused_port()
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and wait until it listens."""
        env = {**os.environ, "MCP_TEST": str(self.folder), "PYTHONPATH": str(ROOT)}
        self.process = await asyncio.create_subprocess_exec(sys.executable, PROGRAM, str(self.port), env=env)
        async with asyncio.timeout(WAIT_S):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.close()
                    return
                await asyncio.sleep(0.02)

    async def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


class Proxy:
    """Stands before the server: what holds `broken` gets 500, what holds `cut` no answer at all."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.own = unused_port()
        self.headers: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Pass on, or not."""
        body = await request.read()
        self.headers.append(request.headers.get("Authorization", ""))
        if b"broken" in body:
            return web.Response(status=500, text="no")
        if b"cut" in body and request.transport is not None:
            request.transport.abort()
        with contextlib.suppress(aiohttp.ClientConnectorError):
            return await self._passed_on(request, body)
        return web.Response(status=502)

    async def _passed_on(self, request: web.Request, body: bytes) -> web.StreamResponse:
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method, f"http://127.0.0.1:{self.port}{request.path}", data=body,
                headers={k: v for k, v in request.headers.items() if k.lower() not in ("host", "content-length")},
            ) as given,
        ):  # fmt: skip
            told = web.StreamResponse(
                status=given.status, headers={"Content-Type": given.headers.get("Content-Type", "")}
            )
            with contextlib.suppress(aiohttp.ClientError):  # one of both sides has gone
                await told.prepare(request)
                async for piece in given.content.iter_any():
                    await told.write(piece)
            return told


@contextlib.asynccontextmanager
async def over_http(folder: Path) -> AsyncIterator[tuple[Standing, Program, Proxy]]:
    """Our server behind the proxy."""
    program = Program(folder)
    await program.start()
    proxy = Proxy(program.port)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", proxy.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", proxy.own).start()
    shelf = ToolShelf()
    servers = McpServers(shelf, Forgetful(), masker=ValueMasker(), first_pause_s=0.02)
    url = f"http://127.0.0.1:{proxy.own}/mcp"
    owner = servers.add(McpServer(name="ours", url=url, headers={"Authorization": "Bearer a secret"}))
    try:
        await owner.settled()
        assert owner.state is State.UP, owner.why
        yield Standing(folder, shelf, servers, owner), program, proxy
    finally:
        async with asyncio.timeout(WAIT_S):
            await servers.close()
        await runner.cleanup()
        await program.kill()


@pytest.mark.case("B202")
@pytest.mark.spec("7.7")
@pytest.mark.parametrize("how", ["broken", "cut"])
async def test_a_call_that_gets_no_good_answer_fails_alone(tmp_path: Path, context: ToolContext, how: str) -> None:
    async with over_http(tmp_path) as (ours, _, proxy):
        slow = asyncio.create_task(ours.call("slow", context))
        await ours.until(lambda: "slow " in ours.calls())
        with pytest.raises(ToolError, match="The MCP server ours gave no result: Server returned an error response"):
            await ours.call("echo", context, text=how)
        said = await asyncio.gather(*(ours.call("echo", context, text=str(n)) for n in range(20)))
        assert [one.content for one in said] == [str(n) for n in range(20)]
        assert not slow.done()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        await ours.until(lambda: "slow ended" in ours.calls())
        assert ours.owner.state is State.UP
        assert set(proxy.headers) == {"Bearer a secret"}


@pytest.mark.spec("7.7")
async def test_a_server_that_went_away_and_came_back_is_used_again(tmp_path: Path, context: ToolContext) -> None:
    async with over_http(tmp_path) as (ours, program, _):
        await ours.call("count", context)
        assert ours.shown[-1] == "3/3 step 3\n"
        assert (await ours.call("parts", context, text="2000")).content.endswith(
            "[… 1,000 more parts of this answer left out …]"
        )
        await program.kill()
        with pytest.raises(ToolError, match="The MCP server ours"):
            await ours.call("echo", context, text="gone")
        await ours.until(lambda: ours.owner.state is State.DOWN)
        with pytest.raises(ToolError, match="Not called: the MCP server ours is down"):
            await ours.call("echo", context, text="gone")
        await program.start()
        await ours.until(lambda: ours.owner.state is State.UP)
        assert (await ours.call("echo", context, text="back")).content == "back"
