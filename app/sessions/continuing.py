"""How runs whose process went away are gone on with (spec 12.7): their requests are made again, from the top down.

What a session's turn or a caller's delegation was asked for stands in the log; what a subagent is asked for follows
from the run above it, whose call is carried out again and finds the handoff that it had begun. Knows no SQL, no HTTP.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.agent.definition import SessionMode
from app.agent.errors import SubagentdError, Unavailable
from app.agent.messages import NO_USAGE, Usage
from app.agent.open_handoff import LeftHandoff
from app.agent.orders import DIRECT
from app.agent.patience import STOPPING, patiently
from app.agent.runs import Progress, Run, RunStatus, Session
from app.agent.supervisor import RunSupervisor
from app.sessions.closing import Closing, Left, run_of
from app.sessions.delegations import Delegations
from app.sessions.orders_again import OrdersAgain
from app.sessions.reckoning import spent_by, spent_in
from app.sessions.service import Sessions
from app.sessions.untold import Untold

log = logging.getLogger(__name__)

Row = Mapping[str, Any]
Close = Callable[[Left], Awaitable[None]]


class Continuing:
    """Goes on with sessions. `max_attempts`: a run that so many processes have begun is not begun once more, since it
    may be what ends them."""

    def __init__(
        self,
        sessions: Sessions,
        delegations: Delegations,
        supervisor: RunSupervisor,
        closing: Closing,
        max_attempts: int = 5,
    ) -> None:
        self._sessions = sessions
        self._supervisor = supervisor
        self._closing = closing
        self._untold = Untold(sessions, supervisor)
        self._again = OrdersAgain(sessions, delegations, supervisor)
        self._max_attempts = max_attempts
        self._left: dict[str, tuple[Session, Left]] = {}
        self._later: dict[str, list[Row]] = {}  # tasks of runs that are about to be gone on with
        supervisor.on_left(self._forsaken, self._taken_up, self._dropped, self._settled, self._to_come, self._unclaimed)

    def expect(self, runs: Sequence[Row], handoffs: Sequence[Row]) -> None:
        """Keep places at shared memories for the runs that are open, in the order in which they had them: those of
        several sessions may share one, and which of them is taken up first is chance."""
        by_id = {handoff["id"]: handoff for handoff in handoffs}
        for row in sorted(runs, key=lambda row: (row["started_at"] is None, row["turn"])):
            handoff = by_id.get(row["handoff_id"])
            if handoff is not None and (row["turn"] or handoff["session_mode"] == SessionMode.REUSE.value):
                self._supervisor.keep_seat(run_of(row), waited_for=not handoff["background"])

    def give_back(self, runs: Sequence[Row]) -> None:
        """These do not go on: nobody waits for their places."""
        for row in runs:
            self._supervisor.release_seat(row["id"])

    async def session(self, left: Left, close: Close) -> None:
        """Go on with what can be; `close` closes the rest. Raises whatever kept it from beginning: `Unavailable` also
        later, when the service is stopping; then everything is left as it is."""
        session = await self._sessions.known(left.tenant, left.session_id, at_once=True)
        async with self._sessions.opened(session, more=spent_in(left, session)):
            self._left[session.id] = session, left
            try:
                await self._go_on(session, left, close)
            except asyncio.CancelledError:
                self._supervisor.worked(session.id, False)
                raise
            except Exception as error:  # border: whatever it is, nothing may be said to run that does not
                if _stopping(error):
                    self._supervisor.worked(session.id, False)  # it is not idle: the next process goes on
                    raise
                log.exception("session %s could not be gone on with", session.id)
                self._leave_out(left)
                await close(left)
            self._untold.tell_in(session, left)

    async def _go_on(self, session: Session, left: Left, close: Close) -> None:
        if left.worked:
            self._supervisor.worked(session.id)
        going = self._going(left) if not session.closed else set()
        if session.closed:
            left.reasons = dict.fromkeys(left.traces, "its session is closed")
        self.give_back([row for row in left.open_runs if row["id"] not in going])
        runs = [row for row in left.open_runs if row["id"] in going]
        handoffs = [handoff for handoff in left.handoffs if self._goes_on(left, handoff, going)]
        kept = {handoff["id"] for handoff in handoffs}
        left.open_runs[:] = [row for row in left.open_runs if row["id"] not in going]
        left.handoffs[:] = [handoff for handoff in left.handoffs if handoff["id"] not in kept]
        await close(left)  # first: what goes on may wait for the results of these
        self._untold.tell_in(session, left)
        left.open_runs[:], left.handoffs[:] = runs, handoffs
        await self._begin(session, left, going)
        await close(left)

    def _leave_out(self, left: Left) -> None:
        """Leave in `left` what is open and nobody goes on with: neither runs that are in the air nor handoffs that are
        carried out, nor anything below them, which they take up or end themselves."""
        begun = {row["ordinal"] for row in left.rows if self._supervisor.flying(row["id"])}
        begun |= {row["ordinal"] for row in left.rows if row["handoff_id"] in left.begun}
        going = {row["id"] for row in left.rows if begun.intersection(row["path"])}
        rows = [row for row in left.rows if left.is_open(row["id"]) and row["id"] not in going]
        handoffs = [each for each in left.all_handoffs if each["ended_at"] is None and each["run_id"] not in going]
        left.open_runs[:] = sorted(rows, key=lambda row: -row["depth"])
        left.handoffs[:] = [each for each in handoffs if each["id"] not in left.begun]
        for row in rows:
            self._forget(left, row)

    def _forget(self, left: Left, row: Row) -> None:
        """Nothing waits for a run to go on."""
        self._supervisor.release_seat(row["id"])
        self._supervisor.handoffs.forsaken(row["id"])
        left.aside.difference_update(handoff["id"] for handoff in self._later.pop(row["id"], ()))
        if row["id"] in left.traces:
            self._supervisor.forget_answers(call.left for call in left.traces[row["id"]].calls.values())

    @staticmethod
    def _goes_on(left: Left, handoff: Row, going: set[str]) -> bool:
        """Whether there is anybody who goes on with a handoff, and it can be."""
        runs = left.runs_of(handoff["id"])
        if any(_is_over(left, row, going) for row in runs):
            return False
        if runs and runs[-1]["id"] in left.fallbacks:
            return False
        if handoff["surface"] == DIRECT or handoff["background"]:
            start = left.starts.get(handoff["id"], {})
            return bool(handoff["background"] and handoff["run_id"]) or "given" in start
        above = handoff["run_id"]
        return above in going and handoff["call_id"] in left.traces[above].calls

    async def _begin(self, session: Session, left: Left, going: set[str]) -> None:
        """Begin with what goes on; what cannot stays in `left`."""
        for row in left.open_runs:
            self._supervisor.expect_answers(call.left for call in left.traces[row["id"]].calls.values())
        self._set_aside(left, going)
        # before anything goes on: who does takes what was set aside for it
        left.aside = {handoff["id"] for handoff in left.handoffs if self._is_aside(handoff)}
        for handoff in left.handoffs:  # before the turns, which may ask for the results of tasks
            if handoff["id"] not in left.aside:
                self._went_on(session, left, going, handoff)
        for row in sorted(left.open_runs, key=lambda each: each["ordinal"]):
            if row["depth"] == 0:
                await self._tried(left, going, row, self._turn(session, left, row))
        left.open_runs[:] = [row for row in left.open_runs if row["id"] not in going]
        gone = {row["handoff_id"] for row in left.open_runs}
        dropped, found = {row["id"] for row in left.open_runs}, left.aside | left.begun
        left.handoffs[:] = [
            each for each in left.handoffs if each["id"] in gone or each["run_id"] in dropped or each["id"] not in found
        ]

    async def _tried(self, left: Left, going: set[str], row: Row, work: Coroutine[Any, Any, None]) -> None:
        """Go on with a turn; where that cannot be, nothing below it goes on either."""
        try:
            await work
        except Exception as error:  # noqa: BLE001  border: whatever is wrong with one turn, the others go on
            self._give_up(left, going, row, error)

    def _went_on(self, session: Session, left: Left, going: set[str], handoff: Row) -> None:
        try:
            if handoff["surface"] == DIRECT:
                self._direct(session, left, handoff)
            elif handoff["background"]:
                self._task(session, left, handoff)
        except Exception as error:  # the same border
            if _stopping(error):
                raise
            _said("delegation", handoff["id"], error)
            for row in left.runs_of(handoff["id"]):
                self._give_up(left, going, row, error)

    def _give_up(self, left: Left, going: set[str], top: Row, error: Exception) -> None:
        if _stopping(error):
            raise error
        why = _said("run", top["id"], error)
        for row in left.rows:
            if top["ordinal"] in row["path"]:
                left.reasons[row["id"]] = why
                going.discard(row["id"])
                self._forget(left, row)

    def _is_aside(self, handoff: Row) -> bool:
        """Whether a call, or a run that is about to go on, finds the handoff."""
        waits = any(handoff["id"] == each["id"] for rows in self._later.values() for each in rows)
        return waits or self._supervisor.handoffs.expects(handoff["id"])

    # ── what goes on ────────────────────────────────────────────────────────────────────────────────────────────

    def _going(self, left: Left) -> set[str]:
        """The open runs that can be gone on with: those whose call, task or turn above goes on too."""
        going: set[str] = set()
        for row in sorted(left.open_runs, key=lambda each: each["depth"]):
            why = self._obstacle(left, row, going)
            if why is None:
                going.add(row["id"])
            else:
                log.warning("run %s is not gone on with: %s", row["id"], why)
                left.reasons[row["id"]] = why
        return going

    def _obstacle(self, left: Left, row: Row, going: set[str]) -> str | None:
        """Why a run cannot be gone on with."""
        if left.traces[row["id"]].stopped is not None:
            return "it was ending"
        trace = left.traces[row["id"]]
        crashes = trace.crashes + (not trace.drained and trace.begun)
        if crashes >= self._max_attempts:
            return f"{crashes} processes that had begun it went away (recovery.max_attempts)"
        if row["depth"] == 0:
            return None
        handoff = next((h for h in left.handoffs if h["id"] == row["handoff_id"]), None)
        if handoff is None:
            return "its delegation has ended"
        if row["id"] in left.fallbacks:
            return "it stood in for another agent"
        if handoff["surface"] == DIRECT:
            return None if "given" in left.starts.get(handoff["id"], {}) else "what was asked for is not known"
        if handoff["background"]:
            return None if handoff["id"] in left.starts else "what was asked for is not known"
        parent = left.traces.get(row["parent_id"] or "")
        if parent is None or row["parent_id"] not in going:
            return "the run that waits for it is not gone on with"
        return None if row["parent_call_id"] in parent.calls else "nobody waits for it any more"

    def _set_aside(self, left: Left, going: set[str]) -> None:
        """Handoffs that are found by the calls that had begun them, and tasks that begin when a run above does."""
        for run_id in going:
            calls = left.traces[run_id].calls
            for handoff in left.all_handoffs:  # also one that has ended, whose call has no result
                if handoff["run_id"] == run_id and handoff["call_id"] in calls:
                    self._supervisor.handoffs.expect(self._left_handoff(left, handoff))
        for handoff in left.handoffs:
            found = self._supervisor.handoffs.expects(handoff["id"])
            if handoff["background"] and handoff["surface"] != DIRECT and not found:
                above = self._open_above(left, handoff["run_id"], going)
                if above is not None:
                    self._later.setdefault(above, []).append(handoff)

    @staticmethod
    def _open_above(left: Left, run_id: str | None, going: set[str]) -> str | None:
        """The nearest run that goes on: this one, or one above it."""
        parents = {row["id"]: row["parent_id"] for row in left.rows}
        while run_id is not None and run_id not in going:
            run_id = parents.get(run_id)
        return run_id

    def _left_handoff(self, left: Left, handoff: Row) -> LeftHandoff:
        runs = left.runs_of(handoff["id"])
        last = runs[-1] if runs else None
        progress = None
        if last is not None and last["id"] in left.traces:
            progress = self._progress(left, last)
        return LeftHandoff(
            row=handoff,
            runs=runs,
            progress=progress,
            passing=last is not None and last["id"] in left.passing,
            spent=spent_by(left, runs),
        )

    def _progress(self, left: Left, row: Row) -> Progress:
        trace, run = left.traces[row["id"]], run_of(row)
        if trace.begun:
            run = replace(run, attempt=run.attempt + 1, epoch=run.epoch + 1)
        return trace.progress(run, left.settled(row["id"]), spent_by(left, [row]))

    # ── from the top down ───────────────────────────────────────────────────────────────────────────────────────

    async def _turn(self, session: Session, left: Left, row: Row) -> None:
        """A turn of the session itself."""
        request = self._sessions.requests.again(session, row, left.traces[row["id"]].given)
        seat = self._supervisor.turn(session, queue=True, again=True)
        try:
            await patiently(f"the memory of run {row['id']}", seat.opened)
            self._supervisor.launch(replace(request, seat=seat, progress=self._progress(left, row)))
        except BaseException:  # the border of the seat: whatever ends this, cancellation too, gives the place back
            seat.leave()
            raise

    def _direct(self, session: Session, left: Left, handoff: Row) -> None:
        """What a caller has delegated."""
        by, order = self._again.caller(session, left, handoff)
        self._supervisor.handoffs.go_on(by, order, self._left_handoff(left, handoff))
        left.begun.add(handoff["id"])

    def _task(self, session: Session, left: Left, handoff: Row, heir: str | None = None) -> None:
        """A background task; whoever has started it may have ended, then it is its heir's."""
        by = self._again.delegator(session, left, left.row(handoff["run_id"]))
        order = self._again.order(by, handoff, left)
        above = (handoff["run_id"], *left.above(handoff["run_id"]))
        self._supervisor.handoffs.go_on(by, order, self._left_handoff(left, handoff), above)
        left.begun.add(handoff["id"])
        if heir != handoff["run_id"]:
            self._supervisor.handoffs.open.adopt(handoff["run_id"], heir)

    def _taken_up(self, run: Run) -> Usage:
        """A run goes on: so do the tasks that it answers for. What those have used that cannot."""
        used = NO_USAGE
        for handoff in self._later.pop(run.id, ()):
            session, left = self._left[run.session_id]
            try:
                self._task(session, left, handoff, run.id)
            except Exception as error:  # noqa: BLE001  border: whatever is wrong with one task, its run goes on
                _said("task", handoff["id"], error)
                used = used + self._close(left, handoff, RunStatus.INTERRUPTED)
                self._untold.tell_in(session, left)
        return used

    def _to_come(self, run: Run) -> Sequence[str]:
        """The tasks below a run that nobody has taken up yet, and somebody will."""
        if run.session_id not in self._left:
            return ()
        _, left = self._left[run.session_id]
        ids = {row["id"] for row in left.rows}
        waiting = [handoff for above in ids.intersection(self._later) for handoff in self._later[above]]
        tasks = [each for each in (*waiting, *self._supervisor.handoffs.expected(ids)) if each["background"]]
        return [
            each["id"]
            for each in tasks
            if each["ended_at"] is None and run.id in (each["run_id"], *left.above(each["run_id"]))
        ]

    # ── what nobody takes up ────────────────────────────────────────────────────────────────────────────────────

    def _forsaken(self, run: Run, status: RunStatus) -> Usage:
        """A run ends: what it had begun, and its calls have not gone on with, ends with it. What that has used."""
        if run.session_id not in self._left:
            return NO_USAGE
        session, left = self._left[run.session_id]
        used = NO_USAGE
        for each in self._supervisor.handoffs.forsaken(run.id):
            if each.row["ended_at"] is None:
                used = used + self._close(left, each.row, status)
        for handoff in self._later.pop(run.id, ()):
            used = used + self._close(left, handoff, status)
        self._untold.tell_in(session, left)
        return used

    def _unclaimed(self, run: Run, call_id: str, status: RunStatus) -> Usage:
        """A call has a result, an error for example, and has not gone on with what it had begun. What that has used."""
        handoff = self._supervisor.handoffs.unclaimed(run.id, call_id)
        if handoff is None or handoff.row["ended_at"] is not None:
            return NO_USAGE
        session, left = self._left[run.session_id]
        used = self._close(left, handoff.row, status)
        self._untold.tell_in(session, left)
        return used

    def _dropped(self, run: Run, status: RunStatus) -> Usage:
        """A run does not go on, since its delegation has ended before it could."""
        session, left = self._left[run.session_id]
        for handoff in self._later.pop(run.id, ()):
            self._close(left, handoff, status)
        used = self._close_run(left, left.row(run.id), status)
        self._untold.tell_in(session, left)
        return used

    def _settled(self, session_id: str) -> None:
        """Nothing of a session is open: what was read of it is of no use any more."""
        self._left.pop(session_id, None)

    def _close_run(self, left: Left, row: Row, status: RunStatus) -> Usage:
        self._supervisor.release_seat(row["id"])
        tasks = {handoff["id"] for handoff in self._later.pop(row["id"], ())}  # also those that it has taken over
        if row["id"] not in left.traces:
            return NO_USAGE
        self._supervisor.handoffs.forsaken(row["id"])
        open_ones = [handoff for handoff in left.all_handoffs if handoff["ended_at"] is None]
        for inner in [each for each in open_ones if each["run_id"] == row["id"] or each["id"] in tasks]:
            self._close(left, inner, status)
        if row not in left.open_runs:
            left.open_runs.append(row)
        self._supervisor.forget_answers(call.left for call in left.traces[row["id"]].calls.values())
        self._closing.run(left, row, _below(status))
        return Usage.from_dict(left.row(row["id"])["usage_total"])

    def _close(self, left: Left, handoff: Row, status: RunStatus) -> Usage:
        """Close a handoff and everything below it, children first."""
        used = sum((self._close_run(left, row, status) for row in left.runs_of(handoff["id"])), NO_USAGE)
        if handoff not in left.handoffs:
            left.handoffs.append(handoff)
        above = handoff["run_id"]
        scope = run_of(left.row(above)) if above is not None and self._is_open(left, above) else left.scope
        self._closing.handoff(scope, left, handoff, _below(status))
        return used

    def _is_open(self, left: Left, run_id: str) -> bool:
        """Whether a run has not ended, in this process or in the one before."""
        here = self._supervisor.find(run_id) is not None
        return self._supervisor.is_open(run_id) if here else left.is_open(run_id)


def _stopping(error: Exception) -> bool:
    """Whether nothing is begun any more, and everything is left as it is."""
    return isinstance(error, Unavailable) and error.code == STOPPING


def _said(what: str, which: str, error: Exception) -> str:
    """State in the service's log why something cannot be gone on with; what the log of its session says of that."""
    expected = isinstance(error, SubagentdError)
    log.warning("%s %s cannot be gone on with: %s", what, which, error, exc_info=None if expected else error)
    return error.message if isinstance(error, SubagentdError) else f"{type(error).__name__}, see the server's log"


def _below(status: RunStatus) -> RunStatus:
    """How what lies below a run ends that ends so."""
    return RunStatus.INTERRUPTED if status is RunStatus.INTERRUPTED else RunStatus.CANCELLED


def _is_over(left: Left, row: Row, going: set[str]) -> bool:
    """Whether a run is open and not gone on with, for another reason than that it was ending."""
    return left.is_open(row["id"]) and row["id"] not in going and left.traces[row["id"]].stopped is None
