"""What an operator's module may hold: named by import path in the tests."""

from app.agent.errors import ToolError
from app.agent.tools import ToolContext
from app.tools.function import FunctionTool, tool


def add(left: int, right: int = 1) -> int:
    """Add two numbers.

    Args:
        left: The first one.
        right: The second one.
    """
    return left + right


@tool(read_only=True, name="who_am_i", timeout_ms=5_000)
async def who(context: ToolContext) -> str:
    """Say in which run this is."""
    return context.run.id


@tool
def refuse(reason: str) -> None:
    """Refuse with a reason."""
    raise ToolError(reason)


class Box:
    """Something with tools inside."""

    tools = (add, refuse)


everything = [add, who, [refuse, FunctionTool.from_function(add, name="plus")]]
number = 3


def undocumented(x: int) -> int:
    return x
