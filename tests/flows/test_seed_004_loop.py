"""Seed 004 (AstroResearch) over HTTP: a child's loop, hooks and permissions, its context, the rows that are kept."""

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.flows.levels import Case, Levels, levels
from tests.flows.levels_model import Play, call, delegate, every_result, said, turns
from tests.stubs.openai_stub import Answer, Request, calls, text

pytestmark = pytest.mark.asyncio(loop_scope="module")
WINDOW = 4000
PROFILES = {"small": {"provider": "openai", "model": "m", "base_url": "{stub}", "context_window": WINDOW}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Levels]:
    settings = {"SUBAGENTD_MODELS__PROFILES": json.dumps(PROFILES)}
    async with levels(tmp_path_factory.mktemp("seed004"), settings, hooks=True) as made:
        yield made


async def rows_of(case: Case, run_id: str) -> list[dict[str, Any]]:
    """The messages of a run, in the order in which they were kept."""
    page = await case.client.page(f"/v1/runs/{run_id}/messages", order="oldest", limit=100)
    rows: list[dict[str, Any]] = page["items"]
    return rows


@pytest.mark.spec("6.2", "6.5", "8.3")
@pytest.mark.seed("004", 124, 136, 139, 145)
async def test_a_childs_calls_are_blocked_changed_and_denied_in_the_order_of_the_stages(world: Levels) -> None:
    """A block skips the call, changed arguments are what is run, a changed output is what the model sees."""
    wanted = calls(call("put", path="a"), call("run_command", command="rm x"), call("run_command", command="ls"))
    tools = {"tools": ["put", "run_command"]}
    rules: dict[str, Any] = {"permissions": {"deny": ["Bash(rm *)"]}}
    case = await world.begin(1, turns(wanted, text("Done.")), part="changed", worker=tools, **rules)
    run = await case.settled()
    assert [status for status, _ in await case.results()] == ["ok", "denied", "ok"]
    assert every_result(case.asked()[1])[0] == "[checked]"
    assert world.ran(case) == ["ls"], "a call that is denied is skipped"
    told = [each for each in world.told_of(case) if each["run"] == run["id"] and each["tool"]]
    order = [(each["point"], each["tool"]) for each in told if each["tool"] == "put"]
    assert order == [("PreToolUse", "put"), ("PostToolUse", "put")]
    events = [e for e in await case.events() if e.get("data", {}).get("tool") == "put"]
    kinds = [e["type"] for e in events]
    assert kinds == ["tool.call", "hook.decision", "tool.start", "hook.decision", "tool.result"]
    assert [e["data"]["arguments"] for e in events if e["type"] == "tool.call"] == [{"path": "a"}]
    changed = next(e["data"] for e in events if e["type"] == "hook.decision")
    assert changed["arguments"] == {"path": "safe"}


@pytest.mark.spec("6.4", "6.6")
@pytest.mark.seed("004", 125, 128, 168)
async def test_the_start_hook_stands_between_the_name_and_the_first_two_messages(world: Levels) -> None:
    case = await world.begin(1, turns(text("Brief.")), part="briefed")
    run = await case.settled()
    of_child = [e for e in await case.events() if e["run_id"] == run["id"]]
    order = ["run.queued", "run.started", "hook.decision", "subagent.start", "message", "message", "step.started"]
    assert [e["type"] for e in of_child[:7]] == order
    assert (of_child[2]["name"], of_child[2]["data"]["point"]) == (run["name"], "OnSubagentStart")
    system, task, *_ = await rows_of(case, run["id"])
    assert (system["role"], system["content"]) == ("system", f"You are briefed {case.tag}."), "its definition's prompt"
    assert task["role"] == "user"
    assert task["content"].startswith("Do it.")
    assert "Be brief." in task["content"]


@pytest.mark.spec("7.1", "7.5")
@pytest.mark.seed("004", 138, 140, 161)
async def test_a_childs_tool_may_take_so_long_and_say_so_much(world: Levels) -> None:
    wanted = calls(call("slow"), call("page", number=1, lines=1000))
    case = await world.begin(1, turns(wanted, text("Done.")), worker={"tools": ["slow", "page"]})
    run = await case.settled()
    late, large = await case.results()
    assert (late[0], "200 ms" in late[1]) == ("timed_out", True)
    assert 14_000 < len(large[1]) <= 16_000
    assert every_result(case.asked()[1]) == [late[1], large[1]], "the row holds what the model saw"
    rows = await rows_of(case, run["id"])
    assert [row["content"] for row in rows if row["role"] == "tool"] == [late[1], large[1]]


@pytest.mark.spec("5.2")
@pytest.mark.seed("004", 144, 174)
async def test_calls_of_a_child_that_may_run_beside_each_other_do(world: Levels) -> None:
    wanted = calls(call("meet", name="one"), call("meet", name="two"))
    case = await world.begin(1, turns(wanted, text("Met.")), worker={"tools": ["meet"]})
    await case.settled()
    assert await case.results() == [("ok", "one met the other"), ("ok", "two met the other")]


