"""Definitions as JSON maps: what comes over the API is checked strictly, and what was stored comes back the same."""

import json
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.agent.definition import (
    AgentDefinition,
    AgentMode,
    Inherit,
    InheritKind,
    SessionMode,
    SessionScope,
    Source,
    Surface,
    SurfaceKind,
)
from app.agent.errors import InvalidRequest, Unsupported
from app.agent.policy import (
    FAIL,
    NO_POLICY,
    REPORT,
    TO_PRIMARY,
    BudgetLimits,
    FilterRef,
    OnProblem,
    PolicyFields,
    Reaction,
)
from app.definitions import Severity, from_mapping, parse, to_mapping
from app.definitions.surfaces import TEMPLATES
from app.definitions.toolnames import BUILT_IN
from tests.definitions.world import NAMED as HEAD
from tests.definitions.world import loaded
from tests.longer import examples

INLINE = Source(kind="inline")
NAMED = {"name": "clerk", "description": "Keeps the books."}
MANY = [f"name_{number}" for number in range(10_001)]


def unions(levels: int) -> dict[str, Any]:
    """A schema of few words that leads to 2^levels subschemas for one value."""
    defs: dict[str, Any] = {"a0": {"type": "string"}}
    for level in range(1, levels + 1):
        defs[f"a{level}"] = {"anyOf": [{"$ref": f"#/$defs/a{level - 1}"}] * 2}
    return {"$defs": defs, "$ref": f"#/$defs/a{levels}"}


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
        ({"thinking": "maybe"}, "agents[0].thinking"),
        ({"thinking": 1}, "agents[0].thinking"),
        ({"output_schema": "text"}, "agents[0].output_schema"),
        ({"output_schema": {"type": "nonsense"}}, "agents[0].output_schema"),
        ({"output_schema": {"$ref": "https://example.org/schema"}}, "agents[0].output_schema"),
        ({"session_mode": "keep"}, "agents[0].session_mode"),
        ({"session_mode": {"mode": "reuse_session", "scope": "world"}}, "agents[0].session_mode.scope"),
        ({"session_mode": {"kind": "reuse_session"}}, "agents[0].session_mode.kind"),
        ({"session_mode": {"scope": "user"}, "session_scope": "tenant"}, "agents[0].session_scope"),
        ({"session_scope": "world"}, "agents[0].session_scope"),
        ({"inherit_context": "last"}, "agents[0].inherit_context"),
        ({"inherit_context": "last:0"}, "agents[0].inherit_context"),
        ({"inherit_context": "last:201"}, "agents[0].inherit_context"),
        ({"inherit_context": "all"}, "agents[0].inherit_context"),
        ({"runner": "shop.agents:run"}, "agents[0].runner"),
        ({"hooks": {"Stop": [1]}}, "agents[0].hooks"),
        ({"hooks": "x"}, "agents[0].hooks"),
        ({"mcpServers": {"time": {"command": "x"}}}, "agents[0].mcpServers"),
        ({"mcp_config": {"mcpServers": {"time": {"url": "http://x/"}}}}, "agents[0].mcp_config"),
        ({"budget": {"tokens": 0}}, "agents[0].budget.tokens"),
        ({"max_budget_usd": "1"}, "agents[0].max_budget_usd"),
        ({"handoff": {"input_filter": "shop.filters:short"}}, "agents[0].handoff.input_filter"),
        ({"surfaces": ["task"] * 65}, "agents[0].surfaces"),
        ({"surfaces": [{"kind": "task", "agents": MANY}]}, "agents[0].surfaces[0].agents"),
        ({"agents": MANY}, "agents[0].agents"),
        ({"tools": MANY}, "agents[0].tools"),
        ({"tools": f"Agent({', '.join(MANY)})"}, "agents[0].tools"),
        ({"tools": dict.fromkeys(MANY, False)}, "agents[0].tools"),
        ({"disallowed_tools": MANY}, "agents[0].disallowed_tools"),
        ({"handoff": {"allowed_tools": MANY}}, "agents[0].handoff.allowed_tools"),
        ({"handoff": {"denied_tools": MANY}}, "agents[0].handoff.denied_tools"),
        ({"output_schema": unions(23)}, "agents[0].output_schema"),
        ({"input_schema": {**unions(23), "type": "object"}}, "agents[0].input_schema"),
        ({"output_schema": {"$ref": "#"}}, "agents[0].output_schema"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(data: dict[str, Any], at: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        from_mapping({**NAMED, **data}, source=INLINE, at="agents[0]")
    assert [error["at"] for error in caught.value.errors] == [at]
    assert str(caught.value.errors[0]["message"]) in caught.value.message


@pytest.mark.spec("10.2")
def test_lists_that_are_long_but_not_too_long_are_read() -> None:
    names = MANY[:10_000]
    read = from_mapping(
        {
            **NAMED,
            "tools": ["Agent", "read_file"],
            "agents": names,
            "disallowed_tools": names,
            "surfaces": [{"kind": "task", "agents": [name]} for name in names[:64]],
            "handoff": {"allowed_tools": names},
        },
        source=INLINE,
    )
    assert (read.agents, read.disallowed_tools, read.policy.allowed_tools) == (*[tuple(names)] * 2, (tuple(names),))
    assert read.surfaces is not None
    assert len(read.surfaces) == 64


@pytest.mark.timeout(20)  # what grows with the square takes minutes
def test_a_text_of_a_million_words_in_brackets_is_one_name_and_read_in_little_time() -> None:
    read = from_mapping({**NAMED, "tools": f"Agent({'a ' * 1_000_000}), Read"}, source=INLINE)
    assert read.tools == ("Agent", "read_file")
    assert read.agents is not None
    assert len(read.agents) == 1


@pytest.mark.spec("5.6")
def test_large_ordinary_schemas_and_recursive_ones_are_accepted() -> None:
    kinds = [{"type": "object", "properties": {"kind": {"const": n}, "of": {"$ref": "#"}}} for n in range(200)]
    for schema in (unions(10), {"oneOf": kinds}, {"properties": {f"p{n}": {"type": "string"} for n in range(2_000)}}):
        assert from_mapping({**NAMED, "output_schema": schema}, source=INLINE).output_schema == schema


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
        ({"permissionMode": "acceptEdits"}, "permissionMode"),
        ({"memory": "project"}, "memory"),
    ],
)
@pytest.mark.spec("10.1")
def test_what_a_later_version_brings_is_refused_by_name(data: dict[str, Any], key: str) -> None:
    with pytest.raises(Unsupported) as caught:
        from_mapping({**NAMED, **data}, source=INLINE, at="agents[1]")
    assert [error["at"] for error in caught.value.errors] == [f"agents[1].{key}"]
    assert key in caught.value.message


