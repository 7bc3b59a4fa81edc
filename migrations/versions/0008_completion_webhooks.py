"""Who is to be told of the end of a run or delegation, and how far that is."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_TABLE = "webhooks"


def upgrade() -> None:
    """A new table, empty."""
    op.create_table(
        _TABLE,
        sa.Column("tenant_id", sa.Text(), server_default="default", nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("id", "session_id", "host")),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        *(sa.Column(name, sa.BigInteger(), nullable=True) for name in ("event_seq", "next_at", "until", "ended_at")),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("pk_webhooks")),
    )
    op.create_index("ix_webhooks_session", _TABLE, ["tenant_id", "session_id"])
    for name, columns, condition in (
        ("ix_webhooks_due", ["tenant_id", "host", "next_at"], sa.text("next_at IS NOT NULL")),
        ("ix_webhooks_open", ["tenant_id", "id"], sa.text("event_seq IS NULL")),
    ):
        op.create_index(name, _TABLE, columns, sqlite_where=condition, postgresql_where=condition)


def downgrade() -> None:
    """Take it away again."""
    op.drop_table(_TABLE)
