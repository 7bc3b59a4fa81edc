"""Covers put up in a box of level `full`, and a look at whether they lie where they should before its command begins.

A mount stays with the file that it was put on, whatever that is called later. Knows neither rules nor how the places
were found.
"""

import asyncio
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from app.boxes.beneath import best_opener
from app.boxes.box import BoxRefused
from app.boxes.covers import LOOK, Cover, Handle, Kind, Survey, moved
from app.boxes.pipes import Gate, memory_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Covering:
    """The covers of one command. `words`: the number of a file with arguments of bubblewrap; `handles`: all that it
    needs open; `gate`: where the command waits for `check`."""

    survey: Survey
    workspace: int
    root: str
    words: int
    handles: Sequence[int]
    gate: Gate

    @classmethod
    def of(cls, survey: Survey, workspace: int, root: str, held: ExitStack) -> Self:
        """Covers for a workspace (a handle) that has the path `root` in the box; all is given back with `held`. Raises
        `BoxRefused` when one of the places has moved."""
        gate, mask = Gate(), _mask(held)
        held.callback(gate.close)
        covers = survey.covers
        handles = _handles(covers, workspace, held)
        words = memory_file(b"".join(os.fsencode(word) + b"\0" for word in _words(covers, root, handles, mask)))
        held.callback(os.close, words)
        return cls(
            survey=survey, workspace=workspace, root=root, words=words, handles=(words, *handles.values()), gate=gate
        )

    async def check(self, process: int) -> None:
        """Raises `BoxRefused` unless each cover lies, in the box of a process, on what was found at its place."""
        await asyncio.to_thread(_check, self.survey, Handle(self.workspace), self.root, process)


def _mask(held: ExitStack) -> str:
    """An empty file that nobody may read."""
    handle, path = tempfile.mkstemp(prefix="subagentd-hidden-")
    held.callback(os.unlink, path)
    os.fchmod(handle, 0)
    os.close(handle)
    return path


def _handles(covers: Sequence[Cover], top: int, held: ExitStack) -> dict[str, int]:
    """Handles of the places that stay in sight, closed with `held`. Raises `BoxRefused` when another one is there."""
    opener = best_opener(top)
    handles: dict[str, int] = {}
    for cover in covers:
        if cover.kind is Kind.HIDDEN:
            continue
        try:
            handle = opener(top, os.fsencode(cover.path), LOOK, follow=False)
        except OSError:
            raise moved(cover.path) from None
        held.callback(os.close, handle)
        found = os.fstat(handle)
        if (found.st_dev, found.st_ino) != (cover.device, cover.inode):
            raise moved(cover.path)
        handles[cover.path] = handle
    return handles


def _words(covers: Sequence[Cover], root: str, handles: Mapping[str, int], mask: str) -> Iterator[str]:
    """The arguments of bubblewrap, which are to follow that for the workspace. What is hidden is unreadable, not just
    empty: a program must not take what is hidden for what is not there."""
    for cover in covers:
        place = f"{root.rstrip('/')}/{cover.path}"
        if cover.kind is not Kind.HIDDEN:
            how = "--ro-bind-fd" if cover.kind is Kind.LOCKED else "--bind-fd"
            yield from (how, str(handles[cover.path]), place)
        elif cover.directory:
            yield from ("--perms", "0000", "--tmpfs", place, "--remount-ro", place)
        else:
            yield from ("--ro-bind", mask, place)


def _check(survey: Survey, held: Handle, root: str, process: int) -> None:
    mounted = _mount_points(process)
    for cover in survey.covers:
        if f"{root.rstrip('/')}/{cover.path}" not in mounted:
            raise moved(cover.path)
    survey.check(held.number)


def _mount_points(process: int) -> set[str]:
    """Where something is mounted, as a process sees it."""
    try:
        with open(f"/proc/{process}/mountinfo", "rb") as file:
            places = [line.split(b" ")[4] for line in file]
    except OSError:
        raise BoxRefused("the command was not run: it cannot be seen what is hidden from it; try again") from None
    return {os.fsdecode(_plain(place)) for place in places}


def _plain(place: bytes) -> bytes:
    """Without the kernel's way to write blanks and backslashes."""
    for code, char in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        place = place.replace(code, char)
    return place
