"""What still begins, and what is left for an answer, once the soft deadline of a run has come (spec 5.5, 5.7)."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.agent.hooks import FunctionHook, HookCall, HookPoint, HookRegistry
from app.agent.tools import Interrupt, ToolContext
from tests.agent.guarded import commands, give, questions, ruled, time_passes
from tests.agent.probes import Probe, Stage, echo
from tests.plan import call, task
from tests.world import WAIT_S, world

pytestmark = pytest.mark.slow

TWO = task({"calls": [call("first"), call("second")]}, "the answer")
SOON = {"deadline_ms": 600}


async def beyond(arguments: Mapping[str, Any], context: ToolContext) -> str:
    """Goes on a little longer than the time for a first answer."""
    await asyncio.sleep(0.55)
    return "done all the same"


async def swallowing(arguments: Mapping[str, Any], context: ToolContext) -> str:
    """Does as if nobody had cancelled it."""
    try:
        await asyncio.sleep(WAIT_S)
    except asyncio.CancelledError:
        return "I was not told"
    return "never"


async def slow_hook(told: HookCall) -> None:
    """Takes its time after the first tool."""
    if told.tool == "first":
        await asyncio.sleep(0.52)


HOOK = FunctionHook(name="late", function=slow_hook, points=frozenset({HookPoint.POST_TOOL_USE}))


@pytest.mark.spec("5.5", "5.7")
@pytest.mark.parametrize(
    ("first", "hooks"),
    [
        pytest.param(Probe("first", beyond, interrupt=Interrupt.BLOCK), (), id="a tool that is let finish"),
        pytest.param(Probe("first", swallowing), (), id="a tool that swallows it"),
        pytest.param(Probe("first", echo), (HOOK,), id="a hook that is let finish"),
    ],
)
async def test_no_call_begins_after_the_soft_deadline_whatever_has_taken_notice_of_it(
    tmp_path: Path, first: Probe, hooks: tuple[FunctionHook, ...]
) -> None:
    second = Probe("second", echo)
    async with world(tmp_path, tools=[first, second], hooks=HookRegistry(hooks)) as w:
        run = await w.run(TWO, limits=SOON)
        row = await w.finished(run)
        assert second.arguments == []
        assert (row["status"], row["stop_reason"], row["forced"]) == ("completed", "deadline", True)
        ended = [event["data"]["status"] for event in await w.events(run.session_id, "tool.result")]
        assert ended[1] == "cancelled"


@pytest.mark.spec("5.7", "7.4")
@pytest.mark.parametrize("interrupt", list(Interrupt))
async def test_the_grace_of_a_tool_leaves_time_for_the_forced_answer(tmp_path: Path, interrupt: Interrupt) -> None:
    async def deaf(arguments: Mapping[str, Any], context: ToolContext) -> str:
        until = asyncio.get_running_loop().time() + 3
        while asyncio.get_running_loop().time() < until:
            try:
                await asyncio.sleep(0.5)
            except asyncio.CancelledError:
                continue
        return "late"

    async with world(tmp_path, tools=[Probe("first", deaf, interrupt=interrupt)], interrupt_grace_ms=4_000) as w:
        row = await w.finished(
            await w.run(task({"calls": [call("first")]}, "the answer"), limits={"deadline_ms": 2000})
        )
        assert (row["stop_reason"], row["forced"], row["output"]) == ("deadline", True, "the answer")


@pytest.mark.spec("7.1", "8.2")
async def test_the_deadline_that_a_tool_is_told_is_that_of_its_own_start(tmp_path: Path) -> None:
    left: list[float | None] = []

    async def looking(arguments: Mapping[str, Any], context: ToolContext) -> str:
        left.append(context.remaining_s())
        return "seen"

    tools = [commands(), Probe("look", looking), *Stage().tools]
    plan = task({"calls": [call("run_command", command="ls"), call("look")]}, "end")
    async with world(tmp_path, tools=tools, permissions=ruled(ask=["Bash"])) as w:
        run = await w.run(plan, limits=SOON)
        (question,) = await questions(w, run.session_id, 1)
        await time_passes(w)
        await give(w, question["approval_id"])
        assert (await w.finished(run))["output"] == "end"
    assert left[0] is not None
    assert left[0] > 0


@pytest.mark.spec("5.2")
async def test_a_failure_ends_those_beside_it_and_is_no_reason_for_what_is_cancelled_later(tmp_path: Path) -> None:
    async def holding(arguments: Mapping[str, Any], context: ToolContext) -> str:
        await asyncio.sleep(WAIT_S)
        return "never"

    safe = {"read_only": True, "concurrency_safe": True}
    async with world(tmp_path, tools=[Probe("good", holding, **safe), Probe("solo", holding)]) as w:
        beside = task({"calls": [call("read_file", path="missing"), call("good"), call("solo")]}, "end")
        run = await w.run(beside, agents=[w.node(abort_siblings=True)])
        await w.until(run.session_id, "tool.start", 3)
        await w.sessions.cancel(w.tenant, run.id)
        found = sorted((e["data"]["sub"], e["data"]["content"]) for e in await w.events(run.session_id, "tool.result"))
        assert "called beside it, failed" in found[1][1]
        assert found[2][1] == "(cancelled before it finished)"
