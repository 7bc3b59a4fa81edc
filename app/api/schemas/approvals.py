"""What clients get when they look at permissions: requests, explanations, decisions of the audit log."""

from typing import Any, Literal

from pydantic import Field

from app.agent.decisions import CallDecision, HookOutcome
from app.api.schemas.answers import BOUNDED, COUNT_BOUNDED, Answer, Page

Verdict = Literal["allow", "ask", "deny"]


class PermissionRequest(Answer):
    """A tool call that waits, or waited, for a person. `path` leads from the root run to the one that asks."""

    id: str
    session_id: str
    run_id: str
    agent: str | None
    name: str | None
    depth: int | None
    path: list[int] | None
    call_id: str
    tool: str
    arguments: dict[str, Any] | str = Field(description="What was asked about, without secrets.")
    edited_arguments: dict[str, Any] | None = Field(description="What a person made of them.")
    digest: str = Field(description="SHA-256 of tool and arguments: what the answer is bound to.")
    rule: str | None = Field(description="The rule that asks; null: there is none for this call.")
    scope: Literal["server", "tenant", "definition", "session"] | None
    owner: str | None = Field(description="The agent whose policy asks.")
    reason: str | None
    suggested_rule: str | None = Field(description="What `allow_session` would allow; null: it is not possible.")
    status: Literal["pending", "allowed", "denied", "expired", "cancelled"]
    decision: Literal["allow_once", "allow_session", "deny", "released", "expired", "cancelled"] | None
    decided_by: str | None = Field(description="The id of a key; null: nobody, or no key was needed.")
    message: str | None
    requested_at: str
    expires_at: str | None
    decided_at: str | None


class PermissionPage(Page):
    """Permission requests, newest first."""

    items: list[PermissionRequest]


class Finding(Answer):
    """What holds, and which rule of whom says so; `kind`: rule, default, ceiling of an ancestor, answer of a person."""

    verdict: Verdict
    kind: Literal["rule", "default", "ceiling", "answer"]
    rule: str | None
    scope: Literal["server", "tenant", "definition", "session"] | None
    owner: str | None
    reason: str
    suggested_rule: str | None


class PermissionExplanation(Finding):
    """What would hold for a call. `findings`: each part of it under the agent's own policy, then its ancestors'."""

    tool: str
    arguments: dict[str, Any]
    agents: list[str] = Field(description="From the root down, as far as they are known.")
    depth: int
    hidden: bool = Field(description="A model is not shown the tool.")
    findings: list[Finding]


class AuditDecision(Answer):
    """A decision about a call, or of a hook about a subagent."""

    seq: int
    session_id: str
    run_id: str | None
    agent: str | None
    name: str | None
    depth: int
    step: int
    type: Literal["permission.resolved", "hook.decision"]
    decision: CallDecision | HookOutcome
    kind: str = Field(description="rule, default, ceiling, answer, person, timeout, cancelled, hook.")
    tool: str | None
    call_id: str | None
    rule: str | None
    scope: str | None
    owner: str | None
    decided_by: str | None
    hook: str | None
    reason: str | None
    digest: str | None = Field(description="Of the arguments that were decided about.")
    edited_digest: str | None = Field(
        description="Of the arguments that a person has put in their place, with which the call may run; null: of none."
    )
    approval_id: str | None
    ts: str


class AuditDecisionPage(Page):
    """Decisions, in order."""

    items: list[AuditDecision]
    count: int | None = None
    bounded: bool | None = BOUNDED
    count_bounded: bool | None = COUNT_BOUNDED
