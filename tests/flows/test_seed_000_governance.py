"""Seed 000 (AI4J) over HTTP, row by row: what governs a handoff, in which order, and how it ends."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.client import ServiceError
from tests.flows.surface_world import Decide, World, once, refused, surface_world
from tests.flows.test_seed_000 import (
    BOSS,
    HELPER,
    KEY,
    children_of,
    handoffs_of,
    history_of,
    leader,
    own_world,
    prompt_of,
    results_in,
)
from tests.service import agent, events_of
from tests.stubs.openai_stub import Answer, Request, calls, text

pytestmark = pytest.mark.slow

ASK = ("subagent_helper", '{"task": "Work."}')
HANG = Answer(end="hang")
# The nine fields of the page with their defaults, in the words of spec 4.1; those of the surface `per_agent`.
DEFAULTS: dict[str, Any] = {
    "enabled": True,
    "max_depth": 1,
    "max_retries": 0,
    "timeout_ms": 0,
    "allowed_tools": None,
    "denied_tools": None,
    "on_denied": "fail",
    "on_error": "fail",
    "input_filter": None,
}
END_FIELDS = {
    "handoff_id", "call_id", "tool", "subagent", "status", "depth", "session_mode", "attempts", "duration_ms", "output",
    "error",
}  # fmt: skip


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """One service and one model server."""
    async with surface_world(tmp_path) as made:
        yield made


def children_answer(answer: Answer) -> Decide:
    """The parent asks once and says what it was told; every other agent answers like this."""
    parent = once(ASK)
    return lambda request: parent(request) if prompt_of(request) == BOSS else answer


async def ended(world: World, run: dict[str, Any]) -> dict[str, Any]:
    """How the only handoff of a run ended, after it began."""
    events = await events_of(world.client, f"/v1/runs/{run['id']}/events", types="handoff.start,handoff.end")
    start, end = events
    assert (start["type"], end["type"]) == ("handoff.start", "handoff.end")
    assert start["data"]["handoff_id"] == end["data"]["handoff_id"]
    data: dict[str, Any] = end["data"]
    return data


# ── admission (8.1, 8.3, 10) ────────────────────────────────────────────────────────────────────────────────────


HELPERS, OTHERS = ["subagent_helper"], ["subagent_other"]
# Spec 4.2 spells the names in the seed's texts as its own fields: allowed_tools, max_depth.
RULES: list[tuple[dict[str, Any], str | None]] = [
    ({"allowed_tools": OTHERS, "denied_tools": HELPERS, "max_depth": 0}, "tool is not in allowed_tools"),
    ({"allowed_tools": HELPERS, "denied_tools": HELPERS, "max_depth": 0}, "tool is in denied_tools"),
    ({"allowed_tools": HELPERS, "denied_tools": OTHERS, "max_depth": 0}, "handoff depth 1 exceeds max_depth 0"),
    ({"allowed_tools": ["helper"]}, "tool is not in allowed_tools"),
    ({"denied_tools": ["helper"]}, None),
    ({"allowed_tools": []}, "tool is not in allowed_tools"),
    ({"allowed_tools": None, "denied_tools": None}, None),
]


@pytest.mark.spec("4.2", "4.6")
@pytest.mark.seed("000", 31, 35, 36, 46, 48)
async def test_admission_asks_the_allowed_the_denied_and_the_depth_in_this_order_and_by_the_name_of_the_tool(
    world: World,
) -> None:
    for policy, reason in RULES:
        run = await world.run(once(ASK), [leader(), agent("helper")], policy={**policy, "on_denied": "report"})
        assert run["status"] == "completed", policy
        end, told = await ended(world, run), json.loads(world.told()[0])
        if reason is None:
            assert (end["status"], end["attempts"], told["output"]) == ("completed", 1, "Child text."), policy
            continue
        assert (end["status"], end["attempts"], end["error"]["message"]) == ("denied", 0, reason), policy
        assert (told["status"], told["error"]) == ("denied", reason)
        assert world.of(HELPER) == []
        assert await children_of(world.client, run) == []


@pytest.mark.spec("4.1", "4.10")
@pytest.mark.seed("000", 46)
async def test_null_is_no_list_also_where_it_stands_in_for_a_list(world: World) -> None:
    lead = leader(handoff={"allowed_tools": [], "denied_tools": ["subagent_helper"], "on_denied": "report"})
    run = await world.run(once(ASK), [lead, agent("helper")])
    assert (await ended(world, run))["status"] == "denied"
    run = await world.run(once(ASK), [lead, agent("helper")], policy={"allowed_tools": None, "denied_tools": None})
    assert (await ended(world, run))["status"] == "completed"


@pytest.mark.spec("4.1", "4.6")
@pytest.mark.seed("000", 44, 45, 47)
async def test_the_nine_defaults_are_what_holds_where_nobody_set_a_policy(world: World) -> None:
    def nested(request: Request) -> Answer:
        return text("ok") if results_in(request) else calls(ASK)

    agents = [leader(), agent("helper", tools=["Agent"])]
    scenes = {
        "works": once(ASK),
        "fails": children_answer(Answer(status=503, writes=(b"{}",), content_type="application/json")),
        "nests": nested,
    }
    found = {}
    for policy in (None, DEFAULTS):
        for name, decide in scenes.items():
            run = await world.run(decide, agents, policy=policy)
            ends = await handoffs_of(world.client, run, "handoff.end")
            seen = [(end["depth"], end["status"], end["attempts"]) for end in ends]
            code = run["error"]["code"] if run["error"] else None
            tasks = [history_of(request) for request in world.of(HELPER)]
            found[name, policy is None] = (run["status"], code, seen, tasks, list(world.shown()))
    works = ("completed", None, [(1, "completed", 1)], [["Work."]], ["subagent_helper"])
    assert found["works", True] == found["works", False] == works
    # `fail`, the page's exception: the turn ends, and with it the run that delegated
    assert found["fails", True] == found["fails", False]
    assert found["fails", True][:3] == ("failed", "handoff_failed", [(1, "failed", 1)])
    assert found["nests", True] == found["nests", False]
    assert found["nests", True][:3] == ("failed", "handoff_failed", [(2, "denied", 0), (1, "failed", 1)])


@pytest.mark.spec("4.1", "4.5")
@pytest.mark.seed("000", 47, 48)
async def test_by_default_a_denial_ends_the_run_and_says_which_rule_it_was(world: World) -> None:
    run = await world.run(once(ASK), [leader(), agent("helper")], policy={"denied_tools": ["subagent_helper"]})
    assert (run["status"], run["error"]["code"]) == ("failed", "handoff_denied")
    assert run["error"]["message"] == "the handoff to helper was denied: tool is in denied_tools"
    assert len(world.stub.requests) == 1
    with pytest.raises(ServiceError, match="max_retries") as negative:
        await world.run(once(ASK), [leader(), agent("helper")], policy={"max_retries": -1})
    assert negative.value.status == 422


@pytest.mark.spec("4.3", "4.4", "4.6")
@pytest.mark.seed("000", 33)
async def test_a_policy_that_is_off_still_has_its_events_and_its_timeout_and_nothing_else(world: World) -> None:
    policy = {
        "enabled": False,
        "allowed_tools": [],
        "denied_tools": ["subagent_helper"],
        "max_depth": 0,
        "max_retries": 3,
        "on_denied": {"answer": "stood in"},
        "on_error": {"answer": "stood in"},
        "input_filter": {"inject": {"ticket": 7}},
    }
    run = await world.run(once(ASK), [leader(), agent("helper")], policy=policy)
    assert (await ended(world, run))["status"] == "completed"
    assert list(world.shown()) == ["subagent_helper"]
    assert history_of(world.of(HELPER)[0]) == ["Work."]

    run = await world.run(children_answer(HANG), [leader(), agent("helper")], policy={**policy, "timeout_ms": 1000})
    end = await ended(world, run)
    assert (end["status"], end["attempts"], end["error"]["code"]) == ("timed_out", 1, "timed_out")
    assert (run["status"], run["error"]["code"]) == ("failed", "handoff_failed"), "as the surface has it by itself"
    assert len(world.of(HELPER)) == 1
    await world.stub.client_left()


# ── input (8.4) ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("4.2")
@pytest.mark.seed("000", 37)
async def test_input_filters_mask_cut_and_inject_before_the_child_is_asked(tmp_path: Path) -> None:
    order = {"task": f"Use {KEY}.", "context": "0123456789"}
    asked = once(("subagent_helper", json.dumps(order)))
    agents = [leader(), agent("helper")]
    filters = ["mask_secrets", {"cut_context": 4}, {"inject": {"ticket": 7, "by": "ann"}}]
    async with own_world(tmp_path) as world:
        await world.run(asked, agents)
        assert history_of(world.of(HELPER)[0]) == [f"Use {KEY}.\n\nContext:\n0123456789"]
        await world.run(asked, agents, policy={"input_filter": filters})
        (filtered,) = history_of(world.of(HELPER)[0])
        task, _, context = filtered.partition("\n\nContext:\n")
        assert task == "Use [masked]."
        assert context.startswith("0123\n[…")
        assert context.endswith("\n\nticket: 7\nby: ann")
        assert "456789" not in filtered


FILTERS = """
from dataclasses import replace

