"""Reading sessions, runs, memories, the log, keys and agents back; never across tenants."""

import asyncio
import inspect
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.pool import AsyncAdaptedQueuePool

from app.agent.errors import InvalidRequest
from app.agent.events import Write
from app.agent.messages import Message, Role, ToolCall
from app.agent.run_ports import SessionCounters
from app.agent.runs import MemoryState, RunStatus
from app.sessions.audit import DecisionFilter, MessageFilter
from app.sessions.inbox import ApprovalFilter
from app.sessions.keys import KeyRecord
from app.sessions.tasks import TaskFilter
from app.store.database import READERS, writing_connection
from app.store.memories import PAGE
from tests.store.conftest import Store
from tests.store.facts import Facts


@pytest.mark.spec("12.2", "13.4")
async def test_a_memory_comes_back_as_the_messages_that_went_in(store: Store) -> None:
    facts = Facts()
    run = facts.run()
    good = facts.call("grep", '{"pattern": "é", "n": 1}', opaque={"index": 0})
    broken, none, listed = facts.call("grep", '{"pattern": '), facts.call("now", " "), facts.call("now", "[1]")
    calls = [good, broken, none, listed]
    opaque = {"signature": "c2ln", "nested": {"a": [1, None, "b"]}}
    story = [facts.created(), facts.queued(run), facts.message(run, "system", "S")]
    reply = facts.message(
        run, "assistant", "", step=1, reasoning="hm", tool_calls=calls, provider="anthropic", opaque=opaque
    )
    story.append(reply)
    story.append(facts.result(run, broken, "bad arguments", step=1, place=4, sub=2, is_error=True))
    story.append(facts.result(run, good, "line 1", step=1, place=3))
    story.append(facts.message(run, "assistant", "half an ans", step=2, partial=True))
    store.stored(*story)
    state = await store.memories.load("default", run.memory_id)
    system, answer, first, second, cut = state.messages
    assert system == Message(role=Role.SYSTEM, content="S")
    assert (answer.reasoning, answer.provider, answer.opaque) == ("hm", "anthropic", opaque)
    assert answer.tool_calls[0] == ToolCall(
        call_id=good["call_id"],
        name="grep",
        raw='{"pattern": "é", "n": 1}',
        arguments={"pattern": "é", "n": 1},
        provider_call_id="c1",
        opaque={"index": 0},
    )
    assert answer.tool_calls[1].arguments is None
    assert "not valid JSON" in (answer.tool_calls[1].problem or "")
    assert answer.tool_calls[2].arguments == {}
    assert answer.tool_calls[3].arguments is None
    assert (first.role, first.content, first.tool_call_id, first.is_error) == (
        Role.TOOL,
        "line 1",
        good["call_id"],
        False,
    )
    assert (second.content, second.is_error) == ("bad arguments", True)
    assert cut == Message(role=Role.ASSISTANT, content="half an ans", partial=True)
    assert (state.next_turn, state.next_seq) == (1, 8)


@pytest.mark.spec("12.2")
@pytest.mark.case("B181")
async def test_a_long_memory_is_read_whole_in_pages(store: Store) -> None:
    facts = Facts()
    run = facts.run()
    store.stored(facts.created(), facts.queued(run))
    store.stored(*(facts.message(run, "user", str(number)) for number in range(2 * PAGE)))
    state = await store.memories.load("default", run.memory_id)
    assert [message.content for message in state.messages] == [str(number) for number in range(2 * PAGE)]


@pytest.mark.spec("12.7")
async def test_an_unknown_memory_is_empty(store: Store) -> None:
    assert await store.memories.load("default", "mem_unknown") == MemoryState()


