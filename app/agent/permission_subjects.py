"""What a call does, taken out of its tool and arguments: the things that permission rules are about.

Knows no policy. How a command line is read is a port, `CommandParser`.
"""

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import urlsplit

from app.agent.permission_rules import COMMAND, READERS, WRITERS, PermissionRule, pattern_kind
from app.agent.rule_patterns import ANY_NAME, UNKNOWN, PatternKind, is_known
from app.agent.tools import ToolSpec

_OUTSIDE = ("",)  # no rule is about it
_UP = "/".join([".."] * 40)  # from any workspace to the root of the file system
_SLASHES = re.compile(r"/(?:\.?/)+")
_PERHAPS_UP = re.compile(f"(?:^|/)\\.[^/]*{ANY_NAME}[^/]*/*$")
_HOME = re.compile(r"~(?:/|[A-Za-z_]|$)")
_SEARCHES = frozenset({"glob", "grep"})
_AGENT_ARGUMENTS = {"execute_task": "name", "dispatch_subagent": "agent_type"}  # who else is meant, `Means` says

PathResolver = Callable[[str], str | None]


# ── ports ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPart:
    """One simple command. `exact`: its spellings that mean just this, empty if what runs is not known before. `loose`:
    every spelling that a restriction may name. `perhaps`: spellings of a command that it may run, if it is a program
    that does so. `granted`: it only runs another part and needs no allowance itself."""

    exact: tuple[str, ...]
    loose: tuple[str, ...]
    perhaps: tuple[str, ...] = ()
    granted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTarget:
    """A file that a command writes; `redirected`: by the shell itself, whatever the command is; `whole`: with all that
    lies below, if it is a directory; `sure` False: it may write it."""

    path: str
    redirected: bool
    whole: bool = False
    sure: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCommand:
    """A command line taken apart, with `UNKNOWN` in the texts, in paths also `ANY_NAME`. `problem`: why it could not be
    judged to its end, or None. `words`: what may name a file; `perhaps`: what names one if the command reads it so;
    `walks`: directories of which it reads all that lies below. `stored`: those of all these that it may read out of a
    repository, where no box hides them; `opaque`: it may read anything so.
    `bases`: the directories that relative paths may start from, `UNKNOWN` for one that is not known."""

    parts: tuple[CommandPart, ...] = ()
    writes: tuple[WriteTarget, ...] = ()
    words: tuple[str, ...] = ()
    perhaps: tuple[str, ...] = ()
    walks: tuple[str, ...] = ()
    stored: frozenset[str] = frozenset()
    opaque: bool = False
    bases: tuple[str, ...] = (".",)
    problem: str | None = None


class CommandParser(Protocol):
    """Takes shell command lines apart."""

    def parse(self, command: str) -> ParsedCommand:
        """All that the line may run or write; never raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a decision needs to know of the world. `resolve_path` gives the place that a path really names, relative to
    the workspace (`.` for itself), None when it leads outside or cannot be told; of one that ends in a slash also when
    it is no directory. `agent` is whom a delegation tool would start; without it only the arguments say so. `answers`:
    rules that persons gave for this session. `hides`: the box of a command hides from it what may not be read, so that
    only a file that it surely names is a matter of rules."""

    parser: CommandParser
    resolve_path: PathResolver
    agent: str | None = None
    answers: Sequence[PermissionRule] = ()
    hides: bool = False


