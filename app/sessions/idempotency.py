"""`Idempotency-Key`: a request that is sent again is not carried out again (spec 14, reliability R16).

A key belongs to a tenant and stands for what its first request made. Its row is stored with the event that makes that,
so no crash comes between the two; a request that was refused before leaves no trace. What is in progress is known in
memory only: one process serves a database. Knows neither HTTP nor SQL.
"""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from app.agent import events
from app.agent.errors import Conflict, InvalidRequest, Unavailable
from app.agent.events import Event, EventKind, Write
from app.agent.ids import now_us
from app.agent.patience import STOPPING
from app.sessions.along import along
from app.sessions.journal import TAKE_S, Journal
from app.sessions.views import started_view
from app.wire import decode, encode

HEADER = "Idempotency-Key"
MAX_CHARS = 255
CLEAN_EVERY_S = 60.0  # for each tenant, when it uses a key
CLEAN_ROWS = 200  # at once: few enough for one short transaction
CLOSE_S = 0.2  # for answers whose work is done

T = TypeVar("T")


class KeyReused(InvalidRequest):
    """The key stands for another request."""

    code = "idempotency_key_reused"


class KeyInUse(Conflict):
    """The first request with this key has no answer yet."""

    code = "idempotency_key_in_use"
    retry_after_s = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRequest:
    """A request with a key. `name` is a digest of the key, since a client may send anything, also what is secret;
    `digest` is that of the body."""

    tenant: str
    name: str
    route: str
    digest: bytes

    def need_same(self, route: str, digest: bytes) -> None:
        """Raises `KeyReused` unless this is the request that the key stands for."""
        if route == self.route and digest == self.digest:
            return
        other = f"it was first sent to {route}" if route != self.route else "it was first sent with another body"
        raise KeyReused(
            f"this {HEADER} belongs to another request: {other}; take a new key for each request",
            errors=[{"at": HEADER, "message": "belongs to another request"}],
        )


