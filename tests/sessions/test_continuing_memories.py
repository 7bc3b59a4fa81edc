"""Memories that several runs share, over the death of a process: who had begun goes on first, then who waited."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.agent.approvals import AnswerKind
from app.agent.errors import Unavailable
from app.agent.tools import ToolContext
from app.settings_rules import Permissions
from tests.agent.probes import Probe
from tests.plan import behind, call, execute, task
from tests.sessions.lives import Story, row_problems, still
from tests.sessions.test_continuing_questions import person
from tests.world import World

pytestmark = pytest.mark.spec("12.7", "4.9")


def keepers(scope: str, *tools: Probe, more: Sequence[Any] = (), **world: Any) -> tuple[Story, asyncio.Event]:
    """One asks an agent that remembers, which holds until the event, and another waits for the same memory: a task
    beside it or, `scope` user, a turn of another session."""
    gate = asyncio.Event()

    async def hold(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        await gate.wait()
        return "held"

    async def begin(w: World) -> None:
        keeper = w.node("keeper", session_mode="reuse_session", session_scope=scope)
        given: dict[str, Any] = {"surfaces": ["task"], "agents": [w.node(), keeper], "user": "u"}
        held = execute(task({"calls": [call("hold", k=1)]}, "first"), "keeper")
        waiting = task({"calls": [call("touch", key="b")]}, "second")
        session = await w.session(**given)
        beside = behind(waiting, "keeper") if scope == "session" else call("touch", key="c")
        await w.turn(session, task({"calls": [held, beside]}, *more, "The end."))
        await w.until(session, "tool.start", where=lambda data: data["data"]["tool"] == "hold")
        if scope == "session":
            await w.until(session, "run.queued", 3)
        else:
            other = await w.session(**given)
            await w.turn(other, task({"calls": [execute(waiting, "keeper")]}, "The end."))
            await w.until(other, "run.queued", 2)
        story.die()

    story = Story(begin, (Probe("hold", hold, read_only=True), *tools), **world)
    return story, gate


def late(read: Callable[..., Awaitable[Any]], session_id: str) -> Any:
    """A read that fails at first for a session, so that the others are taken up before it."""
    failed: set[str] = set()

    async def reading(tenant: str, wanted: str) -> Any:
        if wanted == session_id and not failed:
            failed.add(wanted)
            raise Unavailable("the store cannot be read at the moment", code="store_unavailable")
        return await read(tenant, wanted)

    return reading


@pytest.mark.parametrize("scope", ["session", "user"])
async def test_who_waited_for_a_memory_does_not_overtake_who_had_it(tmp_path: Path, scope: str) -> None:
    story, gate = keepers(scope)
    await story.dies(tmp_path, 1_000_000, first=True)
    gate.set()
    async with story.begun(tmp_path, take_up=False) as w:
        first = (await w.rows("sessions"))[0]["id"]
        w.store.runs = late(w.store.runs, first)  # type: ignore[method-assign]
        await w.recovery.run()
        await still(w)
        assert await row_problems(w) == []
        runs = {row["id"]: row for row in await w.rows("runs")}
        assert {row["status"] for row in runs.values()} == {"completed"}
        said = sorted(await w.rows("messages"), key=lambda row: (row["memory_id"], row["memory_seq"]))
        assert [row["content"] for row in said if row["role"] == "assistant" and runs[row["run_id"]]["depth"]] == [
            "", "first", "", "second"
        ]  # fmt: skip


async def test_a_call_that_is_forbidden_by_then_holds_up_nobody_at_its_memory(tmp_path: Path) -> None:
    waits = asyncio.Event()

    async def wait(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        await waits.wait()
        return "waited"

    tool, then = Probe("wait", wait, read_only=True), [{"calls": [call("wait", k=1)]}]
    story, gate = keepers("session", tool, more=then, beside=person(AnswerKind.ALLOW_ONCE))
    story.arguments["permissions"] = Permissions(rules={"ask": ["Agent(keeper)"]})
    await story.dies(tmp_path, 1_000_000, first=True)
    gate.set()
    story.arguments["permissions"] = Permissions(rules={"deny": ["Agent(keeper)"]})
    async with story.begun(tmp_path) as w:
        (session,) = await w.rows("sessions")
        ended = await w.until(session["id"], "run.completed")
        assert ended["data"]["output"] == "second", "its turn goes on, and has not ended"
        waits.set()
        await still(w)
        assert await row_problems(w) == []
