"""Calls that a process left without a result: what hooks, persons and secrets mean for those that go on."""

from pathlib import Path

import pytest

from app.agent.approvals import AnswerKind
from app.agent.hooks import FunctionHook, HookCall, HookPoint, HookRegistry, Verdict
from app.agent.turns import MASKED_TEXT
from tests.agent.guarded import ruled
from tests.agent.test_fallback_agents import HELPER
from tests.plan import ask, call, execute, task
from tests.sessions.lives import Story, row_problems
from tests.sessions.test_continuing import all_events
from tests.sessions.test_continuing_questions import ASKS, person
from tests.world import World

pytestmark = pytest.mark.spec("12.7")
SECRET = "s3cr3t-value-12345"
EVERYWHERE = frozenset(HookPoint)


async def kinds_of(story: Story, folder: Path) -> list[str]:
    """The types of all events of a story in which nobody dies."""
    await story.whole(folder)
    async with story.ends(folder / "whole") as w:
        return [event["type"] for event in await all_events(w)]


@pytest.mark.spec("6.2", "6.5")
@pytest.mark.parametrize("surface", ["dispatch", "task"])
async def test_a_delegation_that_had_started_and_begun_nothing_goes_through_its_hooks_again(
    tmp_path: Path, surface: str
) -> None:
    made = {"dispatch": ask("as it was"), "task": execute("as it was")}[surface]
    changed = {
        "dispatch_subagent": {"agent_type": "other", "task": "as it was changed"},
        "execute_task": {"name": "other", "prompt": "as it was changed"},
    }

    def answer(told: HookCall) -> Verdict | None:
        if told.point is not HookPoint.PRE_TOOL_USE or told.tool not in changed:
            return None
        return Verdict(arguments={**told.arguments, **changed[told.tool]})

    async def begin(w: World) -> None:
        await w.run(task({"calls": [made]}, "The end."), agents=[w.node(), w.node("other")], surfaces=[surface])

    story = Story(begin, hooks=HookRegistry([FunctionHook(name="g", points=EVERYWHERE, function=answer)]))
    life = (await kinds_of(story, tmp_path)).index("tool.start") + 1
    await story.after(tmp_path / "service", life)
    async with story.ends(tmp_path / "service") as w:
        (child,) = await w.rows("runs", depth=1)
        assert (child["agent"], child["input"]) == ("other", "as it was changed")
        assert await row_problems(w) == []


@pytest.mark.spec("13.1")
@pytest.mark.parametrize(
    ("tool", "until", "rules", "status"),
    [
        ("touch", "tool.call", {}, "not_run"),
        ("touch", "permission.requested", ASKS, "not_run"),
        ("touch", "permission.resolved", ASKS, "not_run"),
        ("look", "tool.start", {}, "unknown"),
    ],
)
async def test_a_call_whose_secrets_are_masked_in_the_log_is_told_of_and_not_carried_out(
    tmp_path: Path, tool: str, until: str, rules: dict[str, list[str]], status: str
) -> None:
    async def begin(w: World) -> None:
        await w.run(task({"calls": [call(tool, key=SECRET)]}, "The end."), permissions=rules)

    story = Story(begin, secrets=(SECRET,), beside=person(AnswerKind.ALLOW_ONCE))
    life = (await kinds_of(story, tmp_path)).index(until) + 1
    await story.after(tmp_path / "service", life)
    before = story.done + story.looked
    async with story.ends(tmp_path / "service") as w:
        assert story.done + story.looked == before, "what is masked is no argument"
        (result,) = [e["data"] for e in await all_events(w) if e["type"] == "tool.result"]
        assert (result["status"], result["is_error"], result["content"]) == (status, True, MASKED_TEXT)
        wanted = {"permission.requested": ["cancelled"], "permission.resolved": ["allowed"]}
        assert [row["status"] for row in await w.rows("approvals")] == wanted.get(until, [])
        asked = [e["data"]["digest"] for e in await all_events(w) if e["type"].startswith("permission.")]
        assert len(set(asked)) <= 1, "question and settlement are about the same"
        assert [row["output"] for row in await w.rows("runs")] == ["The end."]
        assert await row_problems(w) == []


@pytest.mark.spec("4.1", "8.2")
@pytest.mark.parametrize("until", ["permission.requested", "permission.resolved"])
async def test_a_question_about_who_stands_in_is_put_again_and_does_not_become_the_call(
    tmp_path: Path, until: str
) -> None:
    async def begin(w: World) -> None:
        policy = {"max_depth": 3, "on_error": {"agent": "helper"}}
        await w.run("go dispatch", agents=[w.node(), w.node("helper")], surfaces=["dispatch"], policy=policy)

    rules = ruled(ask=["Agent(helper)"])
    story = Story(begin, script=HELPER, permissions=rules, beside=person(AnswerKind.ALLOW_ONCE))
    life = (await kinds_of(story, tmp_path)).index(until) + 1
    await story.after(tmp_path / "service", life)
    async with story.ends(tmp_path / "service") as w:
        (end,) = [e["data"] for e in await all_events(w) if e["type"] == "handoff.end"]
        assert (end["status"], end["output"]) == ("fallback", "helped with: the work")
        assert [row["status"] for row in await w.rows("approvals")] == ["allowed"], "asked once"
        assert await row_problems(w) == []
