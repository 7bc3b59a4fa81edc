"""Handoffs say who shares the memory of their agent, and what stood in for it."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the two columns; of handoffs that were stored before, neither is known."""
    op.add_column("handoffs", sa.Column("session_scope", sa.Text(), nullable=True))
    op.add_column("handoffs", sa.Column("fallback", sa.Text(), nullable=True))


def downgrade() -> None:
    """Take the two columns away again."""
    op.drop_column("handoffs", "fallback")
    op.drop_column("handoffs", "session_scope")
