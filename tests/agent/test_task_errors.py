"""What the task surface says when a call cannot be read or a wait is broken off: always `Error: …`."""

from pathlib import Path

import pytest

from app.agent.messages import Role
from tests.agent.probes import Stage
from tests.plan import call, raw_call, task
from tests.world import agent, world


@pytest.mark.spec("3.2", "7.1")
@pytest.mark.seed("002", 92)
async def test_arguments_that_cannot_be_used_are_an_error_like_every_other(tmp_path: Path) -> None:
    plan = task(
        {
            "calls": [
                call("execute_task", name="node", description="no prompt"),
                raw_call("execute_task", '{"name": "node"'),
                call("get_task_output", task_id=5),
                call("cancel_task"),
            ]
        },
        "end",
    )
    async with world(tmp_path) as w:
        row = await w.finished(await w.run(plan, surfaces=["task"]))
        assert row["output"] == "end"
        told = [m.content for m in w.requests[-1].messages if m.role is Role.TOOL]
        assert len(told) == 4
        assert [text for text in told if not text.startswith("Error: ")] == []
        assert "prompt" in told[0]


@pytest.mark.spec("3.2", "5.7")
@pytest.mark.seed("002", 85)
async def test_a_wait_that_a_deadline_breaks_off_is_an_error_and_the_task_goes_on(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        session = await w.session(surfaces=["task"], agents=[w.node(), agent("slow", tools=["hold"])])
        child = task({"calls": [call("hold", key="a")]}, "found it")
        given = await w.delegate(child, agent="slow", session_id=session)
        waits = task({"calls": [call("get_task_output", task_id=given.handoff_id, timeout=600_000)]}, final="so far")
        row = await w.finished(await w.turn(session, waits, deadline_ms=400))
        assert (row["output"], row["stop_reason"]) == ("so far", "deadline")
        told = [m.content for m in w.requests[-1].messages if m.role is Role.TOOL]
        assert told == ["Error: the wait was interrupted; the task goes on by itself."]
        stage.open("a")
        assert (await w.delegations.result(w.tenant, given))["output"] == "found it"
