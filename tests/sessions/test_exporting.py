"""Messages as lines: what a reader of CSV gets back, and that a spreadsheet carries nothing out."""

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.sessions.audit import DECIDED, EXPORTED, DecisionFilter, MessageFilter
from app.sessions.exporting import DECISIONS, MESSAGES, cell, lines_for
from app.sessions.views import decision_view, message_view

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)


ROW = {
    "ts": 1_800_000_000_000_000,
    "role": "assistant",
    "is_subagent": True,
    "is_error": False,
    "depth": 1,
    "content": "Hello.",
}


def message(**fields: Any) -> list[Any]:
    """As the store gives it: JSON as text."""
    row = dict.fromkeys(EXPORTED) | ROW | fields
    return [json.dumps(value) if isinstance(value, list | dict) else value for value in row.values()]


def read(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


@pytest.mark.spec("12.4")
def test_every_field_of_a_message_has_its_column() -> None:
    assert set(MESSAGES.columns) == set(EXPORTED)
    (row,) = read(
        MESSAGES.head("csv") + MESSAGES.csv([message(tool_calls=[{"name": "grep"}], tokens=7, content="你好, 世界")])
    )
    assert (row["content"], row["tokens"], row["depth"], row["is_subagent"]) == ("你好, 世界", "7", "1", "true")
    assert json.loads(row["tool_calls"]) == [{"name": "grep"}]
    assert (row["reasoning"], row["ts"]) == ("", "2027-01-15T08:00:00.000Z")


@pytest.mark.spec("12.4")
@given(st.lists(TEXTS, max_size=4))
def test_a_reader_of_csv_gets_every_text_back_as_it_was_guarded(texts: list[str]) -> None:
    data = MESSAGES.head("csv") + MESSAGES.csv([message(content=text) for text in texts])
    assert [row["content"] for row in read(data)] == [cell(text) for text in texts]
    for text in texts:
        assert cell(text) in (text, f"'{text}")


@pytest.mark.spec("12.4")
@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "＝1", "＠x", "\u3000=1"]
)
def test_what_a_spreadsheet_would_carry_out_gets_an_apostrophe(text: str) -> None:
    assert cell(text) == f"'{text}"
    for column in ("content", "name", "agent", "tool", "reasoning", "tool_call_id"):
        (row,) = read(MESSAGES.head("csv") + MESSAGES.csv([message(**{column: text})]))
        assert row[column] == f"'{text}"


@pytest.mark.parametrize("text", ["", "a=b", "1-1", "'quoted'", "(=1)", "  plain", "我+你"])
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert cell(text) == text


@pytest.mark.spec("12.4")
def test_lines_end_as_the_rfc_says_and_quotes_are_doubled() -> None:
    data = MESSAGES.csv([message(content='He said "no",\nand left.')])
    assert data.endswith(b"\r\n")
    assert b'"He said ""no"",\nand left."' in data
    assert MESSAGES.head("csv") == ",".join(MESSAGES.columns).encode() + b"\r\n"


@pytest.mark.spec("12.4")
def test_ndjson_has_no_head_and_leaves_texts_alone() -> None:
    assert MESSAGES.head("ndjson") == b""
    assert MESSAGES.of("ndjson") == MESSAGES.ndjson
    calls = [{"call_id": "call_1", "name": "grep", "arguments": "{}"}]
    (line,) = MESSAGES.ndjson([message(content="=1+1\n", tool_calls=calls)]).splitlines()
    shown = message_view(dict.fromkeys(EXPORTED) | ROW | {"content": "=1+1\n", "tool_calls": calls})
    assert json.loads(line) == shown
    assert list(json.loads(line)) == list(shown)


DECISION = {"ts": 1_800_000_000_000_000, "seq": 7, "depth": 1, "step": 2, "type": "permission.resolved", "kind": "rule"}


@pytest.mark.spec("12.4", "8.3")
def test_a_decision_is_the_line_that_its_view_is_and_every_field_has_its_column() -> None:
    assert lines_for(DecisionFilter()) is DECISIONS
    assert lines_for(MessageFilter()) is MESSAGES
    row = dict.fromkeys(DECIDED) | DECISION | {"decision": "deny", "rule": "Bash(rm *)", "reason": "=1+1"}
    (line,) = DECISIONS.ndjson([list(row.values())]).splitlines()
    assert json.loads(line) == decision_view(row)
    assert list(json.loads(line)) == list(decision_view(row))
    assert set(DECISIONS.columns) == set(DECIDED)
    (cells,) = read(DECISIONS.head("csv") + DECISIONS.csv([list(row.values())]))
    assert tuple(cells) == DECISIONS.columns
    assert (cells["decision"], cells["rule"], cells["depth"], cells["hook"]) == ("deny", "Bash(rm *)", "1", "")
    assert (cells["reason"], cells["ts"]) == ("'=1+1", "2027-01-15T08:00:00.000Z")


@pytest.mark.spec("12.4")
@pytest.mark.parametrize(
    "column", ["agent", "name", "tool", "rule", "owner", "decided_by", "hook", "reason", "call_id"]
)
def test_no_cell_of_a_decision_is_a_formula(column: str) -> None:
    row = dict.fromkeys(DECIDED) | DECISION | {column: "@SUM(A1)"}
    (cells,) = read(DECISIONS.head("csv") + DECISIONS.csv([list(row.values())]))
    assert cells[column] == "'@SUM(A1)"
