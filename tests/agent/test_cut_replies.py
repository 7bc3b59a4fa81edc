"""Replies that were broken off, by their length or by the provider: none of them passes for a whole answer."""

from pathlib import Path
from typing import Any

import pytest

from app.agent.texts import DEFAULT
from tests.agent.probes import Probe, echo
from tests.plan import call, task
from tests.stubs.openai_stub import OpenAIStub, calls, chunk, stream, text
from tests.world import World, world

PLAYS = """
agents:
  - turns: {turns}
"""


def script(*turns: str) -> str:
    """A script of these turns, whatever the model was told between them."""
    return PLAYS.format(turns="[" + ", ".join(turns) + "]")


async def replies(w: World, session_id: str) -> list[tuple[str, bool]]:
    """What the history holds of the model: each text, and whether it is only a part."""
    found = [e["data"] for e in await w.events(session_id, "message") if e["data"]["role"] == "assistant"]
    return [(data["content"], data.get("partial", False)) for data in found]


def ending(row: dict[str, Any]) -> tuple[Any, ...]:
    """How a run ended."""
    return row["status"], row["stop_reason"], row["partial"], row["output"]


@pytest.mark.spec("13.2", "5.8")
@pytest.mark.case("B010", "B013")
async def test_a_call_that_was_cut_behind_a_text_is_not_run_and_the_text_is_no_answer(tmp_path: Path) -> None:
    probe = Probe("probe", echo)
    async with world(tmp_path, tools=[probe]) as w:
        cut = {"text": "I will now write the file.", "calls": [call("probe")], "finish": "length"}
        row = await w.finished(await w.run(task(cut, "whole")))
        assert probe.arguments == []
        assert w.requests[1].messages[-1].content == DEFAULT.reply_cut
        assert ending(row) == ("completed", "answer", False, f"echo: {DEFAULT.reply_cut}")
        assert (await replies(w, row["session_id"]))[0] == ("I will now write the file.", True)


@pytest.mark.spec("13.2", "5.6", "5.8")
@pytest.mark.case("B010")
async def test_a_text_that_is_cut_a_second_time_is_a_partial_answer(tmp_path: Path) -> None:
    cut = "{text: 'The answer is forty-', finish: length}"
    async with world(tmp_path, script=script(cut, cut, "{text: not asked for}")) as w:
        row = await w.finished(await w.run("go"))
        assert ending(row) == ("completed", "length", True, "The answer is forty-")
        assert await replies(w, row["session_id"]) == [("The answer is forty-", True)] * 2


@pytest.mark.spec("13.2", "5.6")
async def test_a_cut_between_whole_steps_is_the_first_one_again(tmp_path: Path) -> None:
    cut, look = stream(chunk({"content": "Half"}), chunk({}, "length")), calls(("glob", '{"pattern": "*"}'))
    async with OpenAIStub() as stub, world(tmp_path, base_url=stub.base_url) as w:
        stub.script(cut, look, cut, text("whole"))
        row = await w.finished(await w.run("go"))
        assert ending(row) == ("completed", "answer", False, "whole")


@pytest.mark.spec("13.2", "5.8")
@pytest.mark.parametrize(
    ("turns", "code"),
    [
        (["{text: '', finish: length}"] * 2, "reply_cut"),
        (["{text: '', finish: filtered}"], "reply_filtered"),
    ],
    ids=["cut", "filtered"],
)
async def test_a_reply_that_is_broken_off_before_it_says_anything_fails_the_run(
    tmp_path: Path, turns: list[str], code: str
) -> None:
    look = "{calls: [{tool: glob, arguments: {pattern: '*'}}]}"
    async with world(tmp_path, script=script(look, *turns, "{text: not asked for}")) as w:
        row = await w.finished(await w.run("go"))
        assert (row["status"], row["error"]["code"], row["partial"]) == ("failed", code, True)


@pytest.mark.spec("5.6", "5.8")
async def test_a_text_that_the_provider_has_broken_off_is_a_partial_answer(tmp_path: Path) -> None:
    async with world(tmp_path, script=script("{text: 'First, take', finish: filtered}", "{text: more}")) as w:
        row = await w.finished(await w.run("go"))
        assert ending(row) == ("completed", "filtered", True, "First, take")
        assert await replies(w, row["session_id"]) == [("First, take", True)]
