"""A process that speaks MCP over its standard input and output: messages bounded, its end noticed, nothing left of it.

A transport for the SDK, whose own one reads lines of any length and takes garbage for a fault. Knows no tool.
"""

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import AsyncIterator
from typing import Any

from app.agent.interruption import to_its_end
from app.tools.mcp_bounds import bounded
from app.tools.mcp_config import McpServer
from app.tools.mcp_names import cleaned

log = logging.getLogger(__name__)

MAX_MESSAGE = 8 << 20  # bytes: an image of several megabytes passes
_AT_ONCE = 64 << 10  # bytes that are read on the loop, in less than a tick; more of them take up to a second
_EXIT_S = 2.0  # after the end of its input, as the protocol asks
_TERM_S = 1.0
_GONE_S = 2.0
_SAID_CHARS = 2_000  # of one piece on the standard error
_GARBAGE_CHARS = 200
_ID = re.compile(rb'"id"\s*:\s*(\d{1,18})\s*[,}]')
_ANSWER = re.compile(rb'"jsonrpc".*"(?:result|error)"|"(?:result|error)".*"jsonrpc"', re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w|(u[dD][89a-fA-F]\w\w)|.)", re.DOTALL)
_AROUND = 400  # bytes at either end of a message that is left out, in which its id is looked for
_INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")


class _Protocol(SubprocessStreamProtocol):
    """Says when the process has ended, whoever else still holds its pipes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=MAX_MESSAGE, loop=loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        """Called by the loop."""
        super().process_exited()
        self.exited.set()


@contextlib.asynccontextmanager
async def stdio(server: McpServer, *, ended: asyncio.Event) -> AsyncIterator[tuple[Any, Any]]:
    """The streams of a new process; `ended` is set when it or its output ends. Raises OSError when it cannot be
    started. Afterwards no process of its group is left."""
    import anyio  # noqa: PLC0415  comes with the SDK, which is imported when the first server is used

    loop = asyncio.get_running_loop()
    assert server.command is not None
    transport, protocol = await loop.subprocess_exec(
        lambda: _Protocol(loop),
        server.command,
        *server.args,
        env=environment(server),
        cwd=server.cwd,
        start_new_session=True,
    )
    to_session, from_process = anyio.create_memory_object_stream[Any](0)
    to_process, from_session = anyio.create_memory_object_stream[Any](0)
    tasks = [
        loop.create_task(_read(server.name, protocol, to_session), name=f"mcp {server.name} stdout"),
        loop.create_task(_write(protocol, from_session, to_session), name=f"mcp {server.name} stdin"),
        loop.create_task(_hear(server.name, protocol), name=f"mcp {server.name} stderr"),
        loop.create_task(_watch(protocol, to_session), name=f"mcp {server.name} exit"),
    ]
    tasks[0].add_done_callback(lambda _: ended.set())
    tasks[3].add_done_callback(lambda _: ended.set())
    try:
        yield from_process, to_process
    finally:
        try:
            await to_its_end(loop.create_task(_close(transport, protocol, tasks), name=f"mcp {server.name} close"))
        finally:
            for stream in (to_session, from_process, to_process, from_session):
                stream.close()


def environment(server: McpServer) -> dict[str, str]:
    """All variables that the process gets."""
    own = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**own, **server.environment}


async def _read(name: str, protocol: _Protocol, to_session: Any) -> None:
    """Messages on their way to the session until the output ends."""
    assert protocol.stdout is not None
    try:
        while True:
            line, whole = await _line(protocol.stdout)
            if not line:
                return
            if not whole:
                message = _left_out(name, line, f"the answer was larger than {MAX_MESSAGE >> 20} MiB and was left out")
            elif len(line) <= _AT_ONCE:
                message = _message(name, line)
            else:
                message = await asyncio.to_thread(_message, name, line)
            if message is not None:
                await to_session.send(message)
    except Exception as error:  # noqa: BLE001  border to the SDK's streams: that the session is gone has several types
        log.debug("MCP server %s: its output is no longer read: %r", name, error)
    finally:
        to_session.close()


async def _line(stdout: asyncio.StreamReader) -> tuple[bytes, bool]:
    """The next line, and whether it is whole; of one that is too long only both ends. Empty at the end."""
    try:
        return await stdout.readuntil(b"\n"), True
    except asyncio.IncompleteReadError:
        return b"", True
    except asyncio.LimitOverrunError as error:
        head = tail = await stdout.readexactly(error.consumed)
    while True:
        try:
            return head[:_AROUND] + b" " + (tail + await stdout.readuntil(b"\n"))[-_AROUND:], False
        except asyncio.IncompleteReadError:
            return b"", True
        except asyncio.LimitOverrunError as error:
            tail = (await stdout.readexactly(error.consumed))[-_AROUND:]


def _message(name: str, line: bytes) -> Any:
    """What a line says; None for one that is no message, such as what a library prints."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter  # noqa: PLC0415

    if not line.strip():
        return None
    try:
        return bounded(SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False)))
    except ValueError:
        pass
    try:  # a laxer reader, for half characters, bytes that are no text, and schemas too deep for the first one
        data = json.loads(_ESCAPE.sub(_whole, line).decode("utf-8", "replace"))
        return bounded(SessionMessage(jsonrpc_message_adapter.validate_python(data, by_name=False)))
    except (ValueError, RecursionError):
        ends = line[:_AROUND] + b" " + line[-_AROUND:]
        if _ANSWER.search(ends):
            return _left_out(name, ends, "the answer could not be read and was left out")
        shown = cleaned(line[: 4 * _GARBAGE_CHARS].decode("utf-8", "replace"), _GARBAGE_CHARS)
        log.debug("MCP server %s wrote something that is no message: %r", name, shown)
        return None


