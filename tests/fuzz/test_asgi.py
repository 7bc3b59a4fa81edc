"""Requests at random against the whole service: no answer is a fault of ours, and none leaves anything behind."""

from pathlib import Path

import pytest

from app.agent.errors import InvalidRequest
from app.api.errors import problem_of
from tests.fuzz.asking import Asked
from tests.fuzz.checks import answer_faults, faults
from tests.fuzz.playing import Answered
from tests.fuzz.world import fuzz
from tests.longer import times


@pytest.mark.slow
@pytest.mark.spec("14.1", "14.2", "14.3", "14.7", "14.8", "14.9", "14.10", "14.11", "17.1")
@pytest.mark.timeout(900)
async def test_requests_at_random_get_answers_or_problems_and_leave_nothing_behind(tmp_path: Path) -> None:
    report = await fuzz(tmp_path, requests=times(400, 10_000), seed=times(7, 8))
    assert report.violations == [], report.told()
    assert {200, 202, 404, 422} <= report.statuses.keys()
    assert report.left


@pytest.mark.parametrize(
    ("answered", "word"),
    [
        (Answered(status=500, complete=True), "status 500"),
        (Answered(status=503, complete=True, headers={"content-type": "application/problem+json"}), "status 503"),
        (Answered(status=404, complete=True, headers={"content-type": "text/plain"}, body=b"x"), "an error 404"),
        (Answered(status=200, complete=True, headers={"content-type": "application/json"}, body=b"[NaN]"), "no JSON"),
        (Answered(status=200, complete=True, headers={"x": "a\x00"}), "header x"),
        (Answered(status=200, complete=True, headers={"content-length": "3"}), "Content-Length"),
        (Answered(status=200), "no whole answer"),
        (Answered(raised=RuntimeError("x")), "it raised"),
        (Answered(status=200, complete=True), "another tenant"),
    ],
)
def test_what_must_not_be_is_found(answered: Answered, word: str) -> None:
    foreign = word == "another tenant"
    asked = Asked(method="GET", path="/", query=b"", headers=(), body=b"", leaves=None, foreign=foreign)
    found = faults(asked, answered, left=False)
    assert any(word in fault for fault in found), found


def test_a_problem_of_ours_is_none() -> None:
    answer = problem_of(InvalidRequest("no"))
    assert answer_faults(answer.status_code, dict(answer.headers), bytes(answer.body), head=False) == []
