"""What a call does, taken out of its tool and arguments: the things that permission rules are about.

Knows no policy. How a command line is read is a port, `CommandParser`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import urlsplit

from app.agent.permission_rules import COMMAND, READERS, UNKNOWN, PatternKind, PermissionRule, pattern_kind
from app.agent.tools import ToolSpec

_SEARCHES = frozenset({"glob", "grep"})
_AGENT_ARGUMENTS = {"execute_task": "name", "dispatch_subagent": "agent_type"}

PathResolver = Callable[[str], str | None]


# ── ports ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPart:
    """One simple command. `exact`: its spellings that mean just this, empty if what runs is not known before. `loose`:
    every spelling that a restriction may name. `granted`: it only runs another part and needs no allowance itself."""

    exact: tuple[str, ...]
    loose: tuple[str, ...]
    granted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTarget:
    """A file that a command writes; `redirected`: by the shell itself, whatever the command is."""

    path: str
    redirected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCommand:
    """A command line taken apart, with `UNKNOWN` in the texts. `problem`: why it could not be judged to its end, or
    None. `words`: what may name a file. `bases`: the directories that relative paths may start from, `UNKNOWN` for one
    that is not known."""

    parts: tuple[CommandPart, ...] = ()
    writes: tuple[WriteTarget, ...] = ()
    words: tuple[str, ...] = ()
    bases: tuple[str, ...] = (".",)
    problem: str | None = None


class CommandParser(Protocol):
    """Takes shell command lines apart."""

    def parse(self, command: str) -> ParsedCommand:
        """All that the line may run or write; never raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a decision needs to know of the world. `resolve_path` gives the place that a path really names, relative to
    the workspace (`.` for itself), None when it leads outside or cannot be told. `agent` is whom a delegation tool
    would start; without it only the arguments say so. `answers`: rules that persons gave for this session."""

    parser: CommandParser
    resolve_path: PathResolver
    agent: str | None = None
    answers: Sequence[PermissionRule] = ()


# ── what a call does ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One thing that a call does, or may do (`sure` False). `exact` and `loose` as in `CommandPart`. `limits_only`: no
    allowance is needed. `derived`: taken out of a command line."""

    tool: str
    shown: str
    kind: PatternKind | None = None
    exact: tuple[str, ...] = ()
    loose: tuple[str, ...] = (UNKNOWN,)
    delegation: bool = False
    limits_only: bool = False
    derived: bool = False
    sure: bool = True

    @property
    def by_pattern(self) -> bool:
        """Only rules with a pattern are about it: that a tool may not be used says nothing of words in a command."""
        return self.derived and self.tool in READERS


def subjects_of(spec: ToolSpec, arguments: Any, means: Means) -> list[Subject]:
    given: Mapping[str, Any] = arguments if isinstance(arguments, Mapping) else {}
    kind = pattern_kind(spec.name, spec.delegation)
    if kind is PatternKind.COMMAND and isinstance(given.get("command"), str):
        return _of_command(means.parser.parse(given["command"]), means)
    if kind is PatternKind.PATH:
        path = given.get("path")
        # an absolute glob begins in the workspace, whatever `path` says
        whole = path is None or (spec.name == "glob" and str(given.get("pattern", "")).startswith("/"))
        return [_of_path(spec.name, "." if whole and spec.name in _SEARCHES else path, means)]
    known: Any = None
    if kind is PatternKind.DOMAIN:
        known = host_of(given.get("url"))
    elif kind is PatternKind.AGENT:
        known = means.agent or given.get(_AGENT_ARGUMENTS.get(spec.name, ""))
    subject = Subject(tool=spec.name, shown=spec.name, kind=kind, delegation=spec.delegation)
    if not isinstance(known, str) or not known or UNKNOWN in known:
        return [subject]
    return [replace(subject, shown=f"{spec.name} for {known}", exact=(known,), loose=(known,))]


def _of_command(parsed: ParsedCommand, means: Means) -> list[Subject]:
    command = Subject(tool=COMMAND, shown=parsed.problem or "", kind=PatternKind.COMMAND, derived=True)
    found = [
        replace(
            command,
            shown=f"`{(part.exact or part.loose)[0]}`",
            exact=part.exact,
            loose=part.loose,
            limits_only=part.granted,
        )
        for part in parsed.parts
    ]
    if parsed.problem is not None:
        perhaps = replace(command, kind=PatternKind.PATH, limits_only=True, sure=False)
        found += [command, replace(perhaps, tool="read_file"), replace(perhaps, tool="write_file")]
    for base in parsed.bases:
        for target in parsed.writes:
            write = _of_path("write_file", target.path, means, base)
            found.append(replace(write, limits_only=not target.redirected))
        for word in parsed.words:
            read = _of_path("read_file", word, means, base)
            if read.loose != (UNKNOWN,):  # a word that is no path of the workspace names no file of it
                found.append(replace(read, limits_only=True))
    return found


def _of_path(tool: str, path: Any, means: Means, base: str | None = None) -> Subject:
    """A file or, for a search, all below a directory. `base`: where a command looks for it; None for other calls."""
    derived = base is not None
    subject = Subject(tool=tool, shown=f"{tool} of {path}", kind=PatternKind.PATH, derived=derived)
    if not isinstance(path, str):
        return subject
    if base not in (None, ".") and not path.startswith(("/", "~")):
        path = f"{base}/{path}"
    if derived and UNKNOWN not in path and path.startswith("~"):
        names = [name for name in path.split("/")[1:] if name not in ("", ".", "..")]
        # wherever the home directory is, the workspace may be it or lie below it
        return replace(subject, loose=tuple("/".join(names[at:]) for at in range(len(names))) or (UNKNOWN,))
    if UNKNOWN in path:
        return replace(subject, loose=(_without_start(path),))
    try:
        place = means.resolve_path(path)
    except (OSError, ValueError):
        place = None
    if place is None:
        return subject
    if tool in _SEARCHES:
        return replace(subject, exact=(UNKNOWN if place == "." else f"{place}/{UNKNOWN}",), loose=(place,))
    return replace(subject, exact=(place,), loose=(place,))


def _without_start(path: str) -> str:
    """What is sure of a path with unknown pieces: the names behind the last `..`, below an unknown directory."""
    names: list[str] = []
    known = not path.startswith(("/", "~"))
    for name in path.split("/"):
        if name == "..":
            names, known = [], False
        elif name not in ("", "."):
            names.append(name)
    return "/".join(names if known or names[:1] == [UNKNOWN] else [UNKNOWN, *names])


def host_of(url: Any) -> str | None:
    """The host that a URL names, in lower case; None when readers could differ on it. Also for each redirect."""
    if not isinstance(url, str) or not url.isprintable() or any(char in url for char in " \\"):
        return None
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".").encode("idna").decode("ascii").lower()
    except (ValueError, UnicodeError):
        return None
    plain = host and all(char.isalnum() or char in ".-_:" for char in host)
    return host if plain and parts.scheme in ("http", "https") else None
