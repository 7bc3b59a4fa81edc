"""Calls that go in circles: what counts as the same call, which rounds are blocked, and what the run makes of it."""

import json
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.agent.duplicates import LONGEST_CYCLE, Circle, DuplicateLimits, Duplicates, call_key
from app.agent.texts import DEFAULT, LANGUAGES
from app.agent.tools import ToolContext
from tests.agent.guarded import results
from tests.agent.probes import PATH, Probe, echo
from tests.plan import ask, call, raw_call, task
from tests.world import World, world

LIMITS = DuplicateLimits()
MANY = DuplicateLimits(blocks=1000)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
NUDGE = DEFAULT.duplicate.replace("{tool}", "look")


def told(
    tools: Sequence[str], *, limits: DuplicateLimits = MANY, pollers: str = "", gives: Sequence[str] = ()
) -> list[int]:
    """The length of the circle that each of these calls would complete, 0: it is carried out. Each is a tool without
    arguments; `gives`: their results in order, "same" where there are none left."""
    calls, given = Duplicates(limits), iter(gives)
    found = []
    for at, tool in enumerate(tools):
        circle = calls.check(f"call_{at}", tool, {}, poller=tool in pollers)
        found.append(circle.length if circle else 0)
        calls.result(f"call_{at}", NUDGE if circle else next(given, "same"))
    return found


# ── the same call ───────────────────────────────────────────────────────────────────────────────────────────────────


def _turned(value: Any) -> Any:
    """The same value with the keys of every object in another order."""
    if isinstance(value, dict):
        return {key: _turned(value[key]) for key in reversed(value)}
    return [_turned(item) for item in value] if isinstance(value, list) else value


@pytest.mark.spec("5.3")
@pytest.mark.case("B092")
@given(arguments=st.dictionaries(st.text(max_size=4), JSON, max_size=4), indent=st.none() | st.integers(0, 4))
def test_the_order_of_keys_and_white_space_make_no_other_call(arguments: dict[str, Any], indent: int | None) -> None:
    key = call_key("look", arguments)
    assert call_key("look", _turned(arguments)) == key
    assert call_key("look", json.dumps(arguments)) == key
    assert call_key("look", json.dumps(_turned(arguments), indent=indent, ensure_ascii=False)) == key
    assert call_key("other", arguments) != key


@pytest.mark.spec("5.3")
@given(
    one=st.dictionaries(st.text(max_size=4), JSON, max_size=3),
    two=st.dictionaries(st.text(max_size=4), JSON, max_size=3),
)
def test_other_arguments_make_another_call(one: dict[str, Any], two: dict[str, Any]) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)  # 1 is not true, "1" is not 1
    assert (call_key("look", one) == call_key("look", two)) is same


@pytest.mark.spec("5.3")
def test_texts_that_are_no_json_are_the_same_when_their_words_are() -> None:
    assert call_key("run", "make   all\n") == call_key("run", " make all")
    assert call_key("run", "make all") != call_key("run", "make some")


# ── rounds ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("5.3")
@pytest.mark.seed("004", 146)
@pytest.mark.parametrize("repeats", [2, 3, 5])
@pytest.mark.parametrize("length", range(1, LONGEST_CYCLE + 1))
def test_the_last_call_of_the_last_round_of_a_cycle_is_blocked_and_so_is_each_one_after_it(
    length: int, repeats: int
) -> None:
    tools = list(islice(cycle("abcd"[:length]), length * repeats + 3))
    found = told(tools, limits=DuplicateLimits(repeats=repeats, blocks=1000))
    assert found == [0] * (length * repeats - 1) + [length] * 4


@pytest.mark.spec("5.3")
@pytest.mark.parametrize(
    "tools",
    ["aabaabb", "abcde" * 6, "aab" * 2, "abab", "abcdabcd", "aacaadaaeaaf", "abacadaeafag"],
)
def test_what_is_no_cycle_or_not_often_enough_is_carried_out(tools: str) -> None:
    assert not any(told(tools))


@pytest.mark.spec("5.3")
@pytest.mark.case("B095")
def test_another_call_between_the_equal_ones_does_not_hide_them() -> None:
    found = told("xg" * 20)
    assert found == [0] * 5 + [2] * 35
    assert told("xxg" * 4) == [0] * 8 + [3] * 4


@pytest.mark.spec("5.3")
def test_calls_that_were_blocked_count_and_another_one_ends_the_row() -> None:
    assert told("aaaab" + "aa" + "a") == [0, 0, 1, 1, 0, 0, 0, 1]
    calls = Duplicates(DuplicateLimits(blocks=2))
    assert [calls.check(str(at), "a", {}) for at in range(3)] == [None, None, Circle(1, 3)]
    assert (calls.blocked, calls.exhausted) == (1, False)
    calls.check("3", "b", {})
    assert [calls.check(str(at), "a", {}) for at in range(4, 7)] == [None, None, Circle(1, 3)]
    assert (calls.blocked, calls.exhausted) == (2, True)


