"""MCP servers as tools: their life and death, and what a model is told of them."""

import asyncio
from pathlib import Path

import pytest

from app.agent.errors import ToolError
from app.agent.tools import ToolContext, ToolShelf
from app.masking import ValueMasker
from app.tools import mcp_stdio
from app.tools.mcp_names import tool_name
from app.tools.mcp_pins import ADDED, CHANGED, Forgetful
from app.tools.mcp_servers import McpServers, State
from tests.processes import until
from tests.tools.mcp_world import WAIT_S, alive, config, standing

pytestmark = pytest.mark.slow


BOTH = pytest.mark.parametrize("with_sdk", [False, True])


def made(folder: Path, *, with_sdk: bool) -> None:
    """Whether the server is the one with the SDK, or the one that is written by hand."""
    if with_sdk:
        (folder / "sdk").touch()


@pytest.mark.spec("7.7")
@BOTH
async def test_a_servers_tools_lie_on_the_shelf_and_can_be_called(
    tmp_path: Path, context: ToolContext, with_sdk: bool
) -> None:
    made(tmp_path, with_sdk=with_sdk)
    async with standing(tmp_path) as ours:
        assert ours.owner.state is State.UP
        said = await ours.call("echo", context, text="hello")
        assert (said.content, said.is_error) == ("hello", False)
        spec = ours.tool("echo").spec
        assert spec.description == "Says it again."
        assert not (spec.read_only or spec.concurrency_safe or spec.built_in or spec.ask)
        assert spec.open_world


@pytest.mark.spec("7.7")
async def test_only_a_trusted_server_says_what_its_tools_do(tmp_path: Path) -> None:
    async with standing(tmp_path, trusted=True, pollers=("count",), timeout_ms=1234) as ours:
        echo, count = ours.tool("echo").spec, ours.tool("count").spec
        assert (echo.read_only, echo.concurrency_safe, echo.open_world) == (True, True, False)
        assert (count.read_only, count.open_world, count.poller, count.timeout_ms) == (False, True, True, 1234)


@pytest.mark.spec("7.7")
async def test_a_schema_that_is_none_costs_that_tool_alone(
    tmp_path: Path, context: ToolContext, caplog: pytest.LogCaptureFixture
) -> None:
    async with standing(tmp_path) as ours:
        assert "mcp__ours__lies" not in ours.shelf
        assert "mcp__ours__lies: " in caplog.text
        odd = ours.shelf[tool_name("ours", "a.b/c")]
        assert odd.spec.description == "Odd."
        assert odd.spec.parameters == {"type": "object"}
        assert (await odd.call({}, context)).content == "a.b/c"


@pytest.mark.spec("7.7")
async def test_of_an_allow_list_only_its_tools_are_offered(tmp_path: Path) -> None:
    async with standing(tmp_path, tools=("echo", "fail")) as ours:
        assert set(ours.shelf) == {"mcp__ours__echo", "mcp__ours__fail"}


@BOTH
async def test_errors_images_and_lying_results_become_text(
    tmp_path: Path, context: ToolContext, with_sdk: bool
) -> None:
    made(tmp_path, with_sdk=with_sdk)
    async with standing(tmp_path) as ours:
        failed = await ours.call("fail", context, text="no such file")
        assert (failed.content, failed.is_error, failed.status) == ("no such file", True, "error")
        image = await ours.call("image", context, text="here")
        assert image.content == "here\n[image: image/png, 100 bytes, not shown]"
        assert (await ours.call("shaped", context)).content == '{"n": "no number"}'


@pytest.mark.spec("11.4")
@BOTH
async def test_progress_is_shown_while_the_call_runs(tmp_path: Path, context: ToolContext, with_sdk: bool) -> None:
    made(tmp_path, with_sdk=with_sdk)
    async with standing(tmp_path) as ours:
        await ours.call("count", context)
        assert ours.shown[0] == "1/3 step 1\n"
        assert ours.shown[-1] == "3/3 step 3\n"


@BOTH
async def test_a_cancelled_call_is_cancelled_at_the_server_and_others_go_on(
    tmp_path: Path, context: ToolContext, with_sdk: bool
) -> None:
    made(tmp_path, with_sdk=with_sdk)
    async with standing(tmp_path) as ours:
        slow = asyncio.create_task(ours.call("slow", context))
        await ours.until(lambda: "slow " in ours.calls())
        assert (await ours.call("echo", context, text="beside it")).content == "beside it"
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        await ours.until(lambda: "slow ended" in ours.calls())
        assert (await ours.call("echo", context, text="after it")).content == "after it"
        assert ours.calls().count("started") == 1


@pytest.mark.spec("7.7")
async def test_a_server_that_dies_in_a_call_is_back_for_the_same_tool(tmp_path: Path, context: ToolContext) -> None:
    async with standing(tmp_path) as ours:
        echo, first = ours.tool("echo"), ours.pid
        slow = asyncio.create_task(ours.call("slow", context))
        await ours.until(lambda: "slow " in ours.calls())
        with pytest.raises(ToolError, match="The MCP server ours stopped during this call and is being restarted"):
            await ours.call("crash", context)
        with pytest.raises(ToolError, match="stopped during this call"):
            await slow
        assert (await echo.call({"text": "again"}, context)).content == "again"
        assert ours.pid != first
        assert not alive(first)


async def test_a_server_killed_between_calls_is_started_again_by_itself(tmp_path: Path, context: ToolContext) -> None:
    async with standing(tmp_path) as ours:
        for _ in range(3):
            was = ours.pid
            ours.kill()
            await ours.until(lambda was=was: ours.owner.state is State.UP and ours.pid != was)  # type: ignore[misc]
            assert (await ours.call("echo", context, text="here")).content == "here"


