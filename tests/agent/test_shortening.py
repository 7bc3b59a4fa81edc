"""Shortened contexts of random histories: pairs stay whole, order is kept, every try makes progress or is the last."""

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.agent.budget import Budget, Meter
from app.agent.compaction import Compacted, Compaction, Context, Method, reserving
from app.agent.errors import BudgetSpent
from app.agent.messages import Message, Role, ToolCall, Usage
from app.agent.policy import BudgetLimits
from app.agent.runs import Shortened
from app.agent.shortening import parted, rebuilt, rendered
from app.agent.texts import DEFAULT, LANGUAGES, filled
from app.agent.tokens import rough_tokens
from app.agent.tools import ToolSpec
from app.agent.transcript import acceptable
from app.llm.tokens import ModelCounter
from tests.longer import examples
from tests.strict import history_problem

pytestmark = pytest.mark.spec("5.4")
WORDS = ("survey", "field", "north", "7391", "ice", "测量", "结果", "{}", '"x": 1', "\n")
WINDOWS = (300, 700, 1500, 4000)


def text(size: int, seed: int) -> str:
    """A text of about so many words."""
    return " ".join(random.Random(seed).choices(WORDS, k=size))


class Talk:
    """A history under construction, as a run makes it: numbered, with calls and their results in order."""

    def __init__(self) -> None:
        self.messages = [Message(role=Role.SYSTEM, content="You measure.", seq=1)]
        self.next = 2

    def add(self, message: Message, reserved: int = 0) -> Message:
        """Append one; the numbers of its results are reserved with its own."""
        numbered = replace(message, seq=self.next)
        self.next += 1 + reserved
        self.messages.append(numbered)
        return numbered

    def user(self, content: str) -> Message:
        """A user message."""
        return self.add(Message(role=Role.USER, content=content))

    def turn(self, content: str, results: Sequence[str | None]) -> None:
        """A reply with calls; None: one whose result never came."""
        place = self.next
        ids = [f"call_{place}_{at}" for at in range(len(results))]
        calls = tuple(ToolCall(call_id=i, name="look", raw='{"at": 1}', arguments={"at": 1}) for i in ids)
        self.add(Message(role=Role.ASSISTANT, content=content, tool_calls=calls), len(calls))
        for at, result in enumerate(results):
            if result is not None:
                seq = place + 1 + at
                self.messages.append(Message(role=Role.TOOL, content=result, tool_call_id=ids[at], seq=seq))


SIZES = st.sampled_from([0, 3, 20, 80, 300, 2500])
TURNS = st.lists(
    st.tuples(st.sampled_from(["turn", "turn", "turn", "user"]), SIZES, st.lists(st.none() | SIZES, max_size=4)),
    max_size=25,
)


def talk(turns: Sequence[tuple[str, int, list[int | None]]], task_at: int) -> tuple[Talk, Message]:
    """The history and its task, which stands before one of the turns."""
    made, task = Talk(), None
    for at, (kind, size, sizes) in enumerate(turns):
        if at == task_at:
            task = made.user("The task: measure all.")
        if kind == "user":
            made.user(text(size, at))
        else:
            made.turn(
                text(size, at), [None if s is None else text(s, 31 * at + place) for place, s in enumerate(sizes)]
            )
    return made, task or made.user("The task: measure all.")


def context(window: int, **fields: float) -> Context:
    """A context with the estimating counter."""
    return Context(Compaction(**fields), ModelCounter(None), DEFAULT, window=window)  # type: ignore[arg-type]


def shorten(
    of: Context, messages: Sequence[Message], how: Shortened | None, task: Message, said: str, *, overflow: bool = False
) -> Compacted | None:
    """One try; `said` is what the summariser answers."""

    async def summarise(told: str, tokens: int) -> str:
        assert told.strip()
        return said

    return asyncio.run(of.shortened(messages, how, task, summarise, overflow=overflow))


def check(done: Compacted, before: Sequence[Message], said: Sequence[Message], task: Message) -> None:
    """What must be true of every shortened context."""
    kept = done.messages
    assert done.after < done.before
    assert kept[0] is said[0], "the system prompt stands first"
    assert any(message is task for message in kept)
    assert history_problem(acceptable(kept)) is None
    numbers = [message.seq for message in kept if message.seq is not None]
    assert numbers == sorted(set(numbers))
    there = set(numbers)
    for message in said:  # a call stands there with all results that it has, or none of them
        results = [m.seq for m in said if m.tool_call_id in {call.call_id for call in message.tool_calls}]
        if message.seq in there:
            assert set(results) <= there
        else:
            assert not there & set(results)
    late = [m.seq for m in said if m.seq is not None and m.seq >= done.how.kept_from]
    assert [seq for seq in numbers if seq >= done.how.kept_from] == late, "nothing is lost in the middle"
    assert rebuilt(said, done.how) == kept, "what the store rebuilds is what the run goes on with"
    assert rebuilt(before, done.how) == kept


