"""Files below a directory that an operator named: found, bounded, and read without leaving it.

Knows nothing of what stands in them. Everything blocks on the disk and belongs into a thread.
"""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from app.definitions.markdown import MAX_FILE_BYTES, Problem, Severity

MAX_FILES = 5_000  # in one directory with all its folders
Wanted = Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file that was read; `shown` is its path in messages, `id` its path in the directory without the suffix."""

    shown: str
    id: str
    data: bytes


def problem(path: str, message: str, severity: Severity = Severity.ERROR, key: str | None = None) -> Problem:
    """One about a whole file or directory."""
    return Problem(severity=severity, path=path, line=1, message=message, key=key)


def files(
    directory: Path, what: str, wanted: Wanted, problems: list[Problem], most: int | None = None
) -> Iterator[File]:
    """The files with `wanted` names below a directory, by path; hidden ones and linked folders are not entered.
    `what` they are, in words for problems."""
    if not directory.is_dir():
        state = "is not a directory" if directory.exists() else "does not exist"
        text = f"{what} directory {state}; create it or take it out of the settings"
        problems.append(problem(str(directory), text))
        return
    root, most = directory.resolve(), MAX_FILES if most is None else most
    paths = _paths(directory, wanted, problems)
    if len(paths) > most:
        problems.append(problem(str(directory), f"{len(paths)} {what} files, of which only the first {most} are read"))
    for path in paths[:most]:
        data = _content(path, root, problems)
        if data is not None:
            yield File(shown=str(path), id=path.relative_to(directory).with_suffix("").as_posix(), data=data)


def _paths(directory: Path, wanted: Wanted, problems: list[Problem]) -> list[Path]:
    def unreadable(error: OSError) -> None:
        problems.append(problem(str(error.filename or directory), f"cannot be read: {error.strerror}"))

    paths: list[Path] = []
    for folder, folders, names in os.walk(directory, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths.extend(Path(folder, name) for name in names if name[0] != "." and wanted(name))
    return sorted(paths, key=lambda path: path.as_posix())


def _content(path: Path, root: Path, problems: list[Problem]) -> bytes | None:
    """The bytes of a regular file inside the directory; anything else is stated and left out."""
    try:
        real = path.resolve(strict=True)
        if not real.is_relative_to(root):
            problems.append(problem(str(path), "links to a file outside its directory; skipped", Severity.WARNING))
            return None
        handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not hold us up
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                problems.append(problem(str(path), "is not a regular file"))
                return None
            return file.read(MAX_FILE_BYTES + 1)  # one more: who reads it reports what is too large
    except (OSError, RuntimeError) as error:  # RuntimeError: links that point at each other
        reason = error.strerror if isinstance(error, OSError) else str(error)
        problems.append(problem(str(path), f"cannot be read: {reason}"))
        return None
