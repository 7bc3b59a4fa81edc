"""What the processes of a command take: memory, and room on a disk. Knows no box."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from app.boxes.buffers import buffers_of

_KB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Of a file system: bytes that ordinary users may still fill, and how many files it holds; 0 where it does not
    count them."""

    free: int
    files: int


def tree(top: int) -> Iterator[int]:
    """A process and all below it, as far as they are still connected."""
    pending = [top]
    while pending:
        number = pending.pop()
        yield number
        pending += children_of(number)


def children_of(number: int) -> list[int]:
    """The processes that any thread of a process has started; none when it has ended."""
    threads = _names(f"/proc/{number}/task")
    return [int(child) for thread in threads for child in _text(f"/proc/{number}/task/{thread}/children").split()]


def state_of(number: int) -> str:
    """The letter of proc(5) for what a process does; empty when it has ended."""
    return _text(f"/proc/{number}/stat").rpartition(")")[2].strip()[:1]


def memory_of(top: int, most: int) -> int:
    """Bytes of memory that a process and all below it hold for themselves, with the tables of their pages and what
    waits between them; counted exactly only where a quick count, which takes shared pages once for each process, is
    over `most`."""
    processes = list(tree(top))
    statuses = [_text(f"/proc/{number}/status") for number in processes]
    kernel = sum(_field(status, "VmPTE:") for status in statuses)
    kernel += buffers_of(processes, most)
    quick = sum(_field(status, "RssAnon:", "RssShmem:") for status in statuses)
    if quick + kernel <= most:
        return quick + kernel
    exact = sum(_field(_text(f"/proc/{number}/smaps_rollup"), "Pss_Anon:", "Pss_Shmem:") for number in processes)
    return (exact or quick) + kernel  # none may be read where the processes belong to somebody else


def tasks_of(user: int) -> int:
    """Threads of a user on the whole machine: the kernel counts a limit of processes over all of them."""
    return sum(_threads(_text(f"/proc/{name}/status"), str(user)) for name in _names("/proc") if name.isdigit())


def room_at(place: int | str) -> Room:
    """That of the file system of an open file or a path. Raises OSError."""
    found = os.statvfs(place)
    return Room(free=found.f_bavail * found.f_frsize, files=found.f_files - found.f_ffree)


def files_of(number: int, place: str) -> int:
    """How many files the file system at a path holds that a process sees there; 0 when it has ended."""
    try:
        return room_at(f"/proc/{number}/root{place}").files
    except OSError:
        return 0


def _threads(status: str, user: str) -> int:
    owner = count = ""
    for line in status.splitlines():
        if line.startswith("Uid:"):
            owner = line.split()[1]
        elif line.startswith("Threads:"):
            count = line.split()[1]
    return int(count) if owner == user else 0


def _field(text: str, *names: str) -> int:
    return sum(int(line.split()[1]) * _KB for line in text.splitlines() if line.startswith(names))


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:  # the process has ended
        return []


def _text(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""
