"""Bytes of a file as lines of text: which encoding, what a line is, and what is shown for what cannot be shown.

Knows nothing of files or tools.
"""

import codecs
import re
from collections.abc import Iterator

SNIFF_BYTES = 8192
MAX_LINE_CHARS = 2_000
STAND_IN = "\ufffd"

# UTF-32 before UTF-16: the mark of the one begins with that of the other.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROL = bytes({*range(0x20), 0x7F} - set(b"\t\n\r\f\b\x1b"))
_SOME_CONTROLS = 8  # page breaks of old printers, colours of terminals
_MAX_CONTROL_SHARE = 0.05  # text has next to none; compressed or encrypted bytes have a tenth
_NOT_UTF8 = re.compile("[\udc80-\udcff]")


def encoding_of(head: bytes) -> tuple[str, int] | None:
    """Encoding and length of the byte order mark of a text that begins with `head`; None: it is no text."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name, len(mark)
    if b"\0" in head:
        return None
    controls = len(head) - len(head.translate(None, _CONTROL))
    return None if controls > _SOME_CONTROLS + len(head) * _MAX_CONTROL_SHARE else ("utf-8", 0)


class LineReader:
    """Cuts a stream of bytes into lines without their ends (LF or CRLF), each bounded to `MAX_LINE_CHARS`.

    `lossy` becomes true when bytes had to be replaced. Feed it all bytes after the byte order mark.
    """

    def __init__(self, encoding: str) -> None:
        # Surrogate escapes tell replaced bytes apart from a replacement character that the file itself holds.
        errors = "surrogateescape" if encoding == "utf-8" else "replace"
        self._decoder = codecs.getincrementaldecoder(encoding)(errors)
        self.lossy = False
        self._kept: list[str] = []
        self._length = 0

    def feed(self, data: bytes, *, final: bool = False) -> Iterator[str]:
        """The lines that end in `data`; with `final` also the last one, if it has no end."""
        text = self._decoder.decode(data, final)
        if not text.isascii() and _NOT_UTF8.search(text):
            self.lossy = True
            text = _NOT_UTF8.sub(STAND_IN, text)
        *complete, rest = text.split("\n")
        for piece in complete:
            self._add(piece)
            yield self._take()
        if rest:
            self._add(rest)
        if final and self._length:
            yield self._take()

    def _add(self, piece: str) -> None:
        # One character more than is shown, so that a CR at the very end can be told from a longer line.
        room = max(0, MAX_LINE_CHARS + 1 - self._length)
        self._kept.append(piece[:room])
        self._length += len(piece)

    def _take(self) -> str:
        line, length = "".join(self._kept), self._length
        self._kept, self._length = [], 0
        if length == len(line) and line.endswith("\r"):
            line, length = line[:-1], length - 1
        if length > MAX_LINE_CHARS:
            line = f"{line[:MAX_LINE_CHARS]}… [{length - MAX_LINE_CHARS:,} more characters in this line]"
        return line.replace("\0", STAND_IN)
