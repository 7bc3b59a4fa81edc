"""What the processes of a command take: memory, and room on a disk. Knows no box."""

import os
from collections.abc import Iterator

_KB = 1024


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
    """Bytes of memory that a process and all below it hold for themselves; counted exactly only where a quick count,
    which takes shared pages once for each process, is over `most`."""
    processes = list(tree(top))
    quick = sum(_field(_text(f"/proc/{number}/status"), "RssAnon:", "RssShmem:") for number in processes)
    if quick <= most:
        return quick
    exact = sum(_field(_text(f"/proc/{number}/smaps_rollup"), "Pss_Anon:", "Pss_Shmem:") for number in processes)
    return exact or quick  # none may be read where the processes belong to somebody else


def tasks_of(user: int) -> int:
    """Threads of a user on the whole machine: the kernel counts a limit of processes over all of them."""
    return sum(_threads(_text(f"/proc/{name}/status"), str(user)) for name in _names("/proc") if name.isdigit())


def free_bytes(place: int) -> int:
    """Room on the file system of an open file, for ordinary users."""
    found = os.fstatvfs(place)
    return found.f_bavail * found.f_frsize


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