@pytest.mark.case("B075")
async def test_what_a_server_leaves_behind_holds_nothing_up_and_is_ended(tmp_path: Path, context: ToolContext) -> None:
    async with standing(tmp_path) as ours:
        await ours.call("orphan", context)
        was = ours.pid
        ours.kill()  # what it started still holds its output open
        await ours.until(lambda: ours.owner.state is State.UP and ours.pid != was)
        await ours.until(lambda: not alive(was))


@pytest.mark.case("B203")
async def test_a_server_that_does_not_come_up_costs_only_its_tools(tmp_path: Path, context: ToolContext) -> None:
    (tmp_path / "mode").write_text("die")
    async with standing(tmp_path) as ours:
        await ours.until(lambda: ours.owner.state is State.DOWN)
        assert len(ours.shelf) == 0
        (tmp_path / "mode").unlink()
        await ours.until(lambda: ours.owner.state is State.UP)
        assert (await ours.call("echo", context, text="late")).content == "late"


@pytest.mark.case("B201", "B203")
async def test_a_server_that_hangs_is_given_up_in_time_and_ended_though_it_will_not(tmp_path: Path) -> None:
    (tmp_path / "mode").write_text("hang")
    async with standing(tmp_path, startup_ms=2_000) as ours:
        await ours.until(lambda: ours.owner.state is State.DOWN)
        # Ended again and again, though not at once, and the end of the service comes in between.
        await ours.until(lambda: (tmp_path / "pid").exists() and alive(ours.pid))


async def test_a_command_that_is_none_is_named_and_tried_again(tmp_path: Path) -> None:
    async with standing(tmp_path, command="/no/such/program") as ours:
        assert ours.owner.state is State.DOWN
        assert "FileNotFoundError" in ours.owner.why


@pytest.mark.case("B201")
async def test_servers_are_ended_in_any_state_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    servers = McpServers(ToolShelf(), Forgetful(), masker=ValueMasker())
    for name in ("one", "two", "hanging"):
        (tmp_path / name).mkdir()
    (tmp_path / "hanging" / "mode").write_text("hang")
    owners = [servers.add(config(tmp_path / name, name)) for name in ("one", "two", "hanging")]
    async with asyncio.timeout(WAIT_S):
        await owners[0].settled()
        await owners[1].settled()
        await until((tmp_path / "hanging" / "pid").exists)
        await servers.remove("one")
        await servers.close()
    assert [owner.state for owner in owners] == [State.STOPPED] * 3
    assert not any(alive(int((tmp_path / name / "pid").read_text())) for name in ("one", "two", "hanging"))
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


async def test_what_is_no_message_is_passed_over(tmp_path: Path, context: ToolContext) -> None:
    (tmp_path / "mode").write_text("garbage")
    async with standing(tmp_path) as ours:
        await ours.call("noise", context)
        assert (await ours.call("echo", context, text="hello")).content == "hello"
        assert ours.calls().count("started") == 1


async def test_an_answer_that_is_too_long_is_that_calls_error(
    tmp_path: Path, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_stdio, "MAX_MESSAGE", 1 << 20)
    async with standing(tmp_path) as ours:
        large = await ours.call("huge", context, text="900000")
        assert len(large.content) == 900_000
        with pytest.raises(ToolError, match="larger than 1 MiB"):
            await ours.call("huge", context, text="9000000")
        assert (await ours.call("echo", context, text="hello")).content == "hello"
        assert ours.calls().count("started") == 1


async def test_a_server_gets_no_variable_that_was_not_named(
    tmp_path: Path, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "very secret")
    async with standing(tmp_path) as ours:
        names = (await ours.call("env", context)).content
        assert "MCP_TEST" in names
        assert "PATH" in names
        assert "SOME_TOKEN" not in names


# ── tools that change ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("7.7")
@BOTH
@pytest.mark.parametrize("mode", ["", "old"])  # both eras of the protocol
async def test_a_tool_that_changes_or_comes_later_is_asked_about(
    tmp_path: Path, context: ToolContext, mode: str, with_sdk: bool
) -> None:
    made(tmp_path, with_sdk=with_sdk)
    (tmp_path / "mode").write_text(mode)
    async with standing(tmp_path) as ours:
        before = ours.tool("echo")
        await ours.call("relist", context, text="changed")
        await ours.until(lambda: bool(ours.tool("echo").spec.ask))
        await ours.call("relist", context, text="added")
        await ours.until(lambda: "mcp__ours__late" in ours.shelf)
        assert ours.tool("echo").spec.ask == CHANGED
        assert ours.tool("late").spec.ask == ADDED
        assert ours.tool("count").spec.ask == ""
        with pytest.raises(ToolError, match="has changed or removed this tool since the run began"):
            await before.call({"text": "x"}, context)
        assert "echo x" not in ours.calls()


async def test_pins_outlive_a_restart_until_the_operator_takes_the_tools_as_they_are(tmp_path: Path) -> None:
    pins = Forgetful()
    async with standing(tmp_path, pins=pins):
        pass
    (tmp_path / "changed").touch()
    async with standing(tmp_path, pins=pins) as ours:
        assert ours.tool("echo").spec.ask == CHANGED
    async with standing(tmp_path, pins=pins, trusted=True) as ours:
        assert ours.tool("echo").spec.ask == ""
    async with standing(tmp_path, pins=pins, pin="looked at it") as ours:
        assert ours.tool("echo").spec.ask == ""
    async with standing(tmp_path, pins=pins) as ours:
        assert ours.tool("echo").spec.ask == CHANGED
