"""The fields of an agent file, one at a time: forms that are read, values that are not, keys of later versions."""

import json

import pytest

from app.definitions import Severity
from tests.definitions.world import NAMED, loaded, read, said


@pytest.mark.spec("10.1")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("yes", True),
        ("on", True),
        ("1", True),
        ("False", False),
        ("no", False),
        ("OFF", False),
        ("0", False),
    ],
)
def test_flags_are_read_in_every_usual_form(text: str, value: bool) -> None:
    assert loaded(f"{NAMED}parallel_tool_calls: {text}").parallel_tool_calls is value


@pytest.mark.spec("10.1")
@pytest.mark.case("B198")
@pytest.mark.parametrize("head", ["model: inherit", "model:", "model: null", "model: ''", "color: red"])
def test_a_model_that_is_inherited_is_unset(head: str) -> None:
    parsed = read(NAMED + head)
    assert parsed.definition is not None
    assert parsed.definition.model is None
    assert parsed.problems == ()


def test_a_display_name_of_a_model_is_kept_and_pointed_out() -> None:
    parsed = read(f"{NAMED}model: Claude Sonnet 4.5")
    assert parsed.definition is not None
    assert parsed.definition.model == "Claude Sonnet 4.5"
    assert "display name" in said(parsed)[0]


@pytest.mark.parametrize("key", ["maxTurns", "steps", "maxSteps", "max_steps", "max-turns", "max_iteration_per_run"])
@pytest.mark.spec("10.1")
def test_the_step_limit_is_read_under_each_service_s_name(key: str) -> None:
    assert loaded(f"{NAMED}{key}: 7").max_steps == 7


@pytest.mark.parametrize(
    ("head", "key"),
    [
        ("max_steps: 0", "max_steps"),
        ("max_steps: 201", "max_steps"),
        ("max_steps: many", "max_steps"),
        ("temperature: 2.5", "temperature"),
        ("temperature: warm", "temperature"),
        ("max_tokens: -1", "max_tokens"),
        ("mode: boss", "mode"),
        ("parallel_tool_calls: perhaps", "parallel_tool_calls"),
        ("tool_choice: Agent", "tool_choice"),
        ("effort: [high]", "effort"),
    ],
)
def test_an_unusable_value_is_left_out_with_a_warning(head: str, key: str) -> None:
    parsed = read(NAMED + head)
    assert parsed.definition == loaded(NAMED)
    assert [(problem.line, problem.severity, problem.key) for problem in parsed.problems] == [
        (4, Severity.WARNING, key)
    ]


@pytest.mark.parametrize(
    "schema",
    [
        "text",
        "[1]",
        "{type: string}",
        "{properties: {}}",
        "{type: object, properties: []}",
        "{type: object, $ref: 'https://example.org/schema'}",
        "{type: object, $schema: 'https://example.org/draft'}",
        '\'{"type": "object", "maxProperties": NaN}\'',
        "'" + '{"type": "object", "not": ' * 60 + "{}" + "}" * 60 + "'",
    ],
)
def test_an_input_schema_that_cannot_be_used_keeps_the_agent_out(schema: str) -> None:
    parsed = read(f"{NAMED}input_schema: {schema}")
    assert parsed.definition is None
    assert parsed.problems[-1].key == "input_schema"


def test_an_input_schema_may_be_json_text() -> None:
    schema = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "number"}}}
    assert loaded(f"{NAMED}input_schema: '{json.dumps(schema)}'").input_schema == schema


@pytest.mark.parametrize(
    ("text", "name"), [("Ask Clerk", "ask_clerk"), ("ask--clerk", "ask_clerk"), ("7up", "agent_7up")]
)
@pytest.mark.spec("3.1")
def test_a_tool_name_is_normalised(text: str, name: str) -> None:
    parsed = read(f"{NAMED}tool_name: {text}")
    assert parsed.definition is not None
    assert parsed.definition.tool_name == name
    assert name in said(parsed)[0]


@pytest.mark.parametrize("text", ["书记", "x" * 65])
def test_a_tool_name_without_usable_characters_keeps_the_agent_out(text: str) -> None:
    assert read(f"{NAMED}tool_name: {text}").definition is None


@pytest.mark.spec("10.1")
@pytest.mark.seed("002", 64)
def test_any_other_key_is_metadata_without_a_word() -> None:
    parsed = read(
        f"{NAMED}role: Senior Clerk\ntags: [a, 1, true, ~]\nnested: {{when: 2026-11-30, rate: 0.5}}\nvibe: calm"
    )
    assert parsed.definition is not None
    assert parsed.definition.metadata == {
        "role": "Senior Clerk",
        "tags": ["a", 1, True, None],
        "nested": {"when": "2026-11-30", "rate": 0.5},
        "vibe": "calm",
    }
    assert parsed.problems == ()


@pytest.mark.parametrize(
    "head",
    [
        "session_mode: reuse_session",
        "background: true",
        "inherit_context: last:3",
        "output_schema: {type: object}",
        "runner: shop.agents:run",
        "hooks: {Stop: []}",
        "mcpServers: [time]",
        "skills: [pdf]",
        "permissionMode: acceptEdits",
        "permission: {edit: deny}",
        "isolation: worktree",
        "memory: project",
        "top_p: 0.9",
        "max_budget_per_run: 1.5",
    ],
)
def test_a_key_of_a_later_version_is_named_and_kept(head: str) -> None:
    key = head.partition(":")[0]
    parsed = read(NAMED + head)
    assert parsed.definition is not None
    assert key in parsed.definition.metadata
    assert said(parsed) == [f"agents/file.md:4: warning: {key} is not carried out yet"]


@pytest.mark.parametrize(
    "head",
    ["session_mode: new_session", "background: no", "inherit_context: none", "permissionMode: default", "hooks: {}"],
)
def test_a_key_of_a_later_version_that_asks_for_nothing_needs_no_word(head: str) -> None:
    assert read(NAMED + head).problems == ()
