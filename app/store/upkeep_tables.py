"""What the upkeep of the log leaves behind: how far the text index is, and where logs begin. Knows no statement."""

from sqlalchemy import Table

from app.store.columns import big, blob, key, metadata, number, tenant, text

# One row for all tenants: messages up to that `row_id` are in the index, which is no part of the models. `purge`: what
# was taken out of it is still to be merged away.
text_index = Table("text_index", metadata, tenant(), big("upto"), number("purge"), key())

# Events up to `upto` were removed for their age, `removed` of them in all; `hash` is that of the last one.
checkpoints = Table(
    "checkpoints",
    metadata,
    tenant(),
    text("session_id"),
    big("upto"),
    blob("hash"),
    big("removed"),
    big("created_at"),
    blob("mac", null=True),
    key("session_id"),
)
