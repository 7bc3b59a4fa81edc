"""Who holds a place under `max_concurrent`: whoever works, and nobody who waits for children."""

from pathlib import Path

import pytest

from tests.agent.probes import Stage
from tests.agent.test_spending import most_at_work
from tests.plan import ask, call, task
from tests.world import world


@pytest.mark.spec("4.8", "5.5", "9.8")
async def test_a_child_that_is_to_answer_while_it_waits_for_its_own_needs_a_place_for_that(tmp_path: Path) -> None:
    stage = Stage()
    leaf = task({"calls": [call("hold", key="leaf")]}, "leaf")
    short = task({"calls": [ask(leaf)]}, "never", final="forced")
    sibling = task({"calls": [call("hold", key="sibling")]}, "sibling")
    async with world(tmp_path, tools=stage.tools) as w:
        agents = [w.node(), w.node("short", budget={"wall_ms": 1500})]
        run = await w.run(
            task({"calls": [ask(short, "short"), ask(sibling)]}, "end"), agents=agents, budget={"max_concurrent": 1}
        )
        await stage.reached("+sibling")
        stage.open("sibling")
        row = await w.finished(run)
        assert row["output"] == "end"
        assert await most_at_work(w, run.session_id) == 1


@pytest.mark.spec("4.8", "5.2", "9.8")
async def test_an_ordinary_tool_beside_a_delegation_runs_with_a_place(tmp_path: Path) -> None:
    """`solo` is a barrier, so it runs before or after the delegation of its turn, never beside it."""
    stage = Stage()
    first = task({"calls": [call("solo", key="a"), ask(task("leaf"))]}, "one")
    second = task({"calls": [call("solo", key="b"), ask(task("leaf"))]}, "two")
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(task({"calls": [ask(first), ask(second)]}, "end"), budget={"max_concurrent": 1})
        await stage.reached("+a")
        assert "+b" not in stage.diary
        stage.open("a", "b")
        row = await w.finished(run)
        assert row["output"] == "end"
        assert stage.diary == ["+a", "-a", "+b", "-b"]


@pytest.mark.spec("4.8", "2.5")
async def test_a_delegation_that_the_budget_refuses_pays_for_no_summary(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        heir = w.node("heir", inherit_context="summary")
        plan = task({"calls": [ask(task("first"), "heir")]}, {"calls": [ask(task("second"), "heir")]}, "end")
        row = await w.finished(await w.run(plan, agents=[w.node(), heir], budget={"delegations": 1}))
        assert (row["status"], row["output"]) == ("completed", "end")
        assert len(w.requests) == 3 + 1 + 1, "three steps, one summary, one child"
