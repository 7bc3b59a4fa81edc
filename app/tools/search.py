"""`glob` and `grep`: find names and lines in the workspace, within bounds of entries, bytes and time.

Links are never followed on the way down, so that nothing outside is found and no circle is walked. What the run may not
read is left out (`ToolContext.conceals`).
"""

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from app.agent.errors import InvalidArguments, ToolError
from app.agent.tools import ToolContext, ToolResult, ToolSpec
from app.boxes.directory import BoxError, Directories, Directory, Entry, Kind, shown
from app.tools.files import Refuses, model_readable, opened
from app.tools.globs import Glob as Pattern
from app.tools.lines import compiled, matching_lines, searchable
from app.tools.threads import Effort, interruptible

MAX_PATHS = 500
MAX_ENTRIES = 200_000
SEARCH_SECONDS = 10.0
MAX_FILE_BYTES = 5 * 1024 * 1024
DEFAULT_MATCHES = 200
MAX_MATCHES = 2_000
MAX_CONTEXT = 10
IGNORED = frozenset(
    {
        ".git",
        ".hg",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".svn",
        ".tox",
        ".venv",
        "__pycache__",
        "node_modules",
    }
)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_IGNORED_TEXT = "Directories such as .git, node_modules and .venv are left out unless they are named."


def _pattern(text: str) -> Pattern:
    try:
        return Pattern(text)
    except ValueError as error:
        raise InvalidArguments(f"{shown(text)}: {error}") from None


