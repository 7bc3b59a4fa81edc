"""Work off the event loop: threads that cannot keep the process alive, and what becomes of work that is given up.

Knows no tool.
"""

import asyncio
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_IDLE_S = 30.0  # an idle thread costs little, but tests and reloads make many pools
_SWEEP_S = 1.0  # a function whose process was killed may start another; one that does so for longer is left alone
_QUIET_S = 0.05  # without any process by then there is nothing to wait for: a thread itself cannot be stopped
_STEP_S = 0.005


class DaemonThreads(Executor):
    """At most `limit` threads, started when needed.

    Unlike those of ThreadPoolExecutor they are daemons: a disk or a foreign function that never returns keeps one
    thread busy, but not the process from ending.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._work: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._idle = 0
        self._count = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn` in a thread as soon as one is free."""
        future: Future[T] = Future()
        with self._changed:
            self._work.append((future, partial(fn, *args, **kwargs)))
            if len(self._work) <= self._idle:
                self._changed.notify()
            elif self._count < self._limit:
                self._count += 1
                threading.Thread(target=self._serve, name=f"{self._name}-{self._count}", daemon=True).start()
        return future

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._work:
                    self._idle += 1
                    self._changed.wait(_IDLE_S)
                    self._idle -= 1
                    if not self._work:
                        self._count -= 1
                        return
                future, call = self._work.popleft()
            _carry_out(future, call)
            del future, call  # a thread that waits must not keep the last result alive


def _carry_out(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  border of a thread: whatever it is goes to the one who waits
        future.set_exception(error)
    else:
        future.set_result(result)


async def interruptible(threads: Executor, work: Callable[[threading.Event], T]) -> T:
    """Run `work(stop)` in a thread and return its result; when the caller is cancelled, `stop` is set at once."""
    stop = threading.Event()
    try:
        return await asyncio.wrap_future(threads.submit(work, stop))
    finally:
        stop.set()


async def in_thread(threads: Executor, work: Callable[[], T]) -> T:
    """Run `work` in a thread and return its result.

    A caller that is cancelled cannot stop the thread, but the processes that the thread has started for this work are
    killed, with everything below them, before the cancellation goes on: again and again until the thread is done with
    it, for 1 s at most; and once more when it is done later. Linux only; elsewhere the processes are left.
    """
    call = _Call(work)
    future = threads.submit(call)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if not future.cancel():  # it had begun
            await call.give_up()
        raise


class _Call(Generic[T]):
    """One piece of work in a thread, and the processes that it starts."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._lock = threading.Lock()  # its thread goes on with other work: none of that may be taken for this
        self._thread: int | None = None
        self._before: frozenset[int] = frozenset()  # left behind by earlier work of the thread
        self._given_up = threading.Event()
        self._ended = False
        self._killed: list[_Process] = []

    def __call__(self) -> T:
        thread = threading.get_native_id()
        before = frozenset(_numbers(f"/proc/self/task/{thread}/children"))
        with self._lock:
            if self._given_up.is_set():
                self._ended = True
                raise asyncio.CancelledError
            self._thread, self._before = thread, before
        try:
            return self._work()
        finally:
            with self._lock:
                if self._given_up.is_set():
                    self._kill()
                self._ended = True

    async def give_up(self) -> None:
        """End its processes. A caller that is cancelled again does not stop that."""
        with self._lock:
            self._given_up.set()
        sweep = asyncio.create_task(self._sweep(), name="end processes of a tool")
        _SWEEPS.add(sweep)
        sweep.add_done_callback(_SWEEPS.discard)
        await asyncio.wait({sweep}, timeout=_QUIET_S)
        if self._killed:
            await asyncio.wait({sweep})

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + _SWEEP_S
        while loop.time() < until:
            if not self._goes_on():
                return
            await asyncio.sleep(_STEP_S)

    def _goes_on(self) -> bool:
        with self._lock:
            if not self._ended:
                self._kill()
                return True
            return any(_process(process.number) == process for process in self._killed)

    def _kill(self) -> None:
        """Kill what the thread has started. Each is stopped before one looks below it: then it starts no more."""
        if self._thread is None:
            return
        numbers = [n for n in _numbers(f"/proc/self/task/{self._thread}/children") if n not in self._before]
        stopped: list[_Process] = []
        while numbers:
            process = _process(numbers.pop())
            if process is not None and _signalled(process, signal.SIGSTOP):
                stopped.append(process)
                numbers.extend(_below(process.number))
        for process in stopped:
            _signalled(process, signal.SIGKILL)
        self._killed.extend(stopped)


_SWEEPS: set[asyncio.Task[None]] = set()  # or they may be collected while they run


@dataclass(frozen=True, slots=True)
class _Process:
    """A process that lives; `started` (ticks since boot) tells it from a later one of the same number."""

    number: int
    started: str


def _process(number: int) -> _Process | None:
    """The process of a number; None when it has ended, whether or not its parent has noticed."""
    try:
        # the name in front, in brackets, may hold anything; state is field 3 of proc(5), the start is field 22
        fields = Path(f"/proc/{number}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else _Process(number, fields[19])


def _signalled(process: _Process, what: signal.Signals) -> bool:
    try:
        handle = os.pidfd_open(process.number)
    except OSError:
        return False
    try:
        if _process(process.number) != process:
            return False  # it has ended, and the number may be that of a stranger
        signal.pidfd_send_signal(handle, what)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _below(number: int) -> Iterator[int]:
    """The processes that any thread of a process has started."""
    try:
        threads = os.listdir(f"/proc/{number}/task")
    except OSError:
        return
    for thread in threads:
        yield from _numbers(f"/proc/{number}/task/{thread}/children")


def _numbers(path: str) -> list[int]:
    try:
        return [int(number) for number in Path(path).read_text().split()]
    except OSError:
        return []


class Effort:
    """What one call may still do: a number of entries, a time, and whether somebody still wants the result.

    `spent` says in words what ran out, None while there is some left. Belongs to one thread.
    """

    def __init__(
        self,
        stop: threading.Event,
        *,
        seconds: float,
        entries: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`entries` 0: any number. `clock` in seconds."""
        self.spent: str | None = None
        self._stop = stop
        self._seconds = seconds
        self._entries = entries
        self._clock = clock
        self._end = clock() + seconds
        self._seen = 0

    def more(self) -> bool:
        """Whether the work may go on with one entry more."""
        self._seen += 1
        if self._entries and self._seen > self._entries and self.spent is None:
            self.spent = f"{self._entries:,} entries"
        return self.in_time()

    def in_time(self) -> bool:
        """Whether the work may go on; asked often, so that it ends soon after a cancellation."""
        if self.spent is None:
            if self._stop.is_set():
                self.spent = "being cancelled"
            elif self._clock() > self._end:
                self.spent = f"{self._seconds:g} seconds"
        return self.spent is None
