"""Which files a command names: those that it writes, where it goes, directories that it takes as a whole, and words
that hold a name among other things.

Knows usual commands and how options are written, not what a program does inside.
"""

import posixpath
import re
from collections.abc import Iterator, Sequence

from app.agent.rule_patterns import ANY_NAME, UNKNOWN

# They never open what their arguments name; those that write it are below.
NAMES_ONLY = frozenset(
    {"echo", "printf", "true", "false", ":", "test", "[", "basename", "dirname", "pwd", "sleep", "ls", "cd", "pushd",
     "popd", "mkdir", "rmdir", "rm", "unlink", "touch", "export", "declare", "typeset", "local", "readonly", "unset",
     "read", "exit", "return", "shift", "kill", "wait", "seq", "which", "type", "stat", "realpath", "readlink", "tr",
     "tee", "find", "chmod", "command", "whoami", "uname"}
)  # fmt: skip
_ALL_WRITTEN = frozenset(
    {"tee", "touch", "truncate", "rm", "rmdir", "mkdir", "unlink", "shred", "mv", "patch", "ed", "ex", "vi", "vim",
     "nano", "gzip", "gunzip", "bzip2", "bunzip2", "xz", "unxz", "zstd", "dos2unix", "fallocate", "mkfifo", "mknod",
     "chmod", "chown", "chgrp", "setfacl", "sponge", "script", "nvim"}
)  # fmt: skip
_COPYING = frozenset({"cp", "ln", "install", "mv", "rsync", "scp"})
_GIT_CHANGES = frozenset({"apply", "am", "clean"})
_GIT_WRITES = frozenset({"checkout", "restore", "rm", "mv", "apply", "clean", "clone", "init", "worktree"})
_OUTPUT_OPTIONS = {
    "sort": ("-o", "--output"),
    "curl": ("-o", "-D", "-c", "--output", "--dump-header", "--cookie-jar", "--output-dir"),
    "wget": ("-O", "-o", "-a", "-P", "--output-document", "--output-file", "--directory-prefix"),
    "find": ("-fprint", "-fprint0", "-fprintf", "-fls"),
    "git": ("-o", "--output", "--output-directory"),
    "zip": ("-O", "--out"),
    "unzip": ("-d",),
    **dict.fromkeys(("7z", "7za"), ("-o",)),
    **dict.fromkeys(("cc", "gcc", "g++", "clang", "clang++", "ld", "rustc", "go", "pandoc", "dot"), ("-o", "--output")),
}
_DIRECTORY = re.compile(r"-C(.*)|--(?:directory|chdir|cwd|prefix)(?:=(.*))?", re.DOTALL)
_BETWEEN = re.compile(r"[=:,@<;]")
_PATH = re.compile(r"[\w./~+-]+")
_MAX_DEPTH = 12  # names of a path of which the last ones are tried alone
# They read all that lies below a directory, some of them with an option only, and what they were not told: `.`
SEARCHING = frozenset({"grep", "egrep", "fgrep", "zgrep", "rg", "ag", "ack", "ugrep"})
_SEARCHING_ALWAYS = frozenset({"rg", "ag", "ack"})
_DEEP = re.compile(r"-[a-zA-Z]*[rRa]|--(?:rec|arc|der|par|dir)|recurse", re.DOTALL)
_TAKING_ALL = frozenset({"rsync", "mv", "ditto", "mksquashfs", "genisoimage"})
_PACKING = {"zip": 1, "7z": 2, "7za": 2}  # words before those that are packed
_TAKING_DEEP = frozenset({"cp", "scp", "diff", "install"})
_CHANGING_DEEP = frozenset({"rm", "chmod", "chown", "chgrp", "setfacl"})
_FIXING = {"ruff": ("format", "--fix"), "prettier": ("--w", "-w"), "eslint": ("--fix",), "black": (), "isort": (),
           "rustfmt": (), "gofmt": ("-w",), "goimports": ("-w",), "clang-format": ("-i",),
           "shfmt": ("-w",)}  # fmt: skip
