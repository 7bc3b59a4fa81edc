"""A conversation with one MCP server through the SDK: its tools, one call, that its list changed, that it is gone.

Entered and left by the task that owns it; any other task may call. Knows no `Tool`, and not when to begin again.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from app.tools.mcp_bounds import MAX_TOOLS, Bounded
from app.tools.mcp_config import McpServer
from app.tools.mcp_listing import Sieve, Sieved
from app.tools.mcp_stdio import MAX_MESSAGE, stdio

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult, Tool

log = logging.getLogger(__name__)

_MAX_PAGES = 32


class Progress(Protocol):
    """Is told how far a call is."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """The numbers are the server's own."""


class CallFailed(Exception):
    """A call has no result. `gone`: the server is, or must be asked whether it still is; `refused`: it certainly has
    not carried the call out."""

    def __init__(self, text: str, *, gone: bool = False, refused: bool = False) -> None:
        super().__init__(text)
        self.gone = gone
        self.refused = refused


class Connection:
    """`ended`: nothing more comes of it. `changed`: its list of tools is another one than was read. `idle`: no call is
    under way. `answered`: how many calls have got something back, be it an error of the server or of its network."""

    def __init__(self, client: "Client", ended: asyncio.Event, changed: asyncio.Event) -> None:
        self._client = client
        self.ended = ended
        self.changed = changed
        self.idle = asyncio.Event()
        self.idle.set()
        self.answered = 0
        self._under_way = 0

    async def tools(self) -> list["Tool"]:
        """What it offers now, in its order. Raises whatever the SDK raises."""
        from mcp_types import PaginatedRequestParams  # noqa: PLC0415

        found: list[Tool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self._client.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            found += page.tools
            cursor = page.next_cursor
            if not cursor or len(found) >= MAX_TOOLS:
                break
        return found[:MAX_TOOLS]

    async def call(self, name: str, arguments: Mapping[str, Any], progress: Progress) -> "CallToolResult":
        """One call. Raises `CallFailed`; a cancelled one is cancelled at the server.

        Not by the SDK's `call_tool`, which checks results against the server's own schema: a stranger's patterns
        would be matched in this process, and a result is text for a model whatever the schema says.
        """
        from mcp.shared.exceptions import MCPError
        from mcp_types import (  # noqa: PLC0415
            CallToolRequest,
            CallToolRequestParams,
            CallToolResult,
            InputRequiredResult,
        )
        from pydantic import ValidationError  # noqa: PLC0415

        asked = CallToolRequest(params=CallToolRequestParams(name=name, arguments=dict(arguments)))
        try:
            with self._counted():
                result = await self._client.session.send_request(asked, _answers(), progress_callback=progress)
        except MCPError as error:
            raise _failed(error) from None
        except ValidationError:
            raise CallFailed("its answer is no result of a tool") from None
        except (OSError, RuntimeError) as error:  # the SDK's words for a conversation that is over
            raise CallFailed(f"the connection failed ({type(error).__name__})", gone=True) from None
        if isinstance(result, InputRequiredResult):
            raise CallFailed("it asks a person for input in the middle of a call, which is not offered to it")
        assert isinstance(result, CallToolResult)
        return result

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self._under_way += 1
        self.idle.clear()
        try:
            yield
            self.answered += 1
        except Exception:  # not a cancelled call: that one has heard nothing
            self.answered += 1
            raise
        finally:
            self._under_way -= 1
            if not self._under_way:
                self.idle.set()


@functools.cache
def _answers() -> Any:
    from mcp_types import CallToolResult, InputRequiredResult  # noqa: PLC0415
    from pydantic import TypeAdapter  # noqa: PLC0415

    return TypeAdapter[Any](CallToolResult | InputRequiredResult)


def _failed(error: Any) -> CallFailed:
    from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, REQUEST_TIMEOUT  # noqa: PLC0415

    if error.code == CONNECTION_CLOSED:
        return CallFailed("the connection ended", gone=True)
    if error.code == INVALID_REQUEST and error.message == "Session terminated":  # the transport's word for a 404
        return CallFailed("its session had expired", gone=True, refused=True)
    # only a server that still answers can have said anything else; over HTTP the transport says it in its place
    return CallFailed(error.message, gone=error.code == REQUEST_TIMEOUT or error.message in _TRANSPORT)


_TRANSPORT = ("Server returned an error response",)


@contextlib.asynccontextmanager
async def connected(server: McpServer) -> AsyncIterator[Connection]:
    """A conversation that has begun. Raises whatever keeps it from that, groups of exceptions too; bounded in time by
    the caller."""
    from mcp import Client
    from mcp_types import ToolListChangedNotification  # noqa: PLC0415

    ended, changed = asyncio.Event(), asyncio.Event()

    async def heard(message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed.set()

    async with contextlib.AsyncExitStack() as stack:
        transport: Any = stdio(server, ended=ended) if server.command else await _over_http(stack, server)
        sieved = _sieved(transport, sieve := Sieve(server.name))
        client = await stack.enter_async_context(Client(sieved, message_handler=heard, cache=None))
        sieve.version = client.protocol_version
        await _follow(stack, client, changed)
        yield Connection(client, ended, changed)


def load() -> None:
    """Import the SDK, which takes most of a second: for a thread."""
    import mcp
    import mcp.client.client

    # It logs tracebacks and texts of strangers; what matters of them is said where it is caught.
    logging.getLogger(mcp.__name__).setLevel(logging.CRITICAL)
    for name in ("client", "httpx2", "mcp_types"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


async def _over_http(stack: contextlib.AsyncExitStack, server: McpServer) -> Any:
    from mcp.client.streamable_http import streamable_http_client

    from app.tools.mcp_http import http_client  # noqa: PLC0415  needs the SDK's HTTP client at import

    assert server.url is not None
    http = await stack.enter_async_context(http_client(server))
    return _each_bounded(streamable_http_client(server.url, http_client=http, max_sse_event_size=MAX_MESSAGE))


@contextlib.asynccontextmanager
async def _sieved(transport: Any, sieve: Sieve) -> AsyncIterator[tuple[Any, Any]]:
    async with transport as (reading, writing):
        yield Sieved(reading, sieve), writing


@contextlib.asynccontextmanager
async def _each_bounded(transport: Any) -> AsyncIterator[tuple[Any, Any]]:
    async with transport as (reading, writing):
        yield Bounded(reading), writing


async def _follow(stack: contextlib.AsyncExitStack, client: "Client", changed: asyncio.Event) -> None:
    """Hear of changed tools also from servers that tell only those who subscribe."""
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS  # noqa: PLC0415

    tools = client.server_capabilities.tools
    if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
        return

    async def listen() -> None:
        try:
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    changed.set()
        except Exception as error:  # noqa: BLE001  border to the SDK: without it, changes are seen at the next start
            log.debug("changes of an MCP server's tools are not heard of: %r", error)

    task = asyncio.get_running_loop().create_task(listen(), name="mcp subscription")

    async def leave() -> None:
        task.cancel()
        await asyncio.wait({task})

    stack.push_async_callback(leave)
