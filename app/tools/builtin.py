"""The built-in tools, made ready to use: one cache of directory handles and one set of threads for all of them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.agent.artifacts import READER
from app.agent.tools import Tool
from app.boxes.box import Level, Limits
from app.boxes.directory import Directories
from app.boxes.sandbox import Sandbox
from app.boxes.workspaces import Workspaces
from app.net.addresses import Openings
from app.net.dialler import Dialler, SystemLookup
from app.net.fetching import Bounds, Fetcher
from app.tools.artifacts import ArtifactFinder, ReadArtifact
from app.tools.extraction import Extraction
from app.tools.file_states import MAX_BYTES, FileStates
from app.tools.files import ReadFile
from app.tools.notes import NAME, Note, NoteBook
from app.tools.search import Glob, Grep
from app.tools.shell import RunCommand
from app.tools.threads import DaemonThreads
from app.tools.web import WebFetch
from app.tools.writing import EditFile, WriteFile

# Enough that some slow disks do not hold up the rest; a search also computes, so more would gain nothing.
_THREADS = 8
RECORD_TOOLS = frozenset({NAME, READER})  # what `record_tools` makes
_LOOKUPS = 8  # threads of their own: the resolver of the system may hold one for half a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class Web:
    """What `web_fetch` may reach besides the public internet, and how much it takes."""

    openings: Openings = field(default_factory=Openings)
    bounds: Bounds = field(default_factory=Bounds)


_PUBLIC = Web()


def builtin_tools(
    web: Web | None = _PUBLIC, *, directories: Directories | None = None, file_cache_bytes: int = MAX_BYTES
) -> tuple[Tool, ...]:
    """The tools for files, and `web_fetch` unless `web` is None. Files are confined to the workspace of a call's
    context, which is held by `directories`, None: opened by its name; nothing needs closing."""
    directories, states = directories or Directories(), FileStates(file_cache_bytes)
    threads = DaemonThreads(_THREADS, "builtin-tool")
    tools: list[Tool] = [
        ReadFile(directories, threads, states),
        WriteFile(directories, threads, states),
        EditFile(directories, threads, states),
        Glob(directories, threads),
        Grep(directories, threads),
    ]
    if web is not None:
        lookup = SystemLookup(threads=DaemonThreads(_LOOKUPS, "lookup"))
        fetcher = Fetcher(dialler=Dialler(openings=web.openings, lookup=lookup), bounds=web.bounds)
        tools.append(WebFetch(fetcher, threads, Extraction()))
    return tuple(tools)


def record_tools(
    artifacts: ArtifactFinder, notes: NoteBook, *, max_output_chars: int, max_note_chars: int, max_title_chars: int
) -> tuple[Tool, ...]:
    """`read_artifact` and `note`: tools for what the store keeps."""
    return (
        ReadArtifact(artifacts, max_output_chars=max_output_chars),
        Note(notes, max_chars=max_note_chars, max_title_chars=max_title_chars),
    )


def command_tool(
    *,
    workspaces: Workspaces | None,
    sandbox: str,
    sandbox_uid: int,
    command_timeout_ms: int,
    command_memory_mb: int,
    command_processes: int,
    command_file_mb: int,
    command_disk_mb: int,
    command_files: int,
    command_output_bytes: int,
    command_environment: Sequence[str],
    command_paths: Sequence[Path],
) -> RunCommand:
    """`run_command`, by the settings of these names. Raises ValueError for values that cannot be used."""
    mega = 1 << 20
    limits = Limits(
        memory_bytes=command_memory_mb * mega,
        processes=command_processes,
        file_bytes=command_file_mb * mega,
        disk_bytes=command_disk_mb * mega,
        files=command_files,
    )
    box = Sandbox(
        lowest=Level(sandbox),
        limits=limits,
        spare=sandbox_uid,
        workspaces=workspaces,
        variables={name: os.environ[name] for name in command_environment if name in os.environ},
        paths=command_paths,
    )
    return RunCommand(box, timeout_ms=command_timeout_ms, output_bytes=command_output_bytes)
