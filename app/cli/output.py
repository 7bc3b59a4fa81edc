"""Where a command writes, and that it says so when it cannot. Knows nothing of what is written."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator

STANDARD_OUTPUT = "standard output"


class Unwritable(Exception):
    """What was asked for could not be written."""


@contextlib.contextmanager
def writing(where: str = STANDARD_OUTPUT) -> Iterator[None]:
    """Raises `Unwritable` for what goes wrong inside. A reader who has enough (`| head`) is no such thing: click ends
    the command without a word."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        if where == STANDARD_OUTPUT:
            _drop_the_rest()
        raise Unwritable(f"{where} cannot be written: {error.strerror}") from error


def _drop_the_rest() -> None:
    """When Python ends, it would try what is left once more, with a traceback and an exit code of its own."""
    with contextlib.suppress(OSError):  # no file at all, as in tests
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
