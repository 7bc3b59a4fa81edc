"""Decisions say over which arguments a call was allowed, where a person has changed them."""

import hashlib
import json
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

# Of the events that may say so, those whose data has such a field, or a text that looks like one.
_FOUND = """
    SELECT d.tenant_id, d.session_id, d.seq, e.data FROM decisions d
    JOIN events e ON e.tenant_id = d.tenant_id AND e.session_id = d.session_id AND e.seq = d.seq
    WHERE d.type = 'permission.resolved' AND d.decision = 'allow_once' AND e.data IS NOT NULL AND {holds} > 0
"""
_HOLDS = {
    "sqlite": "instr(e.data, CAST('\"arguments\"' AS BLOB))",
    "postgresql": "position(convert_to('\"arguments\"', 'UTF8') IN e.data)",
}
_SET = """
    UPDATE decisions SET edited_digest = :digest
    WHERE tenant_id = :tenant_id AND session_id = :session_id AND seq = :seq
"""


def upgrade() -> None:
    """Events of before have the arguments and no digest of them: it is made of what is stored, as the projection makes
    it of these events."""
    op.add_column("decisions", sa.Column("edited_digest", sa.Text(), nullable=True))
    connection = op.get_bind()
    edited = []
    for row in connection.execute(sa.text(_FOUND.format(holds=_HOLDS[connection.dialect.name]))).mappings():
        payload = _payload(row["data"])
        if payload.get("arguments") is not None:
            edited.append({**row, "digest": _digest(payload["tool"], payload["arguments"])})
    if edited:
        connection.execute(sa.text(_SET), [{name: row[name] for name in row if name != "data"} for row in edited])


def _payload(data: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.MsgspecError:  # damaged, which is for `verify` to say
        return {}


def _digest(tool: str, arguments: Any) -> str:
    text = json.dumps([tool, arguments], ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def downgrade() -> None:
    """Take it away again."""
    op.drop_column("decisions", "edited_digest")
