"""Facts: every event type with its payload, and the ports through which facts become durable and visible.

Payloads are TypedDicts, so they are plain dictionaries at run time and checked by mypy; their JSON Schema is
generated from here and served. A key with value None is left out of the wire form by `wire.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NotRequired, Protocol, TypedDict, TypeVar

from app.agent.messages import UsageInfo
from app.agent.runs import Run, Session

# ── payloads ────────────────────────────────────────────────────────────────────────────────────────────────────


class ErrorInfo(TypedDict):
    """A stable code and a text that is safe to show."""

    code: str
    message: str


class ActivityInfo(TypedDict):
    """How often a run used a tool, and for how long in total."""

    name: str
    calls: int
    total_ms: int


class SessionCreated(TypedDict):
    """`session.created`: what the session was configured with. `agent` null: made for a direct delegation."""

    agent: str | None
    memory_id: str
    title: str | None
    user: str | None
    metadata: dict[str, Any]
    config: dict[str, Any]


class SessionUpdated(TypedDict):
    """`session.updated`: the fields that were changed; an empty title: it was taken away."""

    title: NotRequired[str]
    metadata: NotRequired[dict[str, Any]]


class SessionIdle(TypedDict):
    """`session.idle`: no run of the session is open any more."""


class SessionClosed(TypedDict):
    """`session.closed`: `reason` is `closed` (PATCH) or `deleted` (DELETE)."""

    reason: str


class RunQueued(TypedDict):
    """`run.queued`: a run exists and waits for its memory and its places. `fallback`: as what it stands in for its
    handoff's agent. `agent_version`: of an agent that a tenant has put; `agent_hooks`: how many one of a file brings
    along. `background`: nobody waits for it; `given`: what a caller asked for besides."""

    memory_id: str
    turn: int
    handoff_id: str | None
    parent_call_id: str | None
    attempt: int
    epoch: int
    input: str
    max_steps: int
    model: str | None
    deadline_ms: int | None
    timeout_ms: int | None
    agent_version: NotRequired[int]
    agent_hooks: NotRequired[int]
    fallback: NotRequired["FallbackInfo"]
    background: NotRequired[bool]
    given: NotRequired[dict[str, Any]]


class RunStarted(TypedDict):
    """`run.started`: the loop begins; `tools` are the names that the model is shown."""

    model: str
    tools: list[str]


class RunWaiting(TypedDict):
    """`run.waiting`: `reason` is `approval`, `child`, `retry` or `drain` (the service stops, and another process goes
    on)."""

    reason: str


class RunResumed(TypedDict):
    """`run.resumed`: what it waited for is there; `restart`: another process has taken it up, for the `attempt`th
    time."""

    reason: str
    attempt: NotRequired[int]
    epoch: NotRequired[int]


class RunEnded(TypedDict):
    """`run.completed`, `run.failed`, `run.cancelled`, `run.timed_out`, `run.interrupted`: exactly one, the last
    event of a run. `usage` is its own, `usage_total` includes the runs below it. `open_tasks`: background tasks that
    are still open. `passing`: what it failed of may be over when it is tried again."""

    status: str
    stop_reason: str
    output: str
    steps: int
    usage: UsageInfo
    usage_total: UsageInfo
    forced: bool
    partial: bool
    error: ErrorInfo | None
    activity: list[ActivityInfo]
    duration_ms: int
    open_tasks: list[str]
    passing: NotRequired[bool]


class StepStarted(TypedDict):
    """`step.started`: one model call begins. `forced`: it is the forced final answer."""

    model: str
    forced: NotRequired[bool]


class WithdrawnText(TypedDict):
    """What a step had sent of one kind before it was tried again: `of` the delta type, `length` in code points,
    `digest` the SHA-256 of the text in hex."""

    of: str
    length: int
    digest: str
    call: NotRequired[str]


class StepRetried(TypedDict):
    """`step.retried`: the model call failed and is made again after `delay_ms`. The deltas of the step are withdrawn;
    those of the next try start at 0. `attempt` counts the tries that failed."""

    attempt: int
    code: str
    message: str
    delay_ms: int
    withdrawn: list[WithdrawnText]


class StepCompleted(TypedDict):
    """`step.completed`: the model call of the step and the tool calls that it asked for are done."""

    finish: str
    tool_calls: int
    usage: UsageInfo
    duration_ms: int


class CallInfo(TypedDict):
    """A tool call inside an assistant message; `arguments` is the text that the model sent."""

    call_id: str
    provider_call_id: str
    name: str
    arguments: str
    opaque: NotRequired[dict[str, Any] | None]


class MessageAdded(TypedDict):
    """`message`: a system, user or assistant message entered a memory. Order in a memory: (turn, step, sub). `usage`:
    of a reply with calls, what its step has used so far; `step.completed` says it again when the calls are done.
    `notices`: ids of those that it tells."""

    message_id: str
    memory_id: str
    memory_seq: int
    turn: int
    sub: int
    role: str
    content: str
    reasoning: str | None
    tool_calls: list[CallInfo] | None
    tokens: int | None
    partial: bool | None
    provider: str | None
    opaque: dict[str, Any] | None
    usage: NotRequired[UsageInfo]
    notices: NotRequired[list[str]]


class ToolCalled(TypedDict):
    """`tool.call`: a call passed parsing and validation and is taken up. A call that did not has a `tool.result`
    only, whose `arguments` then hold the text that the model sent."""

    call_id: str
    provider_call_id: str
    tool: str
    arguments: dict[str, Any] | str
    sub: int


class ToolStarted(TypedDict):
    """`tool.start`: the tool runs now. For tools with side effects this is committed first. `delegation`: it starts
    subagents."""

    call_id: str
    tool: str
    read_only: bool
    delegation: NotRequired[bool]


class ToolResulted(TypedDict):
    """`tool.result`: what the model is told of one call; also the row of the tool message.

    `status`: `ok`, `error`, `unknown_tool`, `invalid_arguments`, `denied` (by a hook, a rule, a person, the budget),
    `expired` (nobody answered a question in time), `duplicate`, `cancelled`, `timed_out`, `not_run`,
    `unknown` (the service stopped before an outcome was recorded). `length` is given when `content` was cut, and
    `artifact_id` names the whole then; `arguments` when there was no `tool.call`. `acknowledges`: ids of notices of
    tasks whose end it tells. `stops`: as what the run fails by it."""

    call_id: str
    provider_call_id: str
    tool: str
    message_id: str
    memory_id: str
    memory_seq: int
    turn: int
    sub: int
    status: str
    is_error: bool
    content: str
    duration_ms: int
    length: int | None
    arguments: str | None
    artifact_id: NotRequired[str | None]
    acknowledges: NotRequired[list[str]]
    stops: NotRequired[ErrorInfo]


class HandoffStarted(TypedDict):
    """`handoff.start`: one governed delegation begins. `purpose` is a label for people. Of a `reuse_session` agent
    `session_scope` says who shares its memory, `scope_note` why that is another scope than it wants. `background`: it
    is a task that nobody waits for; `detached`: nor does it end with who has started it. `resumes`: the handoff whose
    memory it goes on with. `max_steps`, `session_key`: as they were asked for; `given`: all that a caller asked for.
    `inherited`: what a task gets of the conversation, which may have gone on when it is begun anew."""

    handoff_id: str
    call_id: str | None
    tool: str
    subagent: str
    name: str
    depth: int
    session_mode: str
    surface: str
    background: bool
    input: str
    purpose: str | None
    session_scope: NotRequired[str]
    scope_note: NotRequired[str]
    detached: NotRequired[bool]
    resumes: NotRequired[str]
    max_steps: NotRequired[int]
    session_key: NotRequired[str]
    given: NotRequired[dict[str, Any]]
    inherited: NotRequired[str]


class Noticed(TypedDict):
    """`notice`: something waits in the inbox of a run. `kind`: `task` (the end of a background task, `handoff_id`, with
    its `status`) or `message` (what somebody says to it). `content` is what its model will read, in a `message` that
    names `notice_id`; `for_run` is whom it is for: where that one has ended, whoever is responsible in its place."""

    notice_id: str
    kind: str
    for_run: str
    memory_id: str
    handoff_id: str | None
    status: str | None
    content: str


class FallbackInfo(TypedDict):
    """What stood in for the subagent. `kind`: `agent`, `model`, `answer` or `primary`; `target`: its name."""

    kind: str
    target: str


class HandoffEnded(TypedDict):
    """`handoff.end`: always, whatever happened. `attempts` is 0 when it was denied; `run_ids` are all runs of it, that
    of a fallback included. `error` also stands beside a fallback: it is why there was one."""

    handoff_id: str
    call_id: str | None
    tool: str
    subagent: str
    name: str
    status: str
    depth: int
    session_mode: str
    attempts: int
    duration_ms: int
    output: str
    error: ErrorInfo | None
    run_ids: list[str]
    fallback: NotRequired[FallbackInfo]


class SubagentStarted(TypedDict):
    """`subagent.start`: a run of depth 1 or more has its memory and begins."""

    agent: str
    name: str | None
    prompt: str


class SubagentStopped(TypedDict):
    """`subagent.stop`: pairs with `subagent.start`; `result` holds the first 200 characters."""

    agent: str
    name: str | None
    result: str
    steps: int
    is_error: bool
    status: str


class HookDecision(TypedDict):
    """`hook.decision`: what a hook decided. `decision`: `block`, `mutate_input`, `mutate_output`, `add_context`,
    `ask`, `send_back` or `failed`; `effect`: what a failure counted as (`block` or `allow`). `digest`: of what it was
    asked about, arguments as they were then; `arguments`: what it has put in their place."""

    hook: str
    kind: str
    point: str
    decision: str
    reason: str | None
    effect: str | None
    tool: str | None
    call_id: str | None
    duration_ms: int
    digest: str | None
    arguments: dict[str, Any] | None


class PermissionRequested(TypedDict):
    """`permission.requested`: a call waits for a person. `digest` binds the answer to what it is about. `stands_in`:
    that is an agent in the place of the one that the call had asked for. Times: µs."""

    approval_id: str
    call_id: str
    tool: str
    arguments: dict[str, Any] | str
    digest: str
    rule: str | None
    scope: str | None
    owner: str | None
    reason: str
    suggested_rule: str | None
    expires_at: int
    stands_in: NotRequired[bool]


class PermissionResolved(TypedDict):
    """`permission.resolved`: a decision about a call, with its provenance. `kind`: `rule`, `default`, `ceiling`,
    `answer`, `person`, `timeout`, `cancelled`; `decision`: `allow`, `deny`, or how a request was settled (`allow_once`,
    `allow_session`, `deny`, `expired`, `cancelled`, `released`). `approval_id` null: nobody was asked; `call_id`
    null: a caller's own order was judged, which is no call of a run. `arguments`: what a person made of them."""

    approval_id: str | None
    call_id: str | None
    tool: str
    digest: str
    decision: str
    kind: str
    by: str | None
    rule: str | None
    scope: str | None
    owner: str | None
    reason: str | None
    arguments: dict[str, Any] | None