_TAR_MAKES = re.compile(r"-?[a-zA-Z]*[cruA]|--(?:cre|app|upd|cat|con)")
_TAR_UNPACKS = re.compile(r"-?[a-zA-Z]*x|--(?:ext|get)")
# Their words are programs, in which names of files may stand.
PROGRAMMED = frozenset(
    {"awk", "gawk", "mawk", "sed", "perl", "ruby", "python", "python3", "node", "php", "vi", "vim", "nvim", "ex",
     "view", "ed", "sqlite3", "psql", "jq"}
)  # fmt: skip
# Options with a value: letters, and words, which may be cut.
_GREP = "efmABCdD", ("regexp file max-count after-context before-context context directories devices include exclude "
                     "exclude-dir exclude-from binary-files label group-separator")  # fmt: skip
_COPY = "tS", "target-directory suffix backup-dir"
_VALUED = {
    **dict.fromkeys(("grep", "egrep", "fgrep", "zgrep"), _GREP),
    "rg": ("efgtTmABCjMrEd", "regexp file glob iglob type type-not max-count after-context before-context context "
           "threads max-columns replace encoding max-depth sort sortr max-filesize ignore-file colors engine"),
    **dict.fromkeys(("cp", "mv", "ln"), _COPY),
    "install": ("tSmgo", "target-directory suffix mode group owner strip-program"),
    "rsync": ("efBTM", "rsh filter exclude include exclude-from include-from files-from rsync-path temp-dir chmod "
              "compare-dest copy-dest link-dest backup-dir suffix bwlimit max-size min-size port timeout log-file"),
    "scp": ("cFiJloPSDX", ""),
    "uniq": ("fsw", "skip-fields skip-chars check-chars"),
    "split": ("abClnt", "suffix-length bytes line-bytes lines number separator filter additional-suffix"),
    "zip": ("bnt", ""),
    "git": ("cC", "git-dir work-tree namespace"),
}  # fmt: skip
_LISTS = re.compile(r"--(?:files0?-f|pathspec-from)")
_LISTED = {"tar": ("-T",), "zip": ("-@",), "curl": ("-K", "--config"), "wget": ("-i", "--input-file")}
_SED_WRITES = re.compile(r"(?:^|[;\n{}/0-9$ ])[wW]\s+([^\s;}]+)")
_MAX_LETTERS = 12  # letters at the beginning of an option that may be followed by the name of a file


def pieces(word: str) -> Iterator[str]:
    """What of a word may be the name of a file, if the command reads it so: behind the letter of an option, and between
    signs that keep names apart."""
    if word.startswith("-") and not word.startswith("--"):
        for at in range(2, min(len(word), _MAX_LETTERS)):
            if not word[at - 1].isalnum():
                break
            yield word[at:]
            yield word[at:].lstrip("=@<")
    split = _BETWEEN.split(word)
    if len(split) > 1:
        yield from split
        for found in _BETWEEN.finditer(word):
            yield word[found.end() :]


def directories(words: Sequence[str]) -> Iterator[str]:
    """The directories that a command goes to by an option before it looks for its files."""
    for at, word in enumerate(words):
        found = _DIRECTORY.fullmatch(word)
        if found is None:
            continue
        value = found[1] or found[2]
        if value or at + 1 < len(words):
            yield value or words[at + 1]


def operands(name: str, words: Sequence[str]) -> list[str]:
    """The words that are neither options nor, as far as the command is known, their values."""
    short, long = _VALUED.get(name, ("", ""))
    found: list[str] = []
    waiting = iter(words)
    for word in waiting:
        if word == "--":
            return [*found, *waiting]
        if word.startswith("--"):
            valued = "=" not in word and any(option.startswith(word[2:]) for option in long.split())
        elif word.startswith("-") and word != "-":
            ends = [at for at, letter in enumerate(word[1:], start=2) if letter in short]
            valued = bool(ends) and ends[0] == len(word)
        else:
            found.append(word)
            continue
        if valued:
            next(waiting, None)
    return found