def _printable(path: str) -> str:
    """A found path as one line of valid text."""
    text = path if path.isascii() else path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return _CONTROL.sub("\ufffd", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sight:
    """What a search may see (`ToolContext`)."""

    conceals: Callable[[str], bool] | None
    refuses: Refuses


def _sight(context: ToolContext) -> _Sight:
    return _Sight(conceals=context.conceals, refuses=context.refuses)


def _walk(directory: Directory, base: str, pattern: Pattern | None, effort: Effort, sight: _Sight) -> Iterator[Entry]:
    """What is below `base`, without ignored directories, those that can hold no match of `pattern`, and what is
    concealed."""
    named = pattern.literal_names if pattern else frozenset[str]()
    hidden = None if sight.conceals is None else _Hidden(directory, base, sight.conceals, sight.refuses)

    def descend(path: str) -> bool:
        name = path.rpartition("/")[2]
        if (name in IGNORED and name not in named) or (pattern is not None and not pattern.may_hold(path)):
            return False
        return hidden is None or not hidden.at(path)

    if hidden is None:
        return directory.walk(base, descend=descend, more=effort.more)
    walked = directory.walk(base, descend=descend, more=effort.more, entered=hidden.entered)
    return (entry for entry in walked if not hidden.holds(entry))


class _Hidden:
    """What of the entries below `base` is concealed; links also when what they lead to is."""

    def __init__(self, directory: Directory, base: str, conceals: Callable[[str], bool], refuses: Refuses) -> None:
        self._directory, self._base, self._conceals, self._refuses = directory, base, conceals, refuses
        self._prefix = ""

    def entered(self, place: str | None) -> None:
        """Where the walk really begins. Raises `ToolError` when nothing may be seen there."""
        why = None if self._refuses is None else self._refuses(place)
        if why is not None:
            raise ToolError(f"Permission denied: {shown(self._base)} leads to what may not be seen: {why}")
        self._prefix = "" if place in (None, ".") else f"{place}/"

    def at(self, path: str) -> bool:
        """Whether what has this path below `base` is concealed, and with it all below."""
        return self._conceals(self._prefix + path)

    def holds(self, entry: Entry) -> bool:
        """Whether a found entry is."""
        if self.at(entry.path):
            return True
        place = self._directory.place(self._prefix + entry.path) if entry.kind is Kind.LINK else None
        return place is not None and self._conceals(place)


class Glob:
    """The tool `glob`. Searches in `threads`, since disks block."""

    spec = ToolSpec(
        name="glob",
        built_in=True,
        description=(
            "List files and directories of the workspace whose path matches a glob pattern, sorted; directories end "
            f"in '/'. '*' matches within a name, '**/' any number of directories. At most {MAX_PATHS}. {_IGNORED_TEXT}"
        ),
        parameters={
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "description": "For example '*', 'src/**/*.py', '**/*.{yml,yaml}'."},
                "path": {"type": "string", "default": ".", "description": "Directory that the pattern begins in."},
            },
            "required": ["pattern"],
            "additionalProperties": False,
        },
        read_only=True,
        concurrency_safe=True,
    )

    def __init__(self, directories: Directories, threads: Executor) -> None:
        self._directories = directories
        self._threads = threads

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Find the paths. Raises `InvalidArguments` for a bad pattern, `ToolError` for a path that is no directory."""
        pattern, path = arguments["pattern"], arguments.get("path", ".")

        def work(stop: threading.Event) -> str:
            with model_readable(path):
                directory = self._directories.get(context.workspace)
                effort = Effort(stop, seconds=SEARCH_SECONDS, entries=MAX_ENTRIES)
                return _list_paths(directory, path, pattern, effort, _sight(context))

        return ToolResult(content=await interruptible(self._threads, work))


def _list_paths(directory: Directory, path: str, pattern: str, effort: Effort, sight: _Sight) -> str:
    if pattern.startswith("/"):  # an absolute pattern begins in the workspace, whatever `path` says
        path, pattern = ".", directory.relative(pattern)
    base = directory.relative(path)
    prefix = "" if base == "." else base + "/"
    glob = _pattern(pattern)
    found: list[str] = []
    notes = []
    for entry in _walk(directory, base, glob, effort, sight):
        line = _listed(directory, prefix, entry) if glob.matches(entry.path) else None
        if line is None:
            continue
        if len(found) == MAX_PATHS:
            notes.append(f"[only the first {MAX_PATHS} matches; use a narrower pattern or path]")
            break
        found.append(line)
    if effort.spent:
        notes.append(f"[stopped after {effort.spent}: the list is not complete; use a narrower pattern or path]")
    if not found:
        hint = "" if "**" in pattern else " '*' does not enter directories; '**/' does."
        notes.insert(0, f"No matches for {shown(pattern)}.{hint}")
    return "\n".join([*found, *notes])


def _listed(directory: Directory, prefix: str, entry: Entry) -> str | None:
    """How a found entry is shown; None for a link that leads outside or nowhere."""
    kind = entry.kind
    if kind is Kind.LINK:
        try:
            kind = directory.kind(prefix + entry.path)
        except BoxError:
            return None
    return _printable(prefix + entry.path) + ("/" if kind is Kind.DIRECTORY else "")


@dataclass(slots=True)
class _Hits:
    """What a `grep` has found so far, and what it could not look at."""

    limit: int
    context: int
    lines: list[str] = field(default_factory=list)
    matches: int = 0
    skipped: int = 0
    cut: int = 0


class Grep:
    """The tool `grep`. Searches in `threads`, since disks block."""

    spec = ToolSpec(
        name="grep",
        built_in=True,
        description=(
            "Search the text files of the workspace line by line for a regular expression (RE2 syntax: no look-around, "
            "no back-references). Returns 'path:line:text' for each matching line, 'path-line-text' for context. "
            f"{_IGNORED_TEXT}"
        ),
        parameters={
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "minLength": 1, "description": "Regular expression."},
                "path": {"type": "string", "default": ".", "description": "Directory or file to search."},
                "include": {
                    "type": "string",
                    "description": "Only files that match this glob, for example '*.py' or 'src/**/*.ts'.",
                },
                "ignore_case": {"type": "boolean", "default": False},
                "context": {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": MAX_CONTEXT,
                    "default": 0,
                    "description": "Lines shown before and after each match.",
                },
                "max_matches": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_MATCHES,
                    "default": DEFAULT_MATCHES,
                },
            },
            "required": ["pattern"],
            "additionalProperties": False,
        },
        read_only=True,
        concurrency_safe=True,
    )

    def __init__(self, directories: Directories, threads: Executor) -> None:
        self._directories = directories
        self._threads = threads

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Find the lines. Raises `InvalidArguments` for a bad expression or glob, `ToolError` for an unusable path."""
        path = arguments.get("path", ".")
        hits = _Hits(limit=int(arguments.get("max_matches", DEFAULT_MATCHES)), context=int(arguments.get("context", 0)))

        def work(stop: threading.Event) -> str:
            with model_readable(path):
                directory = self._directories.get(context.workspace)
                effort = Effort(stop, seconds=SEARCH_SECONDS, entries=MAX_ENTRIES)
                _search(directory, path, arguments, hits, effort, _sight(context))
                return _report(hits, effort)

        return ToolResult(content=await interruptible(self._threads, work))


