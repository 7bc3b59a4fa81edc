"""What a run may delegate, and how much of it: the policy of handoffs and the limits of budgets, as values.

Knows neither how a handoff is carried out (`handoff.py`) nor how a budget is kept (`budget.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any


class Reaction(StrEnum):
    """What a denied or failed handoff leads to (spec 4.1)."""

    FAIL = "fail"
    REPORT = "report"
    FALLBACK_TO_PRIMARY = "fallback_to_primary"
    AGENT = "agent"
    MODEL = "model"
    ANSWER = "answer"


class ToolInherit(StrEnum):
    """What a parent's whitelist means to its children (spec 7.2): nothing beyond what they take over of it, or the
    ceiling of theirs."""

    OWN = "own"
    INTERSECT = "intersect"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnProblem:
    """A reaction with what it needs: the name of another agent or model, or the text of a fixed answer."""

    reaction: Reaction
    target: str = ""


FAIL = OnProblem(reaction=Reaction.FAIL)
REPORT = OnProblem(reaction=Reaction.REPORT)
TO_PRIMARY = OnProblem(reaction=Reaction.FALLBACK_TO_PRIMARY)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterRef:
    """An input filter by name (`mask_secrets`, `cut_context`, `inject`) or import path (`package.module:function`),
    with its argument: characters for `cut_context`, a map of fields for `inject`."""

    name: str
    argument: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLimits:
    """Limits of the tree under a session or run (spec 4.8); None: no limit of that kind.

    `tokens` counts input and output; `cost_micros` is money in millionths of `currency`; `max_concurrent` bounds the
    children that work at the same time, those that wait for children of their own left out.
    """

    model_calls: int | None = None
    tokens: int | None = None
    cost_micros: int | None = None
    currency: str = "USD"
    tool_calls: int | None = None
    delegations: int | None = None
    max_concurrent: int | None = None
    wall_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFields:
    """Fields of a handoff policy that somebody set; None means: not set here.

    `max_depth` and the lists are tuples of one value when set, since None is a value of theirs (no limit, no list).
    """

    enabled: bool | None = None
    max_depth: tuple[int | None] | None = None
    max_retries: int | None = None
    timeout_ms: int | None = None
    deadline_ms: int | None = None
    allowed_tools: tuple[tuple[str, ...] | None] | None = None
    denied_tools: tuple[tuple[str, ...] | None] | None = None
    on_denied: OnProblem | None = None
    on_error: OnProblem | None = None
    input_filters: tuple[FilterRef, ...] | None = None
    inherit_tools: ToolInherit | None = None
    budget: BudgetLimits | None = None


NO_POLICY = PolicyFields()
DEEPEST = 200  # what "unlimited" comes to: an agent that delegates to itself must not fill a process with its runs
_PLAIN = (
    "enabled", "max_retries", "timeout_ms", "deadline_ms", "on_denied", "on_error", "input_filters", "inherit_tools",
    "budget",
)  # fmt: skip
_BOXED = ("max_depth", "allowed_tools", "denied_tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffPolicy:
    """What a run may delegate (spec 4.1). `on_denied` and `on_error` None: the default of the surface.

    `timeout_ms` bounds one attempt, `deadline_ms` all attempts together; 0: none. `budget` bounds the tree under the
    run that has this policy.
    """

    enabled: bool = True
    max_depth: int | None = 1
    max_retries: int = 0
    timeout_ms: int = 0
    deadline_ms: int = 0
    allowed_tools: tuple[str, ...] | None = None
    denied_tools: tuple[str, ...] | None = None
    on_denied: OnProblem | None = None
    on_error: OnProblem | None = None
    input_filters: tuple[FilterRef, ...] = ()
    inherit_tools: ToolInherit = ToolInherit.OWN
    budget: BudgetLimits | None = None

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise ValueError(f"max_retries is {self.max_retries}: it must be 0 or more")

    def denial(self, tool: str, child_depth: int, agent: str) -> str | None:
        """Why a handoff by `tool` to `agent` at `child_depth` is not allowed, or None (spec 4.2, 4.5).

        Asked when tools are offered and when one is used, so that the two cannot disagree.
        """
        if not self.enabled:
            return None
        names = {tool, f"{tool}({agent})"}
        if self.allowed_tools is not None and not names.intersection(self.allowed_tools):
            return "tool is not in allowed_tools"
        if self.denied_tools is not None and names.intersection(self.denied_tools):
            return "tool is in denied_tools"
        deepest = DEEPEST if self.max_depth is None else min(self.max_depth, DEEPEST)
        if child_depth > deepest:
            return f"handoff depth {child_depth} exceeds max_depth {deepest}"
        return None

    def replaced(self, fields: PolicyFields) -> "HandoffPolicy":
        """This policy with the set fields in place of its own: how a root policy is built (spec 4.10)."""
        changes: dict[str, Any] = {}
        for name in _PLAIN:
            value = getattr(fields, name)
            if value is not None:
                changes[name] = value
        for name in _BOXED:
            boxed = getattr(fields, name)
            if boxed is not None:
                changes[name] = boxed[0]
        return replace(self, **changes) if changes else self

    def narrowed(self, fields: PolicyFields) -> "HandoffPolicy":
        """What a child inherits: unset fields come from this policy, set ones can only narrow it (spec 4.10).

        The budget is not inherited: this run's bounds the child as well, since a reservation must fit in every one
        above it, and a copy would be a second allowance. Filters of the parent stay in force before the child's own,
        which are left out only where the same list was set on both levels: in another order they do something else.
        """
        if fields == NO_POLICY:
            return self if self.budget is None else replace(self, budget=None)
        own = self.replaced(fields)
        depths = [d for d in (self.max_depth, own.max_depth) if d is not None]
        allowed = own.allowed_tools
        if self.allowed_tools is not None:
            allowed = self.allowed_tools if allowed is None else _both(self.allowed_tools, allowed)
        denied = tuple(dict.fromkeys((*(self.denied_tools or ()), *(own.denied_tools or ()))))
        added = fields.input_filters or ()
        if self.input_filters[-len(added) :] == added:
            added = ()
        return replace(
            own,
            enabled=self.enabled or own.enabled,
            max_depth=min(depths) if depths else None,
            max_retries=min(self.max_retries, own.max_retries),
            allowed_tools=allowed,
            denied_tools=denied or None,
            timeout_ms=shortest(self.timeout_ms, own.timeout_ms),
            deadline_ms=shortest(self.deadline_ms, own.deadline_ms),
            input_filters=(*self.input_filters, *added),
            inherit_tools=own.inherit_tools if self.inherit_tools is ToolInherit.OWN else self.inherit_tools,
            budget=fields.budget,
        )


def shortest(*times_ms: int) -> int:
    """The shortest of limits where 0 means none."""
    return min((time for time in times_ms if time), default=0)


def _both(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """What two allow lists allow together; `tool(agent)` is a part of `tool`."""
    ours, theirs = frozenset(one), frozenset(other)
    kept = [entry for entry in one if entry in theirs or entry.partition("(")[0] in theirs]
    return tuple(dict.fromkeys((*kept, *(entry for entry in other if entry.partition("(")[0] in ours))))


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffInput:
    """What an input filter sees and may change: `task`, `context`, `fields` (the arguments of an agent that has an
    `input_schema`; then `task` is empty) and `inherited` (what the child gets to read of its caller's conversation,
    quoted). The rest says where it belongs to."""

    tool: str
    agent: str
    session_id: str
    task: str
    context: str = ""
    fields: Mapping[str, Any] | None = field(default=None)
    inherited: str = ""
