"""Tools whose course a test decides: gates that hold them, faults that they raise, a diary of what they did."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from app.agent.tools import ToolContext, ToolResult, ToolSpec
from tests.world import WAIT_S

Body = Callable[[Mapping[str, Any], ToolContext], Awaitable[str]]
ANYTHING: Mapping[str, Any] = {"type": "object"}
PATH: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "options": {"type": "object"},
    },
    "required": ["path"],
    "additionalProperties": False,
}


class Probe:
    """A tool with a given body."""

    def __init__(self, name: str, body: Body, parameters: Mapping[str, Any] = ANYTHING, **spec: Any) -> None:
        self.spec = ToolSpec(name=name, description=f"Does {name}.", parameters=parameters, **spec)
        self.body = body
        self.arguments: list[Any] = []

    async def call(self, arguments: Any, context: ToolContext) -> ToolResult:
        """Run the body."""
        self.arguments.append(arguments)
        return ToolResult(content=await self.body(arguments, context))


class Stage:
    """Tools `hold` (safe, in parallel) and `solo` (a barrier) that wait until a test lets them go, and what happened.

    Both take `key`. `diary` has `+key` when a call starts, `-key` when it ends, `!key` when it is cancelled.
    """

    def __init__(self) -> None:
        self.diary: list[str] = []
        self._gates: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Condition()
        self.hold = Probe("hold", self._hold, read_only=True, concurrency_safe=True)
        self.solo = Probe("solo", self._hold)
        self.tools = (self.hold, self.solo)

    def gate(self, key: str) -> asyncio.Event:
        """What holds the calls of a key."""
        return self._gates.setdefault(key, asyncio.Event())

    def open(self, *keys: str) -> None:
        """Let the calls of these keys go."""
        for key in keys:
            self.gate(key).set()

    async def reached(self, *entries: str, within_s: float = WAIT_S) -> None:
        """Wait until the diary has these entries."""
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: set(entries) <= set(self.diary))

    async def _note(self, entry: str) -> None:
        self.diary.append(entry)
        async with self._changed:
            self._changed.notify_all()

    async def _hold(self, arguments: Mapping[str, Any], _context: ToolContext) -> str:
        key = str(arguments["key"])
        await self._note(f"+{key}")
        try:
            async with asyncio.timeout(WAIT_S):
                await self.gate(key).wait()
        except asyncio.CancelledError:
            self.diary.append(f"!{key}")
            raise
        await self._note(f"-{key}")
        return f"result of {key}"


def raising(error: BaseException) -> Body:
    """A body that raises."""

    async def body(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        await asyncio.sleep(0)
        raise error

    return body


async def echo(arguments: Mapping[str, Any], _context: ToolContext) -> str:
    """A body that says what it got."""
    return f"got {sorted(arguments)}"