def _whole(escape: re.Match[bytes]) -> bytes:
    """An escape in a text, or a replacement for half a character."""
    return rb"\ufffd" if escape[1] else escape[0]


def _left_out(name: str, ends: bytes, text: str) -> Any:
    """An error in place of an answer, so that its call need not wait until its time is over."""
    from mcp.shared.message import SessionMessage
    from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError  # noqa: PLC0415

    log.warning("MCP server %s: %s", name, text)
    found = _ID.search(ends)
    if found is None:
        return None
    error = ErrorData(code=INTERNAL_ERROR, message=text)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=int(found[1]), error=error))


async def _write(protocol: _Protocol, from_session: Any, to_session: Any) -> None:
    assert protocol.stdin is not None
    try:
        async for message in from_session:
            data = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            protocol.stdin.write(data.encode("utf-8", "replace") + b"\n")
            await protocol.stdin.drain()
    except OSError:  # the process has closed its input: no answer will come either
        to_session.close()


async def _hear(name: str, protocol: _Protocol) -> None:
    """What it writes for people goes to our log."""
    assert protocol.stderr is not None
    while piece := await protocol.stderr.read(_SAID_CHARS):
        for line in piece.decode("utf-8", "replace").splitlines():
            if line.strip():
                log.debug("MCP server %s: %s", name, cleaned(line, _SAID_CHARS))


async def _watch(protocol: _Protocol, to_session: Any) -> None:
    """A process that has ended answers nothing more, though what it has started may hold its output open."""
    await protocol.exited.wait()
    to_session.close()


async def _close(transport: asyncio.SubprocessTransport, protocol: _Protocol, tasks: list[asyncio.Task[None]]) -> None:
    """The end of its input, then a signal, then the last one, which also ends what it has left behind."""
    assert protocol.stdin is not None
    protocol.stdin.close()
    number = transport.get_pid()
    for signal_number, wait_s in ((None, _EXIT_S), (signal.SIGTERM, _TERM_S), (signal.SIGKILL, _GONE_S)):
        if signal_number is not None:
            _signal(number, signal_number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await protocol.exited.wait()
        if protocol.exited.is_set():
            break
    else:
        log.error("the process %s of an MCP server does not end", number)
    _signal(number, signal.SIGKILL)  # the number stays that of the group while anything is left in it
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=_GONE_S)
    transport.close()


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
