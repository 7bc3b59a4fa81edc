"""What becomes of runs whose process went away: they are gone on with, or closed as `interrupted`, children first.

Knows no SQL: it reads open rows and the log, and records facts like everybody else. How a run is gone on with is
`continuing.py`.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from app.agent import events, faults
from app.agent.errors import NotFound, SubagentdError, Unavailable
from app.agent.hooks import NO_HOOKS, Hook, HookCall, HookPoint, HookRegistry
from app.agent.patience import STOPPING, patiently, pauses
from app.agent.payloads import SessionIdle
from app.agent.run_ports import RunStore
from app.agent.runs import Run, Session
from app.sessions.closing import NOT_RUN_RESULT, UNKNOWN_RESULT, Closing, Left, run_of
from app.sessions.journal import TAKE_S, Journal
from app.sessions.traces import Trace
from app.wire import decode

__all__ = ["NOT_RUN_RESULT", "UNKNOWN_RESULT", "GoingOn", "Recovery"]

log = logging.getLogger(__name__)

TELLING = 8  # hooks at a time: a crash may leave thousands of runs, and they may all go to one receiver
AT_ONCE = 16  # sessions that are looked at together
HELD_S = 20.0  # when all are to go on; at most until then their steps are held, if not all were looked at
PASS_EVERY = 2  # one step begins meanwhile for so many sessions that were looked at
UNREAD_S = 1.0  # that somebody waits for a session which could not be read already
FIRST_S = 0.1  # for the service to open its port

Row = Mapping[str, Any]


class GoingOn(Protocol):
    """Goes on with what a process left of a session."""

    def expect(self, runs: Sequence[Row], handoffs: Sequence[Row]) -> None:
        """Before anything goes on: these are open, in all sessions."""

    def give_back(self, runs: Sequence[Row]) -> None:
        """Of those, these are closed."""

    async def session(self, left: Left, close: Callable[[Left], Awaitable[None]]) -> None:
        """Go on with everything that can be gone on with; `close` closes what is left in `left` then.
        Raises `Unavailable` when the service is stopping, or before anything was begun."""


class Recovery:
    """Brings every session to a state in which nothing is said to run that does not.

    Subagents that had started and are not gone on with have stopped: their hooks are told so, beside the service that
    goes on. `tell`, where there is one, tells runs of tasks that ended unnoticed. `workspace` gives the directory of a
    session's row, empty where there is none any more; `own` the hooks that the file of an agent brings along, by its
    name. `going_on`: what can be gone on with is, beside the service; None: everything is closed before the service is
    ready.
    """

    def __init__(
        self,
        store: RunStore,
        journal: Journal,
        hooks: HookRegistry = NO_HOOKS,
        workspace: Callable[[Row], str] = lambda row: "",
        own: Callable[[str], Sequence[Hook]] = lambda agent: (),
        going_on: GoingOn | None = None,
    ) -> None:
        self._store = store
        self._journal = journal
        self._hooks = hooks
        self._workspace = workspace
        self._own = own
        self.going_on = going_on
        self.tell: Callable[[Left], Awaitable[None]] | None = None
        self._closing = Closing(journal)
        self._few = asyncio.Semaphore(TELLING)
        self._telling: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, asyncio.Task[None]] = {}
        self._untold: dict[str, set[str]] = {}
        self._unread: set[str] = set()  # sessions that could not be read yet
        self._unseen: set[str] = set()  # sessions that were not looked at yet
        self._put_off: set[str] = set()  # sessions that are left to the next process
        self._stopped = asyncio.Event()

    async def run(self) -> int:
        """Begin with all that was in flight; returns how many runs that were. Idempotent: what is closed is not
        open."""
        runs = await self._store.open_runs()  # deepest first
        handoffs = await self._store.open_handoffs()
        untold = await self._store.untold_tasks()
        for row in untold:
            self._untold.setdefault(row["session_id"], set()).add(row["id"])
        sessions = {row["session_id"]: row["tenant_id"] for row in (*runs, *handoffs, *untold)}
        busy = await self._store.busy_sessions()
        if runs:
            what = "are interrupted" if self.going_on is None else "are gone on with"
            log.warning("%d runs of %d sessions were in flight and %s", len(runs), len(_by_session(runs)), what)
        few, begin = asyncio.Semaphore(AT_ONCE), asyncio.Event()
        if self.going_on is None:
            begin.set()
        else:  # beside the service, which is to answer first
            asyncio.get_running_loop().call_later(FIRST_S, begin.set)
        if self.going_on is not None:
            self.going_on.expect(runs, handoffs)
            self._unseen.update(row["session_id"] for row in (*runs, *handoffs))
            if self._unseen:  # else those that come first would keep the others from going on at all
                self._journal.hold(HELD_S)
        open_runs, open_handoffs = _by_session(runs), _by_session(handoffs)
        for session_id, tenant in sessions.items():
            work = self._one(few, begin, tenant, session_id, open_runs[session_id], open_handoffs[session_id])
            self._await(session_id, work)
        for row in busy:
            if row["id"] not in sessions:  # its process went away just before it called it idle
                self._await(row["id"], self._at_rest(few, begin, row["tenant_id"], row["id"]))
        if self.going_on is None:
            await asyncio.gather(*self._waiting.values())
            await self._journal.flush()
        return len(runs)

    def _await(self, session_id: str, work: Coroutine[Any, Any, None]) -> None:
        """Nothing is begun in a session before this work is done."""
        task = asyncio.create_task(work, name=f"recovery of {session_id}")
        self._waiting[session_id] = task
        task.add_done_callback(lambda _: self._waiting.pop(session_id, None))

    async def ready(self, session_id: str) -> None:
        """Wait until what was left of a session is gone on with or closed: nothing is begun in it before that. Raises
        `Unavailable` when the session cannot be read for long, or is left to the next process."""
        while (task := self._waiting.get(session_id)) is not None and not task.done():
            await asyncio.wait([task], timeout=TAKE_S if session_id not in self._unread else UNREAD_S)
            if not task.done() and session_id in self._unread:
                raise Unavailable(
                    "what was in flight in the session cannot be read at the moment: try again in a moment",
                    code="store_unavailable",
                )
        if session_id in self._put_off:
            raise Unavailable("the service is stopping: the next process takes this up", code=STOPPING)

    async def settled(self) -> None:
        """Wait until all sessions are."""
        while self._waiting:
            await asyncio.wait(list(self._waiting.values()))

    async def told(self) -> None:
        """Wait until the hooks have been told; each has its own time for that."""
        await asyncio.gather(*self._telling, return_exceptions=True)

    def refuse(self) -> None:
        """Begin with no session more."""
        self._stopped.set()

    async def stop(self) -> None:
        """Take up nothing more: what is not gone on with is left as it is, as a crash would leave it."""
        self.refuse()
        self._journal.let_go()
        waiting = list(self._waiting.values())
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def close(self) -> None:
        """Tell nobody any more, and take up nothing more."""
        await self.stop()
        for task in self._telling:
            task.cancel()
        await self.told()

    async def _one(
        self,
        few: asyncio.Semaphore,
        begin: asyncio.Event,
        tenant: str,
        session_id: str,
        open_runs: list[Row],
        handoffs: list[Row],
    ) -> None:
        """One session, looked at until it could be read: until then nobody knows what is open in it."""
        self._put_off.add(session_id)
        await begin.wait()
        for pause_s in pauses():
            async with few:
                done = self._stopped.is_set() or await self._taken_up(tenant, session_id, open_runs, handoffs)
            self._seen(session_id)
            if done:
                break
            self._unread.add(session_id)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopped.wait()
        self._unread.discard(session_id)

    async def _at_rest(self, few: asyncio.Semaphore, begin: asyncio.Event, tenant: str, session_id: str) -> None:
        """Call a session idle in which nothing is open. One that cannot be read keeps nobody waiting: its next turn
        says the same."""
        await begin.wait()
        async with few:
            if self._stopped.is_set():
                return
            faults.hit("recovery.session")
            try:
                await self._journal.open(tenant, session_id)
            except Exception as error:  # noqa: BLE001  border to the store: whatever it is, no other session waits for it
                log.warning("session %s is at rest and cannot be told so: %s", session_id, error)
                return
            scope = Session(id=session_id, tenant=tenant, memory_id="", agent=None, created_at=0)
            self._journal.record(scope, events.SESSION_IDLE, SessionIdle())
            self._journal.release(session_id)

    def _seen(self, session_id: str) -> None:
        """It is known what was in flight in a session, or that it cannot be read."""
        if session_id in self._unseen:
            self._unseen.remove(session_id)
            if not self._unseen:
                self._journal.let_go()
            elif len(self._unseen) % PASS_EVERY == 0:  # a service that ends again and again must get on as well
                self._journal.let_pass()

    async def _taken_up(self, tenant: str, session_id: str, open_runs: list[Row], handoffs: list[Row]) -> bool:
        """Go on with a session or close it; False when it cannot be read, and nothing was begun."""
        faults.hit("recovery.session")
        try:
            left = await self._left(tenant, session_id, open_runs, handoffs)
        except NotFound as error:  # there is nobody who could be told of what was open
            log.warning("what was in flight in session %s is left as it is: %s", session_id, error)
            if self.going_on is not None:
                self.going_on.give_back(open_runs)
            self._put_off.discard(session_id)
            return True
        except Exception as error:  # border to the store: whatever it is, it says nothing of the runs
            if self.going_on is None:
                raise
            _unread(session_id, error)
            return False
        self._seen(session_id)
        if self.going_on is None:
            await self._end(left)
            faults.hit("recovery.recorded")
            self._put_off.discard(session_id)
            return True
        try:
            await self.going_on.session(left, self._close)
            faults.hit("recovery.recorded")
        except Unavailable as error:
            if error.code != STOPPING:
                _unread(session_id, error)
                return False
            log.warning("session %s is left as it is: the service is stopping", session_id)
            return True
        except Exception as error:  # border: whatever it is, nothing may be said to run that does not
            known = isinstance(error, SubagentdError)
            log.warning("session %s cannot be gone on with: %s", session_id, error, exc_info=not known)
            why = error.message if isinstance(error, SubagentdError) else type(error).__name__
            left.reasons = dict.fromkeys(left.traces, why)
            self.going_on.give_back(left.open_runs)
            await self._end(left)
        self._put_off.discard(session_id)
        return True

    async def _left(self, tenant: str, session_id: str, open_runs: list[Row], handoffs: list[Row]) -> Left:
        """What a process left of a session."""
        await self._journal.open(tenant, session_id)
        runs, all_handoffs, row = await asyncio.gather(
            self._store.runs(tenant, session_id),
            self._store.handoffs(tenant, session_id),
            self._store.session(tenant, session_id),
        )
        left = Left(
            tenant=tenant,
            session_id=session_id,
            rows=list(runs),
            open_runs=list(open_runs),
            handoffs=list(handoffs),
            all_handoffs=list(all_handoffs),
            untold=set(self._untold.get(session_id, ())),
        )
        left.worked = bool(left.untold) or (row or {}).get("busy_seq") is not None
        await self._read(left)
        return left

    async def _end(self, left: Left) -> None:
        """Close everything that a session has open."""
        await self._close(left)
        if self.tell is not None:
            try:
                await self.tell(left)
            except (SubagentdError, ValueError) as error:
                log.warning("session %s: the ends of its tasks are not told of: %s", left.session_id, error)
        if left.worked:
            self._journal.record(left.scope, events.SESSION_IDLE, SessionIdle())
        self._journal.release(left.session_id)

    async def _close(self, left: Left) -> None:
        """Close what nobody goes on with."""
        if not (left.open_runs or left.handoffs):
            return
        told = {row["id"]: self._heard(row["agent"], left.traces[row["id"]]) for row in left.open_runs}
        workspace = await self._directory(left.scope) if any(told.values()) else ""
        mine = {row["id"] for row in left.open_runs}
        for row in list(left.open_runs):  # deepest first
            run = run_of(row)
            for handoff in [h for h in left.handoffs if h["run_id"] == run.id]:
                self._closing.handoff(run, left, handoff)
            hooks = told[run.id]
            if hooks is not None:
                self._tell(hooks, run, left.traces[run.id], tuple(reversed(list(left.above(run.id)))), workspace)
            self._closing.run(left, row)
        for handoff in [h for h in left.handoffs if h["run_id"] not in mine]:
            above = run_of(left.row(handoff["run_id"])) if left.is_open(handoff["run_id"]) else left.scope
            self._closing.handoff(above, left, handoff)

    async def _read(self, left: Left) -> None:
        """Read the log of a session from where what is open began, and the runs above that, which may have ended."""
        left.traces = {row["id"]: Trace() for row in left.open_runs}
        tried = {row["id"] for handoff in left.handoffs for row in left.runs_of(handoff["id"])}
        begun = tried.union(left.traces, (h["run_id"] for h in left.handoffs))
        paths = {ordinal for row in left.rows if row["id"] in begun for ordinal in row["path"]}
        firsts = [row["first_seq"] for row in left.rows if row["ordinal"] in paths]
        tops = {row["handoff_id"] for row in left.rows if row["ordinal"] in paths and row["parent_id"] is None}
        asked = (*left.handoffs, *(each for each in left.all_handoffs if each["id"] in tops))
        starts = {handoff["id"]: handoff["start_seq"] for handoff in asked}
        waiting = _waiting(left)
        after = min((*firsts, *starts.values()), default=2**62) - 1
        while page := await self._journal.log.page(left.tenant, left.session_id, after=after):
            after = page[-1].seq
            for event in page:
                envelope, data = decode(event.envelope), decode(event.data)
                run_id = envelope.get("run_id", "")
                _taken_in(left, event.type, run_id, data, tried)
                if event.type == "handoff.start" and data["handoff_id"] in starts:
                    left.starts[data["handoff_id"]] = data
                ts = datetime.fromisoformat(envelope["ts"])
                trace = left.traces.get(run_id)
                if trace is not None:
                    trace.add(event.type, envelope.get("step", 0), data, ts)
                for above in waiting.get(run_id, ()):
                    left.traces[above].clock.add(event.type, ts, data, run_id)

    async def _directory(self, session: Session) -> str:
        """The workspace of a session."""
        read = partial(self._store.session, session.tenant, session.id)
        row = await patiently(f"session {session.id}", read)
        return "" if row is None else self._workspace(row)

    def _heard(self, agent: str, trace: Trace) -> HookRegistry | None:
        """Who has heard of the start of a subagent, as far as they are still there, and waits for its end; None for
        nobody."""
        if not trace.started:
            return None
        try:
            own = self._own(agent) if trace.own_hooks else ()
        except ValueError as error:
            log.warning("hooks of agent %s are not told of the end of its runs: %s", agent, error)
            own = ()
        hooks = self._hooks.joined(own)
        return hooks if hooks.has(HookPoint.SUBAGENT_STOP) else None

    def _tell(self, hooks: HookRegistry, run: Run, trace: Trace, lineage: tuple[str, ...], workspace: str) -> None:
        """Begin to tell the hooks of a subagent's end. What they say is too late for the log of the run, which ends
        now; failures stand in the log of the service."""
        call = replace(
            HookCall.of(run, HookPoint.SUBAGENT_STOP, lineage=lineage, workspace=workspace),
            result=trace.told,
            steps=trace.steps,
            is_error=True,
        )

        async def telling() -> None:
            async with self._few:
                await hooks.tell(call, lambda decision: None)

        task = asyncio.create_task(telling(), name=f"stop hooks of {run.id}")
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)


def _unread(session_id: str, error: Exception) -> None:
    passing = isinstance(error, Unavailable)
    log.warning("session %s cannot be read, and is looked at again: %s", session_id, error, exc_info=not passing)


def _by_session(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    found: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["session_id"]].append(row)
    return found


def _waiting(left: Left) -> Mapping[str, Sequence[str]]:
    """The open runs above each run that wait for it: for a background task nobody does."""
    apart = {handoff["id"] for handoff in left.all_handoffs if handoff["background"]}
    rows = {row["id"]: row for row in left.rows}
    found: dict[str, list[str]] = {}
    for row in left.rows:
        waiting: list[str] = []
        below = row
        while below["parent_id"] is not None and below["handoff_id"] not in apart:
            below = rows[below["parent_id"]]
            if below["id"] in left.traces:
                waiting.append(below["id"])
        found[row["id"]] = waiting
    return found


def _taken_in(left: Left, kind: str, run_id: str, data: Mapping[str, Any], tried: Collection[str]) -> None:
    """What one event says of more than its run."""
    if kind == "tool.start" and not data.get("delegation"):
        left.tool_calls[run_id] += 1
    elif kind == "run.queued":
        if run_id in tried and (found := data.get("fallback")):
            left.fallbacks[run_id] = found
        if "given" in data:
            left.given[run_id] = data["given"]
    elif kind in events.FINAL_TYPES and data.get("passing"):
        left.passing.add(run_id)
