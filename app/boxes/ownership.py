"""As whom commands run, and whose the files of a workspace are, so that the server and commands can both write them.

Matters only for a server that runs as root. Knows no box.
"""

import errno
import os
import stat
from dataclasses import dataclass

_DEEPEST = 128  # a handle is held for each on the way
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A user and group by number. `dropped`: it is not the server's own. `writes`: the workspace is its own."""

    user: int
    group: int
    dropped: bool
    writes: bool = True


def identity_for(workspace: int, spare: int, *, may_hand_over: bool) -> Identity:
    """As whom commands run in a workspace (a handle). A server that is no root has only itself to offer. Root takes the
    owner of the workspace; if that is root too, the user `spare`, who is given the workspace if that is allowed. All of
    it is judged and given by this handle alone."""
    if os.geteuid() != 0:
        return Identity(user=os.geteuid(), group=os.getegid(), dropped=False)
    owner = os.fstat(workspace)
    if owner.st_uid != 0:
        return Identity(user=owner.st_uid, group=owner.st_gid or owner.st_uid, dropped=True)
    if may_hand_over:
        _hand_over(workspace, spare)
    return Identity(user=spare, group=spare, dropped=True, writes=may_hand_over)


def adopt(file: int, directory: int) -> None:
    """Give a new file of the server to the owner of the directory that it is made in, when the server is root: a
    command that runs as this owner can then change it. Nothing happens otherwise."""
    if os.geteuid() == 0:
        owner = os.fstat(directory)
        os.fchown(file, owner.st_uid, owner.st_gid)


def _hand_over(directory: int, user: int) -> None:
    """What belongs to root is given away, the directory itself last and only when all the rest was: until then this
    begins anew the next time. Links are not followed, and files with a second name elsewhere are left: that may lie
    outside. Raises OSError."""
    _give_all(directory, user, 1)
    os.fchown(directory, user, user)


def _give_all(directory: int, user: int, depth: int) -> None:
    for name in _given(directory, user):
        if depth == _DEEPEST:
            raise OSError(errno.ENAMETOOLONG, f"its directories are more than {_DEEPEST} deep")
        below = _opened(directory, name)
        if below is None:
            continue
        try:
            if os.fstat(below).st_dev == os.fstat(directory).st_dev:
                _give_all(below, user, depth + 1)
        finally:
            os.close(below)


def _given(handle: int, user: int) -> list[str]:
    """Give away what lies in a directory; the names of the directories in it."""
    below: list[str] = []
    device = os.fstat(handle).st_dev
    for name in os.listdir(handle):
        try:
            found = os.stat(name, dir_fd=handle, follow_symlinks=False)
            second_name = stat.S_ISREG(found.st_mode) and found.st_nlink > 1
            if found.st_uid == 0 and found.st_dev == device and not second_name:
                os.chown(name, user, user, dir_fd=handle, follow_symlinks=False)
        except FileNotFoundError:  # gone since it was listed
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_dev == device:
            below.append(name)
    return below


def _opened(above: int, name: str) -> int | None:
    try:
        return os.open(name, _DIRECTORY, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # gone or changed since it was listed
            return None
        raise
