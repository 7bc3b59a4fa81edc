"""Server processes that are forked from one which has everything imported (`tests/zygote.py`)."""

import asyncio
import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class ForkedProcess:
    """A forked server with what tests need of `asyncio.subprocess.Process`."""

    def __init__(self, pid: int, stdout: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._stdout = stdout
        self._ended = os.pidfd_open(pid)

    async def first_line(self) -> bytes:
        """What it says first; empty when it ended without a word."""
        async with self._output() as output:
            return await output.readline()

    async def communicate(self) -> tuple[bytes, int]:
        """All that it says, and its exit code."""
        async with self._output() as output:
            said = await output.read()
        return said, await self.wait()

    @contextlib.asynccontextmanager
    async def _output(self) -> AsyncIterator[asyncio.StreamReader]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        pipe = os.fdopen(self._stdout, "rb")
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            yield reader
        finally:
            transport.close()

    def send_signal(self, number: int) -> None:
        """As for a child; nothing once it has ended."""
        if self.returncode is None:
            signal.pidfd_send_signal(self._ended, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    async def wait(self) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        if self.returncode is None:
            loop = asyncio.get_running_loop()
            ended: asyncio.Future[None] = loop.create_future()
            loop.add_reader(self._ended, _set, ended)
            try:
                await ended
            finally:
                loop.remove_reader(self._ended)
            if self.returncode is None:  # else another who waited was first
                self.returncode = int(_asked({"ended": self.pid}))
                os.close(self._ended)
        return self.returncode


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def forked(args: Sequence[str], folder: Path, env: Mapping[str, str], log: Path | None = None) -> ForkedProcess:
    """Start `subagentd` with these arguments in a folder; what it writes to standard error goes to `log`, otherwise to
    `service.log` there."""
    reading, writing = os.pipe()
    try:
        log = log or folder / "service.log"
        request = {"args": list(args), "folder": str(folder), "env": dict(env), "log": str(log)}
        return ForkedProcess(int(_asked(request, writing)), reading)
    finally:
        os.close(writing)


class _Zygote:
    """The process that forks; started at the first question, ended with this process."""

    def __init__(self) -> None:
        self._line, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        base = {k: v for k, v in os.environ.items() if not k.startswith(("SUBAGENTD_", "OPENAI_", "ANTHROPIC_"))}
        env = {**base, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.zygote"], stdin=other.fileno(), cwd=ROOT, env=env
        )
        other.close()
        atexit.register(self._end)

    def ask(self, request: Mapping[str, Any], *files: int) -> Any:
        """Its answer."""
        socket.send_fds(self._line, [json.dumps(request).encode()], list(files))
        return json.loads(self._line.recv(1 << 16))

    def _end(self) -> None:
        self._line.close()
        self._process.wait(10)


@functools.cache
def _zygote() -> _Zygote:
    return _Zygote()


def _asked(request: Mapping[str, Any], *files: int) -> Any:
    return _zygote().ask(request, *files)
