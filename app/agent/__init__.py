"""How an agent runs: plain Python on the standard library; knows no HTTP, no SQL and no provider."""
