"""Tools of a run that is cancelled: those that must finish may, those that are deaf hold nobody up, none is forgotten.

Every world checks at its end that nothing follows a run's terminal event and that each call has one result.
"""

import asyncio
import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.agent.hooks import FunctionHook, HookCall, HookPoint, HookRegistry
from app.agent.interruption import Interruption, bounded, left_behind
from app.agent.tools import Interrupt, ToolContext
from app.tools.function import FunctionTool
from tests.agent.guarded import results
from tests.agent.probes import Probe, Stage
from tests.plan import ask, call, task
from tests.world import WAIT_S, World, world


class Deaf:
    """A tool `deaf` that hears nothing until a test lets it go."""

    def __init__(self, **spec: Any) -> None:
        self.began, self.may_end, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.tool = Probe("deaf", self._body, concurrency_safe=True, **spec)

    async def _body(self, _arguments: Mapping[str, Any], context: ToolContext) -> str:
        self.began.set()
        while not self.may_end.is_set():
            try:
                await self.may_end.wait()
            except asyncio.CancelledError:
                continue
        context.progress("still talking")
        self.ended.set()
        return "too late"

    async def __aenter__(self) -> "Deaf":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.may_end.set()  # or a test that fails would never end

    async def let_go(self) -> None:
        """Let it end; nothing is left of it then."""
        self.may_end.set()
        async with asyncio.timeout(WAIT_S):
            await self.ended.wait()
            while left_behind():
                await asyncio.sleep(0.001)


async def goes_on(w: World, session: str) -> None:
    """The next turn is accepted with the history as it is."""
    row = await w.finished(await w.turn(session, task("goes on")))
    assert (row["status"], row["output"]) == ("completed", "goes on"), row["error"]


