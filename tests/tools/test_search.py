"""`glob` and `grep`: what they find, leave out, refuse and stop at."""

import asyncio
import os
import random
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.agent.errors import InvalidArguments, ToolError
from app.agent.tools import Interrupt, Tool, ToolContext
from app.boxes.directory import Directories
from app.tools import search
from app.tools.search import Grep
from app.tools.threads import DaemonThreads
from tests.tools.conftest import SECRET, Use


def make(root: Path, *paths: str, text: str = "needle\n") -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.mark.spec("7.3")
async def test_glob_lists_matching_paths_sorted_with_directories_marked(use: Use, workspace: Path) -> None:
    make(workspace, "b.py", "a.py", "src/x.py", "src/deep/y.py", "src/z.txt", ".github/ci.yml")

    assert await use("glob", pattern="*") == ".github/\na.py\nb.py\nsrc/"
    assert await use("glob", pattern="**/*.py") == "a.py\nb.py\nsrc/deep/y.py\nsrc/x.py"
    assert await use("glob", pattern="src/*") == "src/deep/\nsrc/x.py\nsrc/z.txt"
    assert await use("glob", pattern="*.py", path="./src/") == "src/x.py"
    assert await use("glob", pattern="**/*.{yml,txt}") == ".github/ci.yml\nsrc/z.txt"
    assert await use("glob", pattern=f"{workspace}/src/**/y.*", path="src") == "src/deep/y.py"


@pytest.mark.spec("7.3")
async def test_glob_without_a_match_says_what_to_try(use: Use, workspace: Path) -> None:
    make(workspace, "src/x.py")

    assert await use("glob", pattern="*.py") == "No matches for '*.py'. '*' does not enter directories; '**/' does."
    assert await use("glob", pattern="**/*.js") == "No matches for '**/*.js'."


@pytest.mark.spec("7.3")
@pytest.mark.case("B207")
async def test_heavy_directories_are_entered_only_when_they_are_named(use: Use, workspace: Path) -> None:
    make(workspace, "a.js", "node_modules/m/b.js", "src/.venv/c.js", ".git/d.js", "dist/e.js")

    assert await use("glob", pattern="**/*.js") == "a.js\ndist/e.js"
    assert await use("glob", pattern="node_modules/**/*.js") == "node_modules/m/b.js"
    assert await use("glob", pattern="**/.venv/*") == "src/.venv/c.js"
    assert await use("glob", pattern="**/*.js", path=".git") == ".git/d.js"
    assert await use("grep", pattern="needle") == "a.js:1:needle\ndist/e.js:1:needle"
    assert await use("grep", pattern="needle", path="node_modules") == "node_modules/m/b.js:1:needle"
    assert await use("grep", pattern="needle", include="node_modules/**") == "node_modules/m/b.js:1:needle"


@pytest.mark.spec("7.3")
@pytest.mark.case("B125", "B207")
async def test_links_lead_neither_outside_nor_in_circles(use: Use, workspace: Path) -> None:
    make(workspace, "a.txt", "d/b.txt")
    for name, target in {
        "out.txt": "../outside/secret.txt",
        "out": "../outside",
        "d/loop": "..",
        "in.txt": "a.txt",
        "gone.txt": "nothing",
        "to_d": "d",
    }.items():
        (workspace / name).symlink_to(target)

    assert await use("glob", pattern="**/*") == "a.txt\nd/\nd/b.txt\nd/loop/\nin.txt\nto_d/"
    assert await use("glob", pattern="out/*") == "No matches for 'out/*'. '*' does not enter directories; '**/' does."
    assert await use("grep", pattern="needle|secret") == "a.txt:1:needle\nd/b.txt:1:needle"
    assert await use("grep", pattern="needle", path="in.txt") == "in.txt:1:needle"
    assert await use("grep", pattern="needle", path="to_d") == "to_d/b.txt:1:needle"
    for path in ("out.txt", "out", "out/secret.txt", "..", str(workspace.parent)):
        for tool in ("grep", "glob"):
            with pytest.raises(ToolError, match="outside the workspace") as problem:
                await use(tool, pattern="secret", path=path)
            assert SECRET not in str(problem.value)