@settings(deadline=None, max_examples=examples(150))
@given(
    turns=TURNS,
    task_at=st.integers(0, 25),
    window=st.sampled_from(WINDOWS),
    said=st.sampled_from(["", "Done: all. Open: nothing.", "endless " * 3000]),
    overflow=st.booleans(),
)
def test_every_try_keeps_pairs_order_prompt_and_task_and_ends(
    turns: list[tuple[str, int, list[int | None]]], task_at: int, window: int, said: str, overflow: bool
) -> None:
    made, task = talk(turns, task_at)
    of, messages, how = context(window), list(made.messages), None
    for _ in range(300):
        done = shorten(of, messages, how, task, said, overflow=overflow)
        overflow = False
        if done is None:
            break
        check(done, messages, made.messages, task)
        messages, how = done.messages, done.how
    else:
        raise AssertionError("it never comes to an end")
    assert of.asked <= 3


@settings(deadline=None, max_examples=examples(60))
@given(turns=TURNS, more=TURNS, window=st.sampled_from(WINDOWS), said=st.sampled_from(["", "Done: all."]))
def test_a_context_that_grows_again_is_shortened_again_from_what_is_left(
    turns: list[tuple[str, int, list[int | None]]],
    more: list[tuple[str, int, list[int | None]]],
    window: int,
    said: str,
) -> None:
    made, task = talk(turns, 0)
    of, how = context(window), None
    messages = list(made.messages)
    for kind, size, sizes in more:
        before = len(made.messages)
        if kind == "user":
            made.user(text(size, size))
        else:
            made.turn(text(size, 5), [None if s is None else text(s, s) for s in sizes])
        messages += made.messages[before:]
        done = shorten(of, messages, how, task, said)
        if done is not None:
            check(done, messages, made.messages, task)
            messages, how = list(done.messages), done.how


def long_talk(turns: int, size: int = 60) -> tuple[Talk, Message]:
    """A task and so many turns of equal size."""
    made = Talk()
    task = made.user("The task: measure all.")
    for at in range(turns):
        made.turn("I look.", [text(size, at)])
    return made, task


def test_the_newest_quarter_stays_as_it_is_and_the_rest_becomes_one_message() -> None:
    made, task = long_talk(40)
    of = context(4000)
    done = shorten(of, made.messages, None, task, "Done: forty looks.")
    assert done is not None and done.method is Method.SUMMARY
    system, first, summary, *newest = done.messages
    assert (system.content, first) == ("You measure.", task)
    assert summary.content == filled(DEFAULT.compacted, summary="Done: forty looks.")
    assert newest == made.messages[-len(newest) :]
    assert of.tokens(newest) <= 0.25 * of.limit
    assert newest[0].role is Role.ASSISTANT


def test_what_fits_is_left_alone_and_nobody_is_asked() -> None:
    made, task = long_talk(5)
    of = context(128_000)
    assert shorten(of, made.messages, None, task, "unused") is None
    assert of.asked == 0


def test_a_summary_that_frees_less_than_a_fifth_replaces_nothing_and_counts_as_a_try() -> None:
    made, task = long_talk(40)
    of = context(4000)
    done = shorten(of, made.messages, None, task, text(2400, 1))
    assert done is not None and done.method is not Method.SUMMARY
    assert of.asked == 1
    assert not any(filled(DEFAULT.compacted, summary="")[:20] in message.content for message in done.messages)


def test_left_out_exchanges_leave_one_marker_that_counts_them_all() -> None:
    made, task = long_talk(60, 20)  # results too small to be cut
    of = context(1500, tries=0)
    first = shorten(of, made.messages, None, task, "")
    assert first is not None and first.method is Method.DROPPED
    messages = list(first.messages)
    assert messages[2].content == filled(DEFAULT.dropped, count=first.how.untold)
    before = len(made.messages)
    for at in range(40):
        made.turn("I look again.", [text(20, at)])
    second = shorten(of, messages + made.messages[before:], first.how, task, "")
    assert second is not None and second.how.untold == first.how.untold + second.left_out
    assert second.messages[2].content == filled(DEFAULT.dropped, count=second.how.untold)


def test_an_old_result_is_cut_to_its_head_and_says_how_much_is_gone() -> None:
    made, task = long_talk(12, 300)
    of = context(4000, tries=0)
    done = shorten(of, made.messages, None, task, "")
    assert done is not None and done.method is Method.CUT
    old = next(m for m in done.messages if m.role is Role.TOOL)
    whole = next(m for m in made.messages if m.seq == old.seq)
    kept, left_out = done.how.cuts[old.seq or 0]
    assert old.content == whole.content[:kept] + filled(DEFAULT.output_cut_old, left_out=left_out)
    assert kept + left_out == len(whole.content)