class DuplicateBlocked(TypedDict):
    """`duplicate.blocked`: a call was not carried out, since it would have completed the `repeats`th round of the same
    `cycle` calls. `blocked` counts these in the run."""

    call_id: str
    tool: str
    cycle: int
    repeats: int
    blocked: int


class ContextCompacted(TypedDict):
    """`compaction`: the working context of a run was shortened; every message stays in the log. `origin`: `lead`,
    `subagent`. `method`: `summary`, `cut` (of tool results), `dropped` (exchanges without a summary). `attempt`: how
    many summaries the run has asked for so far. Messages from `kept_from` on and message `task` still stand in the
    context, `summary` in place of the others; `left_out` messages have gone by this, no summary tells of
    `untold`. `cuts`: of tool messages, how many characters stand and how many do not; `note` stands for those."""

    origin: str
    method: str
    attempt: int
    before_tokens: int
    after_tokens: int
    window: int
    kept_from: int
    task: int | None
    summary: str | None
    left_out: int
    untold: int
    cuts: dict[str, list[int]] | None
    note: str | None


class AnswerForced(TypedDict):
    """`answer.forced`: one more model call without tools was made; `reason` is the stop reason."""

    reason: str


class ModelRecorded(TypedDict):
    """`model.recorded`: a model call is kept as it was, in artifacts (`debug.record_model_io`). `reply`: absent when it
    broke off."""

    model: str
    request: str
    reply: str | None


