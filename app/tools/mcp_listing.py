"""What a server lists, looked at before the SDK does: one tool that the SDK refuses would cost all the others.

Knows neither what a tool is called here nor whether its schema is any good.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from app.tools.mcp_bounds import Bounded
from app.tools.mcp_names import cleaned

log = logging.getLogger(__name__)

MAX_DEPTH = 100  # of one tool; readers of JSON give up a little further down
MAX_PARTS = 20_000  # of one tool: a schema that is small enough seldom has more
_MAX_PARTS_OF_ALL = 100_000  # the SDK checks them once more, on the loop
_USED = ("name", "title", "description", "inputSchema", "annotations")
_NAME_CHARS = 64
_WHY_CHARS = 300


class Sieve:
    """Takes unusable tools out of the lists of one conversation and says so in the log, once for each. `version`: of
    the protocol, as soon as it is agreed on; lists come later."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._told: set[tuple[str, str]] = set()
        self.version = ""

    def concerns(self, message: Any) -> bool:
        """Whether a message holds a list of tools."""
        result = getattr(getattr(message, "message", None), "result", None)
        return bool(self.version) and isinstance(result, dict) and isinstance(result.get("tools"), list)

    def sift(self, message: Any) -> None:
        """Change such a message. For a thread."""
        result = message.message.result
        rest = {key: value for key, value in result.items() if key != "tools"}
        if self._refusal({**rest, "tools": []}) is None:  # else it is not the tools that are wrong
            result["tools"] = list(self._good(result["tools"], rest))

    def _good(self, listed: list[Any], rest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        room = _MAX_PARTS_OF_ALL
        for item in listed:
            # what is not used can be wrong without harm
            tool = {key: item[key] for key in _USED if key in item} if isinstance(item, dict) else {}
            schema = tool.get("inputSchema")
            if isinstance(schema, dict) and "type" not in schema:  # arguments are an object in any case
                tool["inputSchema"] = {"type": "object", **schema}
            parts = parts_of(tool, min(room, MAX_PARTS))
            problem = (
                "it is nested too deeply or too large" if parts is None else self._refusal({**rest, "tools": [tool]})
            )
            if problem is None:
                room -= parts or 0
                yield tool
            else:
                self._tell(str(tool.get("name", "without a name")), problem)

    def _refusal(self, result: Mapping[str, Any]) -> str | None:
        from mcp_types import ListToolsResult  # noqa: PLC0415
        from mcp_types.methods import validate_server_result  # noqa: PLC0415
        from pydantic import ValidationError  # noqa: PLC0415

        try:
            validate_server_result("tools/list", self.version, result)
            ListToolsResult.model_validate(result, by_name=False)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            place = ".".join(str(step) for step in first["loc"] if step not in ("tools", 0))
            return f"{place}: {first['msg']}"
        except ValueError as error:  # texts that are none
            return type(error).__name__
        return None

    def _tell(self, name: str, problem: str) -> None:
        told = (cleaned(name, _NAME_CHARS), cleaned(problem, _WHY_CHARS))
        if told not in self._told:
            self._told.add(told)
            log.warning("the MCP server %s: the tool %r is left out: %s", self._server, *told)


class Sieved(Bounded):
    """The SDK's stream of messages from a server, without the tools that it would refuse."""

    def __init__(self, stream: Any, sieve: Sieve) -> None:
        super().__init__(stream)
        self._sieve = sieve

    async def receive(self) -> Any:
        """The next message."""
        return await self._sifted(await self._stream.receive())

    async def __anext__(self) -> Any:
        return await self._sifted(await self._stream.__anext__())

    async def _sifted(self, message: Any) -> Any:
        if self._sieve.concerns(message):
            await asyncio.to_thread(self._sieve.sift, message)
        return message


def parts_of(value: Any, most: int) -> int | None:
    """How many values a value holds; None when they are more than `most`, or lie deeper than `MAX_DEPTH`."""
    count, level = 0, [value]
    for _ in range(MAX_DEPTH):
        count += len(level)
        if count > most:
            return None
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += item.values()
            elif isinstance(item, list):
                below += item
        if not below:
            return count
        level = below
    return None
