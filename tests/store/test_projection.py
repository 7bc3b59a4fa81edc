"""The rows that events lead to, whatever batches they come in."""

import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.agent.events import Event
from app.agent.ids import new_id
from app.agent.runs import RunStatus
from app.sessions.views import handoff_view
from app.store.database import Database
from tests.longer import examples
from tests.store.conftest import Store
from tests.store.facts import START, USAGE, Facts, replaced

OPTIONAL = pytest.mark.parametrize("apart", [False, True], ids=["one batch", "one by one"])


def put(store: Store, events: list[Event], apart: bool) -> None:
    if apart:
        for event in events:
            store.stored(event)
    else:
        store.stored(*events)


@OPTIONAL
@pytest.mark.spec("14.1", "14.2")
async def test_a_session_row_holds_what_it_was_made_with_and_what_was_changed(store: Store, apart: bool) -> None:
    facts = Facts()
    put(store, [facts.created(user="ann"), facts.updated(metadata={"team": "south"}), facts.idle()], apart)
    row = await store.row("sessions")
    assert row["memory_id"] == facts.session.memory_id
    assert (row["agent"], row["title"], row["user"]) == ("lead", "Letters", "ann")
    assert row["metadata"] == {"team": "south"}
    assert row["config"] == {"surfaces": [{"kind": "task"}], "policy": {"max_depth": 2}}
    assert (row["created_at"], row["updated_at"]) == (START + 10, START + 20)
    assert (row["idle_seq"], row["next_seq"], row["closed_seq"]) == (3, 4, None)
    store.stored(facts.closed())
    row = await store.row("sessions")
    assert (row["closed_seq"], row["closed_at"], row["erased_at"]) == (4, START + 40, None)
    memory = await store.row("memories")
    assert (memory["id"], memory["agent"], memory["next_turn"]) == (facts.session.memory_id, "lead", 0)


@OPTIONAL
@pytest.mark.spec("12.2", "14.8")
async def test_a_run_row_holds_its_place_its_way_and_its_end(store: Store, apart: bool) -> None:
    facts = Facts()
    root = facts.run()
    child = facts.run(parent=root, agent="scout", name="sub_1", handoff_id="ho_1", parent_call_id="call_1")
    put(
        store,
        [facts.created(), facts.queued(root), facts.started(root), facts.queued(child), facts.started(child)],
        apart,
    )
    assert {row["id"]: row["status"] for row in await store.rows("runs")} == {root.id: "running", child.id: "running"}
    put(store, [facts.waiting(root)], apart)
    row = await store.row("runs", id=root.id)
    assert (row["status"], row["wait_reason"]) == ("waiting", "child")
    failed = {"error": {"code": "model_error", "message": "no"}, "partial": True, "stop_reason": "error"}
    put(store, [facts.ended(child, RunStatus.FAILED, **failed), facts.resumed(root), facts.ended(root)], apart)
    row = await store.row("runs", id=child.id)
    assert (row["session_id"], row["memory_id"]) == (facts.session.id, child.memory_id)
    assert (row["parent_id"], row["parent_call_id"], row["handoff_id"]) == (root.id, "call_1", "ho_1")
    assert (row["ordinal"], row["turn"], row["depth"], row["path"]) == (2, 0, 1, [1, 2])
    assert (row["agent"], row["name"], row["model"], row["tools"]) == (
        "scout",
        "sub_1",
        "scripted:letters",
        ["read_file"],
    )
    assert (row["input"], row["max_steps"], row["timeout_ms"]) == ("count the letters", 25, 30_000)
    assert (row["status"], row["wait_reason"], row["stop_reason"]) == ("failed", None, "error")
    assert (row["output"], row["steps"], row["forced"], row["partial"]) == ("seven", 2, False, True)
    assert row["error"] == failed["error"]
    assert (row["usage"], row["usage_total"]) == (USAGE, USAGE)
    assert (row["first_seq"], row["terminal_seq"], row["duration_ms"]) == (4, 7, 12)
    assert (row["created_at"], row["started_at"], row["ended_at"]) == (START + 40, START + 50, START + 70)
    assert (await store.row("runs", id=root.id))["status"] == "completed"