class ErrorLogged(TypedDict):
    """`error`: stands under the id of an event that could not be stored, so that ids stay gapless."""

    code: str
    message: str
    event: str


class TextDelta(TypedDict):
    """`text.delta`, `reasoning.delta`, `tool.arguments.delta`, `tool.progress`: a piece of text. `run` is the run's
    ordinal, `at` the offset in Unicode code points of what this type has sent for the step (and call)."""

    run: int
    step: int
    at: int
    text: str
    call: NotRequired[str]


class TextSnapshot(TypedDict):
    """`text.snapshot`: what `of` has sent so far in a step that is under way; later deltas start at `at`."""

    run: int
    step: int
    of: str
    at: int
    text: str
    call: NotRequired[str]


class StreamSkipped(TypedDict):
    """`stream.skipped`: this many transient events of the session were dropped because the reader was too slow."""

    deltas: int


class StreamReset(TypedDict):
    """`stream.reset`: the cursor lies beyond the `head` of the log (a restored backup, another database). Forget what
    was received; the stream follows from its first event. With `oldest`: what came before that event was removed for
    its age, and the stream goes on from there."""

    head: int
    oldest: NotRequired[int]


class StreamClosing(TypedDict):
    """`stream.closing`: the server ends this connection; reconnect with the last id. `reason`: `shutdown`,
    `revoked`."""

    reason: str


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


