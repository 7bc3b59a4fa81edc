"""Sessions: start, cancel, change, read. Every question of a client ends here; HTTP and CLI only translate.

Knows no HTTP, no SQL and no concrete model or tool.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

from app.agent import events
from app.agent.chat import ModelCatalog
from app.agent.delegation import Roster
from app.agent.errors import Conflict, NotFound, Unavailable
from app.agent.notices import Notice, NoticeKind
from app.agent.patience import STOPPING
from app.agent.payloads import SessionClosed, SessionCreated, SessionUpdated
from app.agent.run_ports import RunStore, SessionCounters
from app.agent.runs import FINAL_STATUSES, Run, RunRequest, Session
from app.agent.shared_memories import MemorySeat
from app.agent.supervisor import RunSupervisor
from app.sessions.feed import View
from app.sessions.inbox import Inbox
from app.sessions.journal import TAKE_S, Journal
from app.sessions.kept import KeptSessions
from app.sessions.opening import Opening, checked_agents, config_of
from app.sessions.policies import Policies
from app.sessions.requests import OnBusy, RunInput, SessionInput
from app.sessions.turn_requests import Defaults, TurnRequests
from app.sessions.views import created_view, run_view, session_view, tree_view, with_late_tasks
from app.sessions.webhooks import Webhooks
from app.wire import decode, event_json

KNOWN_SESSIONS = 1_000  # at hand
KNOWN_BYTES = 8 << 20  # all of them, when they are plain; a few hundred that brought many agents of their own

FRESH = SessionCounters()
NOTHING_MORE: Mapping[str, int] = MappingProxyType({})


class SessionStore(RunStore, Protocol):
    """What the service reads besides runs."""

    async def sessions(self, tenant: str, cursor: str | None, limit: int) -> tuple[list[Mapping[str, Any]], str | None]:
        """Newest first; the second value is the cursor of the next page."""

    async def turns(self, tenant: str, session_id: str, *, after: int, limit: int) -> list[Mapping[str, Any]]:
        """Runs of a session that no other run has started, by ordinal, behind that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A run that was started, and where its events begin."""

    run: Run
    after: int


class Sessions:
    """The service. One per process; used from the event loop."""

    def __init__(
        self,
        *,
        supervisor: RunSupervisor,
        journal: Journal,
        store: SessionStore,
        roster: Roster,
        models: ModelCatalog,
        opening: Opening,
        defaults: Defaults,
        inbox: Inbox,
        policies: Policies,
        webhooks: Webhooks,
    ) -> None:
        self._supervisor = supervisor
        self._journal = journal
        self._store = store
        self._roster = roster
        self._opening = opening
        self._defaults = defaults
        self._inbox = inbox
        self.policies = policies
        self.webhooks = webhooks
        self.requests = TurnRequests(roster, models, opening, defaults, policies, webhooks, supervisor.equipment)
        self._known = KeptSessions(KNOWN_SESSIONS, KNOWN_BYTES)
        self.stopping = False
        self.gate: Callable[[str], Awaitable[None]] = _open_gate

    # ── sessions ────────────────────────────────────────────────────────────────────────────────────────────────

    async def create(self, tenant: str, given: SessionInput) -> dict[str, Any]:
        """Make a session; it is stored when this returns."""
        session = self.draft(tenant, given)
        self.begin(session, given)
        await self._journal.flush(TAKE_S, of=session.id)
        self._journal.release(session.id)
        return await self.session(tenant, session.id)

    def check_open(self) -> None:
        """Raises `Unavailable` when the service is stopping: nothing is begun any more."""
        if self.stopping:
            raise Unavailable("the service is stopping: try again in a moment", code=STOPPING)

    def draft(self, tenant: str, given: SessionInput, *, lead: bool = True) -> Session:
        """The session that a request describes, not yet recorded: everything that can be refused is refused here.
        `lead` False: without a lead agent unless one is named. Raises `Unavailable` where new ones cannot be kept."""
        self.check_open()
        self._journal.need_place()
        agent = given.agent or (self._defaults.agent if lead else None)
        session = self._opening.new(tenant, given, agent)
        if agent is not None:
            self.requests.request(session, RunInput(input=""))  # what a first run would be refused for is refused now
        checked_agents(session, self._roster)
        return session

    def begin(self, session: Session, given: SessionInput) -> None:
        """Record a new session. Its numbers stay at hand until it was worked in or is released."""
        self._journal.create(session.tenant, session.id)
        self._known.keep(session.id, session)
        payload = SessionCreated(
            agent=session.agent,
            memory_id=session.memory_id,
            title=session.title,
            user=session.user,
            metadata=dict(session.metadata),
            config=config_of(given),
        )
        self._journal.record(session, events.SESSION_CREATED, payload)

    async def known(self, tenant: str, session_id: str, *, at_once: bool = False) -> Session:
        """The session value, once what an earlier process left of it is gone on with or closed (`at_once`: before).
        Raises `NotFound` for unknown ids and those of other tenants."""
        if not at_once:
            await self.gate(session_id)
        if session_id not in self._known:
            if self._journal.head(session_id) is not None:  # else nothing of it waits to be stored
                await self._journal.flush(TAKE_S)  # that it was closed may not be in the row yet
            read = self._opening.again(await self._row(tenant, session_id))
            if session_id not in self._known:  # else another caller was first, and may have changed it since
                self._known.keep(session_id, read)
        session = self._known.get(session_id)
        if session is None or session.tenant != tenant:
            raise _no_session(session_id)
        return session

    async def open_for_work(self, tenant: str, session_id: str) -> Session:
        """The session as it is now. Raises `Conflict` when it is closed, `NotFound`, `Unavailable` when the store is
        damaged where it is kept."""
        self._journal.need_whole(session_id)
        session = await self.known(tenant, session_id)
        if session.closed:
            raise Conflict(f"session {session_id} is closed: start a new one", code="session_closed")
        return session

    async def _row(self, tenant: str, session_id: str) -> Mapping[str, Any]:
        row = await self._store.session(tenant, session_id)
        if row is None:
            raise _no_session(session_id)
        return row

    async def session(self, tenant: str, session_id: str) -> dict[str, Any]:
        """One session as a client sees it."""
        if self._journal.head(session_id) is not None:
            await self._journal.settle()
        return session_view(await self._row(tenant, session_id), self._supervisor.busy(session_id))

    async def created(self, tenant: str, session_id: str) -> dict[str, Any]:
        """One session as `create` answered it."""
        await self.known(tenant, session_id)
        found = await self._journal.log.page(tenant, session_id, after=0, upto=1)
        if not found:  # erased this moment
            raise _no_session(session_id)
        return created_view(decode(event_json(found[0].envelope, found[0].data)))

    async def sessions(self, tenant: str, cursor: str | None, limit: int) -> dict[str, Any]:
        """A page of sessions, newest first."""
        rows, following = await self._store.sessions(tenant, cursor, limit)
        return {"items": [session_view(row, self._supervisor.busy(row["id"])) for row in rows], "next": following}

    @asynccontextmanager
    async def opened(self, session: Session, more: Mapping[str, int] = NOTHING_MORE) -> AsyncIterator[None]:
        """Keep a session's numbers at hand while something is recorded in it. `more`: spent by runs that are open."""
        self.check_open()
        counters = FRESH
        if not self._supervisor.knows(session.id):
            await self._journal.flush(TAKE_S)  # what the counters are read from
            counters = await self._counters(session, more)
            await self._inbox.restore(session)
            untold = await self._untold(session)
            if not self._supervisor.knows(session.id):  # else others have begun, and may have told some of them
                self._supervisor.notices.restore(untold)
        # Last, and nothing is awaited between this and `work`: whoever leaves meanwhile lets the numbers be forgotten.
        await self._journal.open(session.tenant, session.id)
        with self._supervisor.work(session, counters):
            yield

    async def _untold(self, session: Session) -> Sequence[Notice]:
        """What nobody was told in an earlier process, with the runs above those that it is for."""
        untold = await self._store.untold(session.tenant, session.id)
        if not untold:
            return ()
        runs = await self._store.runs(session.tenant, session.id)
        ids = {run["ordinal"]: run["id"] for run in runs}
        above = {run["id"]: tuple(ids[at] for at in reversed(run["path"][:-1]) if at in ids) for run in runs}
        return [
            Notice(
                id=row["id"],
                session_id=row["session_id"],
                kind=NoticeKind.MESSAGE if row["handoff_id"] is None else NoticeKind.TASK,
                for_run=row["run_id"] or "",
                content=row["content"],
                task_id=row["handoff_id"],
                lead=row["depth"] == 0,
                above=above.get(row["run_id"], ()),
            )
            for row in untold
        ]

    async def _counters(self, session: Session, more: Mapping[str, int]) -> SessionCounters:
        counters = await self._store.counters(session.tenant, session.id)
        if session.budget is None:
            return counters
        spent = await self._store.spent(session.tenant, session.id, session.budget.currency)
        return replace(counters, spent={kind: used + more.get(kind, 0) for kind, used in spent.items()})

    async def update(
        self, tenant: str, session_id: str, changes: Mapping[str, Any], *, close: bool = False
    ) -> dict[str, Any]:
        """Change `title` and `metadata`; `close` ends the session for good once its runs are done."""
        async with self.opened(await self.known(tenant, session_id)):
            session = await self.open_for_work(tenant, session_id)
            if changes:
                told = {**changes, "title": changes["title"] or ""} if "title" in changes else changes
                payload = SessionUpdated(**told)  # type: ignore[typeddict-item]
                self._journal.record(session, events.SESSION_UPDATED, payload)
                session = replace(session, **changes)
                self._known.keep(session.id, session)
            if close:
                await self._close(session, "closed")
        await self._journal.flush(TAKE_S, of=session_id)
        return await self.session(tenant, session_id)

    async def _close(self, session: Session, reason: str) -> None:
        self._known.keep(
            session.id, replace(session, closed=True)
        )  # first, so that nothing new starts while the rest is cancelled
        await self._supervisor.settle(session.id)
        self._journal.record(session, events.SESSION_CLOSED, SessionClosed(reason=reason))

    async def delete(self, tenant: str, session_id: str) -> None:
        """Cancel everything in a session, close it and erase its data; afterwards it is unknown."""
        session = await self.known(tenant, session_id)
        async with self.opened(session):
            with self._supervisor.erasing(session.id):
                await self._close(session, "deleted")
        self._known.keep(session_id, None)
        await self._journal.flush(TAKE_S, of=session_id)
        self._supervisor.forget(session_id)
        self._supervisor.notices.forget(session_id)
        self._journal.recent.forget(session_id)
        self._inbox.forget(session_id)

    async def cancel_session(self, tenant: str, session_id: str) -> dict[str, Any]:
        """Stop everything in a session; answers which runs this stopped."""
        await self.known(tenant, session_id)
        ended = await self._supervisor.cancel_session(session_id)
        await self._journal.flush(TAKE_S, of=session_id)
        return {"cancelled": list(ended)}

    # ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self, tenant: str, session_id: str, given: RunInput) -> Started:
        """Start a turn. Raises `Conflict` when the session is closed or its lead agent is busy."""
        session = await self.open_for_work(tenant, session_id)
        if session.agent is None:
            raise Conflict("this session was made for a delegation and has no lead agent", code="no_lead_agent")
        request = self.requests.request(session, given)
        async with self.opened(session):
            seat = self._supervisor.turn(session, queue=given.on_busy is not OnBusy.REJECT)
            try:
                if given.on_busy is OnBusy.INTERRUPT:
                    await self._interrupt(seat)
                await seat.opened()
                await self.open_for_work(tenant, session_id)  # it may have been closed meanwhile
                started = self._launch(session, replace(request, seat=seat), given.webhook)
                if seat.unwanted:
                    await self._supervisor.cancel(started.run.id)
            except BaseException:  # whatever it is, also a caller who goes away: the place is given back
                seat.leave()
                raise
        await self._journal.flush(TAKE_S, of=session.id)
        return started

    async def _interrupt(self, seat: MemorySeat) -> None:
        """End all turns that come before this one, also those that are about to begin."""
        before = list(seat.ahead())
        for ahead in before:
            ahead.unwanted = True
        for run_id in [ahead.run_id for ahead in reversed(before) if ahead.run_id is not None]:
            await self._supervisor.cancel(run_id)

    async def run_once(self, tenant: str, given: SessionInput, run: RunInput) -> Started:
        """Make a session and start its first turn."""
        session = self.draft(tenant, given)
        request = self.requests.request(session, run)
        self.begin(session, given)
        with self._supervisor.work(session, FRESH):
            seat = self._supervisor.turn(session, fresh=True)
            try:
                started = self._launch(session, replace(request, seat=seat), run.webhook)
            except BaseException:  # whatever it is: the place is given back
                seat.leave()
                raise
        await self._journal.flush(TAKE_S, of=session.id)
        return Started(run=started.run, after=0)

    def _launch(self, session: Session, request: RunRequest, webhook: str | None) -> Started:
        after = self._journal.recorded(session.id)
        with self.webhooks.asked(session, "run", webhook) as run_id:
            return Started(run=self._supervisor.launch(replace(request, id=run_id)), after=after)

    async def run(self, tenant: str, run_id: str, wait_s: float = 0.0) -> dict[str, Any]:
        """One run as a client sees it; waits up to `wait_s` for its end."""
        found = self._supervisor.find(run_id) if wait_s > 0 else None
        if found is not None and found.run.tenant == tenant:  # known without a look into the store
            await self._ended(found.run.session_id, run_id, wait_s)
            row = await self._run_row(tenant, run_id)
        else:
            row = await self._run_row(tenant, run_id)
            if wait_s > 0 and row["status"] not in FINAL_STATUSES:
                await self._ended(row["session_id"], run_id, wait_s)
                row = await self._run_row(tenant, run_id)
        (row,) = await self.with_late_tasks(tenant, row["session_id"], [row])
        return run_view(row) | (await self.webhooks.view(tenant, run_id) if row["has_webhook"] else {})

    async def _ended(self, session_id: str, run_id: str, wait_s: float) -> None:
        """Wait up to `wait_s` for a run's end: then its row says how far it is."""
        try:
            async with asyncio.timeout(wait_s):
                if self._supervisor.find(run_id) is None:
                    await self.gate(session_id)  # one that an earlier process left is in the air after that
                if self._supervisor.flying(run_id):
                    await self._supervisor.settled(run_id)
        except (TimeoutError, Unavailable):
            pass

    async def with_late_tasks(self, tenant: str, session_id: str, rows: Sequence[Mapping[str, Any]]) -> Sequence[Any]:
        """Run rows of a session whose inclusive usage counts the background tasks that went on when a run had ended."""
        if not any(row["open_tasks"] for row in rows):
            return rows
        return with_late_tasks(rows, await self._store.runs(tenant, session_id))

    async def _run_row(self, tenant: str, run_id: str) -> Mapping[str, Any]:
        await self._journal.settle()
        row = await self._store.run(tenant, run_id)
        if row is None:
            raise NotFound(f"there is no run {run_id!r}")
        return row

    async def runs(self, tenant: str, session_id: str) -> list[Mapping[str, Any]]:
        """All run rows of a session, in order."""
        await self.known(tenant, session_id)
        await self._journal.settle()
        return list(await self._store.runs(tenant, session_id))

    async def turns(
        self, tenant: str, session_id: str, *, after: int, limit: int
    ) -> tuple[Sequence[Mapping[str, Any]], bool]:
        """The next turns of a session behind the run with that ordinal, and whether there are more."""
        await self.known(tenant, session_id)
        await self._journal.settle()
        rows = await self._store.turns(tenant, session_id, after=after, limit=limit + 1)
        return await self.with_late_tasks(tenant, session_id, rows[:limit]), len(rows) > limit

    async def tree(self, tenant: str, session_id: str) -> dict[str, Any]:
        """The whole tree with status, usage and cost, and the handoffs that were denied as well."""
        runs = await self.runs(tenant, session_id)
        return tree_view(session_id, runs, await self._store.handoffs(tenant, session_id))

    async def cancel(self, tenant: str, run_id: str) -> dict[str, Any]:
        """Cancel a run and everything below it; cancelling a final one stops nothing and says so."""
        found = self._supervisor.find(run_id)
        if found is None or found.run.tenant != tenant:
            row = await self._run_row(tenant, run_id)  # raises for an unknown one
            await self.gate(row["session_id"])  # one in the air must not wait for the store
            await self._check_taken_up(tenant, run_id)
            found = self._supervisor.find(run_id)
        ended = await self._supervisor.cancel(run_id)
        await self._journal.flush(TAKE_S, of=None if found is None else found.run.session_id)
        row = await self._run_row(tenant, run_id)
        return {"id": run_id, "status": row["status"], "cancelled": list(ended)}

    async def _check_taken_up(self, tenant: str, run_id: str) -> None:
        """Raises `Unavailable` for a run of an earlier process that has not ended and is not in the air yet: the run
        above it, or a place, comes first."""
        if self._supervisor.flying(run_id):
            return
        row = await self._run_row(tenant, run_id)
        if row["status"] not in FINAL_STATUSES:
            raise not_taken_up(f"run {run_id}")

    # ── views of the stream ─────────────────────────────────────────────────────────────────────────────────────

    async def session_stream(self, tenant: str, session_id: str, *, until_idle: bool) -> View:
        """The view of a whole session."""
        session = await self.known(tenant, session_id)
        ended = None
        # who stops does not say what the next process goes on with
        idle = until_idle and not self.stopping and not self._supervisor.busy(session_id)
        if session.closed or idle:
            await self._journal.settle()
            row = await self._row(tenant, session_id)
            ended = row["closed_seq"] or (row["idle_seq"] if idle else None)
        return View(tenant=tenant, session_id=session_id, until_idle=until_idle, ended_seq=ended)

    async def begins(self, tenant: str, run_id: str) -> int:
        """The event before the first one of a run."""
        return int((await self._run_row(tenant, run_id))["first_seq"]) - 1

    async def run_stream(self, tenant: str, run_id: str) -> View:
        """The view of a run and its descendants."""
        found = self._supervisor.find(run_id)
        if found is not None and found.run.tenant == tenant:
            run = found.run
            await self.known(tenant, run.session_id)  # it may have been deleted
            return View(
                tenant=tenant,
                session_id=run.session_id,
                run_id=run_id,
                paths=(run.path,),
                begins=max(0, found.first - 1),
                ended_seq=found.ended,
            )
        row = await self._run_row(tenant, run_id)
        return View(
            tenant=tenant,
            session_id=row["session_id"],
            run_id=run_id,
            paths=(tuple(row["path"]),),
            begins=row["first_seq"] - 1,
            ended_seq=row["terminal_seq"],
        )

    # ── end ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self, grace_s: float) -> None:
        """Take nothing new, let runs finish within the grace, interrupt the rest, store everything."""
        self.stopping = True
        await self._supervisor.close(grace_s)
        await self._journal.flush()


async def _open_gate(session_id: str) -> None:
    """Nothing was left by an earlier process."""


def not_taken_up(what: str) -> Unavailable:
    """What an earlier process has left, and nobody here has in hand as yet."""
    return Unavailable(
        f"{what} is being taken up after a restart: try again in a moment, or turn to the run above it",
        code="not_taken_up",
    )


def _no_session(session_id: str) -> NotFound:
    return NotFound(f"there is no session {session_id!r}")
