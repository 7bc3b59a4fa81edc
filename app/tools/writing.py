"""`write_file` and `edit_file`: files of the workspace made, replaced or changed in one place.

What an agent has not seen it does not overwrite (`file_states`). Knows neither how a file is replaced nor how a place
in a text is found.
"""

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

from app.agent.errors import InvalidArguments, ToolError
from app.agent.tools import Interrupt, ToolContext, ToolResult, ToolSpec
from app.boxes.directory import Directories, shown
from app.boxes.writing import Slot, slot
from app.tools.edits import Decoded, NoMatch, decoded, difference, replaced
from app.tools.file_states import MAX_FILE_BYTES, Content, FileStates, Reading
from app.tools.files import model_readable
from app.tools.threads import Effort, interruptible

_SECONDS = 30.0  # to read what is there; what is being written then is written
_PATH = {"type": "string", "minLength": 1, "description": "File, relative to the workspace."}
PATH_ALIASES = {"file_path": "path"}  # as other services call it


class WriteFile:
    """The tool `write_file`. Writes in `threads`, since disks block."""

    spec = ToolSpec(
        name="write_file",
        built_in=True,
        description=(
            "Write a text file of the workspace as a whole; missing directories are made. A file that exists must have "
            "been read before with read_file, and is not overwritten if it has changed since. To change a part of a "
            "file use edit_file."
        ),
        parameters={
            "type": "object",
            "properties": {
                "path": _PATH,
                "content": {"type": "string", "description": "All of the new text."},
            },
            "required": ["path", "content"],
            "additionalProperties": False,
        },
        aliases=PATH_ALIASES,
        interrupt=Interrupt.BLOCK,
    )

    def __init__(self, directories: Directories, threads: Executor, states: FileStates) -> None:
        self._directories = directories
        self._threads = threads
        self._states = states

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Write it. Raises `ToolError` when the path cannot be written, or the file is not as the agent knows it."""
        path, content = arguments["path"], _valid("content", arguments["content"])

        def work(stop: threading.Event) -> str:
            with model_readable(path), self._slot(path, context) as place:
                return self._write(place, content, _reader(context, place), Effort(stop, seconds=_SECONDS))

        return ToolResult(content=await interruptible(self._threads, work))

    def _slot(self, path: str, context: ToolContext) -> AbstractContextManager[Slot]:
        directory = self._directories.get(context.workspace)
        return slot(directory, path, make_parents=True, refuses=context.refuses)

    def _write(self, place: Slot, content: str, who: Reading, effort: Effort) -> str:
        state = place.state()
        if state is None:
            data = content.encode()
            _check_size(place.path, len(data))
            self._states.written(who, data, place.replace(data, None, wanted=_wanted(effort)))
            return f"Created {shown(place.path)}: {_size(content, data)}."
        found = _known_content(self._states, place, who, effort, "write_file")
        form = decoded(found.data) or Decoded("", "utf-8", b"")
        data = _encoded(place.path, form, content)
        if data == found.data:
            self._states.saw(who, found)
            return f"{shown(place.path)} holds exactly this already; it was not written."
        self._states.written(who, data, place.replace(data, found.state, wanted=_wanted(effort)))
        kept = "" if form.encoding == "utf-8" and not form.mark else f" (still {form.encoding}, with its mark)"
        return f"Replaced {shown(place.path)}: {_size(content, data)}, before {len(found.data):,} bytes{kept}."


class EditFile:
    """The tool `edit_file`. Works in `threads`, since disks block."""

    spec = ToolSpec(
        name="edit_file",
        built_in=True,
        description=(
            "Replace a piece of text in a file of the workspace. The file must have been read before with read_file "
            "and must not have changed since. old_string must stand in the file exactly once, blanks and indentation "
            "included; with replace_all, at least once. Returns the changed lines."
        ),
        parameters={
            "type": "object",
            "properties": {
                "path": _PATH,
                "old_string": {"type": "string", "description": "The text to replace, exactly as it stands there."},
                "new_string": {"type": "string", "description": "What comes in its place; empty to delete it."},
                "replace_all": {"type": "boolean", "default": False, "description": "Replace it wherever it stands."},
            },
            "required": ["path", "old_string", "new_string"],
            "additionalProperties": False,
        },
        aliases={
            **PATH_ALIASES,
            "old": "old_string",
            "old_str": "old_string",
            "new": "new_string",
            "new_str": "new_string",
        },
        interrupt=Interrupt.BLOCK,
    )

    def __init__(self, directories: Directories, threads: Executor, states: FileStates) -> None:
        self._directories = directories
        self._threads = threads
        self._states = states

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Change it. Raises `ToolError` when the place is not there just once, or the file is not as the agent knows
        it."""
        path = arguments["path"]
        old, new = (_valid(name, arguments[name]) for name in ("old_string", "new_string"))
        everywhere = bool(arguments.get("replace_all", False))

        def work(stop: threading.Event) -> str:
            with model_readable(path), self._slot(path, context) as place:
                effort = Effort(stop, seconds=_SECONDS)
                return self._edit(place, old, new, everywhere, _reader(context, place), effort)

        return ToolResult(content=await interruptible(self._threads, work))

    def _slot(self, path: str, context: ToolContext) -> AbstractContextManager[Slot]:
        return slot(self._directories.get(context.workspace), path, refuses=context.refuses)

    def _edit(self, place: Slot, old: str, new: str, everywhere: bool, who: Reading, effort: Effort) -> str:
        name = shown(place.path)
        if place.state() is None:
            raise ToolError(f"{name} does not exist in the workspace; write_file makes a new file")
        found = _known_content(self._states, place, who, effort, "edit_file")
        form = decoded(found.data)
        if form is None:
            raise ToolError(f"{name} is no text that can be edited ({len(found.data):,} bytes)")
        try:
            edited = replaced(form.text, old, new, everywhere=everywhere)
        except NoMatch as error:
            raise ToolError(f"{name}: {error}") from None
        data = _encoded(place.path, form, edited.text)
        self._states.written(who, data, place.replace(data, found.state, wanted=_wanted(effort)))
        if edited.count == 1:
            return f"Edited {name} at line {edited.line}:\n{edited.diff}"
        return f"Edited {name} in {edited.count:,} places; the first, at line {edited.line}:\n{edited.diff}"