SESSION_CREATED = EventKind[SessionCreated]("session.created", SessionCreated)
SESSION_UPDATED = EventKind[SessionUpdated]("session.updated", SessionUpdated)
SESSION_IDLE = EventKind[SessionIdle]("session.idle", SessionIdle)
SESSION_CLOSED = EventKind[SessionClosed]("session.closed", SessionClosed)
RUN_QUEUED = EventKind[RunQueued]("run.queued", RunQueued)
RUN_STARTED = EventKind[RunStarted]("run.started", RunStarted)
RUN_WAITING = EventKind[RunWaiting]("run.waiting", RunWaiting)
RUN_RESUMED = EventKind[RunResumed]("run.resumed", RunResumed)
RUN_COMPLETED = EventKind[RunEnded]("run.completed", RunEnded, final=True)
RUN_FAILED = EventKind[RunEnded]("run.failed", RunEnded, final=True)
RUN_CANCELLED = EventKind[RunEnded]("run.cancelled", RunEnded, final=True)
RUN_TIMED_OUT = EventKind[RunEnded]("run.timed_out", RunEnded, final=True)
RUN_INTERRUPTED = EventKind[RunEnded]("run.interrupted", RunEnded, final=True)
STEP_STARTED = EventKind[StepStarted]("step.started", StepStarted)
STEP_RETRIED = EventKind[StepRetried]("step.retried", StepRetried)
STEP_COMPLETED = EventKind[StepCompleted]("step.completed", StepCompleted)
MESSAGE = EventKind[MessageAdded]("message", MessageAdded)
TOOL_CALL = EventKind[ToolCalled]("tool.call", ToolCalled)
TOOL_START = EventKind[ToolStarted]("tool.start", ToolStarted)
TOOL_RESULT = EventKind[ToolResulted]("tool.result", ToolResulted)
HANDOFF_START = EventKind[HandoffStarted]("handoff.start", HandoffStarted)
HANDOFF_END = EventKind[HandoffEnded]("handoff.end", HandoffEnded)
NOTICE = EventKind[Noticed]("notice", Noticed)
SUBAGENT_START = EventKind[SubagentStarted]("subagent.start", SubagentStarted)
SUBAGENT_STOP = EventKind[SubagentStopped]("subagent.stop", SubagentStopped)
HOOK_DECISION = EventKind[HookDecision]("hook.decision", HookDecision)
PERMISSION_REQUESTED = EventKind[PermissionRequested]("permission.requested", PermissionRequested)
PERMISSION_RESOLVED = EventKind[PermissionResolved]("permission.resolved", PermissionResolved)
DUPLICATE_BLOCKED = EventKind[DuplicateBlocked]("duplicate.blocked", DuplicateBlocked)
COMPACTION = EventKind[ContextCompacted]("compaction", ContextCompacted)
ANSWER_FORCED = EventKind[AnswerForced]("answer.forced", AnswerForced)
MODEL_RECORDED = EventKind[ModelRecorded]("model.recorded", ModelRecorded)
ERROR = EventKind[ErrorLogged]("error", ErrorLogged)
TEXT_DELTA = EventKind[TextDelta]("text.delta", TextDelta, durable=False)
REASONING_DELTA = EventKind[TextDelta]("reasoning.delta", TextDelta, durable=False)
ARGUMENTS_DELTA = EventKind[TextDelta]("tool.arguments.delta", TextDelta, durable=False)
TOOL_PROGRESS = EventKind[TextDelta]("tool.progress", TextDelta, durable=False)
TEXT_SNAPSHOT = EventKind[TextSnapshot]("text.snapshot", TextSnapshot, durable=False)
STREAM_SKIPPED = EventKind[StreamSkipped]("stream.skipped", StreamSkipped, durable=False)
STREAM_RESET = EventKind[StreamReset]("stream.reset", StreamReset, durable=False)
STREAM_CLOSING = EventKind[StreamClosing]("stream.closing", StreamClosing, durable=False)

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

