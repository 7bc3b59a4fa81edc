"""The strict stub is strict: it refuses what the strict provider refuses."""

from typing import Any

import pytest

from tests.stubs.anthropic_stub import redacted, request_problem, thinking, words

MARK = {"cache_control": {"type": "ephemeral"}}
GLOB = {"name": "glob", "input_schema": {"type": "object"}}
HM, SECRET = thinking("Hm.", "sig-1"), redacted("xyz")
BUDGET = {"type": "enabled", "budget_tokens": 1024}


def call(number: int, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "glob", "input": {}, **fields}


def result(number: int, content: Any = "x") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": content}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks or (words("u"),))}


def turn(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def problem(*messages: dict[str, Any], **fields: Any) -> str | None:
    """What is said about a request that is well formed but for what it is given."""
    body = {"model": "m", "max_tokens": 2000, "stream": True, "tools": [GLOB], "messages": list(messages), **fields}
    return request_problem({key: value for key, value in body.items() if value is not None}, [[HM, SECRET, call(1)]])


@pytest.mark.parametrize(
    "history",
    [
        (user(),),
        (user(), turn(words("t"), call(1), call(2)), user(result(2), result(1), words("go on"))),
        (user(), turn(HM, SECRET, call(1)), user(result(1))),
        (user(), turn(call(1)), user(result(1)), turn(call(2, caller={"type": "direct"})), user(result(2))),
    ],
)
def test_a_good_history_is_accepted(history: tuple[dict[str, Any], ...]) -> None:
    assert problem(*history) is None


@pytest.mark.parametrize(
    ("history", "said"),
    [
        ((), "last message must be the user's"),
        ((user(), turn(words("t"))), "last message must be the user's"),
        ((turn(words("t")), user()), "roles must alternate"),
        ((user(), user()), "roles must alternate"),
        (({"role": "system", "content": [words("s")]},), "roles must alternate"),
        ((user(), turn(), user()), "must not be empty"),
        ((user(words(" ")),), "must be non-empty"),
        ((user(), turn(call(1)), user()), "must be answered directly after"),
        ((user(), turn(call(1), call(2)), user(result(1))), "must be answered directly after"),
        ((user(result(1)),), "must be answered directly after"),
        ((user(), turn(call(1)), user(result(1), result(1))), "must be answered directly after"),
        ((user(), turn(call(1)), user(words("u"), result(1))), "must come first"),
        ((user(), turn(call(1), call(1)), user(result(1), result(1))), "must be unique"),
        ((user(), turn(call(1)), user(result(1)), turn(call(1)), user(result(1))), "must be unique"),
        ((user(), turn(call(1), words("t")), user(result(1))), "only tool_use may follow"),
        ((user(), turn(call(1, id="a:1")), user({**result(1), "tool_use_id": "a:1"})), "bad tool_use"),
        ((user(), turn(call(1, name="a b")), user(result(1))), "bad tool_use"),
        ((user(), turn(call(1, input="{}")), user(result(1))), "bad tool_use"),
        ((user(), turn(call(1, extra_content=1)), user(result(1))), "unexpected block or field"),
        ((user(), turn(call(1)), user(result(1, " "))), "content must be non-empty"),
        ((user(HM),), "unexpected block or field"),
        ((user(), turn({**HM, "thinking": "Hmm."}, SECRET, call(1)), user(result(1))), "cannot be modified"),
        ((user(), turn({**HM, "signature": "sig-2"}, SECRET, call(1)), user(result(1))), "cannot be modified"),
        ((user(), turn({"type": "thinking", "thinking": "Hm."}, call(1)), user(result(1))), "exactly what was sent"),
        ((user(), turn({**HM, **MARK}, SECRET, call(1)), user(result(1))), "exactly what was sent"),
        ((user(), turn(HM, call(1)), user(result(1))), "cannot be modified"),
        ((user(), turn(SECRET, HM, call(1)), user(result(1))), "cannot be modified"),
        ((user(), turn(thinking("new"), words("t")), user()), "cannot be modified"),
    ],
)
def test_a_bad_history_is_refused(history: tuple[dict[str, Any], ...], said: str) -> None:
    assert said in (problem(*history) or "")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_tokens": None}, "max_tokens: field required"),
        ({"stream_options": {}}, "stream_options: extra inputs"),
        ({"tools": None}, "tools: required while"),
        ({"tools": [GLOB, GLOB]}, "names must be unique"),
        ({"tools": [{**GLOB, "input_schema": {}}]}, "must be object"),
        ({"tool_choice": {"type": "tool", "name": "grep"}}, "no such tool"),
        ({"tool_choice": {"type": "none", "disable_parallel_tool_use": True}}, "extra inputs"),
        ({"system": []}, "must be non-empty"),
        ({"system": [words(" ")]}, "must be non-empty"),
        ({"system": [{**words("s"), **MARK}] * 5}, "a maximum of 4"),
        ({"temperature": 1.5}, "temperature"),
        ({"thinking": BUDGET}, "must start with a thinking block"),
        ({"thinking": BUDGET, "temperature": 0.2}, "temperature"),
        ({"thinking": BUDGET, "tool_choice": {"type": "any"}}, "forces tool use"),
        ({"thinking": BUDGET, "max_tokens": 1024}, "less than max_tokens"),
        ({"thinking": {**BUDGET, "budget_tokens": 1023}}, "at least 1024"),
    ],
)
def test_bad_parameters_are_refused(fields: dict[str, Any], said: str) -> None:
    assert said in (problem(user(), turn(call(1)), user(result(1)), **fields) or "")


def test_parameters_that_fit_are_accepted() -> None:
    marked = [{**words("s"), **MARK}] * 4
    assert problem(user(), system=marked, thinking=BUDGET, tool_choice={"type": "auto"}) is None
    assert problem(user(), turn(HM, SECRET, call(1)), user(result(1)), thinking=BUDGET) is None
