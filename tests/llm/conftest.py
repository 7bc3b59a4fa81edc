"""Fixtures of the tests of `app/llm`."""

from collections.abc import AsyncIterator

import pytest

from app.llm.http import Transport
from tests.llm.asking import World
from tests.stubs.openai_stub import OpenAIStub


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A strict loopback server and a transport, both closed afterwards."""
    transport = Transport()
    async with OpenAIStub() as stub:
        yield World(stub, transport)
        await transport.close()
