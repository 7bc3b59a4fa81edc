"""Messages and decisions as lines of a file: NDJSON, or CSV for spreadsheets (spec 12.4). Knows no HTTP and no store.

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

from app.sessions.audit import DECIDED, EXPORTED, DecisionFilter, Exported, Filter

Form = Literal["ndjson", "csv"]

NDJSON = "application/x-ndjson"
CSV = "text/csv"
# With these a spreadsheet takes a text for a formula: the four, their wide forms, and what it skips in front of them.
_FORMULA = frozenset("=+-@＝＋－＠")
_SKIPPED = frozenset("\t\r\n")
_NULL = msgspec.Raw(b"null")
_encoder = msgspec.json.Encoder()


class Lines:
    """How rows of one kind become lines, in any thread. `exported`: the columns as the store gives them, JSON as text;
    `columns`: the same in the order of a table; `texts`: those that others write."""

    def __init__(
        self,
        exported: Sequence[str],
        columns: tuple[str, ...],
        *,
        texts: Sequence[str],
        json: Sequence[str] = (),
        flags: Sequence[str] = (),
    ) -> None:
        self.columns = columns
        self._in_order = itemgetter(*(exported.index(name) for name in columns))
        self._count, self._time = len(exported), exported.index("ts")
        self._json, self._flags, self._texts = (
            tuple(exported.index(name) for name in names) for names in (json, flags, texts)
        )
        self._line: Any = msgspec.defstruct("_Line", exported, gc=False)

    def of(self, form: Form) -> Callable[[Sequence[Exported]], bytes]:
        """What makes lines of rows."""
        return self.csv if form == "csv" else self.ndjson

    def head(self, form: Form) -> bytes:
        """What stands above the first row."""
        return _rows([self.columns]) if form == "csv" else b""

    def ndjson(self, rows: Sequence[Exported]) -> bytes:
        """One JSON object a line, that of `views.message_view` or `views.decision_view`."""
        lines = []
        for row in rows:
            values = list(row)
            del values[self._count :]
            for place in self._json:
                value = values[place]
                values[place] = _NULL if value is None else msgspec.Raw(value.encode())
            values[self._time] = _moment(values[self._time])
            lines.append(self._line(*values))
        return _encoder.encode_lines(lines)

    def csv(self, rows: Sequence[Exported]) -> bytes:
        """One record a row, its cells in the order of `columns`."""
        records = []
        for row in rows:
            values = list(row)
            for place in self._texts:
                value = values[place]
                if value and not value[0].isalnum():
                    values[place] = cell(value)
            for place in self._flags:
                values[place] = "true" if values[place] else "false"
            values[self._time] = _moment(values[self._time])
            records.append(self._in_order(values))
        return _rows(records)


MESSAGES = Lines(
    EXPORTED,
    (
        "ts", "session_id", "seq", "id", "run_id", "agent", "name", "is_subagent", "depth", "turn", "step", "sub",
        "role", "tool", "is_error", "content", "reasoning", "tool_calls", "tool_call_id", "tokens", "metadata",
        "memory_id", "memory_seq",
    ),
    texts=("agent", "name", "content", "reasoning", "tool_call_id", "tool"),
    json=("tool_calls", "metadata"),
    flags=("is_subagent", "is_error"),
)  # fmt: skip
DECISIONS = Lines(
    DECIDED,
    (
        "ts", "session_id", "seq", "run_id", "agent", "name", "depth", "step", "type", "decision", "kind", "tool",
        "rule", "scope", "owner", "decided_by", "hook", "reason", "digest", "edited_digest", "call_id", "approval_id",
    ),
    texts=("agent", "name", "tool", "rule", "owner", "decided_by", "hook", "reason", "call_id"),
)  # fmt: skip


def lines_for(filters: Filter) -> Lines:
    """The lines of what such a filter finds."""
    return DECISIONS if isinstance(filters, DecisionFilter) else MESSAGES


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
