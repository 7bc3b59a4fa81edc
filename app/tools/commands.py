"""What well-known commands do with their arguments: run another command, run a text as a script, write a file.

Knows words, not shell syntax. A piece of a word that is not known before it runs is `UNKNOWN`.
"""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from app.agent.permission_rules import UNKNOWN
from app.agent.permission_subjects import CommandPart
from app.tools.shell_words import rendered

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_SHELLS = frozenset({"bash", "sh", "dash", "ash", "zsh", "ksh", "mksh", "rbash"})
_OTHER_SHELLS = frozenset({"fish", "csh", "tcsh", "parallel", "at", "batch"})  # run what this module cannot read
_EVALUATING = frozenset(
    {"let", "declare", "typeset", "local", "export", "readonly", "unset", "read", "printf", "test", "[", "mapfile",
     "readarray", "wait", "getopts"}
)  # fmt: skip  # builtins that evaluate an index, and with it any substitution inside
_REDEFINING = frozenset({"alias", "hash", "enable", "bind", "complete", "compgen"})  # change what later words mean

# Variables that change nothing but how a program talks, and those in lower case that nothing reads by itself.
HARMLESS = re.compile(
    r"(?:LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|NO_COLOR|FORCE_COLOR|CLICOLOR|COLUMNS|LINES|CI|NODE_ENV|RUST_LOG"
    r"|RUST_BACKTRACE|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE"
    r"|(?!path=|cdpath=|fpath=|[a-z_]*_proxy|npm_|pip_)[a-z][a-z0-9_]*)\+?="
)


