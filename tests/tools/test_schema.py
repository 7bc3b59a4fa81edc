"""The checker of arguments: words for models, bounded, and nothing fetched."""

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.tools import SchemaChecker, Tool
from app.tools.schema import JsonSchemaChecker, check_schema

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 1},
        "mode": {"enum": ["fast", "exact"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "kind": {"const": "x"},
        "either": {"oneOf": [{"type": "number"}, {"type": "integer"}]},
    },
    "required": ["path"],
    "additionalProperties": False,
    "$defs": {
        "item": {"type": "object", "properties": {"name": {"type": "string"}}, "additionalProperties": False},
    },
}


@pytest.fixture
def checker() -> SchemaChecker:
    """A fresh checker."""
    return JsonSchemaChecker()


@pytest.mark.spec("7.1")
def test_valid_arguments_pass(checker: SchemaChecker) -> None:
    for value in (
        {"path": "a"},
        {"path": "a", "mode": "fast", "count": 9, "items": [{"name": "n"}, {}], "note": None, "kind": "x"},
        {"path": "a", "count": 2.0},
        MappingProxyType({"path": "a", "items": ({"name": "n"},)}),
    ):
        assert checker.check(SCHEMA, value) is None


@pytest.mark.spec("7.1")
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({}, "missing required property 'path'"),
        ({"path": 3}, "path: must be string, not 3"),
        ({"path": None}, "path: must be string, not null"),
        ({"path": ["a"]}, "path: must be string, not an array of 1"),
        ({"path": "a", "mode": "quick"}, 'mode: must be one of "fast", "exact", not "quick"'),
        ({"path": "a", "count": 10}, "count: the value is greater than the maximum of 9 (it is 10)"),
        ({"path": "a", "count": True}, "count: must be integer, not true"),
        ({"path": "a", "items": [{}, {"name": 1}]}, "items[1].name: must be string, not 1"),
        ({"path": "a", "items": [{"nam": 1}]}, 'items[0]: unknown property "nam"; allowed: "name"'),
        (
            {"path": "a", "note": 1},
            "note: fits none of the allowed forms (note: must be string, not 1; or note: must be null, not 1)",
        ),
        ({"path": "a", "kind": "y"}, 'kind: must be "x", not "y"'),
        ({"path": "a", "either": 3}, "either: fits not exactly one of the allowed forms"),
        ([], "must be object, not an array of 0"),
        ("path", 'must be object, not "path"'),
    ],
)
def test_a_problem_says_where_what_and_what_would_do(checker: SchemaChecker, value: Any, problem: str) -> None:
    assert checker.check(SCHEMA, value) == problem


@pytest.mark.spec("7.1")
def test_an_unknown_property_is_answered_with_the_known_ones(checker: SchemaChecker) -> None:
    assert checker.check(SCHEMA, {"path": "a", "file": 1}) == (
        'unknown property "file"; allowed: "path", "mode", "count", "items", "note", "kind", "either"'
    )


@pytest.mark.spec("7.1")
def test_at_most_three_problems_are_told(checker: SchemaChecker) -> None:
    problem = checker.check(SCHEMA, {"path": 1, "mode": 2, "count": "3", "items": 4, "kind": 5})

    assert problem is not None
    assert problem.count(": must be") == 3
    assert problem.endswith("; and more")


@pytest.mark.spec("7.1")
@pytest.mark.parametrize(
    "value",
    [
        {"path": "a", "mode": "x" * 1_000_000},
        {"path": "a", "count": 10**5_000},
        {"path": "a", "x" * 100_000: 1},
        {"path": "a", **{f"unknown{n}": n for n in range(1_000)}},
        {"path": "a", "items": [{"name": n} for n in range(10_000)]},
        {"path": "a", "note": {"deep": ["x" * 1_000] * 1_000}},
    ],
)
def test_an_answer_is_short_whatever_the_value(checker: SchemaChecker, value: Any) -> None:
    problem = checker.check(SCHEMA, value)

    assert problem is not None
    assert len(problem) < 1_000


@pytest.mark.spec("7.1")
def test_values_that_are_no_json_are_wrong_and_not_fatal(checker: SchemaChecker) -> None:
    deep: Any = []
    for _ in range(10_000):
        deep = [deep]
    for value in ({"path": "a", "mode": "\ud800"}, {"path": object()}, {"path": "a", "note": deep}, {1: "a"}):
        assert checker.check(SCHEMA, value) is not None


@pytest.mark.spec("7.1")
def test_a_schema_that_cannot_be_used_lets_nothing_through(checker: SchemaChecker) -> None:
    problem = checker.check({"type": "object", "properties": {"a": {"type": "text"}}}, {})

    assert problem is not None
    assert problem.startswith("the schema cannot be used: properties.a.type: fits none of the allowed forms")


@pytest.mark.spec("7.1")
def test_schemas_are_compiled_once_by_identity_and_by_text(checker: JsonSchemaChecker) -> None:
    for n in range(2_000):
        schema = {"type": "object", "required": [f"r{n % 700}"]}
        assert checker.check(schema, {}) == f"missing required property 'r{n % 700}'"
    began = time.process_time()
    for _ in range(10_000):
        checker.check(SCHEMA, {"path": "a"})

    assert time.process_time() - began < 1.0  # compiling takes 20 to 100 µs, checking 3


