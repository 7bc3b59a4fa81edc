"""What a command must not read or change in its workspace, found by a bounded walk.

Knows neither rules (`Veil` has functions of paths) nor how a place is covered.
"""

import asyncio
import errno
import os
import stat
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from app.boxes.beneath import Opener, best_opener
from app.boxes.box import BoxRefused

MAX_ENTRIES = 200_000
WALK_S = 4.0
MAX_HIDDEN = 500  # the time to mount them grows with the square: 0.6 s at this number
MAX_HELD = 200  # handles of places that stay in sight
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
LOOK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV})  # or a link by now
_MAX_PATH = 2_000  # bytes; a longer one could not be covered
_STEP = 256  # entries between two looks at the clock
_ELSEWHERE = ("moved", "moved/" * 2 + "moved", "moved/" * 7 + "moved")  # where a directory could be moved to


@dataclass(frozen=True, slots=True, kw_only=True)
class Veil:
    """What a command must not read and not change, by the path in the workspace; None: nothing."""

    conceals: Callable[[str], bool] | None = None
    protects: Callable[[str], bool] | None = None

    def __bool__(self) -> bool:
        return self.conceals is not None or self.protects is not None


class Kind(StrEnum):
    """How a place is covered: nothing of it can be seen; it can only be read; it can only not be moved away."""

    HIDDEN = "hidden"
    LOCKED = "locked"
    PINNED = "pinned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """One place of the workspace, by its path, and the file or directory that was found there."""

    path: str
    kind: Kind
    directory: bool
    device: int
    inode: int


class Handle:
    """A handle of its own for what another one holds, closed with this object: a thread may outlive whoever waits."""

    def __init__(self, other: int) -> None:
        self.number = os.dup(other)
        weakref.finalize(self, os.close, self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What is to be covered in a workspace, outer places first, and how its directories were when they were read."""

    covers: tuple[Cover, ...]
    veil: Veil
    user: int | None
    directories: Mapping[str, tuple[int, int, int]]

    @property
    def hidden(self) -> tuple[str, ...]:
        """The paths of what is hidden."""
        return tuple(cover.path for cover in self.covers if cover.kind is Kind.HIDDEN)

    def check(self, top: int) -> None:
        """Raises `BoxRefused` when, below a handle of the workspace, something has moved that has to be hidden. Where a
        directory has changed since it was read, everything is looked for again."""
        opener = best_opener(top)
        for cover in self.covers:
            found = looked_at(opener, top, cover.path)
            if (found.st_dev, found.st_ino) != (cover.device, cover.inode):
                raise moved(cover.path)
        if all(_state_at(top, path) == state for path, state in self.directories.items()):
            return
        known = set(self.covers)
        for cover in _surveyed(top, self.veil, self.user).covers:
            if cover.kind is Kind.HIDDEN and cover not in known:
                raise moved(cover.path)


async def survey(workspace: int, veil: Veil, user: int | None) -> Survey:
    """Find what is to be covered in a workspace (a handle). `user`: as whom the command runs, if that is not the server
    itself. Raises `BoxRefused` where that is too much to be found or covered."""
    return await asyncio.to_thread(lambda held: _surveyed(held.number, veil, user), Handle(workspace))


def _surveyed(top: int, veil: Veil, user: int | None) -> Survey:
    search = _Search(top, veil, user)
    try:
        return Survey(covers=search.covers(), veil=veil, user=user, directories=search.directories)
    except OSError as error:
        why = f"its workspace cannot be searched for what it may not read ({error.strerror})"
        raise BoxRefused(f"the command was not run: {why}; try again") from None


