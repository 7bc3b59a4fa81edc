"""What is known of files: how often the disk is read, who has seen what, and that nothing grows without bound."""

import os
import time
from pathlib import Path

import pytest

from app.boxes.writing import FileState
from app.tools import file_states
from app.tools.file_states import Content, FileStates, Reading

LATER_NS = 10_000_000_000
LEAD, CHILD = (Reading("ses_1", memory, "a.txt") for memory in ("mem_lead", "mem_child"))


def settled() -> int:
    """A clock that is far behind every change of a test's files."""
    return time.time_ns() + LATER_NS


def look(states: FileStates, path: Path, who: Reading = LEAD) -> Content | None:
    fd = os.open(path, os.O_RDONLY)
    try:
        return states.content(who, fd)
    finally:
        os.close(fd)


@pytest.mark.spec("7.6")
@pytest.mark.seed("004", 144, 180)
def test_an_untouched_file_is_read_from_disk_once_by_a_whole_tree(tmp_path: Path) -> None:
    path, states = tmp_path / "a.txt", FileStates(clock=settled)
    path.write_bytes(b"content")

    for number in range(100):
        found = look(states, path, Reading("ses_1", f"mem_{number}", "a.txt"))
        assert found is not None
        assert found.data == b"content"
    assert states.disk_reads == 1
    look(states, path, Reading("ses_2", "mem", "a.txt"))  # another tree has not read it
    assert states.disk_reads == 2


@pytest.mark.spec("7.6")
def test_any_change_is_noticed_also_one_of_the_same_size_with_its_time_put_back(tmp_path: Path) -> None:
    path, states = tmp_path / "a.txt", FileStates(clock=settled)
    path.write_bytes(b"one")
    before = path.stat()
    look(states, path)

    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = look(states, path)
    assert found is not None
    assert found.data == b"two"
    path.unlink()
    path.write_bytes(b"six")  # the number of a file that is gone may come back
    found = look(states, path)
    assert found is not None
    assert found.data == b"six"


@pytest.mark.spec("7.6")
def test_a_file_that_was_changed_just_now_is_read_again_until_its_time_is_over(tmp_path: Path) -> None:
    path, states = tmp_path / "a.txt", FileStates(clock=lambda: now)
    path.write_bytes(b"one")
    changed = path.stat().st_ctime_ns
    coarse = changed % 1_000_000_000 == 0
    now = changed + 1_000_000
    look(states, path)
    look(states, path)
    assert states.disk_reads == 2
    now = changed + (LATER_NS if coarse else 50_000_000)
    look(states, path)
    look(states, path)
    assert states.disk_reads == 3


@pytest.mark.spec("7.6")
def test_what_an_agent_has_seen_itself_counts_before_what_its_tree_was_shown(tmp_path: Path) -> None:
    path, states = tmp_path / "a.txt", FileStates(clock=settled)
    path.write_bytes(b"one")
    assert states.expected(LEAD) is None
    first = look(states, path)
    assert first is not None
    assert states.expected(LEAD) is None  # looked at, but nobody was shown it
    states.saw(LEAD, first)
    assert states.expected(CHILD) == first.digest

    path.write_bytes(b"second")
    states.written(CHILD, b"second", FileState.of(path.stat()))
    assert states.expected(LEAD) == first.digest
    other = Reading("ses_1", "mem_other", "a.txt")
    assert states.data_of(states.expected(other) or b"") == b"second"
    assert states.expected(Reading("ses_2", "mem_lead", "a.txt")) is None


@pytest.mark.spec("7.6")
def test_contents_and_files_are_dropped_beyond_their_bounds_the_oldest_first(tmp_path: Path) -> None:
    states = FileStates(max_bytes=25, max_files=3, clock=settled)
    for number in range(5):
        path = tmp_path / f"{number}"
        path.write_bytes(bytes([65 + number]) * 10)
        who = Reading("ses_1", "mem", path.name)
        found = look(states, path, who)
        assert found is not None
        states.saw(who, found)

    known = [states.expected(Reading("ses_1", "mem", f"{number}")) for number in range(5)]
    assert [digest is not None for digest in known] == [False, False, True, True, True]
    kept = [digest is not None and states.data_of(digest) is not None for digest in known]
    assert kept == [False, False, False, True, True]
    assert look(FileStates(max_bytes=5), tmp_path / "4") is not None  # too large to keep is not too large to read


@pytest.mark.spec("7.6")
def test_a_file_that_is_too_large_or_takes_too_long_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_states, "MAX_FILE_BYTES", 10)
    path, states = tmp_path / "a.txt", FileStates()
    path.write_bytes(b"x" * 11)
    assert look(states, path) is None
    path.write_bytes(b"x" * 10)
    assert look(states, path) is not None
    with path.open("rb") as file:
        assert states.content(CHILD, file.fileno(), lambda: False) is None
