"""The HTTP client for one MCP server: a request that fails is that call's failure, and answers are bounded.

In the SDK's transport an error of the network would end the conversation, and with it every other call. Imported only
when the first server with a URL is used.
"""

import logging
from collections.abc import AsyncIterator

import httpx2

from app.tools.mcp_config import McpServer
from app.tools.mcp_stdio import MAX_MESSAGE

log = logging.getLogger(__name__)

_CONNECT_S = 10.0
_IDLE_S = 3600.0  # a call is bounded by its tool's own time; this ends what nobody waits for any more
_BAD_GATEWAY = 502


def http_client(server: McpServer) -> httpx2.AsyncClient:
    """A client with the server's headers. It asks for plain bodies: what is unpacked cannot be bounded."""
    return httpx2.AsyncClient(
        headers={**server.headers, "Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(_CONNECT_S, read=_IDLE_S),
        transport=_Contained(server.name, httpx2.AsyncHTTPTransport()),
    )


class _Contained(httpx2.AsyncBaseTransport):
    """Answers 502 where the network fails."""

    def __init__(self, name: str, inner: httpx2.AsyncBaseTransport) -> None:
        self._name = name
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            log.debug("MCP server %s: %s", self._name, type(error).__name__)
            return httpx2.Response(_BAD_GATEWAY, request=request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            log.warning("MCP server %s: packed answers are not taken", self._name)
            return httpx2.Response(_BAD_GATEWAY, request=request)
        streams = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        body = _Body(self._name, response.stream, None if streams else MAX_MESSAGE)
        return httpx2.Response(response.status_code, headers=response.headers, stream=body, request=request)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Body(httpx2.AsyncByteStream):
    """A body that ends where the network fails, or where it becomes too long: a half answer is none."""

    def __init__(self, name: str, inner: httpx2.AsyncByteStream, most: int | None) -> None:
        self._name = name
        self._inner = inner
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        try:
            async for piece in self._inner:
                count += len(piece)
                if self._most is not None and count > self._most:
                    log.warning("MCP server %s: an answer was larger than %s MiB", self._name, self._most >> 20)
                    return
                yield piece
        except httpx2.TransportError as error:
            log.debug("MCP server %s: %s", self._name, type(error).__name__)

    async def aclose(self) -> None:
        await self._inner.aclose()
