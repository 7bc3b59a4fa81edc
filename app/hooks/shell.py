"""A command as a hook: JSON on its stdin, its exit code and what it writes are the verdict.

Knows no shell syntax. The whole process group of a command ends with it, whatever way it ends.
"""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from app.agent.hooks import MAX_BLOCK_CHARS, HookCall, HookFailure, HookPoint, Matcher, OnFailure, Verdict
from app.hooks.verdict import NO_REASON, payload_of, verdict_of

MAX_STDOUT_BYTES = 1 << 20
MAX_STDERR_BYTES = 4 * MAX_BLOCK_CHARS  # UTF-8
BLOCK_CODE = 2
_DRAIN_S = 0.5  # after its end: what it left in the pipes is there at once, what it left running may hold them open
_REAP_S = 2.0  # after SIGKILL, which only a process stuck in the kernel outlives
# What programs need to run at all. Keys of models and of the store are in the rest.
_KEPT = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LANGUAGE", "SYSTEMROOT"})


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment a command gets: nothing that could hold a secret of the service."""
    return {name: value for name, value in environment.items() if name in _KEPT or name.startswith("LC_")}


@dataclass(slots=True, kw_only=True)
class CommandHook:
    """Runs `command` in the directory of the service: one from the workspace would be the agents' own to write."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    points: frozenset[HookPoint]
    matcher: Matcher | None = None
    timeout_s: float = 30.0
    on_failure: OnFailure | None = None
    kind: str = field(default="command", init=False)

    async def call(self, call: HookCall) -> Verdict:
        """Run it. Exit 0: its stdout is the answer; 2: it blocks, stderr says why. Anything else: `HookFailure`."""
        ended = await self._run(payload_of(call))
        if ended.code == BLOCK_CODE:
            return Verdict(block=ended.error_text()[:MAX_BLOCK_CHARS] or NO_REASON)
        if ended.code != 0:
            how = f"exit code {ended.code}" if ended.code > 0 else f"signal {-ended.code}"
            said = ended.error_text()[:200]
            raise HookFailure(f"the command ended with {how}" + (f": {said}" if said else ""))
        if ended.overflowed:
            raise HookFailure(f"the command wrote more than {MAX_STDOUT_BYTES} bytes")
        return verdict_of(bytes(ended.stdout))

    async def _run(self, told: bytes) -> "_Process":
        loop = asyncio.get_running_loop()
        starting: _Starting = asyncio.create_task(
            loop.subprocess_exec(
                lambda: _Process(loop), *self.command, env=dict(self.environment), start_new_session=True
            )
        )
        try:
            await asyncio.wait({starting})
            transport, process = starting.result()
            stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
            if not stdin.is_closing():  # it may have ended by now
                stdin.write(told)
                stdin.close()  # when all is written
            await asyncio.wait({process.exited})  # to await it would cancel it, and the end would not be seen
            await asyncio.wait({process.drained}, timeout=_DRAIN_S)
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            reason = getattr(error, "strerror", None) or str(error)
            raise HookFailure(f"the command {self.command[0]!r} cannot be started: {reason}") from None
        finally:
            ending = asyncio.create_task(_end(starting))
            _ENDINGS.add(ending)
            ending.add_done_callback(_ENDINGS.discard)
            await asyncio.wait({ending})
        return process


class _Process(asyncio.SubprocessProtocol):
    """What a process writes, up to the bounds, and how it ends.

    Not `asyncio.subprocess`: its `wait` ends only when all pipes are closed, and a process that was left in the
    background holds them open.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.exited: asyncio.Future[None] = loop.create_future()
        self.drained: asyncio.Future[None] = loop.create_future()
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.overflowed = False
        self.code = 0
        self._open = {1, 2}
        self._transport: asyncio.SubprocessTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It has started."""
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: Any) -> None:
        """Keep what there is room for; the rest is read all the same, or the process would wait for ever."""
        kept, bound = (self.stdout, MAX_STDOUT_BYTES) if fd == 1 else (self.stderr, MAX_STDERR_BYTES)
        room = bound - len(kept)
        kept += data[:room]
        self.overflowed = self.overflowed or (fd == 1 and len(data) > room)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """One end is closed. That nobody read stdin is no failure: a guard may need nothing of it."""
        self._open.discard(fd)
        if not self._open and not self.drained.done():
            self.drained.set_result(None)

    def process_exited(self) -> None:
        """It has ended."""
        assert self._transport is not None
        self.code = self._transport.get_returncode() or 0
        if not self.exited.done():
            self.exited.set_result(None)

    def error_text(self) -> str:
        """What it wrote to stderr."""
        return self.stderr.decode("utf-8", "replace").strip()


_Starting = asyncio.Task[tuple[asyncio.SubprocessTransport, _Process]]
_ENDINGS: set[asyncio.Task[None]] = set()  # or they may be collected while they run


async def _end(starting: _Starting) -> None:
    """Kill the group, also of a command that is only just being started: it may have started others by now.

    A task of its own, since whoever is cancelled a second time does not wait for it.
    """
    await asyncio.wait({starting})
    if starting.cancelled() or starting.exception() is not None:
        return
    transport, process = starting.result()
    try:
        os.killpg(transport.get_pid(), signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # all have ended; macOS says so by the second one
        pass
    await asyncio.wait({process.exited}, timeout=_REAP_S)
    transport.close()
