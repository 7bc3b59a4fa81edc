"""Permission rules as people write them: every form, and no form that allows more than it says."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.permission_rules import PatternKind, allows, pattern_kind, rule_for
from app.agent.permissions import PermissionRules, Scope, Verdict
from app.definitions.reading import Level, Plain, Reading
from app.definitions.rules import MAX_CHARS, MAX_RULES, read_rule, read_rules, rules_mapping
from app.definitions.toolnames import BUILT_IN

ALLOW, ASK, DENY = Verdict.ALLOW, Verdict.ASK, Verdict.DENY
Row = tuple[Verdict, str, str | None]


def read(value: Any, strict: bool = True) -> tuple[PermissionRules | None, Reading]:
    reading = Reading(strict=strict, known_tools=BUILT_IN)
    return read_rules(reading, "permissions", value, Scope.SESSION), reading


def rows(value: Any, strict: bool = True) -> list[Row]:
    found, reading = read(value, strict)
    assert found is not None
    assert not reading.failed, reading.found
    return [(rule.effect, rule.tool, rule.pattern) for rule in found.rules]


@pytest.mark.spec("8.4", "10.2")
@pytest.mark.parametrize(
    ("text", "tool", "pattern"),
    [
        ("Read", "read_file", None),
        ("read_file", "read_file", None),
        ("Bash", "run_command", None),
        ("Bash(*)", "run_command", None),
        ("Bash(git *)", "run_command", "git *"),
        ("Bash(git:*)", "run_command", "git *"),
        ("Bash(npm run test:*)", "run_command", "npm run test *"),
        ("run_command(git status)", "run_command", "git status"),
        ("Bash(echo (a))", "run_command", "echo (a)"),
        ("Read(./docs/**)", "read_file", "docs/**"),
        ("Read(/docs/**)", "read_file", "docs/**"),
        ("Read(docs/*.md)", "read_file", "docs/*.md"),
        ("Read(docs/)", "read_file", "**/docs/**"),
        ("Read(./docs/)", "read_file", "docs/**"),
        ("Read(.env)", "read_file", "**/.env"),
        ("Read(*.pem)", "read_file", "**/*.pem"),
        ("Read(./.env)", "read_file", ".env"),
        ("Read(**/x/y)", "read_file", "**/x/y"),
        ("Read(./)", "read_file", "**"),
        ("Edit(src/**)", "edit_file", "src/**"),
        ("MultiEdit", "edit_file", None),
        ("LS", "glob", None),
        ("WebFetch(domain:Example.ORG)", "web_fetch", "example.org"),
        ("WebFetch(domain:*.example.org)", "web_fetch", "*.example.org"),
        ("WebFetch(domain:bücher.example)", "web_fetch", "xn--bcher-kva.example"),
        ("Agent", "Agent", None),
        ("Task(clerk)", "Agent", "clerk"),
        ("Agent(研究员)", "Agent", "研究员"),
        ("execute_task(clerk)", "execute_task", "clerk"),
        ("mcp__files", "mcp__files", None),
        ("mcp__files__*", "mcp__files__*", None),
        ("mcp__files__read", "mcp__files__read", None),
        ("my_tool", "my_tool", None),
        ("*", "*", None),
    ],
)
def test_a_rule_is_read_in_our_words_and_in_those_of_others(text: str, tool: str, pattern: str | None) -> None:
    found = read_rule(f" {text} ", DENY)
    assert [(rule.tool, rule.pattern, str(rule)) for rule in found] == [(tool, pattern, text)]


@pytest.mark.spec("8.4")
def test_several_agents_are_several_rules() -> None:
    assert rows({"deny": ["Agent(a, b)"]}) == [(DENY, "Agent", "a"), (DENY, "Agent", "b")]


@pytest.mark.spec("8.4")
@pytest.mark.parametrize(
    "text",
    ["", " ", "(git *)", "Bash(", "Bash()", "Bash(git *", "Bash(git *) x", "Bash git", "Read(../x)", "Read(~/x)",
     "Read(//etc/x)", "Read(!x)", "Read(a\\b)", "Read({a,b})", "Read(a**)", "WebFetch(example.org)",
     "WebFetch(domain:)", "WebFetch(domain:a/b)", "WebFetch(domain:a b)", "WebFetch(url:x)", "mcp__files__read(x)",
     "my_tool(x)", "Agent(a,)", "get_*", "Bash(a\nb)", "Bash(a\0b)", f"Bash({'a' * 2_000})"],
)  # fmt: skip
def test_an_unusable_rule_is_refused_and_says_why(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_rule(text, ALLOW)
    for effect in ("allow", "ask", "deny"):
        found, reading = read({effect: ["Read", text]})
        assert reading.failed
        assert reading.found[0].key == f"permissions.{effect}[1]"
        assert found is not None
        assert len(found.rules) == 1


@pytest.mark.spec("8.4")
@pytest.mark.parametrize(
    ("effect", "text", "tool", "instead"),
    [
        ("deny", "Bash(git *", "run_command", DENY),
        ("ask", "Read(~/x)", "read_file", ASK),
        ("allow", "Bash(git *", "run_command", ASK),
        ("allow", "Read(../x)", "read_file", ASK),
        ("allow", "mcp__files__read(x)", "mcp__files__read", ASK),
        ("deny", "WebFetch(x)", "web_fetch", DENY),
    ],
)
def test_in_a_file_an_unusable_rule_becomes_a_stricter_one(effect: str, text: str, tool: str, instead: Verdict) -> None:
    found, reading = read({effect: [text]}, strict=False)
    assert found is not None
    assert [(rule.effect, rule.tool, rule.pattern) for rule in found.rules] == [(instead, tool, None)]
    assert [finding.level for finding in reading.found] == [Level.WARNING]
    assert "whole tool" in reading.found[0].message


@pytest.mark.spec("8.4")
@pytest.mark.parametrize("value", [{"deny": ["(x)"]}, {"deny": [7]}, {"deny": {"a": 1}}, {"default": "maybe"}, "deny"])
def test_what_says_nothing_of_any_tool_is_an_error_in_a_file_too(value: Any) -> None:
    assert read(value, strict=False)[1].failed
    assert read(value)[1].failed


@pytest.mark.spec("8.4")
@pytest.mark.parametrize(
    "value",
    [
        {"allow": "Bash(git *), Read", "deny": "Agent(a, b)"},
        {"allow": ["Bash(git *)", "Read"], "deny": ["Agent(a", "b)"]},
        {"allow": "Bash(git *)\nRead", "Deny": ["Agent(a, b)"]},
    ],
)
def test_a_file_may_list_its_rules_in_several_ways(value: Any) -> None:
    expected = [(ALLOW, "run_command", "git *"), (ALLOW, "read_file", None), (DENY, "Agent", "a"), (DENY, "Agent", "b")]
    assert rows(value, strict=False) == expected


@pytest.mark.spec("8.4")
def test_a_map_of_tools_is_read_in_a_file_and_refused_over_the_api() -> None:
    value = {
        "bash": {"*": "ask", "git *": "allow", "rm *": "deny"},
        "edit": "deny",
        "webfetch": {"example.org": "allow"},
        "task": {"clerk": "allow"},
    }
    assert rows(value, strict=False) == [
        (ASK, "run_command", None),
        (ALLOW, "run_command", "git *"),
        (DENY, "run_command", "rm *"),
        (DENY, "edit_file", None),
        (ALLOW, "web_fetch", "example.org"),
        (ALLOW, "Agent", "clerk"),
    ]
    found, reading = read(value)
    assert found is not None
    assert not found.rules
    assert [finding.key for finding in reading.found] == [f"permissions.{name}" for name in value]


@pytest.mark.spec("8.1")
def test_the_default_is_read_and_null_says_nothing() -> None:
    for word, default in (("ask", ASK), ("DENY", DENY), (None, None)):
        found, _ = read({"default": word})
        assert found == PermissionRules(scope=Scope.SESSION, default=default)
    found, _ = read({"default": Plain("~"), "allow": Plain("")}, strict=False)
    assert found == PermissionRules(scope=Scope.SESSION)


@pytest.mark.spec("8.4")
def test_an_unknown_tool_is_kept_and_told_to_the_author_of_a_file() -> None:
    found, reading = read({"deny": ["Telepathy", "mcp__x__y", "Bash", "subagent_clerk"]}, strict=False)
    assert found is not None
    assert [rule.tool for rule in found.rules] == ["Telepathy", "mcp__x__y", "run_command", "subagent_clerk"]
    assert [finding.message for finding in reading.found] == [
        "permissions.deny[0]: there is no tool Telepathy here; the rule is kept"
    ]


@pytest.mark.spec("8.4")
def test_too_many_rules_are_refused() -> None:
    found, reading = read({"deny": [f"tool_{at}" for at in range(MAX_RULES + 1)]})
    assert found is None
    assert str(MAX_RULES) in reading.found[0].message


@pytest.mark.spec("8.4")
def test_patterns_that_are_too_long_together_are_refused() -> None:
    found, reading = read({"deny": [f"Bash({'a' * 900}{at} *)" for at in range(56)]})
    assert found is None
    assert f"{MAX_CHARS:,}" in reading.found[0].message
    assert read({"deny": [f"Bash({'a' * 900}{at} *)" for at in range(50)]})[0] is not None


WRITTEN = st.sampled_from(
    [
        "Read",
        "Bash(git *)",
        "Bash(git:*)",
        "Read(./docs/**)",
        "Agent(a, b)",
        "mcp__x",
        "WebFetch(domain:a.b)",
        "Edit(x)",
    ]
)


@pytest.mark.spec("8.4")
@given(st.fixed_dictionaries({}, optional={
    "allow": st.lists(WRITTEN, max_size=4), "ask": st.lists(WRITTEN, max_size=4), "deny": st.lists(WRITTEN, max_size=4),
    "default": st.sampled_from(["allow", "ask", "deny"]),
}))  # fmt: skip
def test_what_was_read_is_written_and_read_again(value: dict[str, Any]) -> None:
    found, _ = read(value)
    assert found is not None
    again, reading = read(rules_mapping(found))
    assert not reading.found
    assert again is not None
    assert (set(again.rules), again.default) == (set(found.rules), found.default)


@pytest.mark.spec("8.4")
@given(st.text(max_size=40), st.sampled_from(["allow", "ask", "deny"]), st.booleans())
def test_no_text_becomes_an_allowance_that_it_does_not_say(text: str, effect: str, strict: bool) -> None:
    found, reading = read({effect: [text]}, strict=strict)
    assert found is not None
    for rule in found.rules:
        assert rule.effect is Verdict(effect) or (effect == "allow" and rule.effect is ASK)
        assert rule.pattern != ""
    assert found.rules or reading.failed or (not strict and not "".join(text.split()).strip(",，、"))


PIECES = st.sampled_from(
    ["a", "git", "status", " ", "  ", ".", "..", "/", "-", "_", ":", "*", "**", "?", "[", "]", "{", "}", "(", ")", ",",
     "!", "~", "//", "#", "\\", "\n", "\t", "\u200b", "é", "例", "@", "domain:", "x.org", "\0", "'", '"'],
)  # fmt: skip
TOOLS = ["run_command", "read_file", "glob", "grep", "write_file", "edit_file", "web_fetch", "dispatch_subagent"]


@pytest.mark.spec("8.2", "8.4")
@given(tool=st.sampled_from(TOOLS), text=st.lists(PIECES, min_size=1, max_size=6).map("".join))
def test_a_suggested_rule_says_the_same_when_it_is_written_down_and_read_again(tool: str, text: str) -> None:
    kind = pattern_kind(tool, tool == "dispatch_subagent")
    assert kind is not None
    suggested = rule_for(tool, kind, [text])
    if suggested is None:
        return
    (again,) = read_rule(str(suggested), Verdict.ALLOW, TOOLS)
    assert (again.tool, again.pattern, str(again)) == (suggested.tool, suggested.pattern, str(suggested))
    shown = text.removesuffix("\0") + "x" if text.endswith("\0") else text
    assert allows(again, kind, [shown])
    if kind is not PatternKind.PATH or not text.endswith("\0"):
        assert not allows(again, kind, [f"{text}x"])
        assert not allows(again, kind, [f"x{text}"])
