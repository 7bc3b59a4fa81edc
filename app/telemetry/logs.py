"""Logs: one line each, as text or as JSON, with every known secret masked. Nothing else here writes to stderr.

Access lines (`app.access`) hold no query: a ticket may stand there.
"""

import logging
import sys
from typing import TextIO

from app.masking import ValueMasker
from app.wire import clean, encode, timestamp

ACCESS = "app.access"
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Masking:
    """The masker in force; the secrets are known only after the settings were read."""

    masker: ValueMasker | None = None


def mask_with(masker: ValueMasker) -> None:
    """From now on, take these secrets out of every line."""
    _Masking.masker = masker


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


def _masked(text: str) -> str:
    return text if _Masking.masker is None else _Masking.masker.text(text)


class TextLines(logging.Formatter):
    """For people: the line breaks of a traceback stay, those of a message do not, so that no line can be forged."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text, masked."""
        return _masked(super().format(record))

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
            "message": _masked(clean(record.getMessage())),
        }
        if record.exc_info:
            fields["traceback"] = _masked(clean(self.formatException(record.exc_info)))
        return encode(fields).decode()


def _one_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")
