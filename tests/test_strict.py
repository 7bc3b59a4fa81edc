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


@pytest.mark.parametrize("field", ["usage", "usage_total"])
def test_a_sum_that_is_wrong_by_one_token_is_found(field: str) -> None:
    at = next(at for at, event in enumerate(_LOG) if event["type"] == "run.completed" and event["depth"] == 1)
    data = _LOG[at]["data"]
    wrong = {**data, field: {**data[field], "input_tokens": data[field]["input_tokens"] + 1}}
    assert log_problems([*_LOG[:at], {**_LOG[at], "data": wrong}, *_LOG[at + 1 :]])


def test_the_check_of_histories_knows_an_empty_one_and_the_requests_above() -> None:
    assert history_problem([]) is None
