"""A workspace with a neighbour that must not be reached, and the context of a call in it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

from app.agent.runs import Run, Session
from app.agent.tools import Tool, ToolContext
from app.tools.builtin import builtin_tools

SECRET = "the secret that lies outside"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty workspace; beside it lies `outside/secret.txt`."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text(SECRET)
    root = tmp_path / "workspace"
    root.mkdir()
    return root


@pytest.fixture
def context(workspace: Path) -> ToolContext:
    """The context of a call whose tools are confined to `workspace`."""
    session = Session(id="ses_1", tenant="default", memory_id="mem_1", agent="lead", created_at=0)
    run = Run(
        id="run_1",
        session_id="ses_1",
        tenant="default",
        memory_id="mem_1",
        turn=0,
        ordinal=1,
        depth=0,
        path=(1,),
        agent="lead",
    )
    return ToolContext(
        session=session,
        run=run,
        step=1,
        call_id="call_1",
        workspace=workspace,
        deadline=None,
        progress=lambda text: None,
    )


class Use(Protocol):
    """Calls a built-in tool by name with keyword arguments and returns the text of its result."""

    async def __call__(self, name: str, /, **arguments: Any) -> str: ...


@pytest.fixture
def tools() -> Mapping[str, Tool]:
    """The built-in tools by name."""
    return {tool.spec.name: tool for tool in builtin_tools()}


@pytest.fixture
def use(tools: Mapping[str, Tool], context: ToolContext) -> Use:
    """How a test calls a built-in tool."""

    async def call(name: str, /, **arguments: Any) -> str:
        result = await tools[name].call(arguments, context)
        assert not result.is_error
        return result.content

    return call
