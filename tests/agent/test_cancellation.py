"""Cancelling: at any moment, at any depth, however often, everything below ends first and the log stays true.

Every world checks at its end that each run has one terminal event and nothing after it, that children end before their
parents, and that calls, handoffs and subagents pair (`tests.strict.log_problems`).
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.agent.hooks import FunctionHook, HookCall, HookPoint, HookRegistry
from app.agent.runs import RunStatus
from app.agent.tools import ToolContext
from tests.agent.probes import Probe, Stage
from tests.plan import ask, call, task
from tests.stubs.openai_stub import Answer, OpenAIStub, calls, chunk, sse, text
from tests.world import WAIT_S, World, world

DEEP = task(
    {"calls": [ask(task({"calls": [ask(task({"calls": [call("hold", key="leaf")]}, "leaf"))]}, "middle"))]}, "top"
)
ONE = task({"text": "one", "calls": [call("solo", key="x")]}, "1")
TWO = task({"calls": [ask(task("deep"))]}, "2")
BUSY = task(
    {"text": "I look.", "calls": [call("glob", pattern="*"), ask(ONE)]},
    {"text": "More.", "calls": [ask(TWO), ask(task("3")), call("grep", pattern="a")]},
    "The end.",
)
MOMENTS = 90  # an undisturbed run of BUSY takes fewer turns of the event loop than this


async def statuses(w: World, session_id: str) -> list[tuple[int, str]]:
    """Depth and final status of the runs of a session."""
    return [(row["depth"], row["status"]) for row in await w.rows("runs", session_id=session_id)]


async def moments(count: int) -> None:
    """Let the event loop turn so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.spec("5.7", "11.6", "12.2")
@pytest.mark.case("B064", "B153", "B154")
@pytest.mark.parametrize("start", range(6))
async def test_a_run_can_be_cancelled_at_every_moment_and_the_next_turn_takes_the_history(
    tmp_path: Path, start: int
) -> None:
    stage = Stage()
    stage.open("x")
    ended = set()
    async with world(tmp_path, tools=stage.tools) as w:
        for moment in range(start, MOMENTS, 6):
            session = await w.session()
            run = await w.turn(session, BUSY)
            await moments(moment)
            await w.supervisor.cancel(run.id)
            ended.add((await w.row(run))["status"])
            assert {status for _, status in await statuses(w, session)} <= {"cancelled", "completed"}
            assert not w.supervisor.busy(session)
            row = await w.finished(await w.turn(session, task("goes on")))
            assert (row["status"], row["output"]) == ("completed", "goes on"), row["error"]
    assert "cancelled" in ended


