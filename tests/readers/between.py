"""What stands between a reader and the service: a proxy as it comes, and a line that is cut at random."""

import asyncio
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
# Nothing in it knows of event streams: answers are buffered, HTTP/1.0 goes to the service, as by default.
CONFIG = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    {location}
  }}
}}
"""
WAIT_S = 10.0


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def nginx(folder: Path, upstream: str, location: str | None = None) -> AsyncIterator[int]:
    """An nginx with a plain `proxy_pass` to the service, or with this location; its port."""
    assert NGINX is not None
    port = free_port()
    config = folder / "nginx.conf"
    location = location or f"location / {{ proxy_pass {upstream}; }}"
    config.write_text(CONFIG.format(folder=folder, port=port, location=location))
    process = await asyncio.create_subprocess_exec(
        NGINX, "-p", str(folder), "-e", str(folder / "nginx.log"), "-c", str(config), stdin=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(WAIT_S):
            while not await _listens(port):
                assert process.returncode is None, (folder / "nginx.log").read_text()
                await asyncio.sleep(0.01)
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


class Cutter:
    """Passes connections on to a port, and cuts each after a random number of bytes: with a reset, or as if it had
    ended. `cuts`: how often. `least`, `most`: bytes of an answer that pass."""

    def __init__(self, port: int, dice: Random, *, least: int = 1, most: int = 9000) -> None:
        self.url = ""
        self.cuts = 0
        self._port = port
        self._dice = dice
        self._least, self._most = least, most
        self._open: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            up = asyncio.create_task(_pass_on(reader, back))
            try:
                await self._down(there, writer)
            finally:
                up.cancel()
                back.close()
        writer.close()

    async def _down(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self._dice.randint(self._least, self._most)
        while piece := await there.read(1 << 14):
            writer.write(piece[:left])
            left -= len(piece)
            if left <= 0:
                self.cuts += 1
                await asyncio.sleep(0)  # the transport writes first what it has
                if self._dice.random() < 0.5:
                    writer.transport.abort()
                return
            await writer.drain()

    async def close(self) -> None:
        """End what is open."""
        for task in list(self._open):
            task.cancel()
        if self._open:
            await asyncio.wait(self._open, timeout=WAIT_S)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(1 << 14):
            writer.write(piece)
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def cutting(port: int, dice: Random, **bounds: int) -> AsyncIterator[Cutter]:
    """A line to this port that is cut again and again."""
    cutter = Cutter(port, dice, **bounds)
    server = await asyncio.start_server(cutter.serve, "127.0.0.1", 0)
    cutter.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield cutter
    finally:
        server.close()
        await cutter.close()
