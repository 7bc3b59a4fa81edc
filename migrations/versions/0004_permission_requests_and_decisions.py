"""Permission requests say who asks and why; decisions of rules, persons and hooks are rows that can be looked for."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TEXTS = ("agent", "name", "path", "scope", "owner", "reason", "edited_arguments")
_MAYBE = ("run_id", "agent", "name")
_PROVENANCE = ("rule", "scope", "owner", "decided_by", "hook", "reason", "digest", "approval_id")


def upgrade() -> None:
    """No request was ever stored before: the new columns need no values."""
    for name in _TEXTS:
        op.add_column("approvals", sa.Column(name, sa.Text(), nullable=True))
    op.add_column("approvals", sa.Column("depth", sa.Integer(), nullable=True))
    _indexes("requested_at", "id")
    here = sa.text("decision = 'allow_session'")
    op.create_index(
        "ix_approvals_rules",
        "approvals",
        ["tenant_id", "session_id", "id"],
        sqlite_where=here,
        postgresql_where=here,
    )
    op.create_table(
        "decisions",
        sa.Column("tenant_id", sa.Text(), server_default="default", nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=True) for name in _MAYBE),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("call_id", sa.Text(), nullable=True),
        sa.Column("tool", sa.Text(), nullable=True),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=True) for name in _PROVENANCE),
        sa.Column("ts", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "session_id", "seq", name=op.f("pk_decisions")),
    )
    op.create_index("ix_decisions_run", "decisions", ["tenant_id", "run_id", "seq"])
    op.create_index("ix_decisions_decision", "decisions", ["tenant_id", "decision", "ts", "session_id", "seq"])
    op.create_index("ix_decisions_time", "decisions", ["tenant_id", "ts", "session_id", "seq"])


def downgrade() -> None:
    """Take them away again; the events stay."""
    op.drop_table("decisions")
    op.drop_index("ix_approvals_rules", "approvals")
    _indexes("requested_at")
    for name in (*_TEXTS, "depth"):
        op.drop_column("approvals", name)


def _indexes(*columns: str) -> None:
    """Pages of requests go by these, and by the id where two were made at once."""
    for name in ("session", "status"):
        first = "session_id" if name == "session" else name
        op.drop_index(f"ix_approvals_{name}", "approvals")
        op.create_index(f"ix_approvals_{name}", "approvals", ["tenant_id", first, *columns])
