"""Tool calls say whether their tool delegates: such a call is none of a budget's tool calls, whatever came of it."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of older calls it is not known, except where a handoff names them."""
    op.add_column("tool_calls", sa.Column("delegation", sa.Boolean(), nullable=True))


def downgrade() -> None:
    """Take it away again."""
    op.drop_column("tool_calls", "delegation")
