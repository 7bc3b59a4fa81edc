"""Programs that run their arguments, or what an option of theirs names, as a command.

Knows names, not where an inner command begins: a restriction that fits any end of the words holds. Of a program that is
not known here it may hold.
"""

import re
from collections.abc import Mapping, Sequence

from app.agent.rule_patterns import UNKNOWN, is_known
from app.tools.command_files import NAMES_ONLY, SEARCHING
from app.tools.shell_words import rendered

_MAX_ENDS = 40
_MAX_FOLLOWING = 8  # words of a command that may begin at any place, which are compared
# Their whole command line, or what stands behind `run`, `exec` and the like.
_LAUNCHERS = frozenset(
    {"abduco", "arch", "bunx", "bwrap", "caffeinate", "catchsegv", "cgexec", "choom", "chpst", "chronic", "cpulimit",
     "cset", "daemonize", "dbus-run-session", "dtach", "dumb-init", "eatmydata", "envdir", "envuidgid", "faketime",
     "firejail", "gdb", "gosu", "i386", "linux32", "linux64", "numactl", "npx", "pexec", "pipx", "pnpx", "prlimit",
     "proot", "proxychains", "proxychains4", "rlwrap", "run-one", "run0", "runcon", "setarch", "setpriv", "setuidgid",
     "softlimit", "start-stop-daemon", "su-exec", "systemd-inhibit", "systemd-run", "tini", "torify", "torsocks",
     "trickle", "tsocks", "uname26", "uvx", "valgrind", "winpty", "x86_64", "xvfb-run", "capsh",
     "s6-setuidgid", "s6-softlimit", "aa-exec", "sandbox-exec", "ssh-agent", "dotenv", "with-contenv", "rr", "perf",
     "runuser", "logsave", "openvt", "setlock", "sem", "chrootuid", "schroot", "systemd-nspawn", "systemd-cat"}
)  # fmt: skip
# They do not run their words; whether they run what stands in a file of theirs is not known.
_PLAIN = NAMES_ONLY | SEARCHING | frozenset(
    {"cat", "tac", "head", "tail", "wc", "sort", "uniq", "cut", "tr", "paste", "column", "comm", "join", "fold",
     "fmt", "nl", "rev", "od", "xxd", "hexdump", "base64", "md5sum", "sha1sum", "sha256sum", "cksum", "strings",
     "file", "less", "more", "diff", "cmp", "patch", "sed", "awk", "gawk", "mawk", "jq", "yq", "cp", "mv", "ln",
     "install", "dd", "tar", "zip", "unzip", "gzip", "gunzip", "bzip2", "xz", "zstd", "cpio", "rsync", "scp", "sftp",
     "curl", "wget", "du", "df", "chown", "chgrp", "truncate", "shred", "split", "csplit", "tree", "ps", "top",
     "free", "id", "groups", "date", "cal", "env", "hostname", "man", "info", "help", "history", "jobs", "fg", "bg",
     "trap", "eval", "source", ".", "set", "mapfile", "readarray", "let", "alias", "hash", "getopts", "git", "gh",
     "make", "cmake", "ninja", "cc", "gcc", "g++", "clang", "clang++", "ld", "rustc", "go", "javac", "java", "mvn",
     "gradle", "node", "deno", "python", "python3", "perl", "ruby", "php", "pip", "pip3", "pytest", "ruff", "mypy",
     "eslint", "tsc", "prettier", "jest", "vitest", "mocha", "ava", "pylint", "flake8", "pyright", "shellcheck",
     "rspec", "phpunit", "tox", "nox", "yamllint", "bandit", "golangci-lint", "ctest", "bats", "hadolint", "vi",
     "vim", "nvim", "nano", "ed", "ex", "apt", "apt-get", "brew", "systemctl", "journalctl", "sqlite3", "psql", "su",
     "script"}
)  # fmt: skip
# What these options of theirs name is run by a shell.
SCRIPT_OPTIONS: Mapping[str, Sequence[str]] = {
    "tar": ("-I", "-F", "--use-compress-program", "--to-command", "--info-script", "--new-volume-script",
            "--rsh-command", "--rmt-command"),
    "sort": ("--compress-program",),
    "split": ("--filter",),
    "rsync": ("-e", "--rsh", "--rsync-path"),
    "scp": ("-S", "-D"),
    "sftp": ("-S", "-D"),
    "rg": ("--pre", "--hostname-bin"),
    "man": ("-P", "-H", "--pager", "--html"),
    "zip": ("-TT", "--unzip-command"),
    "nc": ("-e", "-c", "--exec", "--sh-exec"),
    "ncat": ("-e", "-c", "--exec", "--sh-exec"),
}  # fmt: skip
# Words with which they run something that stands inside; what their names do not tell is not known.
_RUNNING_WORDS = {
    name: re.compile(pattern)
    for names, pattern in {
        "tar": r"^--ch|^(?:exec|command)=",
        "scp sftp": r"(?i)command|match +exec",
        "make gmake": r"^SHELL[:+?]*=|^--ev|^-E|\$",
        "socat": r"(?i)(?:exec|system|shell):",
        "vi vim nvim ex ed view less": r"!|system",
        "awk gawk mawk": r"system *\(|\|&?\s*(?:\"|getline)|print[^|/]{0,99}\|(?!\|)|@load|@include",
        "sed": r"(?:^|[;\n{}0-9$ ])e(?:[ ;}\n]|$)|[^\w\s-][gpiImM0-9]{0,6}e[gpiImM0-9]{0,6}(?:$|[;}\n ])",
        "sqlite3": r"\.(?:shell|system|open|import)\b",
        "psql": r"\\!",
    }.items()
    for name in names.split()
}
_RUNNERS = frozenset(
    {"uv", "npm", "pnpm", "yarn", "bun", "poetry", "pipenv", "pdm", "hatch", "rye", "conda", "mamba", "micromamba",
     "mise", "rtx", "asdf", "direnv", "bundle", "nix", "nix-shell", "guix", "volta", "fnm", "nvm", "pyenv", "rbenv",
     "docker", "podman", "kubectl", "devbox", "pixi", "opam", "stack", "cabal", "dotnet", "cargo", "flatpak", "snap"}
)  # fmt: skip
_RUN = frozenset({"run", "exec", "x", "dlx", "tool", "shell", "develop", "c", "--run", "--command", "-c"})
_LOADER = re.compile(r"ld(?:-[\w.-]+|64|32)?\.so(?:\.[0-9]+)?|ld-musl-.+")
_SCRIPTED = frozenset({"-c", "--call", "--command", "--run", "-e", "-i", "eval", "--shell", "-x"})
_SHELL = re.compile(r"(?:.*/)?(?:(?:ba|da|a|z|k|mk|rba|fi|c|tc)?sh|busybox|toybox|parallel|env|xargs|su|script|watch)")
_GIT_PROGRAM = re.compile(
    r"alias\.|.*(?:editor|pager|command|fsmonitor|hookspath|helper|external|textconv|program|proxy|driver|cmd|filter"
    r"|clean|smudge|process|include|url\.)", re.IGNORECASE
)  # fmt: skip
_GIT_VALUED = frozenset(
    {"-c", "-C", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--attr-source", "--config-env",
     "--list-cmds"}
)  # fmt: skip
_GIT_PROGRAM_OPTIONS = {"rebase": ("-x",), "grep": ("-O",), "difftool": ("-x",), "ls-remote": ("ext::",),
                        "clone": ("-u", "-c", "ext::"), "fetch": ("ext::",), "pull": ("ext::",)}  # fmt: skip
