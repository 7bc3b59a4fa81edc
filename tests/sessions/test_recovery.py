"""A process that dies at any moment: the next one closes what was open, once, and every session goes on."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from app.agent.events import Event, Write
from app.agent.hooks import FunctionHook, HookCall, HookPoint, HookRegistry
from app.sessions.ports import EventWriter, Rejected
from app.sessions.recovery import NOT_RUN_RESULT, UNKNOWN_RESULT, Recovery
from app.store.database import writing_connection
from tests.agent.probes import Probe, Stage, echo
from tests.agent.test_fallback_agents import HELPER
from tests.longer import times
from tests.plan import ask, behind, call, task
from tests.strict import history_problem
from tests.world import World, world

WAIT_S = 20.0


class Mortal:
    """A writer whose process dies after `life` events: what comes later is told to be stored and is not."""

    def __init__(self, real: EventWriter, life: int) -> None:
        self.real = real
        self.life = life
        self.died = False

    def write(self, batch: Sequence[Event], writes: Sequence[Write] = ()) -> Sequence[Rejected]:
        """Store what there is life for."""
        kept = list(batch[: self.life])
        self.died = self.died or len(kept) < len(batch)
        self.life = 0 if self.died else self.life - len(kept)
        return self.real.write(kept, () if self.died else writes) if kept else ()

    def rest(self) -> float | None:
        """See `EventWriter.rest`."""
        return self.real.rest()

    def close(self) -> None:
        """See `EventWriter.close`."""
        self.real.close()


USE = {"text": "I work.", "calls": [call("glob", pattern="*"), call("write", x=1), call("nothing")]}
STORY = task(
    {
        "text": "Two parts.",
        "calls": [ask(task(USE, "part one")), ask(task({"calls": [ask(task(USE, "deep"))]}, "two"))],
    },
    {"calls": [call("glob", pattern="*")]},
    "The end.",
)


async def crashed(folder: Path, life: int, tools: Sequence[Probe], *, direct: bool = False) -> int:
    """Run the story in a process that dies after so many events; returns how many there would have been."""
    async with world(folder, tools=tools, wrap=lambda real: Mortal(real, life), verify=False) as w:
        if direct:
            delegated = await w.delegate(STORY, policy={"max_depth": 3})
            await delegated.result
            return w.journal.recorded(delegated.session.id)
        run = await w.run(STORY)
        with contextlib.suppress(Exception):  # what is read may not have been stored
            await w.supervisor.wait(run.id)
        return w.journal.recorded(run.session_id)


async def everything(w: World) -> dict[str, Any]:
    """All rows that say what happened."""
    tables = ("sessions", "events", "runs", "handoffs", "messages", "tool_calls", "memories")
    return {table: await w.rows(table) for table in tables}


@pytest.mark.spec("12.7", "4.6", "11.6", "12.3")
@pytest.mark.case("B103", "B175")
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("start", range(4))
async def test_after_a_crash_at_any_event_everything_is_closed_once_and_the_session_goes_on(
    tmp_path: Path, start: int, direct: bool
) -> None:
    tools = (Probe("write", echo),)
    first = tmp_path / "whole"
    first.mkdir()
    whole = await crashed(first, 10_000, tools, direct=direct)
    assert whole > 60
    for life in range(1 + start, whole + 1, times(20, 4)):
        folder = tmp_path / str(life)
        folder.mkdir()
        await crashed(folder, life, tools, direct=direct)
        async with world(folder, tools=tools) as w:  # recovers, and checks the log at its end
            assert await w.store.open_runs() == []
            assert await w.store.open_handoffs() == []
            assert [r for r in await w.rows("tool_calls") if r["ended_at"] is None] == []
            before = await everything(w)
            assert await Recovery(w.store, w.journal).run() == 0
            assert await everything(w) == before
            (session,) = before["sessions"]
            if not direct:
                row = await w.finished(await w.turn(session["id"], "go on"))
                assert (row["status"], row["output"]) == ("completed", "echo: go on"), row["error"]
                assert row["run"] == len(before["runs"]) + 1
            else:
                await (await w.delegate("go on", session_id=session["id"])).result


@pytest.mark.spec("12.7", "12.2")
@pytest.mark.case("B042")
async def test_a_call_without_a_recorded_outcome_is_told_as_unknown_and_one_that_never_began_as_not_run(
    tmp_path: Path,
) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools, wrap=lambda real: Mortal(real, 9), verify=False) as w:
        session = await w.session()
        run = await w.turn(session, task({"calls": [call("solo", key="a"), call("solo", key="b")]}, "x"))
        await stage.reached("+a")
        started = await w.rows("tool_calls", status="running")  # the ninth event, the last one that was stored
        assert len(started) == 1
        await w.supervisor.cancel(run.id)
    async with world(tmp_path, tools=stage.tools) as w:
        row = await w.row(run)
        assert (row["status"], row["stop_reason"], row["partial"]) == ("interrupted", "shutdown", True)
        assert row["error"]["code"] == "interrupted"
        results = await w.events(session, "tool.result")
        assert [(r["data"]["status"], r["data"]["content"]) for r in results] == [
            ("unknown", UNKNOWN_RESULT), ("not_run", NOT_RUN_RESULT),
        ]  # fmt: skip
        await w.finished(await w.turn(session, "what now?"))
        told = w.requests[-1].messages
        assert history_problem(told) is None
        assert [m.content for m in told if m.role == "tool"] == [UNKNOWN_RESULT, NOT_RUN_RESULT]


@pytest.mark.spec("12.7", "13.4")
async def test_an_interrupted_run_keeps_its_steps_its_words_and_what_it_and_its_children_used(tmp_path: Path) -> None:
    stage = Stage()
    spent = {"input_tokens": 100, "output_tokens": 10}
    child = task({"text": "c", "usage": {"input_tokens": 7}})
    held = task(
        {"text": "said", "usage": spent, "calls": [ask(child)]},
        {"text": "hold", "usage": {"input_tokens": 30}, "calls": [call("hold", key="x")]},
    )
    wrapped: list[Mortal] = []

    def wrap(real: EventWriter) -> EventWriter:
        wrapped.append(Mortal(real, 10_000))
        return wrapped[0]

    async with world(tmp_path, tools=stage.tools, wrap=wrap, verify=False) as w:
        run = await w.run(task({"calls": [ask(held)], "usage": spent}, "x"))
        await stage.reached("+x")
        await w.journal.flush()
        wrapped[0].life = 0
        await w.supervisor.cancel(run.id)
    async with world(tmp_path, tools=stage.tools) as w:
        rows = {row["depth"]: row for row in await w.rows("runs", session_id=run.session_id)}
        assert [rows[depth]["status"] for depth in (0, 1, 2)] == ["interrupted", "interrupted", "completed"]
        assert (rows[1]["steps"], rows[1]["output"]) == (2, "hold")
        assert rows[1]["usage"]["input_tokens"] == 130, "that of the step whose tools were running as well"
        assert rows[1]["usage_total"]["input_tokens"] == 137
        assert rows[0]["usage_total"]["input_tokens"] == 237
        calls = [(rows[depth]["usage"]["model_calls"], rows[depth]["usage_total"]["model_calls"]) for depth in (0, 1)]
        assert calls == [(1, 4), (2, 3)], "a call that broke off costs too"
        (stop,) = [e for e in await w.events(run.session_id, "subagent.stop") if e["run_id"] == rows[1]["id"]]
        assert (stop["data"]["status"], stop["data"]["result"], stop["data"]["steps"]) == ("interrupted", "hold", 2)


@pytest.mark.spec("12.7", "3.6", "14.9")
async def test_a_delegation_whose_run_had_ended_keeps_its_result(tmp_path: Path) -> None:
    for life, status, output in ((12, "completed", "the result"), (5, "interrupted", "")):
        folder = tmp_path / str(life)
        folder.mkdir()
        async with world(folder, wrap=lambda real, life=life: Mortal(real, life), verify=False) as w:  # type: ignore[misc]
            handoff_id = (await (await w.delegate(task("the result"))).result).handoff_id
        async with world(folder) as w:
            found = await w.delegations.get(w.tenant, handoff_id)
            assert (found["status"], found["output"], len(found["run_ids"])) == (status, output, 1)
            (end,) = await w.events(found["session_id"], "handoff.end")
            assert (end["data"]["session_mode"], end["data"]["attempts"]) == ("new_session", 1)
            assert (found["fallback"], "fallback" in end["data"]) == (None, False)


@pytest.mark.spec("12.7", "17.1")
async def test_every_tenants_sessions_are_recovered_under_their_own_tenant(tmp_path: Path) -> None:
    stage = Stage()
    sessions = {}
    for tenant in ("a", "b"):
        async with world(tmp_path, tools=stage.tools, tenant=tenant, recover=False, verify=False,
                         wrap=lambda real: Mortal(real, 10)) as w:  # fmt: skip
            sessions[tenant] = (await w.run(task({"calls": [call("solo", key=tenant)]}, "x"))).session_id
            await stage.reached(f"+{tenant}")
            await w.sessions.close(0)
    async with world(tmp_path, tools=stage.tools, tenant="a") as w:
        rows = await w.rows("events", type="run.interrupted")
        assert {(r["tenant_id"], r["session_id"]) for r in rows} == set(sessions.items())
        with pytest.raises(Exception, match="no session"):
            await w.sessions.session("a", sessions["b"])


@pytest.mark.spec("12.2", "12.7", "14.3")
@pytest.mark.case("B085", "B161")
async def test_after_a_restart_a_session_remembers_its_turns_and_goes_on_with_its_numbers(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.session(title="Mine", policy={"max_depth": 2})
        await w.finished(
            await w.turn(session, task({"text": "I look.", "calls": [call("glob", pattern="*")]}, "code=77"))
        )
        head = (await w.sessions.session(w.tenant, session))["last_event_id"]
    async with world(tmp_path) as w:
        row = await w.finished(await w.turn(session, "which code?"))
        assert (row["turn"], row["run"]) == (1, 2)
        assert [m.content for m in w.requests[-1].messages if m.role == "assistant"] == ["I look.", "code=77"]
        events = await w.events(session)
        assert events[head]["type"] == "run.queued"
        known = await w.sessions.known(w.tenant, session)
        assert (known.title, known.policy.max_depth) == ("Mine", (2,))
        assert json.dumps(known.inline["node"].name) == '"node"'


@pytest.mark.spec("12.7")
async def test_a_crash_during_recovery_is_recovered_from(tmp_path: Path) -> None:
    tools = (Probe("write", echo),)
    await crashed(tmp_path, 55, tools)
    for life in range(1, 6):  # each process dies a little later in its recovery
        with contextlib.suppress(asyncio.CancelledError):
            async with world(tmp_path, tools=tools, wrap=lambda real, life=life: Mortal(real, life), verify=False):  # type: ignore[misc]
                pass
    async with world(tmp_path, tools=tools) as w:
        assert await w.store.open_runs() == []


@pytest.mark.spec("11.3", "12.7", "9.3")
async def test_a_session_is_idle_once_more_behind_what_a_restart_tells_of(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        run = await w.run(task({"calls": [behind(task("found"))]}, "end"), surfaces=["task"])
        await w.finished(run)
        await w.until(run.session_id, "session.idle")
    with writing_connection(w.database.location, "OFF", 1000) as connection, connection.begin():
        connection.execute(text("DELETE FROM notices"))  # as if the process had gone away before it told
    async with world(tmp_path, verify=False) as w:
        kinds = [event["type"] for event in await w.events(run.session_id)]
        assert kinds[-3:] == ["session.idle", "notice", "session.idle"], kinds


@pytest.mark.spec("11.3", "12.7")
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("go_on", [False, True])
async def test_a_session_whose_process_went_away_just_before_it_was_idle_is_idle_after_the_restart(
    tmp_path: Path, go_on: bool, direct: bool
) -> None:
    tools = (Probe("write", echo),)
    whole = await crashed(tmp_path, 10_000, tools, direct=direct)
    folder = tmp_path / "cut"
    folder.mkdir()
    await crashed(folder, whole - 1, tools, direct=direct)
    logs: list[list[str]] = []
    for _ in range(2):
        async with world(folder, tools=tools, go_on=go_on) as w:
            await w.recovery.settled()
            await w.journal.flush()
            assert await w.store.busy_sessions() == []
            (row,) = await w.rows("sessions")
            logs.append([event["type"] for event in await w.events(row["id"])])
    assert len(logs[0]) == whole
    assert (logs[0][-1], logs[0].count("session.idle")) == ("session.idle", 1)
    assert logs[1] == logs[0], "the next restart has nothing to say"


@pytest.mark.spec("11.3", "12.7", "14.2")
@pytest.mark.parametrize("go_on", [False, True])
@pytest.mark.parametrize("what", ["at rest", "closed", "deleted"])
async def test_a_restart_adds_nothing_to_a_session_that_an_older_version_has_left_behind_its_work(
    tmp_path: Path, go_on: bool, what: str
) -> None:
    async with world(tmp_path) as w:
        run = await w.run(task("x"))
        await w.finished(run)
        if what == "closed":
            await w.sessions.update(w.tenant, run.session_id, {}, close=True)
        elif what == "deleted":
            await w.sessions.delete(w.tenant, run.session_id)
        await w.journal.flush()
        before = await w.rows("events")
    with writing_connection(w.database.location, "OFF", 1000) as connection, connection.begin():
        connection.execute(text("UPDATE sessions SET busy_seq = 2"))  # which such a version does not know
    async with world(tmp_path, go_on=go_on) as w, asyncio.timeout(WAIT_S):
        await w.recovery.settled()
        await w.journal.flush()
        assert await w.rows("events") == before


@pytest.mark.spec("12.7", "12.5")
@pytest.mark.parametrize("go_on", [False, True])
@pytest.mark.parametrize("damage", ["UPDATE runs SET usage = '{'", "UPDATE sessions SET config = '{'"])
async def test_a_damaged_session_that_was_at_rest_keeps_neither_the_service_nor_its_readers_waiting(
    tmp_path: Path, go_on: bool, damage: str
) -> None:
    whole = await crashed(tmp_path, 10_000, ())
    folder = tmp_path / "cut"
    folder.mkdir()
    await crashed(folder, whole - 1, ())
    async with world(folder, recover=False, verify=False) as w:
        (session,) = await w.rows("sessions")
        with writing_connection(w.database.location, "OFF", 1000) as connection, connection.begin():
            connection.execute(text(damage))
    async with world(folder, go_on=go_on, verify=False) as w, asyncio.timeout(WAIT_S):
        await w.recovery.settled()
        await w.recovery.ready(session["id"])


@pytest.mark.spec("12.7")
async def test_sessions_that_were_at_rest_are_not_told_of_as_in_flight(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path) as w:
        for _ in range(2):
            await w.finished(await w.run(task("x")))
    with writing_connection(w.database.location, "OFF", 1000) as connection, connection.begin():
        connection.execute(text("UPDATE sessions SET idle_seq = NULL, busy_seq = 2"))
    await died(tmp_path, task({"calls": [call("hold", key="x")]}, "x"))
    caplog.clear()
    async with world(tmp_path, tools=Stage().tools, verify=False):
        (told,) = [record.getMessage() for record in caplog.records if "in flight" in record.getMessage()]
    assert told == "1 runs of 1 sessions were in flight and are interrupted"


@pytest.mark.spec("11.3", "3.6")
@pytest.mark.parametrize("life", [10_000, 2], ids=["whole", "killed"])
async def test_a_session_is_idle_again_behind_a_delegation_without_a_run(tmp_path: Path, life: int) -> None:
    async with world(tmp_path, wrap=lambda real: Mortal(real, life), verify=False) as w:
        delegated = await w.delegate("x", policy={"max_depth": 0})
        await delegated.result
    async with world(tmp_path) as w:
        kinds = [event["type"] for event in await w.events(delegated.session.id)]
        assert kinds == ["session.created", "handoff.start", "handoff.end", "session.idle"]


# ── hooks ───────────────────────────────────────────────────────────────────────────────────────────────────────────

BOTH = frozenset({HookPoint.SUBAGENT_START, HookPoint.SUBAGENT_STOP})


def heard(name: str, function: Any) -> FunctionHook:
    """A hook at both ends of subagents."""
    return FunctionHook(name=name, points=BOTH, function=function)


async def died(folder: Path, plan: str) -> tuple[str, list[HookCall]]:
    """A process that goes away, with everything stored, while `hold` is under way in this tree; its session, and what
    its hook was told until then."""
    stage, wrapped, told = Stage(), list[Mortal](), list[HookCall]()

    def wrap(real: EventWriter) -> EventWriter:
        wrapped.append(Mortal(real, 10_000))
        return wrapped[0]

    hooks = HookRegistry([heard("before", told.append)])
    async with world(folder, tools=stage.tools, wrap=wrap, verify=False, hooks=hooks) as w:
        run = await w.run(plan)
        await stage.reached("+x")
        await w.journal.flush()
        wrapped[0].life = 0
        until_then = list(told)
        await w.supervisor.cancel(run.id)
    return run.session_id, until_then


@pytest.mark.spec("6.4", "12.7", "6.1")
@pytest.mark.case("B103", "B105")
async def test_the_hooks_of_subagents_that_a_crash_ended_are_told_by_the_next_process_with_the_same_ids(
    tmp_path: Path,
) -> None:
    after = list[HookCall]()
    held = task({"text": "I hold.", "calls": [call("hold", key="x")]}, "x")
    plan = task({"calls": [ask(task({"calls": [ask(task("done"))]}, {"calls": [ask(held)]}, "x"))]}, "x")
    session, before = await died(tmp_path, plan)
    stopped = [told for told in before if told.point is HookPoint.SUBAGENT_STOP]
    assert [(told.depth, told.is_error) for told in stopped] == [(2, False)]
    async with world(tmp_path, tools=Stage().tools, hooks=HookRegistry([heard("after", after.append)])) as w:
        await w.recovery.told()
        started = {told.run_id: told for told in before if told.point is HookPoint.SUBAGENT_START}
        assert {told.run_id for told in (*stopped, *after)} == set(started)
        assert [(told.point, told.depth, told.is_error) for told in after] == [
            (HookPoint.SUBAGENT_STOP, 2, True), (HookPoint.SUBAGENT_STOP, 1, True),
        ]  # fmt: skip
        for told in after:
            begun = started[told.run_id]
            same = ("session_id", "agent", "name", "path", "parent_run_id", "lineage", "handoff_id", "workspace")
            assert [getattr(told, name) for name in same] == [getattr(begun, name) for name in same]
        assert [(told.result, told.steps) for told in after] == [
            ("I hold.", 1), ("the service stopped while this run was in flight", 2),
        ]  # fmt: skip
        ends = await w.events(session, "subagent.start", "subagent.stop")
        assert len([e for e in ends if e["type"] == "subagent.stop"]) == len(started) == 3
        await Recovery(w.store, w.journal, HookRegistry([heard("again", after.append)])).run()
        assert len(after) == 2


@pytest.mark.spec("6.4", "12.7")
async def test_a_dead_hook_holds_up_neither_the_start_of_the_service_nor_its_end(tmp_path: Path) -> None:
    plan = task({"calls": [ask(task({"calls": [call("hold", key="x")]}, "x"))]}, "x")
    session, _ = await died(tmp_path, plan)
    asked, told = asyncio.Event(), list[HookCall]()

    async def dead(_told: HookCall) -> None:
        asked.set()
        await asyncio.Event().wait()

    hooks = HookRegistry([heard("dead", dead), heard("alive", told.append)])
    async with world(tmp_path, tools=Stage().tools, hooks=hooks) as w:
        await asked.wait()
        row = await w.finished(await w.turn(session, "go on"))
        assert (row["output"], len(told)) == ("echo: go on", 1)


# ── fallbacks ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Until(Mortal):
    """A process that dies with this event of its third run."""

    def __init__(self, real: EventWriter, last: str) -> None:
        super().__init__(real, 10_000)
        self.last = last
        self.runs = 0

    def write(self, batch: Sequence[Event], writes: Sequence[Write] = ()) -> Sequence[Rejected]:
        """See `Mortal.write`."""
        for at, event in enumerate(batch):
            self.runs += event.type == "run.queued"
            if event.type == self.last and self.runs == 3:
                self.life = min(self.life, at + 1)
        return super().write(batch, writes)


STOPPED = ("interrupted", "the service stopped while this run was in flight")


@pytest.mark.spec("12.7", "4.1", "4.6")
@pytest.mark.parametrize("fallback", [("agent", "helper"), ("model", "scripted:spare")])
@pytest.mark.parametrize(("last", "error"), [("run.completed", ("quota", "no quota left")), ("run.started", STOPPED)])
async def test_a_handoff_that_is_closed_after_a_crash_says_what_stood_in_for_its_agent(
    tmp_path: Path, last: str, error: tuple[str, str], fallback: tuple[str, str]
) -> None:
    async with world(tmp_path, script=HELPER, wrap=lambda real: Until(real, last), verify=False) as w:
        (tmp_path / "scripts" / "spare.yaml").write_text("agents: [{turns: [{text: spared}]}]\n")
        policy = {"on_error": dict([fallback])}
        run = await w.run("go dispatch", agents=[w.node(), w.node("helper")], policy=policy)
        with contextlib.suppress(Exception):  # what is read may not have been stored
            await w.supervisor.wait(run.id)
    async with world(tmp_path) as w:
        (end,) = await w.events(run.session_id, "handoff.end")
        data = end["data"]
        status = "fallback" if last == "run.completed" else "interrupted"
        assert (data["status"], data["attempts"], len(data["run_ids"])) == (status, 1, 2)
        assert (data["fallback"]["kind"], data["fallback"]["target"]) == fallback
        assert (data["error"]["code"], data["error"]["message"]) == error
