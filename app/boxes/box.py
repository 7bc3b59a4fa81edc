"""What is said of a box for commands: its level, its limits, how a command in it ended.

Knows no way to build one.
"""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How well a command is held. `full`: its own file tree, processes and network. `landlock`: the server's, with
    rules of the kernel about what it may touch. `none`: limits only."""

    FULL = "full"
    LANDLOCK = "landlock"
    NONE = "none"

    @property
    def risk(self) -> str:
        """What a command may do, in words for operators."""
        return {
            Level.FULL: "held in their own file tree",
            Level.LANDLOCK: "held by rules of the kernel",
            Level.NONE: "without any sandbox: they may read, change and send whatever the user of the server may",
        }[self]

    def reaches(self, lowest: "Level") -> bool:
        """Whether this is `lowest` or better."""
        order = list(Level)
        return order.index(self) <= order.index(lowest)


class End(StrEnum):
    """Why a command is over."""

    EXITED = "exited"
    TIMED_OUT = "timed_out"
    MEMORY = "memory"
    DISK = "disk"
    NOT_STARTED = "not_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one command may use, all its processes together where nothing else is said. `memory_bytes` also bounds each
    process, `file_bytes` each file, `disk_bytes` the room taken on the disk of the workspace, `files` how many more
    files that disk has; `temporary_bytes` is the size of a temporary directory of its own (level `full`), which `files`
    bounds too. From `fast_bytes` of output on it is read slowly."""

    memory_bytes: int = 1 << 30
    processes: int = 128
    file_bytes: int = 1 << 30
    disk_bytes: int = 4 << 30
    files: int = 1 << 18  # as many as usual for a disk of `disk_bytes`: one for 16 KiB
    temporary_bytes: int = 256 << 20
    open_files: int = 1024
    fast_bytes: int = 4 << 20

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ValueError(f"the limit {name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended. `code` is the shell's exit code, 128 + n for signal n; None when it was killed or has not
    begun. `output_lost`: a process was stuck in the kernel and may still write. `hidden`: places of the workspace that
    it could not read."""

    end: End
    code: int | None = None
    output_lost: bool = False
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The level that was held when it was attacked, and why no higher one was: level → reason."""

    level: Level
    missing: tuple[tuple[Level, str], ...] = ()

    def why(self) -> str:
        """The reasons in one text; empty at the highest level."""
        return "; ".join(f"{level}: {reason}" for level, reason in self.missing)


class BoxRefused(Exception):
    """A command is not run, since no box of the demanded level could be had; the text says why and what to do."""
