"""Texts of files as they are edited: one exact place, found whatever the line ends, and nothing else changed.

Knows nothing of files or tools. A text is decoded, edited and encoded again: its encoding, its byte order mark, its
line ends and bytes that are no text stay as they are.
"""

import difflib
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from app.tools.text import SNIFF_BYTES, encoding_of

MAX_REPLACED = 100_000
_ENDS = re.compile("\r?\n")
_LISTED = 10  # places that are named
_CONTEXT = 3  # lines around a change
_SHOWN_LINES = 40
_SHOWN_CHARS = 300
_COMPARED_LINES = 5_000  # with which a line that was not found is compared by likeness


class NoMatch(Exception):
    """The text to replace is not in the file, or not just once. The message is for a model."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A text with what is needed to write it back. `mark`: its byte order mark."""

    text: str
    encoding: str
    mark: bytes

    def encoded(self, text: str) -> bytes:
        """Another text in the same form. Raises ValueError when it cannot be written so."""
        return self.mark + text.encode(self.encoding, _errors(self.encoding))


def decoded(data: bytes) -> Decoded | None:
    """The text of a file; None when it is none that could be written back byte by byte."""
    found = encoding_of(data[:SNIFF_BYTES])
    if found is None:
        return None
    encoding, mark = found
    try:
        text = data[mark:].decode(encoding, _errors(encoding))
    except UnicodeDecodeError:
        return None
    return Decoded(text, encoding, data[:mark])


def _errors(encoding: str) -> str:
    return "surrogateescape" if encoding == "utf-8" else "strict"


@dataclass(frozen=True, slots=True)
class Edited:
    """The text after an edit, how often something was replaced, and the first change as lines with - and +."""

    text: str
    count: int
    line: int
    diff: str


def replaced(text: str, old: str, new: str, *, everywhere: bool = False) -> Edited:
    """Replace `old`, which must stand in `text` just once, or all of it. Line ends count as equal; those of the new
    lines are those of the place. Raises `NoMatch`."""
    plain = _Plain(text)
    wanted, given = _unified(old), _unified(new)
    if not wanted:
        raise NoMatch("old_string is empty: give the text to replace; write_file makes a new file")
    if wanted == given:
        raise NoMatch("old_string and new_string are equal: there is nothing to change")
    places = _places(plain.text, wanted, overlapping=not everywhere)
    if not places:
        raise NoMatch(_not_found(plain.text, wanted))
    if len(places) > 1 and not everywhere:
        raise NoMatch(
            f"old_string is found {_counted(plain.text, wanted)} times, at {_lines_of(plain.text, places)}: give more "
            "of the text around the one that you mean, or set replace_all"
        )
    if len(places) > MAX_REPLACED:
        raise NoMatch(f"old_string is found more than {MAX_REPLACED:,} times: that is too much for one edit")
    pieces, at = [], 0
    same, tail = _alike(wanted, given)
    changed = given[same : len(given) - tail]
    for place in places:
        start, end = plain.original(place + same), plain.original(place + len(wanted) - tail)
        pieces += [text[at:start], plain.with_ends(changed, start, end)]
        at = end
    pieces.append(text[at:])
    line = plain.text.count("\n", 0, places[0]) + 1
    return Edited("".join(pieces), len(places), line, _hunk(plain.text, places[0], wanted, given))


def _unified(text: str) -> str:
    return text.replace("\r\n", "\n") if "\r\n" in text else text


def _alike(old: str, new: str) -> tuple[int, int]:
    """How many characters at the start and at the end are the same: what is there is left as it is."""
    most = min(len(old), len(new))
    same = next((at for at in range(most) if old[at] != new[at]), most)
    tail = next((at for at in range(most - same) if old[-1 - at] != new[-1 - at]), most - same)
    return same, tail


class _Plain:
    """A text with LF for CRLF, and where its places lie in the text as it was."""

    def __init__(self, original: str) -> None:
        self._original = original
        self.text = _unified(original)
        self._crlf: list[int] = []  # places in `text` of line ends that were CRLF
        at = original.find("\r\n")
        while at >= 0:
            self._crlf.append(at - len(self._crlf))
            at = original.find("\r\n", at + 2)

    def original(self, place: int) -> int:
        """A place of `text` in the text as it was; that of a line end is before its CR."""
        return place + bisect_left(self._crlf, place)

    def with_ends(self, text: str, start: int, end: int) -> str:
        """A text with the line ends of what it replaces, one by one; where it has more lines, with the next end that
        is there, else with what most of the file has."""
        if "\n" not in text or not self._crlf:
            return text
        ends = _ENDS.findall(self._original, start, end)
        usual = ends[-1] if ends else self._end_after(end)
        first, *lines = text.split("\n")
        ends += [usual] * (len(lines) - len(ends))
        return first + "".join(end + line for end, line in zip(ends, lines, strict=False))

    def _end_after(self, place: int) -> str:
        following = _ENDS.search(self._original, place)
        if following is not None:
            return following.group()
        return "\r\n" if len(self._crlf) * 2 > self._original.count("\n") else "\n"


