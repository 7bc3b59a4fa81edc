"""What operators see: logs and metrics. Readers of what the service does; the kernel holds no code for them."""