# ── ports ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Recorder(Protocol):
    """How the kernel states facts. Nothing here waits for the disk but the two coroutines."""

    def record(
        self, scope: Scope, kind: EventKind[P], payload: P, *, step: int | None = None, also: tuple[Write, ...] = ()
    ) -> Event:
        """Number a durable fact and hand it over; never blocks, never fails a run."""

    def emit(self, run: Run, kind: EventKind[TextDelta], step: int, text: str, call_id: str | None = None) -> None:
        """Show a piece of text; it is numbered by its offset and not stored."""

    async def committed(self, event: Event) -> None:
        """Wait until the event is in the store."""

    async def room(self, session_id: str) -> None:
        """Wait while too much waits to be written, or for ever once there is a pause: called at step boundaries of a
        session's runs."""

    def pause(self) -> None:
        """No step begins any more: the process is about to end."""

    def seal(self) -> None:
        """Nothing is recorded any more: another process goes on from here."""


class EventLog(Protocol):
    """Reads the durable events of one session in order."""

    async def page(
        self, tenant: str, session_id: str, *, after: int, upto: int | None = None, limit: int = 500
    ) -> Sequence[StoredEvent]:
        """Events with `after < seq <= upto`, at most `limit`."""

    async def head(self, tenant: str, session_id: str) -> int | None:
        """The last number stored, 0 for none, None for an unknown session."""

    async def oldest(self, tenant: str, session_id: str) -> int:
        """The first number that is kept: what stood before it was removed for its age."""


class Subscription(Protocol):
    """One reader's place in the live stream of a session."""

    @property
    def head(self) -> int:
        """The last durable event that was published before the subscription began."""

    @property
    def snapshots(self) -> Sequence[tuple[Run, TextSnapshot]]:
        """The texts of the steps that were under way then."""

    @property
    def ended(self) -> str | None:
        """Why it is to stop; None while it is not."""

    async def next(self) -> Sequence[Event]:
        """All that came since the last call; empty only after `poke`. Raises `Lagging` when the reader was too slow,
        `Ended` when the connection is to be closed."""

    def poke(self) -> None:
        """Let a waiting reader return with nothing."""

    def end(self, reason: str) -> None:
        """Let the reader take what is there and then stop."""

    def close(self) -> None:
        """Stop receiving."""


class Lagging(Exception):
    """The live part was dropped for a slow reader: read on from the log. `deltas` says how many were lost."""

    def __init__(self, deltas: int) -> None:
        super().__init__(deltas)
        self.deltas = deltas


class Ended(Exception):
    """The server closes this reader's connection. `reason` as in `stream.closing`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EventBus(Protocol):
    """Hands published events to whoever looks at a session."""

    def publish(self, session_id: str, events: Sequence[Event]) -> None:
        """Show events in order."""

    def subscribe(self, session_id: str, *, head: int) -> Subscription:
        """Begin to receive; `head` is used when the session was not published here yet."""


class Masker(Protocol):
    """Takes secrets out of texts."""

    def text(self, value: str) -> str:
        """The text with every known secret replaced."""

    def hides(self, value: str) -> bool:
        """Whether something was replaced in a text."""
