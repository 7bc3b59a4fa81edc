"""`write_file` and `edit_file`: what is written, what must have been read, and that no change is lost."""

import asyncio
import os
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from app.agent.errors import InvalidArguments, ToolError
from app.agent.messages import ToolCall
from app.agent.tools import Tool, ToolContext, validated
from app.boxes.directory import Directories
from app.tools import writing
from app.tools.file_states import FileStates
from app.tools.files import ReadFile
from app.tools.schema import JsonSchemaChecker
from app.tools.threads import DaemonThreads
from app.tools.writing import EditFile, WriteFile
from tests.tools.conftest import SECRET, Use


def other(context: ToolContext, memory: str, session: str = "ses_1") -> ToolContext:
    """The context of another agent of the tree, or of another session."""
    run = replace(context.run, memory_id=memory, session_id=session)
    return replace(context, run=run, session=replace(context.session, id=session))


@pytest.mark.spec("7.3")
@pytest.mark.case("B044")
async def test_a_new_file_is_written_byte_by_byte_with_its_directories(use: Use, workspace: Path) -> None:
    content = '[label]: {"a":1}\r\nzwölf 🍸\n'

    assert await use("write_file", path="a/b/c.md", content=content) == "Created 'a/b/c.md': 2 lines, 30 bytes."
    assert (workspace / "a/b/c.md").read_bytes() == content.encode()
    assert await use("write_file", path="empty", content="") == "Created 'empty': 0 lines, 0 bytes."


@pytest.mark.spec("7.6")
async def test_a_file_that_exists_must_have_been_read(use: Use, workspace: Path) -> None:
    (workspace / "a.txt").write_text("old\n")

    for name, arguments in (
        ("write_file", {"content": "new"}),
        ("edit_file", {"old_string": "old", "new_string": "new"}),
    ):
        with pytest.raises(ToolError, match=f"was not read in this session: read it with read_file, then call {name}"):
            await use(name, path="a.txt", **arguments)
    assert (workspace / "a.txt").read_text() == "old\n"
    await use("read_file", path="a.txt")
    said = await use("write_file", path="./a.txt", content="new\nlines")
    assert said == "Replaced './a.txt': 2 lines, 9 bytes, before 4 bytes."
    assert (workspace / "a.txt").read_text() == "new\nlines"
    assert "Edited" in await use("edit_file", path="a.txt", old_string="new", new_string="newer")  # it is its own


@pytest.mark.spec("7.6")
async def test_a_file_that_was_edited_behind_an_agents_back_is_refused_with_what_changed(
    use: Use, workspace: Path
) -> None:
    (workspace / "a.txt").write_text("one\ntwo\nthree\n")
    await use("read_file", path="a.txt")
    (workspace / "a.txt").write_text("one\nzwei\nthree\n")

    with pytest.raises(ToolError) as problem:
        await use("edit_file", path="a.txt", old_string="one", new_string="eins")
    text = str(problem.value)
    assert "'a.txt' has changed since it was read, so nothing was written: 15 bytes, modified 20" in text
    assert "before 14 bytes; line 2 differs:\n-two\n+zwei\nRead it again with read_file" in text
    with pytest.raises(ToolError, match="has changed since"):  # the refusal has shown only a part
        await use("write_file", path="a.txt", content="mine")
    await use("read_file", path="a.txt")
    await use("edit_file", path="a.txt", old_string="one", new_string="eins")
    assert (workspace / "a.txt").read_text() == "eins\nzwei\nthree\n"


@pytest.mark.spec("7.6")
async def test_a_file_that_was_only_touched_or_saved_anew_is_still_known(use: Use, workspace: Path) -> None:
    (workspace / "a.txt").write_text("same")
    await use("read_file", path="a.txt")
    (workspace / "b.txt").write_text("same")
    os.replace(workspace / "b.txt", workspace / "a.txt")

    assert "Edited" in await use("edit_file", path="a.txt", old_string="same", new_string="other")