@OPTIONAL
@pytest.mark.spec("11.6")
async def test_the_first_final_state_of_a_run_stays(store: Store, apart: bool) -> None:
    facts = Facts()
    run = facts.run()
    story = [facts.created(), facts.queued(run), facts.started(run)]
    story += [facts.ended(run, RunStatus.CANCELLED, output="cut"), facts.ended(run), facts.waiting(run)]
    put(store, story, apart)
    row = await store.row("runs")
    assert (row["status"], row["output"], row["terminal_seq"], row["wait_reason"]) == ("cancelled", "cut", 4, None)


@OPTIONAL
@pytest.mark.spec("12.7")
async def test_a_run_that_is_taken_up_again_keeps_its_first_start(store: Store, apart: bool) -> None:
    facts = Facts()
    run = facts.run()
    again = facts.again(run)
    put(store, [facts.created(), facts.queued(run), facts.started(run), facts.started(again)], apart)
    row = await store.row("runs")
    assert (row["attempt"], row["epoch"], row["started_at"]) == (2, 2, START + 30)


@OPTIONAL
@pytest.mark.spec("12.2")
async def test_messages_of_every_role_and_depth_are_kept_in_their_order(store: Store, apart: bool) -> None:
    facts = Facts()
    root = facts.run()
    child = facts.run(parent=root, agent="scout", name="sub_1")
    call, other = facts.call(), facts.call("grep")
    story = [facts.created(), facts.queued(root), facts.message(root, "system", "S"), facts.queued(child)]
    opaque = {"signature": "abc"}
    story.append(
        facts.message(
            child, "assistant", "A", step=1, reasoning="R", tool_calls=[call, other], provider="x", opaque=opaque
        )
    )
    place = story[-1].payload["memory_seq"]
    story.append(facts.result(child, other, "second", step=1, place=place + 2, sub=2, is_error=True, status="error"))
    story.append(facts.result(child, call, "first", step=1, place=place + 1, length=90))
    put(store, story, apart)
    rows = await store.rows("messages", memory_id=child.memory_id)
    reply, second, first = rows
    assert (reply["agent"], reply["name"], reply["is_subagent"], reply["depth"]) == ("scout", "sub_1", True, 1)
    assert (reply["run_id"], reply["turn"], reply["step"], reply["sub"]) == (child.id, 0, 1, 0)
    assert (reply["role"], reply["content"], reply["reasoning"], reply["tokens"]) == ("assistant", "A", "R", 11)
    assert reply["tool_calls"] == [call, other]
    assert reply["metadata"] == {"provider": "x", "opaque": opaque}
    assert (reply["seq"], reply["ts"]) == (5, START + 50)
    assert [(m["sub"], m["memory_seq"], m["content"], m["tool"]) for m in (first, second)] == [
        (1, 2, "first", "read_file"),
        (2, 3, "second", "grep"),
    ]
    assert (second["role"], second["tool_call_id"], second["is_error"]) == ("tool", other["call_id"], True)
    assert first["metadata"] == {"provider_call_id": "c1", "status": "ok", "length": 90}
    assert (await store.row("messages", role="system"))["is_subagent"] is False
    assert (await store.row("memories", id=child.memory_id))["next_seq"] == 4


@OPTIONAL
async def test_a_reply_reserves_the_numbers_of_its_results(store: Store, apart: bool) -> None:
    facts = Facts()
    run = facts.run()
    calls = [facts.call(), facts.call(), facts.call()]
    reply = facts.message(run, "assistant", "A", step=1, tool_calls=calls)
    created, queued = facts.created(), facts.queued(run)
    facts.seq = 0
    story = [created, queued, reply]
    for number, event in enumerate(story, 1):
        event.seq = number
    put(store, story, apart)
    assert (await store.row("memories"))["next_seq"] == 5