def _search(
    directory: Directory, path: str, arguments: Mapping[str, Any], hits: _Hits, effort: Effort, sight: _Sight
) -> None:
    try:
        expression = compiled(arguments["pattern"], ignore_case=arguments.get("ignore_case", False))
    except ValueError as error:
        raise InvalidArguments(str(error)) from None
    include = arguments.get("include")
    # Without a slash the glob is about names, as in the tools that people know.
    wanted = _pattern(include if "/" in include else f"**/{include}") if include else None
    base = directory.relative(path)
    kind = directory.kind(base)
    if kind is Kind.FILE:
        _search_file(directory, base, expression, hits, effort, sight.refuses)
        return
    if kind is not Kind.DIRECTORY:
        raise ToolError(f"{shown(path)} is a {kind.value}; grep searches files and directories")
    prefix = "" if base == "." else base + "/"
    for entry in _walk(directory, base, wanted, effort, sight):
        if entry.kind is Kind.FILE and (wanted is None or wanted.matches(entry.path)):
            _search_file(directory, prefix + entry.path, expression, hits, effort, sight.refuses)
        if hits.matches >= hits.limit or not effort.in_time():
            break


def _search_file(
    directory: Directory, path: str, expression: Any, hits: _Hits, effort: Effort, refuses: Refuses
) -> None:
    try:
        with os.fdopen(opened(directory, path, refuses), "rb", buffering=0) as file:
            data = _read_up_to(file.fileno(), MAX_FILE_BYTES + 1)
    except (BoxError, OSError, ToolError):  # gone or replaced since it was listed, or not ours to read
        hits.skipped += 1
        return
    text = searchable(data[:MAX_FILE_BYTES])
    if text is None:
        hits.skipped += 1
        return
    hits.cut += len(data) > MAX_FILE_BYTES
    name = _printable(path)
    last = None
    for line in matching_lines(
        text, expression, context=hits.context, limit=hits.limit - hits.matches, more=effort.in_time
    ):
        if hits.context and hits.lines and line.number - 1 != last:
            hits.lines.append("--")
        mark = ":" if line.matched else "-"
        hits.lines.append(f"{name}{mark}{line.number}{mark}{line.text}")
        hits.matches += line.matched
        last = line.number


def _read_up_to(fd: int, size: int) -> bytes:
    pieces = []
    while size > 0 and (piece := os.read(fd, size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _report(hits: _Hits, effort: Effort) -> str:
    notes = []
    if not hits.matches:
        left_out = f" {hits.skipped:,} binary or unreadable files were not searched." if hits.skipped else ""
        notes.append(f"No matches.{left_out}")
    if hits.matches >= hits.limit:
        notes.append(f"[stopped at {hits.limit:,} matches; there may be more]")
    if effort.spent:
        notes.append(f"[stopped after {effort.spent}: the result is not complete; use a narrower path or include]")
    if hits.cut:
        megabytes = MAX_FILE_BYTES // (1024 * 1024)
        notes.append(f"[{hits.cut:,} files are larger than {megabytes} MB and were searched only up to there]")
    return "\n".join([*hits.lines, *notes])
