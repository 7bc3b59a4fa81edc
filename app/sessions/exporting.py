"""Messages as lines of a file: NDJSON, or CSV for spreadsheets (spec 12.4). Knows neither HTTP nor the store.

CSV is that of RFC 4180: CRLF, fields with quotes where they are needed, a head with the names of the columns; UTF-8.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from app.wire import encode

Form = Literal["ndjson", "csv"]
View = Mapping[str, Any]

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


def lines_as(form: Form) -> Callable[[Sequence[View]], bytes]:
    """What makes lines of messages (`views.message_view`)."""
    return csv_lines if form == "csv" else ndjson_lines


def head_of(form: Form) -> bytes:
    """What stands above the first message."""
    return _rows([COLUMNS]) if form == "csv" else b""


def ndjson_lines(messages: Sequence[View]) -> bytes:
    """One JSON object a line."""
    return b"".join(encode(message) + b"\n" for message in messages)


def csv_lines(messages: Sequence[View]) -> bytes:
    """One record a message, its cells in the order of `COLUMNS`."""
    return _rows([[cell(message[name]) for name in COLUMNS] for message in messages])


def cell(value: Any) -> str:
    """A value as the text of a cell: nothing for None, JSON for lists and objects. A text that a spreadsheet would take
    for a formula gets an apostrophe in front: models and tools write what they like."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return encode(value).decode()
    first = value[:1]
    if first in _SKIPPED or (first and (first in _FORMULA or value.lstrip()[:1] in _FORMULA)):
        return f"'{value}"
    return value


def _rows(rows: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode("utf-8", "replace")
