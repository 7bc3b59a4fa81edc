"""Whatever a memory holds, the request that is made of it is one that the strictest provider takes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.messages import Message, Role, ToolCall
from app.agent.transcript import EMPTY_TASK, NO_RESULT, acceptable
from tests.strict import history_problem

IDS = st.sampled_from(["call_a", "call_b", "call_c", "call_a_2", ""])
TEXTS = st.sampled_from(["", "  ", "hello", "你好", "\n"])
NAMES = st.sampled_from(["read_file", "", "a b", "grep\u0000", "工具", "x" * 90, "functions.read", "-"])


@st.composite
def calls(draw: st.DrawFn) -> ToolCall:
    arguments: Any = draw(st.sampled_from([None, {}, {"path": "a"}]))
    raw = draw(st.sampled_from(["", " ", "{}", '{"path":"a"}', "{bad", "null"]))
    return ToolCall(call_id=draw(IDS), name=draw(NAMES), raw=raw, arguments=arguments)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    role = draw(st.sampled_from([Role.USER, Role.ASSISTANT, Role.TOOL]))
    called = tuple(draw(st.lists(calls(), max_size=3))) if role is Role.ASSISTANT else ()
    answered = draw(IDS) if role is Role.TOOL else None
    return Message(role=role, content=draw(TEXTS), tool_calls=called, tool_call_id=answered)


HISTORIES = st.builds(
    lambda system, rest: [*system, *rest],
    st.lists(st.builds(Message, role=st.just(Role.SYSTEM), content=TEXTS), max_size=1),
    st.lists(messages(), max_size=12),
)


@given(HISTORIES)
@pytest.mark.case("B023", "B024", "B036")
def test_any_history_becomes_one_that_a_strict_provider_takes(history: list[Message]) -> None:
    assert history_problem(acceptable(history)) is None


@given(HISTORIES)
def test_a_history_that_was_made_acceptable_stays_as_it_is(history: list[Message]) -> None:
    once = acceptable(history)
    assert acceptable(once) == once


@given(HISTORIES)
def test_no_call_and_no_text_is_lost_on_the_way(history: list[Message]) -> None:
    made = acceptable(history)
    assert sum(len(m.tool_calls) for m in made) == sum(len(m.tool_calls) for m in history)
    for role in (Role.USER, Role.ASSISTANT):
        said = [m.content for m in history if m.role is role and m.content.strip()]
        assert [m.content for m in made if m.role is role and m.content.strip() and m.content != EMPTY_TASK] == said


def turn(*ids: str) -> Message:
    """An assistant message with these calls."""
    called = tuple(ToolCall(call_id=i, name="read_file", raw="{}", arguments={}) for i in ids)
    return Message(role=Role.ASSISTANT, content="", tool_calls=called)


def result(call_id: str, text: str) -> Message:
    """A tool message."""
    return Message(role=Role.TOOL, content=text, tool_call_id=call_id)


USER = Message(role=Role.USER, content="go")


def shape(history: list[Message]) -> list[tuple[str, str]]:
    """What a provider sees: roles and texts."""
    return [(m.role.value, m.content) for m in acceptable(history)]


@pytest.mark.case("B025")
def test_results_stand_in_the_order_of_the_calls_whatever_finished_first() -> None:
    history = [USER, turn("a", "b", "c"), result("c", "3"), result("a", "1"), result("b", "2")]
    assert shape(history)[2:] == [("tool", "1"), ("tool", "2"), ("tool", "3")]


@pytest.mark.case("B027", "B028", "B029")
def test_a_call_without_a_result_gets_a_stand_in_and_a_result_without_a_call_is_left_out() -> None:
    history = [result("gone", "orphan"), USER, turn("a", "b"), result("a", "1"), result("x", "stray"), USER]
    assert shape(history) == [("user", "go"), ("assistant", ""), ("tool", "1"), ("tool", NO_RESULT), ("user", "go")]


def test_a_second_result_of_one_call_is_left_out() -> None:
    assert shape([USER, turn("a"), result("a", "first"), result("a", "second")])[2:] == [("tool", "first")]


@pytest.mark.case("B023", "B024")
def test_calls_that_share_an_id_keep_a_result_each() -> None:
    made = acceptable([USER, turn("a", "a", ""), result("a", "1"), result("a", "2"), result("", "3")])
    assert [m.content for m in made[2:]] == ["1", "2", "3"]
    assert [m.tool_call_id for m in made[2:]] == [c.call_id for c in made[1].tool_calls]


@pytest.mark.case("B030")
def test_damaged_arguments_in_a_stored_call_do_not_spoil_the_next_request() -> None:
    broken = ToolCall(call_id="a", name="read_file", raw='{"path": "a', arguments=None, problem="cut")
    made = acceptable([USER, Message(role=Role.ASSISTANT, content="", tool_calls=(broken,)), result("a", "no")])
    assert (made[1].tool_calls[0].raw, made[1].tool_calls[0].arguments) == ("{}", {})


@pytest.mark.case("B036")
def test_an_empty_output_reaches_the_model_as_a_marker() -> None:
    made = acceptable([USER, turn("a"), result("a", "")])
    assert made[2].content == "(no output)"


def test_the_given_messages_are_not_changed_and_the_snapshot_does_not_follow_them() -> None:
    history = [USER, turn("a")]
    before = list(history)
    made = acceptable(history)
    history.append(result("a", "late"))
    assert len(made) == 3
    assert history[:2] == before
