"""What becomes of runs whose process went away: they are closed as `interrupted`, children first.

Runs once before the service takes requests. Knows no SQL: it reads open rows and the log, and records facts like
everybody else.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.agent import events
from app.agent.approvals import AnswerKind
from app.agent.ids import new_id, now_us
from app.agent.messages import NO_USAGE, Role, Usage
from app.agent.runner import UNFINISHED, ended_payload
from app.agent.runs import Run, RunOutcome, RunStatus, RunStore, Session, StopReason
from app.agent.subagent_hooks import RESULT_HEAD
from app.sessions.journal import Journal
from app.wire import decode

log = logging.getLogger(__name__)

INTERRUPTED = UNFINISHED[RunStatus.INTERRUPTED]

UNKNOWN_RESULT = (
    "(the service stopped before the outcome of this call was recorded; it is not known whether it took effect)"
)
NOT_RUN_RESULT = "(not run: the service stopped before this call began)"

BROKEN_OFF = Usage(model_calls=1, unpriced_calls=1)  # a call that costs nobody knows what

Row = Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class _Call:
    """A call of a reply that has no result. `called`, `started`: its events are in the log."""

    call_id: str
    provider_call_id: str
    tool: str
    raw: str
    step: int
    sub: int
    memory_seq: int
    called: bool = False
    started: bool = False


@dataclass(slots=True)
class _Trace:
    """What the log says of one run that has not ended. `answered`: the usage of the steps that were completed;
    `open`: of the one that was not, where at least the call was made. `started`: as a subagent, and not stopped.
    `questions`: what persons were asked and have not answered, with the step."""

    steps: int = 0
    answered: Usage = NO_USAGE
    open: Usage = NO_USAGE
    text: str = ""
    started: bool = False
    calls: dict[str, _Call] = field(default_factory=dict)
    questions: dict[str, tuple[int, Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def usage(self) -> Usage:
        """What is known to be used."""
        return self.answered + self.open

    def add(self, kind: str, step: int, data: Mapping[str, Any]) -> None:
        """Take in one event of the run."""
        if kind == "step.started":
            self.steps = step
            self.answered += self.open  # a step that failed and was followed by another
            self.open = BROKEN_OFF
        elif kind == "step.completed":
            self.answered += Usage.from_dict(data["usage"])
            self.open = NO_USAGE
        elif kind in ("subagent.start", "subagent.stop"):
            self.started = kind == "subagent.start"
        elif kind == "message" and data["role"] == Role.ASSISTANT:
            self.text = data["content"] if data["content"].strip() else self.text
            if data.get("usage"):
                self.open = Usage.from_dict(data["usage"])
            self._asked(step, data)
        elif kind == "permission.requested":
            self.questions[data["approval_id"]] = (step, data)
        elif kind == "permission.resolved":
            self.questions.pop(data.get("approval_id", ""), None)
        elif kind == "tool.result":
            self.calls.pop(data["call_id"], None)
        elif kind in ("tool.call", "tool.start") and (call := self.calls.get(data["call_id"])) is not None:
            call.called = True
            call.started = kind == "tool.start"

    def _asked(self, step: int, data: Mapping[str, Any]) -> None:
        for sub, call in enumerate(data.get("tool_calls") or (), 1):
            self.calls[call["call_id"]] = _Call(
                call_id=call["call_id"],
                provider_call_id=call["provider_call_id"],
                tool=call["name"],
                raw=call["arguments"],
                step=step,
                sub=sub,
                memory_seq=data["memory_seq"] + sub,
            )


class Recovery:
    """Brings every session to a state in which nothing is said to run that does not."""

    def __init__(self, store: RunStore, journal: Journal) -> None:
        self._store = store
        self._journal = journal

    async def run(self) -> int:
        """Close what was in flight; returns how many runs that were. Idempotent: what is closed is not open."""
        runs = await self._store.open_runs()  # deepest first
        handoffs = await self._store.open_handoffs()
        sessions = {row["session_id"]: row["tenant_id"] for row in (*runs, *handoffs)}
        for session_id, tenant in sessions.items():
            await self._session(
                _scope(tenant, session_id),
                [row for row in runs if row["session_id"] == session_id],
                [row for row in handoffs if row["session_id"] == session_id],
            )
        await self._journal.flush()
        for session_id in sessions:
            self._journal.release(session_id)
        if runs:
            log.warning("%d runs of %d sessions were in flight and are interrupted", len(runs), len(sessions))
        return len(runs)

    async def _session(self, session: Session, open_runs: Sequence[Row], handoffs: Sequence[Row]) -> None:
        await self._journal.open(session.tenant, session.id)
        traces = await self._traces(session, open_runs)
        rows = await self._store.runs(session.tenant, session.id)
        below: dict[str, Usage] = {}  # of each run: what its children used
        for row in rows:
            if row["parent_id"] and row["usage_total"]:
                below[row["parent_id"]] = below.get(row["parent_id"], NO_USAGE) + Usage.from_dict(row["usage_total"])
        own = {row["id"]: [h for h in handoffs if h["run_id"] == row["id"]] for row in open_runs}
        for row in open_runs:
            run = run_of(row)
            for handoff in own[run.id]:
                self._end_handoff(run, handoff, rows)
            trace = traces[run.id]
            total = trace.usage + below.get(run.id, NO_USAGE)
            if run.parent_id:
                below[run.parent_id] = below.get(run.parent_id, NO_USAGE) + total
            self._interrupt(run, row, trace, total)
        for handoff in handoffs:
            if handoff["run_id"] not in own:
                self._end_handoff(session, handoff, rows)
        if open_runs or any(row["handoff_id"] in {h["id"] for h in handoffs} for row in rows):
            self._journal.record(session, events.SESSION_IDLE, events.SessionIdle())

    async def _traces(self, session: Session, open_runs: Sequence[Row]) -> dict[str, _Trace]:
        """What the log says of each open run."""
        traces = {row["id"]: _Trace() for row in open_runs}
        after = min((row["first_seq"] for row in open_runs), default=2**62) - 1
        while page := await self._journal.log.page(session.tenant, session.id, after=after):
            after = page[-1].seq
            for event in page:
                envelope = decode(event.envelope)
                trace = traces.get(envelope.get("run_id"))
                if trace is not None:
                    trace.add(event.type, envelope.get("step", 0), decode(event.data))
        return traces

    def _interrupt(self, run: Run, row: Row, trace: _Trace, total: Usage) -> None:
        for step, question in trace.questions.values():
            self._journal.record(run, events.PERMISSION_RESOLVED, _withdrawn(question), step=step)
        for call in trace.calls.values():
            self._journal.record(run, events.TOOL_RESULT, _unfinished(run, call), step=call.step)
        if trace.started:
            stopped = events.SubagentStopped(
                agent=run.agent,
                name=run.name,
                result=(trace.text or INTERRUPTED.message)[:RESULT_HEAD],
                steps=trace.steps,
                is_error=True,
                status=RunStatus.INTERRUPTED.value,
            )
            self._journal.record(run, events.SUBAGENT_STOP, stopped)
        outcome = RunOutcome(
            status=RunStatus.INTERRUPTED,
            stop_reason=StopReason.SHUTDOWN,
            output=trace.text,
            steps=trace.steps,
            usage=trace.usage,
            usage_total=total,
            partial=True,
            error=INTERRUPTED,
        )
        began = row["started_at"] or row["created_at"]
        self._journal.record(run, events.RUN_INTERRUPTED, ended_payload(outcome, max(0, now_us() - began) // 1000))

    def _end_handoff(self, scope: Run | Session, handoff: Row, runs: Sequence[Row]) -> None:
        """End a handoff as its last run ended; one whose run was in flight, or never recorded, is interrupted."""
        attempts = [row for row in runs if row["handoff_id"] == handoff["id"]]
        ended = attempts[-1] if attempts and attempts[-1]["ended_at"] is not None else None
        error = ended["error"] if ended is not None else INTERRUPTED.as_dict()
        payload = events.HandoffEnded(
            handoff_id=handoff["id"],
            call_id=handoff["call_id"],
            tool=handoff["tool"],
            subagent=handoff["agent"],
            name=handoff["name"],
            status=ended["status"] if ended is not None else RunStatus.INTERRUPTED.value,
            depth=handoff["depth"],
            session_mode=handoff["session_mode"],
            attempts=len(attempts),
            duration_ms=max(0, now_us() - handoff["started_at"]) // 1000,
            output=(ended["output"] or "") if ended is not None else "",
            error=events.ErrorInfo(code=error["code"], message=error["message"]) if error else None,
            run_ids=[row["id"] for row in attempts],
        )
        self._journal.record(scope, events.HANDOFF_END, payload)


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


def _scope(tenant: str, session_id: str) -> Session:
    """A session as the scope of an event: nothing else of it is looked at."""
    return Session(id=session_id, tenant=tenant, memory_id="", agent=None, created_at=0)


def _unfinished(run: Run, call: _Call) -> events.ToolResulted:
    """The result of a call that has none; only what was started may have had an effect."""
    return events.ToolResulted(
        call_id=call.call_id,
        provider_call_id=call.provider_call_id,
        tool=call.tool,
        message_id=new_id("msg"),
        memory_id=run.memory_id,
        memory_seq=call.memory_seq,
        turn=run.turn,
        sub=call.sub,
        status="unknown" if call.started else "not_run",
        is_error=True,
        content=UNKNOWN_RESULT if call.started else NOT_RUN_RESULT,
        duration_ms=0,
        length=None,
        arguments=None if call.called else call.raw,
    )


def _withdrawn(question: Row) -> events.PermissionResolved:
    """That nobody waits for this answer any more."""
    return events.PermissionResolved(
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
