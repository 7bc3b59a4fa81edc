"""What the readers of one definition share: where they state what they found, and how a plain value is read.

A file is read tolerantly (every scalar is text, trouble becomes a warning where that is safe), a mapping that came
over the API strictly (JSON types, trouble is refused). Knows no field by name.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.agent.definition import OwnHook, OwnServer

MAX_FINDINGS = 50  # of one definition: a hostile one must not fill the report
MAX_NAMES = 10_000  # of one list: more than any service has of tools and agents; each is looked at in every step
_SHOWN = 60  # characters of a value in a message


class Plain(str):
    """A YAML scalar that was written without quotes: its text as it stands; whoever reads it decides on its type."""

    __slots__ = ()


class Level(StrEnum):
    """How bad a finding is. `later`: a known key or value that this version does not carry out yet."""

    ERROR = "error"
    WARNING = "warning"
    LATER = "later"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to say about a definition; `line` is 1-based in the file, 0 where there is no file."""

    level: Level
    key: str
    message: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """Whether what a file brings along can be used here: what is wrong with it and how to mend that, None for
    nothing."""

    hook: Callable[[OwnHook], str | None] = lambda hook: None
    server: Callable[[OwnServer], str | None] = lambda server: None


NO_CHECKS = Checks()


class Reading:
    """One definition while it is read. `line` is that of the entry which is being read.

    `known_tools` None: which tools exist is not known here, so tool names are mapped but not checked. `agent_tools`:
    names that agents gave themselves as tools. `guarded`: the values that are being read limit something, so an
    unusable one must not turn into a default. `trusted`: an operator vouches for the file. `checks` look at what it
    brings along.
    """

    __slots__ = ("agent_tools", "checks", "found", "guarded", "known_tools", "line", "strict", "trusted")

    def __init__(
        self,
        *,
        strict: bool,
        known_tools: frozenset[str] | None,
        agent_tools: frozenset[str] = frozenset(),
        trusted: bool = True,
        checks: Checks = NO_CHECKS,
    ) -> None:
        self.strict = strict
        self.checks = checks
        self.trusted = trusted
        self.guarded = False
        self.known_tools = known_tools
        self.agent_tools = agent_tools
        self.line = 0
        self.found: list[Finding] = []

    def error(self, key: str, message: str) -> None:
        """The definition cannot be used: either it says nothing usable, or guessing could widen rights."""
        self._add(Level.ERROR, key, message)

    def warn(self, key: str, message: str, then: str) -> None:
        """A value that is not usable: in a file it is left out, with `then` saying what holds instead; else refused."""
        if self.strict or self.guarded:
            self._add(Level.ERROR, key, message)
        else:
            self._add(Level.WARNING, key, f"{message}; {then}")

    def remark(self, key: str, message: str) -> None:
        """A value that is kept and worth a word to the author of a file; not said to a program."""
        if not self.strict:
            self._add(Level.WARNING, key, message)

    def later(self, key: str, message: str) -> None:
        """A known key or value that is not carried out yet."""
        self._add(Level.LATER, key, message)

    @contextmanager
    def limiting(self) -> Iterator[None]:
        """While values are read that limit something: see `guarded`."""
        before, self.guarded = self.guarded, True
        try:
            yield
        finally:
            self.guarded = before

    def plain(self, value: Any) -> Any:
        """The value as JSON."""
        return value if self.strict else typed(value)

    @property
    def failed(self) -> bool:
        """An error was stated."""
        return any(finding.level is Level.ERROR for finding in self.found)

    def _add(self, level: Level, key: str, message: str) -> None:
        if len(self.found) >= MAX_FINDINGS and (level is not Level.ERROR or self.failed):
            return
        self.found.append(Finding(level=level, key=key, message=message, line=self.line))


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")  # 18 digits fit 64 bits; `007` is a name, not a number
_REAL = re.compile(r"[-+]?(?:[0-9]{1,17}\.[0-9]{0,17}|\.[0-9]{1,17}|[0-9]{1,17})(?:[eE][-+]?[0-9]{1,3})?")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_COMMAS = re.compile(r"[,，、\n]")


