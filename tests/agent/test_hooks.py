"""The registry: order, changes, the strictest verdict, what a failure counts as, who is asked."""

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from app.agent.definition import AgentDefinition, OwnHook
from app.agent.hooks import (
    DEFAULT_ON_FAILURE,
    MAX_BLOCK_CHARS,
    MAX_CONTEXT_CHARS,
    NO_HOOKS,
    NO_OWN_HOOKS,
    FunctionHook,
    HookCall,
    HookFailure,
    HookPoint,
    HookRegistry,
    OnFailure,
    Verdict,
)
from tests.hooks.calls import asked, told

WAIT_S = 10.0
EVERYWHERE = frozenset(HookPoint)
PRE, POST = HookPoint.PRE_TOOL_USE, HookPoint.POST_TOOL_USE
START, STOP = HookPoint.SUBAGENT_START, HookPoint.SUBAGENT_STOP


def hook(function: Callable[[HookCall], Any], name: str = "guard", **fields: Any) -> FunctionHook:
    return FunctionHook(name=name, function=function, **{"points": EVERYWHERE, **fields})


def answers(name: str = "guard", **verdict: Any) -> FunctionHook:
    return hook(lambda call: Verdict(**verdict), name)


def raises(error: BaseException, **fields: Any) -> FunctionHook:
    def function(call: HookCall) -> None:
        raise error

    return hook(function, **fields)


@pytest.mark.spec("6.2")
@pytest.mark.seed("004", 165)
async def test_hooks_are_asked_in_order_and_each_sees_what_the_one_before_it_changed() -> None:
    seen: list[Any] = []

    def more(call: HookCall) -> Verdict:
        seen.append(call.arguments)
        assert isinstance(call.arguments, dict)
        return Verdict(arguments={"path": call.arguments["path"] + "!"})

    outcome, decisions = await asked(hook(more, "first"), hook(seen.append, "looks"), hook(more, "second"))
    assert seen[0] == {"path": "diary.txt"}
    assert (seen[1].arguments, seen[2]) == ({"path": "diary.txt!"}, {"path": "diary.txt!"})
    assert outcome.call.arguments == {"path": "diary.txt!!"}
    assert [(one.hook, one.decision) for one in decisions] == [("first", "mutate_input"), ("second", "mutate_input")]


@pytest.mark.spec("6.2")
@pytest.mark.seed("004", 165)
async def test_the_output_that_a_hook_gives_takes_the_place_of_the_old_one_for_those_after_it() -> None:
    upper = hook(lambda call: Verdict(output=(call.output or "").upper()), "upper")
    marked = hook(lambda call: Verdict(output=f"[{call.output}]"), "marked")
    outcome, decisions = await asked(upper, marked, call=told(POST))
    assert outcome.call.output == "[DEAR DIARY]"
    assert [one.decision for one in decisions] == ["mutate_output", "mutate_output"]


@pytest.mark.spec("6.2")
@pytest.mark.case("B099")
async def test_a_block_wins_whatever_the_others_say_and_those_after_it_are_not_asked() -> None:
    late: list[HookCall] = []
    outcome, decisions = await asked(answers("mild"), answers("strict", block="not here"), hook(late.append, "late"))
    assert (outcome.block, outcome.blocked_by, late) == ("not here", "strict", [])
    assert [(one.hook, one.decision, one.reason) for one in decisions] == [("strict", "block", "not here")]


@pytest.mark.spec("6.2")
async def test_what_a_tool_put_out_is_cleaned_whoever_objects_to_it_before_and_after() -> None:
    cleans = hook(lambda call: Verdict(output=(call.output or "").replace("diary", "***")), "cleans")
    objects = answers("objects", block="too private", output="dear diary, cut")
    for hooks in ((objects, cleans), (cleans, objects, cleans), (objects, raises(ValueError("broken")), cleans)):
        outcome, _ = await asked(*hooks, call=told(POST))
        assert (outcome.block, outcome.blocked_by) == ("too private", "objects")
        assert outcome.call.output == "dear ***, cut"


@pytest.mark.spec("6.2")
async def test_a_verdict_that_blocks_is_not_weakened_by_arguments_that_are_not_valid() -> None:
    both = answers(block="no", arguments={"path": 1})
    both.on_failure = OnFailure.ALLOW
    outcome, _ = await asked(both, check=lambda arguments: "path must be a text")
    assert outcome.block == "no"


