"""Files of a confined directory, made or replaced as a whole: a temporary file beside them, then a rename.

Every step is relative to a held handle of the directory that the name lies in, and no link is followed on the way
there. Knows nothing of texts or tools.
"""

import ctypes
import errno
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from app.boxes.directory import BoxError, Directory, Kind, NotAFile, NotThere, OutsideBox, kind_of, problem_of, shown
from app.boxes.ownership import adopt

MAX_DEPTH = 64  # of new directories: nobody clears away a thousand, one in the other
_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o755
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BELOW = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOREPLACE = 1  # of renameat2(2)
_libc = ctypes.CDLL(None, use_errno=True)

# One writer at a time for each file, whichever session it works for. A few locks for all files: a writer takes one.
_LOCKS = tuple(threading.Lock() for _ in range(64))


class NotWritable(BoxError):
    """It may not be replaced: other names of it may lie outside, or it is read-only, or the system refused."""


class Changed(BoxError):
    """Something else is there than was expected."""


class Refused(BoxError):
    """Whoever asked may not write there."""


Refuses = Callable[[str | None], str | None] | None  # why a place, None: an unknown one, may not be written; or None


@dataclass(frozen=True, slots=True)
class FileState:
    """What tells a file that was not touched from one that was: any write changes one of these, but for two within
    one tick of the clock."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> "FileState":
        """The state that a look at a file gave."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class Slot:
    """A name in a held directory: what is there, and how it is replaced. Nobody else replaces it meanwhile."""

    def __init__(self, path: str, parent: int, name: str, place: str) -> None:
        self.path = path  # as it was given
        self.place = place  # relative to the root of the workspace, of the directory that is held
        self._parent = parent
        self._name = name

    def state(self) -> FileState | None:
        """Of the file that is there; None: nothing is. Raises `NotAFile`, `NotWritable`, `BoxError`."""
        found = self._found()
        return None if found is None else FileState.of(found)

    def open(self) -> int:
        """Open the file that is there for reading; the caller closes it."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
        try:
            return os.open(self._name, flags, dir_fd=self._parent)
        except OSError as error:
            raise problem_of(self.path, error) from None

    def replace(
        self, data: bytes, expected: FileState | None, *, wanted: Callable[[], bool] = lambda: True
    ) -> FileState:
        """Put a file with `data` there; its new state. `expected` is what must be there now, None: nothing.

        A reader sees the old file or the new one, never half of it, after a power failure too. A file keeps its mode
        and owner. `wanted` is asked last. Raises `Changed`, `NotAFile`, `NotWritable`.
        """
        temporary: str | None = f".subagentd-{secrets.token_hex(8)}.tmp"
        try:
            fd = os.open(temporary or "", _NEW, 0o600, dir_fd=self._parent)
        except OSError as error:
            raise _unwritable(self.path, error) from None
        try:
            self._fill(fd, data)
            self._expect(expected)
            if not wanted():
                raise Changed(f"{shown(self.path)} was not written: nobody wants it any more")
            self._rename(temporary or "", new=expected is None)
            temporary = None
            return FileState.of(os.fstat(fd))
        except OSError as error:
            raise _unwritable(self.path, error) from None
        finally:
            os.close(fd)
            if temporary is not None:
                with suppress(OSError):  # its directory may be gone
                    os.unlink(temporary, dir_fd=self._parent)

    def _fill(self, fd: int, data: bytes) -> None:
        found = self._found()
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        adopt(fd, self._parent)
        if found is not None and os.geteuid() == 0:
            os.fchown(fd, found.st_uid, found.st_gid)
        os.fchmod(fd, _FILE_MODE if found is None else stat.S_IMODE(found.st_mode) & 0o777)
        os.fsync(fd)  # else a power failure could leave an empty file under the name

    def _expect(self, expected: FileState | None) -> None:
        state = self.state()
        if state == expected:
            return
        if expected is None:
            raise Changed(f"{shown(self.path)} exists by now; read it, then decide")
        raise Changed(f"{shown(self.path)} was changed or removed while it was being written; read it again")

    def _found(self) -> os.stat_result | None:
        try:
            found = os.stat(self._name, dir_fd=self._parent, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise problem_of(self.path, error) from None
        kind = kind_of(found.st_mode)
        if kind is not Kind.FILE:
            raise NotAFile(self.path, kind)
        name = shown(self.path)
        if found.st_nlink > 1:
            raise NotWritable(
                f"{name} has {found.st_nlink} names (hard links), and others of them may lie outside the workspace: "
                "it is not written; make a file of another name"
            )
        if not found.st_mode & 0o200:
            raise NotWritable(f"{name} is read-only (mode {stat.S_IMODE(found.st_mode):04o})")
        return found

    def _rename(self, temporary: str, *, new: bool) -> None:
        if new and _renamed_to_new(self._parent, temporary, self._name, self.path):
            return
        os.rename(temporary, self._name, src_dir_fd=self._parent, dst_dir_fd=self._parent)


@contextmanager
def slot(directory: Directory, path: str, *, make_parents: bool = False, refuses: Refuses = None) -> Iterator[Slot]:
    """The slot that a path names, links inside followed. With `make_parents` missing directories are made. `refuses` is
    asked about the place in the directory that is held, before anything is looked at or made there.

    Raises `OutsideBox`, `NotThere`, `NotAFile`, `Unreadable`, `NotWritable`, `Changed`, `Refused`.
    """
    if path.endswith("/"):
        raise NotThere(f"{shown(path)} names a directory; give the path of a file")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise NotThere(f"{shown(path)} cannot be a path: it is not valid Unicode") from None
    target, existing = _target(directory, path)
    above, _, name = target.rpartition("/")
    if name in ("", ".", ".."):
        raise NotAFile(path, Kind.DIRECTORY)
    asked = _Asked(directory, path, refuses)
    parent = _parent(asked, above or ".", name, follow=existing is None, make=make_parents)
    try:
        made = Slot(path, parent, name, asked.allowed(parent, name))
        key = os.fstat(parent)
        with _LOCKS[hash((key.st_dev, key.st_ino, name)) % len(_LOCKS)]:
            state = made.state()
            same = existing is None or (state is not None and (state.device, state.inode) == existing)
            # another writer that held the lock has replaced it, which is no fault of the path
            if not (same or _leads_to(directory, path, state)):
                raise Changed(f"{shown(path)} was moved while it was being looked at; try again")
            yield made
    finally:
        os.close(parent)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A path that somebody wants to write."""

    directory: Directory
    path: str
    refuses: Refuses

    def allowed(self, above: int, below: str) -> str:
        """The place of something below a held directory. A link on the way may lead elsewhere than when the call was
        judged, what is held does not. Raises `Refused`, `Changed`."""
        held = self.directory.place_of(above)
        place = None if held is None else below if held == "." else f"{held}/{below}"
        why = None if self.refuses is None else self.refuses(place)
        if why is not None:
            raise Refused(f"Permission denied: {shown(self.path)} leads to what may not be written: {why}")
        if place is None:
            name = shown(self.path)
            raise Changed(f"{name} was not written: its directory was moved or removed meanwhile; try again")
        return place


