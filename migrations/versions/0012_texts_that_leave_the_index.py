"""Texts of erased messages, until they are taken out of SQLite's text index: it must be told what it is to forget."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing is on its way out yet."""
    op.create_table(
        "erased_texts",
        sa.Column("tenant_id", sa.Text(), server_default="default", nullable=False),
        sa.Column("row_id", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "row_id", name=op.f("pk_erased_texts")),
    )


def downgrade() -> None:
    """Nobody takes them out any more: the index is filled anew."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute("INSERT INTO messages_text (messages_text) VALUES ('delete-all')")
        op.execute("UPDATE text_index SET upto = 0, purge = 0")
    op.drop_table("erased_texts")
