"""`load_skill`: the text of a skill, or of a file in its folder.

Knows neither how skills are found nor who may have one.
"""

import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from app.agent.errors import ToolError
from app.agent.skills import LOADER, Skill, SkillCatalog
from app.agent.tools import ToolContext, ToolResult, ToolSpec
from app.boxes.directory import BoxError, Directories, Directory, Kind, NotThere, OutsideBox, shown
from app.tools.text import SNIFF_BYTES, LineReader, encoding_of
from app.tools.threads import interruptible

PAGE_CHARS = 14_000  # of one answer: below what a model is shown of an output, so that nothing falls out of the middle
MAX_BYTES = 1 << 20  # of a file
MAX_FILES = 100  # that are listed
_SEEN = 2_000  # names that are looked at for them
_OTHERS = 2_000  # characters of the list of other skills in an error


class LoadSkill:
    """The tool `load_skill`. Files are read in `threads`, since disks block. `commands`: whether there is a tool that
    could use a path of the server."""

    spec = ToolSpec(
        name=LOADER,
        built_in=True,
        description=(
            "Load the instructions of a skill by its name, before you begin work of its kind. With `file`, read a text "
            "file of the skill's folder that its instructions name."
        ),
        parameters={
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "Name of the skill."},
                "file": {"type": "string", "description": "File in the skill's folder, relative to it."},
                "offset": {"type": "integer", "minimum": 1, "default": 1, "description": "First line, from 1."},
            },
            "required": ["name"],
            "additionalProperties": False,
        },
        read_only=True,
        concurrency_safe=True,
    )

    def __init__(
        self, catalog: SkillCatalog, directories: Directories, threads: Executor, *, commands: bool = False
    ) -> None:
        self._catalog = catalog
        self._directories = directories
        self._threads = threads
        self._commands = commands

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """The text. Raises `ToolError` when there is no such skill or file."""
        skill = self._catalog.get(arguments["name"].strip())
        if skill is None:
            raise ToolError(self._unknown(arguments["name"]))
        file, offset = arguments.get("file", ""), int(arguments.get("offset", 1))

        def work(stop: threading.Event) -> str:
            if file:
                return _page(_text_of(self._folder(skill), skill, file), offset, file)
            text = _page(skill.body.split("\n"), offset, skill.name)
            return text if offset > 1 else text + self._beside(skill, stop)

        return ToolResult(content=await interruptible(self._threads, work))

    def _unknown(self, name: str) -> str:
        names = ", ".join(skill.name for skill in self._catalog.skills())
        if not names:
            return f"there is no skill {shown(name)}: there are none at the moment"
        if len(names) > _OTHERS:
            names = names[:_OTHERS] + "…"
        return f"there is no skill {shown(name)}; there are: {names}"

    def _folder(self, skill: Skill) -> Directory:
        try:
            return self._directories.get(Path(skill.folder))
        except BoxError:
            raise ToolError(f"the folder of the skill {skill.name} is gone") from None

    def _beside(self, skill: Skill, stop: threading.Event) -> str:
        """What a reader of the instructions may need to find their files."""
        try:
            files = list(_files(self._folder(skill), stop))
        except (BoxError, ToolError):
            return ""
        if not files:
            return ""
        more = "\n… and more" if len(files) > MAX_FILES else ""
        where = f", for commands: {Path(skill.folder).resolve()}" if self._commands else ""
        text = f"\n\n[Files of this skill; read one with {LOADER}, name and file{where}]\n"
        return text + "\n".join(files[:MAX_FILES]) + more


def _files(folder: Directory, stop: threading.Event) -> Iterator[str]:
    """The files of a skill, one more than is shown."""
    found = 0
    for seen, entry in enumerate(folder.walk(descend=lambda path: not path.rsplit("/", 1)[-1].startswith("."))):
        if seen > _SEEN or stop.is_set() or found > MAX_FILES:
            return
        if entry.kind is Kind.FILE and not entry.name.startswith(".") and entry.path != "SKILL.md":
            found += 1
            yield entry.path.encode("utf-8", "replace").decode()


def _text_of(folder: Directory, skill: Skill, path: str) -> list[str]:
    """The lines of a file that lies in the folder, whatever links and dots say, and is not hidden there."""
    try:
        handle = folder.open_file(path)
        if _hidden(folder.place_of(handle)):
            os.close(handle)
            raise NotThere(path)
    except OutsideBox:
        raise ToolError(f"{shown(path)} is outside the folder of the skill {skill.name}") from None
    except NotThere:
        raise ToolError(
            f"the skill {skill.name} has no file {shown(path)}; load it without `file` to see which"
        ) from None
    except BoxError as error:
        raise ToolError(str(error)) from None
    with os.fdopen(handle, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ToolError(f"{shown(path)} is larger than {MAX_BYTES:,} bytes")
    found = encoding_of(data[:SNIFF_BYTES])
    if found is None:
        raise ToolError(f"{shown(path)} is a binary file; {LOADER} shows text only")
    encoding, mark = found
    return list(LineReader(encoding).feed(data[mark:], final=True))


def _hidden(place: str | None) -> bool:
    """Whether a file is one that is not listed; so is one of which nobody knows any more where it is."""
    return place is None or any(part.startswith(".") for part in place.split("/"))


def _page(lines: list[str], offset: int, what: str) -> str:
    """The lines from `offset` on, as many as one answer holds, with a note when they are not all."""
    if offset > max(1, len(lines)):
        raise ToolError(f"{shown(what)} has {len(lines):,} lines; offset {offset:,} is beyond its end")
    kept: list[str] = []
    room = PAGE_CHARS
    for line in lines[offset - 1 :]:
        room -= len(line) + 1
        if room < 0 and kept:
            break
        kept.append(line[:PAGE_CHARS])
    last = offset - 1 + len(kept)
    text = "\n".join(kept)
    if last < len(lines):
        return f"[lines {offset}-{last} of {len(lines)}; continue with offset={last + 1}]\n{text}"
    return text
