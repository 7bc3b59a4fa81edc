"""The built-in tools, made ready to use: one cache of directory handles and one set of threads for all of them."""

from app.agent.tools import Tool
from app.boxes.directory import Directories
from app.tools.files import ReadFile
from app.tools.search import Glob, Grep
from app.tools.threads import DaemonThreads

# Enough that some slow disks do not hold up the rest; a search also computes, so more would gain nothing.
_THREADS = 8


def builtin_tools() -> tuple[Tool, ...]:
    """`read_file`, `glob`, `grep`. Each call is confined to the workspace of its context; nothing needs closing."""
    directories = Directories()
    threads = DaemonThreads(_THREADS, "builtin-tool")
    return (ReadFile(directories, threads), Glob(directories, threads), Grep(directories, threads))
