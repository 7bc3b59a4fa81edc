"""Facts: every event type with its payload, and the values that the log is made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from app.agent import governed, payloads
from app.agent.runs import Run, Session

# ── kinds ───────────────────────────────────────────────────────────────────────────────────────────────────────

P = TypeVar("P", bound=Mapping[str, object], contravariant=True)


@dataclass(frozen=True)  # no slots: Python 3.11 cannot make a generic one that is frozen too
class EventKind(Generic[P]):
    """An event type with its payload. `durable` ones are stored and numbered; `final` ones end a run."""

    name: str
    payload: type
    durable: bool = True
    final: bool = False
    version: int = 1


SESSION_CREATED = EventKind[payloads.SessionCreated]("session.created", payloads.SessionCreated)
SESSION_UPDATED = EventKind[payloads.SessionUpdated]("session.updated", payloads.SessionUpdated)
SESSION_IDLE = EventKind[payloads.SessionIdle]("session.idle", payloads.SessionIdle)
SESSION_CLOSED = EventKind[payloads.SessionClosed]("session.closed", payloads.SessionClosed)
RUN_QUEUED = EventKind[payloads.RunQueued]("run.queued", payloads.RunQueued)
RUN_STARTED = EventKind[payloads.RunStarted]("run.started", payloads.RunStarted)
RUN_WAITING = EventKind[payloads.RunWaiting]("run.waiting", payloads.RunWaiting)
RUN_RESUMED = EventKind[payloads.RunResumed]("run.resumed", payloads.RunResumed)
RUN_COMPLETED = EventKind[payloads.RunEnded]("run.completed", payloads.RunEnded, final=True)
RUN_FAILED = EventKind[payloads.RunEnded]("run.failed", payloads.RunEnded, final=True)
RUN_CANCELLED = EventKind[payloads.RunEnded]("run.cancelled", payloads.RunEnded, final=True)
RUN_TIMED_OUT = EventKind[payloads.RunEnded]("run.timed_out", payloads.RunEnded, final=True)
RUN_INTERRUPTED = EventKind[payloads.RunEnded]("run.interrupted", payloads.RunEnded, final=True)
STEP_STARTED = EventKind[payloads.StepStarted]("step.started", payloads.StepStarted)
STEP_RETRIED = EventKind[payloads.StepRetried]("step.retried", payloads.StepRetried)
STEP_COMPLETED = EventKind[payloads.StepCompleted]("step.completed", payloads.StepCompleted)
MESSAGE = EventKind[payloads.MessageAdded]("message", payloads.MessageAdded)
TOOL_CALL = EventKind[payloads.ToolCalled]("tool.call", payloads.ToolCalled)
TOOL_START = EventKind[payloads.ToolStarted]("tool.start", payloads.ToolStarted)
TOOL_RESULT = EventKind[payloads.ToolResulted]("tool.result", payloads.ToolResulted)
HANDOFF_START = EventKind[governed.HandoffStarted]("handoff.start", governed.HandoffStarted)
HANDOFF_END = EventKind[governed.HandoffEnded]("handoff.end", governed.HandoffEnded)
NOTICE = EventKind[governed.Noticed]("notice", governed.Noticed)
SUBAGENT_START = EventKind[governed.SubagentStarted]("subagent.start", governed.SubagentStarted)
SUBAGENT_STOP = EventKind[governed.SubagentStopped]("subagent.stop", governed.SubagentStopped)
HOOK_DECISION = EventKind[governed.HookDecision]("hook.decision", governed.HookDecision)
PERMISSION_REQUESTED = EventKind[governed.PermissionRequested]("permission.requested", governed.PermissionRequested)
PERMISSION_RESOLVED = EventKind[governed.PermissionResolved]("permission.resolved", governed.PermissionResolved)
DUPLICATE_BLOCKED = EventKind[governed.DuplicateBlocked]("duplicate.blocked", governed.DuplicateBlocked)
COMPACTION = EventKind[governed.ContextCompacted]("compaction", governed.ContextCompacted)
ANSWER_FORCED = EventKind[governed.AnswerForced]("answer.forced", governed.AnswerForced)
MODEL_RECORDED = EventKind[payloads.ModelRecorded]("model.recorded", payloads.ModelRecorded)
ERROR = EventKind[payloads.ErrorLogged]("error", payloads.ErrorLogged)
TEXT_DELTA = EventKind[payloads.TextDelta]("text.delta", payloads.TextDelta, durable=False)
REASONING_DELTA = EventKind[payloads.TextDelta]("reasoning.delta", payloads.TextDelta, durable=False)
ARGUMENTS_DELTA = EventKind[payloads.TextDelta]("tool.arguments.delta", payloads.TextDelta, durable=False)
TOOL_PROGRESS = EventKind[payloads.TextDelta]("tool.progress", payloads.TextDelta, durable=False)
TEXT_SNAPSHOT = EventKind[payloads.TextSnapshot]("text.snapshot", payloads.TextSnapshot, durable=False)
STREAM_SKIPPED = EventKind[payloads.StreamSkipped]("stream.skipped", payloads.StreamSkipped, durable=False)
STREAM_RESET = EventKind[payloads.StreamReset]("stream.reset", payloads.StreamReset, durable=False)
STREAM_CLOSING = EventKind[payloads.StreamClosing]("stream.closing", payloads.StreamClosing, durable=False)

KINDS: Mapping[str, EventKind[Any]] = {
    kind.name: kind for kind in list(globals().values()) if isinstance(kind, EventKind)
}
FINAL_TYPES = frozenset(name for name, kind in KINDS.items() if kind.final)

# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, kw_only=True)
class Event:
    """One fact. `seq` is its id in the session, gapless from 1, and 0 for a transient one; `ts` in µs.

    Not frozen, since making a frozen one costs six times as much and this is the hottest value of the service;
    nobody changes it after `record`. `envelope` and `data` are its JSON, encoded once: the same bytes go to the log,
    into the hash and to every stream.
    """

    seq: int
    type: str
    ts: int
    tenant: str
    session_id: str
    run: Run | None
    step: int | None
    payload: Mapping[str, Any]
    envelope: bytes = b""
    data: bytes = b""
    also: "tuple[Write, ...]" = ()


@dataclass(slots=True, kw_only=True)
class StoredEvent:
    """One durable event as the log gives it back. Not frozen, for the same reason."""

    seq: int
    type: str
    envelope: bytes
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A row that is no event but goes through the same writer: `table`, the values, and the key columns by which an
    existing row is replaced; `delete` removes the rows that match `key`, `keep` leaves an existing one as it is,
    `change` makes none where there is none."""

    table: str
    values: Mapping[str, Any]
    key: tuple[str, ...] = ()
    delete: bool = False
    keep: bool = False
    change: bool = False


Scope = Run | Session