@OPTIONAL
@pytest.mark.spec("6.5", "12.2")
async def test_a_tool_call_row_goes_from_pending_to_its_result(store: Store, apart: bool) -> None:
    facts = Facts()
    run = facts.run()
    call, unknown = facts.call(), facts.call("x" * 5000)
    put(store, [facts.created(), facts.queued(run), facts.called(run, call, step=1)], apart)
    row = await store.row("tool_calls")
    assert (row["status"], row["tool"], row["arguments"], row["run_id"]) == (
        "pending",
        "read_file",
        '{"path":"a.txt"}',
        run.id,
    )
    result = facts.call_started(run, call, step=1), facts.result(run, call, "A", step=1, place=2)
    put(store, [*result, facts.result(run, unknown, "no such tool", step=1, place=3, sub=2, is_error=True)], apart)
    row = await store.row("tool_calls", id=call["call_id"])
    assert (row["status"], row["read_only"], row["is_error"], row["duration_ms"]) == ("ok", True, False, 4)
    assert row["delegation"] is False
    assert (row["ts"], row["started_at"], row["ended_at"]) == (START + 30, START + 40, START + 50)
    assert (row["seq"], row["result_seq"]) == (3, 5)
    assert row["message_id"] == result[1].payload["message_id"]
    never = await store.row("tool_calls", id=unknown["call_id"])
    assert (never["read_only"], never["started_at"], never["is_error"]) == (None, None, True)
    assert len(never["tool"]) == 256


@OPTIONAL
@pytest.mark.spec("4.6")
async def test_a_handoff_row_holds_its_start_and_its_end(store: Store, apart: bool) -> None:
    facts = Facts()
    root = facts.run()
    story = [facts.created(), facts.queued(root), facts.handoff(root, "ho_1", call_id="call_1", purpose="look")]
    story.append(facts.handoff(None, "ho_2", name="sub_2", session_mode="reuse_session", session_scope="user"))
    put(store, story, apart)
    row = await store.row("handoffs", id="ho_1")
    assert (row["run_id"], row["call_id"], row["agent"], row["name"]) == (root.id, "call_1", "scout", "sub_0a1b2c3d")
    assert (row["tool"], row["surface"], row["depth"], row["session_mode"]) == (
        "execute_task",
        "task",
        1,
        "new_session",
    )
    assert (row["status"], row["attempts"], row["input"], row["purpose"]) == ("running", 0, "look around", "look")
    error = {"code": "handoff_denied", "message": "tool is in denied_tools"}
    ends = [facts.handed_back(root, "ho_1", ["run_a", "run_b"])]
    ends.append(facts.handed_back(None, "ho_2", [], name="sub_2", status="denied", error=error, output=""))
    put(store, [*ends, facts.handed_back(root, "ho_1", [])], apart)
    row = await store.row("handoffs", id="ho_1")
    assert (row["status"], row["attempts"], row["run_ids"]) == ("completed", 2, ["run_a", "run_b"])
    assert (row["start_seq"], row["end_seq"], row["duration_ms"]) == (3, 5, 40)
    assert (row["session_scope"], row["fallback"]) == (None, None)
    denied = await store.row("handoffs", id="ho_2")
    assert (denied["run_id"], denied["status"], denied["attempts"], denied["error"]) == (None, "denied", 0, error)
    assert (denied["session_mode"], denied["session_scope"]) == ("reuse_session", "user")


@OPTIONAL
@pytest.mark.spec("4.6")
async def test_a_handoff_row_says_what_stood_in_for_the_subagent(store: Store, apart: bool) -> None:
    facts = Facts()
    fallback, error = {"kind": "agent", "target": "helper"}, {"code": "model_error", "message": "no"}
    end: dict[str, Any] = {"status": "fallback", "attempts": 1, "error": error, "fallback": fallback}
    put(store, [facts.created(), facts.handoff(None, "ho_1")], apart)
    put(store, [facts.handed_back(None, "ho_1", ["run_a", "run_b"], **end)], apart)
    row = await store.row("handoffs")
    assert {name: row[name] for name in end} == end
    assert row["run_ids"] == ["run_a", "run_b"]
    view = handoff_view(row, ())
    assert (view["fallback"], view["session_scope"], view["run_ids"]) == (fallback, None, ["run_a", "run_b"])


