"""Which memory a delegation works on: a fresh one, or one that calls share, in whose scope, and who waits for whom."""

from pathlib import Path
from typing import Any

import pytest

from app.agent.chat import ChatRequest
from app.agent.messages import Role
from tests.agent.handoff_events import told
from tests.agent.probes import Stage
from tests.plan import ask, call, task
from tests.strict import history_problem
from tests.world import World, world

KEEPER = {"session_mode": "reuse_session"}


def keeper(w: World, name: str = "keeper", **fields: Any) -> dict[str, Any]:
    """An agent that remembers."""
    return w.node(name, **KEEPER, **fields)


def asked(w: World, agent: str = "keeper") -> list[ChatRequest]:
    """What the model was asked for that agent."""
    return [request for request in w.requests if request.messages[0].content == f"You are {agent}."]


def answers(request: ChatRequest) -> list[str]:
    """The agent's earlier answers that a request holds."""
    return [m.content for m in request.messages if m.role is Role.ASSISTANT and not m.tool_calls]


async def ended(w: World, session_id: str) -> list[tuple[str, str | None]]:
    """Status and error code of the handoffs of a session, in the order of their calls."""
    found = await w.events(session_id, "handoff.start", "handoff.end")
    ends = {e["data"]["handoff_id"]: e["data"] for e in found if e["type"] == "handoff.end"}
    starts = [e["data"]["handoff_id"] for e in found if e["type"] == "handoff.start"]
    return [(ends[h]["status"], (ends[h].get("error") or {}).get("code")) for h in starts]


