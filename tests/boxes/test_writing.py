"""Files made and replaced in a confined directory: where they land, what they keep, and what is refused."""

import gc
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.boxes.beneath import open_by_kernel, open_by_walk
from app.boxes.directory import BoxError, Directory, NotAFile, NotThere, OutsideBox
from app.boxes.writing import MAX_DEPTH, Changed, FileState, NotWritable, slot

needs_openat2 = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="openat2 is a call of Linux")
OPENERS = [pytest.param(open_by_kernel, id="kernel", marks=needs_openat2), pytest.param(open_by_walk, id="walk")]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    """A workspace beside a directory that nothing is written to."""
    outside, box = tmp_path / "outside", tmp_path / "box"
    outside.mkdir()
    (outside / "f.txt").write_text("outside")
    (box / "a").mkdir(parents=True)
    (box / "f.txt").write_text("old")
    (box / "a" / "g.txt").write_text("old")
    (box / "in_file").symlink_to("a/g.txt")
    (box / "in_dir").symlink_to("a")
    (box / "out_file").symlink_to("../outside/f.txt")
    (box / "out_dir").symlink_to("../outside")
    (box / "out_new").symlink_to("../outside/not_there")
    (box / "dangling").symlink_to("nowhere")
    (box / "loop").symlink_to("loop")
    yield box
    assert [path.name for path in outside.iterdir()] == ["f.txt"]
    assert (outside / "f.txt").read_text() == "outside"
    assert not list(box.rglob(".subagentd-*"))


@pytest.fixture(params=OPENERS)
def box(request: pytest.FixtureRequest, tree: Path) -> Directory:
    """The workspace, opened both ways in turn."""
    return Directory(tree, opener=request.param)


def put(directory: Directory, path: str, data: bytes = b"new", *, make: bool = True) -> FileState:
    with slot(directory, path, make_parents=make) as place:
        return place.replace(data, place.state())


@pytest.mark.spec("7.3")
@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("f.txt", "f.txt"),
        ("./a/../f.txt", "f.txt"),
        ("a/new.txt", "a/new.txt"),
        ("in_dir/new.txt", "a/new.txt"),
        ("in_file", "a/g.txt"),
        ("in_dir/g.txt", "a/g.txt"),
        ("b/c/d.txt", "b/c/d.txt"),
        ("in_dir/b/d.txt", "a/b/d.txt"),
    ],
)
def test_a_file_inside_is_written_where_its_path_leads(box: Directory, tree: Path, path: str, where: str) -> None:
    state = put(box, path)

    assert (tree / where).read_bytes() == b"new"
    assert state == FileState.of(os.stat(tree / where))
    assert (tree / "in_file").is_symlink()


@pytest.mark.spec("7.3")
@pytest.mark.case("B124")
@pytest.mark.parametrize(
    "path",
    ["out_file", "out_dir/f.txt", "out_dir/new.txt", "out_dir/x/new.txt", "out_new", "../outside/new", "/etc/new"],
)
def test_nothing_is_written_outside(box: Directory, path: str) -> None:
    with pytest.raises(OutsideBox, match="outside the workspace"):
        put(box, path)


@pytest.mark.spec("7.3")
@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("dangling", NotAFile),
        ("loop", NotAFile),
        ("loop/x", NotThere),
        ("dangling/x", NotThere),
        ("f.txt/x", NotThere),
        ("a", NotAFile),
        (".", NotAFile),
        ("", NotAFile),
        ("new/", NotThere),
        ("new/..", NotAFile),
        ("new/../x", NotThere),
        ("x" * 300, NotThere),
        ("nul\0", NotThere),
        ("half\ud800", NotThere),
        ("/".join("n" * (MAX_DEPTH + 2)), NotThere),
    ],
)
def test_what_cannot_be_a_file_is_refused_and_leaves_nothing(
    box: Directory, tree: Path, path: str, error: type[BoxError]
) -> None:
    before = sorted(tree.rglob("*"))
    with pytest.raises(error) as problem:
        put(box, path)

    assert str(problem.value).isprintable()
    assert sorted(tree.rglob("*")) == before


@pytest.mark.spec("7.3")
@pytest.mark.timeout(10)
def test_special_files_and_files_with_a_second_name_are_refused(box: Directory, tree: Path) -> None:
    os.mkfifo(tree / "fifo")
    os.link(tree.parent / "outside" / "f.txt", tree / "hard")
    (tree / "fixed").write_text("fixed")
    (tree / "fixed").chmod(0o444)

    with pytest.raises(NotAFile, match="special file"):
        put(box, "fifo")
    with pytest.raises(NotWritable, match="2 names"):
        put(box, "hard")
    with pytest.raises(NotWritable, match="read-only"):
        put(box, "fixed")


@pytest.mark.spec("7.3")
def test_a_file_keeps_its_mode_and_a_new_one_gets_the_usual_one(box: Directory, tree: Path) -> None:
    (tree / "run.sh").write_text("old")
    (tree / "run.sh").chmod(0o4750)
    before = os.umask(0o077)
    try:
        put(box, "run.sh")
        put(box, "made.txt")
    finally:
        os.umask(before)

    assert stat.S_IMODE((tree / "run.sh").stat().st_mode) == 0o750  # without set-user-id: the content is another
    assert stat.S_IMODE((tree / "made.txt").stat().st_mode) == 0o644


