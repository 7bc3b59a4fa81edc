"""Confinement of paths, by both ways of opening: what is inside can be reached, what is outside never."""

import gc
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app.boxes import beneath
from app.boxes.beneath import Opener, best_opener, open_by_kernel, open_by_walk
from app.boxes.directory import BoxError, Directories, Directory, Kind, NotAFile, NotThere, OutsideBox
from tests.longer import examples

SECRET = "the secret that lies outside"

needs_openat2 = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="openat2 is a call of Linux")
OPENERS = [pytest.param(open_by_kernel, id="kernel", marks=needs_openat2), pytest.param(open_by_walk, id="walk")]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A workspace with links of every kind beside a directory that must not be reached."""
    outside, box = tmp_path / "outside", tmp_path / "box"
    (outside / "deep").mkdir(parents=True)
    (outside / "secret.txt").write_text(SECRET)
    (outside / "deep" / "file.txt").write_text(SECRET)
    (box / "a" / "b").mkdir(parents=True)
    (box / "f.txt").write_text("f")
    (box / "a" / "g.txt").write_text("g")
    (box / "a" / "b" / "h.txt").write_text("h")
    (box / "in_file").symlink_to("a/g.txt")
    (box / "in_dir").symlink_to("a/b")
    (box / "a" / "up").symlink_to("../f.txt")
    (box / "chain").symlink_to("in_dir")
    (box / "loop").symlink_to("loop")
    (box / "out_file").symlink_to("../outside/secret.txt")
    (box / "out_dir").symlink_to("../outside")
    (box / "out_absolute").symlink_to(outside / "secret.txt")
    (box / "own_absolute").symlink_to(box / "f.txt")
    (box / "dangling").symlink_to("../outside/not_there")
    (box / "chain_out").symlink_to("a/../out_dir")
    return box


@pytest.fixture(params=OPENERS)
def box(request: pytest.FixtureRequest, tree: Path) -> Directory:
    """The workspace, opened both ways in turn."""
    return Directory(tree, opener=request.param)


def content(directory: Directory, path: str) -> str:
    fd = directory.open_file(path)
    with os.fdopen(fd, "rb") as file:
        return file.read().decode()


def open_handles() -> int:
    gc.collect()  # handles of earlier tests close when they are collected, which may be in between
    return len(os.listdir("/dev/fd"))


@pytest.mark.spec("7.3")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("f.txt", "f"),
        ("./f.txt", "f"),
        ("a//b/./h.txt", "h"),
        ("a/../f.txt", "f"),
        ("a/b/../../f.txt", "f"),
        ("in_file", "g"),
        ("in_dir/h.txt", "h"),
        ("chain/h.txt", "h"),
        ("in_dir/../g.txt", "g"),  # `..` behind a link means the parent of where it leads
        ("a/up", "f"),
    ],
)
def test_a_file_inside_is_read_by_any_spelling_of_its_path(box: Directory, path: str, expected: str) -> None:
    assert content(box, path) == expected


@pytest.mark.spec("7.3")
@pytest.mark.case("B124", "B125")
@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../outside/secret.txt",
        "a/../../outside/secret.txt",
        "in_dir/../../../outside/secret.txt",
        "out_file",
        "out_dir/secret.txt",
        "out_dir/deep/file.txt",
        "out_absolute",
        "own_absolute",
        "dangling",
        "chain_out/secret.txt",
        "/etc/hostname",
        "/",
    ],
)
def test_a_path_that_leads_outside_is_refused(box: Directory, path: str) -> None:
    with pytest.raises(OutsideBox, match="outside the workspace"):
        box.open_file(path)


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("path", [".//a/g.txt", "./a/g.txt", "a//g.txt", "a/./g.txt"])
def test_slashes_more_than_needed_lead_to_the_same_file(path: str, box: Directory) -> None:
    assert content(box, path) == "g"


def test_an_absolute_path_into_the_workspace_is_taken_as_a_relative_one(tree: Path, tmp_path: Path) -> None:
    alias = tmp_path / "alias"
    alias.symlink_to(tree)
    box = Directory(alias)

    assert content(box, str(tree / "a" / "g.txt")) == "g"
    assert content(box, str(alias / "a" / "g.txt")) == "g"
    assert box.relative(str(tree)) == "."
    for beside in (f"{tree}/../outside/secret.txt", f"{tree}-other/f.txt", f"{tree}_"):
        with pytest.raises(OutsideBox):
            box.open_file(beside)


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("path", ["nope", "f.txt/x", "loop", "x" * 300, "f.txt\0", "\0", "a/\ud800"])
def test_a_path_that_names_nothing_says_so(box: Directory, path: str) -> None:
    with pytest.raises(NotThere) as problem:
        box.open_file(path)

    assert str(problem.value).isprintable()
    assert len(str(problem.value)) < 400


@needs_openat2
@pytest.mark.spec("7.3")
@pytest.mark.parametrize("opener", OPENERS)
def test_a_magic_link_of_the_kernel_is_not_followed(opener: Opener, tree: Path) -> None:
    process = Directory(Path("/proc/self"), opener=opener)
    with (tree / "f.txt").open("rb") as held:
        for path in ("root/etc/hostname", "cwd/pyproject.toml", f"fd/{held.fileno()}"):
            with pytest.raises((OutsideBox, NotThere)):
                process.open_file(path)


@pytest.mark.spec("7.3")
@pytest.mark.timeout(10)
def test_only_regular_files_are_opened_and_a_fifo_makes_nobody_wait(
    box: Directory, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree)  # the address of a socket has room for some hundred bytes only
    os.mkfifo(tree / "pipe")
    (tree / "to_pipe").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        kinds = {}
        for path in ("pipe", "to_pipe", "socket", "a", "", "in_dir"):
            with pytest.raises(NotAFile) as problem:
                box.open_file(path)
            kinds[path] = problem.value.kind

    assert {kinds.pop(name) for name in ("pipe", "to_pipe", "socket")} == {Kind.OTHER}
    assert set(kinds.values()) == {Kind.DIRECTORY}
    with pytest.raises(NotAFile):
        Directory(Path("/dev")).open_file("null")


@pytest.mark.spec("7.3")
def test_the_kind_of_a_path_is_that_of_what_it_leads_to(box: Directory, tree: Path) -> None:
    os.mkfifo(tree / "pipe")

    assert [box.kind(path) for path in ("f.txt", "in_file", "in_dir", ".", "pipe")] == [
        Kind.FILE,
        Kind.FILE,
        Kind.DIRECTORY,
        Kind.DIRECTORY,
        Kind.OTHER,
    ]
    with pytest.raises(OutsideBox):
        box.kind("out_file")


_NAMES = (
    "a b f.txt g.txt up in_file in_dir chain loop out_dir chain_out deep .. . nope dangling own_absolute secret.txt"
)
_PARTS = st.sampled_from([*_NAMES.split(), "out_file", ""])


@needs_openat2
@pytest.mark.spec("7.3")
@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(_PARTS, min_size=1, max_size=7))
@example(parts=["chain", "..", "up"])
def test_both_ways_of_opening_give_the_same_answer_for_every_path(tree: Path, parts: list[str]) -> None:
    answers = []
    for opener in (open_by_kernel, open_by_walk):
        try:
            answers.append(content(Directory(tree, opener=opener), "/".join(parts).lstrip("/")))
        except BoxError as problem:
            answers.append(f"{type(problem).__name__}: {problem}")

    assert answers[0] == answers[1]
    assert SECRET not in answers[0]


# Each swaps what `spot` leads to, between a directory inside and the one outside, as fast as it can.
ATTACKS = {
    "a link that changes its target": """
        for n in itertools.count():
            os.symlink(("real", "../outside")[n % 2], "next")
            os.rename("next", "spot")
            n or print("ready", flush=True)
    """,
    "a directory that becomes a link": """
        for n in itertools.count():
            os.rename("spot", "aside")
            os.symlink("../outside", "spot")
            os.unlink("spot")
            os.rename("aside", "spot")
            n or print("ready", flush=True)
    """,
    "a directory that moves away under a path with dots": """
        for n in itertools.count():
            os.rename("real/down", "down")
            os.rename("down", "real/down")
            n or print("ready", flush=True)
    """,
}


@contextmanager
def attacked(root: Path, attack: str) -> Iterator[None]:
    """Run an attack in a process of its own while the body runs."""
    program = "import itertools, os\n" + textwrap.dedent(ATTACKS[attack])
    with subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield
            assert process.poll() is None, "the attack ended by itself"
        finally:
            process.kill()


@pytest.mark.spec("7.3")
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_name_that_is_swapped_all_the_time_never_leads_outside(box: Directory, tree: Path, attack: str) -> None:
    (tree / "real" / "down").mkdir(parents=True)
    (tree / "real" / "secret.txt").write_text("harmless")
    if "becomes" in attack:
        (tree / "real").rename(tree / "spot")
    # Below `real/down` the two steps back end in the workspace; from where `down` moves to, they would end above it.
    (tree / "outside").mkdir()
    (tree / "outside" / "secret.txt").write_text("harmless")
    path = "real/down/../../outside/secret.txt" if "dots" in attack else "spot/secret.txt"
    answers: list[str] = []
    with attacked(tree, attack):
        while len(answers) < 500:
            try:
                answers.append(content(box, path))
            except BoxError as problem:
                answers.append(type(problem).__name__)

    assert answers.count(SECRET) == 0
    assert set(answers) <= {"harmless", "OutsideBox", "NotThere", "Unreadable"}


@pytest.mark.spec("7.3")
def test_refusals_leave_no_handle_open(box: Directory, tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    before = open_handles()
    for path in ("..", "a/b/../../..", "out_dir/x", "loop", "nope", "a", "pipe", "f.txt/x", "in_dir/nope"):
        with pytest.raises(BoxError):
            box.open_file(path)
    list(box.walk())
    box.scandir("a")
    next(box.walk())

    assert open_handles() == before


@pytest.mark.spec("7.3")
@pytest.mark.case("B125", "B207")
def test_a_walk_lists_everything_inside_in_order_and_follows_no_link(box: Directory) -> None:
    found = [(entry.path, entry.kind) for entry in box.walk()]

    assert found == [
        ("a", Kind.DIRECTORY),
        ("a/b", Kind.DIRECTORY),
        ("a/b/h.txt", Kind.FILE),
        ("a/g.txt", Kind.FILE),
        ("a/up", Kind.LINK),
        ("chain", Kind.LINK),
        ("chain_out", Kind.LINK),
        ("dangling", Kind.LINK),
        ("f.txt", Kind.FILE),
        ("in_dir", Kind.LINK),
        ("in_file", Kind.LINK),
        ("loop", Kind.LINK),
        ("out_absolute", Kind.LINK),
        ("out_dir", Kind.LINK),
        ("out_file", Kind.LINK),
        ("own_absolute", Kind.LINK),
    ]
    assert [entry.path for entry in box.walk("in_dir")] == ["h.txt"]
    assert [entry.name for entry in box.scandir("a")] == ["b", "g.txt", "up"]
    with pytest.raises(OutsideBox):
        next(box.walk("out_dir"))


@pytest.mark.spec("7.3")
def test_a_walk_enters_only_what_it_is_allowed_to_and_ends_when_told(box: Directory) -> None:
    assert [entry.path for entry in box.walk(descend=lambda path: path != "a/b")][:4] == ["a", "a/b", "a/g.txt", "a/up"]

    left = iter([True] * 3)
    assert len(list(box.walk(more=lambda: next(left, False)))) <= 3


@pytest.mark.spec("7.3")
def test_a_directory_that_becomes_a_link_during_a_walk_is_not_entered(box: Directory, tree: Path) -> None:
    def swap(path: str) -> bool:
        if path == "a":
            os.rename(tree / "a", tree / "moved")
            os.symlink("../outside", tree / "a")
        return True

    assert not [entry.path for entry in box.walk(descend=swap) if "secret" in entry.path or "deep" in entry.path]


@pytest.mark.spec("7.3")
def test_names_that_are_no_text_are_listed_and_can_be_walked(box: Directory, tree: Path) -> None:
    odd = os.fsencode(tree) + b"/odd\xff"
    os.mkdir(odd)
    with open(odd + b"/in.txt", "wb") as file:
        file.write(b"x")

    paths = [os.fsencode(entry.path) for entry in box.walk()]

    assert b"odd\xff/in.txt" in paths


@needs_openat2
@pytest.mark.spec("7.3")
def test_the_walk_takes_over_where_the_kernel_has_no_such_call(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = os.open(tree, os.O_RDONLY)
    try:
        assert best_opener(handle) is open_by_kernel
        monkeypatch.setattr(beneath, "_SYS_OPENAT2", 4_000)  # a number without a call behind it: ENOSYS
        assert best_opener(handle) is open_by_walk
    finally:
        os.close(handle)
    assert content(Directory(tree), "in_dir/h.txt") == "h"


@pytest.fixture
def roots(tmp_path: Path) -> Iterator[list[Path]]:
    """Three workspaces, each with a file that holds its number."""
    made = [tmp_path / str(number) for number in range(3)]
    for root in made:
        root.mkdir()
        (root / "n.txt").write_text(root.name)
    yield made


@pytest.mark.spec("7.3")
def test_held_directories_are_reused_and_closed_when_nobody_needs_them(roots: list[Path]) -> None:
    directories = Directories(limit=2)
    before = open_handles()
    first = directories.get(roots[0])
    assert directories.get(roots[0]) is first

    directories.get(roots[1])
    directories.get(roots[2])

    assert open_handles() == before + 3  # the evicted one is still in use here
    assert content(first, "n.txt") == "0"
    del first
    assert open_handles() == before + 2


@pytest.mark.spec("7.3")
def test_a_workspace_that_was_made_anew_is_opened_anew(roots: list[Path]) -> None:
    directories = Directories()
    old = directories.get(roots[0])
    roots[0].rename(roots[0].with_name("old"))
    with pytest.raises(NotThere, match="workspace directory"):
        directories.get(roots[0])
    roots[0].mkdir()
    (roots[0] / "n.txt").write_text("new")

    assert content(directories.get(roots[0]), "n.txt") == "new"
    assert content(old, "n.txt") == "0"


@pytest.mark.spec("7.3", "8.1")
def test_the_place_of_what_is_open_is_where_it_lies_whatever_its_name_leads_to_now(tree: Path) -> None:
    box = Directory(tree)
    held = [box.open_file(name) for name in ("in_file", "a/up", "f.txt")]
    (tree / "f.txt").rename(tree / "moved")
    (tree / "f.txt").symlink_to("a/g.txt")
    held.append(box.open_file("f.txt"))
    assert [box.place_of(fd) for fd in held] == ["a/g.txt", "moved", "moved", "a/g.txt"]
    (tree / "moved").unlink()
    assert box.place_of(held[1]) is None, "it lies nowhere any more"
    for fd in held:
        os.close(fd)


@pytest.mark.spec("7.3", "8.1")
def test_a_walk_says_first_where_it_really_begins(tree: Path) -> None:
    entered: list[str | None] = []
    found = [entry.path for entry in Directory(tree).walk("in_dir", entered=entered.append)]
    assert (entered, found) == (["a/b"], ["h.txt"])
