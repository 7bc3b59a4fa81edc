"""Who may interfere: Python functions, webhooks and commands behind the kernel's port for hooks."""
