"""Publicly reported faults of compaction and of guards against circles, each at the depths 0, 1 and 2."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from tests.flows.levels import Case, Levels, levels
from tests.flows.levels_model import AGAIN, DEPTHS, Play, call, said, turns
from tests.service import agent, events_of, finished
from tests.stubs.openai_stub import Answer, Request, calls, refusal, text

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.parametrize("depth", DEPTHS)]
WINDOW = 4000  # tokens
TASK = "Read page after page. RULE: never skip one. TASK-MARKER-17"
FACT = "The password of the gate is KITE."
PROFILES = {
    "small": {"provider": "openai", "model": "m", "base_url": "{stub}", "context_window": WINDOW},
    "known": {"provider": "openai", "model": "gpt-4o", "base_url": "{stub}", "context_window": WINDOW},
    "unbounded": {"provider": "openai", "model": "m", "base_url": "{stub}"},
}
READER = {"tools": ["page"], "model": "small", "max_steps": 60}
SPECIAL = "<|endoftext|> and <|im_start|>system"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Levels]:
    async with levels(
        tmp_path_factory.mktemp("contexts"), {"SUBAGENTD_MODELS__PROFILES": json.dumps(PROFILES)}
    ) as made:
        yield made


@pytest.fixture(autouse=True)
def summaries(world: Levels) -> None:
    """Each case begins with the summary that keeps the fact, and with none asked for."""
    world.stub.summaries.clear()
    world.stub.summary = lambda _request: text(f"Done: some pages. Open: the rest. {FACT}", usage=None)


def reading(pages: int, lines: int = 12, most: int | None = None) -> Play:
    """One page for each step, then an answer. A request of more than `most` bytes is refused as too long."""
    numbers = itertools.count(1)

    def play(request: Request) -> Answer:
        if most is not None and len(request.raw) > most:
            return too_long()
        number = next(numbers)
        wanted = calls(call("page", number=number, lines=lines), usage=None)
        return wanted if number <= pages else text(f"Read {pages} pages.", usage=None)

    return play


def too_long() -> Answer:
    """What a provider says to a request beyond its window."""
    return refusal(400, {"message": "This model's maximum context length is 4000.", "code": "context_length_exceeded"})


def pinned(requests: Iterable[Request]) -> bool:
    """Whether each request of a first turn holds the task as it was given, once."""
    return all([m["content"] for m in request.messages].count(TASK) == 1 for request in requests)


async def compactions(case: Case) -> list[dict[str, Any]]:
    """What was shortened at the depth under test."""
    return [e["data"] for e in await case.events("compaction")]


# ── the context ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("5.4")
@pytest.mark.case("B138")
async def test_a_prompt_that_fills_the_window_ends_in_a_clear_error_after_few_calls(world: Levels, depth: int) -> None:
    play = reading(5, most=9000)
    case = await world.begin(depth, play, worker={**READER, "more": "\n" + "Be careful. " * 1200})
    run = await case.settled("failed")
    assert run["error"]["code"] == "model_context_overflow"
    first_turn = [r for r in case.asked() if r.messages[-1]["content"] != AGAIN]
    assert len(first_turn) + len(world.stub.summaries) <= 4


@pytest.mark.spec("5.4")
@pytest.mark.case("B138")
async def test_a_result_larger_than_the_window_is_cut_and_the_log_has_it_whole(world: Levels, depth: int) -> None:
    case = await world.begin(depth, reading(2, lines=280, most=12_000), worker=READER, task=TASK)
    run = await case.settled()
    assert run["output"] == "Read 2 pages."
    assert pinned(case.asked()[:3])
    done = await compactions(case)
    assert 1 <= len(done) <= 4
    assert {one["origin"] for one in done} == {"subagent" if depth else "lead"}
    assert all(len(content) > 12_000 for _, content in await case.results()), "as the model saw it first"


@pytest.mark.spec("5.4")
@pytest.mark.case("B139")
async def test_after_one_compaction_two_short_turns_make_no_other(world: Levels, depth: int) -> None:
    case = await world.begin(depth, reading(13, lines=18), worker=READER, task=TASK)
    await case.settled()
    second = await world.client.request("POST", f"{case.session}/runs", {"input": AGAIN})
    assert (await finished(world.client, second["id"]))["status"] == "completed"
    assert [one["method"] for one in await compactions(case)] == ["summary"]
    assert len(world.stub.summaries) == 1
    assert any(FACT in str(m["content"]) for m in case.asked()[-1].messages)


SUMMARIES: dict[str, Answer] = {
    "empty": text(" ", usage=None),
    "refused": too_long(),
    "good": text(f"Done: some pages. {FACT}", usage=None),
}


@pytest.mark.spec("5.4")
@pytest.mark.case("B140")
@pytest.mark.parametrize("summary", SUMMARIES)
async def test_a_summary_that_fails_never_takes_the_place_of_the_history(
    world: Levels, depth: int, summary: str
) -> None:
    most = WINDOW * 5  # bytes
    world.stub.summary = lambda request: too_long() if len(request.raw) > most else SUMMARIES[summary]
    case = await world.begin(depth, reading(15, lines=20, most=most), worker=READER, task=TASK)
    run = await case.settled()
    assert run["output"] == "Read 15 pages."
    first_turn = case.asked()[:16]
    assert pinned(first_turn)
    methods = {one["method"] for one in await compactions(case)}
    assert methods
    assert ("summary" in methods) == (summary == "good")
    assert max(len(request.raw) for request in (*first_turn, *world.stub.summaries)) < most
    assert len(await case.results()) == 15, "the log keeps every page"


@pytest.mark.spec("5.4")
@pytest.mark.case("B143")
async def test_the_task_its_rules_and_what_is_done_survive_several_compactions(world: Levels, depth: int) -> None:
    case = await world.begin(depth, reading(30, lines=24), worker=READER, task=TASK)
    run = await case.settled()
    assert run["output"] == "Read 30 pages."
    done = [one for one in await compactions(case) if one["method"] == "summary"]
    assert len(done) >= 2
    first_turn = case.asked()[:31]
    assert pinned(first_turn)
    assert FACT in json.dumps(first_turn[-1].messages), "a summary carries what the one before it said"
    assert [content.split(" line")[0] for _, content in await case.results()] == [f"page {n}" for n in range(1, 31)]


@pytest.mark.spec("5.4")
@pytest.mark.case("B144")
@pytest.mark.parametrize("model", ["small", "known"])
async def test_the_name_of_a_special_token_is_plain_text_to_the_counter(world: Levels, depth: int, model: str) -> None:
    play = turns(
        calls(call("web_fetch", url=f"https://one.test/{SPECIAL}"), call("page", number=1, lines=100), usage=None),
        text(f"Seen {SPECIAL}", usage=None),
    )
    tools = {**READER, "tools": ["web_fetch", "page"], "model": model}
    case = await world.begin(depth, play, worker=tools, task=f"{TASK} {SPECIAL} " + "word " * 1500)
    run = await case.settled()
    assert run["output"] == f"Seen {SPECIAL}"
    assert (await case.results())[0] == ("ok", f"fetched https://one.test/{SPECIAL}")


@pytest.mark.spec("5.4")
@pytest.mark.case("B145")
async def test_switched_off_nothing_is_summed_up_and_the_error_of_the_provider_stands(
    tmp_path_factory: pytest.TempPathFactory, depth: int
) -> None:
    settings: dict[str, str] = {
        "SUBAGENTD_MODELS__PROFILES": json.dumps(PROFILES),
        "SUBAGENTD_COMPACTION__ENABLED": "false",
    }
    async with levels(tmp_path_factory.mktemp("off"), settings) as world:
        case = await world.begin(depth, reading(20, most=8000), worker=READER, task=TASK)
        run = await case.settled("failed")
        assert run["error"]["code"] == "model_context_overflow"
        assert "maximum context length" in run["error"]["message"]
        assert (world.stub.summaries, await compactions(case)) == ([], [])


# ── circles and limits ──────────────────────────────────────────────────────────────────────────────────────────────

ROUND = call("page", number=1, lines=2)
SPELT = ("page", '{"lines":2 ,\n "number":   1}')
CIRCLES: dict[str, list[tuple[str, str]]] = {
    "the same call": [ROUND],
    "spelt in two ways": [ROUND, SPELT],
    "two in turn": [ROUND, call("put", path="a")],
    "a failing one and a healthy one": [call("boom"), call("glob", pattern="*")],
}


@pytest.mark.spec("5.3", "5.5")
@pytest.mark.case("B092", "B095")
@pytest.mark.parametrize("circle", CIRCLES)
async def test_a_run_that_goes_in_circles_is_told_so_and_then_has_to_answer(
    world: Levels, depth: int, circle: str
) -> None:
    wanted = itertools.cycle(CIRCLES[circle])

    def play(request: Request) -> Answer:
        return calls(next(wanted)) if request.body.get("tools") else text("What I have.")

    tools = {"tools": ["page", "put", "boom", "glob"], "max_steps": 60}
    case = await world.begin(depth, play, worker=tools)
    run = await case.settled()
    assert (run["stop_reason"], run["forced"], run["partial"]) == ("duplicates", True, True)
    assert run["output"] == "What I have."
    statuses = [status for status, _ in await case.results()]
    assert len(await case.events("duplicate.blocked")) == statuses.count("duplicate") == 2
    assert len(statuses) <= 3 * len(CIRCLES[circle]) + 2
    assert "repeatedly" in (await case.results())[-1][1]


@pytest.mark.spec("5.3")
@pytest.mark.case("B093")
@pytest.mark.parametrize("news", [True, False])
async def test_polling_goes_on_while_there_is_news(world: Levels, depth: int, news: bool) -> None:
    """What is polled is a delegation of the session that somebody outside has begun."""
    known, ended, polled = asyncio.Event(), asyncio.Event(), list[str]()

    def play(request: Request) -> Answer:
        told = said(request)
        if not request.body.get("tools"):
            return text("Stopped.")
        if not told:
            first = calls(call("list_tasks"))
            return replace(first, writes=(known, *first.writes))
        if any("Completed" in one for one in told[-1:]) and len(told) == 4:
            return text("It is done.")
        poll = calls(call("get_task_output", task_id=polled[0], block=False))
        return replace(poll, writes=(ended, *poll.writes)) if len(told) == 2 and news else poll

    case = await world.begin(depth, play, worker={"tools": ["execute_task"], "surfaces": ["task"], "max_steps": 20})
    world.stub.plays["You are other."] = lambda _: replace(text("Found."), writes=(release, *text("Found.").writes))
    release = asyncio.Event()
    body = {"agent": agent("other", tools=[]), "task": "x", "session_id": case.root["session_id"]}
    other = asyncio.create_task(world.client.request("POST", "/v1/delegations", body))
    while not polled:
        starts = await events_of(world.client, f"{case.session}/events", types="handoff.start")
        polled += [e["data"]["handoff_id"] for e in starts if e["data"]["subagent"] == "other"]
    known.set()
    if news:
        await case.seen("tool.result", 2)
        release.set()
        await other
        ended.set()
    run = await case.ended()
    release.set()
    await other
    statuses = [status for status, _ in await case.results()]
    assert statuses == (["ok"] * 4 if news else ["ok"] * 3 + ["duplicate"] * 2)
    assert run["stop_reason"] == ("answer" if news else "duplicates")


@pytest.mark.spec("5.3")
@pytest.mark.case("B094")
async def test_equal_short_results_of_other_calls_are_no_circle(world: Levels, depth: int) -> None:
    play = turns(*(calls(call("put", path=f"{name}.txt")) for name in "abcdefgh"), text("All put."))
    case = await world.begin(depth, play, worker={"tools": ["put"], "max_steps": 20})
    run = await case.settled()
    assert (run["stop_reason"], run["output"]) == ("answer", "All put.")
    assert await case.results() == [("ok", "ok")] * 8
    assert await case.events("duplicate.blocked") == []


@pytest.mark.spec("5.1", "5.5")
@pytest.mark.case("B097")
async def test_at_the_step_limit_an_answer_without_tools_ends_the_run(world: Levels, depth: int) -> None:
    numbers = itertools.count()

    def play(request: Request) -> Answer:
        more = request.body.get("tools")
        return calls(call("put", path=f"{next(numbers)}")) if more else text("As far as I came.")

    case = await world.begin(depth, play, worker={"tools": ["put"], "max_steps": 2})
    run = await case.settled()
    assert (run["stop_reason"], run["forced"], run["partial"], run["steps"]) == ("max_steps", True, True, 3)
    assert run["output"] == "As far as I came."
    assert len(await case.events("answer.forced")) == 1
