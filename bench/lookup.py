"""The tool that the measured subagent calls: it does nothing, so that only the service's own cost is seen."""

from app.tools.function import tool


@tool(read_only=True)
async def lookup(query: str) -> str:
    """Look something up.

    Args:
        query: What to look up.
    """
    return "looked-up:" + query
