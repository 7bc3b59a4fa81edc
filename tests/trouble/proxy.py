"""A TCP proxy in front of a socket that delays, narrows, holds, cuts and resets what passes, by command.

Knows nothing of what passes. New connections and those that are open obey the same state.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

CHUNK = 16_384


@dataclass(slots=True)
class State:
    """`delay_s` for each piece, `bytes_per_s` in each direction (0: as fast as it goes), `held`: nothing passes,
    `refusing`: new connections are closed at once."""

    delay_s: float = 0.0
    bytes_per_s: int = 0
    held: bool = False
    refusing: bool = False


class Proxy:
    """Listens on a port of 127.0.0.1 and hands on to a Unix socket."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.state = State()
        self.port = 0
        self._pairs: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._forgotten: set[asyncio.Task[None]] = set()
        self._free = asyncio.Event()
        self._free.set()

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._pairs)

    def set(self, state: State) -> None:
        """Behave like this from here on."""
        self.state = state
        if state.held:
            self._free.clear()
        else:
            self._free.set()

    def cut(self, *, reset: bool = False) -> None:
        """End every open connection; `reset`: without a word, as a router that has forgotten them does."""
        for task, writer in list(self._pairs.items()):
            if reset:
                end: socket.socket = writer.get_extra_info("socket")
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            task.cancel()

    def forget(self) -> None:
        """Nothing passes any more over the connections that are open, and nobody is told."""
        for task in self._pairs:
            self._forgotten.add(task)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self.state.refusing:
            writer.close()
            return
        self._pairs[task] = writer
        with contextlib.suppress(OSError, asyncio.CancelledError):
            there, back = await asyncio.open_unix_connection(self._target)
            try:
                ways = [
                    asyncio.create_task(self._pass(reader, back, task)),
                    asyncio.create_task(self._pass(there, writer, task)),
                ]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)
            finally:
                back.transport.abort()
        del self._pairs[task]
        self._forgotten.discard(task)
        writer.transport.abort()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: "asyncio.Task[None]"
    ) -> None:
        while data := await reader.read(CHUNK):
            await self._free.wait()
            if self.state.delay_s:
                await asyncio.sleep(self.state.delay_s)
            if self.state.bytes_per_s:
                await asyncio.sleep(len(data) / self.state.bytes_per_s)
            await self._free.wait()
            if pair in self._forgotten:
                continue
            writer.write(data)
            await writer.drain()


@contextlib.asynccontextmanager
async def proxied(target: Path) -> AsyncIterator[Proxy]:
    """A proxy in front of a Unix socket."""
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy._meet, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
        while proxy.connections:
            await asyncio.sleep(0.01)