def _reader(context: ToolContext, place: Slot) -> Reading:
    return Reading(context.session.id, context.run.memory_id, place.place)


def _wanted(effort: Effort) -> Callable[[], bool]:
    """Whether what is ready is still to be put in place: not when the call was given up."""
    return lambda: effort.in_time() or effort.spent != "being cancelled"


def _known_content(states: FileStates, place: Slot, who: Reading, effort: Effort, tool: str) -> Content:
    """What is in the file, which the agent or its tree has read. Raises `ToolError` when nobody has, or it changed."""
    name, state = shown(place.path), place.state()
    if state is not None and state.size > MAX_FILE_BYTES:
        raise ToolError(f"{name} has {state.size:,} bytes; {tool} takes files of up to {MAX_FILE_BYTES:,}")
    expected = states.expected(who)
    if expected is None:
        raise ToolError(f"{name} exists and was not read in this session: read it with read_file, then call {tool}")
    fd = place.open()
    try:
        found = states.content(who, fd, effort.in_time)
    finally:
        os.close(fd)
    if found is None:
        raise ToolError(f"{name} could not be read within {effort.spent or 'its size limit'}; nothing was changed")
    if found.digest != expected:
        raise ToolError(
            f"{name} has changed since it was read, so nothing was written: {_changes(states, expected, found)}\n"
            f"Read it again with read_file, then call {tool} for what is there now."
        )
    return found


def _changes(states: FileStates, expected: bytes, found: Content) -> str:
    """What is other than the agent knows it."""
    when = datetime.fromtimestamp(found.state.modified_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    text, before = f"{len(found.data):,} bytes, modified {when}", states.data_of(expected)
    if before is None:
        return text
    text = f"{text}, before {len(before):,} bytes"
    old, new = decoded(before), decoded(found.data)
    if old is None or new is None:
        return text
    return f"{text}; {difference(old.text, new.text)}"


def _encoded(path: str, form: Decoded, text: str) -> bytes:
    try:
        data = form.encoded(text)
    except ValueError:
        raise ToolError(f"{shown(path)} cannot hold this text in its encoding, {form.encoding}") from None
    _check_size(path, len(data))
    return data


def _check_size(path: str, size: int) -> None:
    if size > MAX_FILE_BYTES:
        raise ToolError(f"{shown(path)} was not written: it would have {size:,} bytes, at most {MAX_FILE_BYTES:,} are")


def _size(content: str, data: bytes) -> str:
    lines = content.count("\n") + bool(content and not content.endswith("\n"))
    return f"{lines:,} line{'' if lines == 1 else 's'}, {len(data):,} bytes"


def _valid(name: str, text: str) -> str:
    """A text that can be written: half of a character would become a byte that nobody asked for."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArguments(f"{name} is not valid Unicode: it holds half of a surrogate pair") from None
    return text
