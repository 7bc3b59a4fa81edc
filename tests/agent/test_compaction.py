"""Compaction in whole runs: what survives, what is tried how often, and that log and next turn agree with it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.agent.compaction import Compaction
from app.agent.messages import Message, Role
from app.agent.runs import Run
from app.agent.texts import DEFAULT
from app.agent.tools import OutputLimit
from app.llm.profile import Profile
from tests.agent.long_run import FACT, SEEN, is_summary, play, size, steps, worker
from tests.agent.probes import Probe
from tests.world import World, world

pytestmark = pytest.mark.spec("5.4")
TASK = "Do the work of the survey, step by step; rule: never skip one. TASK-MARKER-17"
SCRIPT = "from tests.agent.long_run import reply\n"
LARGE = OutputLimit(max_chars=400_000, head_chars=300_000, tail_chars=10_000)


@asynccontextmanager
async def service(
    folder: Path, window: int | None, *, tool: Probe | None = None, compaction: Compaction | None = None
) -> AsyncIterator[World]:
    """A service whose model has that window."""
    profile = Profile(name="small", provider="scripted", model="long.py", context_window=window)
    tools = (tool or worker(),)
    async with world(
        folder, tools=tools, profiles={"small": profile}, model="small", compaction=compaction, output_limit=LARGE
    ) as w:
        (folder / "scripts" / "long.py").write_text(SCRIPT)
        yield w


async def work(w: World, task: str = TASK, **limits: Any) -> dict[str, Any]:
    """One run to its end."""
    return await w.finished(await w.run(task, limits={"max_steps": 200, **limits}))


async def compactions(w: World, session_id: str) -> list[Mapping[str, Any]]:
    """What was shortened, in order."""
    return [event["data"] for event in await w.events(session_id, "compaction")]


def keeps_its_ground(task: str = TASK) -> None:
    """Every step was asked with the prompt and the task as they stand, and once."""
    for request in steps():
        assert request.messages[0].content == "You are node."
        assert [m.content for m in request.messages].count(task) == 1


@pytest.mark.slow
@pytest.mark.seed("004", 149, 151, 152)
@pytest.mark.case("B143")
@pytest.mark.parametrize("summary", ["good", "broken", "empty", "long"])
async def test_two_hundred_steps_fit_a_window_of_8k_and_lose_nothing_that_is_pinned(
    tmp_path: Path, summary: str
) -> None:
    play(steps=199, summary=summary)
    async with service(tmp_path, 8000) as w:
        row = await work(w)
        assert (row["status"], row["stop_reason"], row["steps"]) == ("completed", "answer", 200)
        keeps_its_ground()
        assert max(size(request) for request in SEEN) < 8000
        done = await compactions(w, row["session_id"])
        asked = sum(is_summary(request) for request in SEEN)
        assert asked == 3, "as many as may be tried"
        assert [d["method"] for d in done].count("summary") == (3 if summary == "good" else 0)
        assert all(d["after_tokens"] < d["before_tokens"] for d in done)
        assert len(done) < 60, "a context that is always full is not shortened at every step"
        assert {d["origin"] for d in done} == {"lead"}
        assert row["output"] == f"finished, I know {FACT if summary == 'good' else 'nothing'}"
        assert row["usage"]["model_calls"] == 200 + asked
        tools = await w.rows("messages", memory_id=row["memory_id"], role="tool")
        assert [t["content"].split(":")[0] for t in tools] == [f"step {n}" for n in range(1, 200)]
        assert all("removed to make room" not in t["content"] for t in tools)
        assert FACT in tools[2]["content"]


@pytest.mark.seed("004", 152)
async def test_a_subagents_compaction_says_that_it_is_one(tmp_path: Path) -> None:
    play(steps=30)
    async with service(tmp_path, 4000) as w:
        handoff = await w.delegate(TASK, max_steps=100)
        await w.until(handoff.session.id, "handoff.end")
        done = await compactions(w, handoff.session.id)
        assert done and {d["origin"] for d in done} == {"subagent"}


@pytest.mark.case("B027", "B028")
@pytest.mark.parametrize("calls", [1, 3])
async def test_a_window_of_2k_cuts_between_no_call_and_its_result(tmp_path: Path, calls: int) -> None:
    play(steps=40, calls=calls)
    async with service(tmp_path, 2000, tool=worker(4)) as w:
        row = await work(w)
        assert (row["status"], row["output"]) == ("completed", f"finished, I know {FACT}")
        done = await compactions(w, row["session_id"])
        assert len(done) >= 3
        assert all(d["window"] == 2000 for d in done)
        keeps_its_ground()


@pytest.mark.case("B139")
async def test_after_one_compaction_two_short_turns_make_no_other(tmp_path: Path) -> None:
    play(steps=12)
    async with service(tmp_path, 4000) as w:
        session = await w.session()
        first = await w.finished(await w.turn(session, TASK))
        for _ in range(2):
            await w.finished(await w.turn(session, "thanks"))
        assert [d["method"] for d in await compactions(w, session)] == ["summary"]
        assert first["output"] == f"finished, I know {FACT}"


@pytest.mark.spec("4.9", "12.2")
@pytest.mark.parametrize("summary", ["good", "broken"])
async def test_the_next_turn_and_a_restart_begin_with_the_context_as_it_was_left(tmp_path: Path, summary: str) -> None:
    play(steps=25, summary=summary)
    async with service(tmp_path, 4000) as w:
        session = await w.session()
        row = await w.finished(await w.turn(session, TASK))
        left = list(SEEN[-1].messages)
        state = await w.load(w.tenant, row["memory_id"])
        assert list(state.messages[:-1]) == left
        assert state.messages[-1].content == row["output"]
        assert state.shortened is not None
        numbers = [m.seq for m in state.messages if m.seq is not None]
        assert numbers == sorted(numbers)
        assert state.next_seq == numbers[-1] + 1
    async with service(tmp_path, 16_000) as w:  # in which there is nothing to be shortened any more
        await w.finished(await w.turn(session, "thanks"))
        assert list(SEEN[-1].messages[: len(left)]) == left
        assert SEEN[-1].messages[-1].content == "thanks"


async def test_the_task_of_a_later_turn_takes_the_place_of_the_first_one(tmp_path: Path) -> None:
    play(steps=9)
    later = "More work, of another kind. TASK-MARKER-18"
    async with service(tmp_path, 4000) as w:
        session = await w.session()
        await w.finished(await w.turn(session, TASK))
        play(steps=22)
        row = await w.finished(await w.turn(session, later))
        assert row["output"] == f"finished, I know {FACT}", "what an earlier summary says is carried on"
        keeps_its_ground(later)
        assert all(TASK not in [m.content for m in r.messages] for r in steps()[-3:])


@pytest.mark.case("B138")
async def test_a_prompt_that_fills_the_window_ends_in_a_clear_error_after_few_calls(tmp_path: Path) -> None:
    play(steps=5, most=3000)
    async with service(tmp_path, 4000) as w:
        row = await w.finished(await w.run(TASK, agents=[w.node(prompt="Be careful. " * 1200)]))
        assert (row["status"], row["error"]["code"]) == ("failed", "model_context_overflow")
        assert len(SEEN) <= 2


@pytest.mark.case("B138")
async def test_one_giant_result_is_cut_where_nothing_else_helps(tmp_path: Path) -> None:
    play(steps=2, most=4000)
    async with service(tmp_path, 4000, tool=worker(1500)) as w:
        row = await work(w)
        assert (row["status"], row["output"]) == ("completed", "finished, I know nothing")
        done = await compactions(w, row["session_id"])
        assert done[0]["method"] == "cut"
        assert done[0]["after_tokens"] < 3000
        shown = [m.content for m in SEEN[-1].messages if m.role is Role.TOOL]
        assert all("more characters of this result" in text for text in shown)
        kept = await w.rows("messages", memory_id=row["memory_id"], role="tool")
        assert all("more characters of this result" not in r["content"] for r in kept), "the log has them whole"


@pytest.mark.case("B140")
@pytest.mark.parametrize("summary", ["good", "empty", "broken"])
async def test_a_history_above_the_window_is_summed_up_in_a_request_that_fits_or_trimmed(
    tmp_path: Path, summary: str
) -> None:
    play(steps=6, calls=6, summary=summary, most=4000)
    async with service(tmp_path, 4000, tool=worker(60)) as w:
        session = await w.session()
        row = await w.finished(await w.turn(session, TASK))
        assert row["status"] == "completed"
        play(steps=6, calls=6, summary=summary, most=4000)
        after = await w.finished(await w.turn(session, "thanks"))
        assert after["output"] == "noted: thanks"
        assert all(size(request) <= 4000 for request in SEEN)


@pytest.mark.case("B029")
async def test_a_provider_that_finds_a_request_too_long_gets_a_shorter_one_in_the_same_step(tmp_path: Path) -> None:
    play(steps=20, most=3000)
    async with service(tmp_path, None) as w:  # nobody knows its window
        row = await work(w)
        assert (row["status"], row["output"], row["steps"]) == ("completed", f"finished, I know {FACT}", 21)
        done = await compactions(w, row["session_id"])
        refused = sum(size(request) > 3000 for request in SEEN)
        assert refused == 1, "then the run knows how much may be sent"
        assert all(d["window"] == done[0]["window"] < 5000 for d in done)
        kinds = [e["data"]["method"] for e in await w.events(row["session_id"], "compaction")]
        assert kinds[0] == "summary"


@pytest.mark.case("B145")
async def test_switched_off_nothing_is_summed_up_and_the_error_of_the_provider_stands(tmp_path: Path) -> None:
    play(steps=20, most=3000)
    async with service(tmp_path, 3000, compaction=Compaction(enabled=False)) as w:
        row = await work(w)
        assert (row["status"], row["error"]["code"]) == ("failed", "model_context_overflow")
        assert not any(is_summary(request) for request in SEEN)
        assert await compactions(w, row["session_id"]) == []


async def test_the_forced_answer_fits_as_well_and_costs_no_summary(tmp_path: Path) -> None:
    play(steps=50, most=4000)
    async with service(tmp_path, 4000, tool=worker(300)) as w:
        row = await work(w, max_steps=1)
        assert (row["status"], row["stop_reason"], row["forced"]) == ("completed", "max_steps", True)
        assert not any(is_summary(request) for request in SEEN)
        assert [d["method"] for d in await compactions(w, row["session_id"])] == ["cut"]


@pytest.mark.spec("4.8")
async def test_a_summary_is_paid_for_by_the_budget_and_without_money_there_is_none(tmp_path: Path) -> None:
    play(steps=199)
    async with service(tmp_path, 4000) as w:
        run: Run = await w.run(TASK, budget={"model_calls": 20}, limits={"max_steps": 200})
        row = await w.finished(run)
        assert (row["status"], row["stop_reason"]) == ("completed", "budget")
        assert row["usage"]["model_calls"] == len(SEEN) == 20


@pytest.mark.spec("4.8", "11.6")
async def test_a_summary_is_part_of_what_the_step_after_it_has_used_so_that_a_restart_knows_of_it(
    tmp_path: Path,
) -> None:
    play(steps=40)
    async with service(tmp_path, 4000) as w:
        row = await work(w)
        used = await w.events(row["session_id"], "step.completed")
        assert any(is_summary(request) for request in SEEN)
        assert sum(event["data"]["usage"]["model_calls"] for event in used) == len(SEEN)


async def test_a_summary_may_not_be_longer_than_it_was_told(tmp_path: Path) -> None:
    play(steps=40)
    async with service(tmp_path, 16_000, tool=worker(40)) as w:
        await work(w)
        asked = [request for request in SEEN if is_summary(request)]
        assert asked and all(request.max_tokens == 1024 and not request.tools for request in asked)
        assert all(request.temperature == 0.2 for request in asked)


async def test_what_is_said_of_a_compaction_is_in_the_language_of_the_session(tmp_path: Path) -> None:
    play(steps=9, summary="broken")
    async with service(tmp_path, 3000) as w:
        own = {"output_cut_old": " [{left_out} weg]"}
        await w.finished(await w.run(TASK, texts=own, limits={"max_steps": 50}))
        last: list[Message] = list(SEEN[-1].messages)
        assert any(" weg]" in message.content for message in last)
        assert not any(DEFAULT.output_cut_old[2:10] in message.content for message in last)
