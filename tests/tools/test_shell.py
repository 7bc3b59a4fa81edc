"""`run_command`: what a model and an onlooker see of a command."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.agent.tools import ToolContext, ToolResult, ToolSpec
from app.boxes.box import Level
from app.boxes.workspaces import Workspaces
from app.tools.builtin import command_tool
from app.tools.schema import JsonSchemaChecker
from app.tools.shell import Output, RunCommand
from tests.boxes.outside import ROOT, need, open_folder, own


@pytest.fixture
def place() -> Iterator[Path]:
    """A workspace that commands may write."""
    with open_folder() as folder:
        (folder / "workspace").mkdir()
        yield own(folder / "workspace")


def tool(place: Path, **fields: object) -> RunCommand:
    need(Level.FULL)
    given: dict[str, object] = {
        "sandbox": "full",
        "workspaces": Workspaces(place),
        "sandbox_uid": 65534,
        "command_timeout_ms": 20_000,
        "command_memory_mb": 256,
        "command_processes": 64,
        "command_file_mb": 64,
        "command_disk_mb": 512,
        "command_files": 100_000,
        "command_output_bytes": 100_000,
        "command_environment": [],
        "command_paths": [],
    }
    return command_tool(**{**given, **fields})  # type: ignore[arg-type]


async def called(
    run: RunCommand, place: Path, context: ToolContext, command: str, **arguments: object
) -> tuple[ToolResult, list[str]]:
    shown: list[str] = []
    there = replace(context, workspace=place, progress=shown.append)
    return await run.call({"command": command, **arguments}, there), shown


@pytest.mark.spec("7.3")
async def test_an_exit_code_is_an_answer_and_output_has_one_order(place: Path, context: ToolContext) -> None:
    run = tool(place)
    result, shown = await called(run, place, context, "echo a; echo b >&2; echo c; exit 7")
    assert result == ToolResult(content="a\nb\nc\n[exit code 7]")
    assert "".join(shown) == "a\nb\nc\n"
    result, shown = await called(run, place, context, "true")
    assert (result, shown) == (ToolResult(content="(no output)"), [])
    result, _ = await called(run, place, context, "exit 2")
    assert result == ToolResult(content="[exit code 2]")


@pytest.mark.spec("7.3", "7.1")
@pytest.mark.case("B074")
async def test_a_command_that_takes_too_long_is_an_error_with_what_it_wrote(place: Path, context: ToolContext) -> None:
    result, _ = await called(tool(place), place, context, "echo begun; sleep 60", timeout_ms=500)
    assert (result.is_error, result.status) == (True, "timed_out")
    assert result.content.startswith("begun\n[timed out: ended after 500 ms")


@pytest.mark.spec("7.3")
async def test_a_command_that_takes_too_much_is_an_error_that_says_of_what(place: Path, context: ToolContext) -> None:
    greedy = "for i in 1 2 3 4 5 6; do head -c 60M /dev/zero | tail & done; wait"
    result, _ = await called(tool(place, command_memory_mb=128), place, context, greedy)
    assert (result.is_error, result.status) == (True, "error")
    assert "more than 128 MB of memory" in result.content


@pytest.mark.spec("7.3")
async def test_output_beyond_the_bound_keeps_its_ends_and_is_not_shown_for_ever(
    place: Path, context: ToolContext
) -> None:
    run = tool(place, command_output_bytes=10_000)
    result, shown = await called(run, place, context, "echo first; seq 1000000; echo last")
    assert result.content.startswith("first\n1\n2\n")
    assert result.content.endswith("\n1000000\nlast")
    assert "bytes left out of 6,8" in result.content
    assert len(result.content) < 10_100
    assert 10_000 <= len("".join(shown)) < 10_200
    assert "not shown" in shown[-1]


@pytest.mark.spec("7.3")
async def test_characters_that_come_in_pieces_are_whole_and_others_are_replaced(
    place: Path, context: ToolContext
) -> None:
    command = r"printf '\303'; sleep 0.3; printf '\274 \377 ok'"
    result, shown = await called(tool(place), place, context, command)
    assert result.content == "".join(shown) == "ü \ufffd ok"


async def test_what_is_kept_is_bounded_however_it_comes() -> None:
    data = bytes(range(48, 58)) * 1_000
    for size in (1, 7, 100, 10_000):
        output = Output(1000, lambda text: None)
        for at in range(0, len(data), size):
            output.take(data[at : at + size])
            assert len(output._head) + len(output._tail) <= 1500 + size
        output.close()
        assert output.text() == f"{data[:500].decode()}\n[… 9,000 bytes left out of 10,000 …]\n{data[-500:].decode()}"


@pytest.mark.spec("7.1")
def test_the_schema_says_what_the_operator_allows(tmp_path: Path) -> None:
    spec: ToolSpec = command_tool(
        sandbox="full",
        workspaces=None,
        sandbox_uid=65534,
        command_timeout_ms=5000,
        command_memory_mb=64,
        command_processes=8,
        command_file_mb=1,
        command_disk_mb=1,
        command_files=1000,
        command_output_bytes=1000,
        command_environment=[],
        command_paths=[],
    ).spec
    assert (spec.name, spec.read_only, spec.concurrency_safe, spec.built_in) == ("run_command", False, False, True)
    assert spec.timeout_ms > 5000
    checker = JsonSchemaChecker()
    assert checker.check(spec.parameters, {"command": "ls", "timeout_ms": 5000, "description": "look"}) is None
    for wrong in (
        {},
        {"command": ""},
        {"command": "ls", "timeout_ms": 5001},
        {"command": ["ls"]},
        {"command": "a", "x": 1},
    ):
        assert checker.check(spec.parameters, wrong) is not None


@pytest.mark.spec("7.3")
@pytest.mark.skipif(not ROOT, reason="matters only for root")
async def test_a_workspace_of_root_is_read_only_and_the_result_says_why(place: Path, context: ToolContext) -> None:
    own(place, 0)
    (place / "given.txt").write_text("given\n")
    result, _ = await called(tool(place), place, context, "cat given.txt; echo x > made.txt")
    assert result.content.startswith("given\n")
    assert "[exit code 1]" in result.content
    assert "belongs to root and commands run as user 65534" in result.content
    assert not (place / "made.txt").exists()
