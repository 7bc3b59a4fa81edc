"""Confinement: what keeps code and paths inside their box. Knows nothing of agents; lower than all adapters."""
