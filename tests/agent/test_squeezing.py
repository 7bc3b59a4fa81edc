"""Cutting many large results costs little more than counting them."""

import pytest

from app.agent.compaction import OLD_CHARS, Compaction, Context
from app.agent.messages import Message, Role, ToolCall
from app.agent.texts import DEFAULT

RESULTS = 200


class Letters:
    """A counter for which each character is a token; remembers how many it has counted."""

    exact, ratio = True, 1.0

    def __init__(self) -> None:
        self.counted = 0

    def count(self, text: str) -> int:
        """The characters."""
        self.counted += len(text)
        return len(text)

    def learn(self, counted: int, used: int) -> None:
        """Nothing."""


def one_turn(sizes: list[int]) -> list[Message]:
    """A task, and one message that calls a tool many times, with results of these sizes."""
    calls = tuple(ToolCall(call_id=f"c{at}", name="grep", raw="{}", arguments={}) for at in range(len(sizes)))
    results = [
        Message(role=Role.TOOL, content="x" * size, tool_call_id=f"c{at}", seq=4 + at) for at, size in enumerate(sizes)
    ]
    return [
        Message(role=Role.SYSTEM, content="Be brief.", seq=1),
        Message(role=Role.USER, content="Look.", seq=2),
        Message(role=Role.ASSISTANT, content="", tool_calls=calls, seq=3),
        *results,
    ]


async def no_summary(text: str, bound: int) -> str:
    return ""


@pytest.mark.spec("5.4")
@pytest.mark.parametrize("room", [160_000, 250_000, 400_000])
async def test_many_large_results_of_one_turn_are_cut_in_a_few_rounds(room: int) -> None:
    messages = one_turn([1_500 + 10 * at for at in range(RESULTS)])
    letters, whole = Letters(), sum(len(m.content) for m in messages)
    context = Context(Compaction(window=room, tries=0, output_tokens=1), letters, DEFAULT, max_tokens=1)
    done = await context.shortened(messages, None, messages[1], no_summary)
    assert done is not None
    assert done.after <= context.room
    assert letters.counted < 8 * whole, "each round counts what it has cut, and there are few of them"
    kept = [len(m.content) for m in done.messages if m.role is Role.TOOL]
    assert min(kept) >= OLD_CHARS
    assert max(kept) - min(kept) < 1_000, "what was cut was cut to one length"
