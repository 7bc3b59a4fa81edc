"""How what a process left open is closed in the log: its calls and questions, its runs, its handoffs.

Knows neither why it is closed nor whether it might go on (`recovery.py`); records facts like everybody else.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.agent import events
from app.agent.approvals import AnswerKind
from app.agent.budget import Budget
from app.agent.governed import HandoffEnded, PermissionResolved, SubagentStopped
from app.agent.ids import now_us
from app.agent.messages import NO_USAGE, Usage
from app.agent.payloads import ErrorInfo, FallbackInfo
from app.agent.runner import ENDINGS, UNFINISHED, ended_payload
from app.agent.runs import HandoffStatus, Run, RunOutcome, RunStatus, Session, StopReason
from app.agent.turns import STOPPED_TEXT, UNKNOWN_TEXT, unfinished
from app.sessions.journal import Journal
from app.sessions.traces import INTERRUPTED, Trace

UNKNOWN_RESULT = UNKNOWN_TEXT
NOT_RUN_RESULT = STOPPED_TEXT
LOST = replace(INTERRUPTED, message="the run failed; the service stopped before it was recorded why")
_REASONS = {
    RunStatus.CANCELLED: StopReason.CANCELLED,
    RunStatus.TIMED_OUT: StopReason.DEADLINE,
    RunStatus.FAILED: StopReason.ERROR,
}
_OF_END = (
    "status", "stop_reason", "output", "steps", "usage", "usage_total", "forced", "partial", "error", "duration_ms",
    "activity",
)  # fmt: skip

Row = Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Left:
    """What a process left of a session: all its runs in order, those that are open, its handoffs that are open, what
    the log says of each open run, and which runs stand in for the agent of a handoff; `starts`: what `handoff.start`
    says of the open handoffs, and of the delegations of callers above them; `all_handoffs`: those that have ended as
    well. `worked`: since the session was last idle something was begun in it, or is to be told. `reasons`: why runs are
    not gone on with. `passing`: the failed runs of open handoffs that may be tried again; `tool_calls`: how many tools
    the runs have started; `untold`: tasks that have ended, and whose run was not told; `begun`: handoffs that are gone
    on with; `aside`: those that calls and runs take up which are about to go on; `given`: what a caller asked for with
    a turn; `budgets`: what bounds the tasks of runs that have ended, by the run.
    """

    tenant: str
    session_id: str
    rows: list[Row]
    open_runs: list[Row]
    handoffs: list[Row]
    traces: dict[str, Trace] = field(default_factory=dict)
    fallbacks: dict[str, FallbackInfo] = field(default_factory=dict)
    starts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    all_handoffs: list[Row] = field(default_factory=list)
    worked: bool = False
    reasons: dict[str, str] = field(default_factory=dict)
    passing: set[str] = field(default_factory=set)
    tool_calls: Counter[str] = field(default_factory=Counter)
    untold: set[str] = field(default_factory=set)
    begun: set[str] = field(default_factory=set)
    aside: set[str] = field(default_factory=set)
    given: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    budgets: dict[str, Budget | None] = field(default_factory=dict)

    @property
    def scope(self) -> Session:
        """The session as the scope of an event: nothing else of it is looked at."""
        return Session(id=self.session_id, tenant=self.tenant, memory_id="", agent=None, created_at=0)

    def row(self, run_id: str) -> Row:
        """One run."""
        return next(row for row in self.rows if row["id"] == run_id)

    def close_run(self, row: Row, payload: Mapping[str, Any], seq: int) -> None:
        """A run has ended, by the event of that number."""
        ended = {**row, **{name: payload[name] for name in _OF_END}, "terminal_seq": seq, "ended_at": now_us()}
        self.rows[self.rows.index(row)] = ended
        del self.traces[row["id"]]

    def close_handoff(self, handoff: Row, payload: Mapping[str, Any]) -> None:
        """A handoff has ended."""
        kept = ("status", "output", "error", "attempts", "run_ids", "fallback")
        ended = {**handoff, **{name: payload.get(name) for name in kept}, "ended_at": now_us()}
        self.all_handoffs = [ended if each["id"] == handoff["id"] else each for each in self.all_handoffs]

    def is_open(self, run_id: str | None) -> bool:
        """Whether a run has not ended."""
        return run_id in self.traces

    def runs_of(self, handoff_id: str) -> list[Row]:
        """The runs of a handoff, in order."""
        return [row for row in self.rows if row["handoff_id"] == handoff_id]

    def worked_ms(self, row: Row) -> int:
        """How long a run has worked."""
        trace = self.traces.get(row["id"])
        return trace.clock.used_ms if trace is not None else row["duration_ms"] or 0

    def above(self, run_id: str) -> Iterator[str]:
        """The runs above one, the nearest first."""
        parents = {row["id"]: row["parent_id"] for row in self.rows}
        above = parents.get(run_id)
        while above is not None:
            yield above
            above = parents.get(above)

    def settled(self, run_id: str) -> Usage:
        """What the runs below one have used that have ended, as far as it counts for this one: what goes on beyond the
        end of whoever began it counts for the nearest run above that was open then."""
        ends = {row["id"]: row["terminal_seq"] for row in self.rows if row["id"] not in self.traces}
        found = NO_USAGE
        for row in self.rows:
            if row["id"] in ends and run_id in self.above(row["id"]):
                ended = ends[row["id"]]
                nearest = next(above for above in self.above(row["id"]) if ends.get(above, ended) >= ended)
                found = found + Usage.from_dict(row["usage_total"] or {}) if nearest == run_id else found
        return found

    def used(self, row: Row) -> Usage:
        """What a run itself is known to have used."""
        trace = self.traces.get(row["id"])
        return Usage.from_dict(row["usage"] or {}) if trace is None else trace.usage


class Closing:
    """Closes what is left."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def run(self, left: Left, row: Row, status: RunStatus = RunStatus.INTERRUPTED) -> None:
        """End one run; those below it were closed before."""
        run, trace, why = run_of(row), left.traces[row["id"]], left.reasons.get(row["id"], "")
        for step, question in trace.questions.values():
            self._journal.record(run, events.PERMISSION_RESOLVED, _withdrawn(question), step=step)
        for call in trace.calls.values():
            self._journal.record(run, events.TOOL_RESULT, unfinished(run, call.left), step=call.step)
        if trace.started:
            stopped = SubagentStopped(
                agent=run.agent,
                name=run.name,
                result=trace.told,
                steps=trace.steps,
                is_error=True,
                status=status.value,
            )
            self._journal.record(run, events.SUBAGENT_STOP, stopped)
        if trace.stopped is not None:  # its end was decided, and half of it was recorded
            status = RunStatus(trace.stopped)
        done = status is RunStatus.COMPLETED
        reason = StopReason.ANSWER if trace.forced is None else StopReason(trace.forced)
        error = LOST if status is RunStatus.FAILED else UNFINISHED.get(status)
        if error is not None and why and status is RunStatus.INTERRUPTED:
            error = replace(error, message=f"{error.message}; {why}")
        outcome = RunOutcome(
            status=status,
            stop_reason=reason if done else _REASONS.get(status, StopReason.SHUTDOWN),
            forced=done and trace.forced is not None,
            output=trace.text,
            steps=trace.steps,
            usage=trace.usage,
            usage_total=trace.usage + left.settled(run.id),
            partial=not done or trace.forced is not None,
            error=error,
            activity=trace.activity,
        )
        began = row["started_at"] or row["created_at"]
        payload = ended_payload(outcome, max(0, now_us() - began) // 1000)
        ended = self._journal.record(run, ENDINGS[status], payload)
        left.open_runs.remove(row)
        left.close_run(row, payload, ended.seq)

    def handoff(
        self, scope: Run | Session, left: Left, handoff: Row, status: RunStatus = RunStatus.INTERRUPTED
    ) -> HandoffEnded:
        """End a handoff as its last run ended; one whose run was in flight, or never recorded, has this status."""
        runs = left.runs_of(handoff["id"])
        last = runs[-1] if runs else None
        fallback = left.fallbacks.get(last["id"]) if last is not None else None
        attempts = [row for row in runs if row["id"] not in left.fallbacks]
        ended = last if last is not None and last["ended_at"] is not None else None
        told = ended["status"] if ended is not None else status.value
        error = ended["error"] if ended is not None else INTERRUPTED.as_dict()
        if fallback is not None and told == RunStatus.COMPLETED.value:
            told = HandoffStatus.FALLBACK.value
            error = attempts[-1]["error"] if attempts else None  # why the subagent itself gave no result
        payload = HandoffEnded(
            handoff_id=handoff["id"],
            call_id=handoff["call_id"],
            tool=handoff["tool"],
            subagent=handoff["agent"],
            name=handoff["name"],
            status=told,
            depth=handoff["depth"],
            session_mode=handoff["session_mode"],
            attempts=len(attempts),
            duration_ms=max(0, now_us() - handoff["started_at"]) // 1000,
            output=(ended["output"] or "") if ended is not None else "",
            error=ErrorInfo(code=error["code"], message=error["message"]) if error else None,
            run_ids=[row["id"] for row in runs],
        )
        if fallback is not None:
            payload["fallback"] = fallback
        self._journal.record(scope, events.HANDOFF_END, payload)
        left.handoffs.remove(handoff)
        left.close_handoff(handoff, payload)
        if handoff["background"] and handoff["run_id"] is not None:
            left.untold.add(handoff["id"])
        return payload


def run_of(row: Row) -> Run:
    """The identity of a run from its row."""
    return Run(
        id=row["id"],
        session_id=row["session_id"],
        tenant=row["tenant_id"],
        memory_id=row["memory_id"],
        turn=row["turn"],
        ordinal=row["ordinal"],
        depth=row["depth"],
        path=tuple(row["path"]),
        agent=row["agent"],
        name=row["name"],
        parent_id=row["parent_id"],
        parent_call_id=row["parent_call_id"],
        handoff_id=row["handoff_id"],
        attempt=row["attempt"],
        epoch=row["epoch"],
    )


def _withdrawn(question: Row) -> PermissionResolved:
    """That nobody waits for this answer any more."""
    return PermissionResolved(
        approval_id=question["approval_id"],
        call_id=question["call_id"],
        tool=question["tool"],
        digest=question["digest"],
        decision=AnswerKind.CANCELLED.value,
        kind="cancelled",
        by=None,
        rule=None,
        scope=None,
        owner=None,
        reason=INTERRUPTED.message,
        arguments=None,
    )
