"""What of a server's message is looked at: long lists of small things cost seconds to check and tell a model nothing.

Knows no transport and no call; for messages of the SDK as they come, before it checks them.
"""

from types import TracebackType
from typing import Any

MAX_TOOLS = 256
MAX_BLOCKS = 1_000  # parts of one answer; all of them become one text
_LISTS = {"tools": MAX_TOOLS, "content": MAX_BLOCKS}
_UNUSED = ("icons", "annotations", "_meta")  # of a part of an answer
_UNUSED_OF_TOOLS = ("icons", "_meta")  # their annotations say what they do


def bounded(message: Any) -> Any:
    """The message with its lists cut; a cut answer says so. What is no result stays as it is."""
    result = getattr(getattr(message, "message", None), "result", None)
    if not isinstance(result, dict):
        return message
    for name, most in _LISTS.items():
        items = result.get(name)
        if isinstance(items, list):
            unused = _UNUSED_OF_TOOLS if name == "tools" else _UNUSED
            result[name] = [_plain(item, unused) for item in items[:most]]
            if name == "content" and len(items) > most:
                left = f"[… {len(items) - most:,} more parts of this answer left out …]"
                result[name].append({"type": "text", "text": left})
    about = result.get("serverInfo")
    if isinstance(about, dict):
        about.pop("icons", None)
    return message


def _plain(item: Any, unused: tuple[str, ...]) -> Any:
    if isinstance(item, dict):
        for name in unused:
            item.pop(name, None)
    return item


class Bounded:
    """The SDK's stream of messages from a server, each of them bounded."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def last_context(self) -> Any:
        """In which the last message was sent, where the stream knows it."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        """The next message."""
        return bounded(await self._stream.receive())

    async def aclose(self) -> None:
        """No more messages are wanted."""
        await self._stream.aclose()

    def __aiter__(self) -> "Bounded":
        return self

    async def __anext__(self) -> Any:
        return bounded(await self._stream.__anext__())

    async def __aenter__(self) -> "Bounded":
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        left: bool | None = await self._stream.__aexit__(kind, error, trace)
        return left
