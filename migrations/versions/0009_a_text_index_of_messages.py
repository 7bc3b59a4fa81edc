"""How far messages are in the text index, and an index that keeps less: it finds candidates, the text decides.

SQLite: FTS5 with trigrams, without positions and without a copy of the text. PostgreSQL: a copy of the text with a
pg_trgm index, where that extension can be made. Neither is touched in the transaction of a message.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.exc import DBAPIError

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_TRIGRAMS = "CREATE INDEX ix_messages_text_trigrams ON messages_text USING gin (content gin_trgm_ops)"


def upgrade() -> None:
    """Nothing is indexed yet: the indexer begins with the oldest message."""
    op.create_table(
        "text_index",
        sa.Column("tenant_id", sa.Text(), server_default="default", nullable=False),
        sa.Column("upto", sa.BigInteger(), nullable=False),
        sa.Column("purge", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_text_index")),
    )
    op.execute("INSERT INTO text_index (tenant_id, upto, purge) VALUES ('default', 0, 0)")
    if op.get_bind().dialect.name == "sqlite":
        _sqlite()
    else:
        _postgresql()


def _sqlite() -> None:
    op.execute("DROP TABLE messages_text")  # empty so far, and it would cost twice as much to fill
    op.execute(
        "CREATE VIRTUAL TABLE messages_text USING fts5("
        "content, content='', detail=none, columnsize=0, tokenize='trigram')"
    )
    # Merging is the indexer's, in bounded pieces: by itself FTS5 now and then merges for a tenth of a second.
    for name, value in (("automerge", 0), ("crisismerge", 1000), ("usermerge", 8)):
        setting = sa.text("INSERT INTO messages_text (messages_text, rank) VALUES (:name, :value)")
        op.execute(setting.bindparams(name=name, value=value))


def _postgresql() -> None:
    op.execute("CREATE TABLE messages_text (tenant_id text NOT NULL, row_id bigint PRIMARY KEY, content text NOT NULL)")
    try:
        with op.get_bind().begin_nested():
            op.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
            op.execute(_TRIGRAMS)
    except DBAPIError:
        pass  # not installed, or not ours to make: searches look at messages one by one, and readiness says so


def downgrade() -> None:
    """The index of before, empty as it was."""
    op.execute("DROP TABLE messages_text")
    op.drop_table("text_index")
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "CREATE VIRTUAL TABLE messages_text USING fts5("
            "content, content='messages', content_rowid='row_id', tokenize='trigram')"
        )
