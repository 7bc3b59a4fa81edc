"""Final answers: JSON that satisfies a schema, with nothing guessed, and the digest where there is no text."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.answers import DIGEST_CHARS, DIGEST_RESULTS, digest, json_answer
from app.agent.messages import Message, Role
from app.agent.texts import DEFAULT
from app.tools.schema import JsonSchemaChecker

CHECKER = JsonSchemaChecker()
OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.spec("5.6")
@pytest.mark.parametrize(
    ("text", "schema", "answer"),
    [
        ('{"n": 1}', OBJECT, '{"n": 1}'),
        ('  \n{"n": 1}\n ', OBJECT, '{"n": 1}'),
        ('```json\n{"n": 1}\n```', OBJECT, '{"n": 1}'),
        ('```\n{"n": 1}\n```', OBJECT, '{"n": 1}'),
        ('```JSON\r\n{"n": 1}```', OBJECT, '{"n": 1}'),
        ('````json\n{"n": 1}\n````', OBJECT, '{"n": 1}'),
        ("[1, 2]", {"type": "array", "items": {"type": "integer"}}, "[1, 2]"),
        ('"```"', {"type": "string"}, '"```"'),
        ("3", {"enum": [1, 2, 3]}, "3"),
        ("null", {"type": "null"}, "null"),
        ("false", {}, "false"),
    ],
)
def test_json_of_any_type_is_an_answer_also_inside_one_code_fence(
    text: str, schema: dict[str, Any], answer: str
) -> None:
    assert json_answer(text, schema, CHECKER) == (answer, None)


@pytest.mark.spec("5.6")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no JSON"),
        ("Here it is: {}", "no JSON"),
        ('Sure.\n```json\n{"n": 1}\n```', "no JSON"),
        ('```json\n{"n": 1}\n```\nDone.', "no JSON"),
        ('```python\n{"n": 1}\n```', "no JSON"),
        ('{"n": 1} {"n": 2}', "no JSON"),
        ("{'n': 1}", "no JSON"),
        ('{"n": 1,}', "no JSON"),
        ('{"n": NaN}', "NaN"),
        ("-Infinity", "-Infinity"),
        ('{"n": "1"}', "must be integer"),
        ("{}", "'n'"),
        ("[" * 100_000, "no JSON"),
        ("9" * 5_000, "no JSON"),
        ("```json\n```", "no JSON"),
        ("```", "no JSON"),
    ],
)
def test_what_is_no_json_or_does_not_satisfy_the_schema_is_left_as_it_is_with_the_reason(
    text: str, problem: str
) -> None:
    answer, found = json_answer(text, OBJECT, CHECKER)
    assert answer == text
    assert found is not None and problem in found
    assert len(found) < 1_500, "it goes back to the model"


@pytest.mark.spec("5.6")
def test_an_answer_nested_deeper_than_can_be_checked_is_refused_and_raises_nothing() -> None:
    tree = {"type": "array", "items": {"$ref": "#"}}
    for depth in (200, 900, 5_000):
        text = "[" * depth + "]" * depth
        answer, problem = json_answer(text, tree, CHECKER)
        assert answer == text
        assert problem is None or "JSON" in problem


@given(VALUES)
def test_every_json_value_comes_back_as_the_same_value_bare_and_fenced(value: Any) -> None:
    for written in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=2)):
        for text in (written, f"```json\n{written}\n```", f"```\n{written}\n```"):
            answer, problem = json_answer(text, {}, CHECKER)
            assert problem is None
            assert json.loads(answer) == value


# ── digests ─────────────────────────────────────────────────────────────────────────────────────────────────────


def result(text: str) -> Message:
    return Message(role=Role.TOOL, content=text, tool_call_id="call_1")


@pytest.mark.spec("5.5")
@pytest.mark.case("B049")
def test_a_digest_holds_the_newest_results_in_order_and_each_only_so_far() -> None:
    many = [result(f"result {number}") for number in range(DIGEST_RESULTS + 3)]
    text = digest([*many, result("x" * 10_000), result("  ")], DEFAULT)
    lines = text.split("\n")
    assert lines[0] == DEFAULT.digest
    assert lines[1:-1] == [f"- result {number}" for number in range(4, DIGEST_RESULTS + 3)]
    assert lines[-1] == f"- {'x' * DIGEST_CHARS} …"


@pytest.mark.spec("5.5")
def test_a_digest_of_nothing_says_that_there_is_nothing() -> None:
    said = [Message(role=Role.ASSISTANT, content="I think."), Message(role=Role.USER, content="Go on.")]
    assert digest(said, DEFAULT) == DEFAULT.no_digest
