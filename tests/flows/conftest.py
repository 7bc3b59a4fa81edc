"""Fixtures of the flows."""

from tests.flows.depths import faulty_models  # noqa: F401
from tests.postgres import empty_postgres_url, postgres_server, postgres_url  # noqa: F401  fixtures
