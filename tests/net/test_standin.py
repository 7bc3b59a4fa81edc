"""The small internet of these tests comes up whatever else uses ports of this machine."""

import asyncio
import errno
from typing import Any

import pytest

from tests.net.standin import net


async def test_a_port_that_is_taken_on_the_other_address_is_not_the_one(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, tried = asyncio.start_server, list[tuple[str, int]]()

    async def taken(serve: Any, host: str, port: int) -> asyncio.Server:
        if port:
            tried.append((host, port))
            if len(tried) < 3:
                raise OSError(errno.EADDRINUSE, "it is taken")
        return await begin(serve, host, port)

    monkeypatch.setattr(asyncio, "start_server", taken)
    async with net() as world:
        assert (len(tried), tried[-1]) == (3, ("::1", world.port))
        assert world.trap.where == ("127.0.0.1", world.port)
        assert world.trap_v6.where == ("::1", world.port)
