"""What a server says of its tools: one that is no tool costs itself alone, secrets stay in it, silence is no death."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from app.agent.errors import ToolError
from app.agent.tools import ToolContext
from app.tools import mcp_servers
from app.tools.mcp_listing import MAX_DEPTH, parts_of
from app.tools.mcp_names import tool_name
from app.tools.mcp_servers import State
from app.tools.mcp_tools import MAX_DESCRIPTION
from tests.tools.mcp_world import Standing, standing

RAW = str(Path(__file__).with_name("mcp_raw.py"))
SECRET = "Zq8-canary-Value-77xQ-19ab"


def raw(folder: Path, *tools: Any, secrets: Sequence[str] = ()) -> AbstractAsyncContextManager[Standing]:
    """A server that lists just this."""
    (folder / "tools").write_text(json.dumps(tools))
    return standing(folder, args=(RAW,), secrets=secrets)


def listed(name: str, **fields: Any) -> dict[str, Any]:
    """A tool as it is listed."""
    return {"name": name, "description": "d", "inputSchema": {"type": "object"}, **fields}


def nested(levels: int) -> dict[str, Any]:
    """A schema with so many levels."""
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.spec("7.7")
async def test_a_tool_that_is_none_costs_itself_alone_and_is_named(
    tmp_path: Path, context: ToolContext, caplog: pytest.LogCaptureFixture
) -> None:
    tools = [
        listed("good"),
        listed("text", inputSchema={"type": "string"}),
        listed("list", inputSchema=["a"]),
        listed("deep", inputSchema=nested(400)),
        listed("hints", annotations={"readOnlyHint": "perhaps"}),
        {"description": "it has no name", "inputSchema": {}},
        "no tool",
        listed("circle", inputSchema={"$ref": "#"}),
        listed("half", description="a\ud800b", inputSchema={"type": "object", "title": "\ud800"}),
        listed("untyped", inputSchema={"properties": {"a": {}}}),
        listed("unused", outputSchema=nested(400), icons="none"),
    ]
    async with raw(tmp_path, *tools) as ours:
        assert ours.owner.state is State.UP
        assert set(ours.shelf) == {f"mcp__ours__{name}" for name in ("good", "half", "untyped", "unused")}
        assert (await ours.call("good", context)).content == "good"
        assert "mcp__ours__circle: " in caplog.text
        for name in ("text", "list", "deep", "hints", "without a name"):
            assert f"the tool '{name}' is left out: " in caplog.text
        assert ours.calls().count("started") == 1


def test_the_parts_of_a_value_are_counted_up_to_a_depth_and_a_number() -> None:
    assert parts_of({"a": [1, 2], "b": {}}, 5) == 5
    assert parts_of({"a": [1, 2], "b": {}}, 4) is None
    assert parts_of(nested(MAX_DEPTH // 2 - 1), 1000) is not None
    assert parts_of(nested(MAX_DEPTH // 2), 1000) is None


@pytest.mark.spec("12.6")
async def test_a_secret_in_what_a_server_says_of_its_tools_is_masked_before_anybody_is_shown_it(
    tmp_path: Path, context: ToolContext, caplog: pytest.LogCaptureFixture
) -> None:
    halves = f"{SECRET[:9]}\u200b{SECRET[9:]}"
    schema = {"type": "object", "properties": {"key": {"type": "string", "default": SECRET}}}
    tools = [
        listed("described", description=f"use {SECRET}, or {halves}"),
        listed("titled", description="", title=f"use {SECRET}"),
        listed("cut", description="x" * (MAX_DESCRIPTION - 9) + SECRET),
        listed("shaped", inputSchema=schema),
        listed(f"named_{SECRET}"),
    ]
    async with raw(tmp_path, *tools, secrets=[SECRET]) as ours:
        assert set(ours.shelf) == {f"mcp__ours__{name}" for name in ("described", "titled", "cut", "shaped")}
        assert ours.tool("described").spec.description == "use [masked], or [masked]"
        assert ours.tool("titled").spec.description == "use [masked]"
        assert SECRET[:5] not in ours.tool("cut").spec.description
        assert ours.tool("shaped").spec.parameters["properties"]["key"]["default"] == "[masked]"
        assert f"{tool_name('ours', 'named_[masked]')}: its name holds a secret" in caplog.text
        assert SECRET not in caplog.text
        assert (await ours.call("described", context)).content == "described"


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_answer_that_cannot_be_read_fails_its_call_and_half_a_character_does_not(
    tmp_path: Path, context: ToolContext
) -> None:
    async with raw(tmp_path, listed("half"), listed("torn"), listed("plain")) as ours:
        assert (await ours.call("half", context)).content == "a\ufffdb \\ud800 \U0001f600"
        with pytest.raises(ToolError, match="the answer could not be read and was left out"):
            await ours.call("torn", context)
        assert (await ours.call("plain", context)).content == "plain"
        assert ours.calls().count("started") == 1


# ── silence ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("7.7")
async def test_a_server_that_is_silent_while_it_works_is_not_taken_for_dead(
    tmp_path: Path, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_servers, "_CHECK_S", 2.0)
    async with raw(tmp_path, listed("work")) as ours:
        assert (await ours.call("work", context)).content == "worked"
        await ours.until(lambda: ours.calls().count("tools/list") >= 3)  # at the start, in vain, and after the call
        assert (await ours.call("work", context)).content == "worked"
        assert ours.calls().count("started") == 1


@pytest.mark.spec("7.7")
async def test_a_server_that_answers_nothing_any_more_is_begun_again_when_its_call_is_over(
    tmp_path: Path, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_servers, "_CHECK_S", 2.0)
    async with raw(tmp_path, listed("mute"), listed("plain")) as ours:
        first = ours.pid
        mute = asyncio.create_task(ours.call("mute", context))
        await ours.until(lambda: "tools/call" in ours.calls())
        ours.owner.suspect()
        await ours.until(lambda: "notifications/cancelled" in ours.calls())
        assert ours.owner.state is State.UP, "the call may still be answered"
        mute.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await mute
        await ours.until(lambda: ours.pid != first and ours.owner.state is State.UP)
        assert (await ours.call("plain", context)).content == "plain"