_ANY_GIT_PROGRAM = ("--exec", "--upload-pack", "--receive-pack", "--open-files", "--extcmd", "--ext-diff")
_NO_PROGRAM = frozenset({"", "cat", "true", "false", "less"})


def launched(name: str, words: Sequence[str]) -> tuple[list[str], bool]:
    """Spellings of the command that a launcher may run, and whether it may run something that cannot be told."""
    if name == "git":
        return _by_git(words)
    if name in _LAUNCHERS or _LOADER.fullmatch(name):
        return _ends(words[1:])
    if name in _RUNNERS:
        at = next((at for at, word in enumerate(words[1:4], start=2) if word in _RUN), None)
        if at is not None and len(words) > at:
            return ([], False) if name == "npm" and words[at - 1] == "run" else _ends(words[at - 1 :])
    return [], False


def by_argument(name: str, words: Sequence[str]) -> bool:
    """Whether a known program runs something that stands in one of its words, which is not a command by itself."""
    if name == "tar" and words and re.match("[a-zA-Z]*[IF]", words[0]):  # options as they were written long ago
        return True
    pattern = _RUNNING_WORDS.get(name)
    return pattern is not None and any(pattern.search(word) for word in words)


def is_plain(name: str) -> bool:
    """Whether it is known of a program that its words are no command, and which of them it writes."""
    return name in _PLAIN or name in _RUNNERS