@pytest.mark.spec("6.2", "6.3")
@pytest.mark.parametrize("effect", list(OnFailure))
async def test_arguments_that_are_not_valid_are_a_failure_and_never_used(effect: OnFailure) -> None:
    wrong = answers(arguments={"path": 1})
    wrong.on_failure = effect
    outcome, decisions = await asked(wrong, check=lambda arguments: "path must be a text")
    assert outcome.call.arguments == {"path": "diary.txt"}
    assert (outcome.block is not None) == (effect is OnFailure.BLOCK)
    assert [(one.decision, one.effect) for one in decisions] == [("failed", effect.value)]
    assert "path must be a text" in (decisions[0].reason or "")


@pytest.mark.spec("6.2")
async def test_a_function_that_changes_the_arguments_in_place_changes_nothing() -> None:
    def sly(call: HookCall) -> None:
        assert isinstance(call.arguments, dict)
        call.arguments["edits"][0]["text"] = "evil"
        call.arguments["path"] = "/etc/passwd"

    given = {"path": "diary.txt", "edits": [{"text": "good"}]}
    outcome, decisions = await asked(hook(sly), call=told(arguments=given))
    assert outcome.call.arguments == {"path": "diary.txt", "edits": [{"text": "good"}]}
    assert decisions == []


@pytest.mark.spec("6.4")
async def test_what_hooks_add_to_a_start_comes_in_their_order_and_counts_nowhere_else() -> None:
    hooks = (answers("one", context="Mind the dog."), answers("two", context="And the cat."))
    outcome, decisions = await asked(*hooks, call=told(START))
    assert outcome.context == ("Mind the dog.", "And the cat.")
    assert [one.decision for one in decisions] == ["add_context", "add_context"]
    for point in (PRE, POST, STOP):
        outcome, decisions = await asked(*hooks, call=told(point))
        assert (outcome.context, decisions) == ((), [])


# ── failures ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("6.3")
@pytest.mark.parametrize("point", list(HookPoint))
@pytest.mark.parametrize("effect", [None, *OnFailure])
async def test_a_failure_counts_as_the_hook_says_or_as_its_point_does(
    point: HookPoint, effect: OnFailure | None, caplog: pytest.LogCaptureFixture
) -> None:
    after: list[HookCall] = []
    broken = raises(ValueError("broken"), on_failure=effect)
    with caplog.at_level(logging.WARNING, "app.agent.hooks"):
        outcome, decisions = await asked(broken, hook(after.append, "after"), call=told(point))
    expected = effect or DEFAULT_ON_FAILURE[point]
    assert (outcome.block is not None) == (expected is OnFailure.BLOCK)
    assert (after == []) == (expected is OnFailure.BLOCK and point is not POST)
    (failed,) = decisions
    assert (failed.decision, failed.reason, failed.effect) == ("failed", "ValueError: broken", expected.value)
    assert "hook guard failed" in caplog.text


@pytest.mark.spec("6.3")
def test_guards_are_closed_by_a_failure_and_hooks_after_the_fact_are_not() -> None:
    assert {point for point, effect in DEFAULT_ON_FAILURE.items() if effect is OnFailure.BLOCK} == {PRE, START}
    assert set(DEFAULT_ON_FAILURE) == set(HookPoint)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text either")


@pytest.mark.spec("6.3")
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda call: True, "TypeError: it returned bool, not a Verdict or None"),
        (lambda call: Verdict(block=True), "TypeError: Verdict.block is a text or None, not bool"),  # type: ignore[arg-type]
        (lambda call: Verdict(arguments=[1]), "TypeError: Verdict.arguments is a mapping or None, not list"),  # type: ignore[arg-type]
    ],
)
async def test_a_function_that_answers_nonsense_has_failed(function: Any, reason: str) -> None:
    outcome, decisions = await asked(hook(function))
    assert outcome.blocked_by == "guard"
    assert [one.reason for one in decisions] == [reason]


