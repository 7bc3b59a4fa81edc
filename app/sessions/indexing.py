"""Keeps the text index of messages up with the log: when nothing else is to be written, or at most some time behind.

Knows no SQL. A search looks at the messages that are not in the index yet as well, so nobody waits for this.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Protocol

from app.agent.errors import Unavailable
from app.agent.events import Event, Write
from app.sessions.journal import Journal
from app.sessions.ports import DAMAGED

log = logging.getLogger(__name__)

TABLE, TENANT = "text_index", "default"
QUIET_S = 1.0  # without a fact: larger parts cost less for each message
PURGE_WITHIN_S = 60.0
PURGE_STEPS = 50  # before the index is looked after again
PURGE_REST = 10  # times as long as the last purge took: each writes the whole index anew, however little was taken out
LOOK_S = 30.0  # without any fact: searches meet damage without one
AWAY_S, FAILED_S = 2.0, 60.0
NOT_KEPT_UP = "the text index is not kept up, the log of the service says why; searches are slower"


class IndexStore(Protocol):
    """Reads how far the index is."""

    async def missing(self) -> str | None:
        """Why this database has no index; None when it has one."""

    async def next_part(self) -> int | None:
        """Up to which message the next part goes that is to be indexed in one transaction; None: all are indexed."""

    @property
    def damaged(self) -> bool:
        """Whether a search met damage in the index since `mended`."""

    def mended(self) -> None:
        """It is made anew."""

    async def erased(self) -> bool:
        """Whether texts of messages that are gone are still to be taken out of the index."""

    async def purging(self) -> bool:
        """Whether something that was taken out still stands in the index, marked as gone."""


class Indexing:
    """One per process; used from the event loop. `lag_s`: how far the index may be behind while facts keep coming."""

    def __init__(self, journal: Journal, store: IndexStore, *, lag_s: float) -> None:
        self._journal = journal
        self._store = store
        self._lag_s = lag_s
        self._loop = asyncio.get_running_loop()
        self._stirred = asyncio.Event()
        self._last = 0.0
        self._purge_since: float | None = None
        self._purge_from = 0.0
        self._task: asyncio.Task[None] | None = None
        self.problem: str | None = None

    async def start(self) -> None:
        """Begin with what an earlier process has left."""
        self.problem = await self._store.missing()
        if self.problem is not None:
            log.warning("%s", self.problem)
            return
        self._journal.listen(self._observe)
        self._stirred.set()
        self._task = asyncio.create_task(self._work(), name="text index")

    async def close(self) -> None:
        """What is not indexed yet is left to the next process."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _observe(self, _: Sequence[Event]) -> None:
        self._last = self._loop.time()
        self._stirred.set()

    async def _work(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stirred.wait()
            self._stirred.clear()
            until = self._loop.time() + self._lag_s
            await self._quiet(until)
            try:
                if self._store.damaged:
                    await self._step(max(0.0, until - self._loop.time()), anew=True)
                    self._store.mended()
                await self._forget(until)
                await self._catch_up(until)
                await self._purge()
                self.problem = None
            except Unavailable as error:
                if error.code == DAMAGED:
                    self.problem = NOT_KEPT_UP
                    log.error("the text index could not be filled; it is tried again: %s", error)
                    await self._pause(FAILED_S)
                else:
                    log.info("the text index waits for the store: %s", error)
                    await self._pause(AWAY_S)
            except Exception:  # border of the task: without it, searches look at what is not indexed one by one
                self.problem = NOT_KEPT_UP
                log.exception("the text index could not be filled; it is tried again")
                await self._pause(FAILED_S)

    async def _quiet(self, until: float) -> None:
        """Wait until no fact has come for a while, but not beyond `until`."""
        while (rest := min(self._last + QUIET_S, until) - self._loop.time()) > 0:  # noqa: ASYNC110  the moment moves
            await asyncio.sleep(rest)

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._stirred.set()

    async def _forget(self, until: float) -> None:
        while await self._store.erased():
            await self._step(max(0.0, until - self._loop.time()), forget=True)

    async def _catch_up(self, until: float) -> None:
        while (upto := await self._store.next_part()) is not None:
            await self._step(max(0.0, until - self._loop.time()), upto=upto)

    async def _step(self, within_s: float, **asked: int) -> None:
        begun = self._loop.time()
        write = Write(table=TABLE, values={"tenant_id": TENANT, **asked}, key=("tenant_id",))
        await self._journal.write_aside(write, within_s)
        await asyncio.sleep(self._loop.time() - begun)  # half of the time belongs to everybody else

    async def _purge(self) -> None:
        rest = self._purge_from - self._loop.time()
        if rest > 0:
            if await self._store.purging():
                self._loop.call_later(rest, self._stirred.set)
            return
        for _ in range(PURGE_STEPS):
            now = self._loop.time()
            if not await self._store.purging():
                if self._purge_since is not None:
                    self._purge_from = now + PURGE_REST * (now - self._purge_since)
                    self._purge_since = None
                return
            self._purge_since = self._purge_since or now
            await self._step(PURGE_WITHIN_S, purge=True)
        self._stirred.set()
