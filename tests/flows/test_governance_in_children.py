"""Publicly reported faults of hooks and of children's permissions, each with the run at fault as lead, child or below.

Most of these were once fixed for the main agent only. What must hold after each is checked by `Case.settled`.
"""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from tests.flows.levels import Case, Levels, levels
from tests.flows.levels_model import DEPTHS, Play, call, delegate, every_result, said, turns
from tests.service import agent, events_of
from tests.stubs.openai_stub import Answer, Request, calls, refusal, text

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.parametrize("depth", DEPTHS)]
SUBAGENT_POINTS = ("OnSubagentStart", "OnSubagentStop")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Levels]:
    async with levels(tmp_path_factory.mktemp("governance"), hooks=True) as made:
        yield made


def points(told: list[dict[str, Any]], *wanted: str) -> list[dict[str, Any]]:
    """What was told at these points."""
    return [each for each in told if each["point"] in wanted]


# ── hooks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("6.1", "6.2")
@pytest.mark.case("B098", "B099", "B105")
async def test_a_hook_that_blocks_is_obeyed_and_is_told_who_asks(world: Levels, depth: int) -> None:
    path = f"blocked{depth}.txt"
    play = turns(calls(call("write_file", path=path)), text("Not written."))
    case = await world.begin(depth, play, part="guarded", worker={"tools": ["write_file"]})
    run = await case.settled()
    assert run["output"] == "Not written."
    assert not (world.service.workspace / path).exists()
    ((status, content),) = await case.results()
    assert (status, "nobody writes here" in content) == ("denied", True)
    assert "nobody writes here" in every_result(case.asked()[1])[0], "the model was told as well"
    (decided,) = await case.events("hook.decision")
    assert (decided["data"]["hook"], decided["data"]["decision"]) == ("guard", "block")
    (pre,) = points([each for each in world.told_of(case) if each["tool"] == "write_file"], "PreToolUse")
    runs = await case.runs()
    line = [one["id"] for one in runs if one["turn"] == 0][: depth + 1]
    assert (pre["run"], pre["agent"], pre["depth"], pre["lineage"]) == (run["id"], "guarded", depth, line[:-1])
    assert (pre["parent_run"], pre["path"]) == (line[-2] if depth else None, run["path"])
    assert points([each for each in world.told_of(case) if each["tool"] == "write_file"], "PostToolUse") == []


@pytest.mark.spec("6.2", "6.4")
@pytest.mark.case("B100")
async def test_a_hook_that_blocks_a_delegation_lets_no_child_start(world: Levels, depth: int) -> None:
    play = turns(calls(delegate("helper", "Help.")), text("Alone."))
    helpers: dict[str, tuple[Play, dict[str, Any]]] = {"helper": (turns(text("never")), {})}
    case = await world.begin(depth, play, part="fenced", worker={"tools": ["Agent"]}, helpers=helpers)
    run = await case.settled()
    assert run["output"] == "Alone."
    assert "nobody starts anybody here" in (await case.results())[0][1]
    assert case.asked("helper") == []
    assert {one["agent"] for one in await case.runs()} == {*("lead", "middle")[:depth], "fenced"}
    assert "helper" not in {each["agent"] for each in world.told_of(case)}
    assert [each["depth"] for each in points(world.told_of(case), "OnSubagentStart")] == [*range(1, depth + 1)] * 2


@pytest.mark.spec("6.3")
@pytest.mark.case("B102")
async def test_a_hook_that_never_returns_costs_its_time_and_the_call(world: Levels, depth: int) -> None:
    play = turns(calls(call("poke"), call("put", path="a")), text("On it goes."))
    case = await world.begin(depth, play, worker={"tools": ["poke", "put"]})
    run = await case.settled()
    assert run["output"] == "On it goes."
    assert [status for status, _ in await case.results()] == ["denied", "ok"]
    (decided,) = await case.events("hook.decision")
    assert (decided["data"]["decision"], decided["data"]["effect"]) == ("failed", "block")
    assert "0.3" in decided["data"]["reason"]


ENDINGS: dict[str, tuple[Answer, str]] = {
    "an answer": (text("Done."), "completed"),
    "an exception of a tool": (calls(call("boom")), "completed"),
    "an error of the provider": (refusal(400, {"message": "no such model"}), "failed"),
    "the step limit": (calls(call("put", path="a")), "completed"),
    "a cancel": (replace(text("never"), writes=text("never").writes[:2], end="hang"), "cancelled"),
}


