"""What is delegated, by whom, and what came of it: the values of a handoff, and what follows from them alone.

Knows no run that is under way; `handoff.py` carries out what is asked for here.
"""

import hashlib
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.agent.budget import Budget
from app.agent.definition import (
    AgentDefinition,
    Inherit,
    SessionMode,
    SessionScope,
    Surface,
    SurfaceKind,
    ToolCeiling,
)
from app.agent.messages import Message
from app.agent.permission_rules import PermissionRule
from app.agent.policy import BudgetLimits, HandoffPolicy, Reaction
from app.agent.runs import Ceiling, Failure, Fallback, HandoffStatus, ReusePlan, Run, RunOutcome, Session
from app.agent.tools import ToolResult

SUBAGENT_STEPS = 5  # spec 5.1
DIRECT = "direct"  # the surface of a delegation that no model asked for
BUDGET_CODE = "budget_exhausted"
MEMORY_BUSY = "memory_busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How long to wait between attempts: `backoff_ms` doubling up to `max_backoff_ms`, half of it at random.
    `deadline_ms`: no further attempt begins later than this after the first one began."""

    backoff_ms: int = 500
    max_backoff_ms: int = 30_000
    deadline_ms: int = 600_000

    def delay_ms(self, tried: int, at_least: int | None) -> float:
        """The pause after `tried` attempts; at least what the provider asked for."""
        full = min(self.max_backoff_ms, self.backoff_ms * 2.0 ** min(tried - 1, 30))
        return max(full * random.uniform(0.5, 1.0), at_least or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegator:
    """Who delegates: a run of a session, or (run None) a caller over HTTP. `tools` are the run's ordinary tools, with
    what `limits` leave of them; `ceiling`: what its children may have at most, None where that is not bounded.

    `history` and `summary` give the run's conversation for children that inherit it; `find` names the agents of the
    session, `agents` are those that the run's own definition names (None: all); `budget` is that of the run, or of the
    session.
    """

    session: Session
    run: Run | None
    policy: HandoffPolicy
    surfaces: tuple[Surface, ...]
    model: str | None
    parallel_tool_calls: bool
    effort: str | None = None
    thinking: bool | None = None
    tools: tuple[str, ...] | None = None
    limits: tuple[PermissionRule, ...] = ()
    ceiling: ToolCeiling | None = None
    budget: Budget | None = None
    agents: tuple[str, ...] | None = None
    permissions: Ceiling | None = None
    find: Callable[[str], AgentDefinition | None] = lambda name: None
    history: Callable[[], Sequence[Message]] = lambda: ()
    summary: Callable[[], Awaitable[str]] | None = None

    @property
    def child_depth(self) -> int:
        """The depth of a run that this one starts; 1 for a direct delegation."""
        return 1 if self.run is None else self.run.depth + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffOrder:
    """What is delegated, to whom, by which tool. 0 ms means no limit.

    `fields` instead of `task`: the arguments of an agent with an `input_schema`. `purpose` is for people only.
    `inherited`: what it gets of the conversation, where that was put together already (None: it was not). `resume`:
    whose memory it goes on with. `detached`: in the background it does not end with who delegates. `given`:
    all that a caller asked for, to be kept with it.
    `session_key` names the memory of an agent whose scope is `key`; `inherit` may lower what the definition lets it
    read; `primary` carries the same call to the ordinary tool of that name; `stands_in` asks whether another agent may
    stand in, by the name of its tool and its own, and raises `CallDenied`. `id`: the handoff's, where rows name it that
    are stored with it.
    """

    tool: str
    surface: str
    definition: AgentDefinition
    task: str
    context: str = ""
    fields: Mapping[str, Any] | None = None
    call_id: str | None = None
    name: str | None = None
    purpose: str | None = None
    max_steps: int | None = None
    tools: tuple[str, ...] | None = None
    timeout_ms: int = 0
    deadline_ms: int = 0
    session_key: str | None = None
    resume: "ResumePoint | None" = None
    detached: bool = False
    given: Mapping[str, Any] | None = None
    inherit: Inherit | None = None
    inherited: str | None = None
    budget: BudgetLimits | None = None
    output_schema: Mapping[str, Any] | None = None
    primary: Callable[[], Awaitable[ToolResult]] | None = None
    stands_in: Callable[[str, str], Awaitable[None]] | None = None
    id: str | None = None

    @property
    def input(self) -> str:
        """The task as it was asked for."""
        return composed(self.task, self.context, self.fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """An earlier handoff that has ended, and the memory that its agent left."""

    task_id: str
    agent: str
    name: str
    memory_id: str
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffResult:
    """How a handoff ended. `outcome` is that of the last attempt, None when there was none; `error` says why the
    subagent itself gave no result, also where a fallback did. `direct` is a result that takes the place of the
    surface's own shape."""

    handoff_id: str
    name: str
    status: HandoffStatus
    outcome: RunOutcome | None = None
    error: Failure | None = None
    run_ids: tuple[str, ...] = ()
    attempts: int = 0
    fallback: Fallback | None = None
    direct: ToolResult | None = None
    answer: str | None = None

    @property
    def ok(self) -> bool:
        """Whether there is a result to hand on."""
        return self.status in (HandoffStatus.COMPLETED, HandoffStatus.FALLBACK)

    @property
    def output(self) -> str:
        """The text that came of it."""
        if self.answer is not None:
            return self.answer
        if self.direct is not None and self.status is HandoffStatus.FALLBACK:
            return self.direct.content
        return self.outcome.output if self.outcome is not None else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """A handoff as whoever asks for it by its id sees it; `result` and `error` are None until it has ended."""

    task_id: str
    agent: str
    name: str
    status: HandoffStatus
    result: str | None = None
    error: str | None = None

    @property
    def ended(self) -> bool:
        """Whether it goes on no more."""
        return self.status is not HandoffStatus.RUNNING


