"""Trees of any shape, processes that die anywhere, agents that are gone afterwards, and somebody who cancels something:
whatever comes of it, nothing is left open, rows are what the log says, and everybody is told."""

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from app.agent.errors import SubagentdError
from tests.longer import times
from tests.plan import behind, call, execute, task
from tests.sessions.lives import Story, forget_agent, row_problems, still
from tests.sessions.test_continuing_tasks import told_at_last
from tests.world import World

AGENTS = {"guest": 3, "node": 5, "keeper": 2, "alone": 2}


def some_task(rng: Random, depth: int) -> Any:
    """What a model does that somebody might have thought of."""
    turns: list[dict[str, Any]] = []
    for _ in range(rng.randint(1, 3)):
        calls = []
        for _ in range(rng.randint(1, 3)):
            agent, kind = rng.choices(list(AGENTS), list(AGENTS.values()))[0], rng.random()
            if depth >= 3 or kind < 0.3:
                calls.append(call(rng.choice(["look", "touch"]), key=f"k{rng.randrange(10**6)}"))
            else:
                calls.append((execute if kind < 0.6 else behind)(some_task(rng, depth + 1), agent))
        turns.append({"text": f"t{rng.randrange(99)}", "calls": calls})
    if depth and rng.random() < 0.12:
        error = {"code": "model_overloaded", "message": "busy", "retryable": rng.random() < 0.5}
        return task(*turns, {"error": error})
    return task(*turns, f"end{depth}")


def some_story(rng: Random) -> Story:
    """A turn, or a delegation beside a turn."""
    plan, direct = some_task(rng, 0), rng.random() < 0.4

    async def begin(w: World) -> None:
        agents = [
            w.node(),
            w.node("guest"),
            w.node("keeper", session_mode="reuse_session"),
            w.node("alone", detached=True, handoff={"max_retries": 1}),
        ]
        if direct:
            session = await w.session(surfaces=["task"], agents=agents)
            await w.delegate(plan, agent="node", session_id=session, policy={"max_depth": 5})
            await w.turn(session, task({"calls": [call("touch", key="z")]}, "other"))
        else:
            await w.run(plan, surfaces=["task"], agents=agents, policy={"max_depth": 5})

    return Story(begin)


async def cancelled(w: World, rng: Random) -> None:
    """Somebody cancels a run, whatever has become of it."""
    await asyncio.sleep(0.01 * rng.randrange(6))
    rows = await w.rows("runs")
    if rows:
        try:
            await w.sessions.cancel(w.tenant, rng.choice(rows)["id"])
        except SubagentdError as error:
            assert error.code in ("not_taken_up", "stopping"), error


@pytest.mark.spec("9.6", "12.7")
@pytest.mark.parametrize("seed", range(times(8, 300)))
async def test_whatever_a_crash_leaves_comes_to_an_end_that_rows_and_log_and_notices_agree_on(
    tmp_path: Path, seed: int
) -> None:
    rng = Random(f"restarts {seed}")
    story = some_story(rng)
    await story.dies(tmp_path, rng.randint(3, 160), first=True)
    if rng.random() < 0.3:
        await story.dies(tmp_path, rng.randint(0, 6))
    async with story.begun(tmp_path, take_up=False) as w:
        if rng.random() < 0.8:
            forget_agent(w, "guest")
        await w.recovery.run()
        if rng.random() < 0.3:
            await cancelled(w, rng)
        await still(w)
        assert await row_problems(w) == []
        await told_at_last(w)
