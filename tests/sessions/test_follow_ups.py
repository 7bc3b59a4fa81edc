"""What is asked of runs and tasks right after a start, while they are only being taken up."""

import asyncio
from pathlib import Path

import pytest

from app.sessions.follow_ups import FollowUps
from app.sessions.tasks import Retention, Tasks
from tests.agent.probes import Stage
from tests.plan import behind, call, task
from tests.sessions.lives import WAIT_S, Story
from tests.world import World


@pytest.mark.spec("12.7", "9.2", "9.7")
async def test_runs_and_tasks_that_are_being_taken_up_are_told_and_waited_for(tmp_path: Path) -> None:
    stage = Stage()

    async def begin(w: World) -> None:
        deep = behind(task({"calls": [call("hold", key="t")]}, "task done"))
        await w.run(task({"calls": [deep]}, {"calls": [call("hold", key="r")]}, "end"), surfaces=["task"])
        await stage.reached("+t", "+r")
        await w.journal.flush()
        story.die()

    story = Story(begin, stage.tools)
    folder = tmp_path / "dies"
    folder.mkdir()
    await story.dies(folder, 10**6, first=True)
    async with story.begun(folder) as w:
        (handoff,) = await w.rows("handoffs")
        (run,) = await w.rows("runs", depth=0)
        tasks = Tasks(
            sessions=w.sessions, supervisor=w.supervisor, journal=w.journal, store=w.task_store, retention=Retention()
        )
        ups = FollowUps(sessions=w.sessions, delegations=w.delegations, supervisor=w.supervisor, journal=w.journal)
        work = (
            ups.tell(w.tenant, run["id"], "One more thing."),
            w.sessions.run(w.tenant, run["id"], WAIT_S),
            tasks.output(w.tenant, handoff["id"]),
        )
        asked = asyncio.gather(*work)
        assert not w.supervisor.flying(run["id"])
        stage.open("t", "r")
        async with asyncio.timeout(WAIT_S):
            told, ended, output = await asked
        assert told["run_id"] == run["id"]
        assert (ended["status"], output["status"], output["result"]) == ("completed", "completed", "task done")
        assert "One more thing." in ended["output"]