@pytest.mark.spec("11.3")
async def test_the_log_is_read_between_two_numbers(store: Store) -> None:
    facts = Facts()
    store.stored(facts.created(), *facts.whole_run(facts.run(), steps=3))

    async def numbers(**bounds: Any) -> list[int]:
        return [event.seq for event in await store.log.page("default", facts.session.id, **bounds)]

    assert await numbers(after=0, limit=3) == [1, 2, 3]
    assert await numbers(after=3, upto=6) == [4, 5, 6]
    assert await numbers(after=facts.seq) == []
    assert await store.log.head("default", "ses_unknown") is None


@pytest.mark.spec("2.4", "12.7")
async def test_a_sessions_numbers_and_names_go_on_where_they_ended(store: Store) -> None:
    facts = Facts()
    store.stored(facts.created())
    assert await store.runs.counters("default", facts.session.id) == SessionCounters()
    root = facts.run()
    child = facts.run(parent=root, name="sub_1")
    denied = facts.handoff(root, "ho_1", name="sub_2")
    story = [denied, facts.queued(root), facts.queued(child)]
    assert [fact.seq for fact in story] == [2, 3, 4]
    store.stored(*story)
    counters = await store.runs.counters("default", facts.session.id)
    assert counters == SessionCounters(next_ordinal=3, names=frozenset({"sub_1", "sub_2"}))


@pytest.mark.spec("12.7")
async def test_open_runs_come_deepest_first_and_final_ones_not_at_all(store: Store) -> None:
    one, two = Facts(), Facts(tenant="other")
    root, done = one.run(), two.run()
    child = one.run(parent=root, handoff_id="ho_1")
    grandchild = one.run(parent=child)
    call, finished = one.call(), one.call()
    story = [one.created(), one.queued(root), one.queued(child), one.queued(grandchild), one.handoff(root, "ho_1")]
    reply = one.message(child, "assistant", "", step=1, tool_calls=[call, finished])
    place = reply.payload["memory_seq"]
    story += [reply, one.called(child, call, step=1), one.called(child, finished, step=1, sub=2)]
    story += [one.result(child, finished, "x", step=1, place=place + 2, sub=2), one.waiting(root)]
    store.stored(*story)
    store.stored(two.created(), two.queued(done), two.ended(done))
    assert [row["id"] for row in await store.runs.open_runs()] == [grandchild.id, child.id, root.id]
    assert [row["id"] for row in await store.runs.open_handoffs()] == ["ho_1"]
    (unanswered,) = await store.runs.open_calls("default", child.id)
    assert (unanswered["id"], unanswered["memory_seq"], unanswered["sub"]) == (call["call_id"], place, 1)
    assert [row["id"] for row in await store.runs.handoff_runs("default", "ho_1")] == [child.id]
    assert [row["ordinal"] for row in await store.runs.runs("default", one.session.id)] == [1, 2, 3]
    store.stored(*(one.ended(run, RunStatus.INTERRUPTED) for run in (grandchild, child, root)))
    assert await store.runs.open_runs() == []


@pytest.mark.spec("14.2")
async def test_sessions_are_listed_newest_first_in_pages(store: Store) -> None:
    everything = [Facts() for _ in range(7)]
    store.stored(*(facts.created() for facts in everything))
    store.stored(Facts(tenant="other").created())
    seen: list[str] = []
    cursor = None
    for _ in range(4):
        rows, cursor = await store.runs.sessions("default", cursor, 2)
        seen += [row["id"] for row in rows]
    assert seen == [facts.session.id for facts in reversed(everything)]
    assert cursor is None
    with pytest.raises(InvalidRequest, match="cursor"):
        await store.runs.sessions("default", "bm9uZQ", 2)


