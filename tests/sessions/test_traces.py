"""What the log says of a run that has not ended: its clock stands still while a person is asked, or nobody works."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.agent.events import FINAL_TYPES
from app.agent.messages import Usage
from app.sessions.traces import Clock, Trace

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def used(*events: tuple[float, str, str | None, str]) -> int:
    """How many ms a clock shows after events: the second, the type, the reason, and the run below whose event it is."""
    clock = Clock()
    for second, kind, reason, run in events:
        data: dict[str, Any] = {} if reason is None else {"reason": reason}
        clock.add(kind, BEGAN + timedelta(seconds=second), data, run)
    return clock.used_ms


START = (0, "run.started", None, "")


@pytest.mark.spec("12.7", "4.4", "5.7")
@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], 0),
        ([(0, "run.queued", None, "")], 0),
        ([START, (7, "step.started", None, "")], 7_000),
        # what is done below it is its time as well
        ([START, (1, "run.waiting", "child", ""), (9, "message", None, "below")], 9_000),
        # a person is asked, by itself or below it
        ([START, (2, "run.waiting", "approval", ""), (60, "run.resumed", "approval", "")], 2_000),
        ([START, (2, "run.waiting", "approval", ""), (60, "message", None, "other")], 2_000),
        ([START, (3, "run.waiting", "approval", "x"), (60, "run.resumed", "approval", "x"), (61, "message", None, "")],
         4_000),
        ([START, (3, "run.waiting", "approval", "x"), (4, "run.waiting", "approval", "y"),
          (50, "run.resumed", "approval", "x"), (60, "run.cancelled", None, "y"), (62, "message", None, "")], 5_000),
        # there was no process
        ([START, (5, "message", None, ""), (9_000, "run.resumed", "restart", ""), (9_002, "message", None, "")], 7_000),
        ([START, (5, "message", None, "below"), (9_000, "run.resumed", "restart", "")], 5_000),
        ([START, (5, "run.waiting", "drain", ""), (9_000, "run.resumed", "restart", ""), (9_001, "message", None, ""),
          (20_000, "run.resumed", "restart", ""), (20_001, "message", None, "")], 7_000),
        # while a person was asked, who is asked again
        ([START, (2, "run.waiting", "approval", ""), (9_000, "run.resumed", "restart", ""),
          (9_000, "run.waiting", "approval", ""), (9_100, "run.resumed", "approval", ""), (9_101, "message", None, "")],
         3_000),
    ],
)  # fmt: skip
def test_a_clock_counts_the_time_in_which_a_process_worked_for_the_run(
    events: list[tuple[float, str, str | None, str]], expected: int
) -> None:
    assert used(*events) == expected
    assert "run.cancelled" in FINAL_TYPES


@pytest.mark.spec("4.8", "12.7")
def test_each_time_that_a_model_was_or_may_have_been_asked_is_counted() -> None:
    trace, counted = Trace(), []
    two = Usage(model_calls=2, input_tokens=5, unpriced_calls=1).as_dict()
    for kind, step, data in [
        ("step.started", 1, {}),
        ("step.retried", 1, {"code": "model_unavailable"}),
        ("run.waiting", 0, {"reason": "retry"}),
        ("run.resumed", 0, {"reason": "retry"}),
        ("message", 1, {"role": "assistant", "content": "x", "sub": 0, "memory_seq": 2, "usage": two}),
        ("step.completed", 1, {"usage": two}),
        ("step.started", 2, {}),
        ("step.retried", 2, {"code": "model_unavailable"}),
        ("run.waiting", 0, {"reason": "retry"}),
        ("run.resumed", 0, {"reason": "retry"}),
        ("run.waiting", 0, {"reason": "retry"}),  # before the gate
        ("run.resumed", 0, {"reason": "retry"}),
        ("step.retried", 2, {"code": "model_unavailable"}),
        ("run.waiting", 0, {"reason": "retry"}),
        ("run.waiting", 0, {"reason": "drain"}),
        ("run.resumed", 0, {"reason": "restart"}),
        ("step.retried", 2, {"code": "restart"}),
        ("step.started", 3, {}),
    ]:
        trace.add(kind, step, data, BEGAN)
        counted.append(trace.usage.model_calls)
    assert counted == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 5]
    assert trace.usage.input_tokens == 5
