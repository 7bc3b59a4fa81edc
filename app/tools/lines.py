"""Regular expressions over the lines of one file: which lines match, with their neighbours, in bounded steps.

Linear time whatever the expression, since expressions come from models. Knows nothing of directories.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import re2

from app.tools.text import SNIFF_BYTES, STAND_IN, encoding_of

MAX_PATTERN_CHARS = 5_000
MAX_SHOWN_CHARS = 500
_BEFORE_MATCH_BYTES = 200  # of a line that is too long to show: what is kept before the match
_BLOCK = 16 * 1024  # so many bytes go into one search, since the worst expressions take 20 µs a byte
_OVERLAP = 4 * 1024  # of the pieces that a longer line is searched in: no shorter match is missed
_MAX_MEMORY = 2 * 1024 * 1024  # of one compiled expression; the library keeps 128 of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line to show: its number from 1, its text without the end, whether it matched or stands beside a match."""

    number: int
    text: str
    matched: bool


def compiled(pattern: str, *, ignore_case: bool) -> Any:
    """An expression that matches within lines. Raises ValueError, in words for a model, if it cannot be one."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"the pattern is longer than {MAX_PATTERN_CHARS:,} characters")
    options = re2.Options()
    options.log_errors = False
    options.never_nl = True
    options.case_sensitive = not ignore_case
    options.max_mem = _MAX_MEMORY
    try:
        return re2.compile(f"(?m){pattern}", options)
    except UnicodeEncodeError:
        raise ValueError("the pattern is not valid Unicode") from None
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace").replace("(?m)", "", 1)
        raise ValueError(
            f"the pattern is no valid expression: {reason[:300]} (RE2 syntax: no look-around, no back-references)"
        ) from None


def searchable(data: bytes) -> bytes | None:
    """The text of a file as UTF-8 with LF line ends; None for a binary file."""
    found = encoding_of(data[:SNIFF_BYTES])
    if found is None:
        return None
    encoding, mark = found
    text = data[mark:] if mark else data
    if encoding != "utf-8":
        text = text.decode(encoding, "replace").encode("utf-8", "replace")
    return text.replace(b"\r\n", b"\n") if b"\r\n" in text else text


def matching_lines(
    text: bytes, expression: Any, *, context: int, limit: int, more: Callable[[], bool]
) -> Iterator[Line]:
    """The lines that match, at most `limit`, and up to `context` lines around each, in order and each once.

    `more()` is asked after each stretch of text; False ends the search.
    """
    shown_to = 0  # where the text goes on that was not shown yet
    spans = list(_matches(text, expression, limit, more))
    for i, (number, start, end, column) in enumerate(spans):
        following = spans[i + 1][1] if i + 1 < len(spans) else len(text)
        yield from _before(text, number, start, shown_to, context)
        yield Line(number=number, text=_shown(text[start:end], column), matched=True)
        shown_to = end + 1
        for after in range(number + 1, number + 1 + context):
            if shown_to >= following:
                break
            end = _end_of_line(text, shown_to)
            yield Line(number=after, text=_shown(text[shown_to:end], 0), matched=False)
            shown_to = end + 1


def _matches(text: bytes, expression: Any, limit: int, more: Callable[[], bool]) -> Iterator[tuple[int, int, int, int]]:
    """Number, start, end and the column of the match of each line that matches."""
    at, number, counted = 0, 1, 0
    size = len(text) - text.endswith(b"\n")  # nothing matches behind the last line end
    while at <= size and text and limit > 0 and more():
        stop, goes_on = _stretch(text, at, size)
        found = expression.search(text, at, stop)
        if found is None:
            at = stop - _OVERLAP if goes_on else stop + 1
            continue
        start = text.rfind(b"\n", 0, found.start()) + 1
        end = _end_of_line(text, found.start())
        number += text.count(b"\n", counted, start)
        counted = start
        yield number, start, end, found.start() - start
        limit -= 1
        at = end + 1


def _stretch(text: bytes, at: int, size: int) -> tuple[int, bool]:
    """Where the stretch to search ends: at a line end, or inside a long line, which then goes on."""
    stop = text.find(b"\n", at + _BLOCK, at + 2 * _BLOCK)
    if stop >= 0:
        return min(stop, size), False
    return min(at + 2 * _BLOCK, size), at + 2 * _BLOCK < size


def _before(text: bytes, number: int, start: int, shown_to: int, context: int) -> Iterator[Line]:
    cuts = [start]
    while len(cuts) <= context and cuts[-1] > shown_to:
        cuts.append(text.rfind(b"\n", 0, cuts[-1] - 1) + 1)
    for back in range(len(cuts) - 1, 0, -1):
        yield Line(number=number - back, text=_shown(text[cuts[back] : cuts[back - 1] - 1], 0), matched=False)


def _end_of_line(text: bytes, at: int) -> int:
    end = text.find(b"\n", at)
    return len(text) if end < 0 else end


def _shown(line: bytes, column: int) -> str:
    """The line as text; of a long one the part around `column` (bytes)."""
    start = 0 if len(line) <= MAX_SHOWN_CHARS else max(0, column - _BEFORE_MATCH_BYTES)
    if start:  # not inside a character
        start -= next((back for back in range(4) if line[start - back] & 0xC0 != 0x80), 0)
    piece = line[start : start + 4 * MAX_SHOWN_CHARS].decode("utf-8", "replace")
    cut = len(piece) > MAX_SHOWN_CHARS or start + 4 * MAX_SHOWN_CHARS < len(line)
    text = ("…" if start else "") + piece[:MAX_SHOWN_CHARS] + ("…" if cut else "")
    return text.rstrip("\r").replace("\0", STAND_IN)
