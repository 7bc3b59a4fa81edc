"""Memories say how their working context was shortened, so that whoever goes on with one goes on with that."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the three columns; no memory was shortened before."""
    op.add_column("memories", sa.Column("summary", sa.Text(), nullable=True))
    op.add_column("memories", sa.Column("summary_from", sa.Integer(), nullable=True))
    op.add_column("memories", sa.Column("shortened", sa.Text(), nullable=True))


def downgrade() -> None:
    """Take them away again: memories are whole."""
    op.drop_column("memories", "shortened")
    op.drop_column("memories", "summary_from")
    op.drop_column("memories", "summary")
