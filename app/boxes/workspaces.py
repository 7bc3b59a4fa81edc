"""Where workspaces lie, and the only way to them: beneath handles that are held from the start, through no link.

Whoever works in a workspace can put a link in the place of any directory in it, at any moment, so that a path of a
workspace is never opened by its name. Knows no sessions; a tenant is a name.
"""

import logging
import os
import re
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path

from app.agent.errors import Unavailable
from app.boxes.beneath import Opener, best_opener
from app.boxes.directory import NotThere, opened_by_name

log = logging.getLogger(__name__)

_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ABOVE = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_OWN, _PASSABLE = 0o700, 0o711
_UNSAFE = re.compile(r"^\.|[A-Z]|[^\w.@-]", re.ASCII)  # file systems may take a capital letter for a small one


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A directory by its handle, which the caller closes. `below`: it lies below a root and is no root itself."""

    handle: int
    below: bool


class Workspaces:
    """All workspaces of a service. `root` is the directory of the operator; a link there is followed once, now. Every
    tenant with a name has a root of its own beside it, made at its first use. Safe to use from several threads."""

    def __init__(self, root: Path, *, opener: Opener | None = None) -> None:
        """Hold `root`. Raises ValueError when it is no directory. `opener` None: the best one here."""
        self.root = root.resolve()
        try:
            self._handle = os.open(self.root, _LIST | os.O_NOFOLLOW)
        except OSError as error:
            raise ValueError(
                f"tools.workspace {root} is no directory that can be opened ({error.strerror}): make it, or name "
                "another with --workspace"
            ) from None
        weakref.finalize(self, os.close, self._handle)
        self._opener = opener or best_opener(self._handle)
        self._beside = self.root.parent / f"{self.root.name}.tenants"
        self._lock = threading.Lock()
        self._tenants: int | None = None

    def root_of(self, tenant: str | None) -> Path:
        """The directory below which the workspaces of a tenant lie; None: of the operator's own."""
        return self.root if tenant is None else self._beside / _file_name(tenant)

    def find(self, tenant: str | None, name: str) -> Path | None:
        """The workspace of that name, the root itself for an empty one; None when there is no directory of this name
        or a link leads there. The root of a tenant is made if need be. Raises `Unavailable` when it cannot be."""
        if "\0" in name or name.startswith("/"):
            return None
        if tenant is not None:
            self._make(tenant)
        root = self.root_of(tenant)
        path = root / name if name else root
        try:
            os.close(self.open(path).handle)
        except NotThere:
            return None
        return path

    def open(self, path: Path) -> Opened:
        """Open a directory by the path that `find` gave for it. Raises `NotThere`, also for what is no workspace."""
        try:
            top, names, below = self._way(path)
            handle = self._opener(top, os.fsencode("/".join(names) or "."), _LIST, follow=False)
        except (OSError, ValueError):
            raise NotThere("the workspace directory does not exist or cannot be opened on the server") from None
        return Opened(handle=handle, below=below)

    def _way(self, path: Path) -> tuple[int, tuple[str, ...], bool]:
        """The held handle that a path lies beneath, the names from there on, and whether that is below a root. Raises
        ValueError for a path that lies beneath none."""
        own = _names(path, self.root)
        names = _names(path, self._beside) if own is None else own
        if names is None:
            raise ValueError(path)
        below = len(names) - (1 if own is None else 0)  # the first name is that of a tenant
        if below < 0 or ".." in names:
            raise ValueError(path)
        return self._held_tenants() if own is None else self._handle, names, below > 0

    def _make(self, tenant: str) -> None:
        try:
            os.close(_made(self._held_tenants(), _file_name(tenant), os.fstat(self._handle)))
        except OSError as error:
            log.error("no directory for the workspaces of tenant %s: %s", tenant, error)
            raise Unavailable(
                "the server cannot make the directory for the workspaces of this tenant; its log says why",
                code="no_workspace_root",
            ) from None

    def _held_tenants(self) -> int:
        """The handle of the directory with the roots of tenants. Raises OSError."""
        with self._lock:
            if self._tenants is None:
                self._tenants = self._made_beside()
                weakref.finalize(self, os.close, self._tenants)
            return self._tenants

    def _made_beside(self) -> int:
        if not self.root.name:
            raise NotADirectoryError(f"nothing can lie beside {self.root}: give tools.workspace a directory of its own")
        root, above = os.fstat(self._handle), os.open("..", _ABOVE, dir_fd=self._handle)
        try:
            handle = _made(above, self._beside.name, root)
        except OSError as error:
            raise OSError(error.errno, f"{self._beside}: {error.strerror}") from None
        finally:
            os.close(above)
        owner = os.fstat(handle).st_uid
        if owner not in (0, os.geteuid(), root.st_uid):
            os.close(handle)
            raise PermissionError(f"{self._beside} belongs to user {owner}, who could change it: give it to the server")
        return handle


def opened_at(path: Path, workspaces: Workspaces | None) -> Opened:
    """Open a workspace; without `workspaces` by its name, which is safe only where nobody works. Raises `NotThere`."""
    return Opened(handle=opened_by_name(path), below=False) if workspaces is None else workspaces.open(path)


def _names(path: Path, root: Path) -> tuple[str, ...] | None:
    """What leads from `root` to a path, None where it does not lie beneath; by the texts, since it is
    done for every run and pathlib takes longer than opening the directory."""
    text, above = str(path), str(root)
    if text == above:
        return ()
    above = above if above.endswith("/") else f"{above}/"
    return tuple(text[len(above) :].split("/")) if text.startswith(above) else None


def _made(above: int, name: str, root: os.stat_result) -> int:
    """The handle of a directory in `above`, which is made, owned like the root, if there is none. Only its owner can
    enter it; where that is root, commands run as somebody else, who has to come through. Raises OSError."""
    is_root = os.geteuid() == 0
    try:
        os.mkdir(name, _OWN, dir_fd=above)
        new = True
    except FileExistsError:
        new = False
    handle = os.open(name, _LIST | os.O_NOFOLLOW, dir_fd=above)
    try:
        if new:
            os.fchmod(handle, _PASSABLE if is_root and root.st_uid == 0 else _OWN)
        if is_root and os.fstat(handle).st_uid == 0:
            os.fchown(handle, root.st_uid, root.st_gid)
    except BaseException:  # whatever it is: the handle is not left open
        os.close(handle)
        raise
    return handle


def _file_name(tenant: str) -> str:
    """A name of a directory that no other tenant has, whatever the file system makes of letters."""
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02x}", tenant)
