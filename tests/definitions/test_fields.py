"""The fields of an agent file, one at a time: forms that are read, values that are not, keys of later versions."""

import json

import pytest

from app.agent.definition import Inherit, InheritKind, SessionMode, SessionScope
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
        ("thinking: deeply", "thinking"),
        ("thinking: {type: enabled}", "thinking"),
        ("session_mode: keep", "session_mode"),
        ("session_mode: {mode: keep}", "session_mode.mode"),
        ("session_mode: {scope: world}", "session_mode.scope"),
        ("session_scope: world", "session_scope"),
        ("inherit_context: everything", "inherit_context"),
        ("inherit_context: last:0", "inherit_context"),
        ("inherit_context: last:201", "inherit_context"),
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


@pytest.mark.spec("9.1", "9.5", "10.1")
@pytest.mark.parametrize(
    ("head", "background", "detached"),
    [("background: true", True, False), ("detached: yes", False, True), ("background: no", False, False)],
)
def test_an_agent_may_run_in_the_background_and_outlive_who_started_it(
    head: str, background: bool, detached: bool
) -> None:
    parsed = read(NAMED + head)
    assert parsed.problems == ()
    assert parsed.definition is not None
    assert parsed.definition.metadata == {}
    assert (parsed.definition.background, parsed.definition.detached) == (background, detached)


@pytest.mark.parametrize(
    "head",
    ["session_mode: new_session", "background: no", "inherit_context: none", "permissionMode: default", "hooks: {}"],
)
def test_a_key_of_a_later_version_that_asks_for_nothing_needs_no_word(head: str) -> None:
    parsed = read(NAMED + head)
    assert parsed.problems == ()
    assert parsed.definition is not None
    assert parsed.definition.metadata == {}


# ── thinking, schemas of answers, memory, own code ──────────────────────────────────────────────────────────────


@pytest.mark.spec("5.9")
@pytest.mark.parametrize(
    ("text", "value"), [("on", True), ("true", True), ("off", False), ("False", False), ("", None), ("null", None)]
)
def test_thinking_is_on_or_off(text: str, value: bool | None) -> None:
    parsed = read(f"{NAMED}thinking: {text}")
    assert parsed.definition is not None
    assert parsed.definition.thinking is value
    assert parsed.problems == ()


@pytest.mark.spec("5.6")
@pytest.mark.parametrize(
    ("text", "schema"),
    [
        (
            "{type: array, items: {type: integer}, minItems: 1}",
            {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        ),
        ('\'{"enum": ["yes", "no"]}\'', {"enum": ["yes", "no"]}),
        ("{}", {}),
    ],
)
def test_the_schema_of_an_answer_is_any_json_schema(text: str, schema: dict[str, object]) -> None:
    assert loaded(f"{NAMED}output_schema: {text}").output_schema == schema


@pytest.mark.spec("5.6")
@pytest.mark.parametrize("text", ["text", "[1]", "{type: text}", "{$ref: 'https://example.org/schema'}"])
def test_a_schema_of_an_answer_that_cannot_be_used_keeps_the_agent_out(text: str) -> None:
    parsed = read(f"{NAMED}output_schema: {text}")
    assert parsed.definition is None
    assert parsed.problems[-1].key == "output_schema"


@pytest.mark.spec("4.9")
@pytest.mark.parametrize(
    ("lines", "mode", "scope"),
    [
        ("color: red", SessionMode.NEW, SessionScope.SESSION),
        ("session_mode: reuse_session", SessionMode.REUSE, SessionScope.SESSION),
        ("sessionMode: Reuse-Session\nsession_scope: user", SessionMode.REUSE, SessionScope.USER),
        ("session_mode: {mode: reuse_session, scope: tenant}", SessionMode.REUSE, SessionScope.TENANT),
        ("session_mode: {mode: reuse_session, scope: key}\nsession_scope: key", SessionMode.REUSE, SessionScope.KEY),
        ("session_mode: {mode: reuse_session, scope: }", SessionMode.REUSE, SessionScope.SESSION),
    ],
)
def test_a_file_says_what_an_agent_remembers_and_who_shares_it(
    lines: str, mode: SessionMode, scope: SessionScope
) -> None:
    definition = loaded(NAMED + lines)
    assert (definition.session_mode, definition.session_scope) == (mode, scope)


@pytest.mark.spec("4.9")
@pytest.mark.parametrize(
    "lines",
    [
        "session_mode: {mode: reuse_session, scope: user}\nsession_scope: tenant",
        "session_mode: {mode: reuse_session, shared: user}",
        "session_mode: reuse_session\nsessionMode: new_session",
    ],
)
def test_two_answers_to_who_shares_a_memory_keep_the_agent_out(lines: str) -> None:
    assert read(NAMED + lines).definition is None


@pytest.mark.spec("2.5")
@pytest.mark.parametrize(
    ("text", "inherit"),
    [
        ("none", Inherit()),
        ("last:3", Inherit(kind=InheritKind.LAST, count=3)),
        ("'last: 12'", Inherit(kind=InheritKind.LAST, count=12)),
        ("Summary", Inherit(kind=InheritKind.SUMMARY)),
    ],
)
def test_a_file_says_what_an_agent_is_told_of_its_caller(text: str, inherit: Inherit) -> None:
    assert loaded(f"{NAMED}inherit_context: {text}").inherit_context == inherit


@pytest.mark.spec("10.5")
def test_a_file_may_name_a_function_that_stands_in_for_the_loop() -> None:
    assert loaded(f"{NAMED}runner: shop.agents:Clerk.run").runner == "shop.agents:Clerk.run"


@pytest.mark.spec("10.5")
@pytest.mark.parametrize("text", ["shop.agents", "shop agents:run", ":run", "shop:", "shop:1run", "[a]", "'rm -rf:x'"])
def test_a_runner_that_is_no_import_path_keeps_the_agent_out(text: str) -> None:
    parsed = read(f"{NAMED}runner: {text}")
    assert parsed.definition is None
    assert "package.module:function" in said(parsed)[-1]
