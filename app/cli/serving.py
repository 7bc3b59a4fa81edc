"""`subagentd serve`: builds the service, runs it under uvicorn, and ends it in order on SIGTERM.

The signal is taken here, since uvicorn tells the application only after every connection is gone (and raises the
signal again at the end).
"""

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from functools import partial

import click
import uvicorn

from app.agent.errors import SubagentdError
from app.agent.interruption import left_behind
from app.cli import DONE, FAILED, USAGE
from app.cli.connection import Bounds, Connection
from app.cli.heap import bound_heap
from app.main import create_app
from app.settings import Settings, unknown_variables
from app.telemetry.logs import setup, take_strays
from app.wiring import Refused, Wired, build

log = logging.getLogger(__name__)

BACKLOG = 2048
SEND_BUFFER = 256 << 10  # bytes in the kernel for each connection, which else grow to megabytes for one that stalls
GC_THRESHOLD = 20_000  # objects, against Python's 700
SWITCH_S = 0.0005  # the event loop asks for the interpreter after every system call; the writer must give it soon
DRAIN_S = 15.0  # beyond the grace: interrupting runs and storing what they said
BACKSTOP_S = 5.0  # beyond the grace, before connections are cut


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `_Stop`."""
        yield


def run(settings: Settings, *, as_json: bool) -> int:
    """Serve until a signal; returns the exit code."""
    bound_heap()
    setup(json_lines=as_json)
    take_strays()
    for name in unknown_variables():
        log.warning("the variable %s is no setting and has no effect: `subagentd settings` lists all", name)
    try:
        import uvloop  # noqa: PLC0415  not on every platform
    except ImportError:
        return asyncio.run(_serve(settings, as_json=as_json))
    return uvloop.run(_serve(settings, as_json=as_json))


async def _serve(settings: Settings, *, as_json: bool) -> int:
    try:
        listener = _listen(settings.http.host, settings.http.port)
    except OSError as error:
        click.echo(f"cannot listen on {settings.http.host}:{settings.http.port}: {error}", err=True)
        return USAGE
    try:
        wired = await build(settings)
    except Refused as error:
        listener.close()
        click.echo(str(error), err=True)
        return USAGE
    bounds = Bounds(head_s=settings.http.head_timeout_s, body_s=settings.http.body_timeout_s)
    config = uvicorn.Config(
        create_app(wired.services, settings),
        lifespan="off",
        access_log=False,
        log_config=None,
        http=partial(Connection, bounds=bounds),  # type: ignore[arg-type]  # it is only called
        ws="none",
        server_header=False,
        date_header=True,
        timeout_keep_alive=settings.http.keep_alive_s,
        timeout_graceful_shutdown=int(settings.http.grace_s + BACKSTOP_S),
    )
    server = _Server(config)
    stop = _Stop(server, wired, settings.http.grace_s)
    stop.listen()
    _settle_memory()
    _announce(listener, as_json=as_json)
    try:
        await server.serve(sockets=[listener])
        await stop.done()
    finally:
        await wired.close()
    code = DONE if server.started else FAILED
    if wired.services.supervisor.in_flight or left_behind():
        # deaf to its cancellation: waiting for it would be for ever
        logging.shutdown()
        os._exit(code)
    return code


def _settle_memory() -> None:
    """What is there now stays for good: the collector need not look at it again, and looks less often at the rest,
    most of which dies young. Saves a twentieth of the CPU under load. What of it is garbage is little, and to look for
    it takes longer than it is worth."""
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    gc.enable()
    sys.setswitchinterval(SWITCH_S)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # connections take it over
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _announce(listener: socket.socket, *, as_json: bool) -> None:
    """The address, on a line of its own: with port 0 nobody could know it otherwise."""
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    click.echo(json.dumps({"listening": url}) if as_json else f"subagentd is listening on {url}")
    sys.stdout.flush()


class _Stop:
    """What a signal does: close streams, let runs finish, then stop the server. A second signal does not wait."""

    def __init__(self, server: uvicorn.Server, wired: Wired, grace_s: float) -> None:
        self._server = server
        self._wired = wired
        self._grace_s = grace_s
        self._task: asyncio.Task[None] | None = None
        self._hurry: asyncio.Task[None] | None = None

    def listen(self) -> None:
        """Take SIGTERM and SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._hear, number)

    def _hear(self, number: int) -> None:
        if self._task is not None:
            self._server.force_exit = True
            if self._hurry is None:
                self._hurry = asyncio.create_task(self._wired.services.sessions.close(0), name="hurry")
            return
        log.info("%s: stopping", signal.Signals(number).name)
        self._task = asyncio.create_task(self._stop(), name="stop")

    async def _stop(self) -> None:
        try:
            async with asyncio.timeout(self._grace_s + DRAIN_S):
                await self._wired.drain(self._grace_s)
        except (TimeoutError, SubagentdError) as error:
            reason = error if isinstance(error, SubagentdError) else "the store does not answer"
            log.error("the service ends before everything was told: %s", reason)
        finally:
            self._server.should_exit = True

    async def done(self) -> None:
        """Wait for the drain that a signal began."""
        tasks = [task for task in (self._hurry, self._task) if task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=self._grace_s + DRAIN_S)
