"""What agents can do: the built-in tools, own tools as Python functions, and the check of their arguments."""
