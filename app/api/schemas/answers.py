"""What clients get, for OpenAPI: the routes answer with ready bytes, so that these models cost nothing on the way.
A test holds them and the real answers together."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

RunStatus = Literal[
    "queued", "running", "waiting", "completed", "failed", "cancelled", "timed_out", "interrupted"
]  # fmt: skip
HandoffStatus = Literal[
    "running", "completed", "failed", "cancelled", "timed_out", "interrupted", "fallback", "denied"
]  # fmt: skip
TaskStatus = Literal["running", "completed", "failed", "cancelled", "timed_out", "interrupted", "fallback"]


class Answer(BaseModel):
    """Fields may be added in later versions."""

    model_config = ConfigDict(extra="allow")


class ErrorPlace(Answer):
    """One thing that is wrong with a request."""

    at: str = Field(description="The field, such as `agents[0].name`; empty: the whole.")
    message: str


class Problem(Answer):
    """RFC 9457. `code` is stable; further fields depend on it."""

    type: str = Field(description="`/problems/<slug>`")
    title: str
    status: int
    detail: str
    code: str
    errors: list[ErrorPlace] | None = None


class Failure(Answer):
    """Why a run or delegation failed."""

    code: str
    message: str


class Usage(Answer):
    """Tokens and money; cached and reasoning tokens are parts of the totals."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    model_calls: int
    unpriced_calls: int = Field(0, description="Model calls whose price is not known; they are not in `cost`.")
    cost: dict[str, int] = Field(default_factory=dict, description="Money in millionths, by currency.")


class Activity(Answer):
    """How often a tool was used."""

    name: str
    calls: int
    total_ms: int


class Session(Answer):
    """A session. What it was configured with stands beside these fields as it was sent."""

    id: str
    agent: str | None
    status: Literal["active", "idle", "closed"]
    title: str | None
    user: str | None
    metadata: dict[str, Any]
    created_at: str
    updated_at: str | None
    closed_at: str | None
    last_event_id: int


class Webhook(Answer):
    """How far it is with telling somebody of an end; that person's URL is not shown."""

    host: str
    status: Literal["pending", "delivered", "given_up"]
    attempts: int
    last_error: str | None
    next_at: str | None = Field(description="When it is tried again; null: it goes on, or nothing is sent any more.")
    ended_at: str | None


class Run(Answer):
    """A run; what is not known yet is null."""

    id: str
    session_id: str
    memory_id: str
    run: int = Field(description="Its ordinal in the session.")
    turn: int
    depth: int
    path: list[int]
    agent: str
    name: str | None
    parent_run_id: str | None
    parent_call_id: str | None
    handoff_id: str | None
    attempt: int
    status: RunStatus
    wait_reason: str | None
    stop_reason: str | None
    input: str
    output: str | None
    error: Failure | None
    steps: int | None
    max_steps: int | None
    model: str | None
    tools: list[str] | None
    forced: bool | None
    partial: bool | None
    usage: Usage | None
    usage_total: Usage | None = Field(description="With the runs below it.")
    activity: list[Activity] | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    duration_ms: int | None
    webhook: Webhook | None = Field(None, description="Of a single run, if one was asked for.")


class StartedRun(Answer):
    """A run just started; `GET /v1/runs/{id}` shows the rest."""

    id: str
    session_id: str
    memory_id: str
    run: int
    turn: int
    depth: int
    agent: str
    status: RunStatus
    events: str = Field(description="The path of its event stream.")
    after: int = Field(description="Its events follow after this id.")


class ToldRun(Answer):
    """A message that a run is going to read."""

    notice_id: str
    run_id: str
    status: RunStatus


class Fallback(Answer):
    """What stood in for the subagent."""

    kind: Literal["agent", "model", "answer", "primary"]
    target: str = Field(description="The name of the agent, model or tool; empty for a fixed answer.")


class TreeHandoff(Answer):
    """A delegation that a run made; one that was denied has no runs."""

    id: str
    tool: str
    agent: str
    name: str | None
    status: HandoffStatus
    attempts: int
    error: Failure | None
    fallback: Fallback | None
    run_ids: list[str]


class TreeNode(Run):
    """A run with the runs that it started."""

    handoffs: list[TreeHandoff] = Field(default_factory=list)
    children: list["TreeNode"]


class Tree(Answer):
    """All runs of a session."""

    session_id: str
    runs: list[TreeNode]
    handoffs: list[TreeHandoff] = Field(default_factory=list, description="Delegations that no run made.")
    usage_total: Usage


class Cancelled(Answer):
    """Which runs a cancel stopped."""

    cancelled: list[str]


class CancelledRun(Cancelled):
    """Which runs a cancel stopped, and how the run ended."""

    id: str
    status: RunStatus


