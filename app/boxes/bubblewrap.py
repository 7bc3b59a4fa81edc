"""The box of level `full`: bubblewrap, after a real change of user when the server is root.

Knows what its command line must be, not how it is run.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.boxes.box import Limits
from app.boxes.ownership import Identity
from app.boxes.places import CONFIGURATION, SHELL, SYSTEM

_HOME = "/tmp"  # noqa: S108  the box's own, empty and bounded
_SHARED = "/dev/shm"  # noqa: S108  the same
_SEALED = ("/dev", "/")  # made of memory without a bound, and writable as long as the box is built; not what is on them
_KB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What differs from call to call: numbers of open files, the place of the workspace, as whom. `process_tree`: with
    a /proc of its own, which some containers do not allow. `more`: further arguments about the workspace, in a file of
    which this is the number; the command then waits at `gate` until somebody has looked at what came of them."""

    command: str
    workspace: int
    path: str
    identity: Identity
    filter: int
    status: int
    ready: int
    process_tree: bool
    more: int | None = None
    gate: int | None = None


def missing() -> str | None:
    """Why it cannot be used here; None when its programs are there."""
    needed = ["bwrap", *(["setpriv"] if os.geteuid() == 0 else [])]
    gone = [name for name in needed if shutil.which(name) is None]
    if gone:
        return f"{' and '.join(gone)} not found on the PATH: install bubblewrap and util-linux"
    return None if os.access(SHELL, os.X_OK) else f"there is no {SHELL}"


def home() -> str:
    """The home and temporary directory in the box."""
    return _HOME


def in_memory() -> tuple[str, ...]:
    """The directories of the box whose files are memory: their bytes are bounded, their number is to be watched."""
    return (_HOME, _SHARED)


def command_line(inside: Inside, limits: Limits, environment: Mapping[str, str], extra: Sequence[Path]) -> list[str]:
    """What to run, in an environment that holds nothing but what the operator named: that may be secret, and a command
    line can be read by all users of the machine. `environment` is what is put to it.

    All programs are named by their full path; nothing is looked for in the workspace.
    """
    return [
        *_as_whom(inside.identity),
        *_program("bwrap"),
        *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"),
        *("--unshare-cgroup-try", "--disable-userns", "--die-with-parent", "--new-session"),
        *("--cap-drop", "ALL", "--hostname", "box"),
        *_system(),
        *(("--proc", "/proc") if inside.process_tree else ("--perms", "0555", "--tmpfs", "/proc")),
        *("--dev", "/dev", "--perms", "0700", "--size", str(limits.temporary_bytes), "--tmpfs", _HOME),
        *("--perms", "0700", "--size", str(limits.temporary_bytes), "--tmpfs", _SHARED),
        *(word for place in extra for word in ("--ro-bind-try", str(place), str(place))),
        *("--bind-fd", str(inside.workspace), inside.path, "--chdir", inside.path),
        *(() if inside.more is None else ("--args", str(inside.more))),
        *(word for place in _SEALED for word in ("--remount-ro", place)),
        *(() if inside.process_tree else ("--remount-ro", "/proc")),
        *(word for name, value in environment.items() for word in ("--setenv", name, value)),
        *("--seccomp", str(inside.filter), "--json-status-fd", str(inside.status)),
        *("--", SHELL, "--noprofile", "--norc", "-c", _begin(inside, limits), "run", inside.command),
    ]


def _as_whom(identity: Identity) -> list[str]:
    """Not bubblewrap's own --uid: a process that was only given another number inside is still the server's user for
    every file outside."""
    if not identity.dropped:
        return []
    return [
        *_program("setpriv"),
        *("--reuid", str(identity.user), "--regid", str(identity.group), "--clear-groups"),
        *("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"),
    ]


def _program(name: str) -> list[str]:
    return [shutil.which(name) or name]


def _system() -> Iterator[str]:
    for place in SYSTEM:
        if place.is_symlink():
            yield from ("--symlink", os.readlink(place), str(place))
        elif place.is_dir():
            yield from ("--ro-bind", str(place), str(place))
    for place in CONFIGURATION:
        yield from ("--ro-bind-try", str(place), str(place))


def _begin(inside: Inside, limits: Limits) -> str:
    """What the shell does before the command, which is handed over as an argument and never becomes part of this. The
    limits are set here, inside: the kernel then counts the processes of this box alone."""
    most = f"-u {limits.processes} -f {limits.file_bytes // _KB} -d {limits.memory_bytes // _KB} -n {limits.open_files}"
    ready, gate = inside.ready, inside.gate
    wait = "" if gate is None else f"read -r -n 1 -u {gate} _ || exit 126; exec {gate}<&-; "
    return (
        f"ulimit -c 0 {most} || exit 126; printf + >&{ready} || exit 126; exec {ready}>&-; {wait}"
        f'exec {SHELL} --noprofile --norc -c "$1"'
    )
