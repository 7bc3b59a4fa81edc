"""A server of a test that leaves nothing behind: what it still answers when the test is over is broken off.

async with listening(serve) as port: ...
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
WAIT_S = 20.0


@contextlib.asynccontextmanager
async def listening(serve: Serve, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    """The port. `Server.wait_closed` waits for no connection before Python 3.12, and a task that is left when its event
    loop is closed makes another test fail."""
    under_way: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        under_way[task] = writer
        try:
            await serve(reader, writer)
        finally:
            del under_way[task]

    server = await asyncio.start_server(tracked, host, port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        left = dict(under_way)
        for task, writer in left.items():
            writer.transport.abort()
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=WAIT_S)
        await asyncio.sleep(0)  # in which the event loop closes the sockets