@pytest.mark.spec("17.2")
async def test_a_key_is_found_by_its_hash_and_by_nothing_else(store: Store) -> None:
    one = KeyRecord(id="key_1", tenant="a", name="ci", hash=b"1" * 32, scopes=("run", "read"), created_at=5)
    two = KeyRecord(id="key_2", tenant="b", name="web", hash=b"2" * 32, scopes=(), created_at=6, expires_at=9)
    store.stored(writes=[one.stored(), two.stored()])
    assert await store.keys.find(b"1" * 32) == one
    assert await store.keys.find(b"2" * 32) == two
    assert await store.keys.find(b"3" * 32) is None
    assert list(await store.keys.list("b")) == [two]
    assert (two.valid(8), two.valid(9)) == (True, False)
    revoke = Write(table="api_keys", values={"tenant_id": "a", "id": "key_1", "revoked_at": 7}, key=("id",))
    stolen = Write(table="api_keys", values={"tenant_id": "a", "id": "key_2", "revoked_at": 7}, key=("id",))
    assert [item.write for item in store.write(writes=[revoke, stolen])] == [stolen]
    found = await store.keys.find(b"1" * 32)
    assert found is not None
    assert not found.valid(8)


@pytest.mark.spec("14.14")
async def test_the_newest_version_of_a_tenants_agent_counts(store: Store) -> None:
    def agent(tenant: str, name: str, version: int, **more: Any) -> Write:
        definition = {"description": f"{name} {version}"}
        values = {"tenant_id": tenant, "name": name, "version": version, "definition": definition, "created_at": 1}
        return Write(table="agents", values=values | more)

    store.stored(
        writes=[agent("b", "x", 1), agent("a", "y", 1), agent("a", "x", 1), agent("a", "x", 2), agent("a", "z", 1)]
    )
    store.stored(writes=[agent("a", "z", 2, deleted_at=2)])
    found = await store.agents.all()
    assert [(a.tenant, a.name, a.version) for a in found] == [("a", "x", 2), ("a", "y", 1), ("b", "x", 1)]
    assert found[0].definition == {"description": "x 2"}


# ── tenants ─────────────────────────────────────────────────────────────────────────────────────────────────────

# Recovery, the key that names the tenant, the catalog.
ACROSS_TENANTS = {"open_runs", "open_handoffs", "busy_sessions", "untold_tasks", "find", "any", "all"}


