"""Sessions say what was begun in them since they last were idle, so that a restart finds those that never said so."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

# What is at rest is found afterwards: in one statement each maximum would be looked up twice.
_SET = """
    UPDATE sessions SET busy_seq = (
        SELECT MAX(seq) FROM (
            SELECT MAX(first_seq) AS seq FROM runs
            WHERE runs.tenant_id = sessions.tenant_id AND runs.session_id = sessions.id
            UNION ALL
            SELECT MAX(start_seq) AS seq FROM handoffs
            WHERE handoffs.tenant_id = sessions.tenant_id AND handoffs.session_id = sessions.id
        ) begun
    ) WHERE closed_at IS NULL AND erased_at IS NULL
"""
_AT_REST = "UPDATE sessions SET busy_seq = NULL WHERE busy_seq <= idle_seq"


def upgrade() -> None:
    """The last that was begun, where the session was not idle afterwards."""
    op.add_column("sessions", sa.Column("busy_seq", sa.BigInteger(), nullable=True))
    op.execute(sa.text(_SET))
    op.execute(sa.text(_AT_REST))
    said = sa.text("busy_seq IS NOT NULL")
    columns = ["tenant_id", "id", "busy_seq", "idle_seq", "closed_at", "erased_at"]  # all that is read of it
    op.create_index("ix_sessions_busy", "sessions", columns, sqlite_where=said, postgresql_where=said)


def downgrade() -> None:
    """Take it away again."""
    op.drop_index("ix_sessions_busy", "sessions")
    op.drop_column("sessions", "busy_seq")
