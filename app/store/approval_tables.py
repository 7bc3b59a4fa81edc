"""Two tables that events are projected to: what persons are asked, and every decision about a call.

Knows no statement and no event; `tables.py` names all tables and says what holds for them.
"""

from sqlalchemy import Index, Table

from app.store.columns import big, blob, json, key, metadata, number, partial, tenant, text

approvals = Table(
    "approvals",
    metadata,
    tenant(),
    text("id"),
    text("session_id"),
    text("run_id"),
    text("call_id"),
    number("epoch"),
    text("tool"),
    json("arguments", null=False),
    blob("arguments_digest"),
    text("rule", null=True),
    text("suggested_rule", null=True),
    text("status"),
    text("decision", null=True),
    text("decided_by", null=True),
    text("message", null=True),
    big("requested_at"),
    big("expires_at", null=True),
    big("decided_at", null=True),
    text("agent", null=True),
    text("name", null=True),
    number("depth", null=True),
    json("path"),
    text("scope", null=True),
    text("owner", null=True),
    text("reason", null=True),
    json("edited_arguments"),
    key("id"),
    Index("ix_approvals_session", "tenant_id", "session_id", "requested_at", "id"),
    Index("ix_approvals_status", "tenant_id", "status", "requested_at", "id"),
)
# What a restart puts in force again: few rows of many.
partial("ix_approvals_rules", approvals, "session_id id", approvals.c.decision == "allow_session")

decisions = Table(
    "decisions",
    metadata,
    tenant(),
    text("session_id"),
    big("seq"),
    text("type"),
    text("run_id", null=True),
    text("agent", null=True),
    text("name", null=True),
    number("depth"),
    number("step"),
    text("call_id", null=True),
    text("tool", null=True),
    text("decision"),
    text("kind"),
    text("rule", null=True),
    text("scope", null=True),
    text("owner", null=True),
    text("decided_by", null=True),
    text("hook", null=True),
    text("reason", null=True),
    text("digest", null=True),
    text("approval_id", null=True),
    text("edited_digest", null=True),  # null: the call may run with what `digest` is of
    big("ts"),
    key("session_id", "seq"),
    Index("ix_decisions_run", "tenant_id", "run_id", "seq"),
    Index("ix_decisions_decision", "tenant_id", "decision", "ts", "session_id", "seq"),
    Index("ix_decisions_time", "tenant_id", "ts", "session_id", "seq"),
    Index("ix_decisions_agent", "tenant_id", "agent", "ts", "session_id", "seq"),
    Index("ix_decisions_tool", "tenant_id", "tool", "ts", "session_id", "seq"),
)
