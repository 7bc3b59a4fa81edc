"""Completion webhooks: who asked for it is told the last event of a run or delegation, at least once (spec 9.9).

Knows no SQL and no HTTP. Says what is to be told to whom, and from when on; `deliveries` carries it there.

    start of a run + row ─▶ its last event, committed ─▶ row due ─▶ lane of tenant and host ─▶ delivered | given up
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from app.agent import events
from app.agent.errors import InvalidRequest
from app.agent.events import Event, Write
from app.agent.ids import new_id, now_us
from app.agent.runs import Session
from app.sessions.deliveries import PENDING, TABLE, Deliveries, Retries, Sender, WebhookStore, patiently
from app.sessions.journal import Journal
from app.sessions.views import moment

NOTED = 500  # ends that are noted in one transaction
MAX_URL_CHARS = 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """A run or handoff that has ended: the number and the time of its last event."""

    tenant: str
    id: str
    host: str
    seq: int
    at: int


class Webhooks:
    """One per process; used from the event loop. `sender` None: nothing is sent, and no request may ask for it.
    `masked`: a text without secrets. `told` hears how each try ended: `delivered`, `failed` or `given_up`."""

    def __init__(
        self,
        journal: Journal,
        store: WebhookStore,
        sender: Sender | None = None,
        *,
        retries: Retries | None = None,
        per_host: int = 4,
        masked: Callable[[str], str] = str,
        told: Callable[[str], None] = lambda outcome: None,
    ) -> None:
        self._journal = journal
        self._store = store
        self._sender = sender
        self._masked = masked
        self._deliveries: Deliveries | None = None
        self._awaited: dict[str, str] = {}  # runs and handoffs that go on, and the host
        self._ended: deque[_Ended] = deque()
        self._stirred = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        if sender is not None:
            self._deliveries = Deliveries(
                journal, store, sender, retries=retries or Retries(), per_host=per_host, told=told
            )
            journal.listen(self._observe)

    # ── asking for one ──────────────────────────────────────────────────────────────────────────────────────────

    def check(self, url: str | None) -> None:
        """Raises `InvalidRequest` when nothing can be sent there."""
        if url is None:
            return
        if self._sender is None:
            raise _refused("this service sends none: the setting webhooks.hosts names the hosts that may be told")
        if "#" in url or any(char <= " " or char == "\x7f" for char in url):
            raise _refused(
                "the URL holds white space, a control character or a fragment, which is not sent: leave it out"
            )
        if len(url) > MAX_URL_CHARS:
            raise _refused(f"the URL is longer than {MAX_URL_CHARS} characters")
        try:
            self._sender.host(url)
        except ValueError as error:
            raise _refused(str(error)) from None
        if self._masked(url) != url:
            raise _refused(
                "the URL holds what looks like a secret, and it would be stored: leave it out, the signature shows the "
                "receiver who sends"
            )

    @contextlib.contextmanager
    def asked(self, session: Session, subject: Literal["run", "ho"], url: str | None) -> Iterator[str | None]:
        """Around the start of what is to be told about; gives the id that it is to have, None: any. The row is stored
        in the transaction of the first event inside, which is recorded before anything is awaited."""
        if url is None or self._sender is None:
            yield None
            return
        subject_id = new_id(subject)
        values = {
            "tenant_id": session.tenant,
            "id": subject_id,
            "session_id": session.id,
            "host": self._sender.host(url),
            "url": url,
            "status": PENDING,
            "attempts": 0,
            "created_at": now_us(),
        }
        with self._journal.along(session.id, Write(table=TABLE, values=values)):
            yield subject_id

    async def view(self, tenant: str, subject_id: str) -> dict[str, Any]:
        """`{"webhook": …}` as a client sees it, empty when none was asked for."""
        row = await self._store.webhook(tenant, subject_id)
        if row is None:
            return {}
        shown = {name: row[name] for name in ("host", "status", "attempts", "last_error")}
        return {"webhook": {**shown, "next_at": moment(row["next_at"]), "ended_at": moment(row["ended_at"])}}

    # ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _observe(self, published: Sequence[Event]) -> None:
        """A listener of the journal: what it sees is committed."""
        for event in published:
            for write in event.also:
                if write.table == TABLE:
                    self._awaited[write.values["id"]] = write.values["host"]
            if not self._awaited:
                continue
            subject_id = _subject(event)
            host = self._awaited.pop(subject_id, None)
            if host is not None:
                self._ended.append(_Ended(tenant=event.tenant, id=subject_id, host=host, seq=event.seq, at=event.ts))
                self._stirred.set()

    async def start(self) -> None:
        """Take up what waits, also what has ended while nobody listened; then carry on with what ends. Called before
        runs of an earlier process go on."""
        if self._deliveries is not None:
            after = ""
            while rows := await self._store.awaited(after, NOTED):
                self._awaited.update({row["id"]: row["host"] for row in rows})
                after = rows[-1]["id"]
            tasks = (self._take_up(self._deliveries), self._note_ends(self._deliveries))
            self._tasks = [asyncio.create_task(task, name="webhooks") for task in tasks]

    async def close(self) -> None:
        """Send nothing more; what waits is taken up at the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._deliveries is not None:
            await self._deliveries.close()

    async def _take_up(self, deliveries: Deliveries) -> None:
        after = ""
        while rows := await patiently(partial(self._store.ended, after, NOTED)):
            ended = [
                _Ended(tenant=r["tenant_id"], id=r["id"], host=r["host"], seq=r["event_seq"], at=r["ended_at"])
                for r in rows
            ]
            await _note(deliveries, ended)
            after = rows[-1]["id"]
        for tenant, host in await patiently(self._store.lanes):
            deliveries.kick(tenant, host)

    async def _note_ends(self, deliveries: Deliveries) -> None:
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            while self._ended:
                await _note(deliveries, [self._ended.popleft() for _ in range(min(NOTED, len(self._ended)))])


async def _note(deliveries: Deliveries, ended: Sequence[_Ended]) -> None:
    """Store that these are due, and begin."""
    total = round(deliveries.retries.total_s * 1_000_000)
    changes = [
        deliveries.change(one.tenant, one.id, event_seq=one.seq, next_at=one.at, until=one.at + total) for one in ended
    ]
    await asyncio.gather(*changes)
    for key in {(one.tenant, one.host) for one in ended}:
        deliveries.kick(*key)


def _subject(event: Event) -> str:
    """The run or handoff that the event ends; empty: none."""
    if event.type in events.FINAL_TYPES:
        return event.run.id if event.run is not None else ""
    return str(event.payload["handoff_id"]) if event.type == events.HANDOFF_END.name else ""


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(f"webhook: {why}", code="webhook_refused", errors=[{"at": "webhook", "message": why}])