@pytest.mark.spec("6.3")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (HookFailure("its answer is not JSON"), "its answer is not JSON"),
        (HookFailure(""), "no reason given"),
        (TimeoutError("its own"), "TimeoutError: its own"),
        (SystemExit(3), "SystemExit: 3"),
        (Unspeakable(), "Unspeakable"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
async def test_whatever_a_hook_raises_is_its_failure_and_ends_nothing_else(error: BaseException, reason: str) -> None:
    outcome, decisions = await asked(raises(error))
    assert outcome.blocked_by == "guard"
    assert [(one.decision, one.reason) for one in decisions] == [("failed", reason)]


@pytest.mark.spec("6.3")
@pytest.mark.case("B102")
async def test_a_hook_that_never_answers_is_given_up_after_its_time() -> None:
    async def never(call: HookCall) -> None:
        await asyncio.Event().wait()

    async with asyncio.timeout(WAIT_S):
        outcome, decisions = await asked(hook(never, timeout_s=0.01))
    assert outcome.blocked_by == "guard"
    assert [one.reason for one in decisions] == ["no answer within 0.01 s"]
    assert hook(never).timeout_s > 0


@pytest.mark.spec("6.3")
async def test_an_answer_after_the_time_is_none() -> None:
    async def late(call: HookCall) -> Verdict:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return Verdict(arguments={"path": "late.txt"})

    async with asyncio.timeout(WAIT_S):
        outcome, decisions = await asked(hook(late, timeout_s=0.01, on_failure=OnFailure.ALLOW))
    assert outcome.call.arguments == {"path": "diary.txt"}
    assert [one.decision for one in decisions] == ["failed"]


@pytest.mark.spec("5.7")
@pytest.mark.seed("004", 165)
async def test_a_cancellation_of_the_run_passes_through_a_hook_and_is_no_failure_of_it() -> None:
    inside = asyncio.Event()

    async def waits(call: HookCall) -> None:
        inside.set()
        await asyncio.Event().wait()

    decisions: list[Any] = []
    registry = HookRegistry([hook(waits, on_failure=OnFailure.ALLOW)])
    asking = asyncio.create_task(registry.fire(told(), decisions.append))
    async with asyncio.timeout(WAIT_S):
        await inside.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert decisions == []


@pytest.mark.spec("6.4")
@pytest.mark.case("B103")
async def test_a_stop_hook_of_a_cancelled_run_that_raises_a_cancellation_itself_has_failed() -> None:
    begun = asyncio.Event()

    async def run() -> list[Any]:
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass  # as a run that closes
        return (await asked(raises(asyncio.CancelledError()), call=told(STOP)))[1]

    running = asyncio.create_task(run())
    async with asyncio.timeout(WAIT_S):
        await begun.wait()
        running.cancel()
        decisions = await running
    assert [(one.decision, one.effect) for one in decisions] == [("failed", "allow")]


@pytest.mark.spec("5.8", "6.3")
async def test_a_hook_that_is_deaf_to_the_end_of_its_time_is_left_behind() -> None:
    stop = asyncio.Event()

    async def deaf(call: HookCall) -> None:
        while not stop.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await stop.wait()

    try:
        async with asyncio.timeout(WAIT_S):
            outcome, decisions = await asked(hook(deaf, timeout_s=0.01))
        assert outcome.blocked_by == "guard"
        assert [one.reason for one in decisions] == ["no answer within 0.01 s"]
        asking = asyncio.create_task(asked(hook(deaf)))
        await asyncio.sleep(0)
        asking.cancel()
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(asyncio.CancelledError):
                await asking
    finally:
        stop.set()


@pytest.mark.spec("5.7", "6.5")
async def test_a_hook_that_swallows_a_cancellation_does_not_undo_it() -> None:
    inside = asyncio.Event()

    async def swallows(call: HookCall) -> None:
        inside.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    asking = asyncio.create_task(asked(hook(swallows, on_failure=OnFailure.ALLOW)))
    async with asyncio.timeout(WAIT_S):
        await inside.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


@pytest.mark.spec("6.2", "6.3")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"path": Path("x")}, "TypeError: Object of type PosixPath is not JSON serializable"),
        ({"path": "a", "options": {"x": {1, 2}}}, "TypeError: Object of type set is not JSON serializable"),
        ({"options": [{1: "a"}]}, "TypeError: a key is int, not a text"),
        ({"path": float("nan")}, "ValueError: Out of range float values are not JSON compliant"),
        ({"path": 10**5000}, "ValueError: Exceeds the limit"),
    ],
)
async def test_arguments_that_are_no_json_are_a_failure_and_never_used(arguments: dict[Any, Any], reason: str) -> None:
    outcome, decisions = await asked(answers(arguments=arguments), check=lambda found: None)
    assert outcome.call.arguments == {"path": "diary.txt"}
    assert outcome.blocked_by == "guard"
    assert (decisions[0].reason or "").startswith(f"the arguments that it gave are no JSON: {reason}")


