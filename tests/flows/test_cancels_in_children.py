"""Publicly reported faults of cancelling and of waiting for what never answers, each at the depths 0, 1 and 2."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.client import ServiceError
from tests.flows.levels import Case, Levels, levels
from tests.flows.levels_model import AGAIN, DEPTHS, Play, call, delegate, said, turns
from tests.processes import alive, linux, numbers_in, until
from tests.service import INTERRUPT, events_of, finished
from tests.stubs.openai_stub import Answer, Request, calls, chunk, refusal, sse, text

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.parametrize("depth", DEPTHS)]
LIMITS = {"idle_s": 0.4, "total_s": 1.2}
PROFILES = {"hasty": {"provider": "openai", "model": "m", "base_url": "{stub}", **LIMITS}}
ALPHA = sse(chunk({"role": "assistant", "content": ""}), chunk({"content": "alpha beta "}), done=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Levels]:
    settings = {"SUBAGENTD_MODELS__PROFILES": json.dumps(PROFILES), "SUBAGENTD_TOOLS__INTERRUPT_GRACE_MS": "500"}
    async with levels(tmp_path_factory.mktemp("cancels"), settings) as made:
        yield made


def hanging(*writes: bytes) -> Answer:
    """These bytes, then silence until the client goes."""
    return Answer(writes=writes, end="hang")


def ticking(piece: bytes, every_s: float = 0.1, times: int = 100) -> Answer:
    """The same bytes again and again, with a pause before each."""
    loop = asyncio.get_running_loop()
    gates = [asyncio.Event() for _ in range(times)]
    for number, gate in enumerate(gates):
        loop.call_later(every_s * number, gate.set)
    return Answer(writes=tuple(write for gate in gates for write in (gate, piece)), end="hang")


async def refused(world: Levels, run_id: str) -> int:
    """The status of a cancel that is not taken."""
    with pytest.raises(ServiceError) as problem:
        await world.client.request("POST", f"/v1/runs/{run_id}/cancel")
    return problem.value.status


# ── cancelling ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("5.7")
@pytest.mark.case("B062", "B066", "B067", "B068")
async def test_a_cancel_hangs_up_on_the_model_below_and_keeps_what_it_had_said(world: Levels, depth: int) -> None:
    left = world.stub.clients_left
    case = await world.begin(depth, lambda _request: hanging(*ALPHA))
    await case.seen("run.started")
    await until(lambda: any(frame.type == "text.delta" for frame in case.frames))
    asked = len(world.stub.requests)
    answer = await case.cancel()
    await world.stub.client_left(left + 1)
    assert len(answer["cancelled"]) == depth + 1
    run = await case.settled("cancelled")
    assert len(world.stub.requests) == asked + depth + 1 + depth, "then only the turn after it"
    first_turn = [one for one in await case.runs() if one["turn"] == 0]
    assert [one["status"] for one in first_turn] == ["cancelled"] * (depth + 1)
    assert run["usage"]["model_calls"] == 1
    page = await world.client.page(f"/v1/runs/{run['id']}/messages", order="oldest")
    assert [(row["role"], row["content"].strip()) for row in page["items"]][1:] == [
        ("user", "Do it."), ("assistant", "alpha beta"),
    ]  # fmt: skip
    (partial,) = [e["data"] for e in await case.events("message") if e["data"].get("partial")]
    assert partial["content"].startswith("alpha beta")
    shown = [m for m in case.asked()[-1].messages if "alpha beta" in str(m["content"])]
    assert [m["role"] for m in shown] == ["assistant"]
    said_next = json.dumps(case.asked()[-1].messages[-2:])
    assert "alpha beta" in said_next
    assert AGAIN in said_next


@pytest.mark.spec("5.7")
@pytest.mark.case("B062", "B063")
async def test_all_children_side_by_side_end_with_their_parent(world: Levels, depth: int) -> None:
    """Children in the foreground; the background is not there yet."""
    play = turns(calls(*(delegate("helper", f"part {n}") for n in range(3))), text("never"))
    never: Play = lambda _request: hanging(*ALPHA)  # noqa: E731
    helpers = {"helper": (never, {"session_mode": "new_session"})}
    left = world.stub.clients_left
    case = await world.begin(depth, play, worker={"tools": ["Agent"]}, helpers=helpers)
    await until(lambda: len(case.asked("helper")) == 3)
    await case.cancel()
    await world.stub.client_left(left + 3)
    await case.settled("cancelled")
    first = [one for one in await case.runs() if one["turn"] == 0]
    assert {one["status"] for one in first} == {"cancelled"}
    assert len(first) == depth + 4


@pytest.mark.spec("5.7", "14.8")
@pytest.mark.case("B064")
async def test_a_cancel_as_early_as_may_be_wins_and_odd_cancels_are_no_fault(world: Levels, depth: int) -> None:
    def play(_request: Request) -> Answer:
        return hanging()

    async def one() -> None:
        case = await world.begin(depth, play)
        if depth:
            await case.seen("run.queued")
        answers = await asyncio.gather(case.cancel(), case.cancel())
        assert {answer["status"] for answer in answers} == {"cancelled"}
        await case.ended()
        cases.append(case)

    cases: list[Case] = []
    await asyncio.gather(*(one() for _ in range(6)))
    for case in cases:
        await case.settled("cancelled", again=case is cases[0])
    late = await cases[0].cancel()
    assert (late["status"], late["cancelled"]) == ("cancelled", [])
    assert await refused(world, "run_00000000000000000000000000") == 404


@pytest.mark.spec("5.7", "14.8")
@pytest.mark.seed("004", 172)
@pytest.mark.case("B064")
async def test_a_child_that_is_cancelled_alone_is_an_error_to_its_parent_which_goes_on(
    world: Levels, depth: int
) -> None:
    case = await world.begin(depth, lambda _request: hanging(*ALPHA))
    (started,) = await case.seen("step.started")
    await until(lambda: len(case.asked()) == 1)
    answer = await world.client.request("POST", f"/v1/runs/{started['run_id']}/cancel")
    assert (answer["status"], answer["cancelled"]) == ("cancelled", [started["run_id"]])
    await case.settled("cancelled")
    above = [one for one in await case.runs() if one["turn"] == 0 and one["depth"] < depth]
    assert [one["status"] for one in above] == ["completed"] * depth
    assert all("cancelled" in one["output"] for one in above)


@pytest.mark.spec("5.8", "12.2")
@pytest.mark.case("B067")
async def test_what_was_said_before_a_connection_broke_for_good_is_kept_and_marked(world: Levels, depth: int) -> None:
    case = await world.begin(depth, lambda _request: Answer(writes=ALPHA, end="reset"))
    run = await case.settled("failed")
    assert len(await case.events("step.retried")) == 1
    (partial,) = [e["data"] for e in await case.events("message") if e["data"].get("partial")]
    assert (partial["role"], partial["content"].strip()) == ("assistant", "alpha beta")
    page = await world.client.page(f"/v1/runs/{run['id']}/messages", role="assistant")
    assert [row["content"].strip() for row in page["items"]] == ["alpha beta"]
    assert "alpha beta" in json.dumps(case.asked()[-1].messages), "the next turn is shown it"


@linux
@pytest.mark.spec("5.7", "7.4", "7.8")
@pytest.mark.case("B069")
async def test_a_cancel_ends_the_process_of_a_tool_in_a_thread_and_no_later_call_is_made(
    world: Levels, depth: int
) -> None:
    pids = world.service.folder / f"slept{depth}.pids"
    play = turns(calls(call("sleeper", name=f"slept{depth}"), call("put", path="a")), text("never"))
    case = await world.begin(depth, play, worker={"tools": ["sleeper", "put"]})
    await until(lambda: len(numbers_in(pids)) == 2)
    await case.cancel()
    assert [number for number in numbers_in(pids) if alive(number)] == []
    await case.settled("cancelled")
    assert [status for status, _ in await case.results()] == ["cancelled", "cancelled"]
    assert [e["data"]["tool"] for e in await case.events("tool.start")] == ["sleeper"]
    assert len(case.asked()) == 2, "the second request is that of the next turn"


@pytest.mark.spec("5.7", "7.8")
@pytest.mark.case("B069")
async def test_a_tool_that_is_deaf_keeps_no_run_from_ending(world: Levels, depth: int) -> None:
    name = f"deaf{depth}"
    case = await world.begin(depth, turns(calls(call("deaf", name=name)), text("never")), worker={"tools": ["deaf"]})
    await case.seen("tool.start")
    await case.cancel()
    await case.ended()
    end = world.service.folder / f"{name}.end"
    assert not end.exists(), "the run has ended while its tool has not"
    end.touch()
    await case.settled("cancelled")
    assert [status for status, _ in await case.results()] == ["cancelled"]


@pytest.mark.spec("5.7", "8.2")
@pytest.mark.case("B070")
async def test_a_cancel_withdraws_an_open_question_and_a_late_answer_is_told_so(world: Levels, depth: int) -> None:
    play = turns(calls(call("run_command", command="make all")), text("never"))
    case = await world.begin(depth, play, worker={"tools": ["run_command"]}, permissions={"ask": ["Bash(make *)"]})
    (question,) = await case.questions(1)
    await case.cancel()
    with pytest.raises(ServiceError) as late:
        await case.answer(question["approval_id"], "allow_once")
    assert (late.value.status, late.value.problem["code"]) == (409, "not_pending")
    await case.settled("cancelled")
    assert world.ran(case) == []
    (resolved,) = await case.events("permission.resolved")
    assert resolved["data"]["decision"] == "cancelled"
    shown = await world.client.request("GET", f"/v1/permissions/{question['approval_id']}")
    assert shown["status"] == "cancelled"


@pytest.mark.spec("6.4", "5.7")
@pytest.mark.case("B103")
async def test_when_the_service_stops_each_start_that_a_hook_was_told_of_gets_its_stop(
    tmp_path: Path, depth: int
) -> None:
    async with levels(tmp_path, {"SUBAGENTD_HTTP__GRACE_S": "0.1", **INTERRUPT}, hooks=True) as world:
        case = await world.begin(depth, lambda _request: hanging(*ALPHA), watched=False)
        await world.stub.seen(depth + 1)
        await until(lambda: sum(each["point"] == "OnSubagentStart" for each in world.told) == depth)
        assert await world.service.stop() == 0
        told = [(each["point"], each["run"], each["agent"]) for each in world.told]
        started = [each[1:] for each in told if each[0] == "OnSubagentStart"]
        stopped = [each[1:] for each in told if each[0] == "OnSubagentStop"]
        assert stopped == started[::-1]
        assert len(started) == depth
        await world.service.start()
        async with world.service.client() as client:
            assert (await finished(client, case.root["id"]))["status"] == "interrupted"
            log = await events_of(client, f"{case.session}/events", types="subagent.start,subagent.stop")
            assert len(log) == 2 * depth


# ── what never answers ──────────────────────────────────────────────────────────────────────────────────────────────

SILENCES: dict[str, tuple[Callable[[], Answer], str]] = {
    "no byte": (hanging, "model_timeout"),
    "comments for ever": (lambda: ticking(b": keep-alive\n\n"), "model_timeout"),
    "a role and no more": (lambda: hanging(ALPHA[0]), "model_timeout"),
    "a word now and then": (lambda: ticking(sse(chunk({"content": "a "}), done=False)[0], 0.25), "model_timeout"),
}


@pytest.mark.spec("5.8", "13.2")
@pytest.mark.case("B072", "B077")
@pytest.mark.parametrize("silence", SILENCES)
async def test_a_model_that_says_nothing_after_a_tools_result_is_asked_again_and_then_given_up(
    world: Levels, depth: int, silence: str
) -> None:
    make, code = SILENCES[silence]

    def play(request: Request) -> Answer:
        return make() if said(request) else calls(call("put", path="a"))

    case = await world.begin(depth, play, worker={"tools": ["put"], "model": "hasty"})
    run = await case.settled("failed")
    assert run["error"]["code"] == code
    assert [e["data"]["code"] for e in await case.events("step.retried")] == [code]
    first_turn = [r for r in case.asked() if not str(r.messages[-1]["content"]).startswith(AGAIN)]
    assert len(first_turn) == 3
    if depth:
        told = (await case.results(depth - 1))[0]
        assert told[0] == "error"
        assert code in told[1] or "failed" in told[1]


@pytest.mark.spec("5.8")
@pytest.mark.case("B073")
async def test_a_provider_that_always_refuses_is_tried_a_few_times_for_all_to_see(world: Levels, depth: int) -> None:
    case = await world.begin(depth, lambda _request: refusal(429, {"message": "slow down"}), worker={"model": "hasty"})
    run = await case.settled("failed")
    assert run["error"]["code"] == "model_rate_limited"
    assert "slow down" in run["error"]["message"]
    (retried,) = await case.events("step.retried")
    assert retried["data"]["code"] == "model_rate_limited"
    if depth:
        assert "slow down" in (await case.results(depth - 1))[0][1], "its parent is told"


@linux
@pytest.mark.spec("5.7", "7.8")
@pytest.mark.case("B074", "B075")
async def test_a_detached_process_holds_up_neither_its_tool_nor_the_answer_of_its_run(
    world: Levels, depth: int
) -> None:
    """By an operator's own tool; `run_command` and MCP servers are not there yet."""
    name = f"left{depth}"
    play = turns(calls(call("leaver", name=name)), text("Answered."))
    case = await world.begin(depth, play, worker={"tools": ["leaver"]})
    run: dict[str, Any] = await case.ended()
    (number,) = numbers_in(world.service.folder / f"{name}.pids")
    assert alive(number), "the run has ended, the process has not"
    os.killpg(number, signal.SIGKILL)
    assert run["output"] == "Answered."
    assert await case.results() == [("ok", "started")]
    await case.settled()