@as_root
@pytest.mark.spec("7.3")
def test_what_root_makes_belongs_to_the_owner_of_its_directory_and_what_it_replaces_stays_as_it_was(
    box: Directory, tree: Path
) -> None:
    os.chown(tree, 12_345, 12_346)
    os.chown(tree / "f.txt", 777, 778)
    put(box, "f.txt")
    put(box, "deep/er/made.txt")

    owners = {name: (tree / name).stat() for name in ("f.txt", "deep", "deep/er", "deep/er/made.txt")}
    assert {name: (found.st_uid, found.st_gid) for name, found in owners.items()} == {
        "f.txt": (777, 778),
        "deep": (12_345, 12_346),
        "deep/er": (12_345, 12_346),
        "deep/er/made.txt": (12_345, 12_346),
    }


@pytest.mark.spec("7.3", "7.6")
def test_a_file_that_was_changed_while_it_was_written_keeps_the_change(box: Directory, tree: Path) -> None:
    with slot(box, "f.txt") as place:
        state = place.state()
        (tree / "f.txt").write_text("theirs, longer")
        with pytest.raises(Changed):
            place.replace(b"new", state)
    with slot(box, "made.txt") as place:
        (tree / "made.txt").write_text("theirs")
        with pytest.raises(Changed):
            place.replace(b"new", None)
    with slot(box, "f.txt") as place:
        state = place.state()
        (tree / "f.txt").unlink()
        with pytest.raises(Changed):
            place.replace(b"new", state)

    assert (tree / "made.txt").read_text() == "theirs"
    assert not (tree / "f.txt").exists()


@pytest.mark.spec("7.3", "7.6")
def test_a_name_that_is_taken_in_the_last_moment_is_not_overwritten(box: Directory, tree: Path) -> None:
    def taken() -> bool:  # asked after the last look
        (tree / "made.txt").write_text("theirs")
        return True

    with slot(box, "made.txt") as place, pytest.raises(Changed, match="exists by now"):
        place.replace(b"new", None, wanted=taken)
    assert (tree / "made.txt").read_text() == "theirs"


@pytest.mark.spec("7.3")
def test_a_writer_that_nobody_waits_for_any_more_changes_nothing(box: Directory, tree: Path) -> None:
    with slot(box, "f.txt") as place, pytest.raises(Changed, match="nobody wants it"):
        place.replace(b"new", place.state(), wanted=lambda: False)
    assert (tree / "f.txt").read_text() == "old"


@pytest.mark.spec("7.3")
def test_no_handle_is_left_open(box: Directory) -> None:
    def handles() -> int:
        gc.collect()  # handles of earlier tests close when they are collected
        return len(os.listdir("/dev/fd"))

    before = handles()
    for path in ("f.txt", "a/b/c/d", "out_file", "loop", "new/../x", "f.txt/x", "in_file"):
        try:
            put(box, path)
        except BoxError:
            continue
    assert handles() == before


@pytest.mark.spec("7.3")
def test_a_directory_that_becomes_a_link_in_the_moment_it_is_made_leads_nowhere(
    box: Directory, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = os.mkdir

    def swapped(name: str, mode: int, *, dir_fd: int) -> None:
        make(name, mode, dir_fd=dir_fd)
        os.rmdir(name, dir_fd=dir_fd)
        os.symlink("../outside", name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", swapped)
    with pytest.raises(NotThere):  # the directory outside is not even opened
        put(box, "made/new.txt")


@pytest.mark.spec("7.3")
def test_who_may_write_is_asked_about_the_directory_that_is_held_and_no_link_that_comes_later_changes_it(
    box: Directory, tree: Path
) -> None:
    (tree / "b").mkdir()
    asked: list[str | None] = []

    def swapped(place: str | None) -> None:
        asked.append(place)
        (tree / "in_dir").unlink()
        (tree / "in_dir").symlink_to("b")

    with slot(box, "in_dir/new.txt", refuses=swapped) as place:
        place.replace(b"new", place.state())
    assert (asked, place.place) == (["a/new.txt"], "a/new.txt")
    assert (tree / "a/new.txt").read_bytes() == b"new"
    assert list((tree / "b").iterdir()) == []


@pytest.mark.spec("7.3")
def test_a_directory_that_was_removed_while_it_was_opened_takes_no_file(
    box: Directory, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Directory.open_directory

    def removed(self: Directory, path: str, *, follow: bool = True) -> int:
        fd = opened(self, path, follow=follow)
        (tree / "a" / "g.txt").unlink(missing_ok=True)
        (tree / "a").rmdir()
        return fd

    monkeypatch.setattr(Directory, "open_directory", removed)
    with pytest.raises(Changed, match="removed meanwhile"):
        put(box, "a/new.txt", make=False)
