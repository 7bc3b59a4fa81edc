"""One process of a box on the event loop: its output as it comes, its limits watched, its end, and nothing left.

Knows no box: what to start is a `Launch`. Started from the thread of the loop, since the kernel ties a process that is
to die with its parent to the thread that started it.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, cast

from app.agent.interruption import to_its_end
from app.boxes.box import BoxRefused, End, Ended, Limits
from app.boxes.pipes import Gate, Pipe
from app.boxes.usage import Room, children_of, files_of, memory_of, room_at, state_of
from app.boxes.warden import STARTED

WATCH_S = 0.2
_GONE_S = 8.0  # a little more than the warden takes at worst
_STOP_S, _STOP_STEP_S = 0.5, 0.001
_BUILT_S = 20.0  # for a box whose workspace is to be covered
_DRAIN_S = 1.0  # for what is in the pipe when all processes have ended
_WATCHERS = ThreadPoolExecutor(2, "watch commands")  # of their own: no other work may hold a limit up
_BREATH_S = 0.05  # a pause after each piece of output beyond the bound: about 20 MB a second
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to start. `ready` gets `STARTED` when the command begins and its problem when it does not. With `held`, the
    process ends all when its standard input ends; without, `inner` tells the process whose end is everybody's. `places`
    are handles of directories whose disks it must not fill, `in_memory` paths of such in the box of that process.
    `check` looks at this box before the command may pass `gate`, and raises `BoxRefused`."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    ready: Pipe
    held: bool
    places: Sequence[int]
    inner: Pipe | None = None
    handles: Sequence[int] = field(default=())
    check: Callable[[int], Awaitable[None]] | None = None
    gate: Gate | None = None
    in_memory: Sequence[str] = field(default=())


async def carried_out(
    launch: Launch, limits: Limits, timeout_s: float, output: Callable[[bytes], None]
) -> tuple[Ended, str]:
    """Start it and wait for its end, at most `timeout_s`; how it ended, and what was wrong if it has not begun. When
    this returns or is cancelled, however often, no process of it is left, or an error is logged by the caller's
    `output_lost`. Raises what `check` raises."""
    loop = asyncio.get_running_loop()
    process = _Process(loop, output, limits.fast_bytes)
    start = asyncio.create_task(_start(loop, process, launch), name="start a command")
    end = End.EXITED
    try:
        await asyncio.wait({start})
        start.result()
        await _let_in(process, launch)
        end = await _watched(process, launch, limits, timeout_s)
    finally:
        closing = asyncio.create_task(_close(start, process, launch), name="end a command")
        await to_its_end(closing)
    said = launch.ready.text()
    lost = not closing.result()
    if said == STARTED:
        return Ended(end=end, code=process.code if end is End.EXITED else None, output_lost=lost), ""
    if end is End.EXITED:
        return Ended(end=End.NOT_STARTED, output_lost=lost), said.removeprefix(STARTED).decode(errors="replace")
    return Ended(end=end, output_lost=lost), ""


async def _start(loop: asyncio.AbstractEventLoop, process: "_Process", launch: Launch) -> None:
    pipes = [pipe for pipe in (launch.ready, launch.inner) if pipe is not None]
    await loop.subprocess_exec(
        lambda: process,
        *launch.argv,
        env=dict(launch.environment),
        cwd="/",
        stdin=asyncio.subprocess.PIPE if launch.held else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,  # one pipe: nothing else keeps the order of what was written
        pass_fds=(*launch.handles, *(pipe.write for pipe in pipes), *([launch.gate.read] if launch.gate else [])),
        start_new_session=True,
    )
    for pipe in pipes:
        pipe.close_write()
    if launch.gate is not None:
        launch.gate.close_read()


async def _let_in(process: "_Process", launch: Launch) -> None:
    """Let the command begin when its box is what it should be."""
    if launch.check is None or launch.gate is None:
        return
    ready = asyncio.ensure_future(launch.ready.first())
    try:
        await asyncio.wait({ready, process.exited}, timeout=_BUILT_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ready.cancel()
        await asyncio.wait({ready})
    if launch.ready.text() == STARTED:
        await launch.check(_inner_number(launch.inner))
        launch.gate.let_in()
    elif not process.exited.done() and not launch.ready.ended:
        raise BoxRefused(f"the command was not run: its box was not built within {_BUILT_S:.0f} s")


async def _watched(process: "_Process", launch: Launch, limits: Limits, timeout_s: float) -> End:
    """Wait for its end, and say why it has to end before."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s
    rooms = [room_at(place) for place in launch.places]
    while not process.exited.done():
        left = until - loop.time()
        if left <= 0:
            return End.TIMED_OUT
        await asyncio.wait({process.exited}, timeout=min(WATCH_S, left))
        if process.exited.done():
            break
        # hundreds of processes take milliseconds to read
        taken = await loop.run_in_executor(_WATCHERS, memory_of, process.number, limits.memory_bytes)
        if taken > limits.memory_bytes:
            return End.MEMORY
        if _fills(launch, rooms, limits):
            return End.DISK
    return End.EXITED