def stops_parent(policy: HandoffPolicy, result: HandoffResult, surface: str) -> bool:
    """Whether this result ends the parent's turn (spec 4.1). Default: `fail` on `per_agent`, `report` elsewhere; a
    budget that is used up is reported unless the policy says `fail`, since the tree then ends in an answer."""
    if result.ok or (result.direct is not None and result.fallback is None):
        return False
    chosen = policy.on_denied if result.status is HandoffStatus.DENIED else policy.on_error
    if not policy.enabled:
        chosen = None
    if chosen is not None and chosen.reaction in (Reaction.FAIL, Reaction.REPORT):
        return chosen.reaction is Reaction.FAIL
    if result.error is not None and result.error.code == BUDGET_CODE:
        return False
    return surface == SurfaceKind.PER_AGENT.value


def composed(task: str, context: str, fields: Mapping[str, Any] | None) -> str:
    """The input of a subagent in the form of spec 3.1: the fields as JSON, else the task with its context."""
    text = task if fields is None else canonical(fields)
    return f"{text}\n\nContext:\n{context}" if context else text


def canonical(value: Any) -> str:
    """JSON with sorted keys and no white space."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def reuse_plan(session: Session, order: HandoffOrder) -> ReusePlan | None:
    """Which memory a `reuse_session` agent goes on with (spec 4.9); None for a fresh one.

    The id is derived from what shares it, so that nobody has to look it up and no two can make one each.
    """
    definition, point = order.definition, order.resume
    if point is not None:
        return ReusePlan(
            memory_id=point.memory_id, scope=SessionScope.SESSION, resumes=point.task_id, alone=not point.shared
        )
    if definition.session_mode is SessionMode.NEW:
        return None
    scope, note = definition.session_scope, None
    value = {
        SessionScope.SESSION: session.id,
        SessionScope.USER: session.user,
        SessionScope.TENANT: session.tenant,
        SessionScope.KEY: order.session_key,
    }[scope]
    if not value:
        missing = "no user" if scope is SessionScope.USER else "no session_key"
        scope, note, value = SessionScope.SESSION, f"{missing} was given: the memory is that of the session", session.id
    parts = (session.tenant, scope.value, value, order.tool, definition.name)
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
    return ReusePlan(memory_id=f"mem_{digest[:32]}", scope=scope, note=note)