@pytest.mark.spec("5.3")
@pytest.mark.case("B093")
def test_a_poller_is_blocked_only_while_its_results_stay_the_same() -> None:
    assert not any(told("p" * 9, pollers="p", gives=[str(at) for at in range(9)]))
    assert told("p" * 5, pollers="p") == [0, 0, 1, 1, 1]
    assert told("p" * 6, pollers="p", gives=["1", "1"]) == [0, 0, 1, 1, 1, 1], (
        "a call that is blocked gives nothing new"
    )
    assert told("p" * 6, pollers="p", gives=["1", "2", "2"]) == [0, 0, 0, 1, 1, 1]


@pytest.mark.spec("5.3")
@pytest.mark.case("B093")
def test_in_a_cycle_the_poller_decides_whether_it_stands_still() -> None:
    assert told("pw" * 4, pollers="p") == [0] * 5 + [2] * 3
    assert not any(told("pw" * 6, pollers="p", gives=[part for at in range(6) for part in (str(at), "slept")]))


@pytest.mark.spec("5.3")
def test_equal_polls_side_by_side_are_carried_out_since_nobody_knows_their_results() -> None:
    calls = Duplicates(LIMITS)
    assert [calls.check(str(at), "p", {}, poller=True) for at in range(4)] == [None] * 4


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def looks(*, safe: bool = True) -> Probe:
    """A tool that can be called again and again."""
    return Probe("look", echo, PATH, read_only=True, concurrency_safe=safe)


async def blocked(w: World, session_id: str) -> list[tuple[int, int, int]]:
    """Step, length of the cycle and number of each call that was not carried out."""
    found = await w.events(session_id, "duplicate.blocked")
    return [(event["step"], event["data"]["cycle"], event["data"]["blocked"]) for event in found]


SAME = {"calls": [call("look", path="a")]}
SPELLINGS = [
    {"calls": [raw_call("look", spelled)]}
    for spelled in (
        '{"path": "a", "tags": ["x"]}',
        '{"tags":["x"],"path":"a"}',
        '{ "tags" : [ "x" ] ,\n "path" : "a" }',
        '{"path":"a","tags":[ "x" ]}',
    )
]
OTHER = {"calls": [call("look", path="b")]}


@pytest.mark.spec("5.3", "5.5", "5.6")
@pytest.mark.seed("004", 146)
@pytest.mark.case("B092")
@pytest.mark.parametrize(
    ("turns", "length", "ran"),
    [([SAME] * 9, 1, 2), (SPELLINGS * 2, 1, 2), ([SAME, OTHER] * 9, 2, 5)],
    ids=["equal", "spelled in other ways", "in turns"],
)
async def test_the_same_call_again_is_not_carried_out_and_after_two_of_them_the_run_has_to_answer(
    tmp_path: Path, turns: list[dict[str, Any]], length: int, ran: int
) -> None:
    look = looks()
    async with world(tmp_path, tools=[look], duplicates=LIMITS) as w:
        row = await w.finished(await w.run(task(*turns, final="What there is."), limits={"max_steps": 20}))
        assert (row["status"], row["stop_reason"], row["output"]) == ("completed", "duplicates", "What there is."), row
        assert (row["forced"], row["partial"], row["steps"]) == (True, True, ran + 3)
        assert len(look.arguments) == ran
        assert await blocked(w, row["session_id"]) == [(ran + 1, length, 1), (ran + 2, length, 2)]
        assert [status for status, _ in await results(w, row["session_id"])] == ["ok"] * ran + ["duplicate"] * 2
        assert (await results(w, row["session_id"]))[-1][1] == NUDGE
        assert w.requests[-1].tools == ()
        assert w.requests[-1].messages[-1].content == DEFAULT.forced_answer
        (forced,) = await w.events(row["session_id"], "answer.forced")
        assert forced["data"]["reason"] == "duplicates"
        calls = await w.rows("tool_calls")
        assert [entry["status"] for entry in calls].count("duplicate") == 2


@pytest.mark.spec("5.3", "6.4")
@pytest.mark.seed("004", 146)
@pytest.mark.parametrize("safe", [True, False])
async def test_equal_calls_inside_one_turn_are_counted_in_the_order_of_the_calls(tmp_path: Path, safe: bool) -> None:
    look = looks(safe=safe)
    async with world(tmp_path, tools=[look], duplicates=LIMITS) as w:
        four = {"calls": [call("look", path="a")] * 4}
        row = await w.finished(await w.run(task(four, "not reached", final="Enough.")))
        assert (row["stop_reason"], row["output"], len(look.arguments)) == ("duplicates", "Enough.", 2)
        assert [status for status, _ in await results(w, row["session_id"])] == ["ok"] * 2 + ["duplicate"] * 2
        started = await w.events(row["session_id"], "tool.start")
        assert len(started) == 2


@pytest.mark.spec("5.3")
async def test_one_block_is_a_hint_and_a_run_that_takes_it_goes_on(tmp_path: Path) -> None:
    look = looks()
    async with world(tmp_path, tools=[look], duplicates=LIMITS) as w:
        row = await w.finished(await w.run(task(SAME, SAME, SAME, OTHER, "I see.")))
        assert (row["status"], row["stop_reason"], row["output"]) == ("completed", "answer", "I see.")
        assert [seen["path"] for seen in look.arguments] == ["a", "a", "b"]
        assert w.requests[3].messages[-1].content == NUDGE


