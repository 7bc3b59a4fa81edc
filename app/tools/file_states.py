"""What is known of the files of workspaces: contents that need no second read, and who has seen which (spec 7.6).

Shared by all sessions, but a session knows only what its own tree has read. Knows neither paths nor encodings; empty
after a restart. Safe to use from threads.
"""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b

from app.boxes.writing import FileState

MAX_FILE_BYTES = 10 * 1024 * 1024  # of a file that is kept, edited or written
MAX_BYTES = 64 * 1024 * 1024
MAX_FILES = 20_000
_SEEN_BY = 256  # memories whose view of one file is told apart
_BLOCK = 256 * 1024
# Two writes within one tick of the file system's clock leave the same times. 10 ms is the slowest clock of Linux;
# file systems that count whole seconds count two at a time.
_TICK_NS = 20_000_000
_COARSE_TICK_NS = 2_100_000_000


@dataclass(frozen=True, slots=True)
class Reading:
    """Who looks at which file: the session, the memory that will hold what it says, the place in the workspace."""

    session: str
    memory: str
    place: str


@dataclass(frozen=True, slots=True)
class Content:
    """All bytes of a file, with the state that they were read in."""

    data: bytes
    digest: bytes
    state: FileState


@dataclass(slots=True)
class _Known:
    """`state`, `digest`, `settled`: of the file as it was last found on disk; settled: no later write can look like
    this state. `shown`: what the tree was last shown of it; `seen`: what each memory was."""

    state: FileState
    digest: bytes
    settled: bool
    shown: bytes | None = None
    seen: OrderedDict[str, bytes] = field(default_factory=OrderedDict)


class FileStates:
    """Files by session and place, contents by digest, the least recently used dropped beyond the bounds.

    `disk_reads` counts how often a content was read from disk.
    """

    def __init__(
        self, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES, *, clock: Callable[[], int] = time.time_ns
    ) -> None:
        """`clock`: nanoseconds since 1970, as the file system counts them."""
        self.disk_reads = 0
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._clock = clock
        self._lock = threading.Lock()
        self._files: OrderedDict[tuple[str, str], _Known] = OrderedDict()
        self._contents: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0

    def content(self, who: Reading, fd: int, more: Callable[[], bool] = lambda: True) -> Content | None:
        """The content of an open file, from memory if it was not touched since it was read. None when it is larger
        than `MAX_FILE_BYTES` or `more()`, asked between blocks, said no."""
        state = FileState.of(os.fstat(fd))
        if state.size > MAX_FILE_BYTES:
            return None
        with self._lock:
            known = self._files.get((who.session, who.place))
            if known is not None and known.settled and known.state == state:
                data = self._contents.get(known.digest)
                if data is not None:
                    self._contents.move_to_end(known.digest)
                    self._files.move_to_end((who.session, who.place))
                    return Content(data, known.digest, state)
        began = self._clock()
        data = _read(fd, more)
        if data is None or len(data) > MAX_FILE_BYTES:
            return None
        with self._lock:
            self.disk_reads += 1
        return self._found(who, data, state, settled=_is_settled(state, began))

    def written(self, who: Reading, data: bytes, state: FileState) -> None:
        """A file was written by an agent of the tree, who so has seen it."""
        self.saw(who, self._found(who, data, state, settled=False))

    def saw(self, who: Reading, content: Content) -> None:
        """A memory was shown this content, or a part of it."""
        with self._lock:
            known = self._files.get((who.session, who.place))
            if known is not None:
                known.shown = known.seen[who.memory] = content.digest
                known.seen.move_to_end(who.memory)
                if len(known.seen) > _SEEN_BY:
                    known.seen.popitem(last=False)

    def expected(self, who: Reading) -> bytes | None:
        """The digest of what a memory believes to be in the file: what it has seen itself, else what its tree was last
        shown; None: nobody has read it."""
        with self._lock:
            known = self._files.get((who.session, who.place))
            return None if known is None else known.seen.get(who.memory, known.shown)

    def data_of(self, digest: bytes) -> bytes | None:
        """The content of this digest, if it is still here."""
        with self._lock:
            return self._contents.get(digest)

    def _found(self, who: Reading, data: bytes, state: FileState, *, settled: bool) -> Content:
        digest = blake2b(data, digest_size=16).digest()
        key = (who.session, who.place)
        with self._lock:
            known = self._files.get(key)
            if known is None:
                self._files[key] = _Known(state, digest, settled)
                if len(self._files) > self._max_files:
                    self._files.popitem(last=False)
            else:
                known.state, known.digest, known.settled = state, digest, settled
                self._files.move_to_end(key)
            self._keep(digest, data)
        return Content(data, digest, state)

    def _keep(self, digest: bytes, data: bytes) -> None:
        if digest not in self._contents:
            self._contents[digest] = data
            self._bytes += len(data)
        self._contents.move_to_end(digest)
        while self._bytes > self._max_bytes:
            self._bytes -= len(self._contents.popitem(last=False)[1])


def _is_settled(state: FileState, read_at: int) -> bool:
    """Whether the last change is so long ago that one after the reading would have another time. The time of change is
    the system's own; that of modification can be set by anybody."""
    coarse = state.changed_ns % 1_000_000_000 == 0
    return read_at - state.changed_ns > (_COARSE_TICK_NS if coarse else _TICK_NS)


def _read(fd: int, more: Callable[[], bool]) -> bytes | None:
    """Up to a byte more than is kept; a file may grow while it is read."""
    os.lseek(fd, 0, os.SEEK_SET)
    pieces: list[bytes] = []
    left = MAX_FILE_BYTES + 1
    while left > 0:
        if not more():
            return None
        piece = os.read(fd, min(_BLOCK, left))
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
