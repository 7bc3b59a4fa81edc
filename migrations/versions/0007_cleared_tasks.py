"""Which background tasks were removed from the lists, and an index to list the others by."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A new table, empty: nothing was removed before."""
    op.create_table(
        "cleared_tasks",
        sa.Column("tenant_id", sa.Text(), server_default="default", nullable=False),
        sa.Column("handoff_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "handoff_id", name=op.f("pk_cleared_tasks")),
    )
    op.create_index("ix_cleared_tasks_session", "cleared_tasks", ["tenant_id", "session_id"])
    op.create_index(
        "ix_handoffs_tasks",
        "handoffs",
        ["tenant_id", "id"],
        sqlite_where=sa.text("background IS 1"),
        postgresql_where=sa.text("background IS true"),
    )


def downgrade() -> None:
    """Take them away again."""
    op.drop_index("ix_handoffs_tasks", "handoffs")
    op.drop_table("cleared_tasks")