@pytest.mark.spec("17.1")
async def test_no_function_shows_a_tenant_what_belongs_to_another(store: Store) -> None:
    facts = Facts(tenant="owner")
    root = facts.run()
    child = facts.run(parent=root, handoff_id="ho_1")
    key = KeyRecord(id="key_1", tenant="owner", name="k", hash=b"1", scopes=(), created_at=1)
    call = facts.call()
    story = [facts.created(), facts.queued(root), facts.handoff(root, "ho_1", background=True), facts.queued(child)]
    story += [facts.message(child, "assistant", "", tool_calls=[call]), facts.called(child, call, step=1)]
    story += [facts.asked(child, call, "apr_1"), facts.answered(child, call, "apr_1")]
    story += [facts.noticed(root, "ntc_1", "ho_1")]
    agent = {"tenant_id": "owner", "name": "x", "version": 1, "definition": {}, "created_at": 1}
    gone = {"tenant_id": "owner", "handoff_id": "ho_0", "session_id": facts.session.id, "created_at": 1}
    writes = [key.stored(), Write(table="agents", values=agent), Write(table="cleared_tasks", values=gone)]
    store.stored(*story, writes=writes)
    idle = Facts(tenant="owner")
    store.stored(idle.created(), *idle.whole_run(idle.run()))
    removed = {"tenant_id": "owner", "session_id": idle.session.id, "upto": 1, "created_at": 1}
    store.stored(writes=[Write(table="checkpoints", values=removed, key=("session_id",))])
    asked: dict[str, dict[str, Any]] = {
        "page": {"session_id": facts.session.id, "after": 0},
        "head": {"session_id": facts.session.id},
        "session": {"session_id": facts.session.id},
        "sessions": {"cursor": None, "limit": 9},
        "counters": {"session_id": facts.session.id},
        "run": {"run_id": root.id},
        "runs": {"session_id": facts.session.id},
        "oldest": {"session_id": idle.session.id},
        "turns": {"session_id": facts.session.id, "after": 0, "limit": 9},
        "handoffs": {"session_id": facts.session.id},
        "spent": {"session_id": facts.session.id, "currency": "USD"},
        "handoff": {"handoff_id": "ho_1"},
        "handoff_runs": {"handoff_id": "ho_1"},
        "untold": {"session_id": facts.session.id},
        "task": {"task_id": "ho_1"},
        "tasks": {"filters": TaskFilter(session_id=facts.session.id), "cursor": None, "limit": 9},
        "attempts": {"task_ids": ["ho_1"]},
        "cleared": {"session_id": facts.session.id},
        "open_calls": {"run_id": child.id},
        "load": {"memory_id": child.memory_id},
        "known": {"session_id": facts.session.id, "run_id": child.id},
        "messages": {"filters": MessageFilter(session_id=facts.session.id)},
        "decisions": {"filters": DecisionFilter(session_id=facts.session.id)},
        "approval": {"approval_id": "apr_1"},
        "approvals": {"filters": ApprovalFilter(session_id=facts.session.id), "cursor": None, "limit": 9},
        "session_rules": {"session_id": facts.session.id},
        "count": {"filters": MessageFilter()},
        "export": {"filters": MessageFilter(run_id=child.id)},
        "list": {},
        "version": {"name": "x"},
    }
    for reads in (
        store.log,
        store.runs,
        store.memories,
        store.audit,
        store.approvals,
        store.keys,
        store.agents,
        store.tasks,
    ):
        for name, function in inspect.getmembers(reads, inspect.ismethod):
            if name.startswith("_") or name in ACROSS_TENANTS:
                continue
            assert next(iter(inspect.signature(function).parameters)) == "tenant", name
            own, foreign, unknown = [await answer(function, t, asked[name]) for t in ("owner", "guest", "nobody")]
            assert own != foreign, name
            assert foreign == unknown, name


async def answer(function: Any, tenant: str, arguments: dict[str, Any]) -> Any:
    found: Any = function(tenant, **arguments)
    return [list(page) async for page in found] if inspect.isasyncgenfunction(function) else await found


@pytest.mark.spec("17.1")
async def test_the_same_id_in_two_tenants_is_two_things(store: Store) -> None:
    one, two = Facts("a", "ses_same"), Facts("b", "ses_same")
    store.stored(one.created(title="one"), two.created(title="two"))
    store.stored(two.closed("deleted"))
    row = await store.runs.session("a", "ses_same")
    assert row is not None
    assert row["title"] == "one"
    assert await store.runs.session("b", "ses_same") is None


@pytest.mark.case("B176")
@pytest.mark.parametrize("odd", ["run_\0", "run_\ud800", "'; DROP TABLE runs --", "x" * 100_000])
async def test_an_id_that_no_database_could_hold_is_unknown(store: Store, odd: str) -> None:
    assert await store.runs.run("default", odd) is None
    assert (await store.audit.count("default", MessageFilter(agent=odd))).count == 0
    assert await store.log.head(odd, "ses_1") is None


# ── readers that go away ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.case("B178")
@pytest.mark.spec("12.1")
async def test_readers_that_are_cancelled_leave_no_connection_behind(store: Store) -> None:
    facts = Facts()
    store.stored(facts.created(), *facts.whole_run(facts.run(), steps=20))
    pool = store.database._engine.pool
    assert isinstance(pool, AsyncAdaptedQueuePool)
    opened: list[Any] = []
    event.listen(store.database._engine.sync_engine, "connect", lambda connection, _: opened.append(connection))
    stopped = 0
    for moment in range(40):
        tasks = [asyncio.create_task(store.audit.messages("default", MessageFilter())) for _ in range(8)]
        async with asyncio.timeout(10):
            while pool.checkedout() < READERS:
                await asyncio.sleep(0)
        for _ in range(moment):  # each round stops them a little later
            await asyncio.sleep(0)
        for task in tasks[1:]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert not isinstance(done[0], BaseException)
        stopped += sum(isinstance(item, asyncio.CancelledError) for item in done)
    await store.database.reader.drained()
    assert pool.checkedout() == 0
    assert stopped > 40
    assert opened == []  # none was broken, so none had to be replaced
    assert (await store.audit.messages("default", MessageFilter())).items