@pytest.mark.spec("7.6")
@pytest.mark.case("B058")
async def test_of_two_agents_that_write_from_an_old_reading_the_second_is_told_of_the_first(
    tools: Mapping[str, Tool], context: ToolContext, workspace: Path
) -> None:
    (workspace / "notes.md").write_text("start\n")
    one, two = other(context, "mem_a"), other(context, "mem_b")
    for who in (one, two):
        await tools["read_file"].call({"path": "notes.md"}, who)
    await tools["write_file"].call({"path": "notes.md", "content": "start\nfrom A\n"}, one)

    with pytest.raises(ToolError, match=r"line 2 differs:\n\+from A"):
        await tools["write_file"].call({"path": "notes.md", "content": "start\nfrom B\n"}, two)
    assert (workspace / "notes.md").read_text() == "start\nfrom A\n"


@pytest.mark.spec("7.6")
async def test_what_one_agent_has_read_another_of_its_session_may_edit_and_no_stranger(
    tools: Mapping[str, Tool], context: ToolContext, workspace: Path
) -> None:
    (workspace / "a.txt").write_text("old")
    edit = {"path": "a.txt", "old_string": "old", "new_string": "new"}
    await tools["read_file"].call({"path": "a.txt"}, context)

    with pytest.raises(ToolError, match="was not read in this session"):
        await tools["edit_file"].call(edit, other(context, "mem_1", session="ses_2"))
    await tools["edit_file"].call(edit, other(context, "mem_child"))
    assert (workspace / "a.txt").read_text() == "new"


@pytest.mark.spec("7.3")
@pytest.mark.case("B059")
async def test_edits_of_one_file_at_once_are_all_there(
    tools: Mapping[str, Tool], context: ToolContext, workspace: Path
) -> None:
    for _ in range(20):
        (workspace / "a.txt").write_text("".join(f"line {n};\n" for n in range(10)))
        await tools["read_file"].call({"path": "a.txt"}, context)
        edits = [{"path": "a.txt", "old_string": f"line {n};", "new_string": f"edited {n};"} for n in (1, 9, 4)]
        await asyncio.gather(*(tools["edit_file"].call(edit, context) for edit in edits))

        lines = (workspace / "a.txt").read_text().splitlines()
        assert [lines[1], lines[4], lines[9]] == ["edited 1;", "edited 4;", "edited 9;"]


@pytest.mark.spec("7.3", "7.6")
async def test_whoever_writes_beside_others_either_has_written_or_was_told_and_nothing_is_lost(
    tools: Mapping[str, Tool], context: ToolContext, workspace: Path
) -> None:
    (workspace / "a.txt").write_text("start\n")
    agents = [other(context, f"mem_{n}", session=f"ses_{n % 2}") for n in range(6)]
    written: list[str] = []

    async def work(number: int, agent: ToolContext) -> None:
        chance = random.Random(number)
        for step in range(8):
            text = (await tools["read_file"].call({"path": "a.txt"}, agent)).content
            await asyncio.sleep(0 if chance.random() < 0.5 else 0.001)
            line = f"agent {number} step {step}"
            try:
                await tools["write_file"].call({"path": "a.txt", "content": f"{text}\n{line}\n"}, agent)
            except ToolError:
                continue
            written.append(line)

    await asyncio.gather(*(work(number, agent) for number, agent in enumerate(agents)))
    lines = (workspace / "a.txt").read_text().splitlines()
    assert lines[0] == "start"
    assert sorted(lines[1:]) == sorted(written)
    assert written