def _places(text: str, wanted: str, *, overlapping: bool) -> list[int]:
    """Where it stands; at most one more than may be replaced, or than are named."""
    most = _LISTED + 1 if overlapping else MAX_REPLACED + 1
    step = 1 if overlapping else len(wanted)
    found: list[int] = []
    at = text.find(wanted)
    while at >= 0 and len(found) < most:
        found.append(at)
        at = text.find(wanted, at + step)
    return found


def _counted(text: str, wanted: str) -> int:
    return max(2, text.count(wanted))


def _lines_of(text: str, places: Sequence[int]) -> str:
    lines = list(dict.fromkeys(text.count("\n", 0, place) + 1 for place in places[:_LISTED]))
    word = "line" if len(lines) == 1 else "lines"
    more = " and more" if len(places) > _LISTED else ""
    return f"{word} {', '.join(map(str, lines))}{more}"


# ── what is shown ───────────────────────────────────────────────────────────────────────────────────────────────


def _hunk(text: str, place: int, old: str, new: str) -> str:
    """The lines of a change with some around them."""
    start = text.rfind("\n", 0, place) + 1
    stop = text.find("\n", place + len(old))
    stop = len(text) if stop < 0 else stop
    before = text[start:stop].split("\n")
    after = (text[start:place] + new + text[place + len(old) : stop]).split("\n")
    above = text[:start].rsplit("\n", _CONTEXT + 1)[-_CONTEXT - 1 : -1] if start else []
    below = text[stop + 1 :].split("\n", _CONTEXT)[:_CONTEXT] if stop < len(text) else []
    return "\n".join([*_marked(" ", above), *_marked("-", before), *_marked("+", after), *_marked(" ", below)])


def _marked(mark: str, lines: Sequence[str]) -> list[str]:
    kept = [mark + _cut(line) for line in lines[:_SHOWN_LINES]]
    if len(lines) > _SHOWN_LINES:
        kept.append(f"[… {len(lines) - _SHOWN_LINES:,} more lines]")
    return kept


def _cut(line: str) -> str:
    text = line if len(line) <= _SHOWN_CHARS else line[:_SHOWN_CHARS] + "…"
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").replace("\0", "\ufffd")


def difference(before: str, after: str) -> str:
    """Which lines of a text are others by now, and both forms of them, shortened."""
    old, new = _unified(before).split("\n"), _unified(after).split("\n")
    if old == new:
        return "only its line ends differ"
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    tail = 0
    while tail < min(len(old), len(new)) - same and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    gone, come = old[same : len(old) - tail], new[same : len(new) - tail]
    where = f"lines {same + 1}-{same + len(gone)}" if len(gone) > 1 else f"line {same + 1}"
    return "\n".join([f"{where} {'differ' if len(gone) > 1 else 'differs'}:", *_few("-", gone), *_few("+", come)])


def _few(mark: str, lines: Sequence[str]) -> list[str]:
    most = _SHOWN_LINES // 4
    shown = [mark + _cut(line) for line in lines[:most]]
    return [*shown, f"[… {len(lines) - most:,} more lines]"] if len(lines) > most else shown


# ── near misses ─────────────────────────────────────────────────────────────────────────────────────────────────


def _not_found(text: str, wanted: str) -> str:
    start = "old_string is not in the file; nothing was changed. It must be exactly what stands there, blanks included."
    lines, asked = text.split("\n"), wanted.strip("\n").split("\n")
    at = _closest(lines, asked)
    if at is None:
        return start
    stand = lines[at : at + len(asked)]
    blanks = [line.split() for line in stand] == [line.split() for line in asked]
    how = "differs only in blanks" if blanks else "is the closest"
    where = f"lines {at + 1}-{at + len(stand)}" if len(stand) > 1 else f"line {at + 1}"
    return "\n".join([f"{start} What stands at {where} {how}:", *_few(" ", stand)])


def _closest(lines: Sequence[str], asked: Sequence[str]) -> int | None:
    """The index of the first of the lines that have most in common with those that were asked for."""
    offsets: dict[str, list[int]] = {}
    for offset, line in enumerate(asked):
        if line.strip():
            offsets.setdefault("".join(line.split()), []).append(offset)
    votes: dict[int, int] = {}
    for number, line in enumerate(lines):
        for offset in offsets.get("".join(line.split()), ())[:20]:
            if number >= offset:
                votes[number - offset] = votes.get(number - offset, 0) + 1
    if votes:
        return max(votes, key=lambda at: (votes[at], -at))
    first = next((line for line in asked if line.strip()), None)
    if first is None:
        return None
    shortened = [line[:_SHOWN_CHARS] for line in lines[:_COMPARED_LINES]]
    like = difflib.get_close_matches(first[:_SHOWN_CHARS], shortened, n=1, cutoff=0.6)
    return max(0, shortened.index(like[0]) - asked.index(first)) if like else None