def test_values_that_ask_for_nothing_are_accepted() -> None:
    data = {"background": False, "hooks": {}, "permissionMode": "default", "model": None, "tools": None}
    definition = from_mapping({**NAMED, **data}, source=INLINE)
    assert (definition.model, definition.tools) == (None, None)
    unset = ("thinking", "output_schema", "session_mode", "session_scope", "inherit_context", "budget", "surfaces")
    assert from_mapping({**NAMED, **dict.fromkeys(unset)}, source=INLINE) == from_mapping(NAMED, source=INLINE)


@pytest.mark.spec("2.5", "4.9", "5.6", "5.9", "10.1")
def test_what_an_agent_remembers_is_told_and_answers_is_said_by_the_api_too() -> None:
    data = {
        "thinking": "off",
        "output_schema": {"type": "array", "items": {"type": "number"}},
        "session_mode": {"mode": "reuse_session", "scope": "key"},
        "inherit_context": "last:200",
        "max_budget_usd": 0.25,
    }
    definition = from_mapping({**NAMED, **data}, source=INLINE)
    assert definition.thinking is False
    assert definition.output_schema == data["output_schema"]
    assert (definition.session_mode, definition.session_scope) == (SessionMode.REUSE, SessionScope.KEY)
    assert definition.inherit_context == Inherit(kind=InheritKind.LAST, count=200)
    assert definition.budget == BudgetLimits(cost_micros=250_000)