@pytest.mark.spec("7.3")
@pytest.mark.case("B205")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"\xef\xbb\xbfone\r\ntwo\r\nend", b"\xef\xbb\xbfONE\r\nTWO\r\nend"),
        ("\ufeffone\ntwo\n".encode("utf-16-le"), "\ufeffONE\nTWO\n".encode("utf-16-le")),
        (b"one\r\ntwo\n\xe9\n", b"ONE\r\nTWO\n\xe9\n"),
    ],
)
async def test_an_edit_keeps_encoding_mark_and_line_ends(
    use: Use, workspace: Path, before: bytes, after: bytes
) -> None:
    (workspace / "a.txt").write_bytes(before)
    await use("read_file", path="a.txt")
    await use("edit_file", path="a.txt", old_string="one\ntwo", new_string="ONE\nTWO")

    assert (workspace / "a.txt").read_bytes() == after


@pytest.mark.spec("7.3")
@pytest.mark.case("B205")
async def test_a_whole_new_text_keeps_encoding_and_mark_of_the_file(use: Use, workspace: Path) -> None:
    (workspace / "a.txt").write_bytes("\ufeffalt".encode("utf-16-be"))
    await use("read_file", path="a.txt")

    said = await use("write_file", path="a.txt", content="neu\n")
    assert said.endswith("(still utf-16-be, with its mark).")
    assert (workspace / "a.txt").read_bytes() == "\ufeffneu\n".encode("utf-16-be")
    assert "holds exactly this already" in await use("write_file", path="a.txt", content="neu\n")


@pytest.mark.spec("7.3")
@pytest.mark.case("B206")
async def test_an_edit_that_fits_no_place_or_several_changes_nothing(use: Use, workspace: Path) -> None:
    (workspace / "a.txt").write_text("a = 1\nb = 2\na = 1\n")
    await use("read_file", path="a.txt")
    for old, new, said in (
        ("a = 1", "a = 2", "found 2 times, at lines 1, 3"),
        ("c = 3", "", "is not in the file; nothing was changed"),
        ("", "x", "is empty"),
        ("b = 2", "b = 2", "equal"),
    ):
        with pytest.raises(ToolError, match=said):
            await use("edit_file", path="a.txt", old_string=old, new_string=new)
        assert (workspace / "a.txt").read_text() == "a = 1\nb = 2\na = 1\n"
    said = await use("edit_file", path="a.txt", old_string="a = 1", new_string="a = 9", replace_all=True)
    assert said.startswith("Edited 'a.txt' in 2 places; the first, at line 1:\n-a = 1\n+a = 9\n b = 2")
    with pytest.raises(ToolError, match="write_file makes a new file"):
        await use("edit_file", path="none.txt", old_string="a", new_string="b")


@pytest.mark.spec("7.3")
@pytest.mark.case("B124", "B125")
async def test_nothing_outside_is_written_or_told(use: Use, workspace: Path) -> None:
    (workspace / "new").symlink_to("../outside/not_there")
    (workspace / "out").symlink_to("../outside/secret.txt")
    for path in ("new", "out", "../outside/secret.txt", "/etc/new"):
        with pytest.raises(ToolError, match="outside the workspace"):
            await use("write_file", path=path, content="x")
        with pytest.raises(ToolError, match="outside the workspace"):
            await use("edit_file", path=path, old_string="secret", new_string="x")

    assert [path.name for path in (workspace.parent / "outside").iterdir()] == ["secret.txt"]
    assert (workspace.parent / "outside" / "secret.txt").read_text() == SECRET


@pytest.mark.spec("7.3", "6.5")
async def test_a_link_that_came_after_the_rules_were_asked_leads_to_no_write(
    tools: Mapping[str, Tool], context: ToolContext, workspace: Path
) -> None:
    (workspace / "secret").mkdir()
    (workspace / "secret" / "known").write_text("old")
    (workspace / "l").symlink_to("secret")  # it led elsewhere when the call was judged
    guarded = replace(context, refuses=lambda place: None if place and not place.startswith("secret") else "a rule")
    await tools["read_file"].call({"path": "secret/known"}, context)
    (workspace / "f").symlink_to("secret/known")

    for path in ("l/new", "l/known", "l/made/deep/new", "l/made", "f"):
        with pytest.raises(ToolError, match=f"Permission denied: '{path}' leads to what may not be written: a rule"):
            await tools["write_file"].call({"path": path, "content": "x"}, guarded)
    for path in ("l/known", "f"):
        with pytest.raises(ToolError, match="Permission denied"):
            await tools["edit_file"].call({"path": path, "old_string": "old", "new_string": "x"}, guarded)
    assert {path.name: path.read_text() for path in (workspace / "secret").iterdir()} == {"known": "old"}
    await tools["write_file"].call({"path": "open/made/new", "content": "x"}, guarded)
    assert (workspace / "open/made/new").read_text() == "x"


