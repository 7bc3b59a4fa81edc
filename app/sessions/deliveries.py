"""Carries webhook messages to their receivers, each until it is taken or its time is over.

Knows no SQL and no HTTP. What waits stands in the store, however much that is; in memory is one page for each lane,
which is what goes to one host for one tenant.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from app.agent.errors import Unavailable
from app.agent.events import Write
from app.agent.ids import now_us
from app.sessions.journal import Journal
from app.sessions.ports import DAMAGED
from app.wire import event_json

log = logging.getLogger(__name__)

TABLE = "webhooks"
PENDING, DELIVERED, GIVEN_UP, FAILED = "pending", "delivered", "given_up", "failed"  # `FAILED`: a try, not a webhook
GONE = 410  # the receiver wants nothing more
PAGE = 16  # rows of a lane that are in memory
AGAIN_S = 1.0  # between two looks for what is due beside what is under way
LOOK_S = 300.0  # a lane looks again after this at the latest, should the clock of the machine be set
AWAY_S = 1.0  # before the store is asked again
MAX_ERROR_CHARS = 300

Row = Mapping[str, Any]
T = TypeVar("T")


class SendFailed(Exception):
    """No answer was heard; the text says why and holds no more of the URL than its host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What a receiver answered. `retry_after_s`: how long it wants to be left alone, None if it does not say."""

    status: int
    retry_after_s: float | None = None

    @property
    def taken(self) -> bool:
        """Whether it has the message."""
        return 200 <= self.status < 300


class Sender(Protocol):
    """Carries messages to receivers."""

    def host(self, url: str) -> str:
        """The host of a URL as people may see it. Raises ValueError that says why nothing is sent there."""

    async def send(self, url: str, message_id: str, body: bytes) -> Heard:
        """One signed try, bounded in time. Raises `SendFailed`."""


class WebhookStore(Protocol):
    """Reads the table `webhooks`. The id of a row is that of the run or handoff that it is about."""

    async def webhook(self, tenant: str, subject_id: str) -> Row | None:
        """That of a run or handoff."""

    async def due(self, tenant: str, host: str, now: int, limit: int) -> Sequence[Row]:
        """Those to be tried now, the longest due first."""

    async def next_at(self, tenant: str, host: str) -> int | None:
        """When the next one is due, in µs; None: none waits."""

    async def lanes(self) -> Sequence[tuple[str, str]]:
        """Each tenant and host for which something waits."""

    async def awaited(self, after: str, limit: int) -> Sequence[Mapping[str, Any]]:
        """Those whose run or handoff has not ended, by id."""

    async def ended(self, after: str, limit: int) -> Sequence[Row]:
        """Those whose run or handoff has ended, which is not noted yet, by id: with `event_seq` and `ended_at`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """When a message is tried again: pauses double from `first_s` up to `most_s`, half of each at random. After
    `total_s` from the end of the run there is one last try."""

    first_s: float = 5.0
    most_s: float = 3_600.0
    total_s: float = 86_400.0

    def pause_s(self, tries: int, wanted_s: float | None = None) -> float:
        """After so many tries; what a receiver wants is honoured up to `most_s`."""
        full = min(self.most_s, self.first_s * 2.0 ** min(tries - 1, 40))
        return min(self.most_s, max(full * random.uniform(0.5, 1.0), wanted_s or 0.0))


class _Lane:
    """What goes to one host for one tenant. Exists while something waits."""

    __slots__ = ("ended", "kicked", "task", "under_way")

    def __init__(self) -> None:
        self.kicked = asyncio.Event()
        self.under_way: dict[str, asyncio.Task[None]] = {}
        self.ended: set[str] = set()  # since what is due was asked for
        self.task: asyncio.Task[None] | None = None


