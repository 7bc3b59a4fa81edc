"""Trees as deep as a service allows: what "unlimited" means, and that every way to end one ends all of it."""

import sys
from pathlib import Path
from typing import Any

import pytest

from app.agent import policy
from app.agent.errors import NotFound
from app.agent.policy import DEEPEST, HandoffPolicy
from app.agent.runs import Run, RunStatus
from tests.agent.probes import Stage
from tests.world import World, world

# A run with the means to delegate asks for the same once more; the one at the limit waits.
DOWN = """agents:
  - when: {tools_include: [dispatch_subagent]}
    turns:
      - calls: [{tool: dispatch_subagent, arguments: {agent_type: node, task: deeper}}]
      - {text: above}
  - turns:
      - calls: [{tool: hold, arguments: {key: bottom}}]
      - {text: bottom}
"""
NO_LIMIT: dict[str, Any] = {"max_depth": None}


@pytest.mark.spec("4.5")
@pytest.mark.parametrize("limit", [None, DEEPEST, DEEPEST + 1, 10**9])
def test_no_policy_lets_a_tree_grow_deeper_than_the_service_allows(limit: int | None) -> None:
    unlimited = HandoffPolicy(max_depth=limit)
    assert unlimited.denial("dispatch_subagent", DEEPEST, "node") is None
    told = f"handoff depth {DEEPEST + 1} exceeds max_depth {DEEPEST}"
    assert unlimited.denial("dispatch_subagent", DEEPEST + 1, "node") == told


@pytest.mark.spec("4.5")
async def test_an_agent_that_delegates_to_itself_without_a_limit_comes_to_its_end(tmp_path: Path) -> None:
    stage = Stage()
    stage.open("bottom")
    async with world(tmp_path, tools=stage.tools, script=DOWN) as w:
        row = await w.finished(await w.run("down", policy=NO_LIMIT))
        assert (row["status"], row["output"]) == ("completed", "above")
        rows = await w.rows("runs", session_id=row["session_id"])
        assert sorted((r["depth"], r["status"]) for r in rows) == [(d, "completed") for d in range(DEEPEST + 1)]
        assert row["usage_total"]["model_calls"] == 2 * (DEEPEST + 1)


async def ended_by(w: World, run: Run, way: str) -> None:
    """End a tree."""
    if way == "cancel":
        await w.sessions.cancel(w.tenant, run.id)
    elif way == "delete":
        await w.sessions.delete(w.tenant, run.session_id)
    elif way == "timeout":
        await w.supervisor.cancel(run.id, status=RunStatus.TIMED_OUT)
    else:
        await w.sessions.close(0)


@pytest.mark.spec("4.5", "5.7")
@pytest.mark.parametrize(
    ("way", "of_root", "below"),
    [
        ("cancel", "cancelled", "cancelled"),
        ("timeout", "timed_out", "cancelled"),
        ("shutdown", "interrupted", "interrupted"),
        ("delete", None, None),
    ],
)
async def test_every_way_to_end_the_deepest_tree_ends_all_of_it(
    tmp_path: Path, way: str, of_root: str | None, below: str | None
) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools, script=DOWN) as w:
        run = await w.run("down", policy=NO_LIMIT)
        await stage.reached("+bottom")
        assert w.supervisor.in_flight == DEEPEST + 1
        await ended_by(w, run, way)
        assert (w.supervisor.in_flight, stage.diary) == (0, ["+bottom", "!bottom"])
        if way == "delete":
            with pytest.raises(NotFound):
                await w.sessions.session(w.tenant, run.session_id)
            return
        rows = sorted(await w.rows("runs", session_id=run.session_id), key=lambda r: int(r["depth"]))
        assert [r["status"] for r in rows] == [of_root, *[below] * DEEPEST]
        ends = await w.events(run.session_id, "run.cancelled", "run.timed_out", "run.interrupted")
        assert [e["depth"] for e in ends] == list(range(DEEPEST, -1, -1)), "children first"


@pytest.mark.spec("5.7")
async def test_ending_a_tree_does_not_depend_on_how_deep_python_may_recurse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, allowed = Stage(), 400
    levels = allowed + 100
    monkeypatch.setattr(policy, "DEEPEST", levels)
    async with world(tmp_path, tools=stage.tools, script=DOWN) as w:
        run = await w.run("down", policy=NO_LIMIT)
        await stage.reached("+bottom", within_s=90)
        usual = sys.getrecursionlimit()
        sys.setrecursionlimit(allowed)  # instead of more levels than the usual thousand, which take a while
        try:
            answer = await w.sessions.cancel(w.tenant, run.id)
        finally:
            sys.setrecursionlimit(usual)
        assert len(answer["cancelled"]) == levels + 1
        assert w.supervisor.in_flight == 0