def _state(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _state_at(top: int, path: str) -> tuple[int, int, int] | None:
    try:
        return _state(os.stat(path, dir_fd=top, follow_symlinks=False))
    except OSError:
        return None


@dataclass(slots=True)
class _Found:
    """What a walk has come across. `linked`: files that are hidden and have further names. `plain`: files in sight with
    their numbers, among which these may be."""

    hidden: dict[str, os.stat_result] = field(default_factory=dict)
    locked: dict[str, os.stat_result] = field(default_factory=dict)
    linked: set[tuple[int, int]] = field(default_factory=set)
    plain: list[tuple[int, str]] = field(default_factory=list)


class _Search:
    """One walk. Links are not followed: what they lead to has a path of its own."""

    def __init__(self, top: int, veil: Veil, user: int | None) -> None:
        self._top, self._veil = top, veil
        self._user, self._dropped = os.geteuid() if user is None else user, user is not None
        self._open: Opener = best_opener(top)
        self._found = _Found()
        self.directories: dict[str, tuple[int, int, int]] = {}
        self._left = MAX_ENTRIES
        self._until = time.monotonic() + WALK_S

    def covers(self) -> tuple[Cover, ...]:
        pending = [(".", False, False)]  # a directory, whether it is hidden, whether it is locked
        while pending:
            pending += self._below(*pending.pop())
        self._add_other_names()
        found = self._found
        if len(found.hidden) > MAX_HIDDEN:
            raise BoxRefused(_too_much(f"there are more than {MAX_HIDDEN:,} places that it may not read"))
        if len(found.locked) > MAX_HELD:
            found.locked.clear()
        held = _pins(found, self._veil)
        if len(held) > MAX_HELD:
            raise BoxRefused(_too_much(f"what it may not read lies in more than {MAX_HELD} directories"))
        every = [*_covers(found.hidden, Kind.HIDDEN), *_covers(found.locked, Kind.LOCKED)]
        every += [self._pin(path, kind) for path, kind in held.items()]
        return tuple(sorted(every, key=lambda cover: cover.path.count("/")))

    def _below(self, path: str, hidden: bool, locked: bool) -> list[tuple[str, bool, bool]]:
        """Look at what lies in a directory; the directories in it that are to be looked at as well."""
        name = os.fsencode(path)
        try:
            if len(name) > _MAX_PATH:
                raise PermissionError(path)
            here = self._open(self._top, name, _LIST, follow=False)
        except PermissionError:  # nobody can say what lies there, and a known name may be enough to read it
            return self._unseen(path, hidden)
        except OSError as error:
            if error.errno in _GONE:
                return []
            raise
        further = []
        try:
            directory = os.fstat(here)
            self.directories[path] = _state(directory)
            if directory.st_uid != self._user and self._dropped and not directory.st_mode & 0o011:
                return []  # the command cannot come through; of lists of rights the group's bits are the widest
            if directory.st_uid == self._user and not directory.st_mode & 0o100:
                return self._unseen(path, hidden)  # nothing can be covered there, but it could be opened again
            prefix = "" if path == "." else f"{path}/"
            for entry in self._entries(here):
                found = self._met(here, entry, prefix + entry.name, hidden, locked)
                further += [] if found is None else [found]
        finally:
            os.close(here)
        return further

    def _entries(self, here: int) -> Iterator[os.DirEntry[str]]:
        with os.scandir(here) as entries:
            for entry in entries:
                self._left -= 1
                if self._left < 0 or (self._left % _STEP == 0 and time.monotonic() > self._until):
                    raise BoxRefused(
                        _too_much(f"the workspace has more than {MAX_ENTRIES:,} entries, or takes over {WALK_S:.0f} s")
                    )
                yield entry

    def _met(
        self, here: int, entry: os.DirEntry[str], path: str, hidden: bool, locked: bool
    ) -> tuple[str, bool, bool] | None:
        """Note what an entry is; a directory that is to be looked at."""
        try:
            if entry.is_symlink():
                return None
            directory = entry.is_dir(follow_symlinks=False)
            veil, concealed = self._veil, hidden
            if not hidden and veil.conceals is not None and veil.conceals(path):
                concealed = True
            if concealed:
                found = os.stat(entry.name, dir_fd=here, follow_symlinks=False)
                self._hide(path, found, covered=hidden)
            elif not locked and veil.protects is not None and veil.protects(path):
                self._found.locked[path] = os.stat(entry.name, dir_fd=here, follow_symlinks=False)
                locked = True
        except FileNotFoundError:  # gone since it was listed
            return None
        if directory:
            return path, concealed, locked
        if not concealed:
            self._found.plain.append((entry.inode(), path))
        return None

    def _unseen(self, path: str, hidden: bool) -> list[tuple[str, bool, bool]]:
        """Hide a directory that cannot be looked into."""
        if not hidden and path != ".":
            self._hide(path, self._look(path))
        return []

    def _hide(self, path: str, found: os.stat_result, *, covered: bool = False) -> None:
        if not covered:
            self._found.hidden[path] = found
        if not stat.S_ISDIR(found.st_mode) and found.st_nlink > 1:
            self._found.linked.add((found.st_dev, found.st_ino))

    def _add_other_names(self) -> None:
        """Other names of a hidden file are hidden as well."""
        numbers = {inode for _, inode in self._found.linked}
        for inode, path in self._found.plain if numbers else ():
            if inode in numbers:
                found = self._look(path)
                if (found.st_dev, found.st_ino) in self._found.linked:
                    self._found.hidden[path] = found

    def _look(self, path: str) -> os.stat_result:
        return looked_at(self._open, self._top, path)

    def _pin(self, path: str, kind: Kind) -> Cover:
        return _cover(path, kind, self._look(path))


def _pins(found: _Found, veil: Veil) -> dict[str, Kind]:
    """The directories that may not be moved: what lies in them would be what nobody has a rule about. Names that mean
    the same wherever they lie need none."""
    pins: dict[str, Kind] = {}
    for paths, means in ((found.hidden, veil.conceals), (found.locked, veil.protects)):
        for path in paths:
            above, _, name = path.rpartition("/")
            if not above or (means is not None and all(means(f"{place}/{name}") for place in ("x", *_ELSEWHERE))):
                continue
            names = above.split("/")
            for at in range(1, len(names) + 1):
                pins["/".join(names[:at])] = Kind.PINNED
    for path in pins.keys() & found.locked.keys():
        del pins[path]
    for path in pins:
        if any(path.startswith(f"{outer}/") for outer in found.locked):
            pins[path] = Kind.LOCKED
    return pins


def _covers(places: dict[str, os.stat_result], kind: Kind) -> list[Cover]:
    return [_cover(path, kind, found) for path, found in places.items()]


def _cover(path: str, kind: Kind, found: os.stat_result) -> Cover:
    directory = stat.S_ISDIR(found.st_mode)
    return Cover(path=path, kind=kind, directory=directory, device=found.st_dev, inode=found.st_ino)


def _too_much(why: str) -> str:
    return (
        f"the command was not run: {why}, so that this cannot be hidden from it; use read_file, glob and grep, or ask "
        "for fewer rules about reading"
    )


def moved(path: str) -> BoxRefused:
    """What is said when something else lies at a place than was found there."""
    return BoxRefused(f"the command was not run: {path!r} was moved while it was being covered; try again")


def looked_at(opener: Opener, top: int, path: str) -> os.stat_result:
    """What lies at a path now. Raises `BoxRefused` when it is not there any more."""
    try:
        handle = opener(top, os.fsencode(path), LOOK, follow=False)
    except OSError:
        raise moved(path) from None
    try:
        return os.fstat(handle)
    finally:
        os.close(handle)
