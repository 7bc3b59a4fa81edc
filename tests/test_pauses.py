"""When a client tries again: not all at once, not too soon, and not after it has given up."""

import pytest

from app.pauses import Pauses


@pytest.mark.spec("11.3")
def test_pauses_grow_scatter_and_are_at_least_what_was_asked_for() -> None:
    def pauses(asked_ms: int | None) -> list[float]:
        made = Pauses(None, 60)
        made.asked_ms = asked_ms
        found = []
        for _ in range(30):
            made.cut("x")
            found.append(made.pause_s)
        return found

    for asked_ms, base in ((None, 1.0), (200, 0.2), (4000, 4.0)):
        first = [pauses(asked_ms)[0] for _ in range(50)]
        assert all(base / 2 <= pause <= base * 1.5 for pause in first)
        assert max(first) > min(first) * 1.2
        assert all(7.5 <= pause <= 22.5 for pause in pauses(asked_ms)[-10:])


@pytest.mark.spec("11.3")
def test_a_server_is_given_the_time_that_it_asks_for_but_never_more_than_the_patience() -> None:
    waiting = Pauses(0.0, 60)
    found = []
    for asked_s in (12.0, 6000.0, float("inf")):
        waiting.cut("x", asked_s)
        found.append(waiting.pause_s)
    assert found[0] == 12.0
    assert all(59 < pause <= 60 for pause in found[1:])
    slow = Pauses(None, 60)
    slow.asked_ms = 10**9
    slow.cut("x")
    assert 59 < slow.pause_s <= 60
