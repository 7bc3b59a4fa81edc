"""`read_file`: ranges, encodings, refusals, confinement."""

import asyncio
import os
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app.agent.errors import ToolError
from app.agent.tools import Tool, ToolContext
from app.boxes.directory import Directories
from app.tools import files
from app.tools.files import ReadFile
from app.tools.threads import DaemonThreads
from tests.longer import examples
from tests.tools.conftest import SECRET, Use


@pytest.mark.spec("7.3")
async def test_a_whole_file_is_returned_as_it_is(use: Use, workspace: Path) -> None:
    (workspace / "a.txt").write_text("one\n  two\n\nvier ü 数据\n")

    assert await use("read_file", path="a.txt") == "one\n  two\n\nvier ü 数据"


@pytest.mark.spec("7.3")
async def test_a_range_says_which_lines_it_holds_and_how_to_go_on(use: Use, workspace: Path) -> None:
    (workspace / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 11)))

    assert await use("read_file", path="a.txt", limit=2) == "[lines 1-2 of 10; continue with offset=3]\nline 1\nline 2"
    assert await use("read_file", path="a.txt", offset=9.0, limit=2.0) == "[lines 9-10 of 10]\nline 9\nline 10"
    assert await use("read_file", path="a.txt", offset=10) == "[lines 10-10 of 10]\nline 10"
    with pytest.raises(ToolError, match="has 10 lines; offset 11 is beyond its end"):
        await use("read_file", path="a.txt", offset=11)


@pytest.mark.spec("7.3")
async def test_reading_on_by_the_offsets_gives_the_whole_file(use: Use, workspace: Path) -> None:
    lines = [f"{n} " + "x" * (n % 300) for n in range(4_321)]
    (workspace / "a.txt").write_text("\n".join(lines))
    collected: list[str] = []
    offset = 1
    while offset:
        head, *page = (await use("read_file", path="a.txt", offset=offset)).split("\n")
        collected += page
        offset = int(head.partition("offset=")[2].rstrip("]") or 0)

    assert collected == lines


@pytest.mark.spec("7.3")
async def test_empty_files_and_empty_lines_are_told_apart(use: Use, workspace: Path) -> None:
    (workspace / "empty").write_bytes(b"")
    (workspace / "mark").write_bytes(b"\xef\xbb\xbf")
    (workspace / "lines").write_bytes(b"\n\nx")

    assert await use("read_file", path="empty") == "(empty file)"
    assert await use("read_file", path="mark") == "(empty file)"
    assert await use("read_file", path="lines") == "\n\nx"


@pytest.mark.spec("7.3")
@pytest.mark.case("B176", "B184")
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("größe 🍸\n".encode("utf-8-sig"), "größe 🍸"),
        ("größe 🍸\r\nb\r\n".encode("utf-16"), "größe 🍸\nb"),
        (b"\xfe\xff" + "größe 🍸\n".encode("utf-16-be"), "größe 🍸"),
        ("größe\nb".encode("utf-32"), "größe\nb"),
        (b"\xff\xfea\0\x00\xd8b\0\0\0", "a\ufffdb\ufffd"),  # half a pair, and a NUL
        (b"a\r\nb\rc\r\n", "a\nb\rc"),
        (b"line\x0bwith\x0cother\x1cbreaks\xe2\x80\xa8here\n", "line\x0bwith\x0cother\x1cbreaks\u2028here"),
        (b"x" * 9_000 + b"\0y", "x" * 2_000 + "… [7,002 more characters in this line]"),
    ],
)
async def test_text_in_any_encoding_with_a_mark_is_decoded(
    use: Use, workspace: Path, data: bytes, expected: str
) -> None:
    (workspace / "a.txt").write_bytes(data)

    assert await use("read_file", path="a.txt") == expected


