"""Which tools MCP servers had when they were first seen, so that a change across a restart is noticed."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A new table, empty: what is seen next is what was seen first."""
    op.create_table(
        "mcp_pins",
        sa.Column("tenant_id", sa.Text(), server_default="default", nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("server", "source", "tool", "digest")),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "server", "source", "tool", name=op.f("pk_mcp_pins")),
    )


def downgrade() -> None:
    """Take it away again."""
    op.drop_table("mcp_pins")
