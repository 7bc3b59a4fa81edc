"""Breaks off connections over which PostgreSQL is silent: whoever waits there for an answer would wait for ever.

Knows no statement. That a server is gone is told by the system; that one is there and silent, or that something on the
way has forgotten the connection, is told by nobody.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

from sqlalchemy import Connection, event

SILENT_S = 15.0  # for one statement of the writer: the largest takes about 5 s over a line of 64 KiB a second
LOOK_S = 1.0


def break_off(handle: int) -> None:
    """End a connection by its socket, from wherever: whoever waits for an answer reads that it is closed."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(handle)) as line:
        line.shutdown(socket.SHUT_RDWR)


class Guard:
    """Watches the writer's connection from a thread of its own. `silent_s`: how long one statement may take."""

    def __init__(self, silent_s: float = SILENT_S, look_s: float = LOOK_S) -> None:
        self._silent_s = silent_s
        self._look_s = look_s
        self._lock = threading.Lock()
        self._handle: int | None = None
        self._moved_at = 0.0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def watching(self, connection: Connection) -> Iterator[None]:
        """While a transaction is carried out."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="store-guard", daemon=True)
            self._thread.start()
        if not event.contains(connection.engine, "before_cursor_execute", self._moves):
            event.listen(connection.engine, "before_cursor_execute", self._moves)
        driver = connection.connection.driver_connection
        assert driver is not None
        with self._lock:
            self._handle, self._moved_at = driver.pgconn.socket, time.monotonic()
        try:
            yield
        finally:  # before the connection may be closed: its number may soon be that of another file
            with self._lock:
                self._handle = None

    def _moves(self, *_: object) -> None:
        """A statement begins: the one before has been answered."""
        self._moved_at = time.monotonic()

    def _watch(self) -> None:
        while not self._over.wait(self._look_s):
            with self._lock:
                if self._handle is not None and time.monotonic() - self._moved_at > self._silent_s:
                    break_off(self._handle)
                    self._handle = None

    def close(self) -> None:
        """Watch no more."""
        self._over.set()
