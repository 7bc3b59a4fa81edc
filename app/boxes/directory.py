"""A directory that paths from outside cannot leave: every access goes through one held handle.

Knows nothing of tools or models, but its errors are worded so that a model can read them.
"""

import errno
import fcntl
import os
import stat
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from app.boxes.beneath import Opener, best_opener

# Non-blocking: opening a FIFO that nobody writes to would wait for ever.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LOOK = os.O_CLOEXEC | getattr(os, "O_PATH", _READ)  # where there is O_PATH, also at what may not be read
_SHOWN_CHARS = 200


class Kind(StrEnum):
    """What a name in a directory stands for; `OTHER` is a FIFO, socket or device."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    OTHER = "special file"


class BoxError(Exception):
    """A path cannot be used. The message names the path as it was given and is safe to show to a model."""


class OutsideBox(BoxError):
    """The path leads outside, by itself or through a link."""


class NotThere(BoxError):
    """There is nothing of this name, or the text cannot be a name."""


class NotAFile(BoxError):
    """Something else than a regular file is there; `kind` says what."""

    def __init__(self, path: str, kind: Kind) -> None:
        super().__init__(f"{shown(path)} is a {kind.value}, not a regular file")
        self.kind = kind


class Unreadable(BoxError):
    """It is there but cannot be opened: no permission, or the system refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A name found in a directory. `path` is relative to where the listing or walk began; names that are not valid
    UTF-8 hold surrogate escapes. `kind` is that of the name itself: a link is a LINK, wherever it leads."""

    path: str
    name: str
    kind: Kind


class Directory:
    """A confined directory tree.

    Paths are text, relative to the root; an absolute one is accepted when it begins with the root's own path, empty
    means the root. Links are followed as long as they stay inside. Safe to use from several threads. The handle is
    closed when the last user lets go of the object, so a cache may drop it at any time.
    """

    def __init__(self, root: Path, *, handle: int | None = None, opener: Opener | None = None) -> None:
        """Hold `root`, by a `handle` that was opened for it and is now this object's, else by its name. Raises
        `NotThere` when it is no directory. `opener` None: the best one here."""
        self._fd = opened_by_name(root) if handle is None else handle
        weakref.finalize(self, os.close, self._fd)
        real = os.path.realpath(root) if handle is None else _path_of(handle)
        self._roots = tuple(dict.fromkeys((os.path.abspath(root), real)))
        self._opener = opener or best_opener(self._fd)

    def holds(self, handle: int) -> bool:
        """Whether a handle is of this very directory."""
        return os.path.samestat(os.fstat(handle), os.fstat(self._fd))

    def relative(self, path: str) -> str:
        """The path relative to the root, by text alone: `.` for the root itself. Raises `OutsideBox`, `NotThere`."""
        if "\0" in path:
            raise NotThere(f"{shown(path)} cannot be a path: it contains a NUL character")
        if not path.startswith("/"):
            return path.removeprefix("./").strip("/") or "."
        for root in self._roots:
            below = root.rstrip("/") + "/"
            if (path.rstrip("/") + "/").startswith(below):
                return path[len(below) :].strip("/") or "."
        raise OutsideBox(f"{shown(path)} is outside the workspace; give a path relative to the workspace")

    def place(self, path: str) -> str | None:
        """What a path really names, relative to the root, with every link on the way followed; what does not exist yet
        stays as it is. None when it leads outside or cannot be a path. Only for decisions: it may change any time."""
        try:  # by names, not by opening it: commands also follow a link inside that is an absolute path
            root = _path_of(self._fd)
            real = os.path.realpath(os.path.join(root, self.relative(path)))
        except (BoxError, OSError, ValueError):
            return None
        if real == root:
            return "."
        below = root.rstrip("/") + "/"
        return real[len(below) :] if real.startswith(below) else None

    def is_file(self, path: str) -> bool:
        """Whether a path leads to a regular file, links inside followed."""
        try:
            fd = self._open(path, _LOOK)
        except BoxError:
            return False
        try:
            return stat.S_ISREG(os.fstat(fd).st_mode)
        finally:
            os.close(fd)

    def place_of(self, fd: int) -> str | None:
        """What an open file or directory is, relative to the root; None when that cannot be told, for example of one
        that was removed. Unlike `place` it is about what is held, so that nobody can put something else there."""
        try:
            root, real = _path_of(self._fd), _path_of(fd)
            if not os.path.samestat(os.stat(real, follow_symlinks=False), os.fstat(fd)):
                return None
        except (OSError, ValueError):
            return None
        below = root.rstrip("/") + "/"
        if real.startswith(below):
            return real[len(below) :]
        return "." if real == root else None

    def open_file(self, path: str) -> int:
        """Open a regular file for reading and return its descriptor, which the caller closes.

        Raises `OutsideBox`, `NotThere`, `NotAFile`, `Unreadable`.
        """
        fd = self._open(path, _READ)
        kind = kind_of(os.fstat(fd).st_mode)
        if kind is not Kind.FILE:
            os.close(fd)
            raise NotAFile(path, kind)
        return fd

    def kind(self, path: str) -> Kind:
        """What a path leads to, links followed. Raises `OutsideBox`, `NotThere`, `Unreadable`."""
        try:
            fd = self._open(path, _READ)
        except NotAFile as found:
            return found.kind
        try:
            return kind_of(os.fstat(fd).st_mode)
        finally:
            os.close(fd)

    def open_directory(self, path: str, *, follow: bool = True) -> int:
        """Open a directory and return its descriptor, which the caller closes. Without `follow` no part of the path
        may be a link. Raises `OutsideBox`, `NotThere`, `Unreadable`."""
        return self._open(path, _LIST, follow=follow)

    def scandir(self, path: str = ".") -> list[Entry]:
        """The names in a directory, sorted. Raises `OutsideBox`, `NotThere`, `Unreadable`."""
        fd = self._open(path, _LIST)
        try:
            return _entries(fd, "", lambda: True)
        finally:
            os.close(fd)

    def walk(
        self,
        start: str = ".",
        *,
        descend: Callable[[str], bool] = lambda path: True,
        more: Callable[[], bool] = lambda: True,
        entered: Callable[[str | None], None] = lambda place: None,
    ) -> Iterator[Entry]:
        """Everything below `start`, each directory before its contents, names sorted; links are yielded, not followed.

        `descend(path)` is asked before a directory is opened; `more()` before each name is read, False ends the walk.
        `entered` is told first what `start` really is (`place_of`), and may raise.
        What vanishes or cannot be read below `start` is left out. Raises as `scandir` for `start` itself.
        """
        top = self._open(start, _LIST)
        try:
            entered(self.place_of(top))
            pending = _entries(top, "", more)[::-1]
            while pending:
                entry = pending.pop()
                yield entry
                if entry.kind is Kind.DIRECTORY and descend(entry.path):
                    pending.extend(reversed(self._below(top, entry.path, more)))
        finally:
            os.close(top)

    def _below(self, top: int, path: str, more: Callable[[], bool]) -> list[Entry]:
        try:
            fd = self._opener(top, os.fsencode(path), _LIST, follow=False)
            try:
                return _entries(fd, path + "/", more)
            finally:
                os.close(fd)
        except OSError:  # gone, forbidden, or replaced by a link since it was listed
            return []

    def _open(self, path: str, flags: int, *, follow: bool = True) -> int:
        relative = self.relative(path)
        try:
            return self._opener(self._fd, os.fsencode(relative), flags, follow=follow)
        except UnicodeEncodeError:
            raise NotThere(f"{shown(path)} cannot be a path: it is not valid Unicode") from None
        except OSError as error:
            raise problem_of(path, error) from None


def shown(path: str) -> str:
    """A path as messages quote it: one line, bounded, without control characters or lone surrogates."""
    text = path if len(path) <= _SHOWN_CHARS else path[: _SHOWN_CHARS - 1] + "…"
    return repr(text) if text.isprintable() else ascii(text)


def opened_by_name(root: Path) -> int:
    """A handle of a directory that nobody but the operator can put a link in the place of. Raises `NotThere`."""
    try:
        return os.open(root, _LIST)
    except OSError as error:
        raise NotThere("the workspace directory does not exist or cannot be opened on the server") from error


def _path_of(fd: int) -> str:
    """Where what is open lies now."""
    if sys.platform == "darwin":
        return os.fsdecode(fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return os.readlink(f"/proc/self/fd/{fd}")


def kind_of(mode: int) -> Kind:
    """The kind that a file mode says."""
    if stat.S_ISREG(mode):
        return Kind.FILE
    if stat.S_ISDIR(mode):
        return Kind.DIRECTORY
    return Kind.LINK if stat.S_ISLNK(mode) else Kind.OTHER


def _entries(fd: int, prefix: str, more: Callable[[], bool]) -> list[Entry]:
    found = []
    with os.scandir(fd) as names:
        for name in names:
            if not more():
                break
            found.append(Entry(path=prefix + name.name, name=name.name, kind=_entry_kind(name)))
    found.sort(key=lambda entry: entry.name)
    return found


def _entry_kind(entry: os.DirEntry[str]) -> Kind:
    try:
        if entry.is_symlink():
            return Kind.LINK
        if entry.is_dir(follow_symlinks=False):
            return Kind.DIRECTORY
        return Kind.FILE if entry.is_file(follow_symlinks=False) else Kind.OTHER
    except OSError:  # some file systems list names without their kind, and then the look at it can fail
        return Kind.OTHER


def problem_of(path: str, error: OSError) -> BoxError:
    """What the system answered about a path, in words for a model."""
    name = shown(path)
    match error.errno:
        case errno.EXDEV:
            return OutsideBox(f"{name} leads outside the workspace")
        case errno.ELOOP:
            return NotThere(f"{name} leads through too many links")
        case errno.ENOENT:
            return NotThere(f"{name} does not exist in the workspace")
        case errno.ENOTDIR:
            return NotThere(f"{name} does not exist in the workspace: a part before the last / is not a directory")
        case errno.ENAMETOOLONG:
            return NotThere(f"{name} does not exist in the workspace: the name is too long")
        case errno.ENXIO | errno.EOPNOTSUPP:  # a socket
            return NotAFile(path, Kind.OTHER)
        case errno.EACCES | errno.EPERM:
            return Unreadable(f"{name} may not be read by the server")
        case _:
            return Unreadable(f"{name} cannot be opened: {error.strerror}; try again or use another path")


class Directories:
    """Held directories by root path, the least recently used dropped beyond `limit`. Safe to use from threads. `opens`:
    how a root is opened, which is asked at every use; for workspaces, below what is held of them."""

    def __init__(self, opens: Callable[[Path], int] = opened_by_name, *, limit: int = 64) -> None:
        self._opens = opens
        self._limit = limit
        self._held: OrderedDict[Path, Directory] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, root: Path) -> Directory:
        """The directory of this root, another one when the path names another one by now. Raises `NotThere`."""
        with self._lock:
            handle, directory = self._opens(root), self._held.get(root)
            if directory is None or not directory.holds(handle):
                directory = self._held[root] = Directory(root, handle=handle)
            else:
                os.close(handle)
            self._held.move_to_end(root)
            if len(self._held) > self._limit:
                self._held.popitem(last=False)
            return directory
