"""Payloads of the events of sessions, runs, steps, messages and tools, and of what a stream says of itself.

TypedDicts, so they are plain dictionaries at run time and checked by mypy; their JSON Schema is generated from here and
served. A key with value None is left out of the wire form by `wire.py`.
"""

from typing import Any, NotRequired, TypedDict

from app.agent.messages import UsageInfo


class ErrorInfo(TypedDict):
    """A stable code and a text that is safe to show."""

    code: str
    message: str


class ActivityInfo(TypedDict):
    """How often a run used a tool, and for how long in total."""

    name: str
    calls: int
    total_ms: int


class FallbackInfo(TypedDict):
    """What stood in for the subagent. `kind`: `agent`, `model`, `answer` or `primary`; `target`: its name."""

    kind: str
    target: str


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
    fallback: NotRequired[FallbackInfo]
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
    `revoked` or `expired` (the key)."""

    reason: str
