"""How much work a schema makes of a value: the same number as going through all of it one by one."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.fanout import MAX_VISITS, Fanout

NAMES = ["a", "b", "c"]
REFERENCE = st.sampled_from([{"$ref": f"#/$defs/{name}"} for name in NAMES])


def layer(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A schema around others, of the keywords that apply them."""
    return st.fixed_dictionaries(
        {},
        optional={
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "properties": st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
            "additionalProperties": inner,
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "propertyNames": inner,
        },
    )


SCHEMAS = st.recursive(st.just({"type": "string"}) | st.just({"minimum": 2}), layer, max_leaves=6)
VALUES = st.recursive(
    st.integers(0, 3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
    max_leaves=5,
)


def gone_through(schema: Any, value: Any, root: dict[str, Any]) -> int:
    """The visits of a validator that leaves nothing out, one by one."""
    here = [*schema.get("anyOf", ()), *([schema["not"]] if "not" in schema else ())]
    if "$ref" in schema:
        here.append(root["$defs"][schema["$ref"].rpartition("/")[2]])
    total = 1 + sum(gone_through(inner, value, root) for inner in here)
    if isinstance(value, dict):
        for key, item in value.items():
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            total += 0 if inner is None else gone_through(inner, item, root)
            total += gone_through(schema["propertyNames"], key, root) if "propertyNames" in schema else 0
    if isinstance(value, list):
        for index, item in enumerate(value):
            first = schema.get("prefixItems", [])
            inner = first[index] if index < len(first) else schema.get("items")
            total += 0 if inner is None else gone_through(inner, item, root)
    return total


def without_plain_references(schema: Any) -> Any:
    """A reference alone is the subschema itself, and no visit of its own; with a word beside it, it is one."""
    if isinstance(schema, dict):
        fields = {key: without_plain_references(value) for key, value in schema.items()}
        return {**fields, "title": "x"} if "$ref" in schema else fields
    return [without_plain_references(item) for item in schema] if isinstance(schema, list) else schema


@given(SCHEMAS, SCHEMAS, st.recursive(REFERENCE, layer, max_leaves=6), VALUES)
def test_all_visits_are_counted_each_as_often_as_it_happens(a: Any, b: Any, top: Any, value: Any) -> None:
    c = {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, {"$ref": "#/$defs/a"}]}
    schema = without_plain_references({**top, "$defs": {"a": a, "b": b, "c": c}})
    schema = json.loads(json.dumps(schema))  # no part is the same object twice
    exact = gone_through(schema, value, schema)
    counted = Fanout(schema)
    assert counted.steps(value, 10**9) == exact
    assert counted.visits(value, 10**9) >= exact


@pytest.mark.spec("5.6", "10.1")
def test_where_subschemas_contain_themselves_the_estimate_is_no_less_than_the_count_of_what_is_kept() -> None:
    node = {"properties": {"l": {"$ref": "#"}, "r": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
    value: Any = None
    for _ in range(12):
        value = {"l": value, "r": value}
    counted = Fanout(node)
    assert counted.problem() is None
    assert 8_191 <= counted.visits(value, 10**6) <= 10**5


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
        {"$defs": {"a": {"$anchor": "here", "allOf": [{"$ref": "#here"}]}}, "items": {"$ref": "#here"}},
        {"$defs": {"a": {"$dynamicAnchor": "n", "if": {"$dynamicRef": "#n"}}}, "items": {"$ref": "#/$defs/a"}},
    ],
)
def test_a_subschema_that_leads_to_itself_at_one_place_is_a_problem(schema: dict[str, Any]) -> None:
    problem = Fanout(schema).problem()
    assert problem is not None
    assert "refers to itself" in problem


@pytest.mark.parametrize(
    "defs",
    [
        lambda n: {f"a{i + 1}": {"anyOf": [{"$ref": f"#/$defs/a{i}"}] * 2} for i in range(n)},
        lambda n: {f"a{i + 1}": {"$anchor": f"x{i + 1}", "oneOf": [{"$ref": f"#x{i}"}] * 2} for i in range(n)},
        lambda n: {
            f"a{i + 1}": {"anyOf": [{"$ref": f"#/$defs/a{i}"}], "unevaluatedProperties": False} for i in range(n)
        },
        lambda n: {
            f"a{i + 1}": {"if": {"$ref": f"#/$defs/a{i}"}, "then": {"$ref": f"#/%24defs/a{i}"}} for i in range(n)
        },
    ],
    ids=["pointers", "anchors", "unevaluated", "escapes"],
)
def test_what_doubles_with_every_level_is_a_problem_and_a_few_levels_are_none(defs: Any) -> None:
    for levels, fine in ((4, True), (20, False), (2_000, False)):
        leaf = {"$anchor": "x0", "type": "string"}
        schema = {"$defs": {"a0": leaf, **defs(levels)}, "items": {"$ref": f"#/$defs/a{levels}"}}
        problem = Fanout(schema).problem()
        assert (problem is None) == fine
        assert problem is None or f"at most {MAX_VISITS:,} are accepted" in problem
