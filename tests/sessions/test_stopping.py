"""A service that stops: what is under way or about to begin goes on in the next process, and nothing else is said of
it."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.agent.errors import Unavailable
from app.agent.hooks import FunctionHook, HookPoint, HookRegistry
from app.agent.runs import AskedBefore
from app.agent.tools import ToolContext
from app.sessions.follow_ups import FollowUps
from app.sessions.idempotency import DELEGATION, keyed
from app.sessions.requests import DelegationInput, SessionInput
from app.sessions.tasks import Retention, Tasks
from app.settings import load
from app.wiring import Wired, build
from tests.agent.probes import Probe
from tests.plan import ask, behind, call, execute, task
from tests.sessions.asking import moments
from tests.sessions.lives import Story, still
from tests.sessions.test_taken_up_without_store import READS, task_and_turn
from tests.sessions.writers import Wrapped
from tests.world import WAIT_S, World, world

pytestmark = pytest.mark.spec("9.6", "12.7")


class Gate:
    """A tool that holds until it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.tools = (Probe("hold", self._hold, read_only=True, concurrency_safe=True),)

    async def _hold(self, _arguments: Mapping[str, Any], _context: ToolContext) -> str:
        await self.opened.wait()
        return "held"


class Held:
    """A read that waits until it is let."""

    def __init__(self, owner: Any, name: str) -> None:
        self.asked, self.gate = asyncio.Event(), asyncio.Event()
        self._real = getattr(owner, name)
        setattr(owner, name, self._read)

    async def _read(self, *arguments: Any, **named: Any) -> Any:
        self.asked.set()
        await self.gate.wait()
        return await self._real(*arguments, **named)


async def drained(w: World, grace_s: float = 0) -> None:
    """An end in order, as the service has it."""
    w.sessions.stopping = True
    w.recovery.refuse()
    await w.sessions.close(grace_s)
    await w.recovery.stop()


async def statuses(w: World) -> list[str]:
    return [row["status"] for row in await w.rows("runs")]


async def test_a_task_that_is_taken_up_while_the_service_stops_is_left_to_the_next_one(tmp_path: Path) -> None:
    story, hold = task_and_turn()
    await story.dies(tmp_path, 1_000_000, first=True)
    wrapped = Wrapped()
    async with story.begun(tmp_path, take_up=False, verify=False, wrap=wrapped) as w:
        read = Held(READS["counters"](w), "counters")
        await w.recovery.run()
        await read.asked.wait()
        wrapped.writer.gate.clear()  # an end takes as long as the store does, and meanwhile the rest is read
        making = asyncio.create_task(w.sessions.create(w.tenant, SessionInput(agent="node", agents=[w.node()])))
        await moments(1)
        draining = asyncio.create_task(drained(w))
        read.gate.set()
        await moments(500)
        wrapped.writer.gate.set()
        async with asyncio.timeout(WAIT_S):
            await draining
            await asyncio.gather(making, return_exceptions=True)
    hold.set()
    async with story.ends(tmp_path, verify=False) as w:
        assert await statuses(w) == ["completed"] * 3


@pytest.mark.parametrize("door", ["run", "session"])
async def test_a_cancel_of_what_is_left_to_the_next_process_is_not_answered_as_done(tmp_path: Path, door: str) -> None:
    story, _ = task_and_turn()
    await story.dies(tmp_path, 1_000_000, first=True)
    async with story.begun(tmp_path, take_up=False, verify=False) as w:
        read = Held(w.store, "runs")
        await w.recovery.run()
        await read.asked.wait()
        (session,) = await w.rows("sessions")
        run = next(row for row in await w.rows("runs") if (row["depth"], row["status"]) == (0, "running"))
        asked = w.sessions.cancel(w.tenant, run["id"])
        if door == "session":
            asked.close()
            asked = w.sessions.cancel_session(w.tenant, session["id"])
        asking = asyncio.create_task(asked)  # waits for what is left of the session
        await moments(20)
        await drained(w)
        with pytest.raises(Unavailable, match="next process"):
            async with asyncio.timeout(WAIT_S):
                await asking


@pytest.mark.spec("11.3")
async def test_no_view_is_over_of_what_goes_on_in_the_next_process(tmp_path: Path) -> None:
    gate = Gate()
    async with world(tmp_path, tools=gate.tools, go_on=True, verify=False) as w:
        session = await w.session()
        await w.finished(await w.turn(session, task("one")))
        run = await w.turn(session, task({"calls": [call("hold", key="a")]}, "The end."))
        await w.until(session, "tool.start")
        await drained(w)
        assert (await w.sessions.run_stream(w.tenant, run.id)).ended_seq is None
        assert (await w.sessions.session_stream(w.tenant, session, until_idle=True)).ended_seq is None


