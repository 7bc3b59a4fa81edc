"""An MCP server with the SDK, over stdio or, with a port, over HTTP.

`mcp_program.py` runs it, and `mcp_offers.py` says what it offers.
"""

import asyncio
import sys
from typing import Any

import mcp_types as types
from mcp.server import Server, ServerRequestContext  # noqa: TID253  a program of its own
from mcp.server.subscriptions import (  # noqa: TID253
    InMemorySubscriptionBus,
    ListenHandler,
    ToolsListChanged,
)

from tests.tools.mcp_offers import NAME, STEPS, answer, effect, mode, note, tools

BUS = InMemorySubscriptionBus()


async def listed(ctx: ServerRequestContext[Any, Any], params: Any) -> types.ListToolsResult:
    """All on one page."""
    return types.ListToolsResult(tools=[types.Tool.model_validate(tool) for tool in tools()])


async def called(ctx: ServerRequestContext[Any, Any], params: types.CallToolRequestParams) -> types.CallToolResult:
    """One call."""
    text = str((params.arguments or {}).get("text", ""))
    note(f"{params.name} {text}")
    if params.name == "slow":
        try:
            await asyncio.Event().wait()
        finally:
            note("slow ended")
    if params.name == "count":
        for number in range(1, STEPS + 1):
            await ctx.session.report_progress(number, STEPS, f"step {number}")
    effect(params.name, text)
    if params.name == "relist":
        await ctx.session.send_tool_list_changed()
        await BUS.publish(ToolsListChanged())
    return types.CallToolResult.model_validate(answer(params.name, text))


def main() -> None:
    """Serve."""
    listen = None if mode() == "old" else ListenHandler(BUS)
    server = Server(NAME, on_list_tools=listed, on_call_tool=called, on_subscriptions_listen=listen)
    if len(sys.argv) > 1:
        import uvicorn

        app = server.streamable_http_app()
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
        return
    asyncio.run(_over_stdio(server, old=mode() == "old"))


async def _over_stdio(server: Any, *, old: bool) -> None:
    from mcp.server.runner import serve_loop
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (reading, writing):
        options = server.create_initialization_options()
        if old:
            await serve_loop(server, reading, writing, lifespan_state={}, init_options=options)
        else:
            await server.run(reading, writing, options)