@dataclass(slots=True)
class Effects:
    """What a command does besides what its own words say. `inner`: commands that it runs. `scripts`: texts that it runs
    as shell code. `opaque`: it runs something that is not known before. `transparent`: all it does is to run those.
    `redefines`: what follows may mean something else. `assigned`: variables that it sets for what it runs."""

    inner: list[list[str]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    assigned: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    opaque: bool = False
    transparent: bool = False
    redefines: bool = False


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """A command that runs its arguments. `short`: its option letters, `:` behind those with a value; `long` likewise.
    `skip`: arguments before the command."""

    short: str = ""
    long: str = ""
    skip: int = 0
    transparent: bool = True
    assigns: bool = False


_WRAPPERS = {
    "timeout": _Wrapper("k:s:vpf", "kill-after: signal: preserve-status foreground verbose", skip=1),
    "nohup": _Wrapper(),
    "setsid": _Wrapper("cfw", "ctty fork wait"),
    "nice": _Wrapper("n:0123456789", "adjustment:"),
    "ionice": _Wrapper("c:n:t", "class: classdata: ignore"),
    "stdbuf": _Wrapper("i:o:e:", "input: output: error:"),
    "time": _Wrapper("pvf:", "portability verbose format:", assigns=True),
    "command": _Wrapper("p"),
    "builtin": _Wrapper(),
    "exec": _Wrapper("cla:"),
    "coproc": _Wrapper(assigns=True),
    "env": _Wrapper("iu:0v", "ignore-environment unset: null debug", assigns=True),
    "xargs": _Wrapper(
        "0rtxd:E:I:L:n:P:s:a:",
        "null no-run-if-empty verbose exit delimiter: max-args: max-procs: max-lines: max-chars: arg-file:",
    ),
    "sudo": _Wrapper(
        "AbEHknPSisu:g:h:p:C:T:R:D:",
        "user: group: host: prompt: non-interactive preserve-env set-home login shell stdin background chdir:",
        transparent=False,
        assigns=True,
    ),
    "doas": _Wrapper("nsu:C:", transparent=False),
    "pkexec": _Wrapper("", "user: disable-internal-agent", transparent=False),
    "chroot": _Wrapper("", "userspec: groups: skip-chdir", skip=1, transparent=False),
    "strace": _Wrapper("fqTtrve:s:p:", "", transparent=False),
    "ltrace": _Wrapper("fqTtre:s:p:", "", transparent=False),
    "taskset": _Wrapper("ac", "all-tasks cpu-list", skip=1, transparent=False),
    "chrt": _Wrapper("abfior", "", skip=1, transparent=False),
    "unshare": _Wrapper("mnpuifrUC", "fork net pid mount user map-root-user", transparent=False),
    "nsenter": _Wrapper("t:mnpuiaUC", "target: all net pid mount user", transparent=False),
    "fakeroot": _Wrapper(transparent=False),
    "unbuffer": _Wrapper("p", transparent=False),
    "busybox": _Wrapper(transparent=False),
    "toybox": _Wrapper(transparent=False),
    "watch": _Wrapper("bcdegprtwxn:", "interval: differences beep errexit no-title exec color", transparent=False),
    "flock": _Wrapper("sxnuoFew:E:", "shared exclusive nonblock wait: timeout: close", skip=1, transparent=False),
}  # fmt: skip


def effects_of(words: Sequence[str]) -> Effects:
    """What a simple command does. The first word is its name and known."""
    name, effects = words[0].rpartition("/")[2], Effects()
    effects.writes = _written(name, words[1:])
    if name in _WRAPPERS:
        _wrapped(name, words, effects)
    elif name in _SHELLS:
        _shell(words, effects)
    elif name == "eval":
        effects.scripts, effects.transparent = [" ".join(words[1:])], True
    elif name == "trap" and len(words) > 2:
        effects.scripts = [words[1]]
    elif name in ("su", "runuser", "script") and len(words) > 1:
        effects.scripts = [after for word, after in pairwise(words) if word == "-c"]
        effects.opaque = not effects.scripts
    elif name == "find":
        _find(words, effects)
    elif name in ("source", "."):
        effects.opaque = any(UNKNOWN in word or word.startswith("/dev/") for word in words[1:2])
    elif name in _OTHER_SHELLS:
        effects.opaque = True
    elif name in _EVALUATING:
        effects.opaque = _evaluates(name, words[1:])
    effects.redefines = name in _REDEFINING and len(words) > 1
    return effects


def _wrapped(name: str, words: Sequence[str], effects: Effects) -> None:
    wrapper = _WRAPPERS[name]
    if name == "command" and any(word in ("-v", "-V") for word in words[1:2]):
        return  # only asks where a command is
    start = 1 if name == "coproc" else _start(wrapper, words)
    if start is None:
        effects.opaque = True
        return
    effects.transparent = wrapper.transparent
    inner = list(words[start:])
    while wrapper.assigns and inner and ASSIGNMENT.match(inner[0]):
        effects.assigned.append(inner.pop(0))
    if name == "xargs":
        inner = _fed(words[1:start], inner or ["echo"])
    if not inner:
        effects.transparent = False  # without a command these do something of their own
    elif name == "watch":
        effects.scripts = [" ".join(inner)]
    elif name == "flock" and inner[0] in ("-c", "--command"):
        effects.scripts = inner[1:2]
    else:
        effects.inner = [inner]


def _start(wrapper: _Wrapper, words: Sequence[str]) -> int | None:
    """Where the inner command begins; None where that cannot be told."""
    at, valued = 1, {name.rstrip(":"): name.endswith(":") for name in wrapper.long.split()}
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        at += 1
        if word == "--":
            break
        name, has_value, _ = word[2:].partition("=")
        if word.startswith("--"):
            if name not in valued:
                return None
            at += valued[name] and not has_value
            continue
        for place, letter in enumerate(word[1:], start=2):
            found = wrapper.short.find(letter)
            if found < 0 or letter == ":":
                return None
            if wrapper.short[found + 1 : found + 2] == ":":
                at += place == len(word)  # else the value is the rest of the word
                break
    doubtful = any(UNKNOWN in word for word in words[1 : at + wrapper.skip])
    return None if doubtful else at + wrapper.skip


def _fed(options: Sequence[str], inner: list[str]) -> list[str]:
    """A command whose arguments xargs fills in."""
    for at, option in enumerate(options):
        if option.startswith("-I"):
            mark = option[2:] or options[at + 1] if len(option) > 2 or at + 1 < len(options) else ""
            return [UNKNOWN if mark and mark in word else word for word in inner]
    return [*inner, UNKNOWN]


def _shell(words: Sequence[str], effects: Effects) -> None:
    """A shell: with `-c` a script, with a file an ordinary program, else something that comes from elsewhere."""
    at = 1
    while at < len(words) and words[at][:1] in ("-", "+") and words[at] != "-":
        word = words[at]
        at += 1
        if word in ("--norc", "--noprofile", "--posix", "--login", "--noediting"):
            continue
        if word == "--" or word.startswith("--") or UNKNOWN in word or "s" in word:
            break
        if word.endswith("o"):
            at += 1
        if word.startswith("-") and "c" in word:
            effects.scripts = list(words[at : at + 1])
            effects.transparent = bool(effects.scripts)
            effects.opaque = not effects.scripts
            return
    else:
        effects.opaque = at >= len(words) or UNKNOWN in words[at] or words[at].startswith(("-", "/dev/", "/proc/"))
        return
    effects.opaque = True


def _find(words: Sequence[str], effects: Effects) -> None:
    command: list[str] | None = None
    for word in words[1:]:
        if command is not None:
            if word in (";", "+"):
                effects.inner.append(command)
                command = None
            else:
                command.append(UNKNOWN if "{}" in word else word)
        elif word in ("-exec", "-execdir", "-ok", "-okdir"):
            command = []
        elif word == "-delete":
            effects.inner.append(["rm", UNKNOWN])
        elif UNKNOWN in word and word[0] in (UNKNOWN, "-") and word != UNKNOWN:
            effects.opaque = effects.opaque or word.startswith("-")
    if command:
        effects.inner.append(command)
    effects.inner = [inner for inner in effects.inner if inner]


def _evaluates(name: str, words: Sequence[str]) -> bool:
    if name == "let" or any("$(" in word or "`" in word for word in words):
        return True
    flags = "".join(word[1:] for word in words if word[:1] == "-")
    return name in ("declare", "typeset", "local") and any(flag in flags for flag in "in")


def part_of(
    words: Sequence[str], assigned: Sequence[str], source: str | None, harmless: bool, effects: Effects
) -> CommandPart:
    """A command in all its spellings."""
    text, name = rendered(words), words[0].rpartition("/")[2]
    known = None if any(UNKNOWN in word for word in (*assigned, *words)) else source
    before = rendered(assigned) + " " if assigned else ""
    exact = [text, f"{before}{text}", known] if harmless else [f"{before}{text}", known]
    loose = [text, " ".join(words), *exact, rendered([name, *words[1:]]), " ".join([name, *words[1:]])]
    if effects.opaque or effects.redefines:
        loose.append(UNKNOWN)
    return CommandPart(
        exact=() if effects.opaque else tuple(dict.fromkeys(one for one in exact if one)),
        loose=tuple(dict.fromkeys(one for one in loose if one)),
        granted=harmless and effects.transparent and not effects.opaque,
    )


def straight(name: str) -> str:
    """The name of a program in a directory, without `..` on the way."""
    straight = posixpath.normpath(name)
    return straight if "/" in straight else f"./{straight}"


# ── files that are written ──────────────────────────────────────────────────────────────────────────────────────

_ALL_WRITTEN = frozenset({"tee", "touch", "truncate", "rm", "rmdir", "mkdir", "unlink", "shred", "mv"})
_LAST_WRITTEN = frozenset({"cp", "ln", "install"})
_OUTPUT_OPTIONS = {
    "sort": ("-o", "--output"),
    "curl": ("-o", "--output"),
    "wget": ("-O", "--output-document"),
    "find": ("-fprint", "-fprint0", "-fprintf", "-fls"),
}


def _written(name: str, words: Sequence[str]) -> list[str]:
    """The files that a command writes by itself, as far as it is one of the usual ones."""
    plain = [word for word in words if not word.startswith("-")]
    if name in _ALL_WRITTEN:
        return plain
    if name in _LAST_WRITTEN:
        return plain[-1:]
    if name == "dd":
        return [word[3:] for word in words if word.startswith("of=")]
    if name in ("sed", "perl") and any(_in_place(word) for word in words):
        scripted = any(word in ("-e", "-f") or word.startswith("--expression") for word in words)
        return plain if scripted else plain[1:]
    options = _OUTPUT_OPTIONS.get(name, ())
    found = [after for word, after in pairwise(words) if word in options]
    for option in options:
        sign = option if len(option) == 2 else f"{option}="
        found += [word.removeprefix(sign) for word in words if word.startswith(sign) and word != option]
    return found


def _in_place(word: str) -> bool:
    if word.startswith("--"):
        return word.startswith("--in-place")
    return word.startswith("-") and "i" in word and not word.startswith(("-e", "-f"))
