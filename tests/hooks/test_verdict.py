"""The JSON between the service and its hooks: what they are told, what their answers mean, what is nonsense."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.hooks import MAX_BLOCK_CHARS, PROCEED, HookFailure, HookPoint, Verdict
from app.hooks.verdict import NO_QUESTION, NO_REASON, payload_of, read_verdict, verdict_of
from tests.hooks.calls import told

PRE, POST = HookPoint.PRE_TOOL_USE, HookPoint.POST_TOOL_USE
START, STOP = HookPoint.SUBAGENT_START, HookPoint.SUBAGENT_STOP
SHARED = {
    "session_id": "ses_1",
    "parent_session_id": "ses_1",
    "tenant": "default",
    "cwd": "/work",
    "run_id": "run_2",
    "parent_run_id": "run_1",
    "agent": "scout",
    "name": "sub_1",
    "agent_id": "run_2",
    "agent_type": "scout",
    "depth": 1,
    "path": [1, 2],
    "lineage": ["run_1"],
}
CALL = {
    "call_id": "call_1",
    "tool_use_id": "call_1",
    "tool_name": "read_file",
    "tool_input": {"path": "diary.txt"},
}


@pytest.mark.spec("6.1", "6.3")
@pytest.mark.seed("004", 163)
@pytest.mark.case("B098", "B105")
@pytest.mark.parametrize(
    ("point", "own"),
    [
        (START, {"hook_event_name": "OnSubagentStart", "prompt": "Look at the diary."}),
        (PRE, {"hook_event_name": "PreToolUse", **CALL}),
        (
            POST,
            {
                "hook_event_name": "PostToolUse",
                **CALL,
                "tool_response": "Dear diary",
                "is_error": False,
                "duration_ms": 12,
            },
        ),
        (
            STOP,
            {
                "hook_event_name": "OnSubagentStop",
                "result": "It is a diary.",
                "last_assistant_message": "It is a diary.",
                "steps": 2,
                "is_error": False,
                "stop_hook_active": False,
            },
        ),
    ],
)
def test_a_hook_is_told_real_ids_the_lineage_and_what_belongs_to_its_point(
    point: HookPoint, own: dict[str, Any]
) -> None:
    assert json.loads(payload_of(told(point))) == {**SHARED, **own}


@pytest.mark.spec("6.1")
@pytest.mark.seed("004", 166)
def test_a_run_without_a_parent_has_no_parent_session_and_its_own_session_in_any_case() -> None:
    fields = json.loads(payload_of(told(depth=0, path=(1,), parent_run_id=None, lineage=(), name=None)))
    assert (fields["session_id"], fields["depth"], fields["lineage"]) == ("ses_1", 0, [])
    assert not {"parent_session_id", "parent_run_id", "name"} & set(fields)


@pytest.mark.spec("6.3")
def test_arguments_and_outputs_that_are_no_good_json_are_told_all_the_same() -> None:
    assert json.loads(payload_of(told(arguments="{not json")))["tool_input"] == "{not json"
    odd = told(POST, arguments={"text": "\ud800", "many": 10**30}, output="a\udcffb")
    fields = json.loads(payload_of(odd))
    assert fields["tool_response"] == "a\ufffdb"
    assert fields["tool_input"]["text"] == "\ufffd"


@pytest.mark.spec("6.3")
@pytest.mark.parametrize("answer", [b"", b" \n", b"{}", b'{"decision": null}', b'{"suppressOutput": true, "x": [1]}'])
def test_an_answer_that_says_nothing_of_ours_lets_things_go_on(answer: bytes) -> None:
    assert verdict_of(answer) == PROCEED


@pytest.mark.spec("6.3")
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"decision": "block", "reason": "not here"}, "not here"),
        ({"decision": "block"}, NO_REASON),
        ({"decision": "deny", "reason": " \n"}, NO_REASON),
        ({"block": "not here"}, "not here"),
        ({"block": ""}, NO_REASON),
        ({"block": True, "reason": "not here"}, "not here"),
        ({"continue": False, "stopReason": "enough"}, "enough"),
        ({"continue": False}, NO_REASON),
        (
            {"hookSpecificOutput": {"permissionDecision": "deny", "permissionDecisionReason": "not here"}},
            "not here",
        ),
        ({"decision": "approve", "hookSpecificOutput": {"permissionDecision": "deny"}}, NO_REASON),
        ({"decision": "block", "block": "our reason", "reason": "theirs"}, "our reason"),
        ({"block": False, "decision": "approve", "continue": True, "reason": "fine"}, None),
        ({"block": None, "hookSpecificOutput": {"permissionDecision": "allow"}}, None),
    ],
)
def test_any_way_to_say_no_blocks(answer: dict[str, Any], reason: str | None) -> None:
    assert read_verdict(answer) == Verdict(block=reason)


@pytest.mark.spec("6.2", "6.3", "6.4")
def test_changes_are_read_under_the_names_of_claude_code_and_under_ours() -> None:
    expected = Verdict(arguments={"path": "b"}, output="new", context="more")
    theirs = {"updatedInput": {"path": "b"}, "updatedToolOutput": "new", "additionalContext": "more"}
    assert read_verdict({"hookSpecificOutput": theirs}) == expected
    assert read_verdict({"mutate_input": {"path": "b"}, "mutate_output": "new", "context": "more"}) == expected
    assert read_verdict({"mutate_output": ""}).output == ""


@pytest.mark.spec("6.3")
@pytest.mark.parametrize(
    "answer",
    [
        *(None, [], "block", 1, True),
        {"decision": "maybe"},
        {"decision": True},
        {"block": 1},
        {"block": ["no"]},
        {"block": "no", "reason": 3},
        {"continue": "false"},
        {"hookSpecificOutput": []},
        {"hookSpecificOutput": {"permissionDecision": "perhaps"}},
        {"decision": "ask"},
        {"hookSpecificOutput": {"permissionDecision": 1}},
        {"hookSpecificOutput": {"updatedInput": "path=b"}},
        {"hookSpecificOutput": {"updatedToolOutput": {"text": "new"}}},
        {"hookSpecificOutput": {"additionalContext": 1}},
        {"mutate_input": [1]},
        {"mutate_output": 1},
        {"context": {}},
    ],
)
def test_a_known_key_with_a_wrong_value_is_a_failure_and_not_half_a_verdict(answer: Any) -> None:
    with pytest.raises(HookFailure):
        verdict_of(json.dumps(answer).encode())


@pytest.mark.spec("6.3")
@pytest.mark.parametrize(
    "answer", [b"<html>", b'{"block": "no"', b'{"block": NaN}', b'{"block": "\xff"}', b"[" * 100_000, b"{} {}"]
)
def test_what_is_no_json_is_a_failure(answer: bytes) -> None:
    with pytest.raises(HookFailure, match="its answer is not JSON"):
        verdict_of(answer)


@pytest.mark.spec("6.3")
def test_a_reason_without_end_is_cut() -> None:
    assert read_verdict({"block": "x" * 100_000}) == Verdict(block="x" * MAX_BLOCK_CHARS)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("block", "reason", "decision", "continue", "hookSpecificOutput", "permissionDecision"),
                    *("updatedInput", "mutate_input", "mutate_output", "context", "stopReason"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@pytest.mark.spec("6.3")
@given(st.binary(max_size=40) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_answer_at_all_is_a_verdict_or_a_failure(answer: bytes) -> None:
    try:
        assert isinstance(verdict_of(answer), Verdict)
    except HookFailure as failure:
        assert str(failure)


@pytest.mark.spec("6.3", "8.2")
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"permissionDecision": "ask", "permissionDecisionReason": " is it wise? "}, "is it wise?"),
        ({"permissionDecision": "ask"}, NO_QUESTION),
        ({"permissionDecision": "ask", "permissionDecisionReason": "x" * 100_000}, "x" * MAX_BLOCK_CHARS),
    ],
)
def test_a_hook_may_want_a_person_to_be_asked(given: dict[str, Any], reason: str) -> None:
    asks = {"hookSpecificOutput": {**given, "updatedInput": {"path": "b"}}}
    assert read_verdict(asks) == Verdict(ask=reason, arguments={"path": "b"})
    assert read_verdict({**asks, "decision": "block", "reason": "no"}).block == "no"


@pytest.mark.spec("6.3", "6.4")
def test_a_stop_tells_which_call_began_it_how_long_it_took_and_whether_it_was_sent_back() -> None:
    stop = json.loads(payload_of(told(STOP, call_id="call_1", duration_ms=7, stop_hook_active=True)))
    assert (stop["call_id"], stop["duration_ms"], stop["stop_hook_active"]) == ("call_1", 7, True)
    assert json.loads(payload_of(told(START, call_id="call_1")))["call_id"] == "call_1"
