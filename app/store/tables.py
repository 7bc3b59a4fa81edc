"""The tables and their indexes; the migrations build the same (`python -m app.store.migrate check`).

Knows no statement and no event. Ids are text, times integer µs UTC, durations `_ms`, sizes `_bytes`. Every table has a
tenant, and every index begins with it.
"""

from sqlalchemy import Index, Table, true

from app.store.approval_tables import approvals, decisions
from app.store.columns import big, blob, flag, json, key, metadata, number, partial, row_id, tenant, text
from app.store.upkeep_tables import checkpoints, erased_texts, text_index

__all__ = [
    "agents", "api_keys", "approvals", "artifacts", "checkpoints", "cleared_tasks", "decisions", "erased_texts",
    "events", "handoffs", "idempotency_keys", "memories", "messages", "metadata", "notes", "notices", "runs",
    "sessions", "tenants", "text_index", "tool_calls", "webhooks",
]  # fmt: skip

# ── what events are projected to ────────────────────────────────────────────────────────────────────────────────

events = Table(
    "events",
    metadata,
    tenant(),
    text("session_id"),
    big("seq"),
    text("type"),
    text("run_id", null=True),
    big("ts"),
    blob("envelope"),
    blob("data", null=True),  # null: erased; the digest stays
    blob("data_digest"),
    blob("hash"),
    key("session_id", "seq"),
)

sessions = Table(
    "sessions",
    metadata,
    tenant(),
    text("id"),
    text("memory_id", null=True),
    text("agent", null=True),
    text("title", null=True),
    text("user", null=True),
    json("metadata"),
    json("config"),
    big("created_at"),
    big("updated_at"),
    big("closed_at", null=True),
    big("closed_seq", null=True),
    big("erased_at", null=True),
    big("idle_seq", null=True),
    big("busy_seq", null=True),
    big("next_seq"),
    blob("head_hash"),
    blob("head_mac", null=True),
    key("id"),
)

# What a restart looks for; sessions at rest are not in it.
partial("ix_sessions_busy", sessions, "id busy_seq idle_seq closed_at erased_at", sessions.c.busy_seq.is_not(None))

memories = Table(
    "memories",
    metadata,
    tenant(),
    text("id"),
    text("session_id"),
    text("agent", null=True),
    text("name", null=True),
    number("next_turn"),
    number("next_seq"),
    text("summary", null=True),  # of what a shortened working context does not hold; see `Shortened`
    number("summary_from", null=True),  # null: the context is all that was said
    json("shortened"),
    big("created_at"),
    key("id"),
    Index("ix_memories_session", "tenant_id", "session_id"),
)

runs = Table(
    "runs",
    metadata,
    tenant(),
    text("id"),
    text("session_id"),
    text("memory_id"),
    text("handoff_id", null=True),
    text("parent_id", null=True),
    text("parent_call_id", null=True),
    text("agent"),
    text("name", null=True),
    number("turn"),
    number("ordinal"),
    number("depth"),
    json("path", null=False),
    number("attempt"),
    number("epoch"),
    text("status"),
    text("wait_reason", null=True),
    text("stop_reason", null=True),
    text("model", null=True),
    json("tools"),
    text("input"),
    text("output", null=True),
    json("error"),
    number("max_steps", null=True),
    big("deadline_ms", null=True),
    big("timeout_ms", null=True),
    number("steps", null=True),
    flag("forced"),
    flag("partial"),
    json("usage"),
    json("usage_total"),
    json("activity"),
    json("open_tasks"),
    big("first_seq"),
    big("terminal_seq", null=True),
    big("created_at"),
    big("started_at", null=True),
    big("ended_at", null=True),
    big("duration_ms", null=True),
    key("id"),
    Index("ix_runs_session", "tenant_id", "session_id", "ordinal"),
)
partial("ix_runs_handoff", runs, "handoff_id ordinal", runs.c.handoff_id.is_not(None))
# What a restart looks for; only open ones are in it, so that it stays small.
partial("ix_runs_open", runs, "id", runs.c.ended_at.is_(None))

handoffs = Table(
    "handoffs",
    metadata,
    tenant(),
    text("id"),
    text("session_id"),
    text("run_id", null=True),  # the parent run; null: a direct delegation
    text("call_id", null=True),
    text("tool"),
    text("surface"),
    text("agent"),
    text("name"),
    number("depth"),
    text("session_mode"),
    text("session_scope", null=True),  # null: a fresh memory, that nobody shares
    flag("background"),
    text("input"),
    text("purpose", null=True),
    text("status"),
    number("attempts"),
    text("output", null=True),
    json("error"),
    json("fallback"),
    json("run_ids"),
    big("start_seq"),
    big("end_seq", null=True),
    big("started_at"),
    big("ended_at", null=True),
    big("duration_ms", null=True),
    key("id"),
    Index("ix_handoffs_session", "tenant_id", "session_id", "start_seq"),
)
partial("ix_handoffs_open", handoffs, "id", handoffs.c.ended_at.is_(None))
partial("ix_handoffs_tasks", handoffs, "id", handoffs.c.background.is_(true()))