def test_a_rendering_carries_an_earlier_summary_whole_and_fits() -> None:
    made, _ = long_talk(30, 400)
    summary = Message(role=Role.USER, content="What was found: " + "x" * 900)
    told = [summary, *made.messages[1:]]
    for most in (2000, 5000, 40_000):
        said = rendered(told, whole=1, fits=lambda text, most=most: len(text) <= most)  # type: ignore[misc]
        assert len(said) <= most
        assert summary.content in said
        assert "result of look:" in said and "calls look" in said


def test_a_call_without_a_result_is_told_as_one() -> None:
    made = Talk()
    made.turn("I look.", [None, "found"])
    said = rendered(made.messages, whole=0, fits=lambda _: True)
    assert "no result" in said and "found" in said


def test_parts_are_told_apart_only_where_they_stand() -> None:
    made, task = long_talk(3)
    how = Shortened(kept_from=6, task=task.seq, summary="So far.")
    parts = parted(rebuilt(made.messages, how), how)
    assert (parts.task, parts.summary) == (task, Message(role=Role.USER, content="So far."))
    plain = parted(made.messages, None)
    assert (plain.task, plain.summary, plain.exchanges[0]) == (None, None, (task,))


def test_what_a_model_reports_moves_the_count_of_all_that_follows() -> None:
    made, task = long_talk(30, 100)
    of = context(4000, tries=0)
    shorten(of, made.messages, None, task, "")
    before = of.tokens(made.messages)
    for _ in range(5):
        of.learn(made.messages, Usage(input_tokens=round(before * 1.4)))
    assert of.tokens(made.messages) == pytest.approx(before * 1.4, rel=0.05)
    of.learn(made.messages, None)
    of.learn(made.messages, Usage(input_tokens=0))
    assert of.tokens(made.messages) == pytest.approx(before * 1.4, rel=0.05)


def test_tools_and_the_answer_need_room_too() -> None:
    made, _ = long_talk(1)
    tool = ToolSpec(name="look", description="Looks. " * 200, parameters={"type": "object"})
    bare = Context(Compaction(), ModelCounter(None), DEFAULT, window=8000)
    full = Context(Compaction(), ModelCounter(None), DEFAULT, window=8000, max_tokens=1000, tools=(tool,))
    assert full.tokens(made.messages) > bare.tokens(made.messages) + 200
    assert (bare.room, full.room) == (6000, 7000)
    assert full.limit == 5600
    greedy = Context(Compaction(), ModelCounter(None), DEFAULT, window=8000, max_tokens=100_000)
    assert greedy.room == 4000


@pytest.mark.parametrize(
    ("field", "value"), [("threshold", 0), ("keep_share", 1.5), ("least_gain", -1), ("tries", -1), ("window", 10)]
)
def test_a_setting_that_means_nothing_is_refused_by_its_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"compaction.{field}"):
        Compaction(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("language", sorted(LANGUAGES))
@pytest.mark.spec("5.9")
def test_each_language_says_what_a_compaction_says(language: str) -> None:
    texts = LANGUAGES[language]
    assert "{summary}" in texts.compacted
    assert "{count}" in texts.dropped
    assert "{left_out}" in texts.output_cut_old
    assert not {"{", "}"} & set(texts.compact)


@pytest.mark.spec("4.8")
def test_a_reservation_counts_more_than_the_vocabulary_says_and_estimates_where_there_is_none() -> None:
    counter = ModelCounter("o200k_base")
    words = text(300, 1)
    expected = math.ceil(counter.count(words) * 1.1) if counter.exact else rough_tokens(words)
    assert reserving(counter)(words) == expected
    for _ in range(9):
        counter.learn(1000, 2000)
    assert reserving(counter)(words) == pytest.approx(counter.count(words) * 2 if counter.exact else expected, rel=0.02)
    assert reserving(ModelCounter(None))(words) == rough_tokens(words)


@pytest.mark.spec("4.8")
async def test_what_a_budget_knew_of_a_longer_context_is_forgotten_with_it() -> None:
    made, _ = long_talk(10)
    budget = Budget(BudgetLimits(tokens=6000))
    meter = Meter(budget, None, 100, root=False)
    await meter.before(made.messages, ())
    meter.after(Usage(input_tokens=5000, output_tokens=1, model_calls=1), made.messages, "", counted=True)
    shorter = [*made.messages[:2], *made.messages[-2:]]
    with pytest.raises(BudgetSpent):
        await meter.before([*made.messages, *shorter], ())
    meter.forget()
    assert await meter.before(shorter, ()) == 100
