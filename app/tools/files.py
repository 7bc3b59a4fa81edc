"""`read_file`: a text file of the workspace, or a range of its lines. Knows how to read, not how to find or write."""

import io
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from app.agent.errors import ToolError
from app.agent.tools import ToolContext, ToolResult, ToolSpec
from app.boxes.directory import BoxError, Directories, Directory, Kind, NotAFile, shown
from app.tools.file_states import Content, FileStates, Reading
from app.tools.text import SNIFF_BYTES, LineReader, encoding_of
from app.tools.threads import Effort, interruptible

DEFAULT_LINES = 2_000
MAX_LINES = 10_000
MAX_CHARS = 400_000  # what one answer holds at most; the loop cuts far earlier and keeps the whole as an artifact
COUNTED_BYTES = 10 * 1024 * 1024  # larger files are read up to the range that was asked for, not to their end
READ_SECONDS = 10.0
_BLOCK = 256 * 1024


@contextmanager
def model_readable(path: str) -> Iterator[None]:
    """Turn what a directory or disk answers into a `ToolError`; `path` is what the model asked for."""
    try:
        yield
    except NotAFile as error:
        if error.kind is Kind.DIRECTORY:
            raise ToolError(f"{shown(path)} is a directory; list it with glob, pattern '*' and this path") from None
        raise ToolError(str(error)) from None
    except BoxError as error:
        raise ToolError(str(error)) from None
    except OSError as error:
        raise ToolError(f"{shown(path)} cannot be read: {error.strerror}") from error


Refuses = Callable[[str | None], str | None] | None


def opened(directory: Directory, path: str, refuses: Refuses) -> int:
    """Open a file and look whether what was opened may be read (`ToolContext.refuses`): a link may have come in its
    place since the call was judged. The caller closes the descriptor."""
    fd = directory.open_file(path)
    try:
        why = None if refuses is None else refuses(directory.place_of(fd))
        if why is not None:
            raise ToolError(f"Permission denied: {shown(path)} leads to what may not be read: {why}")
    except BaseException:  # border: whatever it is, the descriptor is closed
        os.close(fd)
        raise
    return fd


@dataclass(slots=True)
class _Page:
    """The lines `first` … of a file that were collected; `total` None: not counted to the end."""

    first: int
    lines: list[str] = field(default_factory=list)
    total: int | None = None
    complete: bool = False
    lossy: bool = False

    @property
    def last(self) -> int:
        return self.first + len(self.lines) - 1


class ReadFile:
    """The tool `read_file`. Files are read in `threads`, since disks block."""

    spec = ToolSpec(
        name="read_file",
        built_in=True,
        description=(
            "Read a text file of the workspace. Returns its lines; when they are not all, a first line in brackets "
            "says which ones and how to go on."
        ),
        parameters={
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "File, relative to the workspace."},
                "offset": {"type": "integer", "minimum": 1, "default": 1, "description": "First line, from 1."},
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_LINES,
                    "default": DEFAULT_LINES,
                    "description": "Lines at most.",
                },
            },
            "required": ["path"],
            "additionalProperties": False,
        },
        read_only=True,
        concurrency_safe=True,
        aliases={"file_path": "path"},
    )

    def __init__(self, directories: Directories, threads: Executor, states: FileStates | None = None) -> None:
        """`states`: what is known of files already, shared with those who write; None: only for this tool."""
        self._directories = directories
        self._threads = threads
        self._states = states or FileStates()

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Read the range. Raises `ToolError` when there is no such text."""
        path = arguments["path"]
        # JSON Schema counts 2.0 as an integer.
        offset, limit = int(arguments.get("offset", 1)), int(arguments.get("limit", DEFAULT_LINES))

        def work(stop: threading.Event) -> str:
            with model_readable(path):
                directory = self._directories.get(context.workspace)
                who = Reading(context.session.id, context.run.memory_id, directory.place(path) or "")
                effort = Effort(stop, seconds=READ_SECONDS)
                return _read(opened(directory, path, context.refuses), path, offset, limit, effort, self._states, who)

        return ToolResult(content=await interruptible(self._threads, work))


def _read(opened_fd: int, path: str, offset: int, limit: int, effort: Effort, states: FileStates, who: Reading) -> str:
    with os.fdopen(opened_fd, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        known = _known(file, size, effort, states, who)
        source: BinaryIO = file if known is None else io.BytesIO(known.data)
        size = size if known is None else len(known.data)
        found = encoding_of(source.read(SNIFF_BYTES))
        if found is None:
            raise ToolError(f"{shown(path)} is a binary file of {size:,} bytes; read_file shows text only")
        encoding, mark = found
        source.seek(mark)
        page = _collect(source, LineReader(encoding), _Page(first=offset), limit, size <= COUNTED_BYTES, effort)
    answer = _answer(path, page, size, effort)
    if known is not None:
        states.saw(who, known)
    return answer


def _known(file: BinaryIO, size: int, effort: Effort, states: FileStates, who: Reading) -> Content | None:
    """The whole content; None for a file that is read where it lies: a large one, or one that takes too long."""
    if size > COUNTED_BYTES or not who.place:
        return None
    content = states.content(who, file.fileno(), effort.in_time)
    if content is None:
        file.seek(0)
    return content


def _collect(file: BinaryIO, reader: LineReader, page: _Page, limit: int, count: bool, effort: Effort) -> _Page:
    """Fill the page; with `count` read on to the end of the file for the number of lines."""
    number = chars = 0
    full = False
    for line in _lines(file, reader, effort):
        number += 1
        if number < page.first:
            continue
        full = full or len(page.lines) >= limit or chars > MAX_CHARS
        if not full:
            page.lines.append(line)
            chars += len(line) + 1
        elif not count:
            break
    else:
        if effort.spent is None:
            page.total = number
    page.complete = page.first == 1 and page.total == len(page.lines)
    page.lossy = reader.lossy
    return page


def _lines(file: BinaryIO, reader: LineReader, effort: Effort) -> Iterator[str]:
    while effort.in_time():
        block = file.read(_BLOCK)
        yield from reader.feed(block, final=not block)
        if not block:
            return


def _answer(path: str, page: _Page, size: int, effort: Effort) -> str:
    if page.total == 0:
        return "(empty file)"
    if not page.lines:
        if page.total is None:
            raise ToolError(
                f"{shown(path)}: line {page.first:,} was not reached within {effort.spent}; use grep instead"
            )
        raise ToolError(f"{shown(path)} has {page.total:,} lines; offset {page.first:,} is beyond its end")
    notes = []
    if not page.complete:
        whole = f"{page.total}" if page.total is not None else f"a file of {size:,} bytes"
        notes.append(f"lines {page.first}-{page.last} of {whole}")
        if page.total is None or page.last < page.total:
            notes.append(f"continue with offset={page.last + 1}")
    if page.lossy:
        notes.append("bytes that are not valid UTF-8 are shown as \ufffd")
    head = f"[{'; '.join(notes)}]\n" if notes else ""
    return head + "\n".join(page.lines)
