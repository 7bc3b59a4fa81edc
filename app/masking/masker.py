"""Replaces secrets in texts, payloads and texts that come in pieces: known values and what patterns find.

A text is first searched as a whole, in linear time however many secrets there are; almost always that is all. What is
replaced is every span that a value or a pattern finds, joined where they overlap.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import starmap
from threading import Lock
from typing import Any

import msgspec

from app.masking.forms import MIN_LENGTH, forms_of
from app.masking.patterns import Pattern, Words, compiled, sure_of

MASK = "[masked]"
MAX_HELD = 16 << 10  # characters of a text in pieces that wait for their end: private keys are shorter
_LONG = 200  # characters of a piece from which on the search that is linear in any case is the faster one
_OPAQUE = "opaque"
# A search by RE2 lets go of the interpreter's lock. While another thread waits for that, getting it back takes ten
# times as long as a search in a short text: so that is first looked at by one that keeps the lock.
_SHORT = 4 << 10  # bytes
_MOST = 100  # words that are looked for: each takes its time
_PLACES = 5  # of a word that are looked at …
_LEAST = 2  # … and so many of them must be there: less stands in too many texts
_USUAL = b'etoindl0123456789 ",.:()[]{}\\'  # most of what texts and JSON hold, and little of what words of secrets do
Spans = list[tuple[int, int]]
Place = tuple[str, bool]  # the characters that may be there, and whether one of them is sure to be


class ValueMasker:
    """Knows the values of secrets and the patterns that others match."""

    def __init__(self, values: Iterable[str] = (), patterns: Sequence[Pattern] = ()) -> None:
        self._patterns = tuple(patterns)
        self._learning = Lock()
        self._given: frozenset[str] = frozenset()
        self._know(frozenset(values))

    def learn(self, values: Iterable[str]) -> None:
        """From now on these are secrets too; from any thread. What masks a text at the moment goes on with those that
        it knew when the text began."""
        with self._learning:
            given = self._given.union(values)
            if given != self._given:
                self._know(given)

    def _know(self, given: frozenset[str]) -> None:
        self._given = given
        known = {form for value in given if len(value) >= MIN_LENGTH for form in forms_of(value)}
        ordered = tuple(sorted(known, key=len, reverse=True))
        literals = [re2_literal(value) for value in ordered]
        text: Any = None
        data: Any = None
        openings: _Openings | None = None
        if ordered or self._patterns:
            encoded = [re2_literal(msgspec.json.encode(_storable(value))[1:-1].decode()) for value in ordered]
            text = compiled("|".join((*literals, *(p.whole for p in self._patterns))).encode())
            data = compiled("|".join((*encoded, *(p.loose for p in self._patterns))).encode())
            openings = _Openings(ordered, self._patterns)
        self.values = ordered
        self._values = compiled("|".join(literals), longest=True) if literals else None
        # last what is looked at first: another thread finds all that it leads to
        self._text, self._data, self._openings = text, data, openings
        self._screen = _screen([*map(sure_of, ordered), *(p.sure for p in self._patterns)])

    def text(self, value: str) -> str:
        """The text with every secret replaced."""
        return (
            replaced(value, self.spans(_storable(value))) if self.suspects(value.encode("utf-8", "replace")) else value
        )

    @staticmethod
    def hides(value: str) -> bool:
        """Whether something was replaced in a text, as far as one can see."""
        return MASK in value

    def suspects(self, data: bytes) -> bool:
        """Whether a text, in UTF-8, may hold a secret; fast, and seldom wrong."""
        return self._text is not None and not self._cleared(data) and self._text.search(data) is not None

    def _cleared(self, data: bytes) -> bool:
        """Whether a text or JSON, in UTF-8, is sure to hold no secret."""
        screen = self._screen
        return screen is not None and len(data) <= _SHORT and screen.search(data.translate(None, _USUAL)) is None

    def spans(self, text: str, start: int = 0) -> Spans:
        """Where secrets are in a text without lone surrogates, in order; two that overlap are one."""
        return [(first, last) for _, first, last in self.finds(text, start)]

    def finds(self, text: str, start: int = 0) -> list[tuple[int, int, int]]:
        """The same, each with the place from which on the text must be known to find it again."""
        found = [] if self._values is None else [(m.start(), *m.span()) for m in self._values.finditer(text, start)]
        for pattern in self._patterns:
            found += pattern.finds(text, start)
        joined: list[tuple[int, int, int]] = []
        for begin, first, last in sorted(found, key=_by_secret):
            if joined and first < joined[-1][2]:
                before = joined[-1]
                joined[-1] = (min(begin, before[0]), before[1], max(before[2], last))
            else:
                joined.append((begin, first, last))
        return joined

    def payload(self, payload: Mapping[str, Any], data: bytes) -> tuple[Mapping[str, Any], bytes]:
        """A payload and its JSON with every secret replaced; the same objects when there is none."""
        # The search in the JSON is fast and may err on the safe side: an escape can look like a letter of a secret.
        # What is replaced are the texts themselves, so that the result is JSON in any case.
        if self._data is None or self._cleared(data) or self._data.search(data) is None:
            return payload, data
        masked = self._without_opaque(payload)
        return (payload, data) if masked == payload else (masked, msgspec.json.encode(masked))

    def json(self, data: bytes) -> bytes:
        """The JSON of an object with every secret replaced; the same object when there is none."""
        if self._data is None or self._cleared(data) or self._data.search(data) is None:
            return data
        return self.payload(msgspec.json.decode(data), data)[1]

    def _without_opaque(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The payload masked. What belongs to a provider is left out when it holds a secret: it must not be changed,
        and without it the provider is told nothing (spec 12.6)."""
        masked: dict[str, Any] = {}
        for key, value in payload.items():
            if key == "tool_calls" and isinstance(value, list):
                masked[key] = [self._without_opaque(v) if isinstance(v, Mapping) else self.value(v) for v in value]
            elif key != _OPAQUE:
                masked[self.text(key)] = self.value(value)
            elif self.value(value) == value:
                masked[key] = value
        return masked

    def value(self, value: Any) -> Any:
        """A value as JSON has it, with every secret in its texts and keys replaced."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(item) for key, item in value.items()}
        return [self.value(item) for item in value] if isinstance(value, list | tuple) else value

    def stream(self) -> "StreamMasker | None":
        """A masker for one text that comes in pieces; None when there is nothing to mask."""
        return None if self._openings is None else StreamMasker(self, self._openings)


def replaced(text: str, spans: Iterable[tuple[int, int]], start: int = 0, end: int | None = None) -> str:
    """A part of a text with the mask in place of these spans."""
    pieces: list[str] = []
    for first, last in spans:
        pieces += text[start:first], MASK
        start = last
    pieces.append(text[start:end])
    return "".join(pieces)


def re2_literal(text: str) -> str:
    """A pattern that matches this text alone."""
    return re.sub(r"[^A-Za-z0-9_]", lambda match: f"\\x{{{ord(match[0]):x}}}", _storable(text))


def _screen(sure: Iterable[Words]) -> re.Pattern[bytes] | None:
    """A search for one of each of these words, in a text without what is usual: so there is little to search, and of a
    word what is not usual still stands in a row. None where it would be no gain."""
    words = {_unusual(word) for found in sure for word in found or ((),)}
    if not words or len(words) > _MOST or any(_told(word) < _LEAST for word in words):
        return None
    # such a search goes by first characters, as long as no word begins with a choice of them
    options = {_place(char) + "".join(starmap(_place, rest)) for (first, _), *rest in words for char in first}
    return re.compile("|".join(sorted(options)).encode())


def _unusual(word: Iterable[str]) -> tuple[Place, ...]:
    """What is left of a word without what is usual: the part that says most."""
    left: list[Place] = []
    for chars in word:
        kept = "".join(char for char in chars if char.encode() not in _USUAL)
        if kept:
            left.append((kept, len(kept) == len(chars)))
    parts = [tuple(left[at : at + _PLACES]) for at, (_, there) in enumerate(left) if there]
    return max(parts, key=lambda part: (_told(part) + len(set(part)), not part[0][0].islower()), default=())


def _told(word: Iterable[Place]) -> int:
    return sum(there for _, there in word)


def _place(chars: str, there: bool = True) -> str:
    """One of these characters as a pattern of bytes."""
    options = ["".join(f"\\x{byte:02x}" for byte in char.encode()) for char in chars]
    return f"(?:{'|'.join(options)}){'' if there else '?'}" if len(options) > 1 or not there else options[0]


def _storable(text: str) -> str:
    """The text without lone surrogates, each replaced by one character."""
    return text.encode("utf-8", "replace").decode()


def _by_secret(find: tuple[int, int, int]) -> tuple[int, int]:
    return find[1:]


class StreamMasker:
    """Masks a text that comes in pieces, as if it had come whole: an end that may begin a secret is held back."""

    __slots__ = ("_before", "_held", "_masker", "_openings")

    def __init__(self, masker: ValueMasker, openings: "_Openings") -> None:
        self._masker = masker
        self._openings = openings
        self._before = ""  # the last character that was let go: whether a word begins after it
        self._held = ""

    def feed(self, piece: str) -> str:
        """What of the text may be shown after this piece."""
        if len(self._held) > 1 or len(piece) > _LONG:
            return self._shown(piece, last=False)
        start = len(self._before)
        text = self._before + self._held + piece
        match = self._openings.quick.search(text, start)
        end = len(text)
        if match is not None:
            if match.end() - match.start() > 1:
                return self._shown(piece, last=False)
            end = match.start()  # only the last character may begin one
        self._before, self._held = text[:end][-1:], text[end:]
        return text[start:end]

    def flush(self) -> str:
        """The rest, when no more comes."""
        return self._shown("", last=True) if self._held else ""

    def _shown(self, piece: str, *, last: bool) -> str:
        start = len(self._before)
        text = self._before + self._held + piece
        data = text.encode("utf-8", "replace")
        if len(data) != len(text):
            text = data.decode()
        end = len(text) if last else self._openings.begin(text, data, start)
        if end == start and len(text) <= MAX_HELD:
            self._held = text[start:]
            return ""
        finds = self._masker.finds(text, start) if self._masker.suspects(data) else []
        for begin, _, after in reversed(finds):
            if begin < end < after:  # what follows may join it, and without its beginning it would not be found again
                end = begin
        told = [(first, after) for _, first, after in finds if after <= end]
        if len(text) - end > MAX_HELD:  # nothing that is shown as it is can be so long
            told, end = [*told, (end, len(text))], len(text)
        shown = replaced(text, told, start, end)
        self._before, self._held = text[:end][-1:], text[end:]
        return shown


class _Openings:
    """Where the end of a text may be the beginning of a secret. `quick` finds something in every piece in which one
    begins, and nothing in most others."""

    __slots__ = ("_first", "_longest", "_patterns", "_values", "quick")

    def __init__(self, values: Iterable[str], patterns: Sequence[Pattern]) -> None:
        self._values = sorted(_storable(value) for value in values)
        self._first = {value[0] for value in self._values}
        self._longest = max(map(len, self._values), default=0)
        opening = "|".join(pattern.opening for pattern in patterns)
        self._patterns = compiled(rf"(?:{opening})\z".encode()) if opening else None
        self.quick = _quick(self._values, opening)

    def begin(self, text: str, data: bytes, start: int) -> int:
        """Where the longest such end of the text begins, not before `start`; `data` is the text in UTF-8."""
        first = len(text)
        if self._patterns is not None:
            match = self._patterns.search(data, len(text[:start].encode()))
            first = first if match is None else len(data[: match.start()].decode())
        return next(self._value_ends(text, max(start, len(text) - self._longest + 1), first), first)

    def _value_ends(self, text: str, start: int, stop: int) -> Iterator[int]:
        values, letters = self._values, self._first
        for at in range(start, stop):
            if text[at] in letters:
                end = text[at:]
                index = bisect_right(values, end)  # all after it that begin so are longer
                if index < len(values) and values[index].startswith(end):
                    yield at


def _quick(values: Iterable[str], opening: str) -> re.Pattern[str]:
    """A search for two characters with which a secret begins, or for one of them at the end."""
    anywhere: dict[str, set[str]] = {}
    for value in values:
        anywhere.setdefault(value[0], set()).add(value[1])
    edge = _begins(opening) if opening else {}
    for first, seconds in (_begins(opening, "Z") if opening else {}).items():
        anywhere.setdefault(first, set()).update(seconds)
    options = [rf"(?<!\w)(?:{_pairs(edge)})"] if edge else []
    options += [_pairs(anywhere)] if anywhere else []
    if any(char > "\x7f" for pairs in (edge, anywhere) for char in pairs):
        options.append(r"[^\x00-\x7f]")
    return re.compile("|".join(options), re.ASCII)


def _pairs(pairs: Mapping[str, Iterable[str]]) -> str:
    """The pairs as a pattern; a second character beyond ASCII is any one."""
    options = [f"{re.escape(first)}[{_members(seconds)}]" for first, seconds in sorted(pairs.items()) if seconds]
    return "|".join((*options, rf"[{_members(pairs)}]\Z"))


def _members(chars: Iterable[str]) -> str:
    known = "".join(f"\\U{ord(char):08x}" for char in sorted(chars) if char <= "\x7f")
    return known + (r"\x80-\U0010ffff" if any(char > "\x7f" for char in chars) else "")


@cache
def _begins(opening: str, before: str = "") -> Mapping[str, frozenset[str]]:
    """With which characters, and which after them, a match can begin at the edge of a word or after `before`; found by
    trying. What a pattern says of characters beyond ASCII is said of all of them."""
    begin = compiled(f"{before}(?:{opening})".encode())  # of bytes: searched with less ado
    beyond = {"é", "中", *re.findall(r"[^\x00-\x7f]", opening)} | {chr(int(c, 16)) for c in _codes(opening)}
    chars = [*map(chr, range(128)), *beyond]
    found: dict[str, frozenset[str]] = {}
    for first in chars:
        head = f"{before}{first}".encode()
        if begin.fullmatch(head):
            found[first] = frozenset(second for second in chars if begin.fullmatch(head + second.encode()))
    return found


def _codes(opening: str) -> Iterator[str]:
    return (code for code in re.findall(r"\\x\{([0-9a-f]+)\}", opening) if int(code, 16) > 127)
