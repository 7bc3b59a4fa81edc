"""Closing and deleting a session: nothing begins after it, nothing is left of it, whatever comes at the same time."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.agent import supervisor as supervisor_module
from app.agent.errors import Conflict, NotFound, SubagentdError
from app.sessions import streams as streams_module
from tests.agent.probes import Stage
from tests.plan import ask, call, task
from tests.sessions.asking import LOOK, kinds_of, moments, questions
from tests.world import WAIT_S, world


@pytest.mark.spec("14.2", "14.3", "11.3")
@pytest.mark.parametrize("start", range(3))
@pytest.mark.parametrize("how", ["close", "delete"])
async def test_nothing_begins_in_a_session_once_it_is_closed_whatever_comes_at_the_same_time(
    tmp_path: Path, how: str, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "IDLE_STREAMS", 0)  # so that opening a session has to look into the store
    monkeypatch.setattr(supervisor_module, "IDLE_SESSIONS", 0)
    async with world(tmp_path) as w:
        for moment in range(start, 36, 3):
            session = await w.session()
            await w.finished(await w.turn(session, "first"))
            jobs: list[asyncio.Task[Any]] = [
                asyncio.create_task(w.turn(session, task(LOOK, "x"))),
                asyncio.create_task(w.delegate("y", session_id=session)),
                asyncio.create_task(w.sessions.update(w.tenant, session, {"title": "z"})),
            ]
            await moments(moment)
            if how == "close":
                await w.sessions.update(w.tenant, session, {}, close=True)
            else:
                await w.sessions.delete(w.tenant, session)
            answers = await asyncio.gather(*jobs, return_exceptions=True)
            for answer in answers:
                assert not isinstance(answer, BaseException) or isinstance(answer, Conflict | NotFound), answer
            expected: type[SubagentdError] = Conflict if how == "close" else NotFound
            for again in (w.turn(session, "late"), w.delegate("late", session_id=session)):
                with pytest.raises(expected):
                    await again
            rows = await w.rows("events", session_id=session)
            assert rows[-1]["type"] == "session.closed", [r["type"] for r in rows[-4:]]


@pytest.mark.spec("14.2")
async def test_closing_at_once_from_many_sides_closes_once(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(task({"calls": [call("hold", key="x")]}, "done"))
        await stage.reached("+x")
        jobs = [w.sessions.update(w.tenant, run.session_id, {}, close=True) for _ in range(5)]
        async with asyncio.timeout(WAIT_S):
            answers = await asyncio.gather(*jobs, return_exceptions=True)
        assert all(isinstance(a, Conflict) or a["status"] == "closed" for a in answers)  # type: ignore[index]
        assert len(await w.events(run.session_id, "session.closed")) == 1
        assert len(await w.events(run.session_id, "session.idle")) == 1


@pytest.mark.spec("14.2", "12.5")
async def test_a_deleted_session_is_unknown_and_its_words_are_gone_from_every_table(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        other = await w.run(task("untouched"))
        run = await w.run(task({"calls": [ask(task("a very private word"))]}, "end"), title="private", user="me")
        await w.finished(run)
        (handoff,) = await w.rows("handoffs")
        view = await w.sessions.session_stream(w.tenant, run.session_id, until_idle=False)
        watching = asyncio.create_task(kinds_of(w, view))
        await w.sessions.delete(w.tenant, run.session_id)
        assert (await watching)[-1] == "session.closed"
        for question in questions(w, w.tenant, run.session_id, run.id, handoff["id"]):
            with pytest.raises(NotFound):
                await question()
        for table in ("runs", "handoffs", "messages", "tool_calls", "memories"):
            assert await w.rows(table, session_id=run.session_id) == [], table
        rows = await w.rows("events", session_id=run.session_id)
        assert {row["data"] for row in rows[:-1]} == {None}
        assert (await w.finished(other))["output"] == "untouched"
        assert [s["id"] for s in (await w.sessions.sessions(w.tenant, None, 50))["items"]] == [other.session_id]
    async with world(tmp_path) as w:
        with pytest.raises(NotFound):
            await w.turn(run.session_id, "again")


@pytest.mark.spec("14.2")
async def test_changes_that_come_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.session()
        change = w.sessions.update
        await asyncio.gather(
            change(w.tenant, session, {"title": "T"}), change(w.tenant, session, {"metadata": {"k": 1}})
        )
        known = await w.sessions.known(w.tenant, session)
        assert (known.title, known.metadata) == ("T", {"k": 1})
        seen = await w.sessions.session(w.tenant, session)
        assert (seen["title"], seen["metadata"], seen["status"]) == ("T", {"k": 1}, "idle")