@pytest.mark.spec("7.4", "5.7")
@pytest.mark.parametrize("beside", [[], [call("hold", key="beside")]], ids=["alone", "beside another"])
async def test_a_tool_that_must_not_be_broken_off_finishes_before_its_cancelled_run_ends(
    tmp_path: Path, beside: list[Any]
) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    async def body(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        began.set()
        await may_end.wait()
        return "written to the end"

    stage = Stage()
    tool = Probe("write", body, concurrency_safe=True, interrupt=Interrupt.BLOCK)
    async with world(tmp_path, tools=(tool, *stage.tools)) as w, asyncio.timeout(WAIT_S):
        session = await w.session()
        run = await w.turn(session, task({"calls": [ask(task({"calls": [call("write"), *beside]}, "x"))]}, "y"))
        await began.wait()
        cancelling = asyncio.create_task(w.sessions.cancel(w.tenant, run.id))
        if beside:
            await w.until(session, "tool.result")  # the other one ends at once
            assert stage.diary == ["+beside", "!beside"]
        assert not cancelling.done()
        may_end.set()
        assert (await cancelling)["status"] == "cancelled"
        told = await results(w, session)
        assert ("ok", "written to the end") in told
        assert len(w.requests) == 2, "no model is asked with it"
        await goes_on(w, session)


@pytest.mark.spec("7.4", "5.7", "11.6")
@pytest.mark.case("B069")
@pytest.mark.parametrize("interrupt", list(Interrupt))
@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_a_tool_that_is_deaf_is_left_behind_when_its_grace_is_over_and_the_whole_tree_is_terminal(
    tmp_path: Path, interrupt: Interrupt, depth: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.agent.interruption.CLEAN_UP_S", 0.01)
    deaf = Deaf(interrupt=interrupt)
    plan = task({"calls": [call("deaf")]}, "never")
    for _ in range(depth):
        plan = task({"calls": [ask(plan)]}, "never")
    async with deaf, world(tmp_path, tools=(deaf.tool,), interrupt_grace_ms=20) as w, asyncio.timeout(WAIT_S):
        session = await w.session()
        run = await w.turn(session, plan)
        await deaf.began.wait()
        answer = await w.sessions.cancel(w.tenant, run.id)
        assert (answer["status"], len(answer["cancelled"])) == ("cancelled", depth + 1)
        assert left_behind() == 1
        assert "tool deaf does not end" in caplog.text
        told = {e["data"]["tool"]: e["data"]["status"] for e in await w.events(session, "tool.result")}
        assert told.pop("deaf") == "cancelled"
        await goes_on(w, session)
        before = await w.events(session)
        await deaf.let_go()
        assert await w.events(session) == before, "what it says later goes nowhere"


@pytest.mark.spec("7.1", "7.4")
@pytest.mark.case("B069")
async def test_a_tool_that_is_deaf_when_its_time_is_over_is_a_result_and_the_run_goes_on(tmp_path: Path) -> None:
    deaf = Deaf(timeout_ms=20)
    async with deaf, world(tmp_path, tools=(deaf.tool,), interrupt_grace_ms=20) as w:
        row = await w.finished(await w.run(task({"calls": [call("deaf")]}, "went on")))
        assert (row["status"], row["output"]) == ("completed", "went on")
        ((status, content),) = await results(w, row["session_id"])
        assert (status, "20 ms" in content) == ("timed_out", True)
        await deaf.let_go()


@pytest.mark.spec("5.7")
async def test_children_of_one_parent_end_side_by_side(tmp_path: Path) -> None:
    cleaning: list[str] = []
    both, begun = asyncio.Event(), asyncio.Semaphore(0)

    async def tidy(arguments: Mapping[str, Any], _context: ToolContext) -> str:
        begun.release()
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.append(str(arguments["key"]))
            if len(cleaning) == 2:
                both.set()
            await both.wait()  # neither is done before the other one was told as well
        return "never"

    async with world(tmp_path, tools=(Probe("tidy", tidy),), interrupt_grace_ms=60_000) as w, asyncio.timeout(WAIT_S):
        children = [ask(task({"calls": [call("tidy", key=key)]}, "x")) for key in ("one", "two")]
        run = await w.run(task({"calls": children}, "never"))
        await begun.acquire()
        await begun.acquire()
        assert (await w.sessions.cancel(w.tenant, run.id))["status"] == "cancelled"
        assert sorted(cleaning) == ["one", "two"]


@pytest.mark.spec("7.4", "5.7")
async def test_a_tool_beside_a_delegation_is_broken_off_at_once_and_not_when_the_child_has_ended(
    tmp_path: Path,
) -> None:
    begun = asyncio.Semaphore(0)
    told = asyncio.Event()

    async def patient(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        begun.release()
        try:
            await asyncio.Event().wait()
        finally:
            await told.wait()  # the child ends only after the parent's own tool
        return "never"

    async def own(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        begun.release()
        try:
            await asyncio.Event().wait()
        finally:
            told.set()
        return "never"

    tools = (Probe("patient", patient), Probe("own", own, concurrency_safe=True))
    async with world(tmp_path, tools=tools, interrupt_grace_ms=60_000) as w, asyncio.timeout(WAIT_S):
        session = await w.session()
        run = await w.turn(session, task({"calls": [call("own"), ask(task({"calls": [call("patient")]}, "x"))]}, "y"))
        await begun.acquire()
        await begun.acquire()
        assert (await w.sessions.cancel(w.tenant, run.id))["status"] == "cancelled"
        ends = [e["depth"] for e in await w.events(session, "run.cancelled")]
        assert ends == [1, 0]
        await goes_on(w, session)


@pytest.mark.spec("5.7", "4.1")
async def test_a_parent_that_its_cancelled_child_would_stop_ends_cancelled_as_it_was_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w, asyncio.timeout(WAIT_S):
        session = await w.session(surfaces=["per_agent"])
        child = call("subagent_node", task=task({"calls": [call("hold", key="leaf")]}, "x"))
        for beside in ([], [call("hold", key="beside")], [child]):  # the default of this surface is to fail
            stage.diary.clear()
            run = await w.turn(session, task({"calls": [child, *beside]}, "never"))
            await stage.reached("+leaf", *(["+beside"] if beside and beside[0] is not child else []))
            answer = await w.sessions.cancel(w.tenant, run.id)
            assert (answer["status"], run.id in answer["cancelled"]) == ("cancelled", True)
            await goes_on(w, session)
        gc.collect()
        assert [r.message for r in caplog.records if r.levelname == "ERROR"] == []


@pytest.mark.spec("6.4", "5.7")
@pytest.mark.case("B103")
async def test_each_start_of_a_tool_is_followed_by_its_hooks_at_whatever_moment_the_run_is_cancelled(
    tmp_path: Path,
) -> None:
    told: list[str | None] = []

    async def diary(heard: HookCall) -> None:
        told.append(heard.call_id)

    after = FunctionHook(name="diary", function=diary, points=frozenset({HookPoint.POST_TOOL_USE}))
    stage = Stage()
    stage.open("x")
    started: list[str] = []
    async with world(tmp_path, tools=stage.tools, hooks=HookRegistry([after])) as w, asyncio.timeout(WAIT_S):
        for moment in range(40):
            session = await w.session()
            run = await w.turn(session, task({"calls": [call("solo", key="x")]}, "end"))
            for _ in range(moment):
                await asyncio.sleep(0)
            await w.supervisor.cancel(run.id)
            started += [e["data"]["call_id"] for e in await w.events(session, "tool.start")]
    assert sorted(started) == sorted(str(one) for one in told)
    assert started


@pytest.mark.spec("5.7", "6.4")
async def test_a_cancel_does_not_claim_a_run_that_has_failed_and_only_tells_its_hooks(tmp_path: Path) -> None:
    telling, may_end = asyncio.Event(), asyncio.Event()

    async def slow(_heard: HookCall) -> None:
        telling.set()
        await may_end.wait()

    stop = FunctionHook(name="slow", function=slow, points=frozenset({HookPoint.SUBAGENT_STOP}))
    async with world(tmp_path, hooks=HookRegistry([stop])) as w, asyncio.timeout(WAIT_S):
        failing = task({"error": {"code": "quota", "message": "no quota"}})
        run = await w.run(task({"calls": [ask(failing)]}, "never"))
        await telling.wait()
        cancelling = asyncio.create_task(w.sessions.cancel(w.tenant, run.id))
        await asyncio.sleep(0)
        may_end.set()
        answer = await cancelling
        (child,) = await w.rows("runs", depth=1)
        assert (child["status"], answer["cancelled"]) == ("failed", [run.id])
        assert (await w.row(run))["status"] == "cancelled"


@pytest.mark.spec("7.4", "7.8")
def test_an_own_function_says_that_it_must_not_be_broken_off() -> None:
    async def book() -> str:
        """Books."""
        return "booked"

    assert FunctionTool.from_function(book).spec.interrupt is Interrupt.CANCEL
    assert FunctionTool.from_function(book, interrupt="block").spec.interrupt is Interrupt.BLOCK
    with pytest.raises(ValueError, match="never"):
        FunctionTool.from_function(book, interrupt="never")


@pytest.mark.spec("7.4")
async def test_being_cancelled_a_second_time_does_not_break_off_what_may_finish() -> None:
    may_end = asyncio.Event()

    async def work() -> str:
        await may_end.wait()
        return "done"

    waiting = asyncio.create_task(bounded(work(), Interruption(grace_s=WAIT_S, finishes=True)))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0)
    may_end.set()
    assert await waiting == "done"


@pytest.mark.spec("7.1")
async def test_what_cancels_itself_inside_is_told_from_a_cancellation_from_outside() -> None:
    async def work() -> str:
        raise asyncio.CancelledError

    own = asyncio.current_task()
    assert own is not None
    with pytest.raises(asyncio.CancelledError):
        await bounded(work(), Interruption())
    assert not own.cancelling()
