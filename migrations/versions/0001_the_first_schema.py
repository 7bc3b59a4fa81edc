"""The first schema, with the tables and indexes that would be expensive to change later, used yet or not."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_KINDS = {
    "text": sa.Text,
    "int": sa.Integer,
    "big": sa.BigInteger,
    "flag": sa.Boolean,
    "blob": sa.LargeBinary,
}


def _table(name: str, columns: str, *, key: str = "") -> None:
    """`columns` are `name:kind`, with a `?` behind those that may be null; `key` follows the tenant in the key."""
    tenant = sa.Column("tenant_id", sa.Text(), server_default="default", nullable=False)
    primary = sa.PrimaryKeyConstraint("tenant_id", *key.split(), name=f"pk_{name}")
    op.create_table(name, tenant, *_columns(columns), primary)


def _columns(columns: str) -> list[sa.Column[Any]]:
    made = []
    for column in columns.split():
        name, _, kind = column.partition(":")
        made.append(sa.Column(name, _KINDS[kind.rstrip("?")](), nullable=kind.endswith("?")))
    return made


def _index(table: str, name: str, columns: str, *, unique: bool = False, where: str | None = None) -> None:
    """An index that begins with the tenant; `where`: of those rows alone."""
    condition = sa.text(where) if where is not None else None
    names = ["tenant_id", *columns.split()]
    op.create_index(
        f"ix_{table}_{name}", table, names, unique=unique, sqlite_where=condition, postgresql_where=condition
    )


def upgrade() -> None:
    """Make every table."""
    _conversation()
    _runs()
    _messages()
    _tool_calls()
    _inbox()
    _artifacts_and_notes()
    _keys_and_agents()
    if op.get_bind().dialect.name == "sqlite":
        # Filled by an indexer later, never in the transaction of a message: that would cost 420 µs each.
        op.execute(
            "CREATE VIRTUAL TABLE messages_text USING fts5("
            "content, content='messages', content_rowid='row_id', tokenize='trigram')"
        )


def downgrade() -> None:
    """There is nothing before the first schema."""
    raise NotImplementedError("restore the backup that was made before subagentd was first started")


def _conversation() -> None:
    """What is said and decided, in order, and whose it is."""
    _table(
        "events",
        """
        session_id:text seq:big type:text run_id:text? ts:big envelope:blob data:blob? data_digest:blob hash:blob
        """,
        key="session_id seq",
    )
    _table(
        "sessions",
        """
        id:text memory_id:text? agent:text? title:text? user:text? metadata:text? config:text? created_at:big
        updated_at:big closed_at:big? closed_seq:big? erased_at:big? idle_seq:big? next_seq:big head_hash:blob
        head_mac:blob?
        """,
        key="id",
    )
    _table(
        "memories",
        """
        id:text session_id:text agent:text? name:text? next_turn:int next_seq:int created_at:big
        """,
        key="id",
    )
    _index("memories", "session", "session_id")


def _runs() -> None:
    """Executions of the loop, and the delegations that they are attempts of."""
    _table(
        "runs",
        """
        id:text session_id:text memory_id:text handoff_id:text? parent_id:text? parent_call_id:text? agent:text
        name:text? turn:int ordinal:int depth:int path:text attempt:int epoch:int status:text wait_reason:text?
        stop_reason:text? model:text? tools:text? input:text output:text? error:text? max_steps:int?
        deadline_ms:big? timeout_ms:big? steps:int? forced:flag partial:flag usage:text? usage_total:text?
        activity:text? open_tasks:text? first_seq:big terminal_seq:big? created_at:big started_at:big? ended_at:big?
        duration_ms:big?
        """,
        key="id",
    )
    _index("runs", "handoff", "handoff_id ordinal", where="handoff_id IS NOT NULL")
    _index("runs", "open", "id", where="ended_at IS NULL")
    _index("runs", "session", "session_id ordinal")
    _table(
        "handoffs",
        """
        id:text session_id:text run_id:text? call_id:text? tool:text surface:text agent:text name:text depth:int
        session_mode:text background:flag input:text purpose:text? status:text attempts:int output:text? error:text?
        run_ids:text? start_seq:big end_seq:big? started_at:big ended_at:big? duration_ms:big?
        """,
        key="id",
    )
    _index("handoffs", "open", "id", where="ended_at IS NULL")
    _index("handoffs", "session", "session_id start_seq")


def _messages() -> None:
    """What was said."""
    op.create_table(
        "messages",
        sa.Column("row_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True),
        sa.Column("tenant_id", sa.Text(), server_default="default", nullable=False),
        *_columns(
            """
            id:text session_id:text seq:big memory_id:text memory_seq:int run_id:text? agent:text? name:text?
            is_subagent:flag depth:int turn:int step:int sub:int role:text content:text reasoning:text? tool_calls:text?
            tool_call_id:text? tool:text? is_error:flag tokens:int? metadata:text? ts:big
            """
        ),
        sa.PrimaryKeyConstraint("row_id", name="pk_messages"),
        sqlite_autoincrement=True,
    )
    _index("messages", "agent", "agent ts id")
    _index("messages", "memory", "memory_id memory_seq")
    _index("messages", "run", "run_id seq")
    _index("messages", "session", "session_id seq", unique=True)
    _index("messages", "time", "ts id")
    _index("messages", "tool", "tool ts id", where="tool IS NOT NULL")


def _tool_calls() -> None:
    """What was done."""
    _table(
        "tool_calls",
        """
        id:text session_id:text seq:big run_id:text? agent:text? depth:int step:int sub:int tool:text
        provider_call_id:text? arguments:text status:text read_only:flag? is_error:flag message_id:text?
        result_seq:big? ts:big started_at:big? ended_at:big? duration_ms:big?
        """,
        key="id",
    )
    _index("tool_calls", "run", "run_id seq")
    _index("tool_calls", "session", "session_id seq")
    _index("tool_calls", "tool", "tool ts id")


def _inbox() -> None:
    """Questions to people, and what a parent is told."""
    _table(
        "approvals",
        """
        id:text session_id:text run_id:text call_id:text epoch:int tool:text arguments:text arguments_digest:blob
        rule:text? suggested_rule:text? status:text decision:text? decided_by:text? message:text? requested_at:big
        expires_at:big? decided_at:big?
        """,
        key="id",
    )
    _index("approvals", "session", "session_id requested_at")
    _index("approvals", "status", "status requested_at")
    _table(
        "notices",
        """
        id:text session_id:text memory_id:text run_id:text? handoff_id:text? status:text content:text created_at:big
        delivered_at:big?
        """,
        key="id",
    )
    _index("notices", "memory", "memory_id status created_at")
    _index("notices", "session", "session_id")


def _artifacts_and_notes() -> None:
    """What tools leave behind."""
    _table(
        "artifacts",
        """
        id:text session_id:text run_id:text? call_id:text? media_type:text content:blob size_bytes:big
        created_at:big
        """,
        key="id",
    )
    _index("artifacts", "session", "session_id")
    _table(
        "notes",
        """
        id:text session_id:text run_id:text? name:text content:text created_at:big updated_at:big
        """,
        key="id",
    )
    _index("notes", "session", "session_id name")


def _keys_and_agents() -> None:
    """Who may ask, and whom."""
    _table(
        "tenants",
        """
        name:text created_at:big
        """,
    )
    _table(
        "api_keys",
        """
        id:text name:text hash:blob scopes:text created_at:big expires_at:big? revoked_at:big? last_used_at:big?
        """,
        key="id",
    )
    op.create_index("ix_api_keys_hash", "api_keys", ["hash"], unique=True)  # the key says which tenant asks
    _table(
        "agents",
        """
        name:text version:int definition:text created_at:big deleted_at:big?
        """,
        key="name version",
    )
    _table(
        "idempotency_keys",
        """
        key:text route:text body_digest:blob session_id:text? resource_id:text? status:int? body:blob?
        created_at:big expires_at:big
        """,
        key="key",
    )
    _index("idempotency_keys", "expiry", "expires_at")