@pytest.mark.spec("5.4")
@pytest.mark.seed("004", 130, 150)
async def test_a_childs_context_is_checked_before_each_step_and_shortened_over_the_limit_only(world: Levels) -> None:
    numbers = itertools.count(1)

    def play(_request: Request) -> Answer:
        number = next(numbers)
        page = calls(call("page", number=number, lines=18), usage=None)
        return page if number < 14 else text("Read.", usage=None)

    world.stub.summary = lambda _request: text("Done: much.", usage=None)
    case = await world.begin(1, play, worker={"tools": ["page"], "model": "small", "max_steps": 30})
    run = await case.settled()
    assert run["output"] == "Read."
    (done,) = [e["data"] for e in await case.events("compaction")]
    limit = 0.8 * (WINDOW - 1000)  # the most that is kept for an answer in so small a window
    assert limit * 0.9 < done["before_tokens"] < limit * 1.2
    assert done["after_tokens"] < limit / 2
    order = [e["type"] for e in await case.events()]
    at = order.index("compaction")
    assert order[at - 1 : at + 4] == ["step.completed", "compaction", "step.started", "message", "tool.call"]


@pytest.mark.spec("12.2", "12.4", "5.5")
@pytest.mark.seed("004", 156, 157, 158, 159, 160, 171, 181)
async def test_five_kinds_of_a_childs_messages_are_kept_with_their_place_and_whose_they_are(world: Levels) -> None:
    def play(request: Request) -> Answer:
        return calls(call("put", path="a"), call("put", path="b")) if request.body.get("tools") else text("Forced.")

    tools = {"tools": ["put"], "max_steps": 1, "session_mode": "new_session"}
    rules: dict[str, Any] = {"permissions": {"deny": ["Bash"]}}
    case = await world.begin(1, play, worker=tools, **rules)
    run = await case.ended()
    rows = await rows_of(case, run["id"])
    kinds = [(row["role"], bool(row["tool_calls"])) for row in rows]
    assert kinds == [
        ("system", False), ("user", False), ("assistant", True), ("tool", False), ("tool", False), ("user", False),
        ("assistant", False),
    ]  # fmt: skip
    assert [(row["step"], row["sub"]) for row in rows][2:5] == [(1, 0), (1, 1), (1, 2)]
    assert (rows[-1]["content"], rows[-1]["step"]) == ("Forced.", 2), "the final answer at max_steps + 1"
    assert [row["memory_seq"] for row in rows] == sorted(row["memory_seq"] for row in rows)
    whose = {(row["agent"], row["name"], row["is_subagent"], row["depth"], row["turn"]) for row in rows}
    assert whose == {("worker", run["name"], True, 1, 0)}
    assert {row["session_id"] for row in rows} == {run["session_id"]}
    assert [row["tool_call_id"] for row in rows[3:5]] == [one["call_id"] for one in rows[2]["tool_calls"]]
    assert all(row["tokens"] is not None for row in rows if row["role"] == "assistant")
    kept = await world.client.page("/v1/audit", run_id=run["id"], limit=100, order="oldest")
    assert [item["content"] for item in kept["items"]] == [row["content"] for row in rows]


@pytest.mark.spec("2.1")
@pytest.mark.seed("004", 172)
async def test_a_child_lives_for_one_task(world: Levels) -> None:
    def play(request: Request) -> Answer:
        return text("All told.") if said(request) else calls(delegate("helper", "one"), delegate("helper", "two"))

    helpers: dict[str, tuple[Play, dict[str, Any]]] = {
        "helper": (turns(text("Helped.")), {"session_mode": "new_session"})
    }
    case = await world.begin(0, play, worker={"tools": ["Agent"]}, helpers=helpers)
    await case.settled()
    below = [run for run in await case.runs() if run["depth"] == 1]
    assert len({run["memory_id"] for run in below}) == 2
    assert all(len(request.messages) == 2 for request in case.asked("helper"))


@pytest.mark.spec("3.4", "4.5", "6.2")
@pytest.mark.seed("004", 173, 175)
async def test_the_tool_is_under_hooks_from_the_start_and_is_not_shown_below_the_depth_that_is_allowed(
    world: Levels,
) -> None:
    def deeper(request: Request) -> Answer:
        may = "subagent" in [tool["function"]["name"] for tool in request.body.get("tools", [])]
        return text("Deep.") if said(request) or not may else calls(call("subagent", research_prompt="Deeper."))

    session: dict[str, Any] = {"surfaces": ["subagent"], "default_subagent": "helper", "policy": {"max_depth": 2}}
    fields: dict[str, Any] = {"tools": ["Agent"], "session_mode": "new_session"}
    case = await world.begin(0, deeper, worker={"tools": ["Agent"]}, helpers={"helper": (deeper, fields)}, **session)
    await case.ended()
    assert [run["depth"] for run in await case.runs()] == [0, 1, 2]
    tools = [bool(request.body.get("tools")) for request in case.asked("helper")]
    assert tools == [True, False, True], "the first and the third request are those of depth 1"
    fenced = await world.begin(
        0, deeper, part="fenced", worker={"tools": ["Agent"]}, helpers={"helper": (deeper, fields)}, **session
    )
    await fenced.settled()
    assert "nobody starts anybody here" in (await fenced.results())[0][1]
    assert fenced.asked("helper") == []
