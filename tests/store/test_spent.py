"""What a session has used, and its tree: from real rows."""

from typing import Any

import pytest

from app.agent.runs import RunStatus
from app.sessions.views import tree_view
from app.store.runs import SqlRunStore
from tests.store.conftest import Store
from tests.store.facts import USAGE, Facts

NOTHING = {"model_calls": 0, "tokens": 0, "cost_micros": 0, "tool_calls": 0, "delegations": 0, "wall_ms": 0}


def usage(tokens: int, calls: int = 1, **cost: int) -> dict[str, Any]:
    """What one run used."""
    return {**USAGE, "input_tokens": tokens, "output_tokens": 1, "model_calls": calls, "cost": cost}


@pytest.fixture
def reads(store: Store) -> SqlRunStore:
    """The reads of runs."""
    return SqlRunStore(store.database.reader)


async def test_a_session_that_did_nothing_has_spent_nothing(store: Store, reads: SqlRunStore) -> None:
    facts = Facts()
    store.stored(facts.created())
    assert await reads.spent("default", facts.session.id, "USD") == NOTHING
    assert await reads.spent("default", "ses_unknown", "USD") == NOTHING
    assert await reads.spent("default", "ses_\0", "USD") == NOTHING


@pytest.mark.spec("4.8", "13.4")
async def test_what_a_session_spent_is_what_its_runs_used_over_all_turns(store: Store, reads: SqlRunStore) -> None:
    facts, other = Facts(), Facts()
    first = facts.run()
    child = facts.run(parent=first, agent="scout", handoff_id="ho_1")
    story = [facts.created(), facts.queued(first), facts.handoff(first, "ho_1"), facts.queued(child)]
    total = usage(999)  # what a run used is counted once, with that run
    story.append(facts.ended(child, usage=usage(100, 2, USD=7, EUR=3), duration_ms=50, usage_total=total))
    story.append(facts.handed_back(first, "ho_1", [child.id]))
    story.append(facts.ended(first, usage=usage(10, USD=5), duration_ms=80, usage_total=total))
    second = facts.run()
    story += [facts.queued(second), facts.ended(second, RunStatus.FAILED, usage=usage(1), duration_ms=9)]
    direct = facts.run(agent="scout", handoff_id="ho_2")
    story += [facts.handoff(None, "ho_2"), facts.queued(direct), facts.ended(direct, usage=usage(1), duration_ms=1)]
    store.stored(*story, other.created(), *other.whole_run(other.run()))
    spent = await reads.spent("default", facts.session.id, "USD")
    assert (spent["model_calls"], spent["tokens"], spent["cost_micros"]) == (5, 112 + 4, 12)
    assert spent["wall_ms"] == 80 + 9 + 1, "a child works while its parent waits for it"
    assert (await reads.spent("default", facts.session.id, "EUR"))["cost_micros"] == 3
    assert (await reads.spent("default", facts.session.id, "GBP"))["cost_micros"] == 0
    assert await reads.spent("other", facts.session.id, "USD") == NOTHING


@pytest.mark.spec("4.8")
async def test_calls_count_from_their_start_and_delegations_from_their_first_attempt(
    store: Store, reads: SqlRunStore
) -> None:
    facts = Facts()
    run = facts.run()
    done, begun, waits, ask, refused = (facts.call() for _ in range(5))
    store.stored(facts.created(), facts.queued(run))
    for sub, call in enumerate((done, begun, waits, ask), 1):
        store.stored(facts.called(run, call, step=1, sub=sub))
    store.stored(*(facts.call_started(run, call, step=1) for call in (done, begun, ask)))
    store.stored(facts.result(run, done, "x", step=1, place=2))
    store.stored(facts.result(run, refused, "no such tool", step=1, place=6, sub=5, is_error=True))
    spent = await reads.spent("default", facts.session.id, "USD")
    assert (spent["tool_calls"], spent["delegations"]) == (3, 0), "nothing says yet that one of them delegates"
    store.stored(facts.handoff(run, "ho_open", call_id=ask["call_id"]), facts.handoff(run, "ho_denied", "sub_2"))
    store.stored(facts.handoff(None, "ho_direct", "sub_3"))
    store.stored(facts.handed_back(run, "ho_denied", [], "sub_2", status="denied"))
    store.stored(facts.handed_back(None, "ho_direct", ["run_x"], "sub_3", status="failed"))
    spent = await reads.spent("default", facts.session.id, "USD")
    assert (spent["tool_calls"], spent["delegations"]) == (2, 2)


@pytest.mark.spec("4.8")
async def test_a_call_that_delegates_is_no_tool_call_though_no_handoff_came_of_it(
    store: Store, reads: SqlRunStore
) -> None:
    facts = Facts()
    run = facts.run()
    looks, lists, older, swaps = (facts.call() for _ in range(4))
    store.stored(facts.created(), facts.queued(run))
    for sub, call in enumerate((looks, lists, older, swaps), 1):
        store.stored(facts.called(run, call, step=1, sub=sub))
    store.stored(facts.call_started(run, looks, step=1), facts.call_started(run, older, step=1))
    store.stored(*(facts.call_started(run, call, step=1, delegation=True) for call in (lists, swaps)))
    store.stored(facts.handoff(run, "ho_1", call_id=older["call_id"]))
    assert (await reads.spent("default", facts.session.id, "USD"))["tool_calls"] == 1
    store.stored(facts.handoff(run, "ho_2", call_id=swaps["call_id"]))
    stood_in = {"kind": "primary", "target": "search"}
    store.stored(facts.handed_back(run, "ho_2", [], call_id=swaps["call_id"], status="fallback", fallback=stood_in))
    spent = await reads.spent("default", facts.session.id, "USD")
    assert spent["tool_calls"] == 2, "the ordinary tool of that name was called in its place"


