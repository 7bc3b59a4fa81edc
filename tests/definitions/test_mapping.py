"""Definitions as JSON maps: what comes over the API is checked strictly, and what was stored comes back the same."""

import json
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.agent.definition import (
    NO_POLICY,
    AgentDefinition,
    AgentMode,
    OnProblem,
    PolicyFields,
    Source,
    Surface,
    SurfaceKind,
)
from app.agent.errors import InvalidRequest, Unsupported
from app.definitions import from_mapping, to_mapping
from app.definitions.toolnames import BUILT_IN

INLINE = Source(kind="inline")
NAMED = {"name": "clerk", "description": "Keeps the books."}


@pytest.mark.spec("10.1")
def test_a_map_with_name_and_description_is_enough() -> None:
    assert from_mapping(NAMED, source=INLINE) == AgentDefinition(name="clerk", description="Keeps the books.")


@pytest.mark.spec("10.1", "10.2")
def test_keys_and_tool_names_are_those_of_files() -> None:
    data = {**NAMED, "tools": "Read, Agent(a, b)", "maxTurns": 3, "disallowedTools": ["Bash"], "vibe": "calm"}
    definition = from_mapping(data, source=INLINE)
    assert definition.tools == ("read_file", "Agent")
    assert (definition.agents, definition.max_steps) == (("a", "b"), 3)
    assert (definition.disallowed_tools, definition.metadata) == (("run_command",), {"vibe": "calm"})


@pytest.mark.spec("10.1")
@pytest.mark.parametrize(
    ("data", "at"),
    [
        ({"tools": 5}, "agents[0].tools"),
        ({"tools": ["Read", 5]}, "agents[0].tools"),
        ({"tools": "*"}, "agents[0].tools"),
        ({"tools": ""}, "agents[0].tools"),
        ({"name": ""}, "agents[0].name"),
        ({"name": None}, "agents[0].name"),
        ({"name": "a\nb"}, "agents[0].name"),
        ({"name": 7}, "agents[0].name"),
        ({"description": ["d"]}, "agents[0].description"),
        ({"prompt": {"text": "p"}}, "agents[0].prompt"),
        ({"mode": "boss"}, "agents[0].mode"),
        ({"max_steps": "5"}, "agents[0].max_steps"),
        ({"max_steps": True}, "agents[0].max_steps"),
        ({"max_steps": 201}, "agents[0].max_steps"),
        ({"max_steps": 10**30}, "agents[0].max_steps"),
        ({"temperature": "0.5"}, "agents[0].temperature"),
        ({"temperature": 10**400}, "agents[0].temperature"),
        ({"temperature": float("nan")}, "agents[0].temperature"),
        ({"parallel_tool_calls": "yes"}, "agents[0].parallel_tool_calls"),
        ({"tool_name": "Ask Clerk"}, "agents[0].tool_name"),
        ({"input_schema": {"type": "array"}}, "agents[0].input_schema"),
        ({"agents": "a, b"}, "agents[0].agents"),
        ({"metadata": 5}, "agents[0].metadata"),
        ({"handoff": {"max_depth": "2"}}, "agents[0].handoff.max_depth"),
        ({"handoff": {"depth": 2}}, "agents[0].handoff.depth"),
        ({"surfaces": ["nonsense"]}, "agents[0].surfaces[0]"),
        ({"max_steps": 1, "maxTurns": 2}, "agents[0].maxTurns"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(data: dict[str, Any], at: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        from_mapping({**NAMED, **data}, source=INLINE, at="agents[0]")
    assert [error["at"] for error in caught.value.errors] == [at]
    assert str(caught.value.errors[0]["message"]) in caught.value.message


def test_everything_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(InvalidRequest) as caught:
        from_mapping({"max_steps": 0, "tools": 1}, source=INLINE)
    assert {error["at"] for error in caught.value.errors} == {"max_steps", "tools", "name", "description"}


@pytest.mark.parametrize("data", [None, 5, "clerk", ["clerk"]])
def test_what_is_no_map_is_refused(data: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"agents\[2\]: an agent must be a map"):
        from_mapping(data, source=INLINE, at="agents[2]")


def test_values_that_are_nested_too_deep_are_refused() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match="nested deeper"):
        from_mapping({**NAMED, "metadata": {"deep": deep}}, source=INLINE)


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"session_mode": "reuse_session"}, "session_mode"),
        ({"background": True}, "background"),
        ({"inherit_context": "summary"}, "inherit_context"),
        ({"output_schema": {"type": "object"}}, "output_schema"),
        ({"runner": "shop:run"}, "runner"),
        ({"hooks": {"Stop": [1]}}, "hooks"),
        ({"mcpServers": ["time"]}, "mcpServers"),
        ({"skills": ["pdf"]}, "skills"),
        ({"permissionMode": "plan"}, "permissionMode"),
        ({"handoff": {"max_retries": 1}}, "handoff.max_retries"),
        ({"handoff": {"on_error": {"answer": "x"}}}, "handoff.on_error"),
        ({"surfaces": ["task"]}, "surfaces[0]"),
        ({"surfaces": [{"kind": "dispatch", "templates": {}}]}, "surfaces[0].templates"),
        ({"tools": ["Read", "mcp__a__b"]}, "tools"),
        ({"tools": ["Read", "Bash(git *)"]}, "tools"),
        ({"disallowed_tools": ["Bash(git *)"]}, "disallowed_tools"),
    ],
)
@pytest.mark.spec("10.1")
def test_what_a_later_version_brings_is_refused_by_name(data: dict[str, Any], key: str) -> None:
    with pytest.raises(Unsupported) as caught:
        from_mapping({**NAMED, **data}, source=INLINE, at="agents[1]")
    assert [error["at"] for error in caught.value.errors] == [f"agents[1].{key}"]
    assert key in caught.value.message


