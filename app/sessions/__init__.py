"""What a client can ask: sessions, their journal, feed and audit trail, over ports that adapters fill."""