# ── the tree ────────────────────────────────────────────────────────────────────────────────────────────────────


async def tree(reads: SqlRunStore, facts: Facts) -> dict[str, Any]:
    """The tree of a session as a client sees it."""
    session = facts.session.id
    return tree_view(session, await reads.runs("default", session), await reads.handoffs("default", session))


@pytest.mark.spec("13.4", "14.4")
async def test_every_node_of_a_tree_says_what_it_used_alone_and_with_all_below_it(
    store: Store, reads: SqlRunStore
) -> None:
    facts = Facts()
    runs = [facts.run()]
    for _ in range(2):
        runs.append(facts.run(parent=runs[-1]))
    runs.append(facts.run(parent=runs[0]))
    runs.append(facts.run())
    story = [facts.created(), *map(facts.queued, runs)]
    spent = [usage(1, USD=1), usage(10, USD=10, EUR=4), usage(100), usage(1000, USD=1000), usage(10_000, EUR=1)]
    for run, used in list(zip(runs, spent, strict=True))[1:]:
        story.append(facts.ended(run, usage=used, usage_total=used))
    store.stored(*story)  # the first run goes on
    found = await tree(reads, facts)
    root, last = found["runs"]
    middle, side = root["children"]
    (leaf,) = middle["children"]
    assert root["usage"] is None
    assert [node["usage"] for node in (middle, leaf, side, last)] == spent[1:]
    inclusive = [
        (node["usage_total"]["input_tokens"], node["usage_total"]["model_calls"], node["usage_total"]["cost"])
        for node in (root, middle, leaf, side, last, found)
    ]
    assert inclusive == [
        (1110, 3, {"USD": 1010, "EUR": 4}),
        (110, 2, {"USD": 10, "EUR": 4}),
        (100, 1, {}),
        (1000, 1, {"USD": 1000}),
        (10_000, 1, {"EUR": 1}),
        (11_110, 4, {"USD": 1010, "EUR": 5}),
    ]


@pytest.mark.spec("13.4", "14.4")
async def test_runs_that_were_stored_before_there_was_cost_are_shown_with_none(
    store: Store, reads: SqlRunStore
) -> None:
    facts = Facts()
    run = facts.run()
    old = {name: USAGE[name] for name in USAGE if name not in ("cost", "unpriced_calls")}
    store.stored(facts.created(), facts.queued(run), facts.ended(run, usage=old, usage_total=old))
    found = await tree(reads, facts)
    (node,) = found["runs"]
    assert node["usage"] == node["usage_total"] == found["usage_total"] == {**old, "unpriced_calls": 0, "cost": {}}
    assert (await reads.spent("default", facts.session.id, "USD"))["cost_micros"] == 0


@pytest.mark.spec("14.4")
async def test_a_tree_of_any_depth_is_added_up(store: Store, reads: SqlRunStore) -> None:
    facts = Facts()
    runs = [facts.run()]
    while len(runs) < 1500:
        runs.append(facts.run(parent=runs[-1]))
    store.stored(facts.created(), *map(facts.queued, runs), *(facts.ended(run) for run in reversed(runs)))
    found = await tree(reads, facts)
    assert found["runs"][0]["usage_total"] == found["usage_total"]
    assert found["usage_total"]["input_tokens"] == 1500 * USAGE["input_tokens"]


@pytest.mark.spec("4.6", "14.4")
async def test_the_tree_shows_handoffs_with_the_run_that_made_them_denied_ones_too(
    store: Store, reads: SqlRunStore
) -> None:
    facts = Facts()
    root = facts.run()
    child = facts.run(parent=root, agent="scout", name="sub_1", handoff_id="ho_1")
    again = facts.run(parent=root, agent="scout", name="sub_1", handoff_id="ho_1")
    denied = {"code": "handoff_denied", "message": "tool is in denied_tools"}
    fallback = {"kind": "answer", "target": ""}
    store.stored(
        facts.created(),
        facts.queued(root),
        facts.handoff(root, "ho_1", "sub_1"),
        facts.queued(child),
        facts.handoff(child, "ho_2", "sub_2"),
        facts.handed_back(child, "ho_2", [], "sub_2", status="denied", error=denied, output=""),
        facts.queued(again),
        facts.handoff(None, "ho_3", "sub_3"),
        facts.handed_back(None, "ho_3", ["run_x"], "sub_3", status="fallback", fallback=fallback),
    )
    found = await tree(reads, facts)
    (top,) = found["runs"]
    shared = {"tool": "execute_task", "agent": "scout", "error": None, "fallback": None}
    assert top["handoffs"] == [
        {"id": "ho_1", "name": "sub_1", "status": "running", "attempts": 0, "run_ids": [child.id, again.id], **shared}
    ]
    first, second = top["children"]
    refused: dict[str, Any] = {
        "id": "ho_2",
        "name": "sub_2",
        "status": "denied",
        "attempts": 0,
        "run_ids": [],
        **shared,
    }
    assert (first["handoffs"], second["handoffs"]) == ([{**refused, "error": denied}], [])
    direct = {"id": "ho_3", "name": "sub_3", "status": "fallback", "attempts": 1, "run_ids": ["run_x"], **shared}
    assert found["handoffs"] == [{**direct, "fallback": fallback}]
    assert tree_view(facts.session.id, [])["handoffs"] == []