# ── fresh and shared ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("2.1", "4.9")
@pytest.mark.seed("000", 19, 42)
async def test_by_default_every_handoff_has_a_memory_of_its_own(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        calls = {"calls": [ask(task("one")), ask(task("two"))]}
        row = await w.finished(await w.run(task(calls, {"calls": [ask(task("three"))]}, "end")))
        children = [r for r in await w.rows("runs", session_id=row["session_id"]) if r["depth"] == 1]
        assert len({r["memory_id"] for r in children}) == 3
        assert {r["turn"] for r in children} == {0}
        for request in w.requests:
            if request.messages[1].content in (task("one"), task("two"), task("three")):
                assert [m.role for m in request.messages] == [Role.SYSTEM, Role.USER]
        starts = await w.events(row["session_id"], "handoff.start")
        assert {e["data"]["session_mode"] for e in starts} == {"new_session"}
        assert all("session_scope" not in e["data"] for e in starts)


@pytest.mark.spec("2.1", "4.9", "12.2")
@pytest.mark.seed("000", 13, 18, 43)
@pytest.mark.parametrize("surface", ["dispatch", "per_agent", "task", "subagent"])
async def test_calls_of_one_turn_to_an_agent_that_remembers_run_one_by_one_in_their_order(
    tmp_path: Path, surface: str
) -> None:
    count = 50
    async with world(tmp_path, default_subagent="keeper") as w:
        calls = [_call(surface, task(f"answer {number}"), number) for number in range(count)]
        row = await w.finished(
            await w.run(task({"calls": calls}, "end"), agents=[w.node(), keeper(w)], surfaces=[surface])
        )
        assert row["output"] == "end"
        requests = asked(w)
        assert len(requests) == count
        for number, request in enumerate(requests):
            assert answers(request) == [f"answer {earlier}" for earlier in range(number)]
            assert [m.role for m in request.messages] == [
                Role.SYSTEM,
                *[Role.USER, Role.ASSISTANT] * number,
                Role.USER,
            ]
        runs = await w.rows("runs", session_id=row["session_id"], agent="keeper")
        assert len({r["memory_id"] for r in runs}) == 1
        assert [r["turn"] for r in sorted(runs, key=lambda r: r["ordinal"])] == list(range(count))
        results = [result["content"] for result in await told(w, row["session_id"])]
        assert all(f"answer {number}" in result for number, result in enumerate(results))
        at_work: list[str] = []
        for event in await w.events(row["session_id"], "run.started", "run.completed"):
            if event["agent"] == "keeper":
                at_work.append(event["run_id"]) if event["type"] == "run.started" else at_work.pop()
                assert len(at_work) <= 1
        starts = [e["data"] for e in await w.events(row["session_id"], "handoff.start")]
        assert {(s["session_mode"], s["session_scope"]) for s in starts} == {("reuse_session", "session")}


def _call(surface: str, plan: str, number: int) -> dict[str, Any]:
    if surface == "dispatch":
        return ask(plan, agent="keeper")
    if surface == "per_agent":
        return call("subagent_keeper", task=plan)
    if surface == "task":
        return call("execute_task", name="keeper", description=f"call number {number}", prompt=plan)
    return call("subagent", research_prompt=plan)


@pytest.mark.spec("4.9")
async def test_others_go_on_side_by_side_while_one_memory_is_held(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        held = task({"calls": [call("hold", key="first")]}, "first")
        free = task({"calls": [call("hold", key="free")]}, "free")
        calls = [
            ask(held, agent="keeper"),
            ask(task("second"), agent="keeper"),
            ask(free),
            ask(task("x"), agent="other"),
        ]
        agents = [w.node(), keeper(w), keeper(w, "other")]
        run = await w.run(task({"calls": calls}, "end"), agents=agents)
        await stage.reached("+first", "+free")
        await w.until(run.session_id, "handoff.end", where=lambda event: event["data"]["subagent"] == "other")
        assert not any("second" in str(request.messages[-1].content) for request in asked(w))
        stage.open("first", "free")
        assert (await w.finished(run))["output"] == "end"
        assert answers(asked(w)[-1]) == ["first"]


@pytest.mark.spec("4.9", "12.2")
async def test_a_memory_holds_everything_that_its_runs_did_not_only_their_answers(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        (tmp_path / "workspace" / "a.txt").write_text("the content\n")
        reads = task({"text": "I read.", "calls": [call("read_file", path="a.txt")]}, "read it")
        plan = task({"calls": [ask(reads, agent="keeper")]}, {"calls": [ask("and now?", agent="keeper")]}, "end")
        await w.finished(await w.run(plan, agents=[w.node(), keeper(w)]))
        last = asked(w)[-1].messages
        assert [m.role.value for m in last] == ["system", "user", "assistant", "tool", "assistant", "user"]
        assert "the content" in last[3].content
        assert last[-1].content == "and now?"


@pytest.mark.spec("4.9")
@pytest.mark.seed("000", 43)
async def test_different_tools_to_the_same_agent_do_not_share(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        calls = [ask(task("one"), agent="keeper"), call("subagent_keeper", task=task("two"))]
        run = await w.run(
            task({"calls": calls}, "end"), agents=[w.node(), keeper(w)], surfaces=["dispatch", "per_agent"]
        )
        row = await w.finished(run)
        runs = await w.rows("runs", session_id=row["session_id"], agent="keeper")
        assert len({r["memory_id"] for r in runs}) == 2


# ── scopes ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("4.9")
@pytest.mark.seed("000", 54)
@pytest.mark.parametrize(
    ("scope", "first", "second", "shares", "applies", "noted"),
    [
        ("session", {"user": "ann"}, {"user": "ann"}, False, "session", None),
        ("user", {"user": "ann"}, {"user": "ann"}, True, "user", None),
        ("user", {"user": "ann"}, {"user": "bob"}, False, "user", None),
        ("user", {}, {}, False, "session", "no user"),
        ("tenant", {}, {"user": "bob"}, True, "tenant", None),
        ("key", {"session_key": "k"}, {"session_key": "k"}, True, "key", None),
        ("key", {"session_key": "k"}, {"session_key": "other"}, False, "key", None),
        ("key", {}, {}, False, "session", "no session_key"),
    ],
)
async def test_a_scope_says_who_shares_a_memory_and_a_missing_value_falls_to_the_session(
    tmp_path: Path,
    scope: str,
    first: dict[str, str],
    second: dict[str, str],
    shares: bool,
    applies: str,
    noted: str | None,
) -> None:
    async with world(tmp_path) as w:
        for text, given in (("one", first), ("two", second)):
            delegated = await w.delegate(task(text), agent=keeper(w, session_scope=scope), **given)
            assert (await w.delegations.result(w.tenant, delegated))["output"] == text
            start, end = await w.events(delegated.session.id, "handoff.start", "handoff.end")
            assert start["data"]["session_scope"] == applies
            assert (noted is None) == ("scope_note" not in start["data"])
            assert noted is None or noted in start["data"]["scope_note"]
            assert end["data"]["session_mode"] == "reuse_session"
        assert answers(asked(w)[-1]) == (["one"] if shares else [])


@pytest.mark.spec("4.9")
async def test_a_key_comes_with_the_call_of_a_model(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        agents = [w.node(), keeper(w, session_scope="key")]
        keyed = [
            ask(task(text), agent="keeper", **({"session_key": key} if key else {}))
            for text, key in (("a1", "a"), ("b1", "b"), ("none", None), ("a2", "a"))
        ]
        row = await w.finished(await w.run(task({"calls": keyed}, "end"), agents=agents))
        assert row["output"] == "end"
        held = {request.messages[-1].content: answers(request) for request in asked(w)}
        assert held == {task("a1"): [], task("b1"): [], task("none"): [], task("a2"): ["a1"]}
        again = await w.run(task({"calls": [ask(task("a3"), agent="keeper", session_key="a")]}, "end"), agents=agents)
        await w.finished(again)
        assert answers(asked(w)[-1]) == ["a1", "a2"], "a key is of the tenant, not of the session"


@pytest.mark.spec("4.9", "9.4")
async def test_two_sessions_of_a_user_share_one_memory_in_parallel_and_after_a_restart(tmp_path: Path) -> None:
    stage = Stage()
    remembers = {"session_scope": "user"}
    async with world(tmp_path, tools=stage.tools) as w:
        agents = [w.node(), keeper(w, **remembers)]
        held = task({"calls": [call("hold", key="x")]}, "one")
        one = await w.run(task({"calls": [ask(held, agent="keeper")]}, "end"), agents=agents, user="ann")
        await stage.reached("+x")
        two = await w.run(task({"calls": [ask(task("two"), agent="keeper")]}, "end"), agents=agents, user="ann")
        await w.until(two.session_id, "run.queued", 2)
        stage.open("x")
        for run in (one, two):
            assert (await w.finished(run))["output"] == "end"
        assert answers(asked(w)[-1]) == ["one"]
        (first,) = await w.rows("runs", session_id=one.session_id, agent="keeper")
        (second,) = await w.rows("runs", session_id=two.session_id, agent="keeper")
        assert (first["memory_id"], first["turn"], second["turn"]) == (second["memory_id"], 0, 1)
    async with world(tmp_path, tools=stage.tools) as w:
        agents = [w.node(), keeper(w, **remembers)]
        plan = task({"calls": [ask(task("three"), agent="keeper"), ask(task("four"), agent="keeper")]}, "end")
        await w.finished(await w.run(plan, agents=agents, user="ann"))
        assert [answers(request) for request in asked(w)] == [["one", "two"], ["one", "two", "three"]]
        rows = await w.rows("messages", memory_id=first["memory_id"])
        places = [(r["turn"], r["step"], r["sub"]) for r in sorted(rows, key=lambda r: r["memory_seq"])]
        assert places == sorted(set(places))
        assert [r["memory_seq"] for r in rows] == sorted({r["memory_seq"] for r in rows})


@pytest.mark.spec("4.9", "14.2")
@pytest.mark.parametrize("goes", [0, 1])
async def test_deleting_one_session_leaves_the_other_s_work_as_an_acceptable_history(tmp_path: Path, goes: int) -> None:
    async with world(tmp_path) as w:
        agents = [w.node(), keeper(w, session_scope="user")]
        sessions = [await w.session(agents=agents, user="ann") for _ in range(2)]
        for session_id, text in zip(sessions, ("one", "two"), strict=True):
            plan = task({"calls": [ask(task({"calls": [call("glob", pattern="*")]}, text), agent="keeper")]}, "end")
            await w.finished(await w.turn(session_id, plan))
        await w.sessions.delete(w.tenant, sessions[goes])
        stays = sessions[1 - goes]
        await w.finished(await w.turn(stays, task({"calls": [ask(task("three"), agent="keeper")]}, "end")))
        request = w.requests[-2]
        assert history_problem(request.messages) is None
        assert answers(request) == [("one", "two")[1 - goes]]
        assert request.messages[0].role is Role.SYSTEM, "the agent is told who it is"
        assert request.messages[0].content == "You are keeper."


# ── waiting ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("4.9", "5.7")
async def test_one_that_is_cancelled_while_it_waits_ends_cancelled_and_the_next_goes_on(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        held = task({"calls": [call("hold", key="x")]}, "one")
        calls = [ask(held, agent="keeper"), ask(task("two"), agent="keeper"), ask(task("three"), agent="keeper")]
        run = await w.run(task({"calls": calls}, "end"), agents=[w.node(), keeper(w)])
        await stage.reached("+x")
        await w.until(run.session_id, "run.queued", 4)
        _, second, third = await w.rows("runs", session_id=run.session_id, agent="keeper")
        assert [r["status"] for r in (second, third)] == ["queued", "queued"]
        answer = await w.sessions.cancel(w.tenant, second["id"])
        assert answer["cancelled"] == [second["id"]]
        assert (await w.row(second["id"]))["status"] == "cancelled"
        assert (await w.row(third["id"]))["status"] == "queued"
        stage.open("x")
        assert (await w.finished(run))["output"] == "end"
        assert answers(asked(w)[-1]) == ["one"]
        assert (await ended(w, run.session_id))[1:] == [("cancelled", "cancelled"), ("completed", None)]
        assert await w.events(run.session_id, "message") == [
            event for event in await w.events(run.session_id, "message") if event["run_id"] != second["id"]
        ]


@pytest.mark.spec("4.9", "5.7")
async def test_cancelling_the_parent_empties_the_queue(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        held = task({"calls": [call("hold", key="x")]}, "one")
        calls = [ask(held, agent="keeper"), *[ask(task("more"), agent="keeper") for _ in range(5)]]
        agents = [w.node(), keeper(w)]
        run = await w.run(task({"calls": calls}, "end"), agents=agents)
        await w.until(run.session_id, "run.queued", 7)
        await stage.reached("+x")
        await w.sessions.cancel(w.tenant, run.id)
        assert {r["status"] for r in await w.rows("runs", session_id=run.session_id)} == {"cancelled"}
        assert "!x" in stage.diary
        row = await w.finished(
            await w.turn(run.session_id, task({"calls": [ask(task("after"), agent="keeper")]}, "end"))
        )
        assert row["output"] == "end"
        assert history_problem(asked(w)[-1].messages) is None


@pytest.mark.spec("4.4", "4.9")
async def test_the_clock_of_an_attempt_starts_when_it_holds_its_memory(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools) as w:
        shared = keeper(w, session_scope="user")
        holder = await w.delegate(task({"calls": [call("hold", key="x")]}, "one"), agent=shared, user="ann")
        await stage.reached("+x")
        waiter = await w.delegate(task("two"), agent=shared, user="ann", timeout_ms=150)
        clock = await w.delegate(task({"calls": [call("hold", key="never")]}, "no"), timeout_ms=300)
        assert (await w.delegations.result(w.tenant, clock))["status"] == "timed_out"
        run_id = waiter.ids.result()[1]
        assert run_id is not None
        assert (await w.row(run_id))["status"] == "queued", "its time would be over twice"
        stage.open("x")
        assert (await w.delegations.result(w.tenant, holder))["output"] == "one"
        assert (await w.delegations.result(w.tenant, waiter))["output"] == "two"


@pytest.mark.spec("4.9", "4.7")
async def test_a_failed_run_leaves_what_it_had_and_its_second_attempt_goes_to_the_end_of_the_queue(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        error = {"code": "overloaded", "message": "busy", "retryable": True}
        fails = task({"text": "half", "error": error}, "never")
        calls = [ask(fails, agent="keeper"), ask(task("second"), agent="keeper")]
        run = await w.run(
            task({"calls": calls}, "end"), agents=[w.node(), keeper(w)], policy={"max_depth": 3, "max_retries": 1}
        )
        assert (await w.finished(run))["output"] == "end"
        assert await ended(w, run.session_id) == [("failed", "overloaded"), ("completed", None)]
        runs = await w.rows("runs", session_id=run.session_id, agent="keeper")
        assert [(r["turn"], r["status"]) for r in sorted(runs, key=lambda r: r["turn"])] == [
            (0, "failed"), (1, "completed"), (2, "failed"),
        ]  # fmt: skip
        last = asked(w)[-1].messages
        assert history_problem(last) is None
        assert [m.content.split("\n")[0] for m in last if m.role is Role.ASSISTANT] == ["half", "second"]
