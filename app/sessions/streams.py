"""The numbers of the sessions that are worked in: which was given last, which is published, and who waits for one.

Knows neither what a number stands for nor how it is stored.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from app.agent.errors import NotFound
from app.agent.ports import EventLog
from app.agent.runs import Run
from app.masking import StreamMasker
from app.sessions.waiting import settle

IDLE_STREAMS = 1_000  # sessions without open work whose numbers are kept at hand


class Offset:
    """How far a text of a step has been shown. `lost`: a piece was not, so that none of the rest is."""

    __slots__ = ("at", "lost", "mask", "step")

    def __init__(self, step: int, mask: StreamMasker | None) -> None:
        self.step = step
        self.at = 0
        self.lost = False
        self.mask = mask


class Stream:
    """One session's numbers. `recorded` is the last number given, `stored` the last one published; `refused`: why that
    one was not stored, with nothing in its place. `scopes`: of each open run what its events begin with; `texts`: what
    its step is showing."""

    __slots__ = ("open", "recorded", "refused", "scopes", "session_id", "stored", "tenant", "texts", "waiters")

    def __init__(self, tenant: str, session_id: str, head: int) -> None:
        self.tenant = tenant
        self.session_id = session_id
        self.recorded = head
        self.stored = head
        self.refused: str | None = None
        self.open = True
        self.scopes: dict[str, tuple[bytes, Run | None]] = {}
        self.texts: dict[str, dict[tuple[str, str | None], Offset]] = {}
        self.waiters: list[tuple[int, asyncio.Future[None]]] = []

    def wake(self) -> None:
        """Tell who waits for a number that is stored now."""
        if not self.waiters:
            return
        ready = [waiter for seq, waiter in self.waiters if seq <= self.stored]
        self.waiters = [(seq, waiter) for seq, waiter in self.waiters if seq > self.stored]
        for waiter in ready:
            settle(waiter, None)


class Streams:
    """All of them. `at_hand` is for those who need one of a session that is open; `in_use` says of a session whether
    something of it is still on its way to the store."""

    def __init__(self, log: EventLog, in_use: Callable[[str], bool]) -> None:
        self._log = log
        self._in_use = in_use
        self.at_hand: dict[str, Stream] = {}
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()

    def create(self, tenant: str, session_id: str) -> None:
        """Begin the numbers of a new session."""
        self.at_hand[session_id] = Stream(tenant, session_id, 0)

    async def open(self, tenant: str, session_id: str) -> None:
        """Make the numbers of a session known, and keep them until `release`. Raises `NotFound` when it is unknown or
        was erased: numbers that began again would be those of stored events."""
        while session_id not in self.at_hand:  # again when somebody else was done with it in between
            loading = self._loading.get(session_id)
            if loading is None:
                loading = self._loading[session_id] = asyncio.create_task(self._load(tenant, session_id))
            await asyncio.shield(loading)
        self.at_hand[session_id].open = True
        self._idle.pop(session_id, None)

    async def _load(self, tenant: str, session_id: str) -> None:
        """Read where a session's numbers go on; once for all who ask, since a second answer would be an old one."""
        try:
            head = await self._log.head(tenant, session_id)
            if head is None:
                raise NotFound(f"there is no session {session_id!r}")
            self.at_hand[session_id] = Stream(tenant, session_id, head)
        finally:
            del self._loading[session_id]

    def release(self, session_id: str) -> None:
        """The session has no open work: its numbers may be forgotten when they are no longer needed."""
        stream = self.at_hand.get(session_id)
        if stream is None:
            return
        stream.open = False
        self._idle[session_id] = None
        self._idle.move_to_end(session_id)
        for old in list(islice(self._idle, max(0, len(self._idle) - IDLE_STREAMS))):
            kept = self.at_hand[old]
            if not self._in_use(old) and kept.recorded == kept.stored and not kept.waiters:
                del self.at_hand[old], self._idle[old]
