"""Sessions, memories, runs and handoffs: the nouns of a delegation.

A parent agent, a subagent and a background task are the same thing, a `Run`, told apart by depth and by whether
somebody waits. Values are frozen; what changes while a run is in the air belongs to `runner.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from app.agent.definition import AgentDefinition, SessionScope, Surface, ToolCeiling
from app.agent.messages import NO_USAGE, Message, Usage
from app.agent.permission_rules import PermissionRule, PermissionRules
from app.agent.policy import NO_POLICY, BudgetLimits, HandoffPolicy, PolicyFields
from app.agent.texts import DEFAULT, Texts


class RunStatus(StrEnum):
    """States of a run; the last five are final."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    INTERRUPTED = "interrupted"


class HandoffStatus(StrEnum):
    """States of a handoff: those of its runs, and two of its own."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    INTERRUPTED = "interrupted"
    FALLBACK = "fallback"
    DENIED = "denied"


FINAL_STATUSES = frozenset(list(RunStatus)[3:])


class StopReason(StrEnum):
    """Why a run ended."""

    ANSWER = "answer"
    MALFORMED_CALL = "malformed_call"  # its last text is a tool call that nothing could carry out
    LENGTH = "length"  # its last text was cut, once more after the model was told
    FILTERED = "filtered"  # its last text was broken off by the provider
    MAX_STEPS = "max_steps"
    DUPLICATES = "duplicates"
    BUDGET = "budget"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    ERROR = "error"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A conversation: one tenant, one event stream, one audit chain. `agent` None: made for a direct delegation.

    `agents` None: every definition with mode `subagent` or `all`. `workspace` is a relative name under the server's
    root; empty is the root itself. `budget` spans all turns. `default_subagent`: to whom the surface `subagent` leads;
    None: the setting. `permissions`: its own rules, besides all others. `created_at` in µs.
    """

    id: str
    tenant: str
    memory_id: str
    agent: str | None
    created_at: int
    title: str | None = None
    user: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    agents: tuple[str, ...] | None = None
    inline: Mapping[str, AgentDefinition] = field(default_factory=dict)
    surfaces: tuple[Surface, ...] | None = None
    policy: PolicyFields = NO_POLICY
    model: str | None = None
    workspace: str = ""
    parallel_tool_calls: bool | None = None
    thinking: bool | None = None
    budget: BudgetLimits | None = None
    texts: Texts = DEFAULT
    default_subagent: str | None = None
    permissions: PermissionRules | None = None
    closed: bool = False

    @property
    def session_id(self) -> str:
        """The same as `id`: sessions and runs are both scopes of an event."""
        return self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Who a run is; nothing of this changes. `path` holds the ordinals from the root to the run itself.

    `turn` is the ordinal of the run in its memory, from 0; `ordinal` that in its session, from 1; `attempt` counts
    how often the process took it up, from 1; `epoch` fences a process that came back from the dead.
    """

    id: str
    session_id: str
    tenant: str
    memory_id: str
    turn: int
    ordinal: int
    depth: int
    path: tuple[int, ...]
    agent: str
    name: str | None = None
    parent_id: str | None = None
    parent_call_id: str | None = None
    handoff_id: str | None = None
    attempt: int = 1
    epoch: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a run or handoff failed: a stable code and a text that is safe to show.

    `passing`: the same may succeed later, at the earliest after `retry_after_ms` (spec 4.7).
    """

    code: str
    message: str
    passing: bool = False
    retry_after_ms: int | None = None

    def as_dict(self) -> dict[str, str]:
        """The wire form."""
        return {"code": self.code, "message": self.message}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolActivity:
    """How often a run used one tool and for how long in total."""

    name: str
    calls: int
    total_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """How a run ended. `usage` is its own, `usage_total` includes its subtree."""

    status: RunStatus
    stop_reason: StopReason
    output: str = ""
    steps: int = 0
    usage: Usage = NO_USAGE
    usage_total: Usage = NO_USAGE
    forced: bool = False
    partial: bool = False
    error: Failure | None = None
    activity: tuple[ToolActivity, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """What stood in for the subagent: another `agent`, another `model`, an `answer`, or the `primary` tool."""

    kind: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedBefore:
    """A question to a person that a call had when its process went away: `answer` is its settlement as it was recorded,
    None while it is open. `arguments` are those that it is about, as the log knows them, at `step`; `digest` is that
    of what was asked. Times in µs."""

    approval_id: str
    step: int
    arguments: Any
    asked_at: int
    expires_at: int
    digest: str
    answer: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftCall:
    """A call that has no result: how much of it the log knows. Only what was `started` may have had an effect;
    `delegated`: it has begun a handoff. `step`, `sub`, `memory_seq`: the place of its result; `raw`: its arguments as
    they were sent, without secrets. `asked`: about the call; `stand_in`: about an agent in the place of the one that
    it had asked for."""

    call_id: str
    tool: str
    provider_call_id: str = ""
    raw: str = ""
    step: int = 0
    sub: int = 0
    memory_seq: int = 0
    called: bool = False
    started: bool = False
    delegated: bool = False
    asked: AskedBefore | None = None
    stand_in: AskedBefore | None = None

    @property
    def open_questions(self) -> tuple[AskedBefore, ...]:
        """What a person was asked and has not answered."""
        return tuple(q for q in (self.asked, self.stand_in) if q is not None and q.answer is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run had come when the process that drove it went away, as far as the log tells (spec 12.7).

    `run` is what it goes on as. `started`: it had begun; `subagent`: as a subagent, too. `steps` are those with a
    reply, `broken` is one that was asked for in vain, `complete` whether the last one was closed. `first_seq`,
    `task_seq`: the numbers of its first message and of its task in its memory; `place`: step and sub of its next
    message. `turn`: step and number of the reply whose calls are not all answered, `calls` are those. `answer`: its
    last reply was one, `forced` for what reason. `stop`: as what one of these calls ends it (spec 4.1). `step_usage`
    of the last step, which is in `usage`. `usage_below`, `spent`: what those below it have used, and all in the tree
    under it by the kinds of a budget. `used_ms` of its clocks. `activity`: which tools have given results.
    `sent_back`: how often hooks did not let it end.
    """

    run: Run
    started: bool = False
    subagent: bool = False
    steps: int = 0
    broken: int | None = None
    complete: bool = True
    usage: Usage = NO_USAGE
    step_usage: Usage = NO_USAGE
    usage_below: Usage = NO_USAGE
    spent: Mapping[str, int] = field(default_factory=dict)
    first_seq: int | None = None
    task_seq: int | None = None
    place: tuple[int, int] = (0, 0)
    text: str = ""
    turn: tuple[int, int] | None = None
    calls: Mapping[str, LeftCall] = field(default_factory=dict)
    answer: str | None = None
    forced: str | None = None
    stop: Failure | None = None
    used_ms: int = 0
    activity: tuple[ToolActivity, ...] = ()
    sent_back: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """Everything that `launch` needs. Made by the service at depth 0 and by `handoff` below.

    `memory_id` None: a fresh memory; `memory` is what a used one holds; `seat`: a place in the queue for a shared one.
    `inherited_tools` are the parent's tool names without delegation, with what `limits` leave of them, used where the
    definition names none; None: no parent run. `ceiling`: the most that it may have; None: it is not bounded.
    `max_steps` counts model calls before the forced answer; `deadline_ms` is soft, `timeout_ms` hard, 0 means none;
    both from the start of the run. `model`, `effort` and `thinking` are what
    applies, with the parent's already taken over. `budgets` bound the tree under the run, each inside the one before;
    `above` is the budget (`budget.Budget`) around them when it is not that of the parent run or the session.
    `fallback`: as what the run stands in for the subagent of its handoff. `background`: nobody waits for it;
    `detached`: nor does it end with the run that has started it. `progress`: the run is not a new one: another process
    had begun it. `given`: what a caller asked for, as it is written into the log, so that the request can be made
    again. `id`: the run's, where rows name it that are stored with it.
    """

    session: Session
    definition: AgentDefinition
    task: str
    policy: HandoffPolicy
    max_steps: int
    surfaces: tuple[Surface, ...]
    depth: int = 0
    memory_id: str | None = None
    memory: "MemoryState | None" = None
    seat: "Seat | None" = None
    parent: Run | None = None
    parent_call_id: str | None = None
    handoff_id: str | None = None
    fallback: Fallback | None = None
    name: str | None = None
    model: str | None = None
    effort: str | None = None
    thinking: bool | None = None
    tools: tuple[str, ...] | None = None
    inherited_tools: tuple[str, ...] | None = None
    ceiling: ToolCeiling | None = None
    limits: tuple[PermissionRule, ...] = ()
    parallel_tool_calls: bool = True
    deadline_ms: int = 0
    timeout_ms: int = 0
    budgets: tuple[BudgetLimits, ...] = ()
    above: object | None = None
    output_schema: Mapping[str, Any] | None = None
    permissions: "Ceiling | None" = None
    background: bool = False
    detached: bool = False
    progress: Progress | None = None
    given: Mapping[str, Any] | None = None
    id: str | None = None


class Ceiling(Protocol):
    """What a run may do, and what its children take over of that (`permissions.PermissionPolicy`). None where nobody
    has set a rule."""

    def inherit(self, owner: str, definition: PermissionRules | None = None, *, trusted: bool = True) -> "Ceiling":
        """The policy of a child named `owner`, with the rules of its definition, which operators wrote if `trusted`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReusePlan:
    """Which memory a `reuse_session` handoff goes on with, in which scope; `note`: why not in the definition's.
    `resumes`: the handoff whose memory that is; `alone`: nobody else may go on with it at the time."""

    memory_id: str
    scope: SessionScope
    note: str | None = None
    resumes: str | None = None
    alone: bool = False


class Seat(Protocol):
    """A place in the queue for a shared memory. Given back by the run that it was given to, else by `leave`."""

    @property
    def memory_id(self) -> str:
        """Which memory."""

    @property
    def turn(self) -> int:
        """The ordinal that the run will have in it; known after `opened`."""

    async def opened(self) -> None:
        """Wait until what the memory holds is read. Raises `Unavailable` when that cannot be read."""

    def leave(self) -> None:
        """Give the place up; the next one moves on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortened:
    """How the working context of a memory differs from what was said in it (spec 5.4).

    Messages from number `kept_from` on stand in it, of those before only the system prompt and message `task`.
    `summary`: the user message that stands for the others; empty: none. `untold`: how many of them no summary tells of.
    `cuts`: by the numbers of tool messages, how many characters of the content stand and how many do not; `note`
    {left_out} stands for those.
    """

    kept_from: int
    task: int | None = None
    summary: str = ""
    untold: int = 0
    cuts: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryState:
    """A memory as a run goes on with it: its messages, and the numbers of its next run and message. `shortened`: how
    the messages were made fewer; None: they are all that was said."""

    messages: tuple[Message, ...] = ()
    next_turn: int = 0
    next_seq: int = 1
    shortened: Shortened | None = None
