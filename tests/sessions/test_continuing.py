"""A process that dies at any moment: the next one goes on where it stopped, and what comes of it is the same."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.agent.errors import Conflict
from app.agent.tools import ToolContext
from app.sessions.closing import UNKNOWN_RESULT
from app.sessions.delegations import Delegated
from app.sessions.requests import DelegationInput, OnBusy
from tests.agent.probes import Probe
from tests.longer import times
from tests.plan import ask, call, task
from tests.sessions.lives import Story, row_problems, still
from tests.world import World

pytestmark = [pytest.mark.slow, pytest.mark.spec("12.7")]
ENOUGH = 4  # lives that a test tries of one story; the longer form tries all of them
USE = {
    "text": "I work.",
    "calls": [call("look", key="l"), call("touch", key="a"), call("touch", key="b"), call("nothing")],
}
DEEP = task({"calls": [call("touch", key="c"), call("look", key="m")]}, "deep")
TREE = task(
    {
        "text": "Two parts.",
        "calls": [ask(task(USE, "part one")), ask(task({"calls": [ask(DEEP)]}, "two")), call("touch", key="z")],
    },
    {"calls": [call("look", key="n"), call("touch", key="d")]},
    "The end.",
)


async def a_turn(w: World) -> None:
    """A tree of three levels."""
    await w.run(TREE)


async def a_delegation(w: World) -> None:
    """The same, for a caller that has no parent run."""
    await w.delegate(TREE, policy={"max_depth": 3})


async def a_queue(w: World) -> None:
    """Turns that wait for each other."""
    session = await w.session()
    for number in range(4):
        plan = task({"calls": [call("touch", key=f"turn {number}")]}, f"answer {number}")
        await w.turn(session, plan, on_busy=OnBusy.ENQUEUE)


async def a_shared_memory(w: World) -> None:
    """An agent that remembers, asked by several at once, one of them a level below."""
    session = await w.session(agents=[w.node(), w.node("keeper", session_mode="reuse_session")])

    def keeper(number: int) -> dict[str, Any]:
        return ask(task({"calls": [call("touch", key=f"kept {number}")]}, f"kept {number}"), agent="keeper")

    calls = [keeper(1), ask(task({"calls": [keeper(2)]}, "via")), keeper(3)]
    await w.turn(session, task({"calls": calls}, {"calls": [keeper(4)]}, "The end."))


async def a_resumed_task(w: World) -> None:
    """A task that goes on with what an earlier one had read, by its name."""

    def execute(name: str, *turns: Any, **more: Any) -> dict[str, Any]:
        return call("execute_task", name="node", description="d", prompt=task(*turns), subagent_name=name, **more)

    session = await w.session(surfaces=["task"])
    first = execute("keeper", {"text": "I remember 77", "calls": [call("look", key="r")]}, "first")
    await w.finished(await w.turn(session, task({"calls": [first]}, "one")))
    await still(w)
    again = execute("again", {"calls": [call("touch", key="s")]}, "second", resume="keeper")
    await w.turn(session, task({"calls": [again]}, "The end."))


async def a_question_of_its_own_shape(w: World) -> None:
    """The surface whose result lists what was used."""
    plan = task(USE, {"calls": [call("look", key="y")]}, "x")
    await w.run(task({"calls": [call("subagent", research_prompt=plan)]}, "The end."), surfaces=["subagent"])


async def a_failure_that_ends_the_parent(w: World) -> None:
    """A child that fails under the policy `fail`."""
    bad = task({"error": {"code": "quota", "message": "no quota left"}})
    await w.run(task({"calls": [ask(bad)]}, "never"), policy={"max_depth": 3, "on_error": "fail"})


async def a_second_attempt(w: World) -> None:
    """A child that fails with something that may pass, and is tried once more."""
    busy = {"error": {"code": "model_overloaded", "message": "busy", "retryable": True}}
    await w.run(task({"calls": [ask(task(busy))]}, "The end."), policy={"max_depth": 3, "max_retries": 1})


async def a_fixed_answer(w: World) -> None:
    """A child that fails, and the answer that stands in for it."""
    bad = task({"error": {"code": "quota", "message": "no quota left"}})
    await w.run(task({"calls": [ask(bad)]}, "The end."), policy={"max_depth": 3, "on_error": {"answer": "sorry"}})


STORIES = (
    a_turn, a_delegation, a_queue, a_shared_memory, a_resumed_task, a_question_of_its_own_shape,
    a_failure_that_ends_the_parent, a_second_attempt, a_fixed_answer,
)  # fmt: skip
named = pytest.mark.parametrize("begin", STORIES, ids=lambda begin: begin.__name__)


def lives_of(whole: int, first: int = 2) -> range:
    """After how many events processes die: all numbers, or so many that are spread over the story."""
    return range(first, whole + 1, times(max(1, whole // ENOUGH + 1), 1))


async def outcome(w: World) -> Counter[tuple[Any, ...]]:
    """How everything ended, whatever its order and its ids."""
    return Counter(
        (row["depth"], row["agent"], row["status"], row["stop_reason"], row["output"], row["steps"], row["turn"],
         str([(used["name"], used["calls"]) for used in row["activity"]]), str(row["error"]))
        for row in await w.rows("runs")
    )  # fmt: skip


def told(events: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The tool and status of every result."""
    return [(e["data"]["tool"], e["data"]["status"]) for e in events if e["type"] == "tool.result"]


