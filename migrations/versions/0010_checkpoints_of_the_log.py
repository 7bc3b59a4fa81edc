"""Where the log of a session begins once its front was removed for its age."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A new table, empty: nothing was removed so far."""
    op.create_table(
        "checkpoints",
        sa.Column("tenant_id", sa.Text(), server_default="default", nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("upto", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("removed", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("mac", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "session_id", name=op.f("pk_checkpoints")),
    )


def downgrade() -> None:
    """Take it away again."""
    op.drop_table("checkpoints")