@pytest.mark.spec("7.1")
@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ([], "must be an object"),
        ({}, "must have type 'object', not null"),
        ({"type": "array"}, "must have type 'object', not \"array\""),
        ({"type": "object", "properties": 3}, "properties: must be object, not 3"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, "properties.a.pattern"),
        ({"type": "object", "$ref": "http://127.0.0.1:1/x"}, "only references inside the schema"),
        ({"type": "object", "$ref": "file:///etc/hostname"}, "only references inside the schema"),
        ({"type": "object", "$ref": "#/nope"}, "nope"),
        ({"type": "object", "$schema": "http://127.0.0.1:1/x"}, "meta-schema"),
        ({"type": "object", "description": "x" * 70_000}, "larger than 65,536 characters"),
        ({"type": "object", "default": {1, 2}}, "not JSON"),
        ({"type": "object", "default": float("nan")}, "not JSON"),
    ],
)
def test_what_is_no_schema_of_arguments_says_why(schema: Any, problem: str) -> None:
    found = check_schema(schema)

    assert found is not None
    assert problem in found
    assert len(found) < 500


@pytest.mark.spec("7.1")
def test_schemas_of_arguments_are_accepted(tools: Mapping[str, Tool]) -> None:
    for schema in (SCHEMA, MappingProxyType(SCHEMA), {"type": "object"}, *(t.spec.parameters for t in tools.values())):
        assert check_schema(schema) is None
    assert check_schema({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}) is None
    assert check_schema({"type": "object", "properties": {"self": {"$ref": "#"}}}) is None


@pytest.mark.spec("7.1")
def test_a_pattern_with_look_around_cannot_hold_the_service_up(checker: SchemaChecker) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=a)((a+)+)+(?!x)$"}}}
    began = time.process_time()

    assert checker.check(schema, {"a": "a" * 5_000 + "!"}) is not None

    assert time.process_time() - began < 1.0


def unions(levels: int) -> dict[str, Any]:
    """A schema of few words that leads to 2^levels subschemas for one value."""
    defs: dict[str, Any] = {"a0": {"type": "string"}}
    for level in range(1, levels + 1):
        defs[f"a{level}"] = {"anyOf": [{"$ref": f"#/$defs/a{level - 1}"}] * 2}
    return {"type": "object", "properties": {"x": {"$ref": f"#/$defs/a{levels}"}}, "$defs": defs}


def nested(levels: int) -> dict[str, Any]:
    """The same, one level of the value for each."""
    defs: dict[str, Any] = {"a0": {"type": "string"}}
    for level in range(1, levels + 1):
        inner = {"properties": {"x": {"$ref": f"#/$defs/a{level - 1}"}}}
        defs[f"a{level}"] = {"anyOf": [inner, {**inner, "minProperties": 1}]}
    return {"type": "object", "$ref": f"#/$defs/a{levels}", "$defs": defs}


def chain(levels: int) -> Any:
    """`{"x": {"x": … 5}}`."""
    value: Any = 5
    for _ in range(levels):
        value = {"x": value}
    return value


@pytest.mark.spec("7.1")
@pytest.mark.timeout(20)  # each of these took minutes and all memory
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (unions(23), {"x": 5}),
        (unions(300), {"x": 5}),
        (unions(12), {"x": 5}),
        (nested(40), chain(40)),
        (nested(16), chain(16)),
        ({"type": "object", "not": {"$ref": "#/$defs/a"}, "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}, {}),
    ],
    ids=["unions", "more unions", "few unions", "nested", "less nested", "circular"],
)  # fmt: skip
def test_a_schema_that_multiplies_cannot_hold_the_service_up(
    checker: SchemaChecker, schema: dict[str, Any], value: Any
) -> None:
    problem = checker.check(schema, value)
    assert problem is not None
    assert "too large" in problem


@pytest.mark.spec("7.1")
def test_a_tool_whose_schema_multiplies_is_refused() -> None:
    problem = check_schema(unions(23))
    assert problem is not None
    assert "at most 10,000 are accepted" in problem
    assert check_schema(unions(10)) is None


TREE = {
    "type": "object",
    "$ref": "#/$defs/part",
    "$defs": {
        "part": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {
                        "kind": {"const": kind},
                        "children": {"type": "array", "items": {"$ref": "#/$defs/part"}},
                        "next": {"anyOf": [{"$ref": "#/$defs/part"}, {"type": "null"}]},
                    },
                    "required": ["kind"],
                }
                for kind in ("text", "row", "column", "table", "image")
            ]
        }
    },
}


@pytest.mark.spec("7.1")
def test_a_recursive_schema_of_many_kinds_takes_deep_and_large_values(checker: SchemaChecker) -> None:
    value: dict[str, Any] = {"kind": "text"}
    for _ in range(40):
        value = {"kind": "row", "children": [value, {"kind": "image", "next": None}], "next": {"kind": "table"}}
    assert checker.check(TREE, value) is None
    wide = {"kind": "row", "children": [{"kind": "text", "next": {"kind": "text"}}] * 5_000}
    assert checker.check(TREE, wide) is None
    wide["children"][4_000] = {"kind": "none"}  # type: ignore[index]
    assert checker.check(TREE, wide) == "the value does not fit the schema; it is too large to say where"


@pytest.mark.spec("7.1")
def test_in_a_large_value_the_first_problem_is_told(checker: SchemaChecker) -> None:
    rows = {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}}
    value: dict[str, Any] = {"rows": [{"a": "x"} for _ in range(20_000)]}
    schema = {"type": "object", "properties": {"rows": rows}}
    assert checker.check(schema, value) is None
    for row in value["rows"][7:]:
        row["a"] = 5
    assert checker.check(schema, value) == "rows[7].a: must be string, not 5"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.spec("7.1")
@given(value=_JSON, schema=st.dictionaries(st.sampled_from(["type", "enum", "items", "properties", "$ref"]), _JSON))
def test_no_value_and_no_schema_raises(value: Any, schema: dict[str, Any]) -> None:
    checker = JsonSchemaChecker()

    for answer in (checker.check(SCHEMA, value), checker.check(schema, value), check_schema(schema)):
        assert answer is None or 0 < len(answer) < 1_000