async def all_events(w: World) -> list[dict[str, Any]]:
    """The log of the only session."""
    (session,) = await w.rows("sessions")
    return await w.events(session["id"])


async def is_whole(w: World, story: Story, expected: Counter[tuple[Any, ...]], deaths: int) -> None:
    """What must be true of the end, however often the process died: everything ended as it would have, each effect
    happened at most once, and exactly those calls are told as unknown of which nobody knows."""
    assert await row_problems(w) == []
    # a crash may lose what no client was told of: turns that were never recorded
    lost = expected - await outcome(w)
    assert await outcome(w) - expected == Counter(), (await outcome(w) - expected, lost)
    assert all(count == 1 for count in story.done.values()), story.done
    events = await all_events(w)
    statuses = Counter(status for tool, status in told(events) if tool == "touch")
    assert set(statuses) <= {"ok", "unknown"}
    known = Counter(e["data"]["content"] for e in events if e["type"] == "tool.result" and e["data"]["tool"] == "touch")
    unknown = known.pop(UNKNOWN_RESULT, 0)
    assert unknown == statuses["unknown"] <= deaths * 3, "at most what ran side by side at each death"
    assert len(known) == statuses["ok"] <= len(story.done), "what is told as done was done"


@pytest.mark.slow
@named
@pytest.mark.spec("9.6", "4.6", "11.6", "13.4")
@pytest.mark.case("B042", "B103")
async def test_after_a_crash_at_any_event_everything_goes_on_to_the_end_that_it_would_have_had(
    tmp_path: Path, begin: Any
) -> None:
    story = Story(begin)
    whole = await story.whole(tmp_path)
    async with story.ends(tmp_path / "whole") as w:
        expected = await outcome(w)
    for life in lives_of(whole):
        folder = tmp_path / str(life)
        await story.after(folder, life)
        async with story.ends(folder) as w:  # checks the log at its end
            await is_whole(w, story, expected, 1)


@pytest.mark.slow
@named
@pytest.mark.spec("9.6")
async def test_processes_that_die_again_and_again_come_to_the_same_end(tmp_path: Path, begin: Any) -> None:
    story = Story(begin)
    whole = await story.whole(tmp_path)
    async with story.ends(tmp_path / "whole") as w:
        expected = await outcome(w)
    for gap in (1, 3, 10):
        for life in lives_of(whole, 2 + gap)[:: times(12, 1)]:
            folder = tmp_path / f"{gap}-{life}"
            await story.after(folder, life, gap, gap, gap)
            async with story.ends(folder) as w:
                await is_whole(w, story, expected, 4)


async def test_a_run_that_ends_every_process_is_interrupted_after_so_many_of_them(tmp_path: Path) -> None:
    story = Story(a_turn, max_attempts=3)
    folder = tmp_path / "service"
    await story.after(folder, 20, 3, 3, 3, 3, 3, 3)
    async with story.ends(folder) as w:
        assert await row_problems(w) == []
        (root,) = await w.rows("runs", depth=0)
        assert (root["status"], root["stop_reason"], root["attempt"]) == ("interrupted", "shutdown", 3)
        assert "3 processes that had begun it went away (recovery.max_attempts)" in root["error"]["message"]
        row = await w.finished(await w.turn(root["session_id"], "go on"))
        assert (row["status"], row["output"]) == ("completed", "echo: go on")