def keyed(tenant: str, key: str, route: str, body: Any) -> KeyedRequest:
    """A request with a key. `body` is the parsed JSON: neither white space nor the order of the keys of an object
    makes it another one. Raises `InvalidRequest` for what is no key."""
    if not 1 <= len(key) <= MAX_CHARS or not all(" " <= char <= "~" for char in key):
        raise InvalidRequest(
            f"the header {HEADER} must have 1 to {MAX_CHARS} printable ASCII characters, a UUID for instance",
            code="invalid_idempotency_key",
            errors=[{"at": HEADER, "message": f"1 to {MAX_CHARS} printable ASCII characters"}],
        )
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return KeyedRequest(
        tenant=tenant,
        name=hashlib.sha256(key.encode()).hexdigest(),
        route=route,
        digest=hashlib.sha256(canonical.encode()).digest(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """Which event makes what a route is asked for (the first of several kinds), with which status it answers (None: not
    known by then), and what is kept of the answer: at least `id`, that of the resource."""

    kinds: tuple[EventKind[Any], ...]
    status: int | None
    kept: Callable[[Event], Mapping[str, Any]]


def _queued(event: Event, after: int) -> Mapping[str, Any]:
    assert event.run is not None
    return started_view(event.run, after)


def _resumed(event: Event) -> Mapping[str, Any]:
    """A subagent's run follows the start of its handoff: until then it is known by that."""
    if event.run is not None:
        return _queued(event, event.seq - 1)
    return {**_delegated(event, event.seq - 1), "session_id": event.session_id}


def _delegated(event: Event, after: int) -> Mapping[str, Any]:
    return {"id": event.payload["handoff_id"], "after": after}


# A session's answer says more than a key may keep: it is read from the event, which is erased with the session.
SESSION = Making(kinds=(events.SESSION_CREATED,), status=201, kept=lambda event: {"id": event.session_id})
ONE_SHOT = Making(kinds=(events.RUN_QUEUED,), status=202, kept=lambda event: _queued(event, 0))
TURN = Making(kinds=(events.RUN_QUEUED,), status=202, kept=lambda event: _queued(event, event.seq - 1))
DELEGATION = Making(kinds=(events.HANDOFF_START,), status=None, kept=lambda event: _delegated(event, 0))
DELEGATION_IN_SESSION = Making(
    kinds=(events.HANDOFF_START,), status=None, kept=lambda event: _delegated(event, event.seq - 1)
)
RESUMED = Making(kinds=(events.HANDOFF_START, events.RUN_QUEUED), status=202, kept=_resumed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a key stands for."""

    route: str
    digest: bytes
    session_id: str
    answer: bytes


class IdempotencyStore(Protocol):
    """Reads keys back."""

    async def find(self, tenant: str, name: str, now: int) -> Kept | None:
        """What a key stands for; None when it is unknown or was given before its time ran out. `now` in µs."""

    async def expired(self, tenant: str, now: int, limit: int) -> Sequence[tuple[str, int]]:
        """Names of keys that stand for nothing any more, at most `limit`, each with the µs when that began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Once(Generic[T]):
    """What came of a request. `made` None: it was carried out before. `kept`: what its key keeps, None without a
    key."""

    made: T | None = None
    kept: Mapping[str, Any] | None = None

    @property
    def replayed(self) -> bool:
        """Whether this is the answer to an earlier request."""
        return self.made is None


class _Claim:
    """A request that is looked up and carried out. `found`: what its key stands for already, for those who come
    meanwhile."""

    __slots__ = ("found", "request")

    def __init__(self, request: KeyedRequest) -> None:
        self.request = request
        self.found: asyncio.Future[Kept | None] = asyncio.get_running_loop().create_future()


def _again(request: KeyedRequest, found: Kept) -> Once[Any]:
    request.need_same(found.route, found.digest)
    return Once(kept=decode(found.answer))


class Idempotency:
    """The keys of all tenants. One per process. `keep_s`: how long a key stands for its request."""

    def __init__(self, store: IdempotencyStore, journal: Journal, keep_s: float) -> None:
        self._store = store
        self._journal = journal
        self._keep_us = int(keep_s * 1_000_000)
        self._open: dict[tuple[str, str], _Claim] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._looking: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self._cleaned: dict[str, float] = {}  # when, by tenant

    async def once(self, request: KeyedRequest, making: Making, work: Callable[[], Awaitable[T]]) -> Once[T]:
        """Do the work unless its key has done it before; it goes on when the caller goes away. `work` returns when
        what it makes is recorded. Raises `KeyReused`, `KeyInUse`, and what `work` raises; after that the key stands
        for nothing unless the event was recorded."""
        other = self._open.get((request.tenant, request.name))
        if other is None:
            claim = _Claim(request)
            self._open[request.tenant, request.name] = claim
            return await asyncio.shield(self._begin(self._once(claim, making, work)))
        found = await asyncio.shield(other.found)
        if found is not None:
            return _again(request, found)
        request.need_same(other.request.route, other.request.digest)
        raise KeyInUse(f"the first request with this {HEADER} is not answered yet: send it again in a moment")

    async def _once(self, claim: _Claim, making: Making, work: Callable[[], Awaitable[T]]) -> Once[T]:
        request = claim.request
        try:
            found = await self._looked_up(request)
            claim.found.set_result(found)
            if found is not None:
                return _again(request, found)
            answers: list[Mapping[str, Any]] = []
            with along(partial(self._row, request, making, answers)):
                made = await work()
            self._clean_soon(request.tenant)
            return Once(made=made, kept=answers[0] if answers else None)
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            # What it made, if anything, stands in the log with its key: the next process answers with that.
            raise Unavailable("the service is stopping: send it again in a moment", code=STOPPING) from None
        finally:
            del self._open[request.tenant, request.name]
            if not claim.found.done():
                claim.found.set_result(None)

    async def _looked_up(self, request: KeyedRequest) -> Kept | None:
        """What a key stands for."""
        task = asyncio.current_task()
        assert task is not None, "requests are carried out in tasks of their own"
        if self._stopping:
            raise asyncio.CancelledError
        self._looking.add(task)
        try:
            # A request that was cut short may have recorded its event while the store was away.
            await self._journal.flush(TAKE_S)
            return await self._store.find(request.tenant, request.name, now_us())
        finally:
            self._looking.discard(task)

    def _row(
        self, request: KeyedRequest, making: Making, answers: list[Mapping[str, Any]], event: Event
    ) -> Write | None:
        """The row of a key, for the event that makes its resource."""
        if event.type not in {kind.name for kind in making.kinds}:
            return None
        kept = making.kept(event)
        answers.append(kept)
        values = {
            "tenant_id": request.tenant,
            "key": request.name,
            "route": request.route,
            "body_digest": request.digest,
            "session_id": event.session_id,
            "resource_id": kept["id"],
            "status": making.status,
            "body": encode(kept),
            "created_at": event.ts,
            "expires_at": event.ts + self._keep_us,
        }
        return Write(table="idempotency_keys", values=values, key=("key",))  # in place of one whose time ran out

    # ── rows whose time ran out ─────────────────────────────────────────────────────────────────────────────────

    def _clean_soon(self, tenant: str) -> None:
        """Remove some of them now and then; each request adds one at most, so there are never many."""
        now = asyncio.get_running_loop().time()
        if now - self._cleaned.get(tenant, float("-inf")) >= CLEAN_EVERY_S:
            self._cleaned[tenant] = now
            _ = self._begin(self._clean(tenant))

    async def _clean(self, tenant: str) -> None:
        try:
            found = await self._store.expired(tenant, now_us(), CLEAN_ROWS)
        except Unavailable:
            return  # there is a next time
        if len(found) == CLEAN_ROWS:
            self._cleaned.pop(tenant, None)
        # The time belongs to what is deleted: the key may be used again meanwhile.
        gone = [{"tenant_id": tenant, "key": name, "expires_at": expired} for name, expired in found]
        writes = [Write(table="idempotency_keys", values=row, key=("key", "expires_at"), delete=True) for row in gone]
        with contextlib.suppress(Unavailable):  # there is a next time
            await asyncio.gather(*map(self._journal.write, writes))

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name="idempotency")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # fetched here for callers that are not there any more

    def refuse(self) -> None:
        """Carry out nothing that has not begun: whoever is still looked up is told to ask again."""
        self._stopping = True
        for task in self._looking:
            task.cancel()

    async def close(self) -> None:
        """End what is still being carried out, most of which only reads."""
        self.refuse()
        tasks = set(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
