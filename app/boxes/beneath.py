"""Opens a path beneath a held directory, so that no link, no `..` and no rename on the way can lead outside.

Two ways with one contract: the kernel's `openat2`, and a walk in user space for systems without it. Both work on
handles, never on resolved text, which is true only until somebody renames a directory. Knows nothing of workspaces.
"""

import ctypes
import errno
import os
import sys
from collections import deque
from typing import Protocol

_SYS_OPENAT2 = 437  # the same on every Linux architecture but alpha
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08

_RACE_TRIES = 16  # openat2 answers EAGAIN when a directory was renamed while it looked at `..`
_MAX_LINKS = 40  # the kernel's own limit
_MAX_HELD = 128  # the walk holds one handle for each directory on the way

_STEP = os.O_DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY)


class Opener(Protocol):
    """Opens `path` (bytes, relative) beneath the directory handle `root`."""

    def __call__(self, root: int, path: bytes, flags: int, *, follow: bool = True) -> int:
        """A new, not inheritable file descriptor. `flags` are those of `os.open`, without O_PATH and O_NOFOLLOW.

        Links that stay beneath `root` are followed if `follow`. Raises OSError: EXDEV when the path leads outside,
        ELOOP for too many links or any link without `follow`, otherwise what `os.open` raises.
        """


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


_libc = ctypes.CDLL(None, use_errno=True)


def open_by_kernel(root: int, path: bytes, flags: int, *, follow: bool = True) -> int:
    """`Opener` by openat2 (Linux 5.6 and later, where a system call filter lets it pass)."""
    if b"\0" in path:  # ctypes would cut the path there
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    resolve = _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS | (0 if follow else _RESOLVE_NO_SYMLINKS)
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
    problem = errno.EAGAIN
    for _ in range(_RACE_TRIES):
        fd = _libc.syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(root),
            ctypes.c_char_p(path),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if fd >= 0:
            return int(fd)
        problem = ctypes.get_errno()
        if problem not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(problem, os.strerror(problem))


def open_by_walk(root: int, path: bytes, flags: int, *, follow: bool = True) -> int:
    """`Opener` that goes from directory to directory without letting the system follow a link.

    Links are read and their parts walked in turn; `..` goes back to the handle that led here, never to what the
    system calls the parent now.
    """
    if path.startswith(b"/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    names = deque(path.split(b"/"))
    held: list[int] = []
    links = 0
    try:
        while names:
            name = names.popleft()
            if name in (b"", b"."):
                continue
            if name == b"..":
                _go_back(held)
                continue
            here = held[-1] if held else root
            try:
                fd = os.open(name, (_STEP if names else flags) | os.O_NOFOLLOW, dir_fd=here)
            except OSError as error:
                target = _target_of_link(name, here, error)
                links += 1
                if not follow or links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
                names.extendleft(reversed(target.split(b"/")))
                continue
            if not names:
                return fd
            held.append(fd)
            if len(held) > _MAX_HELD:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        return os.open(b".", flags, dir_fd=held[-1] if held else root)
    finally:
        for fd in held:
            os.close(fd)


def _go_back(held: list[int]) -> None:
    if not held:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    os.close(held.pop())


def _target_of_link(name: bytes, here: int, error: OSError) -> bytes:
    """Where the link leads that could not be opened; raises `error` itself when the name is no link."""
    # O_NOFOLLOW on a link: ELOOP, with O_DIRECTORY ENOTDIR, on some BSDs EMLINK.
    if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
        raise error
    try:
        target = os.readlink(name, dir_fd=here)
    except OSError:
        raise error from None
    if target.startswith(b"/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    return target


def best_opener(root: int) -> Opener:
    """The kernel's way where it works beneath this very handle, otherwise the walk; both are equally safe."""
    if not sys.platform.startswith("linux"):
        return open_by_walk
    try:
        os.close(open_by_kernel(root, b".", os.O_RDONLY | os.O_DIRECTORY))
    except OSError:  # ENOSYS from old kernels, EPERM from system call filters
        return open_by_walk
    return open_by_kernel