def _fills(launch: Launch, rooms: Sequence[Room], limits: Limits) -> bool:
    for before, place in zip(rooms, launch.places, strict=True):
        now = room_at(place)
        if before.free - now.free > limits.disk_bytes or now.files - before.files > limits.files:
            return True
    if not launch.in_memory or launch.ready.text() != STARTED:  # until then these paths are those of the machine
        return False
    number = _inner_number(launch.inner)
    return number > 0 and sum(files_of(number, place) for place in launch.in_memory) > limits.files


async def _close(start: "asyncio.Task[None]", process: "_Process", launch: Launch) -> bool:
    """End everything; whether nothing is left. A task of its own, since who is cancelled twice does not wait for it."""
    await asyncio.wait({start})
    if start.exception() is not None:
        return True
    with ExitStack() as held:
        inner = await _inner_processes(held, process, launch)
        for handle in inner:
            _signalled(handle)
        process.end()
        await asyncio.wait({process.exited}, timeout=_GONE_S)
        gone = process.exited.done()
        process.kill()
        for handle in inner:
            gone = await _ended(handle) and gone
    await asyncio.wait({process.drained}, timeout=_DRAIN_S)
    gone = gone and process.drained.done()
    process.close()
    return gone


async def _inner_processes(held: ExitStack, process: "_Process", launch: Launch) -> list[int]:
    """Handles of the processes whose end is everybody's. While the outer one lives it is stopped first, so that it
    makes no more: killed in the midst of making one, it would leave that behind, waiting for ever."""
    if launch.inner is None:
        return []
    numbers = {_inner_number(launch.inner)}
    if not process.exited.done():
        numbers |= await _stopped_children(process.number)
    handles = []
    for number in numbers:
        handle = _handle_of(number)
        if handle is not None:
            held.callback(os.close, handle)
            handles.append(handle)
    return handles


async def _stopped_children(number: int) -> set[int]:
    until = asyncio.get_running_loop().time() + _STOP_S
    try:
        os.kill(number, signal.SIGSTOP)
    except OSError:  # it ends just now
        return set()
    while state_of(number) not in ("T", "Z", "") and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110
        await asyncio.sleep(_STOP_STEP_S)
    return set(children_of(number))


def _handle_of(number: int) -> int | None:
    """A handle of the first process of a namespace; None when it has ended: the number may be a stranger's then."""
    try:
        handle = os.pidfd_open(number) if number else None
    except OSError:
        return None
    if handle is not None and not _first_of_a_namespace(number):
        os.close(handle)
        return None
    return handle


def _inner_number(pipe: Pipe | None) -> int:
    """bubblewrap says `{ "child-pid": 17, …`."""
    if pipe is None:
        return 0
    digits = pipe.text().partition(b'"child-pid":')[2].partition(b",")[0].strip()
    return int(digits) if digits.isdigit() else 0


def _first_of_a_namespace(number: int) -> bool:
    try:
        with open(f"/proc/{number}/status") as file:
            spaces = next((line.split()[1:] for line in file if line.startswith("NSpid:")), [])
    except OSError:
        return False
    return len(spaces) > 1 and spaces[-1] == "1"


async def _ended(handle: int) -> bool:
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()
    loop.add_reader(handle, _set, gone)
    try:
        await asyncio.wait({gone}, timeout=_GONE_S)
    finally:
        loop.remove_reader(handle)
    return gone.done()


class _Process(asyncio.SubprocessProtocol):
    """What a process writes, as it comes, and that it has ended. Who floods the pipe is read slowly."""

    def __init__(self, loop: asyncio.AbstractEventLoop, output: Callable[[bytes], None], fast_bytes: int) -> None:
        self.exited: asyncio.Future[None] = loop.create_future()
        self.drained: asyncio.Future[None] = loop.create_future()
        self.number = 0
        self.code = 0
        self._loop = loop
        self._output = output
        self._fast = fast_bytes
        self._piece = 0
        self._transport: asyncio.SubprocessTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It has started."""
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self.number = self._transport.get_pid()

    def pipe_data_received(self, fd: int, data: Any) -> None:
        """Hand it on."""
        self._output(bytes(data))
        self._fast -= len(data)
        self._piece += len(data)
        if self._fast < 0 and self._piece > _PIECE:
            self._piece = 0
            if self._reading("pause_reading"):
                self._loop.call_later(_BREATH_S, self._reading, "resume_reading")

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Nobody holds the other end any more."""
        if fd == 1:
            _set(self.drained)

    def process_exited(self) -> None:
        """It has ended."""
        assert self._transport is not None
        code = self._transport.get_returncode() or 0
        self.code = code if code >= 0 else 128 - code
        _set(self.exited)

    def end(self) -> None:
        """Let it end, with all that it started."""
        assert self._transport is not None
        stdin = self._transport.get_pipe_transport(0)
        if stdin is not None:
            stdin.close()
        else:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        assert self._transport is not None
        if not self.exited.done():
            try:
                self._transport.kill()
            except ProcessLookupError:  # it ends just now
                pass

    def close(self) -> None:
        """The last call."""
        assert self._transport is not None
        self._transport.close()

    def _reading(self, what: str) -> bool:
        pipe = self._transport.get_pipe_transport(1) if self._transport is not None else None
        if pipe is None or pipe.is_closing():
            return False
        getattr(pipe, what)()
        return True


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _signalled(handle: int) -> None:
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:  # it has ended
        pass
