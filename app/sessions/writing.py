"""The writer's thread: takes batches from the event loop, one at a time, and answers there.

Knows no database: it calls an `EventWriter`. A plain thread and queue cost a third of an executor per batch.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from app.agent.events import Event, Write
from app.sessions.ports import EventWriter, Rejected, TransientStoreError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch: stored but for `rejected`, or not at all because of `error`."""

    rejected: Sequence[Rejected] = ()
    error: Exception | None = None


_Job = tuple[list[Any], list[Event], list[Write]]


class WriterThread:
    """Owns the thread that owns the only writing connection."""

    def __init__(
        self, writer: EventWriter, loop: asyncio.AbstractEventLoop, answer: Callable[[list[Any], Outcome], None]
    ) -> None:
        self._writer = writer
        self._loop = loop
        self._answer = answer
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._last: _Job | None = None
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._work, name="journal-writer", daemon=True)
        self._thread.start()

    def submit(self, batch: list[Any], events: list[Event], rows: list[Write]) -> None:
        """Write a batch; the answer comes on the event loop."""
        self._last = (batch, events, rows)
        self._jobs.put(self._last)

    def again(self) -> None:
        """Write the last batch once more."""
        self._jobs.put(self._last)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            batch, events, rows = job
            try:
                outcome = Outcome(rejected=self._writer.write(events, rows))
            except TransientStoreError as error:
                outcome = Outcome(error=error)
            except Exception as error:  # border of the thread: a dead writer would stop every run without a word
                log.exception("the store failed in an unknown way; the batch is tried again")
                outcome = Outcome(error=error)
            try:
                self._loop.call_soon_threadsafe(self._answer, batch, outcome)
            except RuntimeError:  # the loop is closed: nobody is left to tell
                break
        self._writer.close()
        try:
            self._loop.call_soon_threadsafe(self._ended.set)
        except RuntimeError:
            log.debug("the event loop ended before the writer did")

    def _next(self) -> _Job | None:
        while True:
            try:
                wait_s = self._writer.rest() if self._jobs.empty() else None
            except Exception:  # border of the thread, as above: what was put off is no reason to write nothing any more
                log.exception("what the store had put off failed")
                wait_s = None
            try:
                return self._jobs.get(timeout=wait_s)
            except queue.Empty:
                continue

    async def close(self, within_s: float) -> None:
        """End the thread after what was submitted; one that the store does not let go is left behind."""
        self._jobs.put(None)
        try:
            async with asyncio.timeout(within_s):
                await self._ended.wait()
        except TimeoutError:
            log.error("the writer waits for the store, and is left behind")
