"""Estimates of tokens where nobody has counted: rather too high than too low, and never nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.messages import Message, Role, ToolCall
from app.agent.tokens import BYTES_PER_TOKEN, rough_messages, rough_tokens, rough_tools
from app.agent.tools import ToolSpec

pytestmark = pytest.mark.spec("4.8")
ANY_TEXT = st.text(st.characters())  # lone surrogates included


@given(ANY_TEXT, ANY_TEXT)
def test_more_text_never_counts_less_and_only_no_text_counts_nothing(one: str, other: str) -> None:
    assert max(rough_tokens(one), rough_tokens(other)) <= rough_tokens(one + other)
    assert rough_tokens(one + other) <= rough_tokens(one) + rough_tokens(other)
    assert (rough_tokens(one) == 0) == (one == "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The quick brown fox jumps over the lazy dog and runs away.", 13),
        ("敏捷的棕色狐狸跳过了懒狗。", 13),
        ("def f(x): return [y**2 for y in range(x)]", 13),
    ],
)
def test_the_estimate_is_above_what_tokenisers_say_and_of_the_same_size(text: str, words: int) -> None:
    assert words <= rough_tokens(text) <= 2 * words


def test_every_part_of_a_message_counts() -> None:
    plain = Message(role=Role.ASSISTANT, content="said")
    call = ToolCall(call_id="c", name="look", raw='{"a": 1}', arguments={"a": 1})
    counts = [
        rough_messages([plain]),
        rough_messages([Message(role=Role.ASSISTANT, content="said", reasoning="thought")]),
        rough_messages([Message(role=Role.ASSISTANT, content="said", reasoning="thought", tool_calls=(call,))]),
    ]
    assert counts == sorted(set(counts))
    assert rough_messages([plain, plain]) == 2 * counts[0]
    assert rough_messages([]) == rough_tools([]) == 0
    assert rough_messages([Message(role=Role.USER, content="")]) > 0


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=4))
def test_a_tool_counts_with_its_description_and_its_schema(schema: dict[str, str]) -> None:
    small = ToolSpec(name="look", description="", parameters={})
    large = ToolSpec(name="look", description="d" * 30, parameters={"properties": schema})
    assert rough_tools([large]) >= rough_tools([small]) + 30 // BYTES_PER_TOKEN
    assert rough_tools([small, large]) == rough_tools([small]) + rough_tools([large])
