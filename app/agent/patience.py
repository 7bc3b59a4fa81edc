"""How often and how long a model call is tried again (spec 5.8), and one gate for each model that everybody waits at;
how what another process has left is read while the store is away.

Knows no provider: an error says by itself whether it may pass.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from app.agent.errors import ModelError, Unavailable

T = TypeVar("T")

log = logging.getLogger(__name__)

STOPPING = "stopping"  # the code of what nobody begins any more
READ_FIRST_S, READ_MAX_S = 0.05, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """`retries` after the first try of a step; the pause doubles from `backoff_ms` to `max_backoff_ms`, half of it at
    random. A provider that asks for a longer pause than `max_wait_ms` is not waited for."""

    retries: int = 4
    backoff_ms: int = 500
    max_backoff_ms: int = 20_000
    max_wait_ms: int = 120_000

    def pause_ms(self, tried: int, error: ModelError) -> float | None:
        """How long to wait before the next try, `tried` have failed; None: there is none."""
        if not error.retryable or tried > self.retries or (error.retry_after_ms or 0) > self.max_wait_ms:
            return None
        full = min(self.max_backoff_ms, self.backoff_ms * 2.0 ** min(tried - 1, 30))
        return max(full * random.uniform(0.5, 1.0), error.retry_after_ms or 0)


class ModelGates:
    """Until when a model is not to be asked, by anybody: one `Retry-After` spares all runs the same refusal."""

    __slots__ = ("_closed",)

    def __init__(self) -> None:
        self._closed: dict[str, float] = {}

    def close(self, model: str, wait_ms: float) -> None:
        """Close the gate of a model for that long, unless it is closed for longer."""
        until = asyncio.get_running_loop().time() + wait_ms / 1000
        if until > self._closed.get(model, 0.0):
            self._closed[model] = until

    def left_ms(self, model: str) -> float:
        """How long the gate stays closed; 0: it is open."""
        until = self._closed.get(model)
        if until is None:
            return 0.0
        left = (until - asyncio.get_running_loop().time()) * 1000
        if left <= 0:
            self._closed.pop(model, None)
            return 0.0
        return left

    async def passed(self, model: str) -> None:
        """Wait until the gate is open; those who waited start spread over a tenth of a second."""
        waited = False
        while (left := self.left_ms(model)) > 0:
            waited = True
            await asyncio.sleep(left / 1000)
        if waited:
            await asyncio.sleep(random.uniform(0, 0.1))


def pauses() -> Iterator[float]:
    """Seconds between two looks at what is not there yet, without an end."""
    pause_s = READ_FIRST_S
    while True:
        yield pause_s
        pause_s = min(READ_MAX_S, pause_s * 2)


async def patiently(what: str, read: Callable[[], Awaitable[T]]) -> T:
    """What `read` gives once it does not raise `Unavailable`, however long that takes. Raises what else it raises, and
    the `Unavailable` of a service that stops."""
    waits = pauses()
    while True:
        try:
            return await read()
        except Unavailable as error:
            if error.code == STOPPING:
                raise
            log.warning("%s cannot be read, and is read again: %s", what, error)
        await asyncio.sleep(next(waits))
