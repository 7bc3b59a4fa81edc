"""What a client can ask: tenants stay apart, refusals leave nothing behind, races end in one of the right answers."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from app.agent import supervisor as supervisor_module
from app.agent.errors import Conflict, Denied, InvalidRequest, NotFound, SubagentdError, Unavailable
from app.sessions import service as service_module
from app.sessions import streams as streams_module
from app.sessions.requests import DelegationInput, RunInput, SessionInput
from tests.agent.probes import Probe, Stage, echo
from tests.plan import ask, call, task
from tests.sessions.asking import LOOK, kinds_of, moments, questions
from tests.sessions.test_recovery import Mortal
from tests.world import WAIT_S, world

# ── tenants ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("17.1", "14.2", "14.3", "14.4", "14.8", "14.9")
@pytest.mark.case("B188")
@pytest.mark.parametrize("restarted", [False, True])
async def test_another_tenants_ids_are_as_unknown_as_made_up_ones_in_every_function(
    tmp_path: Path, restarted: bool
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        w = await stack.enter_async_context(world(tmp_path))
        session = await w.session()
        run = await w.turn(session, task({"calls": [ask(task("x"))]}, "end"))
        await w.finished(run)
        handoff = (await (await w.delegate("direct", session_id=session)).result).handoff_id
        before = await w.events(session)
        if restarted:
            await stack.aclose()
            w = await stack.enter_async_context(world(tmp_path))
        made_up = session[:-1] + ("0" if session[-1] != "0" else "1")
        for of, ids in (("other", (session, run.id, handoff)), ("default", (made_up, "run_x", "ho_x"))):
            for question in questions(w, of, *ids):
                with pytest.raises(NotFound):
                    await question()
        for _ in range(2):  # also when the session was looked up by its owner in between
            assert (await w.sessions.session("default", session))["id"] == session
            with pytest.raises(NotFound):
                await w.sessions.session("other", session)
        assert (await w.sessions.sessions("other", None, 50))["items"] == []
        assert await w.events(session) == before, "nothing was recorded on the way"


@pytest.mark.spec("17.1")
@pytest.mark.case("B188")
async def test_a_run_in_the_air_is_unknown_to_another_tenant_and_not_disturbed(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(task({"calls": [call("hold", key="x")]}, "mine"))
        await stage.reached("+x")
        for question in questions(w, "other", run.session_id, run.id, "ho_x"):
            with pytest.raises(NotFound):
                await question()
        stage.open("x")
        assert (await w.finished(run))["output"] == "mine"


@pytest.mark.spec("11.3")
async def test_the_view_of_a_run_begins_with_it_while_it_is_open_and_later(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        session = await w.session()
        await w.finished(await w.turn(session, task("one")))
        run = await w.turn(session, task({"calls": [call("hold", key="x")]}, "two"))
        await stage.reached("+x")
        queued = (await w.events(session, "run.queued"))[-1]
        view = await w.sessions.run_stream("default", run.id)
        assert (view.begins, view.ended_seq) == (queued["id"] - 1, None)
        stage.open("x")
        await w.finished(run)
        ended = (await w.events(session, "run.completed"))[-1]["id"]
        for _ in range(2):
            view = await w.sessions.run_stream("default", run.id)
            assert (view.begins, view.ended_seq) == (queued["id"] - 1, ended)
            w.supervisor._aloft._ended.clear()  # as after a restart


# ── refusals ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("14.1", "14.3", "14.7", "14.9")
@pytest.mark.case("B150")
async def test_what_is_refused_leaves_no_session_and_no_stream_behind(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        node = w.node()
        good = SessionInput(agent="node", agents=[node])
        wrong: list[Callable[[], Awaitable[Any]]] = [
            lambda: w.sessions.create("default", SessionInput(agent="nobody")),
            lambda: w.sessions.create("default", SessionInput(agent="node", agents=[node, "nobody"])),
            lambda: w.sessions.create("default", SessionInput(agent="node", agents=[node, node])),
            lambda: w.sessions.create("default", SessionInput(agent="node", agents=[node], model="nothing:x")),
            lambda: w.sessions.create("default", SessionInput(agent="node", agents=[node], workspace="../up")),
            lambda: w.sessions.create("default", SessionInput(agent="node", agents=[node], policy={"depth": 1})),
            lambda: w.sessions.run_once("default", good, RunInput(input="x", max_steps=0)),
            lambda: w.sessions.run_once("default", good, RunInput(input="x", max_steps=201)),
            lambda: w.delegations.start("default", DelegationInput(agent="nobody", task="x")),
            lambda: w.delegations.start("default", DelegationInput(agent=node, task="x", max_steps=999)),
            lambda: w.delegations.start("default", DelegationInput(agent=node, task="x", policy={"max_depth": -2})),
            lambda: w.delegations.start("default", DelegationInput(agent=node, task="x", model="nothing:x")),
            lambda: w.delegations.start("default", DelegationInput(agent=node, task="x", workspace="none")),
        ]
        for request in wrong:
            with pytest.raises(SubagentdError):
                await request()
        assert await w.rows("events") == []
        assert w.journal._streams == {}


@pytest.mark.spec("14.3")
@pytest.mark.case("B086")
async def test_of_many_turns_at_once_one_runs_and_the_others_are_told_that_the_session_is_busy(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        session = await w.session()
        plan = task({"calls": [call("hold", key="x")]}, "done")
        answers = await asyncio.gather(*(w.turn(session, plan) for _ in range(10)), return_exceptions=True)
        refused = [a for a in answers if isinstance(a, Conflict)]
        assert (len(refused), {r.code for r in refused}) == (9, {"session_busy"})
        stage.open("x")
        (run,) = [a for a in answers if not isinstance(a, BaseException)]
        await w.finished(run)
        assert (await w.finished(await w.turn(session, "next")))["turn"] == 1


@pytest.mark.spec("14.3")
async def test_a_start_that_is_cancelled_at_any_moment_leaves_the_session_usable(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        for moment in range(25):
            session = await w.session()
            if moment % 2:
                await w.finished(await w.turn(session, "first"))
            starting = asyncio.create_task(w.turn(session, task(LOOK, "started")))
            await moments(moment)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            for row in await w.rows("runs", session_id=session):
                await w.finished(row["id"])
            assert (await w.finished(await w.turn(session, "after")))["output"] == "echo: after"


@pytest.mark.spec("14.1")
async def test_a_session_is_stored_when_it_is_answered_and_shows_what_it_was_made_of(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        made = await w.sessions.create(
            w.tenant, SessionInput(agent="node", agents=[w.node()], title="T", user="u", metadata={"k": [1]})
        )
        assert (made["status"], made["title"], made["user"], made["metadata"]) == ("idle", "T", "u", {"k": [1]})
        assert made["last_event_id"] == 1
        with pytest.raises(InvalidRequest):
            await w.turn(made["id"], "x", max_steps=0)


# ── numbers ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("11.1", "14.3", "2.4")
async def test_sessions_that_were_forgotten_in_between_go_on_with_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "IDLE_STREAMS", 0)
    monkeypatch.setattr(supervisor_module, "IDLE_SESSIONS", 0)
    monkeypatch.setattr(service_module, "KNOWN_SESSIONS", 1)
    async with world(tmp_path) as w:
        sessions = [await w.session() for _ in range(3)]
        for turn in range(4):
            plan = task({"calls": [ask(task(f"answer {turn}"), subagent_name="Helper")]}, f"turn {turn}")
            runs = await asyncio.gather(*(w.turn(session, plan) for session in sessions))
            for run in runs:
                row = await w.finished(run)
                assert (row["output"], row["turn"], row["run"]) == (f"turn {turn}", turn, 2 * turn + 1)
        for session in sessions:
            names = [e["data"]["name"] for e in await w.events(session, "handoff.start")]
            assert names == ["Helper", "Helper_2", "Helper_3", "Helper_4"]
        assert len(w.sessions._known) == 1
        assert len(w.supervisor._sessions) == 0


@pytest.mark.spec("11.1")
async def test_a_session_that_stays_open_for_long_keeps_no_other_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "IDLE_SESSIONS", 1)
    async with world(tmp_path) as w:
        first = await w.session()
        async with w.sessions.opened(await w.sessions.known(w.tenant, first)):
            ended = [await w.finished(await w.run(task(f"{number}"))) for number in range(3)]
            knows = [w.supervisor.knows(session) for session in (first, *(run["session_id"] for run in ended))]
        assert knows == [True, False, False, False]


@pytest.mark.spec("11.1", "3.6")
async def test_a_session_is_worked_in_by_many_at_once_with_one_sequence_of_numbers(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.session()
        plan = task({"calls": [ask(task(LOOK, "a")), ask(task(LOOK, "b"))]}, "end")
        turn = await w.turn(session, plan)
        direct = await asyncio.gather(*(w.delegate(task(LOOK, str(n)), session_id=session) for n in range(8)))
        results = await asyncio.gather(*(d.result for d in direct))
        await w.finished(turn)
        assert [r.outcome.output for r in results if r.outcome] == [str(n) for n in range(8)]
        rows = await w.rows("runs", session_id=session)
        assert sorted(r["ordinal"] for r in rows) == list(range(1, 12))


@pytest.mark.spec("14.3", "11.4")
async def test_a_start_says_behind_which_event_its_own_begin(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        first = await w.sessions.run_once(
            w.tenant, SessionInput(agent="node", agents=[w.node()]), RunInput(input=task("one"))
        )
        session = first.run.session_id
        await w.finished(first.run)
        second = await w.sessions.start(w.tenant, session, RunInput(input="two"))
        third = await w.delegate("three", session_id=session)
        await third.result
        await w.finished(second.run)
        events = await w.events(session)
        assert first.after == 0
        assert (events[second.after]["type"], events[second.after]["run_id"]) == ("run.queued", second.run.id)
        assert next(e for e in events[third.after :] if e["type"] == "handoff.start")["data"]["input"] == "three"


# ── waiting and stopping ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("14.8", "12.3")
async def test_waiting_for_a_run_ends_with_its_stored_end_or_with_the_time(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(task({"calls": [call("hold", key="x")]}, "done"))
        assert (await w.sessions.run(w.tenant, run.id, 0.02))["status"] == "running"
        waiters = [asyncio.create_task(w.sessions.run(w.tenant, run.id, WAIT_S)) for _ in range(3)]
        await stage.reached("+x")
        waiters[0].cancel()
        stage.open("x")
        rows = await asyncio.gather(*waiters[1:])
        assert [(row["status"], row["output"]) for row in rows] == [("completed", "done")] * 2


@pytest.mark.spec("9.6")
async def test_a_service_that_stops_starts_nothing_more(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.session()
        await w.sessions.close(0)
        for refused in (w.session(), w.turn(session, "x"), w.delegate("x"), w.delegate("x", session_id=session)):
            with pytest.raises(Unavailable):
                await refused
        assert (await w.sessions.session(w.tenant, session))["status"] == "idle"


@pytest.mark.spec("11.3", "11.6")
async def test_a_session_is_idle_when_its_last_run_and_delegation_have_ended(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        session = await w.session()
        run = await w.turn(session, task({"calls": [call("hold", key="turn")]}, "x"))
        direct = await w.delegate(task({"calls": [call("hold", key="direct")]}, "y"), session_id=session)
        await stage.reached("+turn", "+direct")
        stage.open("turn")
        await w.finished(run)
        assert await w.events(session, "session.idle") == []
        assert (await w.sessions.session(w.tenant, session))["status"] == "active"
        view = await w.sessions.session_stream(w.tenant, session, until_idle=True)
        watching = asyncio.create_task(kinds_of(w, view))
        stage.open("direct")
        await direct.result
        seen = await watching
        assert seen[-1] == "session.idle"
        assert [e["type"] for e in await w.events(session)][-2:] == ["handoff.end", "session.idle"]
        ended = await w.sessions.session_stream(w.tenant, session, until_idle=True)
        assert ended.ended_seq == len(await w.events(session))


# ── delegations ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("3.6", "14.9", "4.1")
async def test_a_direct_delegation_answers_is_read_again_and_is_denied_by_policy(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        delegated = await w.delegate("do it", context="with care", name="My helper", max_steps=3)
        answer = await w.delegations.result(w.tenant, delegated)
        assert (answer["status"], answer["output"]) == ("completed", "echo: do it\n\nContext:\nwith care")
        assert (answer["name"], answer["depth"], answer["attempts"]) == ("My_helper", 1, 1)
        assert await w.delegations.get(w.tenant, delegated.handoff_id) == answer
        denied = await w.delegate("never", policy={"denied_tools": ["subagent_node"]})
        with pytest.raises(Denied, match="denied_tools") as refusal:
            await w.delegations.result(w.tenant, denied)
        read = await w.delegations.get(w.tenant, refusal.value.extra["handoff_id"])
        assert (read["status"], read["run_id"], read["attempts"]) == ("denied", None, 0)
        failed = await w.delegate(task({"error": {"message": "no quota"}}))
        assert (await w.delegations.result(w.tenant, failed))["error"]["message"] == "no quota"


@pytest.mark.spec("14.9", "3.6")
@pytest.mark.case("B165", "B169")
async def test_a_delegation_goes_on_when_its_caller_goes_away_at_any_moment(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        for moment in range(1, 20):
            caller = asyncio.create_task(w.delegate(task(LOOK, f"answer {moment}")))
            await moments(moment)
            caller.cancel()
            await asyncio.gather(caller, return_exceptions=True)
        await w.delegations.close()
        rows = await w.rows("handoffs")
        assert {row["status"] for row in rows} == {"completed"}
        assert len(rows) >= 15


@pytest.mark.spec("14.9")
async def test_the_tools_of_a_delegation_can_only_be_narrowed_by_its_caller(tmp_path: Path) -> None:
    async with world(tmp_path, tools=(Probe("write", echo),)) as w:
        await (await w.delegate("x", agent=w.node(tools=["glob", "grep"]), tools=["glob", "write"])).result
        assert [spec.name for spec in w.requests[-1].tools] == ["glob"]


# ── waiting for a run ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("14.8", "12.7")
async def test_who_waits_for_a_run_in_the_air_is_told_of_its_end_whatever_else_of_its_session_is_looked_at(
    tmp_path: Path,
) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(task({"calls": [call("hold", key="x")]}, "end"))
        await stage.reached("+x")
        w.sessions.gate = _never
        waiting = asyncio.create_task(w.row(run, 10 * WAIT_S))
        stage.open("x")
        async with asyncio.timeout(WAIT_S):
            assert (await waiting)["status"] == "completed"
            assert (await w.row(run, 10 * WAIT_S))["status"] == "completed"


@pytest.mark.spec("14.8", "12.7")
async def test_who_has_waited_for_a_session_to_be_taken_up_is_told_how_far_the_run_is_now(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools, verify=False, wrap=lambda real: Mortal(real, 10)) as w:
        run = await w.run(task({"calls": [call("solo", key="x")]}, "end"))
        await stage.reached("+x")
        await w.sessions.close(0)
    async with world(tmp_path, tools=stage.tools, recover=False) as w:
        assert (await w.row(run))["ended_at"] is None

        async def gate(_: str) -> None:
            await w.recovery.run()
            await asyncio.Event().wait()

        w.sessions.gate = gate
        assert (await w.row(run, 0.5))["status"] == "interrupted"


async def _never(_: str) -> None:
    await asyncio.Event().wait()