@pytest.mark.spec("5.7")
@pytest.mark.case("B064")
async def test_a_run_that_is_cancelled_before_it_began_ends_cancelled_and_asks_no_model(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.session()
        async with w.sessions.opened(await w.sessions.known(w.tenant, session)):
            request = w.sessions.requests.request(await w.sessions.known(w.tenant, session), _input("hello"))
            run = w.supervisor.launch(request)
            assert await w.supervisor.cancel(run.id) == (run.id,)
        assert [e["type"] for e in await w.events(session)][1:] == ["run.queued", "run.cancelled", "session.idle"]
        assert w.requests == []


def _input(text: str) -> Any:
    from app.sessions.requests import RunInput

    return RunInput(input=text)


@pytest.mark.spec("5.7", "4.6")
@pytest.mark.case("B062")
async def test_a_tree_three_levels_deep_ends_children_first(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(DEEP)
        await stage.reached("+leaf")
        answer = await w.sessions.cancel(w.tenant, run.id)
        assert len(answer["cancelled"]) == 3
        assert stage.diary == ["+leaf", "!leaf"]
        events = await w.events(run.session_id, "run.cancelled", "handoff.end", "subagent.stop")
        assert [(e["type"], e["depth"]) for e in events] == [
            ("subagent.stop", 2), ("run.cancelled", 2), ("handoff.end", 1),
            ("subagent.stop", 1), ("run.cancelled", 1), ("handoff.end", 0), ("run.cancelled", 0),
        ]  # fmt: skip
        assert {e["data"]["status"] for e in events} == {"cancelled"}


@pytest.mark.spec("5.7")
async def test_a_call_that_waits_for_its_turn_is_not_set_going_by_the_end_of_a_child(tmp_path: Path) -> None:
    stage = Stage()
    stage.open("after")
    plan = task(
        {"calls": [ask(task({"calls": [call("hold", key="child")]}, "x")), call("hold", key="after"), ask(task("y"))]},
        "z",
    )
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(plan, parallel_tool_calls=False)
        await stage.reached("+child")
        await w.sessions.cancel(w.tenant, run.id)
        assert stage.diary == ["+child", "!child"]
        assert len(await w.rows("runs", session_id=run.session_id)) == 2
        results = await w.events(run.session_id, "tool.result")
        assert [e["data"]["status"] for e in results if e["depth"] == 0][1:] == ["cancelled", "cancelled"]


@pytest.mark.spec("5.7")
@pytest.mark.parametrize("start", range(3))
async def test_cancelling_a_child_at_any_moment_leaves_its_parent_to_go_on(tmp_path: Path, start: int) -> None:
    stage = Stage()
    stage.open("x")
    async with world(tmp_path, tools=stage.tools) as w:
        for moment in range(start, 45, 3):
            session = await w.session()
            queued = asyncio.create_task(w.until(session, "run.queued", where=lambda data: data["depth"] == 1))
            run = await w.turn(session, BUSY)
            child = (await queued)["run_id"]
            await moments(moment)
            await w.supervisor.cancel(child)
            row = await w.finished(run)
            assert (row["status"], row["output"]) == ("completed", "The end."), row["error"]
            assert (await w.row(child))["status"] in ("cancelled", "completed")


@pytest.mark.spec("5.7", "3.3")
async def test_the_parent_is_told_that_its_child_was_cancelled(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(DEEP)
        await stage.reached("+leaf")
        (child,) = await w.rows("runs", depth=1)
        answer = await w.sessions.cancel(w.tenant, child["id"])
        assert len(answer["cancelled"]) == 2
        row = await w.finished(run)
        assert (row["status"], row["output"]) == ("completed", "top")
        assert "ended cancelled" in w.requests[-1].messages[-1].content


@pytest.mark.spec("5.7")
@pytest.mark.case("B064")
async def test_cancelling_again_and_from_everywhere_at_once_changes_nothing(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(DEEP)
        await stage.reached("+leaf")
        every = [row["id"] for row in await w.rows("runs", session_id=run.session_id)]
        jobs = [w.sessions.cancel(w.tenant, run_id) for run_id in (*every, *reversed(every), *every)]
        jobs.append(w.sessions.cancel_session(w.tenant, run.session_id))
        answers = await asyncio.gather(*jobs)
        assert sorted(r for answer in answers for r in answer["cancelled"]) == sorted(every), "each is ended by one"
        assert {answer.get("status", "cancelled") for answer in answers} == {"cancelled"}
        again = await w.sessions.cancel(w.tenant, run.id)
        assert (again["status"], again["cancelled"]) == ("cancelled", [])


@pytest.mark.spec("5.7")
async def test_a_canceller_that_goes_away_leaves_no_tree_half_cancelled(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        for moment in range(12):
            run = await w.run(DEEP)
            await stage.reached("+leaf")
            stage.diary.clear()
            canceller = asyncio.create_task(w.supervisor.cancel(run.id))
            await moments(moment)
            canceller.cancel()
            await asyncio.gather(canceller, return_exceptions=True)
            if moment:  # else it never began
                assert (await w.finished(run))["status"] == "cancelled"
            else:
                await w.sessions.cancel(w.tenant, run.id)


@pytest.mark.spec("5.7", "7.4")
@pytest.mark.case("B069")
async def test_a_second_cancel_waits_for_the_clean_up_that_the_first_one_began(tmp_path: Path) -> None:
    cleaning, cleaned = asyncio.Event(), asyncio.Event()

    async def tidy(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            cleaning.set()
            await moments(50)  # the time that the clean-up takes
            cleaned.set()
        return "never"

    tools = (Probe("tidy", tidy, concurrency_safe=True),)
    async with asyncio.timeout(WAIT_S), world(tmp_path, tools=tools) as w:
        plan = task({"calls": [ask(task({"calls": [call("tidy"), call("tidy")]}, "x")), call("tidy")]}, "z")
        run = await w.run(plan)
        await w.until(run.session_id, "tool.start", 4)
        first = asyncio.create_task(w.sessions.cancel(w.tenant, run.id))
        await cleaning.wait()
        second = asyncio.create_task(w.sessions.cancel(w.tenant, run.id))
        answers = await asyncio.gather(first, second)
        assert cleaned.is_set()
        assert [len(answer["cancelled"]) for answer in answers] == [2, 0]


@pytest.mark.spec("5.7")
@pytest.mark.case("B069")
async def test_a_tool_that_does_not_let_itself_be_cancelled_keeps_no_run_going(tmp_path: Path) -> None:
    began = asyncio.Event()

    async def stubborn(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        began.set()
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            pass
        return "I finished anyway"

    for extra in ([], [call("stubborn")]):
        folder = tmp_path / str(len(extra))
        folder.mkdir()
        began.clear()
        async with world(folder, tools=(Probe("stubborn", stubborn, concurrency_safe=True),)) as w:
            run = await w.run(task({"calls": [call("stubborn"), *extra]}, "never said"))
            await began.wait()
            answer = await w.sessions.cancel(w.tenant, run.id)
            assert answer["status"] == "cancelled"
            assert len(w.requests) == 1
            assert [r["status"] for r in await w.rows("tool_calls")] == ["ok"] * (1 + len(extra))


@pytest.mark.spec("5.7", "12.2")
@pytest.mark.case("B066", "B067", "B068")
async def test_a_model_that_streams_is_hung_up_on_and_what_it_said_stays_in_the_history(tmp_path: Path) -> None:
    never = asyncio.Event()
    async with OpenAIStub() as stub, world(tmp_path, base_url=stub.base_url) as w:
        stub.script(Answer(writes=(*sse(chunk({"content": "alpha "}), chunk({"content": "beta "}), done=False), never)))
        session = await w.session()
        shown = asyncio.create_task(w.until(session, "text.delta"))
        run = await w.turn(session, "go")
        await shown
        await w.sessions.cancel(w.tenant, run.id)
        await stub.client_left()
        row = await w.row(run)
        assert (row["status"], row["output"].split()[0]) == ("cancelled", "alpha")
        (partial,) = await w.rows("messages", role="assistant")
        assert partial["metadata"]["partial"] is True
        stub.script(text("fine"))
        assert (await w.finished(await w.turn(session, "go on")))["output"] == "fine"
        said = [(m["role"], m["content"]) for m in stub.requests[-1].messages]
        assert [role for role, _ in said] == ["system", "user", "assistant", "user"]
        assert said[2][1].startswith("alpha")


@pytest.mark.spec("5.7")
@pytest.mark.case("B062", "B066")
async def test_the_connections_of_a_whole_tree_are_closed(tmp_path: Path) -> None:
    never = asyncio.Event()
    async with OpenAIStub() as stub, world(tmp_path, base_url=stub.base_url) as w:
        order = '{"agent_type": "node", "task": "work"}'
        stub.script(calls(("dispatch_subagent", order), ("dispatch_subagent", order)))
        stub.decide(lambda _: Answer(writes=(*sse(chunk({"content": "…"}), done=False), never)))
        run = await w.run("go")
        await stub.seen(3)
        answer = await w.sessions.cancel(w.tenant, run.id)
        await stub.client_left(2)
        assert len(answer["cancelled"]) == 3
        assert len(stub.requests) == 3


@pytest.mark.spec("5.7", "14.2")
@pytest.mark.parametrize("start", range(3))
async def test_a_session_can_be_cancelled_closed_or_deleted_at_any_moment(tmp_path: Path, start: int) -> None:
    stage = Stage()
    stage.open("x")
    async with world(tmp_path, tools=stage.tools) as w:
        for number, moment in enumerate(range(start, 60, 3)):
            session = await w.session()
            await w.turn(session, BUSY)
            direct = await w.delegate(BUSY, session_id=session)
            await moments(moment)
            if number % 3 == 0:
                await w.sessions.cancel_session(w.tenant, session)
            elif number % 3 == 1:
                await w.sessions.update(w.tenant, session, {}, close=True)
            else:
                await w.sessions.delete(w.tenant, session)
            async with asyncio.timeout(WAIT_S):
                await direct.result
            assert {status for _, status in await statuses(w, session)} <= {"cancelled", "completed"}


@pytest.mark.spec("4.4", "5.7")
async def test_a_run_over_its_hard_limit_ends_timed_out_and_what_is_below_it_cancelled(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(DEEP, limits={"timeout_ms": 100})
        row = await w.finished(run)
        assert (row["status"], row["stop_reason"], row["partial"]) == ("timed_out", "deadline", True)
        assert await statuses(w, run.session_id) == [(0, "timed_out"), (1, "cancelled"), (2, "cancelled")]
        assert stage.diary == ["+leaf", "!leaf"]


@pytest.mark.spec("9.6", "5.7")
async def test_a_service_that_stops_interrupts_what_does_not_finish_in_time(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        deep = await w.run(DEEP)
        quick = await w.run(task({"calls": [call("hold", key="quick")]}, "in time"))
        await stage.reached("+leaf", "+quick")
        closing = asyncio.create_task(w.sessions.close(0.2))
        await moments(3)
        stage.open("quick")
        await closing
        assert (await w.row(quick))["output"] == "in time"
        assert {status for _, status in await statuses(w, deep.session_id)} == {"interrupted"}
        assert w.supervisor.in_flight == 0


@pytest.mark.spec("5.7")
async def test_the_first_reason_to_end_wins(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(DEEP)
        await stage.reached("+leaf")
        statuses_wanted = (RunStatus.TIMED_OUT, RunStatus.CANCELLED, RunStatus.INTERRUPTED)
        await asyncio.gather(*(w.supervisor.cancel(run.id, status=status) for status in statuses_wanted))
        assert (await w.row(run))["status"] == "timed_out"


@pytest.mark.spec("5.7", "6.4")
async def test_a_cancel_does_not_name_a_run_that_has_failed_and_only_says_its_last_word(tmp_path: Path) -> None:
    speaking, go_on = asyncio.Event(), asyncio.Event()

    async def last_word(_call: HookCall) -> None:
        speaking.set()
        await go_on.wait()

    hook = FunctionHook(name="slow", function=last_word, points=frozenset({HookPoint.SUBAGENT_STOP}))
    failing = task({"error": {"code": "quota", "message": "no quota left"}})
    async with world(tmp_path, hooks=HookRegistry([hook])) as w:
        run = await w.run(task({"calls": [ask(failing)]}, "end"))
        await speaking.wait()
        (child,) = await w.rows("runs", session_id=run.session_id, depth=1)
        cancelling = asyncio.create_task(w.supervisor.cancel(child["id"]))
        await asyncio.sleep(0)
        go_on.set()
        assert await cancelling == ()
        assert (await w.finished(child["id"]))["status"] == "failed"