@pytest.mark.spec("9.2", "12.7")
async def test_a_task_that_ended_without_a_notice_is_found_at_the_next_start(store: Store) -> None:
    facts = Facts()
    root = facts.run()
    story = [facts.created(), facts.queued(root)]
    begun = ((1, True), (2, True), (3, False), (4, True))
    story += [facts.handoff(root, f"ho_{number}", f"name_{number}", background=behind) for number, behind in begun]
    story += [facts.handed_back(root, f"ho_{number}", []) for number in (1, 2, 3)]
    story.append(facts.noticed(root, "ntc_2", "ho_2"))
    store.stored(*story)
    assert [row["id"] for row in await store.runs.untold_tasks()] == ["ho_1"]


@pytest.mark.spec("12.4", "14.6")
async def test_turns_are_read_in_pages_without_the_runs_below_them(store: Store) -> None:
    facts, other = Facts(), Facts()
    turns = []
    story = [facts.created(), other.created(), *other.whole_run(other.run())]
    for _ in range(3):
        turn = facts.run()
        turns.append(turn.ordinal)
        story += [*facts.whole_run(turn), *facts.whole_run(facts.run(parent=turn, agent="scout"))]
    store.stored(*story)
    assert turns == [1, 3, 5]
    for after, limit, wanted in ((0, 2, [1, 3]), (3, 2, [5]), (1, 1, [3]), (5, 9, [])):
        rows = await store.runs.turns("default", facts.session.id, after=after, limit=limit)
        assert [row["ordinal"] for row in rows] == wanted
    assert await store.runs.turns("other", facts.session.id, after=0, limit=9) == []


@pytest.mark.spec("12.4", "14.12")
async def test_a_session_or_run_is_known_by_its_row_or_by_a_message_or_decision_that_names_it(store: Store) -> None:
    facts, gone = Facts(), Facts()
    run, call = facts.run(), facts.call()
    store.stored(facts.created(), facts.queued(run), facts.message(run, "user", "x"))
    lost = gone.run()
    store.stored(gone.created(), gone.queued(lost), gone.ended(lost), gone.closed("deleted"))

    async def known(tenant: str = "default", **ids: str) -> tuple[bool, bool]:
        return await store.audit.known(tenant, **{"session_id": None, "run_id": None, **ids})

    session = facts.session.id
    assert await known(session_id=session, run_id=run.id) == (True, True)
    assert await known(session_id=run.id, run_id=session) == (False, False)
    assert await known("other", session_id=session, run_id=run.id) == (False, False)
    assert await known(session_id=session, run_id="\0") == (True, False)
    assert await known() == (False, False)
    assert await known(session_id=gone.session.id, run_id=lost.id) == (True, False), (
        "deleted: its row stays, not its runs"
    )
    with writing_connection(store.database.location, "OFF", 1000) as connection, connection.begin():
        for table in ("sessions", "runs"):
            connection.execute(
                text(f"DELETE FROM {table} WHERE id IN (:session, :run)"), {"session": session, "run": run.id}
            )
    assert await known(session_id=session, run_id=run.id) == (True, True), "a message names them"
    store.stored(facts.answered(run, call, "apr_1"))
    with writing_connection(store.database.location, "OFF", 1000) as connection, connection.begin():
        connection.execute(text("DELETE FROM messages"))
    assert await known(session_id=session, run_id=run.id) == (True, True), "a decision names them"
