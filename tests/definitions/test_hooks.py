"""Hooks that agent files bring along: the form of Claude Code read without a guess, or no agent at all."""

import pytest

from app.agent.definition import OwnHook
from app.agent.errors import InvalidRequest
from app.definitions import Parsed, from_mapping, parse
from app.definitions.reading import NO_CHECKS, Checks
from tests.definitions.world import NAMED, loaded

GOOD = """hooks:
  PreToolUse:
    - matcher: Edit|Write
      hooks:
        - {type: command, command: ./guard.sh, timeout: 2.5, statusMessage: Looking}
        - type: http
          url: https://hooks.example.org/x
          secret_env: OUR_SECRET
          on_failure: allow
    - hooks: [{type: command, command: true}]
  PostToolUse: [{matcher: "*", hooks: [{type: command, command: log}]}]
  SubagentStart: [{hooks: [{type: command, command: begin}]}]
  Stop: [{hooks: [{type: command, command: end}]}]
  SubagentStop: [{hooks: [{type: command, command: end too}]}]
"""
READ = (
    OwnHook(label="PreToolUse/1", point="PreToolUse", matcher="Edit|Write", command="./guard.sh", timeout_s=2.5),
    OwnHook(
        label="PreToolUse/2", point="PreToolUse", matcher="Edit|Write", url="https://hooks.example.org/x",
        secret_env="OUR_SECRET", on_failure="allow",
    ),
    OwnHook(label="PreToolUse/3", point="PreToolUse", command="true"),
    OwnHook(label="PostToolUse/1", point="PostToolUse", matcher="*", command="log"),
    OwnHook(label="OnSubagentStart/1", point="OnSubagentStart", command="begin"),
    OwnHook(label="OnSubagentStop/1", point="OnSubagentStop", command="end"),
    OwnHook(label="OnSubagentStop/2", point="OnSubagentStop", command="end too"),
)  # fmt: skip
UNREADABLE = {
    "hooks:": "is empty",
    "hooks: ./guard.sh": "must be a map of events",
    "hooks: [{type: command, command: x}]": "must be a map of events",
    "hooks: {PreToolUs: [{hooks: [{type: command, command: x}]}]}": "no such hooks are asked here",
    "hooks: {Notification: []}": "no such hooks are asked here",
    "hooks: {PreToolUse: }": "must be a list of maps",
    "hooks: {PreToolUse: {hooks: [{type: command, command: x}]}}": "must be a list of maps",
    "hooks: {PreToolUse: [x]}": "must be a map with a list of hooks",
    "hooks: {PreToolUse: [{matcher: Bash}]}": "must be a map with a list of hooks",
    "hooks: {PreToolUse: [{matcher: Bash, hooks: []}]}": "must be a map with a list of hooks",
    "hooks: {PreToolUse: [{matcher: [Bash], hooks: [{type: command, command: x}]}]}": "matcher must be text",
    "hooks: {PreToolUse: [{if: Bash, hooks: [{type: command, command: x}]}]}": "if is not known here",
    "hooks: {PreToolUse: [{hooks: [x]}]}": "must be a map with a type",
    "hooks: {PreToolUse: [{hooks: [{command: x}]}]}": "type must be command or http",
    "hooks: {PreToolUse: [{hooks: [{type: prompt, prompt: x}]}]}": "type must be command or http, not 'prompt'",
    "hooks: {PreToolUse: [{hooks: [{type: command}]}]}": "command is missing",
    "hooks: {PreToolUse: [{hooks: [{type: command, command: ''}]}]}": "command is missing",
    "hooks: {PreToolUse: [{hooks: [{type: command, command: [a, b]}]}]}": "command must be text",
    "hooks: {PreToolUse: [{hooks: [{type: command, url: http://x/, command: x}]}]}": "url is not known here",
    "hooks: {PreToolUse: [{hooks: [{type: http}]}]}": "url is missing",
    "hooks: {PreToolUse: [{hooks: [{type: command, command: x, timeout: soon}]}]}": "timeout must be a number",
    "hooks: {PreToolUse: [{hooks: [{type: command, command: x, timeout: 0}]}]}": "timeout must be a number",
    "hooks: {PreToolUse: [{hooks: [{type: command, command: x, timeout: 601}]}]}": "timeout must be a number",
    "hooks: {PreToolUse: [{hooks: [{type: command, command: x, async: true}]}]}": "async is not known here",
    "hooks: {PreToolUse: [{hooks: [{type: command, command: x, on_failure: shrug}]}]}": "must be block or allow",
    "hooks: {PreToolUse: [{hooks: [{type: command, command: x, on_failure: [block]}]}]}": "must be block or allow",
    "hooks: {PreToolUse: [{hooks: [{type: command, command: x, Command: y}]}]}": "Command is given twice",
    "hooks: {PreToolUse: [{Matcher: [x], hooks: [{type: command, command: x}]}]}": "matcher must be text",
    "hooks: {Stop: [{hooks: [{type: command, command: x}]}]}\nHooks: {}": "given twice",
    "hooks: {Stop: [{hooks: [" + "{type: command, command: x}, " * 51 + "]}]}": "at most 50",
}