def test_values_that_ask_for_nothing_are_accepted() -> None:
    data = {"session_mode": "new_session", "background": False, "hooks": {}, "model": None, "tools": None}
    definition = from_mapping({**NAMED, **data}, source=INLINE)
    assert (definition.model, definition.tools) == (None, None)


@pytest.mark.spec("10.2")
def test_unknown_tools_are_refused_where_it_is_known_which_there_are() -> None:
    data = {**NAMED, "tools": ["Read", "Nonsense"]}
    assert from_mapping(data, source=INLINE).tools == ("read_file", "Nonsense")
    with pytest.raises(InvalidRequest, match="unknown tools: Nonsense"):
        from_mapping(data, source=INLINE, known_tools=BUILT_IN)


@pytest.mark.spec("10.2")
def test_a_tool_of_a_later_version_is_refused_unless_this_service_has_it_or_the_definition_was_stored() -> None:
    data = {**NAMED, "tools": ["Read", "Bash", "execute_task"]}
    with pytest.raises(Unsupported, match="later version: run_command, execute_task"):
        from_mapping(data, source=INLINE, known_tools=BUILT_IN)
    own = BUILT_IN | {"run_command", "execute_task"}
    for known in (own, None):
        definition = from_mapping(data, source=INLINE, known_tools=known)
        assert definition.tools == ("read_file", "run_command", "execute_task")


def test_the_stored_form_names_only_what_is_set() -> None:
    assert to_mapping(from_mapping(NAMED, source=INLINE)) == NAMED


# ── round trip ──────────────────────────────────────────────────────────────────────────────────────────────────

WORD = st.text(alphabet=string.ascii_letters + string.digits + "._ ()-审查", min_size=1, max_size=20).map(str.strip)
NAMES = st.lists(WORD.filter(bool), max_size=3, unique=True).map(tuple)
TOOLS = st.lists(
    st.sampled_from(["read_file", "grep", "Agent", "subagent_x", "dispatch_subagent", "weather", "run_command"]),
    max_size=4,
    unique=True,
).map(tuple)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | WORD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORD, inner, max_size=3),
    max_leaves=6,
)
POLICIES = st.builds(
    PolicyFields,
    enabled=st.none() | st.booleans(),
    max_depth=st.none() | st.tuples(st.none() | st.integers(0, 5)),
    timeout_ms=st.none() | st.integers(0, 10_000),
    allowed_tools=st.none() | st.tuples(st.none() | NAMES),
    denied_tools=st.none() | st.tuples(st.none() | NAMES),
    on_denied=st.none() | st.sampled_from(OnProblem),
    on_error=st.none() | st.sampled_from(OnProblem),
)
SURFACES = st.lists(
    st.builds(Surface, kind=st.sampled_from([SurfaceKind.DISPATCH, SurfaceKind.PER_AGENT]), agents=st.none() | NAMES),
    max_size=2,
    unique=True,
).map(tuple)
DEFINITIONS = st.builds(
    AgentDefinition,
    name=WORD.filter(bool),
    description=WORD.filter(bool),
    prompt=st.text(alphabet=string.printable.replace("\r", "").replace("\x0b", "").replace("\x0c", ""), max_size=40),
    mode=st.sampled_from(AgentMode),
    tools=st.none() | TOOLS,
    disallowed_tools=TOOLS,
    model=st.none() | st.sampled_from(["openai:gpt-4o", "sonnet", "Claude Sonnet 4.5"]),
    temperature=st.none() | st.floats(0, 2),
    effort=st.none() | st.sampled_from(["low", "high", "3"]),
    max_tokens=st.none() | st.integers(1, 100_000),
    tool_choice=st.none() | st.sampled_from(["auto", "none", "required", "grep", "dispatch_subagent"]),
    max_steps=st.none() | st.integers(1, 200),
    parallel_tool_calls=st.none() | st.booleans(),
    tool_name=st.none() | st.sampled_from(["ask_clerk", "agent_7"]),
    input_schema=st.none() | st.just({"type": "object", "properties": {"a": {"enum": [1, "x", None]}}}),
    surfaces=st.none() | SURFACES,
    agents=st.none() | NAMES,
    policy=st.just(NO_POLICY) | POLICIES,
    metadata=st.dictionaries(WORD, JSON, max_size=3),
    source=st.just(INLINE),
)


@pytest.mark.spec("10.1")
@settings(max_examples=200, deadline=2_000)
@given(DEFINITIONS)
def test_a_definition_comes_back_from_its_stored_form(definition: AgentDefinition) -> None:
    stored = json.loads(json.dumps(to_mapping(definition), allow_nan=False))
    assert from_mapping(stored, source=INLINE) == definition
