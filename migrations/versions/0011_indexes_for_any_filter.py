"""Indexes with which no filter of the audit trail has to pass over rows of other agents, roles and tools."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_OLD = {"ix_messages_agent": ["tenant_id", "agent", "ts", "id"], "ix_messages_time": ["tenant_id", "ts", "id"]}
_NEW = {
    "ix_messages_agent_role": ["tenant_id", "agent", "role", "ts", "id"],
    "ix_messages_role": ["tenant_id", "role", "ts", "id"],
}
_DECISIONS = ("agent", "tool")


def upgrade() -> None:
    """Old and new are never there at once: they are large."""
    for (old, _), (name, columns) in zip(_OLD.items(), _NEW.items(), strict=True):
        op.drop_index(old, "messages")
        op.create_index(name, "messages", columns)
    said = sa.text("tool IS NOT NULL")
    columns = ["tenant_id", "tool", "agent", "ts", "id"]
    op.create_index("ix_messages_tool_agent", "messages", columns, sqlite_where=said, postgresql_where=said)
    for column in _DECISIONS:
        op.create_index(f"ix_decisions_{column}", "decisions", ["tenant_id", column, "ts", "session_id", "seq"])


def downgrade() -> None:
    """Back to the indexes of before."""
    for column in _DECISIONS:
        op.drop_index(f"ix_decisions_{column}", "decisions")
    op.drop_index("ix_messages_tool_agent", "messages")
    for (old, columns), new in zip(_OLD.items(), _NEW, strict=True):
        op.drop_index(new, "messages")
        op.create_index(old, "messages", columns)
