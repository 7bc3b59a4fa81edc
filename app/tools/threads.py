"""Work off the event loop: threads that cannot keep the process alive, and a bound on what one call may do.

Knows no tool.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_IDLE_S = 30.0  # an idle thread costs little, but tests and reloads make many pools


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
