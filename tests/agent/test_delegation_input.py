"""What a `per_agent` tool makes of the arguments that a model sends (spec 3.1)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.agent_tool import resolved_input
from app.agent.definition import AgentDefinition
from app.agent.errors import InvalidArguments
from app.agent.orders import canonical, composed
from app.agent.surfaces import matching

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(st.sampled_from(["task", "input", "context", "other"]), JSON, max_size=4)


def as_text(value: Any) -> str:
    """What a value is as a part of the input."""
    return value if isinstance(value, str) else canonical(value)


def is_json(text: str) -> bool:
    """Whether a text is JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@given(FIELDS)
@pytest.mark.spec("3.1")
def test_an_object_gives_its_task_else_its_input_with_the_context_below(fields: dict[str, Any]) -> None:
    raw = json.dumps(fields)
    said = [fields[key] for key in ("task", "input") if fields.get(key) is not None]
    if not said:
        with pytest.raises(InvalidArguments, match="task"):
            resolved_input(raw)
        return
    context = fields.get("context")
    assert resolved_input(raw) == (as_text(said[0]), "" if context is None else as_text(context))


@given(st.text(min_size=1), st.text())
@pytest.mark.spec("3.1")
@pytest.mark.seed("000", 28)
def test_a_context_stands_under_the_task_behind_a_blank_line(task: str, context: str) -> None:
    below = f"\n\nContext:\n{context}" if context else ""
    assert composed(*resolved_input(json.dumps({"context": context, "task": task})), None) == task + below


@given(st.text(max_size=60).filter(lambda text: text.strip() and not is_json(text)))
@pytest.mark.spec("3.1")
def test_arguments_that_are_no_json_are_the_input_as_they_are(text: str) -> None:
    assert resolved_input(text) == (text, "")


@pytest.mark.spec("3.1")
@pytest.mark.case("B041")
@pytest.mark.parametrize("raw", ["", " ", "\n\t"])
def test_empty_arguments_are_an_empty_input(raw: str) -> None:
    assert resolved_input(raw) == ("", "")


@pytest.mark.spec("3.1")
@pytest.mark.case("B040")
@pytest.mark.parametrize(
    "raw", ["{}", "[]", "42", '"just a text"', "true", "null", '{"task": null}', '{"prompt": "x"}']
)
def test_json_without_a_task_is_refused_by_naming_it(raw: str) -> None:
    with pytest.raises(InvalidArguments, match="no `task`"):
        resolved_input(raw)


@pytest.mark.spec("3.1")
@pytest.mark.case("B038", "B039")
@pytest.mark.parametrize("raw", ['{"task": "cut', "{'task': 'x'}", '{"task": "x",}', "[" * 100_000, "1" * 5000 + "x"])
def test_broken_json_is_the_input_as_it_is(raw: str) -> None:
    assert resolved_input(raw) == (raw, "")


def agents(*names: str) -> dict[str, AgentDefinition]:
    """Definitions by name."""
    return {name: AgentDefinition(name=name, description="It is one.") for name in names}


@pytest.mark.spec("3.3")
@pytest.mark.case("B046")
@pytest.mark.parametrize("wanted", ["researcher", "Researcher ", '"researcher"', "['researcher']", "RESEARCHER"])
def test_a_name_that_differs_by_case_quotes_or_brackets_is_found(wanted: str) -> None:
    found = matching(wanted, agents("researcher", "writer"))
    assert found is not None
    assert found.name == "researcher"


@pytest.mark.spec("3.3")
@pytest.mark.case("B046")
@pytest.mark.parametrize("wanted", ["", "''", "research", "researcher2", "Scout"])
def test_a_name_that_fits_none_or_two_agents_is_nobody(wanted: str) -> None:
    assert matching(wanted, agents("researcher", "scout", "SCOUT")) is None


@pytest.mark.spec("3.1")
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e400"])
@pytest.mark.parametrize(
    "form", ['{"task": {"a": %s}}', '{"task": "x", "context": [%s]}', '{"task": %s}', '{"x": [[%s]]}']
)
def test_a_number_that_json_does_not_have_is_an_error_that_names_it(form: str, number: str) -> None:
    with pytest.raises(InvalidArguments, match=f"The arguments hold {number}, which is no JSON"):
        resolved_input(form % number)
    assert resolved_input('{"task": "NaN"}') == ("NaN", "")
    assert resolved_input('{"task": {"a": 1.5e3}}') == ('{"a":1500.0}', "")
