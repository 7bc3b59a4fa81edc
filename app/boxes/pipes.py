"""Pipes and nameless files between the server and a process of a box. Knows no box."""

import asyncio
import os

_PIECE = 4096


class Pipe:
    """A pipe whose `write` end is for a process; this side is read without waiting."""

    def __init__(self) -> None:
        self._read, self.write = os.pipe()
        os.set_blocking(self._read, False)
        self._text = b""
        self.ended = False

    async def first(self) -> None:
        """Return when something has come, or nothing more can."""
        loop = asyncio.get_running_loop()
        come: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._read, _set, come)
        try:
            await come
        finally:
            loop.remove_reader(self._read)

    def text(self) -> bytes:
        """All that has come so far."""
        try:
            while piece := os.read(self._read, _PIECE):
                self._text += piece
            self.ended = True
        except BlockingIOError:
            pass
        return self._text

    def close_write(self) -> None:
        """The process has its own copy by now."""
        if self.write >= 0:
            os.close(self.write)
            self.write = -1

    def close(self) -> None:
        """The last call."""
        self.close_write()
        if self._read >= 0:
            os.close(self._read)
            self._read = -1


class Gate:
    """A pipe whose `read` end is for a process, which waits there until it is let in."""

    def __init__(self) -> None:
        self.read, self._write = os.pipe()

    def let_in(self) -> None:
        """Once."""
        os.write(self._write, b"+")

    def close_read(self) -> None:
        """The process has its own copy by now."""
        if self.read >= 0:
            os.close(self.read)
            self.read = -1

    def close(self) -> None:
        """The last call."""
        self.close_read()
        os.close(self._write)


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def memory_file(content: bytes) -> int:
    """A handle of a file that has no name, for a process to read from its beginning; the caller closes it."""
    handle = os.memfd_create("for a command")
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]
    os.lseek(handle, 0, os.SEEK_SET)
    return handle