async def test_who_tells_something_to_a_run_that_goes_on_in_the_next_process_is_told_to_try_again(
    tmp_path: Path,
) -> None:
    gate = Gate()
    async with world(tmp_path, tools=gate.tools, go_on=True, verify=False) as w:
        session = await w.session()
        run = await w.turn(session, task({"calls": [call("hold", key="a")]}, "The end."))
        await w.until(session, "tool.start")
        ups = FollowUps(sessions=w.sessions, delegations=w.delegations, supervisor=w.supervisor, journal=w.journal)
        await drained(w)
        with pytest.raises(Unavailable, match="stopping"):
            await ups.tell(w.tenant, run.id, "Hurry.")


@pytest.mark.parametrize("go_on", [True, False])
async def test_what_fits_in_the_grace_finishes_also_when_it_delegates(tmp_path: Path, go_on: bool) -> None:
    gate = Gate()
    async with world(tmp_path, tools=gate.tools, go_on=go_on, verify=False) as w:
        session = await w.session()
        await w.turn(session, task({"calls": [call("hold", key="a")]}, {"calls": [ask(task("child"))]}, "The end."))
        await w.until(session, "tool.start")
        closing = asyncio.create_task(w.sessions.close(WAIT_S))
        await moments(20)
        gate.opened.set()
        await closing
        assert await statuses(w) == ["completed", "completed"]


async def test_an_end_in_order_while_a_start_hook_is_asked_is_no_crash(tmp_path: Path) -> None:
    asked, gate = asyncio.Event(), asyncio.Event()

    async def slow(_call: Any) -> None:
        asked.set()
        await gate.wait()

    hooks = HookRegistry([FunctionHook(name="slow", points=frozenset({HookPoint.SUBAGENT_START}), function=slow)])
    async with world(tmp_path, go_on=True, hooks=hooks, verify=False) as w:
        await w.run(task({"calls": [ask(task("child"))]}, "The end."))
        await asked.wait()
        await drained(w)
    gate.set()
    async with world(tmp_path, go_on=True, hooks=hooks, max_attempts=1) as w:
        await still(w)
        assert await statuses(w) == ["completed", "completed"]


@pytest.mark.spec("8.2", "5.7")
async def test_the_question_of_a_run_that_ends_while_the_service_stops_is_withdrawn_though_nobody_put_it_again(
    tmp_path: Path,
) -> None:
    question = AskedBefore(approval_id="apr_1", step=1, arguments={}, asked_at=0, expires_at=2**62, digest="d")
    async with world(tmp_path) as w:
        approvals = w.asking.approvals
        approvals.expect("apr_1")
        approvals.expect_no_more()
        assert approvals.is_expected(question), "its run withdraws it when it ends"
        approvals.expect("apr_2")
        async with asyncio.timeout(WAIT_S):
            await approvals.expected("apr_2", WAIT_S)
        approvals.unexpect("apr_1")
        approvals.unexpect("apr_2")
        assert not approvals.is_expected(question)


# ── delegations that are about to begin ─────────────────────────────────────────────────────────────────────────────

GIVEN: dict[str, Any] = {"task": "Hello.", "agent": {"name": "a", "description": "d", "prompt": "p"}}


async def service(folder: Path, mode: str) -> Wired:
    (folder / "w").mkdir(exist_ok=True)
    settings = {"store": {"url": str(folder / "x.db")}, "models": {"default": "scripted:echo"}}
    return await build(load(**settings, recovery={"mode": mode}, tools={"workspace": str(folder / "w")}))


async def asked_at_the_end(wired: Wired, asking: asyncio.Task[Any], read: Held) -> None:
    """The service stops while somebody's request reads, who is told to come again."""
    await read.asked.wait()
    draining = asyncio.create_task(wired.drain(1.0))
    while not wired.services.sessions.stopping:
        await moments(1)
    read.gate.set()
    async with asyncio.timeout(WAIT_S):
        await draining
        with pytest.raises(Unavailable, match="again"):
            await asking
    await wired.close()