@pytest.mark.spec("6.2")
async def test_arguments_are_what_json_makes_of_them() -> None:
    given = MappingProxyType({"paths": ("a", MappingProxyType({"b": 1}))})
    outcome, decisions = await asked(answers(arguments=given))
    assert outcome.call.arguments == {"paths": ["a", {"b": 1}]}
    assert [(one.decision, one.arguments) for one in decisions] == [("mutate_input", {"paths": ["a", {"b": 1}]})]


@pytest.mark.spec("6.2", "6.3")
async def test_what_a_hook_says_has_a_bound() -> None:
    outcome, decisions = await asked(answers(block="x" * 5_000_000))
    assert (outcome.block, decisions[0].reason) == ("x" * MAX_BLOCK_CHARS,) * 2
    outcome, decisions = await asked(answers(context="x" * 900_000), call=told(START))
    assert (outcome.context, outcome.blocked_by) == ((), "guard")
    assert decisions[0].reason == f"its context has 900000 characters, at most {MAX_CONTEXT_CHARS} are allowed"
    outcome, _ = await asked(answers(context="x" * MAX_CONTEXT_CHARS), call=told(START))
    assert len(outcome.context[0]) == MAX_CONTEXT_CHARS


@pytest.mark.spec("6.3")
async def test_the_first_question_stays_and_a_block_after_it_wins() -> None:
    two = (answers("one", ask="sure?"), answers("two", ask="really?"))
    outcome, decisions = await asked(*two)
    assert (outcome.ask, outcome.asked_by, outcome.block) == ("sure?", "one", None)
    assert [(one.decision, one.reason) for one in decisions] == [("ask", "sure?"), ("ask", "really?")]
    outcome, _ = await asked(*two, answers("three", block="no"))
    assert outcome.block == "no"
    outcome, decisions = await asked(*two, call=told(POST))
    assert (outcome.ask, decisions) == (None, [])


# ── who is asked ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("6.3", "8.4")
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("read_file", True),
        ("Read", True),
        ("Read|Edit", True),
        ("read", False),
        ("read_file_x|ead_file", False),
        (".*", True),
        ("Bash", False),
    ],
)
async def test_a_matcher_is_for_whole_names_ours_and_those_of_others(pattern: str, expected: bool) -> None:
    seen: list[HookCall] = []
    only = hook(seen.append, matcher=re.compile(pattern))
    registry = HookRegistry([only], lambda name: ["Read"] if name == "read_file" else [])
    await registry.fire(told(), lambda decision: None)
    assert (seen != []) is expected


@pytest.mark.spec("6.3")
async def test_a_matcher_does_not_keep_a_hook_from_starts_and_stops_which_have_no_tool() -> None:
    seen: list[HookCall] = []
    for point in (START, STOP):
        await asked(hook(seen.append, matcher=re.compile("Bash")), call=told(point))
    assert [call.point for call in seen] == [START, STOP]


@pytest.mark.spec("6.1")
async def test_a_hook_is_asked_at_its_points_only() -> None:
    registry = HookRegistry([raises(ValueError("asked"), points=frozenset({STOP}))])
    assert [registry.has(point) for point in HookPoint] == [point is STOP for point in HookPoint]
    outcome = await registry.fire(told(PRE), lambda decision: None)
    assert outcome.block is None
    assert not any(NO_HOOKS.has(point) for point in HookPoint)


@pytest.mark.spec("6.3")
def test_a_definition_that_brings_hooks_along_does_not_go_on_where_nobody_can_ask_them() -> None:
    plain = AgentDefinition(name="clerk", description="d")
    assert NO_OWN_HOOKS.of(plain) == ()
    guarded = replace(plain, hooks=(OwnHook(label="PreToolUse/1", point="PreToolUse", command="guard"),))
    with pytest.raises(ValueError, match="'clerk' brings hooks along"):
        NO_OWN_HOOKS.of(guarded)
