"""What is remembered: the tables, the one writer that fills them, and the reads behind the ports of `sessions`."""