@pytest.mark.spec("10.5")
def test_code_of_the_server_is_named_by_files_alone_and_shown() -> None:
    lines = "runner: shop.agents:run\nhandoff: {input_filter: ['shop.filters:short', mask_secrets]}\n"
    shown = to_mapping(loaded(HEAD + lines))
    assert shown["runner"] == "shop.agents:run"
    assert shown["handoff"] == {"input_filter": ["shop.filters:short", "mask_secrets"]}
    with pytest.raises(InvalidRequest) as caught:
        from_mapping(shown, source=INLINE)
    assert [error["at"] for error in caught.value.errors] == ["runner", "handoff.input_filter[0]"]
    assert all("operator" in str(error["message"]) for error in caught.value.errors)


@pytest.mark.spec("10.2")
def test_unknown_tools_are_refused_where_it_is_known_which_there_are() -> None:
    data = {**NAMED, "tools": ["Read", "Nonsense", "ask_clerk"]}
    assert from_mapping(data, source=INLINE).tools == ("read_file", "Nonsense", "ask_clerk")
    with pytest.raises(InvalidRequest, match="unknown tools: Nonsense, ask_clerk"):
        from_mapping(data, source=INLINE, known_tools=BUILT_IN)
    with pytest.raises(InvalidRequest, match=r"unknown tools: Nonsense$"):
        from_mapping(data, source=INLINE, known_tools=BUILT_IN, agent_tools=frozenset({"ask_clerk"}))


@pytest.mark.spec("10.2")
def test_a_tool_that_is_off_is_refused_unless_this_service_has_it_or_the_definition_was_stored() -> None:
    data = {**NAMED, "tools": ["Read", "Bash", "execute_task"]}
    with pytest.raises(Unsupported, match=r"switched off on this server: run_command$"):
        from_mapping(data, source=INLINE, known_tools=BUILT_IN)
    own = BUILT_IN | {"run_command"}
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
COUNTS = st.none() | st.integers(1, 2**53 - 1)
BUDGETS = st.builds(BudgetLimits, tokens=COUNTS, max_concurrent=COUNTS) | st.builds(
    BudgetLimits, cost_micros=st.integers(1, 10**9), currency=st.sampled_from(["USD", "EUR"]), model_calls=COUNTS
)
TEXT = WORD.filter(bool)
REACTIONS = st.sampled_from([FAIL, REPORT, TO_PRIMARY]) | st.builds(
    OnProblem, reaction=st.sampled_from([Reaction.AGENT, Reaction.ANSWER]), target=TEXT
)
FILTERS = st.lists(
    st.sampled_from([FilterRef(name="mask_secrets"), FilterRef(name="cut_context")])
    | st.builds(FilterRef, name=st.just("cut_context"), argument=st.integers(1, 10_000))
    | st.builds(FilterRef, name=st.just("inject"), argument=st.dictionaries(WORD, JSON, min_size=1, max_size=2)),
    max_size=3,
).map(tuple)
POLICIES = st.builds(
    PolicyFields,
    enabled=st.none() | st.booleans(),
    max_depth=st.none() | st.tuples(st.none() | st.integers(0, 5)),
    max_retries=st.none() | st.integers(0, 100),
    timeout_ms=st.none() | st.integers(0, 10_000),
    deadline_ms=st.none() | st.integers(0, 10_000),
    allowed_tools=st.none() | st.tuples(st.none() | NAMES),
    denied_tools=st.none() | st.tuples(st.none() | NAMES),
    on_denied=st.none() | REACTIONS,
    on_error=st.none() | REACTIONS | st.builds(OnProblem, reaction=st.just(Reaction.MODEL), target=TEXT),
    input_filters=st.none() | FILTERS,
    budget=st.none() | BUDGETS,
)
SURFACES = st.lists(
    st.sampled_from(SurfaceKind).flatmap(
        lambda kind: st.builds(
            Surface,
            kind=st.just(kind),
            agents=st.none() | NAMES,
            templates=st.dictionaries(
                st.sampled_from(TEMPLATES[kind]), st.none() if kind is SurfaceKind.SUBAGENT else TEXT, max_size=2
            ).map(lambda texts: {name: text for name, text in texts.items() if name != "subagent"}),
        )
    ),
    max_size=2,
    unique_by=lambda surface: surface.kind,
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
    abort_siblings=st.none() | st.booleans(),
    tool_name=st.none() | st.sampled_from(["ask_clerk", "agent_7"]),
    input_schema=st.none() | st.just({"type": "object", "properties": {"a": {"enum": [1, "x", None]}}}),
    thinking=st.none() | st.booleans(),
    output_schema=st.none() | st.sampled_from([{"type": "array"}, {"type": "object", "required": ["a"]}, {}]),
    session_mode=st.sampled_from(SessionMode),
    session_scope=st.sampled_from(SessionScope),
    inherit_context=st.sampled_from([Inherit(), Inherit(kind=InheritKind.SUMMARY)])
    | st.builds(Inherit, kind=st.just(InheritKind.LAST), count=st.integers(1, 200)),
    budget=st.none() | BUDGETS,
    surfaces=st.none() | SURFACES,
    agents=st.none() | NAMES,
    policy=st.just(NO_POLICY) | POLICIES,
    metadata=st.dictionaries(WORD, JSON, max_size=3),
    source=st.just(INLINE),
)


