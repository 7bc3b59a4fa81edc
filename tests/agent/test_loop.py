"""The loop: steps, the forced answer at each limit, soft and hard clocks, and the order of what is remembered."""

import asyncio
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from app.agent.texts import DEFAULT
from app.agent.tools import ToolContext
from app.agent.transcript import CUT_MARK, EMPTY_TASK
from tests.agent.probes import Probe, Stage, echo
from tests.plan import CANCEL, ask, call, raw_call, task
from tests.strict import log_problems
from tests.stubs.openai_stub import Answer, OpenAIStub, calls, chunk, sse, text
from tests.world import WAIT_S, World, world


async def memory(w: World, memory_id: str) -> list[tuple[int, int, int, str, str]]:
    """Turn, step, sub, role and text of a memory, in the order of the spec."""
    rows = await w.rows("messages", memory_id=memory_id)
    return sorted((r["turn"], r["step"], r["sub"], r["role"], r["content"]) for r in rows)


LOOK = {"text": "I look.", "calls": [call("glob", pattern="*")]}


@pytest.mark.spec("2.1", "12.2")
async def test_a_memory_begins_with_the_prompt_and_the_task_and_an_empty_task_says_so(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        row = await w.finished(await w.run("   "))
        assert await memory(w, row["memory_id"]) == [
            (0, 0, 0, "system", "You are node."),
            (0, 0, 1, "user", EMPTY_TASK),
            (0, 1, 0, "assistant", f"echo: {EMPTY_TASK}"),
        ]


@pytest.mark.spec("5.1", "12.2")
async def test_a_second_turn_adds_its_task_and_asks_with_the_whole_history(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        session = await w.session()
        await w.finished(await w.turn(session, task(LOOK, "first")))
        row = await w.finished(await w.turn(session, "and now?"))
        assert row["turn"] == 1
        assert [m.role.value for m in w.requests[-1].messages] == [
            "system", "user", "assistant", "tool", "assistant", "user",
        ]  # fmt: skip
        assert (await memory(w, row["memory_id"]))[-2:] == [
            (1, 0, 0, "user", "and now?"),
            (1, 1, 0, "assistant", "echo: and now?"),
        ]


@pytest.mark.spec("5.5", "5.6", "12.2")
@pytest.mark.case("B048", "B097")
async def test_at_the_last_step_one_more_call_without_tools_gives_the_answer(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        plan = task(LOOK, LOOK, LOOK, final="Here is what I have.")
        row = await w.finished(await w.run(plan, limits={"max_steps": 2}))
        assert (row["status"], row["stop_reason"], row["output"]) == ("completed", "max_steps", "Here is what I have.")
        assert (row["forced"], row["partial"], row["steps"]) == (True, True, 3)
        assert [len(r.tools) > 0 for r in w.requests] == [True, True, False]
        assert w.requests[-1].temperature == 0.2
        assert w.requests[-1].messages[-1].content == DEFAULT.forced_answer
        kept = await memory(w, row["memory_id"])
        assert kept[-2:] == [(0, 2, 2, "user", DEFAULT.forced_answer), (0, 3, 0, "assistant", "Here is what I have.")]
        forced = await w.events(row["session_id"], "answer.forced")
        assert [(e["step"], e["data"]["reason"]) for e in forced] == [(3, "max_steps")]


@pytest.mark.spec("5.5")
@pytest.mark.parametrize(("own", "used"), [(0.9, 0.2), (0.1, 0.1), (0.0, 0.0)])
async def test_the_forced_answer_is_no_warmer_than_the_definition(tmp_path: Path, own: float, used: float) -> None:
    async with world(tmp_path) as w:
        await w.finished(await w.run(task(LOOK), agents=[w.node(temperature=own)], limits={"max_steps": 1}))
        assert [r.temperature for r in w.requests] == [own, used]


@pytest.mark.spec("5.5")
@pytest.mark.case("B048", "B049")
async def test_calls_in_the_forced_answer_are_dropped_and_an_empty_one_becomes_a_digest(tmp_path: Path) -> None:
    probe = Probe("probe", echo, read_only=True)
    async with world(tmp_path, tools=(probe,)) as w:
        use = {"text": "I use it.", "calls": [call("probe", a=1)]}
        row = await w.finished(await w.run(task(use, final={"text": "Last word.", "calls": [call("probe")]}),
                                           limits={"max_steps": 1}))  # fmt: skip
        assert (row["output"], len(probe.arguments)) == ("Last word.", 1)
        session = row["session_id"]
        again = await w.finished(await w.turn(session, task({"calls": [call("probe", b=2)]}, final=""), max_steps=1))
        assert again["status"] == "completed"
        assert "got ['b']" in again["output"]
        assert "got ['a']" not in again["output"], "the results of an earlier turn are no results of this one"
        assert (await memory(w, row["memory_id"]))[-1][4] == again["output"]
        empty = await w.finished(await w.turn(session, task("  ")))
        assert empty["output"].startswith("(no answer")


@pytest.mark.spec("5.7", "5.5")
async def test_a_soft_deadline_stops_the_step_and_leaves_time_for_an_answer(tmp_path: Path) -> None:
    stage = Stage()
    stage.open("quick")
    async with world(tmp_path, tools=stage.tools) as w:
        plan = task(
            {"calls": [call("hold", key="quick"), call("hold", key="slow"), ask(task("sub"))]}, final="In time."
        )
        row = await w.finished(await w.run(plan, limits={"deadline_ms": 400}))
        assert (row["status"], row["stop_reason"], row["output"]) == ("completed", "deadline", "In time.")
        assert (row["forced"], row["partial"]) == (True, True)
        assert "!slow" in stage.diary
        told = [m.content for m in w.requests[-1].messages if m.role == "tool"]
        assert told[0] == "result of quick", "what was finished is not lost"
        assert told[1] == "(cancelled before it finished)"
        assert told[2] == "sub"
        kinds = [e["type"] for e in await w.events(row["session_id"], "run.waiting", "run.resumed", "answer.forced")]
        assert kinds == ["run.waiting", "run.resumed", "answer.forced"]


@pytest.mark.spec("5.7", "5.5")
async def test_a_deadline_within_a_streamed_reply_keeps_what_was_said(tmp_path: Path) -> None:
    never = asyncio.Event()
    async with OpenAIStub() as stub, world(tmp_path, base_url=stub.base_url) as w:
        stub.script(Answer(writes=(*sse(chunk({"content": "half a th"}), done=False), never)), text("The answer."))
        row = await w.finished(await w.run("go", limits={"deadline_ms": 500}))
        assert (row["status"], row["output"]) == ("completed", "The answer.")
        said = [(m["role"], m["content"]) for m in stub.requests[-1].messages]
        assert said[2:] == [("assistant", "half a th" + CUT_MARK), ("user", DEFAULT.forced_answer)]
        assert [m[:3] for m in await memory(w, row["memory_id"])] == [
            (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 2, 0),
        ]  # fmt: skip


@pytest.mark.spec("5.7", "5.5")
@pytest.mark.parametrize("shown", ["", "half an ans"])
async def test_when_the_forced_answer_is_too_slow_as_well_there_is_a_digest_or_what_was_said(
    tmp_path: Path, shown: str
) -> None:
    never = asyncio.Event()
    async with OpenAIStub() as stub, world(tmp_path, base_url=stub.base_url) as w:
        (tmp_path / "workspace" / "a.txt").write_text("x")
        said = [chunk({"content": shown})] if shown else []
        stub.script(
            calls(("glob", '{"pattern": "*"}')),
            Answer(writes=(never,)),
            Answer(writes=(*sse(*said, done=False), never)),
        )
        row = await w.finished(await w.run("go", limits={"deadline_ms": 500}))
        assert (row["status"], row["stop_reason"], row["forced"]) == ("completed", "deadline", True)
        assert row["output"] == shown if shown else "a.txt" in row["output"]
        assert (await memory(w, row["memory_id"]))[-1][3:] == ("assistant", row["output"])


@pytest.mark.spec("5.7")
async def test_a_tool_that_swallows_its_cancellation_does_not_let_a_run_outlive_its_deadline(tmp_path: Path) -> None:
    async def stubborn(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            pass
        return "anyway"

    async with world(tmp_path, tools=(Probe("stubborn", stubborn),)) as w:
        again = {"calls": [call("stubborn")]}
        row = await w.finished(await w.run(task(again, again, again, final="Late."), limits={"deadline_ms": 150}))
        assert (row["stop_reason"], row["output"], row["steps"]) == ("deadline", "Late.", 2)
        assert w.requests[-1].messages[-2].content == "anyway"


@pytest.mark.spec("4.4", "5.7")
async def test_a_hard_limit_is_hard_also_while_the_answer_is_forced(tmp_path: Path) -> None:
    never = asyncio.Event()
    async with OpenAIStub() as stub, world(tmp_path, base_url=stub.base_url) as w:
        stub.decide(lambda _: Answer(writes=(never,)))
        row = await w.finished(await w.run("go", limits={"deadline_ms": 60_000, "timeout_ms": 150}))
        assert (row["status"], row["forced"]) == ("timed_out", False)
        await stub.client_left()


@pytest.mark.spec("5.8", "13.2")
async def test_a_model_that_fails_ends_the_run_with_its_message_and_the_session_goes_on(tmp_path: Path) -> None:
    async with world(tmp_path, secrets=["sk-0123456789"]) as w:
        session = await w.session()
        error = {"error": {"code": "quota", "message": "no quota for sk-0123456789"}, "text": "half"}
        row = await w.finished(await w.turn(session, task(error)))
        assert (row["status"], row["stop_reason"], row["partial"]) == ("failed", "error", True)
        assert row["error"] == {"code": "quota", "message": "no quota for [masked]"}
        assert row["output"] == "half"
        assert (await w.finished(await w.turn(session, "again")))["output"] == "echo: again"
        assert w.requests[-1].messages[-2].content == "half" + CUT_MARK


@pytest.mark.spec("5.7", "5.8")
@pytest.mark.case("B152")
async def test_only_a_cancellation_says_cancelled(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        row = await w.finished(await w.run(task({"calls": [ask(task(CANCEL))]}, "end")))
        (child,) = await w.rows("runs", depth=1)
        assert (child["status"], child["error"]["code"]) == ("failed", "internal_error")
        assert (row["status"], row["output"]) == ("completed", "end")


@pytest.mark.spec("6.6")
@pytest.mark.case("B103", "B150")
async def test_a_subagent_that_cannot_be_opened_fails_without_a_start_or_a_stop_of_its_own(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        folder = tmp_path / "workspace" / "gone"
        folder.mkdir()
        session = await w.session(workspace="gone")
        folder.rmdir()
        row = await w.finished(await w.turn(session, "go"))
        assert (row["status"], row["error"]["code"]) == ("failed", "no_workspace")
        delegated = await w.delegate("go", session_id=session)
        result = await delegated.result
        assert (result.status, result.error.code if result.error else "") == ("failed", "no_workspace")
        assert await w.events(session, "subagent.start", "subagent.stop") == []


@pytest.mark.spec("13.2")
@pytest.mark.case("B010", "B013")
async def test_a_reply_cut_by_length_runs_nothing_and_is_asked_again(tmp_path: Path) -> None:
    probe = Probe("probe", echo)
    async with world(tmp_path, tools=(probe,)) as w:
        cut = {"text": "", "calls": [call("probe")], "finish": "length"}
        row = await w.finished(await w.run(task(cut, "whole")))
        assert row["status"] == "completed"
        assert probe.arguments == []
        assert w.requests[1].messages[-1].content == DEFAULT.reply_cut
        assert row["output"] == f"echo: {DEFAULT.reply_cut}"


@pytest.mark.case("B013")
async def test_a_call_that_was_written_as_text_is_not_run_and_the_model_is_told_once(tmp_path: Path) -> None:
    written = '<tool_call>{"name": "glob", "arguments": {"pattern": "*"}}</tool_call>'
    async with OpenAIStub() as stub, world(tmp_path, base_url=stub.base_url) as w:
        stub.script(text(written), text(written))
        row = await w.finished(await w.run("go"))
        assert (row["status"], row["stop_reason"], row["partial"]) == ("completed", "malformed_call", True)
        assert [m["content"] for m in stub.requests[1].messages][-1] == DEFAULT.malformed_call
        assert len(stub.requests) == 2
        assert await w.events(row["session_id"], "tool.call", "tool.result") == []


@pytest.mark.spec("5.5", "12.1")
@pytest.mark.case("B015")
async def test_reasoning_of_a_forced_answer_that_is_cut_off_stays_with_what_is_said_instead(tmp_path: Path) -> None:
    thought = sse(chunk({"reasoning_content": "Let me see."}), done=False)
    async with OpenAIStub() as stub, world(tmp_path, base_url=stub.base_url) as w:
        stub.script(*[Answer(writes=thought, end="hang")] * 2)
        row = await w.finished(await w.run("go", limits={"deadline_ms": 1000}))
        assert (row["status"], row["stop_reason"], row["output"]) == ("completed", "deadline", DEFAULT.no_digest)
        said = [e["data"] for e in await w.events(row["session_id"], "message") if e["data"]["role"] == "assistant"]
        assert [(data["content"], data["reasoning"], data.get("partial", False)) for data in said] == [
            ("", "Let me see.", True),
            (DEFAULT.no_digest, "Let me see.", False),
        ]
        assert log_problems(await w.events(row["session_id"])) == []


@pytest.mark.spec("5.1")
@pytest.mark.case("B050")
async def test_only_the_last_text_is_the_answer(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        child = task({"text": "checking 1", "calls": [call("glob", pattern="*")]}, "ANSWER")
        await w.finished(await w.run(task({"calls": [ask(child)]}, "end")))
        assert [m.content for m in w.requests[-1].messages if m.role == "tool"] == ["ANSWER"]


@pytest.mark.spec("13.3")
async def test_a_tool_choice_applies_to_the_first_step_alone(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.finished(await w.run(task(LOOK, "done"), agents=[w.node(tool_choice="required")]))
        assert [r.tool_choice for r in w.requests] == ["required", None]


@pytest.mark.spec("5.6", "13.4")
async def test_a_model_that_sends_no_usage_is_still_counted(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        row = await w.finished(await w.run(task({**LOOK, "usage": None}, {"text": "x", "usage": {"input_tokens": 7}})))
        assert row["usage"] == {
            "input_tokens": 7, "output_tokens": 0, "cached_tokens": 0, "reasoning_tokens": 0, "model_calls": 2,
            "unpriced_calls": 2, "cost": {},
        }  # fmt: skip


@pytest.mark.spec("13.4", "12.2", "12.7")
@pytest.mark.case("B042", "B085")
async def test_each_request_begins_with_the_one_before_it_over_steps_turns_and_restarts(tmp_path: Path) -> None:
    odd = [
        raw_call("glob", '{"pattern": "*"'),
        raw_call("glob", ""),
        call("fly"),
        call("glob", pattern="*"),
        call("a b"),
    ]
    asked: list[Any] = []
    session = ""
    for _ in range(3):  # each round in a new process
        async with world(tmp_path) as w:
            session = session or await w.session()
            await w.finished(await w.turn(session, task({"text": "One.", "calls": odd}, LOOK, "done")))
            await w.finished(await w.turn(session, task(LOOK, final="forced"), max_steps=1))
            await w.finished(await w.turn(session, task({"text": "half", "error": {"message": "no"}})))
            asked += [[_said(m) for m in request.messages] for request in w.requests]
    assert len(asked) == 3 * (3 + 2 + 1)
    for before, after in pairwise(asked):
        assert after[: len(before)] == before


def _said(message: Any) -> tuple[Any, ...]:
    calls = tuple((c.call_id, c.name, c.raw, str(c.arguments)) for c in message.tool_calls)
    return message.role, message.content, message.tool_call_id, calls
