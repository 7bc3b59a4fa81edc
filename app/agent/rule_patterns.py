"""Which texts the pattern of a permission rule means, also where pieces of them are not known; many patterns at once.

Knows no rule and no verdict.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase, translate
from functools import lru_cache

UNKNOWN = "\0"  # in a text: a piece, of any length, that is not known before the call runs; no command can hold it
ANY_NAME = "\1"  # in the path of a file: a piece of one name that is not known; no command can hold it either
_MAX_DOUBTFUL = 2_000  # characters of a text with unknown pieces that are compared; a longer one may mean anything
_STRIP = 2_000  # patterns are looked for in groups of about so many characters: a number of bits that is fast to handle
_STAR = ""


class PatternKind(StrEnum):
    """What the pattern of a rule is about."""

    COMMAND = "command"
    PATH = "path"
    DOMAIN = "domain"
    AGENT = "agent"


def is_known(text: str) -> bool:
    """Whether no piece of it is unknown."""
    return UNKNOWN not in text and ANY_NAME not in text


def fits(kind: PatternKind, pattern: str, text: str, strict: bool) -> bool:
    """Whether a pattern means a text. `strict`: to allow it; else to restrict it, and then rather more than less. An
    unknown piece goes into a star only."""
    if kind is PatternKind.PATH:
        return _path_matches(pattern, text, not strict)
    if kind is PatternKind.DOMAIN:
        below = pattern if pattern.startswith("*.") else f"*.{pattern}"
        return any(star_matches(host, text) for host in {pattern, below})
    if kind is PatternKind.AGENT and not strict:  # a name that is nearly right starts the agent, too
        pattern, text = _bare(pattern), _bare(text)
    if star_matches(pattern, text):
        return True
    return kind is PatternKind.COMMAND and pattern.endswith(" *") and star_matches(pattern[:-2], text)


def may_fit(kind: PatternKind, pattern: str, text: str) -> bool:
    """Whether something in the unknown pieces of a text makes it one that the pattern means, to restrict it."""
    if kind is PatternKind.PATH and UNKNOWN not in text and len(text) <= _MAX_DOUBTFUL:
        return _path_matches(pattern, text, True, unknown_fits=True)
    return bool(_alone(kind, pattern).hits(text))


def means_any(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Whether one of these path patterns means a path, to restrict it: as `fits`, for a great many paths."""
    names: set[str] = set()
    wild: list[Callable[[str], object]] = []
    others: list[tuple[frozenset[str], str]] = []
    for pattern in patterns:
        wanted, literal = _names_of(pattern)
        if len(wanted) != 2 or wanted[0] != "**" or wanted[1] == "**":
            others.append((literal, pattern))
        elif literal:
            names.update(literal)
        else:
            wild.append(re.compile(translate(wanted[1])).match)

    def means(path: str) -> bool:
        found = [] if path == "." else path.split("/")
        return (
            not names.isdisjoint(found)
            or any(each(name) for each in wild for name in found)
            or any(literal.issubset(found) and _path_matches(pattern, path, True) for literal, pattern in others)
        )

    return means


def star_matches(pattern: str, text: str) -> bool:
    """Whether a text is one that the pattern means, in which `*` is anything."""
    first, *between = pattern.split("*")
    if not between:
        return pattern == text
    last = between.pop()
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in between:  # the first place of each leaves the most to the next
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


def _bare(name: str) -> str:
    return "".join(char for char in name.casefold() if char.isalnum() or char in f"*{UNKNOWN}")


# ── paths, name by name ─────────────────────────────────────────────────────────────────────────────────────────


def _path_matches(pattern: str, path: str, below: bool, unknown_fits: bool = False) -> bool:
    """`below`: what lies below a match belongs to it. `unknown_fits`: also what `ANY_NAME` may stand for."""
    wanted, literal = _names_of(pattern)
    names = [] if path == "." else path.split("/")
    if not unknown_fits and not literal.issubset(names):
        return False
    end = len(wanted)

    def skipped(places: set[int]) -> set[int]:
        for at in range(end):
            if at in places and wanted[at] == "**":
                places.add(at + 1)
        return places

    places = skipped({0})
    for name in names:
        held = {at for at in places if at < end and wanted[at] == "**"}
        ahead = {at + 1 for at in places if at < end and _name_matches(wanted[at], name, unknown_fits)}
        places = skipped(held | ahead)
        if below and end in places:
            return True
    return end in places


@lru_cache(maxsize=4_096)
def _names_of(pattern: str) -> tuple[list[str], frozenset[str]]:
    """The names of a path pattern, and those of them that stand for themselves."""
    names = pattern.split("/")
    return names, frozenset(name for name in names if not any(char in name for char in "*?["))


