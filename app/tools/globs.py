"""Glob patterns over paths, as two linear-time expressions: what matches, and which directories may hold a match.

`*` and `?` stay within a name, `**` as a whole name stands for any number of directories, `[…]` and `{a,b}` work as
in shells, a backslash takes the next character literally. Names that begin with a dot are names like others.
Knows nothing of directories on a disk.
"""

from itertools import pairwise
from typing import Any

import re2

MAX_PATTERN_CHARS = 1_000
_MAX_ALTERNATIVES = 64
_SPECIAL = frozenset("*?[{\\")
_ANY_DIRECTORIES = "**"


class Glob:
    """A pattern, relative to where a search begins. Raises ValueError, in words for a model, if it cannot be one."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise ValueError(f"the pattern is longer than {MAX_PATTERN_CHARS:,} characters")
        alternatives = [_names_of(text) for text in _alternatives(pattern)]
        self.literal_names = frozenset(
            name for names in alternatives for name in names if not _SPECIAL.intersection(name)
        )
        self._whole = _compiled("|".join(_whole(names) for names in alternatives))
        self._leading = _compiled("|".join(_leading(names[:-1]) for names in alternatives))

    def matches(self, path: str) -> bool:
        """Whether the whole path matches."""
        return self._whole.fullmatch(_encoded(path)) is not None

    def may_hold(self, directory: str) -> bool:
        """Whether something below this directory can match."""
        return self._leading.fullmatch(_encoded(directory)) is not None


def _encoded(path: str) -> bytes:
    # Bytes of a name that are no UTF-8 (surrogate escapes here) count as one odd character each.
    return path.encode("utf-8", "replace")


def _compiled(expression: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.dot_nl = True
    options.max_mem = 2 * 1024 * 1024
    try:
        return re2.compile(expression, options)
    except UnicodeEncodeError:
        raise ValueError("the pattern is not valid Unicode") from None
    except re2.error as error:
        raise ValueError(f"the pattern cannot be used: {_text_of(error)}") from None


def _text_of(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


def _names_of(pattern: str) -> list[str]:
    """The names between the slashes; empty ones and `.` are left out, a trailing `**` means all that is below."""
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    if ".." in names:
        raise ValueError("'..' is not supported in a pattern; give the directory to search in as path")
    if not names:
        raise ValueError("the pattern is empty; '*' lists a directory, '**/*' everything below it")
    kept = [name for i, name in enumerate(names) if name != _ANY_DIRECTORIES or names[i - 1 : i] != [name]]
    return [*kept, "*"] if kept[-1] == _ANY_DIRECTORIES else kept


def _whole(names: list[str]) -> str:
    parts = ["(?:[^/]+/)*" if name == _ANY_DIRECTORIES else _name(name) + "/" for name in names[:-1]]
    return "".join(parts) + _name(names[-1])


def _leading(names: list[str]) -> str:
    """Matches each directory on the way: for `a/b/*.py` these are `a` and `a/b`."""
    expression = ""
    for name in reversed(names):
        deeper = f"(?:/{expression})?" if expression else ""
        expression = ".*" if name == _ANY_DIRECTORIES else _name(name) + deeper
    return f"(?:{expression})" if expression else "(?:[^\\x00-\\x{10FFFF}])"  # the latter matches nothing


def _name(pattern: str) -> str:
    """The expression for one name."""
    out: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*":
            if out[-1:] != ["[^/]*"]:
                out.append("[^/]*")
        elif char == "?":
            out.append("[^/]")
        elif char == "[":
            expression, at = _class(pattern, at)
            out.append(expression)
        else:
            if char == "\\" and at < len(pattern):
                char, at = pattern[at], at + 1
            out.append(_quoted(char))
    return "".join(out)


def _class(pattern: str, at: int) -> tuple[str, int]:
    """The expression for the character class whose `[` stands before `at`, and where the pattern goes on."""
    end = pattern.find("]", at + (2 if pattern[at : at + 1] in ("!", "^") else 1))
    if end < 0:
        return _quoted("["), at
    content = pattern[at:end]
    negated = content[0] in "!^"
    members = "".join(c if c == "-" else _quoted(c) for c in content[negated:])
    return (f"[^/{members}]" if negated else f"[{members}]"), end + 1


def _quoted(char: str) -> str:
    return char if char.isalnum() or char == "_" or ord(char) > 127 else f"\\x{ord(char):02x}"


def _alternatives(pattern: str) -> list[str]:
    """The pattern with its braces written out; braces without a comma or partner are ordinary characters."""
    done: list[str] = []
    open_ones = [pattern]
    while open_ones:
        text = open_ones.pop()
        group = _first_group(text)
        if group is None:
            done.append(text)
        else:
            start, end, choices = group
            open_ones.extend(text[:start] + choice + text[end:] for choice in reversed(choices))
        if len(done) + len(open_ones) > _MAX_ALTERNATIVES:
            raise ValueError(f"the pattern has more than {_MAX_ALTERNATIVES} alternatives in braces")
    return list(dict.fromkeys(done))


def _first_group(text: str) -> tuple[int, int, list[str]] | None:
    """Start, end and choices of the first `{a,b}` that is closed; of nested ones that is an inner one."""
    unclosed: list[list[int]] = []
    escaped = False
    for at, char in enumerate(text):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "{":
            unclosed.append([at])
        elif char == "," and unclosed:
            unclosed[-1].append(at)
        elif char == "}" and unclosed:
            cuts = [*unclosed.pop(), at]
            if len(cuts) > 2:
                return cuts[0], at + 1, [text[a + 1 : b] for a, b in pairwise(cuts)]
    return None
