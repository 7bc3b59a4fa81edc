"""Sees when files below directories change, and has them read anew (spec 10.3).

Knows no definition. Changes are collected off the event loop; where the system cannot tell of them, it is looked.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

from watchfiles import Change, awatch

log = logging.getLogger(__name__)

STEP_MS = 50  # of quiet after a change: an editor writes a file in several steps
DEBOUNCE_MS = 400  # at most, while changes go on
LOOK_MS = 500  # between looks whether a directory was made, removed or put in another one's place
CLOSE_S = 5.0


class Watcher:
    """Calls `reload` after changes below `directories`, which need not exist yet. `poll`: look at all files again and
    again, for file systems that tell nothing."""

    def __init__(
        self, directories: Iterable[Path], reload: Callable[[], Awaitable[None]], *, poll: bool = False
    ) -> None:
        self._directories = tuple(dict.fromkeys(directories))
        self._reload = reload
        self._poll = poll
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; without directories there is nothing to do."""
        if self._directories:
            self._task = asyncio.create_task(self._watch(), name="watch-definitions")

    async def close(self) -> None:
        """End, in a bounded time."""
        self._stop.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSE_S)
            self._task.cancel()

    async def _watch(self) -> None:
        while not self._stop.is_set():
            try:
                await (self._compare() if self._poll else self._round())
            except FileNotFoundError:  # went away before it could be watched
                await self._pause()
            except (OSError, RuntimeError) as error:  # RuntimeError: that of the library
                if not self._poll:
                    log.warning("changes of agent files are looked for, since they cannot be watched: %s", error)
                    self._poll = True
                await self._pause()

    async def _round(self) -> None:
        """Watch those directories that are there, until they are others."""
        seen = await asyncio.to_thread(_identities, self._directories)
        if not seen:
            await self._pause()
            if await asyncio.to_thread(_identities, self._directories):
                await self._read()
            return
        began = False
        async for changes in awatch(
            *seen,
            watch_filter=_matters,
            debounce=DEBOUNCE_MS,
            step=STEP_MS,
            stop_event=self._stop,
            rust_timeout=LOOK_MS,
            yield_on_timeout=True,
            force_polling=False,
            ignore_permission_denied=True,
        ):
            moved = await asyncio.to_thread(_identities, self._directories) != seen
            if changes or moved or not began:  # what changed before the watch began was told to nobody
                await self._read()
            began = True
            if moved:
                return

    async def _compare(self) -> None:
        """Look at all files again and again. Not the library's way, which misses a second change in one second."""
        last = None
        while not self._stop.is_set():
            now = await asyncio.to_thread(_fingerprint, self._directories)
            if now != last:  # at first too: what changed before was told to nobody
                await self._read()
            last = now
            await self._pause()

    async def _read(self) -> None:
        try:
            await self._reload()
        except Exception:  # border of the watch: what is in force stays, and the next change is seen
            log.exception("agent files could not be read anew; what was in force stays")

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(LOOK_MS / 1000):
                await self._stop.wait()
        except TimeoutError:
            pass


def _identities(directories: Iterable[Path]) -> Mapping[Path, tuple[int, int]]:
    """The directories that are there, with what tells one from another of the same path."""
    found: dict[Path, tuple[int, int]] = {}
    for path in directories:
        try:
            state = path.stat()
        except OSError:
            continue
        if path.is_dir():
            found[path] = (state.st_dev, state.st_ino)
    return found


def _fingerprint(directories: Iterable[Path]) -> frozenset[tuple[str, int, int, int]]:
    """What changes when a file does."""
    found: set[tuple[str, int, int, int]] = set()
    for directory in directories:
        for folder, _, names in os.walk(directory):
            for name in names:
                if name.lower().endswith(".md"):
                    path = os.path.join(folder, name)
                    try:
                        state = os.stat(path)
                    except OSError:
                        continue
                    found.add((path, state.st_ino, state.st_mtime_ns, state.st_size))
    return frozenset(found)


def _matters(change: Change, path: str) -> bool:
    """Markdown, folders, and whatever went away; other files lie beside agents and mean nothing."""
    return path.lower().endswith(".md") or change is Change.deleted or Path(path).is_dir()