def shown(value: Any) -> str:
    """A value for a message, cut to a readable length."""
    if not is_scalar(value):
        return "a map" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and value.bit_length() > 64:
        return "a very large number"
    text = repr(str(value)[: _SHOWN + 1] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def is_scalar(value: Any) -> bool:
    """Neither a list nor a map."""
    return not isinstance(value, (list, tuple, dict))


def deeper_than(value: Any, limit: int) -> bool:
    """Whether lists and maps are nested in more levels than that."""
    level = [value]
    for _ in range(limit + 1):
        level = [
            inner
            for item in level
            if not is_scalar(item)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True


def is_unset(value: Any) -> bool:
    """Null in JSON; in YAML also `~` and nothing at all."""
    return value is None or (isinstance(value, Plain) and value in _NULLS)


def is_flag(text: str) -> bool | None:
    """The truth value that a text names, or None."""
    return _FLAGS.get(text.strip().lower())


def typed(value: Any) -> Any:
    """A value as JSON: unquoted scalars become null, boolean or number by the core schema of YAML 1.2.

    Dates, octal numbers, `yes` and `on` stay text, since nobody who writes a prompt means them otherwise.
    """
    if isinstance(value, Plain):
        return _resolved(str(value))
    if isinstance(value, dict):
        return {str(key): typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return value


def _resolved(text: str) -> Any:
    if text in _NULLS:
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    if text[:1] in "+-.0123456789" and _REAL.fullmatch(text) and not text.isdigit():
        number = float(text)
        return number if math.isfinite(number) else text
    return text


def as_text(reading: Reading, key: str, value: Any, *, strip: bool = True) -> str | None:
    """The text, without outer white space if `strip`; None when nothing is left. A file's scalars are text as they
    stand."""
    if not isinstance(value, str):
        reading.warn(key, f"{key} must be text, not {shown(value)}", "it is left out")
        return None
    text = clean(reading, key, str(value).replace("\r\n", "\n"))
    return (text.strip() if strip else text) or None


def clean(reading: Reading, key: str, text: str) -> str:
    """The text without control characters and lone surrogates, which no store and no model takes."""
    if _CONTROLS.search(text) is None:
        return text
    reading.warn(key, f"{key} contains control characters", "they are taken out")
    return _CONTROLS.sub("", text)


def as_integer(reading: Reading, key: str, value: Any, low: int, high: int, then: str) -> int | None:
    """A whole number within bounds, both included."""
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    if number is None and not reading.strict and isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        number = int(value)
    if number is not None and low <= number <= high:
        return number
    reading.warn(key, f"{key} must be a whole number from {low} to {high}, not {shown(value)}", then)
    return None


def as_real(reading: Reading, key: str, value: Any, low: float, high: float, then: str) -> float | None:
    """A number within bounds, both included."""
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if number is None and not reading.strict and isinstance(value, str) and _REAL.fullmatch(value.strip()):
        number = float(value)
    if number is not None and low <= number <= high:
        return float(number)
    reading.warn(key, f"{key} must be a number from {low:g} to {high:g}, not {shown(value)}", then)
    return None


def as_flag(reading: Reading, key: str, value: Any, then: str) -> bool | None:
    """true/false; in a file also yes/no, on/off, 1/0."""
    flag = value if isinstance(value, bool) else None
    if flag is None and not reading.strict and isinstance(value, str):
        flag = is_flag(value)
    if flag is None:
        reading.warn(key, f"{key} must be true or false, not {shown(value)}", then)
    return flag


def as_names(reading: Reading, key: str, value: Any) -> tuple[str, ...] | None:
    """A list of names, each once; in a file also a comma string. Commas inside parentheses belong to a name.

    An unreadable list is an error, since every list of names here grants or limits something.
    """
    if isinstance(value, str) and not reading.strict:
        return unique(split_at_commas(value.strip().strip("[]")))
    if not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        reading.error(key, f"{key} must be a list of names, not {shown(value)}")
        return None
    if too_many(reading, key, len(value), MAX_NAMES, "names"):
        return None
    return unique(str(item).strip() for item in value)


def too_many(reading: Reading, key: str, count: int, most: int, what: str) -> bool:
    """Whether a list is longer than what is accepted; then the error is stated."""
    if count > most:
        reading.error(key, f"{key} has {count:,} {what}, at most {most:,} are accepted: leave some out")
    return count > most


def unique(names: Iterable[str]) -> tuple[str, ...]:
    """The names that are not empty, without quotes around them, each once and in order."""
    return tuple(dict.fromkeys(name for name in (part.strip(" \t\"'`") for part in names) if name))


def split_at_commas(text: str) -> list[str]:
    """Parts between commas (also Chinese ones) and line ends; those inside parentheses do not count."""
    if "(" not in text:
        return _COMMAS.split(text)
    parts, begin, depth = [], 0, 0
    for at, char in enumerate(text):
        if char == "(":
            depth += 1
        elif char == ")":
            depth = max(0, depth - 1)
        elif depth == 0 and char in ",，、\n":
            parts.append(text[begin:at])
            begin = at + 1
    return [*parts, text[begin:]]
