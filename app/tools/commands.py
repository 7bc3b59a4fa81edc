"""What well-known commands do with their arguments: run another command, run a text as a script, write a file.

Knows words, not shell syntax. A piece of a word that is not known before it runs is `UNKNOWN`.
"""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.agent.permission_subjects import CommandPart
from app.agent.rule_patterns import ANY_NAME, UNKNOWN, is_known
from app.tools.command_files import changed, option_values, stored, walked, written
from app.tools.launchers import SCRIPT_OPTIONS, argument_commands, by_argument, is_plain, launched, without_options
from app.tools.shell_words import PIPE, rendered

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_SHELLS = frozenset({"bash", "sh", "dash", "ash", "rbash"})
_SHELL_OPTIONS = frozenset({"--norc", "--noprofile", "--posix", "--login", "--noediting"})
_OTHER_SHELLS = frozenset(
    {"zsh", "ksh", "mksh", "fish", "csh", "tcsh", "parallel", "at", "batch", "crontab", "tmux", "screen", "hyperfine",
     "entr", "watchexec", "expect", "newgrp", "sg", "xterm"}
)  # fmt: skip  # run what this module cannot read
_EVALUATING = frozenset(
    {"let", "declare", "typeset", "local", "export", "readonly", "unset", "read", "printf", "test", "[", "mapfile",
     "readarray", "wait", "getopts"}
)  # fmt: skip  # builtins that evaluate an index, and with it any substitution inside
# They change what later words mean.
_REDEFINING = frozenset({"alias", "hash", "enable", "bind", "complete", "compgen", "shopt", "setopt"})
_PLAIN_SETTINGS = re.compile(
    r"[-+][euxvCfbhm]*o?|errexit|nounset|xtrace|verbose|noclobber|noglob|pipefail|errtrace|functrace"
)

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
    `redefines`: what follows may mean something else. `assigned`: variables that it sets for what it runs. `perhaps`:
    spellings of a command that it runs, wherever that begins. `doubtful`: the same, if it runs its arguments at all.
    `changes` and `walks`: directories of which it writes or reads all that lies below. `touches`: what it may write."""

    inner: list[list[str]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    assigned: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    walks: list[str] = field(default_factory=list)
    touches: list[str] = field(default_factory=list)
    opaque: bool = False
    transparent: bool = False
    redefines: bool = False
    perhaps: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """A command that runs its arguments. `short`: its option letters, `:` behind those with a value; `long` likewise.
    `skip`: arguments before the command. `dash`: a single dash is one more option."""

    short: str = ""
    long: str = ""
    skip: int = 0
    transparent: bool = True
    assigns: bool = False
    dash: bool = False


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
    "env": _Wrapper("iu:0va:", "ignore-environment unset: null debug argv0:", assigns=True, dash=True),
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
    effects.writes, effects.changes = list(written(name, words[1:])), list(changed(name, words[1:]))
    effects.reads, effects.walks = list(stored(name, words[1:])), list(walked(name, words[1:]))
    effects.perhaps, effects.opaque = launched(name, words)
    if name in _WRAPPERS:
        _wrapped(name, words, effects)
    elif name in _SHELLS:
        _shell(words, effects)
    elif name == "eval":
        effects.scripts, effects.transparent = [" ".join(words[1 + (words[1:2] == ["--"]) :])], True
    elif name == "trap":
        effects.scripts = [word for word in words[1 + (words[1:2] == ["--"]) : -1] if word not in ("-", "-l", "-p")][:1]
    elif name in ("mapfile", "readarray"):
        effects.scripts = list(option_values(words, ("-C",)))
        effects.opaque = _evaluates(name, words[1:])
    elif name in ("su", "runuser", "script") and len(words) > 1:
        effects.scripts = list(option_values(words, ("-c", "--command", "--session-command")))
        effects.opaque = True  # of several ones one holds, and further words go to the shell
    elif name == "find":
        _find(words, effects)
    elif name in ("source", "."):
        file = words[1 + (words[1:2] == ["--"]) :][:1]
        effects.opaque = any(not is_known(word) or PIPE in word or word.startswith("/dev/") for word in file)
    elif name in _OTHER_SHELLS:
        effects.opaque = True
    elif name in _EVALUATING:
        effects.opaque = _evaluates(name, words[1:])
    effects.redefines = name in _REDEFINING and len(words) > 1
    if name == "set" and words[1:2] != ["--"]:
        effects.redefines = not all(_PLAIN_SETTINGS.fullmatch(word) for word in words[1:])
    effects.scripts += option_values(words[1:], SCRIPT_OPTIONS.get(name, ()))
    effects.opaque = effects.opaque or by_argument(name, words[1:])
    if not (name in _WRAPPERS or name in _SHELLS or is_plain(name)):
        effects.doubtful = argument_commands(words[1:])
        effects.touches = [word for word in words[1:] if is_known(word) and not word.startswith("-")]
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
            meant = [name] if name in valued else [long for long in valued if long.startswith(name)]
            if len(meant) != 1:
                return None
            at += valued[meant[0]] and not has_value
            continue
        for place, letter in enumerate(word[1:], start=2):
            found = wrapper.short.find(letter)
            if found < 0 or letter == ":":
                return None
            if wrapper.short[found + 1 : found + 2] == ":":
                at += place == len(word)  # else the value is the rest of the word
                break
    at += wrapper.dash and words[at : at + 1] == ["-"]
    doubtful = any(not is_known(word) for word in words[1 : at + wrapper.skip])
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
    at, scripted, plain = 1, False, True
    while at < len(words) and words[at][:1] in ("-", "+"):
        word = words[at]
        at += 1
        if word in ("-", "--"):
            break
        if word.startswith("--") or not is_known(word):
            plain = plain and word in _SHELL_OPTIONS
            continue
        at += word.count("o") + word.count("O")  # their values stand behind all the letters
        scripted = scripted or (word.startswith("-") and "c" in word)
        plain = plain and not ("s" in word or "O" in word)
    effects.scripts = list(words[at : at + 1]) if scripted else []
    effects.transparent = bool(effects.scripts) and plain
    from_elsewhere = at >= len(words) or not is_known(words[at]) or words[at].startswith(("-", "/dev/", "/proc/"))
    effects.opaque = not plain or (from_elsewhere if not scripted else not effects.scripts)


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
        elif not is_known(word) and word.startswith("-"):
            effects.opaque = True
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
    known = source if all(is_known(word) and PIPE not in word for word in (*assigned, *words)) else None
    words, assigned = _as_text(words), _as_text(assigned)
    text, name = rendered(words), words[0].rpartition("/")[2]
    before = rendered(assigned) + " " if assigned else ""
    exact = [text, f"{before}{text}", known] if harmless else [f"{before}{text}", known]
    loose = [text, " ".join(words), *exact, rendered([name, *words[1:]]), " ".join([name, *words[1:]])]
    shorter = without_options(name, words)
    loose += [rendered(shorter), " ".join(shorter), *_as_text(effects.perhaps)]
    values = commands_in((*assigned, *effects.assigned, *(words[1:] if name in _DECLARING else ())))
    if effects.opaque or effects.redefines:
        loose.append(UNKNOWN)
    return CommandPart(
        exact=() if effects.opaque else tuple(dict.fromkeys(one for one in exact if one)),
        loose=tuple(dict.fromkeys(one for one in loose if one)),
        perhaps=tuple(dict.fromkeys(_as_text([*effects.doubtful, *values]))),
        granted=harmless and effects.transparent and not effects.opaque,
    )


_DECLARING = frozenset({"export", "declare", "typeset", "local", "readonly"})


def commands_in(assigned: Sequence[str]) -> list[str]:
    """Values of variables that some program may run: a pager, an editor, a helper with its options."""
    values = (text.partition("=")[2].strip() for text in assigned)
    return [value.lstrip("!|-").strip() for value in values if " " in value or "\t" in value]


def _as_text(words: Sequence[str]) -> list[str]:
    """Words as rules on commands see them, for which everything unknown is alike."""
    return [word.translate({ord(ANY_NAME): UNKNOWN, ord(PIPE): UNKNOWN}) for word in words]


def straight(name: str) -> str:
    """The name of a program in a directory, without `..` on the way."""
    straight = posixpath.normpath(name)
    return straight if "/" in straight else f"./{straight}"