def inside(name: str, words: Sequence[str]) -> Iterator[str]:
    """What may name a file inside of words that are programs, or names of things in a repository."""
    if name in PROGRAMMED:
        for word in words:
            if any(char in word for char in " \"'(<:;/"):
                yield from _PATH.findall(word)
    elif name == "git":
        for word in words:
            names = word.partition(":")[2].split("/") if ":" in word else []
            for at in range(min(len(names), _MAX_DEPTH)):  # seen from the root of the repository
                yield "/".join(names[at:])


def stored(name: str, words: Sequence[str]) -> Iterator[str]:
    """Files that a command reads out of a repository, as `REVISION:path`."""
    if name == "git":
        yield from (word.partition(":")[2] for word in words if ":" in word and not word.startswith("-"))


def walked(name: str, words: Sequence[str]) -> Iterator[str]:
    """The directories of which a command reads all that lies below."""
    plain = operands(name, words)
    if name in ("cpio", "pax") or _names_listed(name, words):
        yield UNKNOWN
    deep = any(_DEEP.match(word) for word in words)
    if name in SEARCHING and (name in _SEARCHING_ALWAYS or deep) and "--files" not in words:
        named = any(re.match(r"-[a-zA-Z]*[ef]|--(?:reg|fil)", word) for word in words)
        sure = name in _VALUED and len(plain) > 1 - named  # that it is told where to search
        yield from plain[1 - named :] if sure else (*plain, ".")
    elif name == "git" and plain[:1] in (["grep"], ["archive"]):
        yield "."
    elif name in _TAKING_ALL or (name in _TAKING_DEEP and deep):
        goes_to = name in _COPYING and not _target(name, words)
        yield from plain[:-1] if goes_to and len(plain) > 1 else plain
    elif name in _PACKING:
        yield from plain[_PACKING[name] :]
    elif name == "tar" and _tar(words, _TAR_MAKES):
        archives = {*option_values(words, ("-f", "--file")), *(plain[:1] if words[0] in plain else ())}
        archives |= {*plain[1:2]} if words[0] in plain and "f" in words[0] else set()
        yield from (word for word in plain if word not in archives)


def _names_listed(name: str, words: Sequence[str]) -> bool:
    """Whether the names of what is read stand in a file."""
    return any(map(_LISTS.match, words)) or any(True for _ in option_values(words, _LISTED.get(name, ())))


def changed(name: str, words: Sequence[str]) -> Iterator[str]:
    """The directories of which a command may change all that lies below."""
    plain = operands(name, words)
    deep = any(_DEEP.match(word) for word in words)
    if name == "mv" or (name in _CHANGING_DEEP and deep):
        yield from plain
    elif name in _FIXING and (not _FIXING[name] or any(word.startswith(_FIXING[name]) for word in words)):
        yield from plain or (".",)
    elif name in _COPYING and (deep or name == "rsync"):
        yield from _target(name, words) or plain[-1:]
    elif name in ("unzip", "cpio", "7z", "7za") or (name == "tar" and _tar(words, _TAR_UNPACKS)):
        yield from list(option_values(words, ("-d", "-C", "--directory"))) or (".",)
        yield from plain[1:]
    elif (name == "patch" and not plain) or (name == "git" and _GIT_CHANGES.intersection(plain[:1])):
        yield "."


def written(name: str, words: Sequence[str]) -> Iterator[str]:
    """The files that a command writes by itself, as far as it is one of the usual ones."""
    plain = operands(name, words)
    if name in _ALL_WRITTEN:
        yield from plain
    if name in _COPYING:
        yield from _copied(words, plain, _target(name, words))
    elif name == "dd":
        yield from (word[3:] for word in words if word.startswith("of="))
    elif name in ("sed", "perl", "ruby") and any(_in_place(word) for word in words):
        scripted = any(word in ("-e", "-f") or word.startswith("--expression") for word in words)
        yield from plain if scripted else plain[1:]
    elif name == "git" and _GIT_WRITES.intersection(plain[:2]):
        yield from plain
    yield from _also_written(name, words, plain)
    yield from option_values(words, _OUTPUT_OPTIONS.get(name, ()))


