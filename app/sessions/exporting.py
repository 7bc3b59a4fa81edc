"""Messages as lines of a file: NDJSON, or CSV for spreadsheets (spec 12.4). Knows neither HTTP nor the store.

CSV is that of RFC 4180: CRLF, fields with quotes where they are needed, a head with the names of the columns; UTF-8.
"""

import csv
import io
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Literal

import msgspec

from app.sessions.audit import EXPORTED, Exported

Form = Literal["ndjson", "csv"]

NDJSON = "application/x-ndjson"
CSV = "text/csv"
COLUMNS = (
    "ts", "session_id", "seq", "id", "run_id", "agent", "name", "is_subagent", "depth", "turn", "step", "sub", "role",
    "tool", "is_error", "content", "reasoning", "tool_calls", "tool_call_id", "tokens", "metadata", "memory_id",
    "memory_seq",
)  # fmt: skip
# With these a spreadsheet takes a text for a formula: the four, their wide forms, and what it skips in front of them.
_FORMULA = frozenset("=+-@＝＋－＠")
_SKIPPED = frozenset("\t\r\n")


def _places(*names: str) -> tuple[int, ...]:
    return tuple(EXPORTED.index(name) for name in names)


_in_order = itemgetter(*_places(*COLUMNS))
_COUNT = len(EXPORTED)
_TIME = EXPORTED.index("ts")
_JSON = _places("tool_calls", "metadata")
_FLAGS = _places("is_subagent", "is_error")
_TEXTS = _places("agent", "name", "content", "reasoning", "tool_call_id", "tool")  # that others write
_NULL = msgspec.Raw(b"null")
_encoder = msgspec.json.Encoder()
_Line: Any = msgspec.defstruct("_Line", EXPORTED, gc=False)


def lines_as(form: Form) -> Callable[[Sequence[Exported]], bytes]:
    """What makes lines of messages, in any thread."""
    return csv_lines if form == "csv" else ndjson_lines


def head_of(form: Form) -> bytes:
    """What stands above the first message."""
    return _rows([COLUMNS]) if form == "csv" else b""


def ndjson_lines(messages: Sequence[Exported]) -> bytes:
    """One JSON object a line, that of `views.message_view`."""
    lines = []
    for message in messages:
        values = list(message)
        del values[_COUNT:]
        for place in _JSON:
            value = values[place]
            values[place] = _NULL if value is None else msgspec.Raw(value.encode())
        values[_TIME] = _moment(values[_TIME])
        lines.append(_Line(*values))
    return _encoder.encode_lines(lines)


def csv_lines(messages: Sequence[Exported]) -> bytes:
    """One record a message, its cells in the order of `COLUMNS`."""
    rows = []
    for message in messages:
        values = list(message)
        for place in _TEXTS:
            value = values[place]
            if value and not value[0].isalnum():
                values[place] = cell(value)
        for place in _FLAGS:
            values[place] = "true" if values[place] else "false"
        values[_TIME] = _moment(values[_TIME])
        rows.append(_in_order(values))
    return _rows(rows)


def _moment(ts: int) -> str:
    return f"{_second(ts // 1_000_000)}.{ts // 1000 % 1000:03d}Z"


@lru_cache(maxsize=256)
def _second(seconds: int) -> str:
    """The form of `wire.timestamp`, which belongs to the thread of the event loop."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def cell(value: str) -> str:
    """A text as a cell. One that a spreadsheet would take for a formula gets an apostrophe in front: models and tools
    write what they like."""
    first = value[:1]
    if first in _SKIPPED or (first and (first in _FORMULA or value.lstrip()[:1] in _FORMULA)):
        return f"'{value}"
    return value


def _rows(rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode("utf-8", "replace")