SEEN = []


def keep(given):
    SEEN.append(given.task)


def louder(given):
    return replace(given, task=f"{given.task} {len(SEEN)}!")


def broken(given):
    raise RuntimeError("no")
"""
FILTERED = """---
name: {name}
description: A lead of the operator.
mode: primary
tools: Agent
surfaces: [per_agent]
handoff:
  input_filter: [{filters}]
---
You are boss.
"""


@pytest.mark.spec("4.2")
@pytest.mark.seed("000", 38)
async def test_a_filter_that_returns_nothing_leaves_the_call_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "filters_of_000.py").write_text(FILTERS)
    (tmp_path / "agents").mkdir()
    for name, functions in (("keeping", ["keep"]), ("louder", ["keep", "louder"])):
        page = FILTERED.format(name=name, filters=", ".join(f"'filters_of_000:{function}'" for function in functions))
        (tmp_path / "agents" / f"{name}.md").write_text(page)
    (tmp_path / "subagentd.toml").write_text("trusted_agents = true\n")
    asked = once(("subagent_helper", '{"task": "Work.", "context": "Here."}'))
    async with own_world(tmp_path, "--agents", str(tmp_path / "agents")) as world:
        for name, child in (("keeping", "Work.\n\nContext:\nHere."), ("louder", "Work. 2!\n\nContext:\nHere.")):
            run = await world.run(asked, [agent("helper")], agent=name)
            assert history_of(world.of(HELPER)[0]) == [child]
            assert (await ended(world, run))["status"] == "completed"


# ── attempts and ends (8.5, 8.6, 8.7, 11) ───────────────────────────────────────────────────────────────────────


async def attempts_of(world: World, run: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """How the handoffs of a run ended, and after how many attempts, by agent."""
    ends = await handoffs_of(world.client, run, "handoff.end")
    assert [len(end["run_ids"]) for end in ends] == [end["attempts"] for end in ends]
    return {end["subagent"]: (end["status"], end["attempts"]) for end in ends}


@pytest.mark.spec("4.4", "4.6", "4.7")
@pytest.mark.seed("000", 39, 40)
async def test_there_are_one_more_attempts_than_retries_and_each_has_the_whole_timeout(tmp_path: Path) -> None:
    asked: Counter[str] = Counter()

    def decide(request: Request) -> Answer:
        prompt = prompt_of(request)
        asked[prompt] += 1
        if prompt == BOSS:
            wanted = [(f"subagent_{name}", '{"task": "Work."}') for name in ("third", "never")]
            return text("end") if results_in(request) else calls(*wanted)
        return text("At last.") if prompt == "You are third." and asked[prompt] == 3 else HANG

    agents = [leader(), agent("third", tools=[]), agent("never", tools=[])]
    policy = {"on_error": "report", "timeout_ms": 500}
    async with own_world(tmp_path, SUBAGENTD_HANDOFF__BACKOFF_MS="0") as world:
        run = await world.run(decide, agents, policy=policy)
        assert await attempts_of(world, run) == {"third": ("timed_out", 1), "never": ("timed_out", 1)}
        asked.clear()
        run = await world.run(decide, agents, policy={**policy, "timeout_ms": 2000, "max_retries": 2})
        assert await attempts_of(world, run) == {"third": ("completed", 3), "never": ("timed_out", 3)}
        children = await children_of(world.client, run)
        statuses = [child["status"] for child in children if child["agent"] == "third"]
        assert statuses == ["timed_out", "timed_out", "completed"], "two timeouts had passed when the third one began"
        assert len(children) == 6
        assert len({child["handoff_id"] for child in children}) == 2
        await world.stub.client_left(5)


ENDS: list[tuple[Answer, Any, str, str]] = [
    (text("Fine."), "report", "completed", "Fine."),
    (refused("used up"), "report", "failed", ""),
    (refused("used up"), {"answer": "Ask a person."}, "fallback", "Ask a person."),
    (refused("used up"), {"agent": "other"}, "fallback", "Instead."),
]


@pytest.mark.spec("4.1", "4.6")
@pytest.mark.seed("000", 31, 32, 41)
async def test_a_handoff_that_completed_failed_or_fell_back_has_an_end_with_all_its_fields(world: World) -> None:
    answers: dict[str, Answer] = {}
    parent = once(ASK)

    def decide(request: Request) -> Answer:
        return answers.get(prompt_of(request)) or parent(request)

    agents = [leader(), agent("helper", tools=[]), agent("other", tools=[])]
    for child, on_error, status, output in ENDS:
        answers.update({HELPER: child, "You are other.": text("Instead.")})
        run = await world.run(decide, agents, policy={"on_error": on_error})
        assert run["status"] == "completed", on_error
        end = await ended(world, run)
        # spec 11.1: what there is not is left out, here the error of a handoff that had none
        assert END_FIELDS - set(end) == ({"error"} if status == "completed" else set())
        assert status == "completed" or "used up" in end["error"]["message"]
        assert (end["status"], end["output"]) == (status, output)
        assert (end["tool"], end["subagent"], end["depth"]) == ("subagent_helper", "helper", 1)
        assert (end["session_mode"], end["attempts"]) == ("new_session", 1)
        assert isinstance(end["duration_ms"], int)
        told = json.loads(world.told()[0])
        assert (told["status"], told["output"]) == (status, output)
        kept = await world.client.request("GET", f"/v1/delegations/{end['handoff_id']}")
        assert (kept["status"], kept["output"], kept["attempts"]) == (status, output, 1)


@pytest.mark.spec("4.1")
@pytest.mark.seed("000", 49, 50)
async def test_where_no_ordinary_tool_has_the_name_a_fallback_to_it_is_a_clear_result_and_no_exception(
    world: World,
) -> None:
    for status, why, policy in (
        ("denied", "tool is not in allowed_tools", {"allowed_tools": OTHERS, "on_denied": "fallback_to_primary"}),
        ("failed", "used up", {"on_error": "fallback_to_primary"}),
    ):
        run = await world.run(children_answer(refused("used up")), [leader(), agent("helper")], policy=policy)
        assert run["status"] == "completed", "the parent's model reads it and goes on"
        (told,) = world.told()
        assert told.startswith("handoff unavailable: no ordinary tool subagent_helper can take this call over")
        assert why in told
        assert (await ended(world, run))["status"] == status
        events = await events_of(world.client, f"/v1/runs/{run['id']}/events", types="tool.result")
        assert [e["data"]["is_error"] for e in events if e["depth"] == 0] == [True]
