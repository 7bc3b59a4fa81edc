"""A pattern of secrets in four readings: the text itself, the JSON of it, the end of a text that goes on, and what is
sure to stand in each of them.

Patterns are written as for Python; without what needs more than linear time. Knows no secret.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from re import _constants as c  # type: ignore[attr-defined]  # where the parser keeps its words
from re import _parser  # type: ignore[attr-defined]  # a parser of our own would read patterns in another way
from re import error as PatternError  # noqa: N812  a name that says what it is about
from typing import Any, Final

import re2

MIN_CHARS = 4  # what a pattern must at least match: less would mask ordinary text
MAX_CHARS = 1000  # of a pattern
_MAX_MEMORY = 64 << 20
_FLAGS: Final = {c.SRE_FLAG_IGNORECASE: "i", c.SRE_FLAG_DOTALL: "s"}
_CATEGORIES: Final = {
    c.CATEGORY_DIGIT: r"\d",
    c.CATEGORY_NOT_DIGIT: r"\D",
    c.CATEGORY_SPACE: r"\s",
    c.CATEGORY_NOT_SPACE: r"\S",
    c.CATEGORY_WORD: r"\w",
    c.CATEGORY_NOT_WORD: r"\W",
}
_JSON_ESCAPE = r'\\(?:["\\/bfnrt]|u[0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F])'  # no counts: they multiply
_ESCAPED = '"\\' + "".join(map(chr, range(32)))
_JSON_LITERALS = {'"': r'\\"', "\\": r"\\\\", "\n": r"\\n", "\r": r"\\r", "\t": r"\\t", "\b": r"\\b", "\f": r"\\f"}
_MOST_MEMBERS = 10  # of a class that counts as one of a few characters
_FOLDED = {"k": "\u212a", "s": "\u017f"}  # what is the same letter beyond ASCII where case does not count
Items = Sequence[tuple[Any, Any]]
Words = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A pattern that was read. `whole`, `loose` and `opening` are texts for RE2: for a text, for JSON bytes (which may
    find too much), and for the end of a text that may be the beginning of a match. Of a match its first group is the
    secret, or all of it without a group; `accepts` has the last word. `sure` are words of which one stands in every
    text, and in all JSON, that these find something in: as rows of places, each with the characters that may be there;
    empty where nothing is sure."""

    source: str
    whole: str
    loose: str
    opening: str
    accepts: Callable[[str], bool] | None = field(default=None, compare=False)
    finder: Any = field(repr=False, compare=False)
    sure: Words = ()

    def finds(self, text: str, start: int = 0) -> list[tuple[int, int, int]]:
        """Where the secrets of this kind are in a text without lone surrogates: where what the pattern wants before
        one begins, where the secret does, and where it ends."""
        # what has to stand before a secret may be the last character that is not searched any more
        found = [
            (max(start, match.start()), *match.span(self.finder.groups))
            for match in self.finder.finditer(text, max(0, start - 1))
        ]
        accepts = self.accepts
        return [one for one in found if one[1] >= start and (accepts is None or accepts(text[one[1] : one[2]]))]


def read_pattern(source: str, accepts: Callable[[str], bool] | None = None) -> Pattern:
    """A pattern. Raises `ValueError` that says what is wrong with it."""
    if len(source) > MAX_CHARS:
        raise ValueError(f"it has {len(source):,} characters, at most {MAX_CHARS:,} are read")
    try:
        tree = _parser.parse(source)
    except (PatternError, RecursionError, OverflowError, Warning) as error:
        raise ValueError(f"it is no pattern: {error}") from None
    if tree.getwidth()[0] < MIN_CHARS:
        raise ValueError(f"it matches texts of fewer than {MIN_CHARS} characters, which would mask ordinary text")
    flags = _flags(tree.state.flags & ~c.SRE_FLAG_UNICODE)
    opening = _opening(tree)
    texts = [f"(?{flags}:{text})" for text in (_whole(tree), _loose(tree), opening)]
    whole, loose, opening = texts
    return Pattern(
        source=source,
        whole=whole,
        loose=loose,
        opening=opening,
        accepts=accepts,
        finder=compiled(whole),
        sure=_sure(tree, folded="i" in flags),
    )


