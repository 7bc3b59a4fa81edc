"""Limits over the deaths of processes: steps, circles, schemas, budgets, and contexts that were made shorter."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.agent.duplicates import DuplicateLimits
from app.agent.tools import ToolContext
from app.llm.profile import Profile
from tests.agent.probes import Probe
from tests.agent.test_compaction import LARGE, SCRIPT, TASK, worker
from tests.longer import times
from tests.plan import ask, behind, call, task
from tests.sessions.lives import Story, row_problems, still
from tests.sessions.test_continuing import all_events, lives_of, outcome
from tests.world import World

pytestmark = [pytest.mark.slow, pytest.mark.spec("12.7")]
SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}


def touches(count: int, prefix: str = "s") -> list[dict[str, Any]]:
    """So many steps."""
    return [{"calls": [call("touch", key=f"{prefix}{number}")]} for number in range(count)]


def limited(plan: str, **limits: Any) -> Story:
    """One turn under these limits."""

    async def begin(w: World) -> None:
        await w.run(plan, limits=limits)

    return Story(begin, duplicates=DuplicateLimits(repeats=3))


CASES: Mapping[str, Story] = {
    "steps": limited(task(*touches(9), final="forced"), max_steps=3),
    "circles": limited(task(*[{"calls": [call("look", key="same")]}] * 9, final="forced"), max_steps=9),
    "schema": limited(task(*touches(1), "no json", final="none"), output_schema=SCHEMA),
    "forced schema": limited(task(*touches(2), final="no json"), max_steps=1, output_schema=SCHEMA),
}


@pytest.mark.slow
@pytest.mark.spec("5.1", "5.3", "5.5", "5.6")
@pytest.mark.parametrize("name", CASES)
async def test_a_limit_ends_a_run_as_it_would_have_without_a_crash(tmp_path: Path, name: str) -> None:
    story = CASES[name]
    whole = await story.whole(tmp_path)
    async with story.ends(tmp_path / "whole") as w:
        expected = await outcome(w)
        calls = [(e["type"], e["data"].get("reason")) for e in await all_events(w) if e["type"] == "answer.forced"]
    for gap in (0, 2):
        for life in lives_of(whole)[:: times(4, 1)]:
            folder = tmp_path / f"{gap}-{life}"
            await story.after(folder, life, *([gap] * 3 if gap else []))
            async with story.ends(folder) as w:
                assert await row_problems(w) == [], life
                assert await outcome(w) == expected, life
                events = await all_events(w)
                forced = [(e["type"], e["data"].get("reason")) for e in events if e["type"] == "answer.forced"]
                assert forced == calls, life


@pytest.mark.slow
@pytest.mark.spec("4.8", "13.4")
@pytest.mark.parametrize("where", ["session", "run", "delegation"])
async def test_a_budget_holds_over_all_processes(tmp_path: Path, where: str) -> None:
    child = task(*[{"calls": [call("look", key=f"{number}")]} for number in range(3)], "child")
    plan = task({"calls": [ask(child), ask(child)]}, {"calls": [ask(child)]}, "The end.", final="forced")
    limit = {"model_calls": 9}

    async def begin(w: World) -> None:
        if where == "delegation":
            await w.delegate(plan, policy={"max_depth": 3}, budget=limit)
        else:
            more = {"budget": limit} if where == "session" else {"limits": {"budget": limit}}
            await w.run(plan, **more)

    story = Story(begin)
    whole = await story.whole(tmp_path)
    for gap in (0, 5):
        for life in lives_of(whole)[:: times(5, 1)]:
            folder = tmp_path / f"{gap}-{life}"
            await story.after(folder, life, *([gap] * 3 if gap else []))
            async with story.ends(folder) as w:
                assert await row_problems(w) == [], life
                events = await all_events(w)
                replies = [e for e in events if e["type"] == "message" and e["data"]["role"] == "assistant"]
                spent = sum(row["usage"]["model_calls"] for row in await w.rows("runs"))
                assert len(replies) <= spent <= 9, life
                assert all(row["ended_at"] for row in await w.rows("runs"))


@pytest.mark.spec("5.4")
async def test_a_context_that_was_made_shorter_is_the_same_for_the_next_process(tmp_path: Path) -> None:
    async def begin(w: World) -> None:
        (w.folder / "scripts" / "long.py").write_text(SCRIPT)
        await w.run(TASK, limits={"max_steps": 200})

    profile = Profile(name="small", provider="scripted", model="long.py", context_window=3000)
    story = Story(begin, (worker(),), profiles={"small": profile}, model="small", output_limit=LARGE)
    whole = await story.whole(tmp_path)
    async with story.ends(tmp_path / "whole") as w:
        expected = await outcome(w)
        first = [e["type"] for e in await all_events(w)].index("compaction")
        memory = (await w.rows("memories"))[0]
        kept = await w.memories.load(w.tenant, memory["id"])
        texts = [(message.role, message.content) for message in kept.messages]
    for life in lives_of(whole, first + 2):
        folder = tmp_path / str(life)
        await story.after(folder, life)
        async with story.ends(folder) as w:
            assert await row_problems(w) == [], life
            got = {row[:5] for row in await outcome(w)}
            assert got == {row[:5] for row in expected}, life
            memory = (await w.rows("memories"))[0]
            again = await w.memories.load(w.tenant, memory["id"])
            assert [(message.role, message.content) for message in again.messages][:2] == texts[:2], life


@pytest.mark.spec("5.4", "2.1")
async def test_the_model_is_asked_the_same_as_without_a_crash(tmp_path: Path) -> None:
    """The requests of the steps after a crash are those of a run that nothing happened to."""
    plan = task(
        *[{"text": f"t{n}", "calls": [call("look", key=f"{n}"), call("look", key="x")]} for n in range(4)], "end"
    )

    async def begin(w: World) -> None:
        await w.run(plan)

    story = Story(begin)
    own = tmp_path / "first"
    own.mkdir()
    async with story.begun(own) as w:
        await begin(w)
        await still(w)
        wanted = [[(m.role, m.content) for m in request.messages] for request in w.requests]
        whole = len(await w.rows("events"))
    for life in lives_of(whole):
        folder = tmp_path / str(life)
        await story.after(folder, life)
        async with story.ends(folder) as w:
            for request in w.requests:
                assert [(m.role, m.content) for m in request.messages] in wanted, life
            assert await row_problems(w) == []


@pytest.mark.spec("4.8", "9.3")
@pytest.mark.parametrize("where", ["run", "definition", "tool calls"])
async def test_tasks_whose_run_has_ended_share_what_it_has_left_of_its_budget(tmp_path: Path, where: str) -> None:
    gate = asyncio.Event()
    limit = {"tool_calls": 6} if where == "tool calls" else {"model_calls": 8}

    async def hold(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        await gate.wait()
        return "held"

    async def begin(w: World) -> None:
        lead = w.node("boss", **({"budget": limit} if where == "definition" else {}))
        session = await w.session(surfaces=["task"], agent="boss", agents=[lead, w.node()])
        tasks = [
            behind(task({"calls": [call("hold", k=n)]}, *touches(5, f"t{n}-"), "done", final="forced")) for n in (1, 2)
        ]
        plan = task(*touches(2, "before"), {"calls": tasks}, "first", final="forced")
        run = await w.turn(session, plan, **({} if where == "definition" else {"budget": limit}))
        await w.finished(run)
        await w.until(session, "tool.start", 2, where=lambda data: data["data"]["tool"] == "hold")
        story.die()

    story = Story(begin, (Probe("hold", hold, read_only=True),))
    await story.dies(tmp_path, 1_000_000, first=True)
    gate.set()
    async with story.ends(tmp_path) as w:
        assert await row_problems(w) == []
        (session,) = await w.rows("sessions")
        calls = await w.events(session["id"], "tool.start")
        if where == "tool calls":
            assert len([e for e in calls if not e["data"].get("delegation")]) <= 6 + 2, "held ones are begun again"
        else:
            assert sum(row["usage"]["model_calls"] for row in await w.rows("runs")) == 8
