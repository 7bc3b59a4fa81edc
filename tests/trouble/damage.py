"""Finds pages of a table or index in an SQLite file and destroys them (file format: sqlite.org/fileformat2.html).

Knows no table of ours.
"""

import os
import sqlite3
import struct
from pathlib import Path

_HEADER = 100  # bytes of the file that stand before the tree of page 1
_INTERIOR_INDEX, _INTERIOR_TABLE = 2, 5


def leaves(path: Path, name: str) -> list[int]:
    """The numbers of the leaf pages of a table or index, in the order of its keys, once the log is in the file."""
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        row = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    finally:
        connection.close()
    with path.open("rb") as file:
        return _below(file.fileno(), size, row[0])


def _below(handle: int, size: int, number: int) -> list[int]:
    page = os.pread(handle, size, (number - 1) * size)
    head = _HEADER if number == 1 else 0
    if page[head] not in (_INTERIOR_INDEX, _INTERIOR_TABLE):
        return [number]
    (cells,) = struct.unpack_from(">H", page, head + 3)
    pointers = struct.unpack_from(f">{cells}H", page, head + 12)
    children = [struct.unpack_from(">I", page, pointer)[0] for pointer in pointers]
    children.append(struct.unpack_from(">I", page, head + 8)[0])
    return [leaf for child in children for leaf in _below(handle, size, child)]


def holds(path: Path, number: int, text: str) -> bool:
    """Whether a page has this text in it."""
    return text.encode() in page_of(path, number)


def page_of(path: Path, number: int) -> bytes:
    """The bytes of a page."""
    size = _page_size(path)
    with path.open("rb") as file:
        file.seek((number - 1) * size)
        return file.read(size)


def destroy(path: Path, number: int) -> None:
    """Overwrite a page with what no tree has."""
    size = _page_size(path)
    with path.open("r+b") as file:
        file.seek((number - 1) * size)
        file.write(b"\xa5" * size)


def _page_size(path: Path) -> int:
    with path.open("rb") as file:
        (size,) = struct.unpack(">H", file.read(18)[16:])
    return 65_536 if size == 1 else int(size)
