"""What becomes of runs whose process went away: they are closed as `interrupted`, children first, and hooks are told.

Runs once before the service takes requests. Knows no SQL: it reads open rows and the log, and records facts like
everybody else.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.agent import events
from app.agent.approvals import AnswerKind
from app.agent.hooks import NO_HOOKS, Hook, HookCall, HookPoint, HookRegistry
from app.agent.ids import new_id, now_us
from app.agent.messages import NO_USAGE, Usage
from app.agent.runner import ended_payload
from app.agent.runs import HandoffStatus, Run, RunOutcome, RunStatus, RunStore, Session, StopReason
from app.sessions.journal import Journal
from app.sessions.traces import INTERRUPTED, OpenCall, Trace
from app.wire import decode

log = logging.getLogger(__name__)

UNKNOWN_RESULT = (
    "(the service stopped before the outcome of this call was recorded; it is not known whether it took effect)"
)
NOT_RUN_RESULT = "(not run: the service stopped before this call began)"

TELLING = 8  # hooks at a time: a crash may leave thousands of runs, and they may all go to one receiver

Row = Mapping[str, Any]


@dataclass(slots=True)
class _Read:
    """What the log says of a session: of each open run, and which runs stand in for the agent of an open handoff."""

    traces: dict[str, Trace]
    fallbacks: dict[str, events.FallbackInfo] = field(default_factory=dict)


class Recovery:
    """Brings every session to a state in which nothing is said to run that does not.

    Subagents that had started have stopped: their hooks are told so, beside the service that goes on. `workspace`
    gives the directory of a session's row, empty where there is none any more; `own` the hooks that the file of an
    agent brings along, by its name.
    """

    def __init__(
        self,
        store: RunStore,
        journal: Journal,
        hooks: HookRegistry = NO_HOOKS,
        workspace: Callable[[Row], str] = lambda row: "",
        own: Callable[[str], Sequence[Hook]] = lambda agent: (),
    ) -> None:
        self._store = store
        self._journal = journal
        self._hooks = hooks
        self._workspace = workspace
        self._own = own
        self._few = asyncio.Semaphore(TELLING)
        self._telling: set[asyncio.Task[None]] = set()

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

    async def told(self) -> None:
        """Wait until the hooks have been told; each has its own time for that."""
        await asyncio.gather(*self._telling, return_exceptions=True)

    async def close(self) -> None:
        """Tell nobody any more."""
        for task in self._telling:
            task.cancel()
        await self.told()

    async def _session(self, session: Session, open_runs: Sequence[Row], handoffs: Sequence[Row]) -> None:
        await self._journal.open(session.tenant, session.id)
        rows = await self._store.runs(session.tenant, session.id)
        attempts = {h["id"]: [row for row in rows if row["handoff_id"] == h["id"]] for h in handoffs}
        read = await self._read(session, open_runs, [row for each in attempts.values() for row in each])
        told = {row["id"]: self._heard(row["agent"], read.traces[row["id"]]) for row in open_runs}
        workspace = await self._directory(session) if any(told.values()) else ""
        below: dict[str, Usage] = {}  # of each run: what its children used
        for row in rows:
            if row["parent_id"] and row["usage_total"]:
                below[row["parent_id"]] = below.get(row["parent_id"], NO_USAGE) + Usage.from_dict(row["usage_total"])
        own = {row["id"]: [h for h in handoffs if h["run_id"] == row["id"]] for row in open_runs}
        for row in open_runs:
            run = run_of(row)
            for handoff in own[run.id]:
                self._end_handoff(run, handoff, attempts[handoff["id"]], read)
            trace = read.traces[run.id]
            total = trace.usage + below.get(run.id, NO_USAGE)
            if run.parent_id:
                below[run.parent_id] = below.get(run.parent_id, NO_USAGE) + total
            hooks = told[run.id]
            if hooks is not None:
                self._tell(hooks, run, trace, _lineage(row, rows), workspace)
            self._interrupt(run, row, trace, total)
        for handoff in handoffs:
            if handoff["run_id"] not in own:
                self._end_handoff(session, handoff, attempts[handoff["id"]], read)
        if open_runs or any(attempts.values()):
            self._journal.record(session, events.SESSION_IDLE, events.SessionIdle())

    async def _read(self, session: Session, open_runs: Sequence[Row], attempts: Sequence[Row]) -> _Read:
        """Read the log of a session from where what is open began."""
        read = _Read({row["id"]: Trace() for row in open_runs})
        tried = {row["id"] for row in attempts}
        after = min((row["first_seq"] for row in (*open_runs, *attempts)), default=2**62) - 1
        while page := await self._journal.log.page(session.tenant, session.id, after=after):
            after = page[-1].seq
            for event in page:
                envelope = decode(event.envelope)
                run_id = envelope.get("run_id", "")
                trace = read.traces.get(run_id)
                if trace is not None:
                    trace.add(event.type, envelope.get("step", 0), decode(event.data))
                if event.type == "run.queued" and run_id in tried and (found := decode(event.data).get("fallback")):
                    read.fallbacks[run_id] = found
        return read

    async def _directory(self, session: Session) -> str:
        """The workspace of a session."""
        row = await self._store.session(session.tenant, session.id)
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

    def _interrupt(self, run: Run, row: Row, trace: Trace, total: Usage) -> None:
        for step, question in trace.questions.values():
            self._journal.record(run, events.PERMISSION_RESOLVED, _withdrawn(question), step=step)
        for call in trace.calls.values():
            self._journal.record(run, events.TOOL_RESULT, _unfinished(run, call), step=call.step)
        if trace.started:
            stopped = events.SubagentStopped(
                agent=run.agent,
                name=run.name,
                result=trace.told,
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

    def _end_handoff(self, scope: Run | Session, handoff: Row, runs: Sequence[Row], read: _Read) -> None:
        """End a handoff as its last run ended; one whose run was in flight, or never recorded, is interrupted."""
        last = runs[-1] if runs else None
        fallback = read.fallbacks.get(last["id"]) if last is not None else None
        attempts = [row for row in runs if row["id"] not in read.fallbacks]
        ended = last if last is not None and last["ended_at"] is not None else None
        status = ended["status"] if ended is not None else RunStatus.INTERRUPTED.value
        error = ended["error"] if ended is not None else INTERRUPTED.as_dict()
        if fallback is not None and status == RunStatus.COMPLETED.value:
            status = HandoffStatus.FALLBACK.value
            error = attempts[-1]["error"] if attempts else None  # why the subagent itself gave no result
        payload = events.HandoffEnded(
            handoff_id=handoff["id"],
            call_id=handoff["call_id"],
            tool=handoff["tool"],
            subagent=handoff["agent"],
            name=handoff["name"],
            status=status,
            depth=handoff["depth"],
            session_mode=handoff["session_mode"],
            attempts=len(attempts),
            duration_ms=max(0, now_us() - handoff["started_at"]) // 1000,
            output=(ended["output"] or "") if ended is not None else "",
            error=events.ErrorInfo(code=error["code"], message=error["message"]) if error else None,
            run_ids=[row["id"] for row in runs],
        )
        if fallback is not None:
            payload["fallback"] = fallback
        self._journal.record(scope, events.HANDOFF_END, payload)


def _lineage(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    """The runs above one, from the root."""
    parents, found = {each["id"]: each["parent_id"] for each in rows}, list[str]()
    above = row["parent_id"]
    while above is not None:
        found.append(above)
        above = parents.get(above)
    return tuple(reversed(found))


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


def _unfinished(run: Run, call: OpenCall) -> events.ToolResulted:
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