# ── what a call does ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One thing that a call does, or may do (`sure` False). `exact` and `loose` as in `CommandPart`. `limits_only`: no
    allowance is needed. `derived`: taken out of a command line. `hidden`: what may not be read is hidden where this
    runs, so that only what is sure counts."""

    tool: str
    shown: str
    kind: PatternKind | None = None
    exact: tuple[str, ...] = ()
    loose: tuple[str, ...] = (UNKNOWN,)
    delegation: bool = False
    limits_only: bool = False
    derived: bool = False
    sure: bool = True
    hidden: bool = False

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


def place_of(spec: ToolSpec, arguments: Any, means: Means) -> str | None:
    """The file or directory that a call of a file tool names, resolved; None for other tools, and where it cannot be
    told."""
    if pattern_kind(spec.name, spec.delegation) is not PatternKind.PATH:
        return None
    (subject,) = subjects_of(spec, arguments, means)
    return subject.loose[0] if subject.exact else None


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
    found += [
        replace(command, shown=f"`{part.loose[0]}`", loose=part.perhaps, limits_only=True, sure=False)
        for part in parsed.parts
        if part.perhaps
    ]
    if parsed.problem is not None:
        perhaps = replace(command, kind=PatternKind.PATH, limits_only=True, sure=False)
        found += [command, replace(perhaps, tool="read_file"), replace(perhaps, tool="write_file")]
    hides = means.hides and parsed.problem is None and not parsed.opaque
    known = dict.fromkeys(parsed.words, True) | dict.fromkeys(parsed.perhaps, False)
    for base in parsed.bases:
        for target in parsed.writes:
            write = _of_path("write_file", target.path, means, base)
            write = _with_all_below(write, target.path, means) if target.whole else write
            if not target.sure and write.loose == (UNKNOWN,):
                continue  # it is no path of the workspace
            found.append(replace(write, limits_only=not target.redirected, sure=target.sure))
        for word, sure in known.items():
            read = _of_path("read_file", word, means, base)
            if read.loose != _OUTSIDE:  # a word that is no path of the workspace names no file of it
                found.append(replace(read, limits_only=True, sure=sure, hidden=hides and word not in parsed.stored))
        for word in parsed.walks:
            walk = _with_all_below(_of_path("read_file", word, means, base), word, means)
            found.append(replace(walk, limits_only=True, hidden=hides and word not in parsed.stored))
    return list(dict.fromkeys(found))


def _of_path(tool: str, path: Any, means: Means, base: str | None = None) -> Subject:
    """A file or, for a search, all below a directory. `base`: where a command looks for it; None for other calls."""
    derived = base is not None
    subject = Subject(tool=tool, shown=f"{tool} of {path}", kind=PatternKind.PATH, derived=derived)
    if not isinstance(path, str):
        return subject
    if derived:
        return _of_shell_path(subject, path if base == "." or path.startswith(("/", "~")) else f"{base}/{path}", means)
    place = None if UNKNOWN in path else _place(path, means)
    if place is None:
        return subject
    if tool in _SEARCHES:
        return replace(subject, exact=(UNKNOWN if place == "." else f"{place}/{UNKNOWN}",), loose=(place,))
    return replace(subject, exact=(place,), loose=(place,))


def _of_shell_path(subject: Subject, path: str, means: Means) -> Subject:
    """A path in a command, as a shell understands it."""
    outside = subject if subject.tool in WRITERS else replace(subject, loose=_OUTSIDE)
    if path.startswith("~"):
        names = [name for name in path.split("/")[1:] if name not in ("", ".")]
        if ".." not in names and _HOME.match(path) and is_known(path):
            # wherever the home directory is, the workspace may be it or lie below it
            return replace(subject, loose=tuple("/".join(names[at:]) for at in range(len(names)))) if names else outside
        path = f"{UNKNOWN}/{path.partition('/')[2]}"
    if UNKNOWN in path:
        return replace(subject, loose=_ends_of(path.rpartition(UNKNOWN)[2]))
    if path.startswith(("/", "..")):
        names = [name for name in posixpath.normpath(path).split("/") if name not in ("", "..")]
        if names[:1] == ["proc"]:  # through there a command comes to its own directory
            return replace(subject, loose=_ends_of(f"/{names[-1]}"))
    if path.startswith("/"):
        path = f"{_UP}{path}"  # an absolute path that reaches the workspace on another way is one of its paths, too
    path = _SLASHES.sub("/", path)
    directory, _, last = path.rpartition("/")
    if ANY_NAME in directory:  # it may be a link to any place
        return replace(subject, loose=_ends_of(f"/{directory.rpartition(ANY_NAME)[2].partition('/')[2]}/{last}"))
    place = _place((directory or ".") if ANY_NAME in last else path, means)
    if place is None:
        return outside
    if ANY_NAME in last:
        return replace(subject, loose=(last if place == "." else f"{place}/{last}",))
    return replace(subject, exact=(place,), loose=(place,))


def _with_all_below(subject: Subject, path: str, means: Means) -> Subject:
    """The same for a directory with all in it. One outside may have the workspace somewhere below."""
    if path.startswith("~") or _PERHAPS_UP.search(path):
        return replace(subject, exact=(), loose=(UNKNOWN,) if subject.loose == _OUTSIDE else (*subject.loose, UNKNOWN))
    if subject.exact and _place(subject.exact[0], means, "/") is None:
        return subject  # a file
    known = () if subject.loose == _OUTSIDE else subject.loose
    below = [UNKNOWN if path in (".", "") else f"{path}/{UNKNOWN}" for path in known or (UNKNOWN,)]
    return replace(subject, exact=(), loose=(*known, *below))


def _ends_of(known: str) -> tuple[str, ...]:
    """What may be said of a path that begins in an unknown way, which may lead up and down again: the names behind."""
    first, *names = known.split("/")
    for name in names.copy():
        if name == "..":
            first, names = "", names[names.index("..") + 1 :]
    names = [name for name in names if name not in ("", ".")]
    if first or not names:
        return ("/".join([f"{UNKNOWN}{first}", *names]),)
    return f"{UNKNOWN}/{'/'.join(names)}", f"{UNKNOWN}{'/'.join(names)}"


def _place(path: str, means: Means, end: str = "") -> str | None:
    try:
        return means.resolve_path(f"{path.rstrip('/')}{end}" or "/")
    except (OSError, ValueError):
        return None


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