messages = Table(
    "messages",
    metadata,
    row_id(),
    tenant(),
    text("id"),
    text("session_id"),
    big("seq"),
    text("memory_id"),
    number("memory_seq"),
    text("run_id", null=True),
    text("agent", null=True),
    text("name", null=True),
    flag("is_subagent"),
    number("depth"),
    number("turn"),
    number("step"),
    number("sub"),
    text("role"),
    text("content"),
    text("reasoning", null=True),
    json("tool_calls"),
    text("tool_call_id", null=True),
    text("tool", null=True),
    flag("is_error"),
    number("tokens", null=True),
    json("metadata"),
    big("ts"),
    Index("ix_messages_session", "tenant_id", "session_id", "seq", unique=True),
    Index("ix_messages_run", "tenant_id", "run_id", "seq"),
    Index("ix_messages_memory", "tenant_id", "memory_id", "memory_seq"),
    Index("ix_messages_agent_role", "tenant_id", "agent", "role", "ts", "id"),
    Index("ix_messages_role", "tenant_id", "role", "ts", "id"),
    sqlite_autoincrement=True,
)
partial("ix_messages_tool", messages, "tool ts id", messages.c.tool.is_not(None))
partial("ix_messages_tool_agent", messages, "tool agent ts id", messages.c.tool.is_not(None))

tool_calls = Table(
    "tool_calls",
    metadata,
    tenant(),
    text("id"),  # ours: `call_id` on the wire
    text("session_id"),
    big("seq"),
    text("run_id", null=True),
    text("agent", null=True),
    number("depth"),
    number("step"),
    number("sub"),
    text("tool"),
    text("provider_call_id", null=True),
    text("arguments"),
    text("status"),
    flag("read_only", null=True),  # null: never started
    flag("delegation", null=True),  # null: never started, or before this was kept
    flag("is_error"),
    text("message_id", null=True),
    big("result_seq", null=True),
    big("ts"),
    big("started_at", null=True),
    big("ended_at", null=True),
    big("duration_ms", null=True),
    key("id"),
    Index("ix_tool_calls_session", "tenant_id", "session_id", "seq"),
    Index("ix_tool_calls_run", "tenant_id", "run_id", "seq"),
    Index("ix_tool_calls_tool", "tenant_id", "tool", "ts", "id"),
)

notices = Table(
    "notices",
    metadata,
    tenant(),
    text("id"),
    text("session_id"),
    text("memory_id"),  # whose inbox it lies in
    text("run_id", null=True),
    text("handoff_id", null=True),
    text("status"),
    text("content"),
    big("created_at"),
    big("delivered_at", null=True),
    key("id"),
    Index("ix_notices_memory", "tenant_id", "memory_id", "status", "created_at"),
    Index("ix_notices_session", "tenant_id", "session_id"),
)

# ── rows that are no events ─────────────────────────────────────────────────────────────────────────────────────

artifacts = Table(
    "artifacts",
    metadata,
    tenant(),
    text("id"),
    text("session_id"),
    text("run_id", null=True),
    text("call_id", null=True),
    text("media_type"),
    blob("content"),
    big("size_bytes"),
    big("created_at"),
    key("id"),
    Index("ix_artifacts_session", "tenant_id", "session_id"),
)

notes = Table(
    "notes",
    metadata,
    tenant(),
    text("id"),
    text("session_id"),
    text("run_id", null=True),
    text("name"),
    text("content"),
    big("created_at"),
    big("updated_at"),
    key("id"),
    Index("ix_notes_session", "tenant_id", "session_id", "name"),
)

# Background tasks that somebody removed from the lists; the log keeps them.
cleared_tasks = Table(
    "cleared_tasks",
    metadata,
    tenant(),
    text("handoff_id"),
    text("session_id"),
    big("created_at"),
    key("handoff_id"),
    Index("ix_cleared_tasks_session", "tenant_id", "session_id"),
)

tenants = Table("tenants", metadata, tenant(), text("name"), big("created_at"), key())

api_keys = Table(
    "api_keys",
    metadata,
    tenant(),
    text("id"),
    text("name"),
    blob("hash"),
    json("scopes", null=False),
    big("created_at"),
    big("expires_at", null=True),
    big("revoked_at", null=True),
    big("last_used_at", null=True),
    key("id"),
    # The one index without a tenant in front: the key says which tenant asks.
    Index("ix_api_keys_hash", "hash", unique=True),
)

agents = Table(
    "agents",
    metadata,
    tenant(),
    text("name"),
    number("version"),
    json("definition", null=False),
    big("created_at"),
    big("deleted_at", null=True),
    key("name", "version"),
)

mcp_pins = Table(
    "mcp_pins",
    metadata,
    tenant(),
    text("server"),
    text("source"),
    text("tool"),
    text("digest"),
    big("created_at"),
    key("server", "source", "tool"),
)

webhooks = Table(
    "webhooks",
    metadata,
    tenant(),
    text("id"),  # that of the run or handoff whose end is told
    text("session_id"),
    text("host"),
    text("url", null=True),  # null: nothing is sent there any more
    text("status"),
    number("attempts"),
    text("last_error", null=True),
    big("event_seq", null=True),  # null: it goes on
    big("next_at", null=True),  # null: nothing is to be sent
    big("until", null=True),
    big("ended_at", null=True),
    big("created_at"),
    key("id"),
    Index("ix_webhooks_session", "tenant_id", "session_id"),
)
partial("ix_webhooks_due", webhooks, "host next_at", webhooks.c.next_at.is_not(None))
partial("ix_webhooks_open", webhooks, "id", webhooks.c.event_seq.is_(None))

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    tenant(),
    text("key"),
    text("route"),
    blob("body_digest"),
    text("session_id", null=True),
    text("resource_id", null=True),
    number("status", null=True),  # of the first answer; null: not answered yet
    blob("body", null=True),
    big("created_at"),
    big("expires_at"),
    key("key"),
    Index("ix_idempotency_keys_expiry", "tenant_id", "expires_at"),
)
