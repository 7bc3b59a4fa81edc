"""Arguments are strict JSON objects or a clear problem; nothing is guessed."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.wire import parse_arguments

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON, max_size=5), st.sampled_from([None, 1]))
def test_every_object_comes_back_equal(value: dict[str, object], indent: int | None) -> None:
    arguments, problem = parse_arguments(json.dumps(value, indent=indent))
    assert problem is None
    assert json.dumps(arguments) == json.dumps(value)


@given(st.text())
def test_any_text_gives_either_arguments_or_a_problem(raw: str) -> None:
    arguments, problem = parse_arguments(raw)
    assert (arguments is None) == (problem is not None)
    if arguments is not None and raw.strip() not in ("", "null"):
        assert isinstance(json.loads(raw), dict)


@pytest.mark.case("B041", "B042")
@pytest.mark.parametrize("raw", ["", " ", "\n\t", "null", " null ", "{}"])
def test_blank_arguments_are_an_empty_object(raw: str) -> None:
    assert parse_arguments(raw) == ({}, None)


@pytest.mark.case("B038", "B039")
@pytest.mark.parametrize(
    "raw",
    [
        '{"path": "a.txt"',
        '{"path": "a.txt",}',
        '{"path": "a.txt"} and more',
        "{'path': 'a.txt'}",
        "{bad",
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": 1e999}',
        '{"a": "\\ud83c"}',
        '{"a": "\ud83c"}',
        '```json\n{"a": 1}\n```',
        "path: a.txt",
        '{"a":' * 100_000,
    ],
)
def test_broken_json_is_a_problem_with_a_short_preview(raw: str) -> None:
    arguments, problem = parse_arguments(raw)
    assert arguments is None
    assert problem is not None and problem.startswith("the arguments are ") and len(problem) < 300


@pytest.mark.case("B040")
@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ("[]", "a list"),
        ("42", "a number"),
        ("-1.5", "a number"),
        ("true", "a boolean"),
        ('"x"', "a string"),
        ('"{\\"path\\":\\"a\\"}"', "a string"),
    ],
)
def test_json_that_is_no_object_is_named(raw: str, kind: str) -> None:
    arguments, problem = parse_arguments(raw)
    assert arguments is None
    assert problem is not None and f"not {kind}" in problem and raw in problem


@pytest.mark.case("B044")
def test_text_that_looks_like_json_stays_text() -> None:
    arguments, _ = parse_arguments('{"content": "{\\"a\\":1}", "new_string": "[\\"x\\"]"}')
    assert arguments == {"content": '{"a":1}', "new_string": '["x"]'}


def test_of_equal_keys_the_last_one_counts_and_large_numbers_stay_exact() -> None:
    assert parse_arguments('{"a": 1, "a": 2}')[0] == {"a": 2}
    arguments, _ = parse_arguments('{"n": 123456789012345678901234567890, "f": 0.1}')
    assert arguments is not None and arguments["n"] == 123456789012345678901234567890
    assert math.isclose(arguments["f"], 0.1)