# ── any batches ─────────────────────────────────────────────────────────────────────────────────────────────────


def story(choices: list[int]) -> list[Event]:
    """What happens in three sessions, as the numbers choose; the last two share memories."""
    everything = [Facts(), Facts(tenant="other")]
    everything.append(everything[1].beside())
    events = [facts.created() for facts in everything]
    open_runs: list[tuple[Facts, Any]] = []
    for choice in choices:
        facts = everything[choice % len(everything)]
        mine = [run for owner, run in open_runs if owner is facts]
        match choice // 3 % 11, mine:
            case 0, [*_]:
                run = facts.run()
                open_runs.append((facts, run))
                events.append(facts.queued(run))
            case 1, [*_, run]:
                handoff = new_id("ho")
                child = facts.run(parent=run, agent="scout", name="sub_1", handoff_id=handoff)
                open_runs.append((facts, child))
                events += [facts.handoff(run, handoff), facts.queued(child)]
            case 2, [*_, run]:
                events.append(facts.started(run))
            case 3, [*_, run]:
                events += [facts.waiting(run), facts.resumed(run)]
            case 4, [*_, run]:
                events += [facts.message(run, "user", "u"), *facts.tool_step(run, 1)]
            case 5, [*_, run]:
                call = facts.call()
                events += [facts.called(run, call, step=2), facts.call_started(run, call, step=2)]
            case 6, [run, *_]:
                status = list(RunStatus)[3 + choice // 33 % 5]
                events += [facts.ended(run, status), facts.waiting(run), facts.ended(run)]
                open_runs.remove((facts, run))
            case 7, [*_, run] if run.handoff_id:
                events += [facts.handed_back(run, run.handoff_id, [run.id]), facts.handed_back(run, run.handoff_id, [])]
            case 8, _:
                events += [facts.updated(title=f"title {choice}"), facts.idle()]
            case 9, [*_]:
                run = facts.run(memory_id=f"mem_{facts.session.tenant}_{choice // 33 % 2}")
                open_runs.append((facts, run))
                events.append(facts.queued(run))
            case 10, _ if facts is everything[-1]:
                events.append(facts.closed("deleted"))
                open_runs = [(owner, run) for owner, run in open_runs if owner is not facts]
                everything[-1] = facts.beside()
                everything[-1].ts += 1_000_000  # far from what the others do
                events.append(everything[-1].created())
    return events + [everything[n].closed(("closed", "deleted")[n]) for n in range(2) if len(choices) % 3 > n]


def tables(schema: Path, batches: list[list[Event]]) -> dict[str, list[Any]]:
    """Everything that the batches leave in a fresh store."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(shutil.copy(schema, directory))
        writer = Database(path, synchronous="OFF").writer(replaced)
        for batch in batches:
            assert list(writer.write(batch)) == []
        writer.close()
        connection = sqlite3.connect(path)
        names = ("sessions", "memories", "runs", "handoffs", "tool_calls", "events")
        found = {name: connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2, 3").fetchall() for name in names}
        columns = [row[1] for row in connection.execute("PRAGMA table_info(messages)") if row[1] != "row_id"]
        quoted = ", ".join(f'"{column}"' for column in columns)
        found["messages"] = connection.execute(f"SELECT {quoted} FROM messages ORDER BY session_id, seq").fetchall()
        connection.close()
        return found


@pytest.mark.spec("12.3")
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choices=st.lists(st.integers(0, 329), min_size=1, max_size=60), cuts=st.lists(st.integers(1, 9), min_size=1))
def test_rows_do_not_depend_on_the_batches_that_events_come_in(
    migrated_file: Path, choices: list[int], cuts: list[int]
) -> None:
    events = story(choices)
    batches, rest, turn = [], list(events), 0
    while rest:
        size = cuts[turn % len(cuts)]
        batches.append(rest[:size])
        rest, turn = rest[size:], turn + 1
    replayed = tables(migrated_file, [[event] for event in events])
    assert tables(migrated_file, batches) == replayed
    assert tables(migrated_file, [events]) == replayed
