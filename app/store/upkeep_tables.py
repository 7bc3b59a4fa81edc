"""What the upkeep of the log leaves behind: how far the text index is. Knows no statement."""

from sqlalchemy import Table

from app.store.columns import big, key, metadata, number, tenant

# One row for all tenants: messages up to that `row_id` are in the index, which is no part of the models. `purge`: what
# was taken out of it is still to be merged away.
text_index = Table("text_index", metadata, tenant(), big("upto"), number("purge"), key())
