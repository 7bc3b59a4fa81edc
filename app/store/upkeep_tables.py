"""What the upkeep of the log leaves behind: how far the text index is, what is to leave it, where logs
begin. Knows no statement."""

from sqlalchemy import Table

from app.store.columns import big, blob, key, metadata, number, tenant, text

# One row for all tenants: messages up to that `row_id` are in the index, which is no part of the models. `purge`: what
# was taken out of it is still to be merged away.
text_index = Table("text_index", metadata, tenant(), big("upto"), number("purge"), key())

# Texts of messages that are gone, in the index of SQLite still: they go a part at a time.
erased_texts = Table("erased_texts", metadata, tenant(), big("row_id"), text("content"), key("row_id"))

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
