"""Ids say what they name, never repeat, and sort by their time of creation."""

import re
import time

import pytest

from app.agent.ids import new_id, now_us


def test_ids_of_one_process_are_unique_and_sort_in_the_order_of_creation() -> None:
    made = [new_id("run") for _ in range(20_000)]
    assert made == sorted(set(made))


def test_an_id_is_its_prefix_and_26_characters_of_crockfords_alphabet() -> None:
    assert all(re.fullmatch(r"ho_[0-7][0-9a-hjkmnp-tv-z]{25}", new_id("ho")) for _ in range(1000))


def test_the_time_stands_in_front() -> None:
    before = now_us() // 1000
    made = new_id("ses")
    alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
    stamp = sum(alphabet.index(c) * 32 ** (9 - at) for at, c in enumerate(made[4:14]))
    assert before <= stamp <= now_us() // 1000


@pytest.mark.case("B177")
def test_a_clock_that_is_set_back_does_not_bring_ids_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    first = new_id("msg")
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now - 3_600_000_000_000)
    later = [new_id("msg") for _ in range(100)]
    assert [first, *later] == sorted({first, *later})