@pytest.mark.spec("7.3")
async def test_what_is_too_large_or_no_text_is_not_written(
    use: Use, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "MAX_FILE_BYTES", 20)
    with pytest.raises(ToolError, match="it would have 21 bytes, at most 20 are"):
        await use("write_file", path="a.txt", content="x" * 21)
    assert not (workspace / "a.txt").exists()
    await use("write_file", path="a.txt", content="x" * 20)
    with pytest.raises(ToolError, match="it would have 21 bytes"):
        await use("edit_file", path="a.txt", old_string="x" * 20, new_string="y" * 21)
    with pytest.raises(InvalidArguments, match="half of a surrogate pair"):
        await use("write_file", path="a.txt", content="\ud83c")
    with pytest.raises(InvalidArguments, match="half of a surrogate pair"):
        await use("edit_file", path="a.txt", old_string="x" * 20, new_string="\udc80")
    assert (workspace / "a.txt").read_text() == "x" * 20


@pytest.mark.spec("7.6")
async def test_a_tree_that_reads_a_file_a_hundred_times_reads_the_disk_once(
    context: ToolContext, workspace: Path
) -> None:
    (workspace / "a.txt").write_text("content")
    long_ago = (workspace / "a.txt").stat().st_ctime_ns + 10_000_000_000
    states = FileStates(clock=lambda: long_ago)
    directories, threads = Directories(), DaemonThreads(4, "test")
    read, write = ReadFile(directories, threads, states), WriteFile(directories, threads, states)
    edit = EditFile(directories, threads, states)

    for number in range(100):
        who = other(context, f"mem_{number % 7}")
        assert (await read.call({"path": "a.txt", "offset": 1}, who)).content == "content"
    assert states.disk_reads == 1
    await edit.call({"path": "a.txt", "old_string": "content", "new_string": "edited"}, context)
    assert states.disk_reads == 1  # what it knows is what is there
    (workspace / "a.txt").write_text("behind its back")
    with pytest.raises(ToolError, match="has changed since"):
        await write.call({"path": "a.txt", "content": "mine"}, context)


@pytest.mark.spec("7.1")
@pytest.mark.parametrize(
    ("name", "given", "ours"),
    [
        ("read_file", {"file_path": "a"}, {"path": "a"}),
        ("write_file", {"file_path": "a", "content": "c"}, {"path": "a", "content": "c"}),
        (
            "edit_file",
            {"file_path": "a", "old_str": "b", "new": "c", "replace_all": True},
            {"path": "a", "old_string": "b", "new_string": "c", "replace_all": True},
        ),
        ("edit_file", {"path": "a", "file_path": "b", "old_string": "b", "new_string": "c"}, None),
        ("edit_file", {"path": "a", "old": "1", "old_str": "2", "new_string": "c"}, None),
    ],
)
def test_rules_hooks_and_tools_see_one_name_of_an_argument_whatever_the_model_calls_it(
    tools: Mapping[str, Tool], name: str, given: dict[str, object], ours: dict[str, object] | None
) -> None:
    call = ToolCall(call_id="call_1", name=name, arguments=given, raw="{}")
    if ours is None:  # two answers to one question: nothing is guessed
        with pytest.raises(InvalidArguments):
            validated(tools[name].spec, call, JsonSchemaChecker())
    else:
        assert validated(tools[name].spec, call, JsonSchemaChecker()) == ours
