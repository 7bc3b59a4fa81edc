"""Logs: one line each, as text or as JSON, with every secret masked. Nothing else here writes to stderr.

Access lines (`app.access`) hold no query: a ticket may stand there. What nobody catches becomes a line as well.
"""

import logging
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from app.masking.in_force import masked
from app.wire import clean, encode, timestamp

ACCESS = "app.access"
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def setup(*, json_lines: bool = False, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send the logs of the process to `stream` (stderr). Called once, before anything else."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if json_lines else TextLines(_TEXT))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for chatty in ("aiosqlite", "sqlalchemy", "alembic", "sse_starlette", "asyncio"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))
    for ours in ("uvicorn", "uvicorn.error", "uvicorn.access"):  # they bring handlers of their own
        logging.getLogger(ours).handlers.clear()
        logging.getLogger(ours).propagate = True


class TextLines(logging.Formatter):
    """For people: the line breaks of a traceback stay, those of a message do not, so that no line can be forged."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text, masked."""
        return _formed(super().format, record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name is the base class's
        """The line without the traceback."""
        record.message = _one_line(record.message)
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """For machines: one object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON, masked."""
        fields = {
            "ts": timestamp(int(record.created * 1_000_000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _formed(logging.LogRecord.getMessage, record),
        }
        if record.exc_info:
            fields["traceback"] = masked(clean(self.formatException(record.exc_info)))
        return encode(fields).decode()


def _formed(form: Callable[[logging.LogRecord], str], record: logging.LogRecord) -> str:
    """The text of a record, masked. One that cannot be made is dropped, not the record: `logging` would write its
    arguments as they are."""
    try:
        return masked(clean(form(record)))
    except Exception as error:  # noqa: BLE001  border to whoever logs: a message must neither fail its caller nor leak
        return (
            f"a message of {record.name} ({record.filename}:{record.lineno}) cannot be written: {type(error).__name__}"
        )


def take_strays() -> None:
    """From now on, what nobody catches is logged instead of written to stderr as it is: in the main thread, in other
    threads, and where nothing can be raised."""
    sys.excepthook = _stray
    threading.excepthook = lambda args: _stray(args.exc_type, args.exc_value, args.exc_traceback)
    sys.unraisablehook = lambda args: _stray(args.exc_type, args.exc_value, args.exc_traceback)


def _stray(kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger("app").critical("nobody caught %s", kind.__name__, exc_info=(kind, error or kind(), traceback))


def _one_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")