def _leads_to(directory: Directory, path: str, state: FileState | None) -> bool:
    """Whether a path leads to the file of a state; None: to nothing."""
    try:
        fd = directory.open_file(path)
    except NotThere:
        return state is None
    try:
        found = FileState.of(os.fstat(fd))
    finally:
        os.close(fd)
    return state is not None and (found.device, found.inode) == (state.device, state.inode)


def _target(directory: Directory, path: str) -> tuple[str, tuple[int, int] | None]:
    """Where the path leads, and which file is there, None for none."""
    try:
        fd = directory.open_file(path)
    except NotThere:
        return directory.relative(path), None
    try:
        found = os.fstat(fd)
    finally:
        os.close(fd)
    place = directory.place(path)
    if place is None:
        raise OutsideBox(f"{shown(path)} leads outside the workspace")
    return place, (found.st_dev, found.st_ino)


def _parent(asked: _Asked, path: str, name: str, *, follow: bool, make: bool) -> int:
    directory = asked.directory
    try:
        return directory.open_directory(path, follow=follow)
    except NotThere:
        if not make or not follow:
            raise
    names = [part for part in path.split("/") if part not in ("", ".")]
    if len(names) > MAX_DEPTH or ".." in names:
        raise NotThere(
            f"{shown(path)} does not exist in the workspace and is not made: it holds '..' or more than {MAX_DEPTH} "
            "directories"
        )
    here = directory.open_directory(".")
    for at in range(len(names)):
        try:
            below = _made(asked, here, names[: at + 1], "/".join((*names[at:], name)))
        finally:
            os.close(here)
        here = below
    return here


def _made(asked: _Asked, above: int, names: list[str], below: str) -> int:
    """The handle of the directory `names`, which is made in `above` if there is nothing; `below`: its own name and all
    that is to come in it."""
    directory, path = asked.directory, "/".join(names)
    try:
        return directory.open_directory(path)
    except NotThere:
        pass
    asked.allowed(above, below)
    try:
        os.mkdir(names[-1], _DIRECTORY_MODE, dir_fd=above)
        fd = os.open(names[-1], _BELOW, dir_fd=above)
    except FileExistsError:
        return directory.open_directory(path)  # made by somebody else just now, or no directory: that is said
    except OSError as error:
        raise _unwritable(path, error) from None
    adopt(fd, above)
    return fd


def _renamed_to_new(parent: int, temporary: str, name: str, path: str) -> bool:
    """Rename to a name that must be free; False where the system has no way to do that in one step."""
    call = getattr(_libc, "renameat2", None)
    if call is None:
        return False
    if call(parent, os.fsencode(temporary), parent, os.fsencode(name), ctypes.c_uint(_NOREPLACE)) == 0:
        return True
    problem = ctypes.get_errno()
    if problem == errno.EEXIST:
        raise Changed(f"{shown(path)} exists by now; read it, then decide")
    if problem in (errno.ENOSYS, errno.EINVAL, errno.EPERM):
        return False
    raise OSError(problem, os.strerror(problem))


def _unwritable(path: str, error: OSError) -> BoxError:
    name = shown(path)
    match error.errno:
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return NotWritable(f"{name} may not be written by the server")
        case errno.ENOSPC | errno.EDQUOT:
            return NotWritable(f"{name} was not written: the disk is full")
        case errno.ENOENT:
            return Changed(f"{name} was not written: its directory was removed meanwhile; try again")
        case _:
            return problem_of(path, error)
