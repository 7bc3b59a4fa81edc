"""The check of logs that other tests rely on finds what it is there to find."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan import ask, call, task
from tests.strict import history_problem, log_problems
from tests.world import stored_events, world

PLAN = task({"calls": [ask(task({"calls": [call("glob", pattern="*")]}, "a")), call("nothing")]}, "end")
_LOG: list[dict[str, Any]] = []
# what a log without this event would still say truthfully: it just says less
SILENT = {"session.created", "run.started", "step.started", "run.waiting", "run.resumed", "step.completed"}


@pytest.fixture(autouse=True)
async def log(tmp_path: Path) -> None:
    """A true log, made once."""
    if not _LOG:
        async with world(tmp_path) as w:
            run = await w.run(PLAN)
            await w.finished(run)
            _LOG.extend(await stored_events(w.log, w.tenant, run.session_id))


def numbered(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events with new numbers, so that nothing but their order and content is wrong."""
    return [{**event, "id": at} for at, event in enumerate(events, 1)]


def test_a_true_log_has_no_problems() -> None:
    assert log_problems(_LOG) == []
    assert len(_LOG) > 30


@given(st.data())
def test_a_log_with_a_number_missing_twice_or_out_of_order_is_found(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(_LOG) - 2))
    assert log_problems(_LOG[:at] + _LOG[at + 1 :])
    assert log_problems(_LOG[: at + 1] + _LOG[at:])
    assert log_problems([*_LOG[:at], _LOG[at + 1], _LOG[at], *_LOG[at + 2 :]])


@given(st.data())
def test_an_event_that_is_missing_is_missed_even_if_the_numbers_hide_it(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(_LOG) - 1))
    event = _LOG[at]
    if event["type"] in SILENT or (event["type"] == "message" and not event["data"].get("tool_calls")):
        return
    if event["type"] == "tool.call" or event["type"] == "tool.start":
        return  # the result stays, and a call that did not pass has no more than that
    assert log_problems(numbered(_LOG[:at] + _LOG[at + 1 :])), event["type"]


@given(st.data())
def test_an_event_after_the_end_of_its_run_is_found(data: st.DataObject) -> None:
    moved = data.draw(st.integers(0, len(_LOG) - 1).filter(lambda at: "run_id" in _LOG[at]))
    rest = _LOG[:moved] + _LOG[moved + 1 :]
    assert log_problems(numbered([*rest, _LOG[moved]])), _LOG[moved]["type"]


def told_otherwise(at: int, **changes: Any) -> list[dict[str, Any]]:
    """The log with other data in one of its events."""
    return [*_LOG[:at], {**_LOG[at], "data": {**_LOG[at]["data"], **changes}}, *_LOG[at + 1 :]]


def place(kind: str, depth: int = 0) -> int:
    """Where the first event of a type stands that a run of this depth recorded."""
    return next(at for at, event in enumerate(_LOG) if event["type"] == kind and event.get("depth") == depth)


@pytest.mark.parametrize("field", ["usage", "usage_total"])
@pytest.mark.parametrize("counted", ["input_tokens", "model_calls", "unpriced_calls", "cost"])
def test_a_sum_that_is_wrong_by_one_is_found(field: str, counted: str) -> None:
    at = place("run.completed", 1)
    usage = _LOG[at]["data"][field]
    more = {**usage["cost"], "EUR": 1} if counted == "cost" else usage[counted] + 1
    assert log_problems(told_otherwise(at, **{field: {**usage, counted: more}}))


@pytest.mark.parametrize("estimate", ["estimated_tokens", "estimated_micros"])
@pytest.mark.parametrize("field", ["usage", "usage_total"])
def test_an_estimate_that_one_run_says_and_the_one_above_it_does_not_is_found(field: str, estimate: str) -> None:
    at = place("run.completed", 1)
    usage = _LOG[at]["data"][field]
    assert estimate not in usage
    assert estimate in "\n".join(log_problems(told_otherwise(at, **{field: {**usage, estimate: 1}})))


@pytest.mark.parametrize("counted", ["output_tokens", "cost"])
def test_a_step_that_used_more_than_its_run_is_found(counted: str) -> None:
    at = place("step.completed", 1)
    usage = _LOG[at]["data"]["usage"]
    more = {"EUR": 1} if counted == "cost" else 1_000_000
    (problem,) = log_problems(told_otherwise(at, usage={**usage, counted: more}))
    assert "its steps used more" in problem


def test_a_run_with_fewer_model_calls_than_completed_steps_is_found() -> None:
    events = [dict(event) for event in _LOG]
    for event in events:  # all agree on a number that is too low
        for field in ("usage", "usage_total"):
            if field in event["data"]:
                event["data"] = {**event["data"], field: {**event["data"][field], "model_calls": 0}}
    assert "0 model calls in 2 completed steps" in "\n".join(log_problems(events))


@pytest.mark.parametrize(
    ("runs", "attempts", "fallback", "status", "true"),
    [
        (2, 2, None, "completed", True),
        (2, 1, None, "completed", False),
        (1, 2, None, "failed", False),
        (2, 1, "agent", "fallback", True),
        (1, 0, "model", "fallback", True),
        (1, 1, "agent", "fallback", False),
        (1, 1, "agent", "failed", True),
        (3, 1, "model", "failed", False),
        (2, 1, "answer", "fallback", False),
        (1, 1, "primary", "fallback", True),
    ],
)
def test_only_a_fallback_that_is_a_run_is_a_run_without_an_attempt(
    runs: int, attempts: int, fallback: str | None, status: str, true: bool
) -> None:
    told: dict[str, Any] = {"run_ids": [f"run_{n}" for n in range(runs)], "attempts": attempts, "status": status}
    if fallback is not None:
        told["fallback"] = {"kind": fallback, "target": "other"}
    assert (log_problems(told_otherwise(place("handoff.end"), **told)) == []) is true


def test_a_handoff_that_ends_with_another_session_mode_is_found() -> None:
    (problem,) = log_problems(told_otherwise(place("handoff.end"), session_mode="reuse_session"))
    assert "ends as another than it began" in problem


@pytest.mark.spec("12.2")
@pytest.mark.parametrize(("speakers", "true"), [("aab", True), ("aba", False), ("abab", False), ("abbc", True)])
def test_runs_that_speak_in_one_memory_at_the_same_time_are_found(speakers: str, true: bool) -> None:
    events: list[dict[str, Any]] = []
    for at, speaker in enumerate(speakers, 1):  # in one turn, so that the places are in order
        said = {"memory_id": "mem_1", "memory_seq": at, "turn": 0, "sub": at}
        events.append({"id": at, "type": "message", "run_id": f"run_{speaker}", "step": 0, "data": said})
    found = [problem for problem in log_problems(events) if problem.startswith("mem_1")]
    assert (found == []) is true, found


def test_the_check_of_histories_knows_an_empty_one_and_the_requests_above() -> None:
    assert history_problem([]) is None