async def test_only_what_reads_is_done_again_and_what_never_began_is_done(tmp_path: Path) -> None:
    plan = task({"calls": [call("touch", key="a"), call("look", key="l"), call("touch", key="b")]}, "The end.")

    async def begin(w: World) -> None:
        await w.run(plan)

    story = Story(begin)
    whole = await story.whole(tmp_path)
    async with story.ends(tmp_path / "whole") as w:
        kinds = [(e["type"], e["data"].get("tool"), e["data"].get("call_id")) for e in await all_events(w)]
    starts = [at for at, kind in enumerate(kinds, 1) if kind[0] == "tool.start"]
    assert len(starts) == 3
    assert whole > starts[2]
    for at, (first, second) in zip(starts, ((1, "a"), (2, "l"), (1, "b")), strict=True):
        folder = tmp_path / str(at)
        await story.after(folder, at)  # its start is the last thing that was stored
        async with story.ends(folder) as w:
            events = await all_events(w)
            assert {**story.done, **story.looked}[second] == first
            unknown = [e for e in events if e["type"] == "tool.result" and e["data"]["status"] == "unknown"]
            assert len(unknown) == (second != "l")
            assert sum(story.done.values()) == 2


@pytest.mark.spec("4.9", "3.6")
@pytest.mark.parametrize("later", [1, 4], ids=["before its run", "in its run"])
@pytest.mark.parametrize("scope", [None, "reuse_session"], ids=["own", "shared"])
async def test_a_delegation_that_resumes_another_goes_on_with_its_memory_and_alone(
    tmp_path: Path, later: int, scope: str | None
) -> None:
    gate = asyncio.Event()
    first: dict[str, Any] = {}

    async def hold(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        await gate.wait()
        return "held"

    async def resume(w: World, text: str) -> Delegated:
        plan = task({"calls": [call("hold", k=text)]}, text)
        return await w.delegations.start(w.tenant, DelegationInput(task=plan, resume=first["run"], background=True))

    async def begin(w: World) -> None:
        agent = w.node(**({"session_mode": scope} if scope else {}))
        one = await w.delegate(task("one"), agent=agent)
        first["run"] = (await one.result).run_ids[0]
        await still(w)
        assert story._mortal is not None
        story._mortal.life = later
        await resume(w, "two")

    story = Story(begin, (Probe("hold", hold, read_only=True),))
    await story.dies(tmp_path, 1_000_000, first=True)
    async with story.begun(tmp_path) as w:
        await w.recovery.settled()
        if scope is None:
            with pytest.raises(Conflict) as caught:
                await resume(w, "three")
            assert caught.value.code == "task_running"
        gate.set()
        await still(w)
        assert await row_problems(w) == []
        runs = await w.rows("runs")
        assert [(row["output"], row["status"]) for row in runs] == [("one", "completed"), ("two", "completed")]
        assert runs[1]["turn"] == runs[0]["turn"] + 1
        assert len({row["memory_id"] for row in runs}) == 1


@pytest.mark.spec("12.7")
async def test_few_steps_begin_until_it_is_known_of_all_sessions_what_was_in_flight(tmp_path: Path) -> None:
    there, opened = asyncio.Semaphore(0), asyncio.Event()

    async def hold(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        there.release()
        await opened.wait()
        return "held"

    async def begin(w: World) -> None:
        for _ in range(5):
            await w.turn(await w.session(), task({"calls": [call("hold")]}, "Done."))
        for _ in range(5):
            await there.acquire()
        await w.journal.flush()
        story.die()

    async def kinds(w: World) -> Counter[str]:
        await w.journal.flush()
        return Counter(event["type"] for event in await w.rows("events"))

    story = Story(begin, [Probe("hold", hold, read_only=True)])
    await story.dies(tmp_path, 1_000, first=True)
    opened.set()
    async with story.begun(tmp_path, take_up=False) as w:
        sessions = [row["session_id"] for row in await w.store.open_runs()]
        assert len(sessions) == 5
        late, known = sessions[-1], asyncio.Event()
        read = w.store.handoffs

        async def slowly(tenant: str, session_id: str) -> Sequence[Mapping[str, Any]]:
            if session_id == late:
                await known.wait()
            return await read(tenant, session_id)

        w.store.handoffs = slowly  # type: ignore[method-assign]
        await w.recovery.run()
        before = (await kinds(w))["step.started"]
        async with asyncio.timeout(20):
            while (found := await kinds(w))["run.resumed"] < 4 or found["step.started"] < before + 2:
                await asyncio.sleep(0.002)
        for _ in range(50):
            await asyncio.sleep(0)
        assert (await kinds(w))["step.started"] == before + 2
        known.set()
        await still(w)
        assert await row_problems(w) == []