@pytest.mark.spec("14.9", "14.1")
@pytest.mark.parametrize("mode", ["continue", "interrupt"])
@pytest.mark.parametrize("background", [True, False])
async def test_a_delegation_that_is_about_to_begin_when_the_service_stops_begins_when_it_is_sent_again(
    tmp_path: Path, mode: str, background: bool
) -> None:
    request = keyed("default", "k", "POST /v1/delegations", {"a": 1})

    def starting(wired: Wired) -> asyncio.Task[Any]:
        services, given = wired.services, DelegationInput(**GIVEN, background=background)
        start = services.idempotency.once(request, DELEGATION, lambda: services.delegations.start("default", given))
        return asyncio.create_task(start)

    first = await service(tmp_path, mode)
    read = Held(first.services.sessions._store, "counters")
    await asked_at_the_end(first, starting(first), read)
    second = await service(tmp_path, mode)
    try:
        async with asyncio.timeout(WAIT_S):
            again = await starting(second)
            assert not again.replayed
            await again.made.result
        row = await second.services.delegations.get("default", again.kept["id"])
        assert (row["status"], row["error"]) == ("completed", None)
    finally:
        await second.drain(0)
        await second.close()


@pytest.mark.spec("14.9")
async def test_a_delegation_without_a_key_is_refused_and_no_failure_when_the_service_stops(tmp_path: Path) -> None:
    wired = await service(tmp_path, "continue")
    read = Held(wired.services.sessions._store, "counters")
    asking = asyncio.create_task(wired.services.delegations.start("default", DelegationInput(**GIVEN)))
    await asked_at_the_end(wired, asking, read)


# ── what is not taken up yet ────────────────────────────────────────────────────────────────────────────────────────


async def full(w: World) -> None:
    """The one place is taken before what is left is taken up."""
    read = Held(w.store, "handoffs")
    await w.recovery.run()
    other = await w.session()
    await w.turn(other, task({"calls": [call("hold", key="place")]}, "other"))
    await w.until(other, "tool.start")
    read.gate.set()
    async with asyncio.timeout(WAIT_S):
        await w.recovery.settled()


@pytest.mark.spec("14.8", "5.7")
async def test_who_turns_to_a_run_that_is_not_taken_up_yet_is_told_so_and_nothing_is_said_to_be_done(
    tmp_path: Path,
) -> None:
    gate = Gate()

    async def begin(w: World) -> None:
        session = await w.session()
        await w.turn(session, task({"calls": [ask(task({"calls": [call("hold", key="x")]}, "child"))]}, "end"))
        await w.until(session, "tool.start", where=lambda data: data["data"]["tool"] == "hold")
        story.die()

    story = Story(begin, gate.tools)
    await story.dies(tmp_path, 1_000_000, first=True)
    async with story.begun(tmp_path, take_up=False, concurrent_runs=1) as w:
        await full(w)
        (child,) = [row for row in await w.rows("runs") if row["depth"] == 1]
        ups = FollowUps(sessions=w.sessions, delegations=w.delegations, supervisor=w.supervisor, journal=w.journal)
        for asked in (w.sessions.cancel(w.tenant, child["id"]), ups.tell(w.tenant, child["id"], "x")):
            with pytest.raises(Unavailable, match="is being taken up"):
                await asked
        gate.opened.set()
        await still(w)
        assert await statuses(w) == ["completed"] * 3


@pytest.mark.spec("14.10", "5.7")
async def test_who_cancels_a_task_that_is_not_taken_up_yet_is_told_so(tmp_path: Path) -> None:
    gate = Gate()

    async def begin(w: World) -> None:
        session = await w.session(surfaces=["task"])
        inner = behind(task({"calls": [call("hold", key="task")]}, "task done"))
        child = execute(task({"calls": [inner]}, {"calls": [call("hold", key="child")]}, "child"))
        await w.turn(session, task({"calls": [child]}, "end"))
        for depth in (2, 1):
            await w.until(
                session, "tool.start", where=lambda e, at=depth: e["data"]["tool"] == "hold" and e["depth"] == at
            )
        story.die()

    story = Story(begin, gate.tools)
    await story.dies(tmp_path, 1_000_000, first=True)
    async with story.begun(tmp_path, take_up=False, concurrent_runs=1) as w:
        await full(w)
        tasks = Tasks(
            sessions=w.sessions, supervisor=w.supervisor, journal=w.journal, store=w.task_store, retention=Retention()
        )
        (left,) = [row for row in await w.rows("handoffs") if row["background"]]
        with pytest.raises(Unavailable, match="is being taken up"):
            await tasks.cancel(w.tenant, left["id"])
        gate.opened.set()
        await still(w)
        assert await statuses(w) == ["completed"] * 4