@pytest.mark.spec("4.1", "10.1")
@settings(max_examples=examples(200), deadline=2_000)
@given(DEFINITIONS)
def test_a_definition_comes_back_from_its_stored_form(definition: AgentDefinition) -> None:
    stored = json.loads(json.dumps(to_mapping(definition), allow_nan=False))
    assert from_mapping(stored, source=INLINE) == definition


ODD = JSON | st.sampled_from(
    ["on", "last:3", "reuse_session", "mask_secrets", "a.b:c", {"mode": 1}, [{"kind": "task"}]]
)
KEYS = st.sampled_from([
    "thinking", "output_schema", "session_mode", "session_scope", "inherit_context", "runner", "budget", "surfaces",
    "handoff", "limits", "max_budget_usd", "tools", "agents", "input_schema",
])  # fmt: skip
INNER = st.sampled_from([
    "max_retries", "on_error", "on_denied", "input_filter", "budget", "tokens", "currency", "mode", "scope", "agent",
    "model", "answer", "inject", "cut_context", "path", "kind", "templates", "heading", "type", "$ref",
])  # fmt: skip
NESTED = st.recursive(ODD, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(INNER, inner, max_size=3))


@pytest.mark.spec("10.1")
@settings(max_examples=examples(300), deadline=2_000)
@given(st.dictionaries(KEYS, NESTED, max_size=4))
def test_whatever_is_sent_is_read_and_comes_back_or_is_refused_with_places(data: dict[str, Any]) -> None:
    try:
        definition = from_mapping({**NAMED, **data}, source=INLINE, at="a", known_tools=BUILT_IN)
    except (InvalidRequest, Unsupported) as error:
        assert error.errors
        assert all(str(found["at"]).startswith("a.") and found["message"] for found in error.errors)
    else:
        assert from_mapping(to_mapping(definition), source=INLINE) == definition


@settings(max_examples=examples(300), deadline=2_000)
@given(st.dictionaries(KEYS, NESTED, max_size=4))
def test_the_same_in_a_file_gives_an_agent_or_an_error_with_its_line(data: dict[str, Any]) -> None:
    lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in data.items())
    parsed = parse(f"---\n{HEAD}{lines}---\nbody\n", path="f.md")
    if parsed.definition is None:
        errors = [problem for problem in parsed.problems if problem.severity is Severity.ERROR]
        assert errors
        assert all(4 <= problem.line <= 3 + len(data) for problem in errors), parsed.problems
