"""Payloads of the events of governance: delegation, notices, hooks, permissions, duplicates, compaction and the forced
answer. As `payloads.py`.
"""

from typing import Any, NotRequired, TypedDict

from app.agent.payloads import ErrorInfo, FallbackInfo


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
    null: a caller's own order was judged, which is no call of a run. `digest`: of the arguments that were decided
    about. `arguments`: what a person made of them; `edited_digest`: of these, with which the call may run."""

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
    edited_digest: NotRequired[str]


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