def _name_matches(pattern: str, name: str, unknown_fits: bool) -> bool:
    if pattern == "**":
        return False
    if not unknown_fits or ANY_NAME not in name:
        return fnmatchcase(name, pattern)
    rough = pattern.partition("[")[0].replace("?", "*") + ("*" if "[" in pattern else "")
    return bool(_alone(PatternKind.AGENT, rough).hits(name))


# ── many patterns at once ───────────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=64)
def screen(kind: PatternKind, patterns: tuple[str, ...]) -> "Screen":
    """The screen of these patterns; made once for all runs under the same rules."""
    return Screen(kind, patterns)


@lru_cache(maxsize=2_048)
def _alone(kind: PatternKind, pattern: str) -> "Screen":
    return Screen(kind, (pattern,))


class Screen:
    """Several patterns that a text is held against together: which of them may mean it, rather more than less.

    Linear in the text and in the patterns, whatever they are: the places in all patterns that a reading of the text may
    have reached are the bits of one number.
    """

    __slots__ = ("_all", "_dot", "_strips")

    def __init__(self, kind: PatternKind, patterns: Sequence[str]) -> None:
        self._all = frozenset(range(len(patterns)))
        self._dot = kind is PatternKind.PATH
        self._strips: list[_Strip] = []
        for number, pattern in enumerate(patterns):
            if not self._strips or self._strips[-1].length > _STRIP:
                self._strips.append(_Strip())
            for form in _forms(kind, pattern):
                self._strips[-1].add(number, *form)

    def hits(self, text: str) -> frozenset[int]:
        """The numbers of the patterns that may mean the text."""
        if len(text) > _MAX_DOUBTFUL:
            return self._all
        if self._dot and text == ".":
            text = ""
        return frozenset(number for strip in self._strips for number in strip.hits(text))


class _Strip:
    """Patterns side by side in one number: a bit for each place in each of them, and one that is never set between."""

    __slots__ = ("_chars", "_ends", "_guards", "_optional", "_owners", "_stars", "_starts", "length")

    def __init__(self) -> None:
        self._stars = self._optional = self._starts = self._ends = self._guards = self.length = 0
        self._chars: dict[str, int] = {}
        self._owners: dict[int, int] = {}

    def add(self, number: int, tokens: Sequence[str], optional: Sequence[int]) -> None:
        """`optional`: places from which the next two tokens may be left out."""
        self._starts |= 1 << self.length
        for at, token in enumerate(tokens, start=self.length):
            if token == _STAR:
                self._stars |= 1 << at
            else:
                self._chars[token] = self._chars.get(token, 0) | 1 << at
        for at in optional:
            self._optional |= 1 << self.length + at
        end = self.length + len(tokens)
        self._owners[end] = number
        self._ends |= 1 << end
        self._guards |= 2 << end
        self.length = end + 2

    def hits(self, text: str) -> Iterator[int]:
        """The numbers of the patterns that may mean the text."""
        below_guards = ((1 << self.length) - 1) ^ self._guards
        places = self._skipped(self._starts)
        for char in text:
            if char in (UNKNOWN, ANY_NAME):
                reached = (places + below_guards) & self._guards  # of patterns in which a place was reached at all
                places |= reached - places  # and in these every place behind the first one
                places &= below_guards
            else:
                places = self._skipped((places & self._chars.get(char, 0)) << 1 | places & self._stars)
            if not places:
                return
        found = places & self._ends
        while found:
            yield self._owners[found.bit_length() - 1]
            found ^= 1 << found.bit_length() - 1

    def _skipped(self, places: int) -> int:
        while (more := places | (places & self._stars) << 1 | (places & self._optional) << 2) != places:
            places = more
        return places


def _forms(kind: PatternKind, pattern: str) -> Iterator[tuple[list[str], list[int]]]:
    """A pattern as tokens, a star for each piece that may be anything, with the places of what may be missing."""
    if kind is PatternKind.PATH:
        yield _path_form(pattern)
        return
    tokens = [_STAR if char == "*" else char for char in pattern]
    yield tokens, [len(tokens) - 2] if kind is PatternKind.COMMAND and pattern.endswith(" *") else []
    if kind is PatternKind.DOMAIN and not pattern.startswith("*."):
        yield [_STAR, ".", *tokens], []


def _path_form(pattern: str) -> tuple[list[str], list[int]]:
    """A path pattern with all that lies below it."""
    tokens: list[str] = []
    optional: list[int] = []
    for name in pattern.split("/"):
        if name == "**":
            optional.append(len(tokens))
            tokens += [_STAR, "/"]
        else:
            plain = name.partition("[")[0]
            tokens += [_STAR if char in "*?" else char for char in plain]
            tokens += [_STAR, "/"] if plain != name else ["/"]
    if pattern == "**" or pattern.endswith("/**"):  # the last one is what lies below
        del tokens[-2:], optional[-1]
    if not tokens:
        return [_STAR], []
    return [*tokens, _STAR], [*optional, len(tokens) - 1]