def read(head: str, *, trusted: bool = True, checks: Checks = NO_CHECKS) -> Parsed:
    return parse(f"---\n{NAMED}{head}\n---\nbody", path="f.md", trusted=trusted, checks=checks)


@pytest.mark.spec("10.1", "6.3")
def test_every_form_of_a_hook_is_read_in_its_order() -> None:
    parsed = read(GOOD)
    assert parsed.problems == ()
    assert parsed.definition is not None
    assert parsed.definition.hooks == READ


@pytest.mark.spec("10.1", "6.3")
@pytest.mark.parametrize(("head", "says"), UNREADABLE.items())
def test_an_agent_with_a_hook_that_cannot_be_read_does_not_load_and_the_line_is_told(head: str, says: str) -> None:
    parsed = read(f"color: red\n{head}")
    assert parsed.definition is None
    errors = [problem for problem in parsed.problems if problem.severity == "error"]
    assert errors
    assert all(problem.line == 5 + head.count("\n") for problem in errors)
    assert any(says in problem.message for problem in errors), errors


@pytest.mark.spec("6.3")
def test_an_agent_with_a_hook_that_cannot_be_asked_here_does_not_load() -> None:
    parsed = read(GOOD, checks=Checks(hook=lambda hook: f"{hook.url} is far away" if hook.url else None))
    assert parsed.definition is None
    (problem,) = parsed.problems
    assert str(problem) == ("f.md:4: error: hooks.PreToolUse[0].hooks[1]: https://hooks.example.org/x is far away")


@pytest.mark.spec("10.5")
@pytest.mark.parametrize("head", [GOOD, "hooks: nonsense", "hooks:"])
def test_hooks_of_a_file_that_is_not_trusted_are_told_with_what_to_set_and_left_out(head: str) -> None:
    parsed = read(head, trusted=False)
    assert parsed.definition is not None
    assert parsed.definition.hooks == ()
    told = [(p.severity, p.line, p.key, "trusted_agents" in p.message) for p in parsed.problems]
    assert told == ([] if head == "hooks:" else [("warning", 4, "hooks", True)])


@pytest.mark.spec("10.5")
def test_hooks_over_the_api_are_refused() -> None:
    data = {"name": "a", "description": "d"}
    source = loaded(NAMED).source
    for value in ({"PreToolUse": [{"hooks": [{"type": "http", "url": "https://x/"}]}]}, ["x"], "x"):
        with pytest.raises(InvalidRequest, match="hooks"):
            from_mapping({**data, "hooks": value}, source=source)
    assert from_mapping({**data, "hooks": {}}, source=source).hooks == ()


@pytest.mark.spec("6.3", "10.3")
def test_hooks_that_ended_up_inside_another_value_of_a_head_that_is_no_yaml_are_not_lost_in_silence() -> None:
    head = "model: [a, b\n  hooks: {PreToolUse: [{hooks: [{type: command, command: x}]}]}\n"
    parsed = read(head)
    assert parsed.definition is None
    assert any("hooks must begin at column 0" in problem.message for problem in parsed.problems)
    other = read(head, trusted=False).problems
    assert not any("hooks must begin" in problem.message for problem in other)