def argument_commands(words: Sequence[str]) -> list[str]:
    """Spellings of the command that a program might run, which is not known here: it may begin at any of its words, or
    be a text behind an option. Long ones are cut."""
    found: list[str] = []
    for at, word in enumerate(words):
        first = word.partition("=")[2] if word.startswith("-") else word
        if first and is_known(first):
            rest = [*words[at + 1 : at + _MAX_FOLLOWING], *([UNKNOWN] if len(words) > at + _MAX_FOLLOWING else [])]
            found.append(rendered([first.rpartition("/")[2] or first, *rest]))
        if first and (word != first or (at and words[at - 1] in _SCRIPTED)):
            found.append(first)
    return found


def without_options(name: str, words: Sequence[str]) -> list[str]:
    """A command without the options before its subcommand; nothing where there are none."""
    if name != "git":
        return []
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 1 + (words[at] in _GIT_VALUED)
    return [name, *words[at:]] if 1 < at < len(words) else []


def _ends(words: Sequence[str]) -> tuple[list[str], bool]:
    unclear = len(words) > _MAX_ENDS or any(
        word in _SCRIPTED or _SHELL.fullmatch(word) or word.startswith(("--call=", "--command=", "--run="))
        for word in words
    )
    ends = [list(words[at:]) for at in range(min(len(words), _MAX_ENDS))]
    for end in ends:
        end[0] = end[0].rpartition("/")[2]
    unclear = unclear or any(not end[0] or UNKNOWN in end[0] for end in ends[:3])
    return [text for end in ends for text in (rendered(end), " ".join(end))], unclear


def _by_git(words: Sequence[str]) -> tuple[list[str], bool]:
    """What git runs for others: `bisect run`, `submodule foreach`, `rebase -x`, settings that name a program."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        if words[at].startswith(("--exec-path=", "--config-env")):
            return [], True
        if words[at].startswith("-c") and _names_program(words[at][2:] or "".join(words[at + 1 : at + 2])):
            return [], True
        at += 1 + (words[at] in _GIT_VALUED)
    sub, rest = "".join(words[at : at + 1]), words[at + 1 :]
    if (sub == "bisect" and "run" in rest) or (sub == "submodule" and "foreach" in rest):
        found, unclear = _ends(rest)
        return found, unclear or any(" " in word for word in rest)
    programs = _GIT_PROGRAM_OPTIONS.get(sub, ()) + _ANY_GIT_PROGRAM
    return [], sub == "filter-branch" or any(word.startswith(programs) for word in rest)


def _names_program(setting: str) -> bool:
    key, sign, program = setting.partition("=")
    return UNKNOWN in key or (bool(sign) and _GIT_PROGRAM.match(key) is not None and program not in _NO_PROGRAM)