@pytest.mark.spec("7.3")
@pytest.mark.case("B184")
@pytest.mark.parametrize(
    "data", ["Größe: 3 €".encode("cp1252"), "…".encode()[:2] + b" cut", b"end " + "数".encode()[:2]]
)
async def test_bytes_that_are_no_utf8_are_shown_as_replacements_and_said(
    use: Use, workspace: Path, data: bytes
) -> None:
    (workspace / "a.txt").write_bytes(data)

    note, text = (await use("read_file", path="a.txt")).split("\n")

    assert note == "[bytes that are not valid UTF-8 are shown as \ufffd]"
    assert text.replace("\ufffd", "").encode() in data.replace(b"\xf6", b"").replace(b"\xdf", b"").replace(b"\x80", b"")
    assert "\ufffd" in text


@pytest.mark.spec("7.3")
async def test_a_replacement_character_of_the_file_itself_is_no_damage(use: Use, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a\ufffdb")

    assert await use("read_file", path="a.txt") == "a\ufffdb"


@pytest.mark.spec("7.3")
@pytest.mark.case("B176", "B184")
@pytest.mark.parametrize(
    "data", [random.Random(7).randbytes(2_000), b"text\0text", bytes(range(1, 32)) * 9, "wide".encode("utf-16-le")]
)
async def test_a_binary_file_is_refused_with_its_size(use: Use, workspace: Path, data: bytes) -> None:
    (workspace / "a.bin").write_bytes(data)

    with pytest.raises(ToolError, match=f"'a.bin' is a binary file of {len(data):,} bytes"):
        await use("read_file", path="a.bin")


@pytest.mark.spec("7.3")
async def test_a_character_on_the_border_of_two_blocks_stays_whole(
    use: Use, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_BLOCK", 7)
    text = "äöü€🍸数\r\n" * 40 + "ende"
    (workspace / "a.txt").write_bytes(text.encode())

    assert await use("read_file", path="a.txt") == text.replace("\r\n", "\n")


@pytest.mark.spec("7.3")
async def test_a_huge_line_is_cut_and_says_by_how_much(use: Use, workspace: Path) -> None:
    (workspace / "a.txt").write_text("x" * 3_000_000 + "\r\n" + "y" * 2_000 + "\r\n" + "z" * 2_001)

    first, second, third = (await use("read_file", path="a.txt")).split("\n")

    assert first == "x" * 2_000 + "… [2,998,001 more characters in this line]"  # its CR is one of them
    assert second == "y" * 2_000
    assert third == "z" * 2_000 + "… [1 more characters in this line]"


@pytest.mark.spec("7.3")
async def test_of_a_large_file_only_the_range_is_read(use: Use, workspace: Path) -> None:
    with (workspace / "a.txt").open("wb") as file:
        file.write(b"".join(b"%d\n" % n for n in range(1, 3_000)))
        file.truncate(40 * 1024**3)  # the rest is a hole of 40 GB that nobody could read in time

    text = await use("read_file", path="a.txt", offset=500, limit=2)

    assert text == "[lines 500-501 of a file of 42,949,672,960 bytes; continue with offset=502]\n500\n501"


@pytest.mark.spec("7.3")
@pytest.mark.timeout(10)
async def test_a_line_that_cannot_be_reached_in_time_is_an_error(
    use: Use, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "READ_SECONDS", 0.05)
    with (workspace / "a.txt").open("wb") as file:
        file.write(b"text\n" * 3_000)
        file.truncate(40 * 1024**3)

    with pytest.raises(ToolError, match=r"line 9,000 was not reached within 0\.05 seconds"):
        await use("read_file", path="a.txt", offset=9_000)


@pytest.mark.spec("7.3")
async def test_an_answer_is_bounded_in_characters_too(use: Use, workspace: Path) -> None:
    (workspace / "a.txt").write_text(("x" * 1_999 + "\n") * 1_000)

    text = await use("read_file", path="a.txt")

    assert text.startswith("[lines 1-201 of 1000; continue with offset=202]")
    assert len(text) < files.MAX_CHARS + 5_000


@pytest.mark.spec("7.3")
async def test_a_directory_says_how_to_list_it(use: Use, workspace: Path) -> None:
    (workspace / "src").mkdir()

    for path in ("src", "src/", ".", ""):
        with pytest.raises(ToolError, match="is a directory; list it with glob"):
            await use("read_file", path=path)


@pytest.mark.spec("7.3")
@pytest.mark.case("B124", "B125")
async def test_what_lies_outside_is_refused_in_words(use: Use, workspace: Path) -> None:
    (workspace / "link.txt").symlink_to("../outside/secret.txt")
    (workspace / "dir").symlink_to("../outside")

    for path in ("link.txt", "dir/secret.txt", "../outside/secret.txt", str(workspace.parent / "outside/secret.txt")):
        with pytest.raises(ToolError, match="outside the workspace"):
            await use("read_file", path=path, offset=1)
    with pytest.raises(ToolError, match="'nope' does not exist in the workspace"):
        await use("read_file", path="nope")
    with pytest.raises(ToolError, match="NUL"):
        await use("read_file", path="a\0b")


@pytest.mark.spec("7.3")
@pytest.mark.timeout(10)
async def test_a_fifo_is_refused_without_waiting(use: Use, workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")

    with pytest.raises(ToolError, match="special file"):
        await use("read_file", path="pipe")


@pytest.mark.spec("7.3")
async def test_a_missing_workspace_is_an_error_that_names_no_path(use: Use, workspace: Path) -> None:
    workspace.rmdir()

    with pytest.raises(ToolError, match="workspace directory does not exist") as problem:
        await use("read_file", path="a.txt")

    assert str(workspace) not in str(problem.value)


_PIECES = st.sampled_from(
    ["..", ".", "", "a", "link", "dir", "secret.txt", "outside", "workspace", "in.txt", "\0", "~"]
)
_PATHS = st.one_of(st.text(max_size=40), st.lists(_PIECES, max_size=8).map("/".join))


@pytest.mark.spec("7.3")
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=_PATHS, absolute=st.booleans())
@example(path="../outside/secret.txt", absolute=True)
@example(path="in.txt", absolute=True)
def test_no_path_whatever_returns_content_from_outside(
    workspace: Path, context: ToolContext, path: str, absolute: bool
) -> None:
    for name, target in (("link", "../outside/secret.txt"), ("dir", "../outside"), ("a", ".")):
        if not (workspace / name).is_symlink():
            (workspace / name).symlink_to(target)
    (workspace / "in.txt").write_text("inside")
    tool = ReadFile(Directories(), DaemonThreads(1, "read"))
    try:
        result = asyncio.run(tool.call({"path": f"{workspace}/{path}" if absolute else path}, context))
    except ToolError as problem:
        assert SECRET not in str(problem)
        assert "\n" not in str(problem)
    else:
        assert result.content == "inside"


@pytest.mark.spec("8.1", "8.3")
async def test_a_file_is_judged_again_by_what_was_really_opened(
    tools: Mapping[str, Tool], context: ToolContext
) -> None:
    (context.workspace / "key").write_text("the key\n")
    (context.workspace / "plan").symlink_to("key")  # as if it had come after the call was judged
    seen: list[str | None] = []

    def refuses(place: str | None) -> str | None:
        seen.append(place)
        return "keys are not read" if place == "key" else None

    guarded = replace(context, refuses=refuses)
    with pytest.raises(ToolError, match="keys are not read"):
        await tools["read_file"].call({"path": "plan"}, guarded)
    for name in ("grep", "glob"):
        await tools[name].call({"pattern": "key", "path": "."}, replace(guarded, conceals=lambda path: False))
    found = await tools["grep"].call({"pattern": "key", "path": "plan"}, guarded)
    assert "the key" not in found.content
    assert seen == ["key", ".", "key", ".", "key"]