@pytest.mark.spec("5.3", "5.9")
@pytest.mark.seed("004", 147)
@pytest.mark.parametrize(
    ("language", "said"),
    [
        ("zh", "工具 look 被连续重复调用。请停止并给出当前收集到的答案。"),
        ("en", "The tool look was called repeatedly with the same arguments. Stop and answer with what you have."),
    ],
)
async def test_a_blocked_call_is_told_so_in_the_language_of_the_session(
    tmp_path: Path, language: str, said: str
) -> None:
    async with world(tmp_path, tools=[looks()], duplicates=LIMITS) as w:
        row = await w.finished(await w.run(task(SAME, SAME, SAME, "done"), texts=language))
        assert (await results(w, row["session_id"]))[2] == ("duplicate", said)
        assert LANGUAGES[language].duplicate.replace("{tool}", "look") == said


@pytest.mark.spec("5.3")
@pytest.mark.seed("004", 148)
async def test_every_run_counts_its_own_calls_and_so_does_every_turn(tmp_path: Path) -> None:
    look = looks()
    async with world(tmp_path, tools=[look], duplicates=LIMITS) as w:
        twice = task(SAME, SAME, "two")
        session = await w.session()
        parent = task({"calls": [*SAME["calls"] * 2, ask(twice), ask(task(SAME, SAME, "again two"))]}, "end")
        assert (await w.finished(await w.turn(session, parent)))["output"] == "end"
        assert (await w.finished(await w.turn(session, twice)))["output"] == "two"
        assert (len(look.arguments), await blocked(w, session)) == (8, [])


@pytest.mark.spec("5.3")
async def test_a_child_that_goes_in_circles_answers_and_its_parent_goes_on(tmp_path: Path) -> None:
    async with world(tmp_path, tools=[looks()], duplicates=LIMITS) as w:
        child = task(*[SAME] * 9, final="Only this.")
        row = await w.finished(await w.run(task({"calls": [ask(child)]}, "The end.")))
        assert (row["stop_reason"], row["output"]) == ("answer", "The end.")
        (below,) = await w.rows("runs", depth=1)
        assert (below["status"], below["stop_reason"], below["output"]) == ("completed", "duplicates", "Only this.")


@pytest.mark.spec("5.3")
@pytest.mark.case("B093")
@pytest.mark.parametrize(("changes", "ran", "reason"), [(True, 8, "answer"), (False, 2, "duplicates")])
async def test_polling_goes_on_while_there_is_news(tmp_path: Path, changes: bool, ran: int, reason: str) -> None:
    async def body(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        return f"{len(poll.arguments) if changes else 0} of 8"

    poll = Probe("poll", body, read_only=True, poller=True)
    async with world(tmp_path, tools=[poll], duplicates=LIMITS) as w:
        turns = [{"calls": [call("poll")]}] * 8
        row = await w.finished(await w.run(task(*turns, "All 8."), limits={"max_steps": 20}))
        assert (row["stop_reason"], len(poll.arguments)) == (reason, ran)


@pytest.mark.spec("5.3")
@pytest.mark.case("B093")
async def test_a_tool_that_is_no_poller_is_blocked_whatever_it_gives(tmp_path: Path) -> None:
    async def body(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        return f"{len(clock.arguments)} o'clock"

    clock = Probe("clock", body, read_only=True)
    async with world(tmp_path, tools=[clock], duplicates=LIMITS) as w:
        row = await w.finished(await w.run(task(*[{"calls": [call("clock")]}] * 8, final="Late.")))
        assert (row["stop_reason"], len(clock.arguments)) == ("duplicates", 2)


@pytest.mark.spec("5.3")
@pytest.mark.case("B094")
async def test_equal_results_of_other_calls_are_no_circle(tmp_path: Path) -> None:
    async def body(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        return "ok"

    write = Probe("put", body, PATH)
    async with world(tmp_path, tools=[write], duplicates=LIMITS) as w:
        turns = [{"calls": [call("put", path=f"{name}.txt")]} for name in "abcdefgh"]
        row = await w.finished(await w.run(task(*turns, "All written.")))
        assert (row["stop_reason"], row["output"], len(write.arguments)) == ("answer", "All written.", 8)
        assert await blocked(w, row["session_id"]) == []


@pytest.mark.spec("5.3", "6.5")
async def test_calls_that_never_came_to_the_check_do_not_count(tmp_path: Path) -> None:
    look = looks()
    async with world(tmp_path, tools=[look], duplicates=LIMITS) as w:
        wrong = {"calls": [call("look", way="up")]}
        missing = {"calls": [call("no_such_tool")]}
        row = await w.finished(await w.run(task(*[wrong] * 4, *[missing] * 4, "I give up."), limits={"max_steps": 20}))
        assert (row["stop_reason"], row["output"], await blocked(w, row["session_id"])) == ("answer", "I give up.", [])
