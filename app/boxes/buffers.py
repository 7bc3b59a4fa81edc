"""What waits in the sockets and pipes of processes: memory of the kernel, which no process is said to hold.

Looks through copies of their handles, each for a moment. Knows no box.
"""

import array
import ctypes
import fcntl
import os
from collections.abc import Iterable, Iterator

_LARGEST = 1 << 20  # of a pipe; a socket has less
_PIDFD_GETFD = 438  # the same on every architecture
_TO_BE_READ, _NOT_YET_READ = 0x541B, 0x5411  # FIONREAD of a pipe; SIOCOUTQ, with what the kernel needs around it
_libc = ctypes.CDLL(None, use_errno=True)


def buffers_of(processes: Iterable[int], most: int) -> int:
    """Bytes that wait there. They are counted only when so many files are open that it may be more than `most`; 0
    otherwise, and for processes that may not be looked into. Handles that are themselves in a message are not found:
    the kernel allows as many of them as one process may have open."""
    numbers = list(processes)
    if sum(map(_open_files, numbers)) * _LARGEST <= most:
        return 0
    found: dict[str, int] = {}
    for number in numbers:
        found |= _waiting(number, found.keys())
    return sum(found.values())


def _open_files(number: int) -> int:
    try:  # the size is their number; 0 in kernels before 6.2
        return os.stat(f"/proc/{number}/fd").st_size or len(os.listdir(f"/proc/{number}/fd"))
    except OSError:  # it has ended, or may not be looked into
        return 0


def _waiting(number: int, known: Iterable[str]) -> dict[str, int]:
    """By the names that the kernel has for what processes share."""
    try:
        process = os.pidfd_open(number)
    except OSError:
        return {}
    try:
        wanted = {what: handle for handle, what in _shared(number) if what not in known}
        return {what: _bytes_in(process, handle, what) for what, handle in wanted.items()}
    finally:
        os.close(process)


def _shared(number: int) -> Iterator[tuple[int, str]]:
    try:
        names = os.listdir(f"/proc/{number}/fd")
    except OSError:
        return
    for name in names:
        try:
            what = os.readlink(f"/proc/{number}/fd/{name}")
        except OSError:  # closed meanwhile
            continue
        if what.startswith(("socket:", "pipe:")):
            yield int(name), what


def _bytes_in(process: int, handle: int, what: str) -> int:
    copy = int(_libc.syscall(_PIDFD_GETFD, process, handle, 0))
    if copy < 0:
        return 0
    count = array.array("i", [0])
    try:
        fcntl.ioctl(copy, _TO_BE_READ if what.startswith("pipe:") else _NOT_YET_READ, count)
    except OSError:  # a kind of socket that does not tell
        return 0
    finally:
        os.close(copy)
    return max(0, count[0])