class Delegation(Answer):
    """A delegation with the result of its last attempt."""

    handoff_id: str
    session_id: str
    run_id: str | None
    run_ids: list[str]
    agent: str
    name: str
    tool: str
    depth: int
    session_mode: str
    session_scope: str | None = Field(None, description="Who shares the memory of a `reuse_session` agent.")
    status: HandoffStatus
    attempts: int
    output: str | None
    error: Failure | None
    fallback: Fallback | None = None
    steps: int | None
    usage: Usage | None
    usage_total: Usage | None
    forced: bool
    partial: bool
    stop_reason: str | None
    activity: list[Activity] | None
    started_at: str
    ended_at: str | None
    duration_ms: int | None
    webhook: Webhook | None = Field(None, description="If one was asked for.")


class Task(Answer):
    """A background task; `result` and `error` are null until it has ended."""

    task_id: str = Field(description="Also the id of its delegation.")
    session_id: str
    parent_run_id: str | None = Field(description="The run that started it; null: a direct delegation.")
    agent: str
    name: str
    status: TaskStatus
    result: str | None
    error: Failure | None
    run_ids: list[str]
    attempts: int
    created_at: str
    started_at: str | None
    ended_at: str | None


class StartedTask(Task):
    """A task just started."""

    handoff_id: str
    run_id: str | None = Field(description="Its first run; null: it ended before one was started.")
    events: str = Field(description="The path of its event stream.")
    after: int = Field(description="Its events follow after this id.")


class TaskOutput(Task):
    """A task that was waited for."""

    note: str | None = Field(description="That the wait was made shorter than wanted.")


class CancelledTask(Task):
    """A task that is to end."""

    cancelled: bool = Field(description="Whether this request ended it; false: it had ended, or somebody else did.")


class ClearedTasks(Answer):
    """How many tasks were removed from the lists."""

    cleared: int


class Message(Answer):
    """A message of the audit log. The order within a memory is `memory_seq`."""

    id: str
    seq: int = Field(description="The id of its event.")
    session_id: str
    memory_id: str
    memory_seq: int
    run_id: str | None
    agent: str | None
    name: str | None
    is_subagent: bool
    depth: int
    turn: int
    step: int
    sub: int
    role: Literal["system", "user", "assistant", "tool"]
    content: str
    reasoning: str | None
    tool_calls: list[dict[str, Any]] | None
    tool_call_id: str | None
    tool: str | None
    is_error: bool | None
    tokens: int | None
    metadata: dict[str, Any] | None
    ts: str


class ChainHead(Answer):
    """What a session's row says of its last event; `hash` in hexadecimal."""

    id: int
    hash: str


class BadEvent(Answer):
    """The first event with which something is wrong; it may be one that is missing."""

    id: int
    problem: str


class Verification(Answer):
    """Whether a session's log is what was written."""

    session_id: str
    ok: bool | None = Field(description="null: nothing is wrong so far, and `next` goes on.")
    events: int = Field(description="How many from the beginning are sound, removed ones among them.")
    removed: int = Field(description="How many were removed for their age; the check began behind them.")
    head: ChainHead
    first_bad: BadEvent | None
    keyed: bool = Field(description="The seal of the head was checked with `audit.key`.")
    says: str = Field(description="What such a check finds, and what not.")
    next: str | None


class Event(Answer):
    """A durable event; `GET /v1/events/schema` describes `data` for every type."""

    id: int
    type: str
    v: int
    ts: str
    session_id: str
    run_id: str | None = None
    run: int | None = None
    parent_run_id: str | None = None
    agent: str | None = None
    name: str | None = None
    depth: int | None = None
    path: list[int] | None = None
    step: int | None = None
    data: dict[str, Any]


class Page(Answer):
    """A part of a list; `next` is the cursor of the next part, null: this was the last."""

    next: str | None


class SessionPage(Page):
    """Sessions, newest first."""

    items: list[Session]


class RunPage(Page):
    """The turns of a session, in order."""

    items: list[Run]


class TaskPage(Page):
    """Background tasks, newest first."""

    items: list[Task]


BOUNDED: Any = Field(
    None,
    description="true: so many rows were looked at that it stopped there: 50,000 messages for a `text`, 5,000 within a "
    "session or run and for two filters of decisions. There may be fewer items than `limit`, even none, and `next` "
    "goes on.",
)
COUNT_BOUNDED: Any = Field(
    None, description="true: `count` is of the first rows that were looked at (for a `text` 50,000, otherwise 10,000)."
)


class MessagePage(Page):
    """Messages. `count` only when it was asked for; it stops at 10,001."""

    items: list[Message]
    count: int | None = None
    bounded: bool | None = BOUNDED
    count_bounded: bool | None = COUNT_BOUNDED


class EventPage(Page):
    """Events; `next` is the value of `after` for the next question, null once the view has ended."""

    items: list[Event]
    oldest: int | None = Field(
        None, description="Only where events before it were removed for their age: the first one that is kept."
    )
    bounded: bool | None = Field(
        None, description="true: 5,000 events were looked at; others that fit may follow behind `next`."
    )