@pytest.mark.spec("7.3")
@pytest.mark.case("B207")
async def test_a_huge_tree_ends_with_what_was_found_and_says_so(
    use: Use, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(workspace, *(f"d{n}/f{m}.txt" for n in range(10) for m in range(10)))
    monkeypatch.setattr(search, "MAX_ENTRIES", 50)

    paths = await use("glob", pattern="**/*.txt")
    lines = await use("grep", pattern="needle")

    assert 10 <= paths.count(".txt\n") < 50
    assert "[stopped after 50 entries: the list is not complete; use a narrower pattern or path]" in paths
    assert lines.count(":1:needle\n") >= 10
    assert lines.endswith("[stopped after 50 entries: the result is not complete; use a narrower path or include]")


@pytest.mark.spec("7.3")
async def test_too_many_results_are_cut_and_the_cut_is_said(use: Use, workspace: Path) -> None:
    make(workspace, *(f"f{n:03}.txt" for n in range(501)), text="a\na\n")

    assert (await use("glob", pattern="*")).endswith(
        "f499.txt\n[only the first 500 matches; use a narrower pattern or path]"
    )
    assert await use("grep", pattern="a", max_matches=3) == (
        "f000.txt:1:a\nf000.txt:2:a\nf001.txt:1:a\n[stopped at 3 matches; there may be more]"
    )


@pytest.mark.spec("7.3")
async def test_grep_shows_path_line_and_text_with_context(use: Use, workspace: Path) -> None:
    make(workspace, "a.txt", text="one\ntwo\nthree\nfour\nfive\n")
    make(workspace, "b/c.txt", text="Two\r\nx\r\n")

    assert await use("grep", pattern="two") == "a.txt:2:two"
    assert await use("grep", pattern="TWO$", ignore_case=True) == "a.txt:2:two\nb/c.txt:1:Two"
    assert await use("grep", pattern="^one|five|Two", context=1.0) == (
        "a.txt:1:one\na.txt-2-two\n--\na.txt-4-four\na.txt:5:five\n--\nb/c.txt:1:Two\nb/c.txt-2-x"
    )


@pytest.mark.spec("7.3")
async def test_grep_looks_only_into_included_files(use: Use, workspace: Path) -> None:
    make(workspace, "a.py", "src/b.py", "src/c.ts", "src/deep/d.ts")

    assert await use("grep", pattern="needle", include="*.py") == "a.py:1:needle\nsrc/b.py:1:needle"
    assert await use("grep", pattern="needle", include="src/*.ts") == "src/c.ts:1:needle"
    assert await use("grep", pattern="needle", include="deep/*", path="src") == "src/deep/d.ts:1:needle"


@pytest.mark.spec("7.3")
@pytest.mark.case("B176", "B184")
@pytest.mark.timeout(10)
async def test_grep_skips_what_is_no_text_and_says_so_when_nothing_was_found(use: Use, workspace: Path) -> None:
    (workspace / "a.bin").write_bytes(b"needle\0")
    (workspace / "wide.txt").write_bytes("größe\r\n".encode("utf-16"))
    os.mkfifo(workspace / "pipe")

    assert await use("grep", pattern="größe$") == "wide.txt:1:größe"
    assert await use("grep", pattern="needle") == "No matches. 1 binary or unreadable files were not searched."
    with pytest.raises(ToolError, match="is a special file"):
        await use("grep", pattern="x", path="pipe")


@pytest.mark.spec("7.3")
async def test_of_a_very_large_file_the_beginning_is_searched(
    use: Use, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_FILE_BYTES", 1024 * 1024)
    make(workspace, "a.txt", text="needle\n" + "x\n" * 600_000 + "needle\n")

    assert await use("grep", pattern="needle") == (
        "a.txt:1:needle\n[1 files are larger than 1 MB and were searched only up to there]"
    )


@pytest.mark.spec("7.1", "7.3")
async def test_bad_patterns_are_invalid_arguments_that_say_why(use: Use) -> None:
    for arguments, problem in (
        ({"pattern": "("}, "missing"),
        ({"pattern": "(?<=a)b"}, "no look-around"),
        ({"pattern": "a", "include": "[z-a]"}, "cannot be used"),
    ):
        with pytest.raises(InvalidArguments, match=problem):
            await use("grep", **arguments)
    with pytest.raises(InvalidArguments, match="give the directory to search in as path"):
        await use("glob", pattern="../*")


@pytest.mark.spec("7.3")
async def test_odd_names_are_shown_as_one_line_of_valid_text(use: Use, workspace: Path) -> None:
    for name in (b"new\nline.txt", b"latin\xf6.txt", "数\u3000据.txt".encode()):
        (workspace / os.fsdecode(name)).write_text("needle")

    paths = (await use("glob", pattern="*.txt")).split("\n")
    lines = (await use("grep", pattern="needle")).split("\n")

    assert paths == ["latin\ufffd.txt", "new\ufffdline.txt", "数\u3000据.txt"]
    assert lines == [f"{path}:1:needle" for path in paths]


@pytest.mark.spec("7.3")
@pytest.mark.timeout(20)
async def test_a_search_that_is_cancelled_ends_at_once_and_frees_its_thread(
    workspace: Path, context: ToolContext
) -> None:
    # One line that takes the worst expression 20 s and more; the only thread must be free long before.
    (workspace / "a.txt").write_bytes(bytes(random.Random(1).choices(b"ab", k=5_000_000)))
    threads = DaemonThreads(1, "search")
    tool = Grep(Directories(), threads)
    began = threading.Event()
    threads.submit(began.set)
    call = asyncio.ensure_future(tool.call({"pattern": "(a[ab]{500}|b[ab]{499})c"}, context))
    await asyncio.get_running_loop().run_in_executor(None, began.wait, 5)

    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    free = asyncio.wrap_future(threads.submit(lambda: "free"))
    assert await asyncio.wait_for(free, timeout=5) == "free"


@pytest.mark.spec("7.1", "7.3")
def test_the_built_in_tools_declare_what_they_are(tools: Mapping[str, Tool]) -> None:
    assert list(tools) == ["read_file", "write_file", "edit_file", "glob", "grep", "web_fetch"]
    for name, tool in tools.items():
        spec = tool.spec
        assert spec is tool.spec
        assert spec.read_only == spec.concurrency_safe == (name not in ("write_file", "edit_file"))
        assert spec.interrupt is (Interrupt.CANCEL if spec.read_only else Interrupt.BLOCK)
        assert spec.timeout_ms == 60_000
        assert spec.parameters["additionalProperties"] is False
        assert set(spec.parameters["required"]) <= set(spec.parameters["properties"])
        assert 0 < len(spec.description) < 400