class Deliveries:
    """One per process; used from the event loop. `per_host`: tries under way to one host. `told` hears how each try
    ended: `delivered`, `failed` or `given_up`."""

    def __init__(
        self,
        journal: Journal,
        store: WebhookStore,
        sender: Sender,
        *,
        retries: Retries,
        per_host: int,
        told: Callable[[str], None],
    ) -> None:
        self._journal = journal
        self._store = store
        self._sender = sender
        self.retries = retries
        self._per_host = per_host
        self._told = told
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._gates: dict[str, asyncio.Semaphore] = {}

    async def close(self) -> None:
        """Send nothing more."""
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._lanes.clear()

    async def change(self, tenant: str, subject_id: str, **values: Any) -> None:
        """Change a row; one whose session was erased is gone and stays so."""
        values |= {"tenant_id": tenant, "id": subject_id}
        try:
            await self._journal.write(Write(table=TABLE, values=values, key=("id",), change=True), timeout_s=None)
        except ValueError as error:
            log.error("the state of the webhook of %s was not stored: %s", subject_id, error)
            await asyncio.sleep(AWAY_S)  # what is still due is sent again: not without a pause

    def kick(self, tenant: str, host: str) -> None:
        """Something is due there."""
        lane = self._lanes.get((tenant, host))
        if lane is None or (lane.task is not None and lane.task.done()):
            lane = self._lanes[tenant, host] = _Lane()
            lane.task = asyncio.create_task(self._drive(tenant, host, lane), name=f"webhooks to {host}")
        lane.kicked.set()

    async def _drive(self, tenant: str, host: str, lane: _Lane) -> None:
        """Send what is due, wait for what comes next; the end when nothing waits."""
        try:
            while True:
                lane.kicked.clear()
                lane.ended.clear()
                for row in await patiently(partial(self._store.due, tenant, host, now_us(), PAGE)):
                    if row["id"] not in lane.under_way and row["id"] not in lane.ended:
                        self._begin(lane, row)
                following = await patiently(partial(self._store.next_at, tenant, host))
                if following is None and not lane.under_way and not lane.kicked.is_set():
                    del self._lanes[tenant, host]
                    return
                wait_s = LOOK_S if following is None else min(LOOK_S, (following - now_us()) / 1_000_000)
                with contextlib.suppress(TimeoutError):
                    # what is under way is due as well, and kicks when it has ended
                    async with asyncio.timeout(max(AGAIN_S if lane.under_way else 0.0, wait_s)):
                        await lane.kicked.wait()
        finally:
            tasks = list(lane.under_way.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, lane: _Lane, row: Row) -> None:
        """One try, beside those that are under way."""
        task = asyncio.create_task(self._deliver(row), name=f"webhook of {row['id']}")
        lane.under_way[row["id"]] = task

        def ended(_: asyncio.Task[None]) -> None:
            del lane.under_way[row["id"]]
            lane.ended.add(row["id"])  # what is being read may still show it as due
            lane.kicked.set()
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("the webhook of %s is tried again", row["id"], exc_info=error)

        task.add_done_callback(ended)

    async def _deliver(self, row: Row) -> None:
        """One try, and what follows from it."""
        tenant, subject_id, tries = row["tenant_id"], row["id"], row["attempts"] + 1
        gate = self._gates.setdefault(row["host"], asyncio.Semaphore(self._per_host))
        async with gate:
            outcome, error, pause_s = await self._tried(row, tries)
        now = now_us()
        if outcome == FAILED and now >= row["until"]:
            outcome = GIVEN_UP
        if outcome == FAILED:
            at = min(now + round(pause_s * 1_000_000), row["until"])
            await self.change(tenant, subject_id, attempts=tries, next_at=at, last_error=error)
        else:
            if outcome == GIVEN_UP:
                log.warning("nobody was told of the end of %s, after %d tries: %s", subject_id, tries, error)
            state = {"status": outcome, "attempts": tries, "next_at": None, "ended_at": now, "last_error": error}
            await self.change(tenant, subject_id, **state, url=None)
        self._told(outcome)

    async def _body(self, row: Row) -> bytes | None:
        """The event as streams show it, from the log."""
        seq = row["event_seq"]
        try:
            page = await self._journal.log.page(row["tenant_id"], row["session_id"], after=seq - 1, upto=seq, limit=1)
        except Unavailable as error:
            if error.code != DAMAGED:
                raise
            raise SendFailed("its event cannot be read: the store is damaged there") from error  # others have a turn
        return event_json(page[0].envelope, page[0].data) if page else None

    async def _tried(self, row: Row, tries: int) -> tuple[str, str | None, float]:
        """The outcome of a try, what was wrong, and the pause after it."""
        message_id = f"msg_{row['session_id'].removeprefix('ses_')}_{row['event_seq']}"
        try:
            body = await patiently(partial(self._body, row))
            if body is None:  # erased with its session, and so is the row
                return GIVEN_UP, "its event is not there any more", 0.0
            heard = await self._sender.send(row["url"], message_id, body)
        except SendFailed as error:
            return FAILED, str(error)[:MAX_ERROR_CHARS], self.retries.pause_s(tries)
        except Exception:  # border to log and network: one message that cannot be sent must not end its lane
            log.exception("the webhook of %s could not be sent", row["id"])
            return FAILED, "it could not be sent", self.retries.pause_s(tries)
        if heard.taken:
            return DELIVERED, None, 0.0
        said = f"{row['host']} answered with status {heard.status}"
        if heard.status == GONE:
            return GIVEN_UP, f"{said}: it wants no more", 0.0
        return FAILED, said, self.retries.pause_s(tries, heard.retry_after_s)


async def patiently(read: Callable[[], Awaitable[T]]) -> T:
    """Read from the store, again while it is away."""
    while True:
        try:
            return await read()
        except Unavailable as error:
            log.warning("webhooks wait for the store: %s", error)
            await asyncio.sleep(AWAY_S)
