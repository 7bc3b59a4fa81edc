"""Group commit: what waits goes to the writer's thread as one transaction after another, again until the store has it.

    stir / hurry ─▶ one batch ─▶ the writer's thread ─▶ published

Knows neither what the facts say nor who looks at them.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from app.agent import faults
from app.agent.events import Event
from app.sessions.ports import EventWriter, Rejected
from app.sessions.waiting import Item, Row, Waiting, settle
from app.sessions.writing import Outcome, WriterThread

log = logging.getLogger(__name__)

MAX_BATCH = 500
SILENT_S = 3.0  # a batch takes milliseconds: from here on whoever asks is told, and readers wait no longer
END_S = 2.0  # for the writer's thread to end
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 0.5  # so that a store that is back is at work again well within 2 s
SAID_EVERY = 60  # tries that fail for the same reason: one of so many is said in the log
MENDED_S = 10.0  # between two tries to store what the store is damaged for


class GroupCommit:
    """Empties `waiting`. `published` is called with each batch once it is committed, in order; `breaks` with a session
    that the store is damaged for from now on."""

    def __init__(
        self,
        writer: EventWriter,
        waiting: Waiting,
        *,
        linger_s: float,
        published: Callable[[Sequence[Item], Sequence[Rejected]], None],
        breaks: Callable[[str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting = waiting
        self._linger = linger_s
        self._published = published
        self._breaks = breaks
        self._thread = WriterThread(writer, self._loop, self._written)
        self._urgent = False
        self._timer: asyncio.TimerHandle | None = None
        self._retry_s = RETRY_FIRST_S
        self._handed_at = 0.0  # when the writer got the batch that it has
        self._settling: set[asyncio.Future[None]] = set()
        self.busy = False
        self.with_writer: list[Any] = []  # that batch
        self.failed: str | None = None
        self.failures = 0

    @property
    def problem(self) -> str | None:
        """Why nothing can be stored at the moment; None when it can."""
        if self.failed is None and self.busy:
            silent = self._loop.time() - self._handed_at
            if silent > SILENT_S:
                return f"the store has not answered for {silent:.0f} s"
        return self.failed

    @property
    def at_work(self) -> bool:
        """Whether anything waits, or is with the writer."""
        return bool(self._waiting.queue) or self.busy

    def stir(self) -> None:
        """Begin a batch `linger` after the first fact of a quiet moment."""
        if not self.busy and self._timer is None:
            self._urgent = False
            self._timer = self._loop.call_later(self._linger, self._begin)

    def hurry(self) -> None:
        """Somebody waits: begin as soon as the writer is free."""
        if self._urgent and self._timer is not None:
            return  # it is about to: whoever comes in the meantime must not put it off
        self._urgent = True
        if not self.busy:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(0, self._begin)

    def look(self) -> None:
        """There is upkeep: it may be its turn."""
        if not self.busy and self._timer is None:
            self._timer = self._loop.call_later(0, self._begin)

    def marker(self) -> asyncio.Future[None]:
        """Done when everything that was recorded before is stored."""
        marker = self._waiting.mark()
        self.hurry()
        return marker

    async def settle(self) -> None:
        """Let what was recorded before reach the store; not for long, and not while the store takes nothing."""
        if self.problem is not None or not self.at_work:
            return
        stored = asyncio.shield(self.marker())
        self._settling.add(stored)
        try:
            await asyncio.wait((stored,), timeout=SILENT_S)
        finally:
            self._settling.discard(stored)
            stored.cancel()

    async def follow(self, waiter: asyncio.Future[None]) -> None:
        """Wait for something that comes with a commit; not while the store takes nothing, so look again."""
        self.hurry()
        silent = self._loop.call_later(SILENT_S, settle, waiter, None)
        self._settling.add(waiter)
        try:
            await waiter
        finally:
            silent.cancel()
            self._settling.discard(waiter)

    def _begin(self) -> None:
        """Hand what is there to the writer's thread, as one transaction."""
        self._timer = None
        if self.busy or self._begin_upkeep() or not self._waiting.queue:
            return
        self._urgent = False
        batch = self._waiting.take(MAX_BATCH)
        if self._waiting.queue:
            self._urgent = True
        durable = [item for item in batch if isinstance(item, Event) and item.seq]
        rows = [item.write for item in batch if isinstance(item, Row)]
        if not durable and not rows:
            self._published(batch, ())
            self._next()
            return
        self.busy = True
        self._handed_at, self.with_writer = self._loop.time(), batch
        faults.hit("before_commit")
        self._thread.submit(batch, durable, rows)

    def _begin_upkeep(self) -> bool:
        """Hand the next upkeep to the writer's thread, if it is its turn."""
        row = self._waiting.take_upkeep()
        if row is None:
            return False
        self.busy = True
        self._handed_at = self._loop.time()
        self._thread.submit([row], [], [row.write])
        return True

    def _try_again(self) -> None:
        """What could not be stored may be now: somebody may have mended the store."""
        self._waiting.release()
        self.hurry()

    def _sort_out(self, batch: list[Any], rejected: Sequence[Rejected]) -> list[Any]:
        """Put aside what the store is damaged for; the rest."""
        broken = {r.event.session_id: r.reason for r in rejected if r.damaged and r.event is not None}
        for item in batch:
            if isinstance(item, Event) and item.seq and item.session_id not in broken:
                self._waiting.mended(item.session_id)
        if not broken:
            return batch
        for session_id in broken.keys() - self._waiting.damaged.keys():
            log.error("the store is damaged where session %s is kept, which waits: %s", session_id, broken[session_id])
            self._breaks(session_id)
        if not self._waiting.holds:
            self._loop.call_later(MENDED_S, self._try_again)
        return self._waiting.put_aside(batch, broken)

    def _written(self, batch: list[Any], outcome: Outcome) -> None:
        """The writer's thread has an answer; runs on the event loop."""
        if outcome.error is not None:
            self._put_off(str(outcome.error), len(batch))
            return
        if self.failed is not None:
            log.info("the store is back")
        self.failed = None
        self._retry_s = RETRY_FIRST_S
        self.busy = False
        faults.hit("after_commit")
        self.with_writer = []
        self._published(self._sort_out(batch, outcome.rejected), outcome.rejected)
        self._next()

    def _put_off(self, told: str, facts: int) -> None:
        """The store is away: the same batch again in a while."""
        self.failures += 1
        if told != self.failed or self.failures % SAID_EVERY == 0:
            log.warning("the store is away, %d facts wait: %s", len(self._waiting.queue) + facts, told)
        self.failed = told
        for reader in self._settling:
            settle(reader, None)
        self._loop.call_later(self._retry_s, self._thread.again)
        self._retry_s = min(self._retry_s * 2, RETRY_MAX_S)

    def _next(self) -> None:
        queue = self._waiting.queue
        if not (queue or self._waiting.upkeep) or self.busy or self._timer is not None:
            return
        if self._urgent or not queue:
            self._begin()
        else:
            self.stir()

    async def close(self) -> None:
        """End the writer's thread; the last call."""
        await self._thread.close(END_S)
