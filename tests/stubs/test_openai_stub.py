"""The strict stub is strict: it refuses what strict providers refuse."""

from typing import Any

import pytest

from tests.stubs.openai_stub import history_problem


def call(number: int, arguments: str = "{}") -> dict[str, Any]:
    return {"id": f"c{number}", "type": "function", "function": {"name": "glob", "arguments": arguments}}


def asks(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def answers(number: int, content: str = "x") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": content}


SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "u"}


@pytest.mark.parametrize(
    ("history", "problem"),
    [
        ([SYSTEM, USER, asks(call(1), call(2)), answers(2), answers(1), USER], None),
        ([SYSTEM, USER, asks(call(1)), USER], "calls without a result: c1"),
        ([SYSTEM, USER, asks(call(1), call(2)), answers(1)], "at the end: c2"),
        ([USER, answers(1)], "answers no call"),
        ([USER, asks(call(1)), answers(1), answers(1)], "answers no call"),
        ([USER, asks(call(1)), answers(1), asks(call(1)), answers(1)], "used twice"),
        ([USER, asks(call(1), call(1)), answers(1)], "used twice"),
        ([USER, asks({**call(1), "id": ""})], "empty or used twice"),
        ([USER, asks(call(1, "{bad")), answers(1)], "no JSON"),
        ([USER, asks(call(1, "[]")), answers(1)], "no object"),
        ([USER, asks(call(1)), answers(1, " ")], "empty text"),
        ([USER, {"role": "assistant", "content": None}], "empty text"),
        ([USER, {**asks(call(1)), "content": ""}], "empty text"),
        ([USER, SYSTEM], "must be the first"),
    ],
)
def test_bad_histories_are_refused(history: list[dict[str, Any]], problem: str | None) -> None:
    found = history_problem(history)
    assert found is None if problem is None else problem in (found or "")