def sure_of(value: str) -> Words:
    """What is sure to stand in every text with this value in it."""
    return _sure([(c.LITERAL, ord(char)) for char in value], folded=False)


def compiled(text: str | bytes, *, longest: bool = False) -> Any:
    """A text for RE2, compiled. Raises `ValueError`."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY
    options.longest_match = longest
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise ValueError(f"it cannot be carried out in linear time: {error}") from None


def _flags(given: int) -> str:
    unknown = given & ~(c.SRE_FLAG_IGNORECASE | c.SRE_FLAG_DOTALL)
    if unknown:
        raise ValueError("of flags only (?i) and (?s) are known here")
    return "".join(letter for flag, letter in _FLAGS.items() if given & flag)


# ── one reading each ────────────────────────────────────────────────────────────────────────────────────────────


def _whole(items: Items) -> str:
    """The pattern itself, in the syntax of RE2. Its first group stays one."""
    return "".join(_item(op, value, _whole, _literal, _class) for op, value in items)


def _loose(items: Items) -> str:
    """What the JSON of a text with a match in it has in it: escapes are taken for anything, boundaries for given."""
    return "".join("" if op is c.AT else _item(op, value, _loose, _json_literal, _json_class) for op, value in items)


def _plain(items: Items) -> str:
    return "".join(_item(op, value, _plain, _literal, _class) for op, value in items)


def _opening(items: Items) -> str:
    """Every beginning of what the pattern matches, and all of it: of `abc` that is `a(?:b(?:c)?)?`, in another form."""
    after = ""
    for op, value in reversed(items):
        here = "" if op is c.AT else _opening_of(op, value)
        onward = _plain([(op, value)]) + after if after else ""
        after = f"(?:{'|'.join(text for text in (here, onward) if text)})" if here or onward else ""
    return after


def _opening_of(op: Any, value: Any) -> str:
    if op is c.SUBPATTERN:
        _, add, remove, inner = value
        return _scoped(_opening(inner), add, remove)
    if op is c.BRANCH:
        return "|".join(text for text in (_opening(branch) for branch in value[1]) if text)
    if op in (c.MAX_REPEAT, c.MIN_REPEAT):
        _, most, inner = value
        if most == 0:
            return ""
        begun = _opening(inner)
        before = "*" if most is c.MAXREPEAT else f"{{0,{most - 1}}}"
        return f"(?:{_plain(inner)}){before}{begun}" if begun else ""
    return _plain([(op, value)])


def _sure(items: Items, *, folded: bool) -> Words:
    """The words of which every match has one in it; of several such sets the one whose shortest word is the longest."""
    best: Words = ()
    run: tuple[str, ...] = ()
    for op, value, folds in _in_row(items, folded):
        chars = _few(op, value, folded=folds)
        if chars:
            run = (*run, chars)
            continue
        best = max(best, *_sure_at(op, value, run, folded=folds), key=_least)
        run = ()
    return max(best, (run,), key=_least)


def _sure_at(op: Any, value: Any, run: tuple[str, ...], *, folded: bool) -> tuple[Words, Words]:
    """What is sure of a node that is not one of a few characters: with what stands before it, and inside it."""
    if op is c.BRANCH:
        inside = [_sure(branch, folded=folded) for branch in value[1]]
        words = tuple((*run, *_head(branch, folded)) for branch in value[1])
        return words, tuple(word for found in inside for word in found) if all(inside) else ()
    if op in (c.MAX_REPEAT, c.MIN_REPEAT) and value[0] > 0:
        return (run,), _sure(value[2], folded=folded)
    return (run,), ()


def _least(words: Words) -> int:
    return min(map(len, words), default=0)


def _head(items: Items, folded: bool) -> Iterator[str]:
    for op, value, folds in _in_row(items, folded):
        chars = _few(op, value, folded=folds)
        if not chars:
            return
        yield chars


def _in_row(items: Items, folded: bool) -> Iterator[tuple[Any, Any, bool]]:
    """The nodes one after the other, groups taken apart, each with whether case does not count in it."""
    for op, value in items:
        if op is c.SUBPATTERN:
            yield from _in_row(value[3], folded or bool(value[1] & c.SRE_FLAG_IGNORECASE))
        elif op is not c.AT:  # which takes no place
            yield op, value, folded


def _few(op: Any, value: Any, *, folded: bool) -> str:
    """The characters that a node may be, each the same in JSON; empty where they are not a few such characters."""
    if op is c.LITERAL:
        members = [(op, value)]
    elif op is c.IN and len(value) <= _MOST_MEMBERS:
        members = value
    else:
        return ""
    if not all(kind is c.LITERAL and 32 <= member < 127 and chr(member) not in '"\\' for kind, member in members):
        return ""
    chars = "".join(chr(member) for _, member in members)
    if not folded:
        return chars
    lower = chars.lower()
    return "".join(sorted({*lower, *chars.upper(), *(_FOLDED[char] for char in lower if char in _FOLDED)}))


# ── one node ────────────────────────────────────────────────────────────────────────────────────────────────────


def _item(
    op: Any, value: Any, inside: Callable[[Items], str], literal: Callable[[str], str], group: Callable[[str], str]
) -> str:
    if op is c.LITERAL:
        return literal(chr(value))
    if op is c.NOT_LITERAL:
        return group(f"[^{_in_class(value)}]")
    if op is c.ANY:
        return group(".")
    if op is c.IN:
        return group(f"[{''.join(_member(kind, member) for kind, member in value)}]")
    if op is c.BRANCH:
        return f"(?:{'|'.join(inside(branch) for branch in value[1])})"
    if op is c.SUBPATTERN:
        number, add, remove, inner = value
        text = _scoped(inside(inner), add, remove)
        return f"({text})" if number == 1 and inside is _whole else text
    if op in (c.MAX_REPEAT, c.MIN_REPEAT):
        return _repeat(inside(value[2]), value[0], value[1], lazy=op is c.MIN_REPEAT)
    if op is c.AT and value is c.AT_BOUNDARY:
        return r"\b"
    raise ValueError(f"it has {str(op).lower()} in it, which is not known here: no look-around, references or anchors")


def _scoped(text: str, add: int, remove: int) -> str:
    if remove:
        raise ValueError("flags can be set in a pattern, not taken back")
    return f"(?{_flags(add)}:{text})"


def _repeat(text: str, least: Any, most: Any, *, lazy: bool) -> str:
    bounds = f"{{{least},{'' if most is c.MAXREPEAT else most}}}"
    return f"(?:{text}){bounds}{'?' if lazy else ''}"


def _literal(char: str) -> str:
    return f"\\x{{{ord(char):x}}}"


def _in_class(code: int) -> str:
    return f"\\x{{{code:x}}}"


def _class(text: str) -> str:
    return text


def _json_literal(char: str) -> str:
    return _JSON_LITERALS.get(char) or (_literal(char) if char >= " " else _JSON_ESCAPE)


def _json_class(text: str) -> str:
    single = compiled(text)
    return f"(?:{text}|{_JSON_ESCAPE})" if any(single.fullmatch(char) for char in _ESCAPED) else text


def _member(kind: Any, value: Any) -> str:
    if kind is c.NEGATE:
        return "^"
    if kind is c.LITERAL:
        return _in_class(value)
    if kind is c.RANGE:
        return f"{_in_class(value[0])}-{_in_class(value[1])}"
    return _CATEGORIES[value]
