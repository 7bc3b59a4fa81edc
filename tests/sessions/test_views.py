"""Rows as they are shown."""

from pathlib import Path

import pytest

from app.sessions.views import task_view, tree_view
from tests.plan import ask, behind, task
from tests.world import world


@pytest.mark.spec("9.2")
async def test_a_task_shows_the_same_end_before_and_after_its_own_is_stored(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        run = await w.run(task({"calls": [behind(task("found"))]}, "end"), surfaces=["task"])
        await w.until(run.session_id, "session.idle")
        (handoff,) = await w.rows("handoffs")
        runs = await w.rows("runs", handoff_id=handoff["id"])
    nothing = dict.fromkeys(("output", "error", "run_ids", "ended_at"))
    before = {**handoff, **nothing, "status": "running", "attempts": 0}
    assert task_view(before, runs) == task_view(handoff, runs)
    assert task_view(handoff, runs)["result"] == "found"
    later = {**handoff, "ended_at": handoff["ended_at"] + 5_000}
    assert task_view(later, runs) == task_view(handoff, runs)
    failed = {**later, "status": "failed", "error": {"code": "x", "message": "y"}}
    assert task_view(failed, runs)["ended_at"] != task_view(handoff, runs)["ended_at"]


@pytest.mark.spec("13.4", "12.3")
async def test_a_tree_whose_lower_part_was_removed_uses_what_its_runs_did(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        run = await w.run(task({"calls": [ask(task({"calls": [ask(task("deep"))]}, "found"))]}, "end"))
        await w.finished(run)
        rows = await w.rows("runs")
    rows.sort(key=lambda row: row["ordinal"])
    whole = tree_view(run.session_id, rows)
    for left in (rows, rows[:2], rows[:1]):
        assert tree_view(run.session_id, left)["usage_total"] == whole["usage_total"]
    below = tree_view(run.session_id, rows[1:2])
    assert below["usage_total"] == below["runs"][0]["usage_total"] == rows[1]["usage_total"]