@pytest.mark.spec("6.4", "5.7")
@pytest.mark.case("B103", "B105")
@pytest.mark.parametrize("ending", ENDINGS)
async def test_however_a_run_ends_its_start_has_one_stop_with_the_same_id(
    world: Levels, depth: int, ending: str
) -> None:
    first, status = ENDINGS[ending]
    limits: dict[str, Any] = {"max_steps": 1} if ending == "the step limit" else {}
    case = await world.begin(depth, turns(first, text("So.")), worker={"tools": ["boom", "put"], **limits})
    if status == "cancelled":
        await case.seen("step.started")
        await case.cancel()
    run = await case.settled(status)
    told = [each for each in points(world.told_of(case), *SUBAGENT_POINTS) if each["depth"] == depth]
    first_turn = [each for each in told if each["run"] == run["id"]]
    assert [each["point"] for each in first_turn] == (list(SUBAGENT_POINTS) if depth else [])
    assert {(each["agent"], each["name"]) for each in first_turn} == ({("worker", run["name"])} if depth else set())
    if depth:
        assert first_turn[1]["is_error"] == (status != "completed")
        pair = await case.events("subagent.start", "subagent.stop")
        assert [e["type"] for e in pair if e["run_id"] == run["id"]] == ["subagent.start", "subagent.stop"]


@pytest.mark.spec("6.4", "5.8")
@pytest.mark.case("B104")
async def test_eight_failing_children_at_once_have_eight_starts_and_eight_stops(world: Levels, depth: int) -> None:
    def play(request: Request) -> Answer:
        return text("All failed.") if said(request) else calls(*(delegate("helper", f"part {n}") for n in range(8)))

    fire: Play = lambda _request: refusal(500, {"message": "the model is on fire"})  # noqa: E731
    helpers = {"helper": (fire, {"session_mode": "new_session"})}
    case = await world.begin(depth, play, worker={"tools": ["Agent"]}, helpers=helpers)
    run = await case.settled()
    assert run["output"] == "All failed."
    told = [each for each in world.told_of(case) if each["agent"] == "helper"]
    started, stopped = (sorted(each["run"] for each in points(told, point)) for point in SUBAGENT_POINTS)
    assert len(set(started)) == 8
    assert started == stopped
    assert all(each["is_error"] and each["depth"] == depth + 1 for each in points(told, "OnSubagentStop"))


# ── what a child may ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("8.1", "7.2")
@pytest.mark.case("B116")
@pytest.mark.parametrize("way", ["its whitelist", "rules of the session"])
async def test_one_who_may_only_delegate_has_children_that_may_read(world: Levels, depth: int, way: str) -> None:
    """Two levels: the whitelist is an agent's own limit, denials are a ceiling for all below."""
    (world.service.workspace / "a.txt").write_text("A line.")

    def play(request: Request) -> Answer:
        told = said(request)
        return text(f"told {told[-1]}") if len(told) > 1 else calls(delegate("helper", "Read."), call("put", path="a"))

    reading = turns(calls(call("read_file", path="a.txt"), call("run_command", command="ls")), text("Read it."))
    helpers: dict[str, tuple[Play, dict[str, Any]]] = {"helper": (reading, {"tools": ["read_file", "run_command"]})}
    rules: dict[str, Any] = {"permissions": {"deny": ["Bash", "Write"]}} if way != "its whitelist" else {}
    case = await world.begin(depth, play, worker={"tools": ["Agent"]}, helpers=helpers, **rules)
    await case.settled()
    (delegated, refused) = await case.results()
    assert (delegated[0], refused[0]) == ("ok", "unknown_tool"), "`put` is not on its whitelist"
    below = await case.results(depth + 1)
    assert [status for status, _ in below] == ["ok", "ok" if way == "its whitelist" else "denied"]
    assert below[0][1] == "A line."


@pytest.mark.spec("8.1", "8.4")
@pytest.mark.case("B117")
async def test_a_childs_own_denials_hold_whoever_starts_it_and_when_it_is_called_directly(
    world: Levels, depth: int
) -> None:
    own: dict[str, Any] = {"tools": ["run_command", "put"], "permissions": {"deny": ["Bash(rm *)", "put"]}}
    commands = calls(call("run_command", command="rm x"), call("run_command", command="ls"), call("put", path="a"))
    seen: list[Any] = []
    for above in ({}, {"permissions": {"ask": ["WebFetch"]}}):
        case = await world.begin(depth, turns(commands, text("Done.")), worker=own, above=above)
        await case.settled()
        seen.append(([status for status, _ in await case.results()], _tools(case)))
        assert world.ran(case) == ["ls"]
    assert seen == [(["denied", "ok", "denied"], ["run_command"])] * 2, "what is denied as a whole is not shown"
    world.stub.plays["You are direct."] = turns(commands, text("Done."))
    direct = await world.client.request("POST", "/v1/delegations", {"agent": agent("direct", **own), "task": "Do."})
    events = await events_of(world.client, f"/v1/sessions/{direct['session_id']}/events", types="tool.result")
    assert [e["data"]["status"] for e in events] == seen[0][0]


def _tools(case: Case) -> list[str]:
    return [tool["function"]["name"] for tool in case.asked()[0].body["tools"]]
