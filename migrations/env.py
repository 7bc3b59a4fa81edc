"""What Alembic runs: migrations on the connection, and inside the transaction, that `app.store.migrate` hands over."""

from alembic import context

attributes = context.config.attributes
context.configure(
    connection=attributes["connection"],
    target_metadata=attributes["metadata"],
    include_object=attributes["include_object"],
    render_item=attributes["render_item"],
    compare_server_default=True,
    render_as_batch=True,  # SQLite alters most things only by copying the table
)
context.run_migrations()
