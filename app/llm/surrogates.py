"""Halves of characters: a server that escapes text may cut it between the two halves of a surrogate pair.

Knows no JSON; it only sees text in which such halves may be left.
"""

import re

_SURROGATE = re.compile("[\ud800-\udfff]")


def scrubbed(text: str) -> str:
    """The text with its pairs joined and lone halves replaced, so that it can be encoded."""
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class PairJoiner:
    """Joins pairs over the pieces of one text; a first half waits for the next piece."""

    __slots__ = ("_half",)

    def __init__(self) -> None:
        self._half = ""

    def feed(self, piece: str) -> str:
        """What is certain after this piece."""
        text = self._half + piece
        self._half = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._half, text = text[-1], text[:-1]
        return scrubbed(text)

    def end(self) -> str:
        """A replacement for a half that stayed alone."""
        half, self._half = self._half, ""
        return scrubbed(half)
