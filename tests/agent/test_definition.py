"""What an agent is called as a tool, and how much it is told of its caller."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.definition import MAX_TOOL_NAME, AgentDefinition, Inherit, InheritKind, normalised, tool_name_of


def definition(name: str, tool_name: str | None = None) -> AgentDefinition:
    """A definition of that name."""
    return AgentDefinition(name=name, description="It is one.", tool_name=tool_name)


@pytest.mark.spec("3.1")
@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("Code Reviewer", "subagent_code_reviewer"),
        ("  --a__b--  ", "subagent_a_b"),
        ("7 dwarfs", "subagent_agent_7_dwarfs"),
        ("__9", "subagent_agent_9"),
        ("研究 agent", "subagent_agent"),
        ("İstanbul", "subagent_i_stanbul"),
    ],
)
def test_a_tool_name_is_made_of_the_agents_name(name: str, tool: str) -> None:
    assert tool_name_of(definition(name)) == tool


@pytest.mark.spec("3.1")
def test_a_name_that_leaves_nothing_or_too_much_asks_for_a_tool_name() -> None:
    for name in ("研究员", "___", "", "x" * 56):
        with pytest.raises(ValueError, match="set tool_name"):
            tool_name_of(definition(name))
    assert tool_name_of(definition("研究员", "ask_researcher")) == "ask_researcher"
    assert len(tool_name_of(definition("x" * 55))) == MAX_TOOL_NAME


@given(st.text(max_size=40))
@pytest.mark.spec("3.1")
def test_a_normalised_name_holds_only_what_a_function_name_may_hold(name: str) -> None:
    made = normalised(name)
    assert set(made) <= set("abcdefghijklmnopqrstuvwxyz0123456789_")
    assert "__" not in made
    assert made == made.strip("_")
    assert not made[:1].isdigit()
    assert normalised(made) == made


KINDS = st.sampled_from([Inherit(), Inherit(kind=InheritKind.SUMMARY)]) | st.builds(
    Inherit, kind=st.just(InheritKind.LAST), count=st.integers(1, 200)
)


def told(inherit: Inherit) -> tuple[int, int]:
    """How much of a conversation is told: nothing, a summary, texts."""
    return [InheritKind.NONE, InheritKind.SUMMARY, InheritKind.LAST].index(inherit.kind), inherit.count


@pytest.mark.spec("2.5")
@given(KINDS, st.none() | KINDS)
def test_a_call_may_lower_what_a_subagent_is_told_and_never_raise_it(own: Inherit, asked: Inherit | None) -> None:
    got = own.lowered(asked)
    assert told(got) <= told(own)
    assert got in (own, asked)
    if asked is None:
        assert got == own
    if asked == Inherit():
        assert got == Inherit()
