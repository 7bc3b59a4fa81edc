"""Reasoning inside think tags: what counts as a tag, what survives as quoted text."""

import pytest

from app.agent.chat import DeltaKind
from tests.llm.asking import World
from tests.stubs.openai_stub import chunk, stream

pytestmark = pytest.mark.spec("13.2")

STOP = chunk({}, "stop")


@pytest.mark.case("B012")
async def test_a_think_block_split_over_chunks_is_reasoning(world: World) -> None:
    chunks = [chunk({"content": piece}) for piece in ("<th", "ink>secret plan</thi", "nk>42")]
    asked = await world.answered(stream(*chunks, STOP))
    assert (asked.reply.text, asked.reply.reasoning) == ("42", "secret plan")
    assert (asked.said(DeltaKind.TEXT), asked.said(DeltaKind.REASONING)) == ("42", "secret plan")


@pytest.mark.case("B012")
@pytest.mark.parametrize(
    ("content", "text", "reasoning"),
    [
        ("secret plan</think>\n\n42", "42", "secret plan"),  # the opener was in the prompt
        ("<think>the answer is 42", "the answer is 42", ""),  # never closed: not lost
        ("Use `<think>` and `</think>`.", "Use `<think>` and `</think>`.", ""),
        ("```\n<think>x</think>\n```\nend", "```\n<think>x</think>\n```\nend", ""),
        ("<think>a</think>`</think>`", "`</think>`", "a"),
        ("  <thinking>a < b</thinking> c", "c", "a < b"),
        ("a <thin line", "a <thin line", ""),
        ("<", "<", ""),
        ("", "", ""),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_think_tags_count_only_where_a_server_puts_them(
    world: World, content: str, text: str, reasoning: str, size: int
) -> None:
    chunks = [chunk({"content": content[at : at + size]}) for at in range(0, len(content), size)]
    reply = (await world.answered(stream(*chunks, STOP))).reply
    assert (reply.text, reply.reasoning) == (text, reasoning)


@pytest.mark.case("B012")
@pytest.mark.parametrize("gap", [0, 6, 11, 15, 19, 21])
async def test_reasoning_without_an_opener_is_shown_whole_wherever_its_closer_was_cut(world: World, gap: int) -> None:
    content = "secret plan</think>42"
    asked = await world.answered(stream(chunk({"content": content[:gap]}), chunk({"content": content[gap:]}), STOP))
    assert (asked.reply.text, asked.reply.reasoning) == ("42", "secret plan")
    assert "".join(delta.text for delta in asked.deltas) == "secret plan42", "what is kept is what was seen"


@pytest.mark.case("B012")
async def test_a_profile_can_switch_the_think_splitter_off(world: World) -> None:
    answer = stream(chunk({"content": "<think>a</think>b"}), STOP)
    assert (await world.answered(answer, think_tags="off")).reply.text == "<think>a</think>b"


async def test_tags_in_the_answer_of_a_server_that_splits_itself_are_text(world: World) -> None:
    answer = stream(chunk({"reasoning_content": "r"}), chunk({"content": "<think>a</think>b"}), STOP)
    reply = (await world.answered(answer)).reply
    assert (reply.text, reply.reasoning) == ("<think>a</think>b", "r")