def _also_written(name: str, words: Sequence[str], plain: Sequence[str]) -> Iterator[str]:
    """What a command writes although no option says so, or one that is written like no other."""
    if name == "curl" and any(re.match(r"-[a-zA-Z]*[OJ]|--remote-", word) for word in words):
        yield UNKNOWN
    elif name == "wget" and not any(re.match(r"-[a-zA-Z]*O|--output-d", word) for word in words):
        recursive = any(re.match(r"-[a-zA-Z]*[rmi]|--(?:rec|mir|inp|con|tru)", word) for word in words)
        yield from [UNKNOWN] if recursive else (posixpath.basename(word) or "index.html" for word in plain)
    elif name == "sed":
        yield from (found for word in words for found in _SED_WRITES.findall(word))
    elif name == "uniq":
        yield from plain[1:2]
    elif name == "zip":
        yield from plain[:1]
    elif name == "split":
        yield f"{plain[1] if len(plain) > 1 else 'x'}{ANY_NAME}"
    elif name == "csplit":
        prefixes = list(option_values(words, ("-f", "--prefix")))
        yield from (f"{prefix}{ANY_NAME}" for prefix in prefixes or ["xx"])
    elif name == "nohup":
        yield "nohup.out"
    elif name == "script" and not plain:
        yield "typescript"
    elif name == "tar" and _tar(words, _TAR_MAKES):
        yield from option_values(words, ("-f", "--file"))
        if words and not words[0].startswith("-"):
            yield from plain[1:3]


def _target(name: str, words: Sequence[str]) -> list[str]:
    """The directory that an option names as the one where everything goes."""
    return list(option_values(words, ("-t", "--target-directory"))) if "t" in _VALUED[name][0] else []


def _tar(words: Sequence[str], does: re.Pattern[str]) -> bool:
    """Whether the options of tar, which the first word may be without a dash, say that it does this."""
    return any(does.match(word) for at, word in enumerate(words) if at == 0 or word.startswith("-"))


def _copied(words: Sequence[str], plain: Sequence[str], named: Sequence[str]) -> Iterator[str]:
    """Where copies go: the last name, or what has the name of a source in the directory that it is."""
    targets, sources = list(plain[-1:]), list(plain[:-1]) or list(plain)
    if named:
        targets, sources = list(named), list(plain)
    if any(re.match(r"-[a-zA-Z]*d|--dir", word) for word in words):  # `install -d`
        yield from plain
    if len(plain) == 1 and not named:
        targets.append(".")
    for target in targets:
        yield target
        for source in sources:
            base = posixpath.basename(source.rstrip("/"))
            yield f"{target}/{base if UNKNOWN not in source else ANY_NAME}"


def option_values(words: Sequence[str], options: Sequence[str]) -> Iterator[str]:
    """The values of these options, also behind other letters."""
    for at, word in enumerate(words):
        after = words[at + 1 : at + 2]
        for option in options:
            if word == option:
                yield from after
            elif len(option) > 2:
                name, sign, value = word.partition("=")
                if name == option or (option.startswith("--") and len(name) > 2 and option.startswith(name)):
                    yield from [value] if sign else after
            elif word[:1] == "-" and word[:2] != "--" and option[1] in word:  # among other letters
                rest = word.partition(option[1])[2]
                yield from [rest] if rest else after


def _in_place(word: str) -> bool:
    if word.startswith("--"):
        return word.startswith("--i")
    return word.startswith("-") and "i" in word and not word.startswith(("-e", "-f"))
