"""Persons and hooks over the deaths of processes: a question is put once and answered once, a start has its end."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from app.agent.approvals import Answer, AnswerKind
from app.agent.errors import Conflict
from app.agent.hooks import FunctionHook, HookCall, HookPoint, HookRegistry, Verdict
from app.agent.ids import now_us
from app.sessions.inbox import ApprovalFilter
from app.settings_rules import Permissions
from tests.longer import times
from tests.plan import ask, call, task
from tests.sessions.lives import Story, row_problems, still
from tests.sessions.test_continuing import all_events, lives_of
from tests.sessions.test_explaining import ruled
from tests.world import World

pytestmark = [pytest.mark.slow, pytest.mark.spec("12.7")]
ASKS = {"ask": ["touch"]}


def person(kind: AnswerKind, arguments: Any = None) -> Callable[[World], Awaitable[None]]:
    """Somebody who answers every question in the same way, a moment after it was put."""

    async def beside(w: World) -> None:
        while True:
            for question in w.asking.approvals.pending(w.tenant):
                await asyncio.sleep(0.003)
                answer = Answer(kind=kind, by="somebody", arguments=arguments)
                await asyncio.gather(w.inbox.answer(w.tenant, question.id, answer), return_exceptions=True)
            await asyncio.sleep(0.001)

    return beside


def deep(*turns: Any) -> str:
    """A tree whose work is done two levels below."""
    return task({"calls": [ask(task({"calls": [ask(task(*turns, "deep"))]}, "mid"))]}, "The end.")


ANSWERS = [
    (AnswerKind.ALLOW_ONCE, None, {"a", "b"}),
    (AnswerKind.ALLOW_ONCE, {"key": "edited"}, {"edited"}),
    (AnswerKind.ALLOW_SESSION, None, {"a", "b"}),
    (AnswerKind.DENY, None, set()),
]


@pytest.mark.slow
@pytest.mark.spec("8.2", "8.3", "14.11")
@pytest.mark.case("B180")
@pytest.mark.parametrize(("kind", "arguments", "done"), ANSWERS, ids=["once", "edited", "session", "denied"])
@pytest.mark.parametrize("depth", [0, 2])
async def test_a_question_is_put_once_and_its_answer_holds_over_a_crash_at_any_event(
    tmp_path: Path, kind: AnswerKind, arguments: Any, done: set[str], depth: int
) -> None:
    work = {"calls": [call("touch", key="a"), call("touch", key="b")]}

    async def begin(w: World) -> None:
        await w.run(task(work, "The end.") if depth == 0 else deep(work), permissions=ASKS)

    story = Story(begin, beside=person(kind, arguments))
    whole = await story.whole(tmp_path)
    for gap in (0, 3):
        for life in lives_of(whole)[:: times(5, 1)]:
            folder = tmp_path / f"{gap}-{life}"
            await story.after(folder, life, *([gap] * 3 if gap else []))
            async with story.ends(folder) as w:
                assert await row_problems(w) == [], life
                rows = await w.rows("runs")
                assert {row["status"] for row in rows} == {"completed"}, life
                assert set(story.done) <= done, life
                # an edited answer makes two calls alike, which is not the same as one that was made twice
                assert all(count <= (2 if arguments else 1) for count in story.done.values()), (life, story.done)
                events = await all_events(w)
                asked = Counter(e["data"]["call_id"] for e in events if e["type"] == "permission.requested")
                assert all(count == 1 for count in asked.values()), life
                results = [e["data"]["status"] for e in events if e["type"] == "tool.result" and e["depth"] == depth]
                wanted = {"denied"} if kind is AnswerKind.DENY else {"ok", "unknown"}
                assert set(results) - {"ok"} <= wanted - {"ok"}, life


async def put(w: World, **session: Any) -> str:
    """Begin a run that asks; the id of its question."""
    run = await w.run(task({"calls": [call("touch", key="a")]}, "The end."), **{"permissions": ASKS, **session})
    return str((await w.until(run.session_id, "permission.requested"))["data"]["approval_id"])


def hanging() -> Story:
    """A story whose processes die while a person is asked."""

    async def begin(w: World) -> None:
        await put(w)
        story.die()

    story = Story(begin)
    return story


@pytest.mark.spec("8.2", "14.11")
@pytest.mark.case("B180")
async def test_an_open_question_has_the_same_id_after_a_restart_and_is_answered_also_while_its_run_is_taken_up(
    tmp_path: Path,
) -> None:
    story = hanging()
    await story.dies(tmp_path, 1_000_000, first=True)
    async with story.begun(tmp_path) as w:
        (row,) = (await w.inbox.list(w.tenant, ApprovalFilter(status="pending"), None, 10))["items"]
        answer = Answer(kind=AnswerKind.ALLOW_ONCE, by="somebody", arguments={"key": "b"})
        assert (await w.inbox.answer(w.tenant, row["id"], answer))["status"] == "allowed"
        await still(w)
        assert story.done == {"b": 1}
        assert await row_problems(w) == []
        with pytest.raises(Conflict, match="is settled"):
            await w.inbox.answer(w.tenant, row["id"], answer)


@pytest.mark.spec("8.2")
async def test_a_question_whose_time_is_over_while_nobody_was_there_is_expired(tmp_path: Path) -> None:
    story = hanging()
    story.arguments["permissions"] = Permissions(expires_s=0.2)
    await story.dies(tmp_path, 1_000_000, first=True)
    async with story.begun(tmp_path, take_up=False) as w:
        (row,) = await w.rows("approvals")
        async with asyncio.timeout(5):
            while now_us() <= row["expires_at"]:
                await asyncio.sleep(0.01)
        await w.recovery.run()
        await still(w)
        (row,) = await w.rows("approvals")
        assert row["status"] == "expired"
        assert story.done == {}
        assert await row_problems(w) == []


@pytest.mark.spec("8.2", "8.3")
async def test_what_the_rules_forbid_by_then_is_denied_and_its_question_is_withdrawn(tmp_path: Path) -> None:
    story = hanging()
    await story.dies(tmp_path, 1_000_000, first=True)
    async with story.ends(tmp_path, permissions=ruled(deny=["touch"])) as w:
        (row,) = await w.rows("approvals")
        assert row["status"] == "cancelled"
        results = [e["data"] for e in await all_events(w) if e["type"] == "tool.result"]
        assert [data["status"] for data in results] == ["denied"]
        assert "Permission denied" in results[0]["content"]
        assert story.done == {}
        assert await row_problems(w) == []


@pytest.mark.spec("8.2", "5.7")
async def test_a_run_that_is_cancelled_while_it_is_taken_up_withdraws_its_question(tmp_path: Path) -> None:
    story = hanging()
    await story.dies(tmp_path, 1_000_000, first=True)
    async with story.begun(tmp_path) as w:
        (run,) = await w.rows("runs")
        await w.sessions.cancel(w.tenant, run["id"])
        await still(w)
        assert [row["status"] for row in await w.rows("approvals")] == ["cancelled"]
        assert [row["status"] for row in await w.rows("runs")] == ["cancelled"]
        assert await row_problems(w) == []


# ── hooks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Heard:
    """What a hook was told, and by which processes it could have been."""

    def __init__(self, answer: Callable[[HookCall], Verdict | None] = lambda _call: None) -> None:
        self.told: Counter[tuple[HookPoint, str]] = Counter()
        self.answer = answer
        self.story: Story | None = None

    def __call__(self, told: HookCall) -> Verdict | None:
        if self.story is None or not self.story.dead:
            about = told.call_id if told.tool is not None else told.run_id
            self.told[told.point, about or ""] += 1
        return self.answer(told)


def hooked(plan: str, heard: Heard, **more: Any) -> Story:
    """A story under one hook at all points."""

    async def begin(w: World) -> None:
        heard.told.clear()
        await w.run(plan)

    everywhere = frozenset(HookPoint)
    heard.story = Story(begin, hooks=HookRegistry([FunctionHook(name="g", points=everywhere, function=heard)]), **more)
    return heard.story


@pytest.mark.spec("6.4", "6.5", "6.6")
@pytest.mark.case("B103")
async def test_each_start_that_hooks_were_told_of_has_its_end_over_a_crash_at_any_event(tmp_path: Path) -> None:
    heard = Heard()
    story = hooked(deep({"calls": [call("touch", key="a"), call("look", key="b")]}), heard)
    whole = await story.whole(tmp_path)
    for life in lives_of(whole):
        folder = tmp_path / str(life)
        await story.after(folder, life)
        async with story.ends(folder) as w:
            assert await row_problems(w) == []
            for row in await w.rows("runs"):
                starts = heard.told[HookPoint.SUBAGENT_START, row["id"]]
                stops = heard.told[HookPoint.SUBAGENT_STOP, row["id"]]
                # once more only where the process died between the hook and what is recorded of it
                assert (1 <= starts <= 2) == (1 <= stops <= 2) == (row["depth"] > 0), (life, starts, stops)
            events = await all_events(w)
            for event in events:
                if event["type"] == "tool.start" and not event["data"].get("delegation"):
                    assert heard.told[HookPoint.POST_TOOL_USE, event["data"]["call_id"]] <= 2


@pytest.mark.spec("6.2", "6.4", "8.2")
async def test_a_call_that_a_hook_had_asked_about_is_not_shown_to_it_again(tmp_path: Path) -> None:
    def answer(told: HookCall) -> Verdict | None:
        wants = told.point is HookPoint.PRE_TOOL_USE and told.tool == "touch"
        return Verdict(ask="is this meant?") if wants else None

    heard = Heard(answer)
    story = hooked(deep({"calls": [call("touch", key="a")]}), heard, beside=person(AnswerKind.ALLOW_ONCE))
    whole = await story.whole(tmp_path)
    async with story.ends(tmp_path / "whole") as w:
        kinds = [event["type"] for event in await all_events(w)]
    first = kinds.index("permission.requested") + 1
    for life in range(first, whole, times(4, 1)):
        folder = tmp_path / str(life)
        await story.after(folder, life)
        async with story.ends(folder) as w:
            (question,) = await w.rows("approvals")
            assert heard.told[HookPoint.PRE_TOOL_USE, question["call_id"]] == 1, life
            assert await row_problems(w) == []


@pytest.mark.spec("6.4")
@pytest.mark.parametrize(
    ("point", "status", "back"), [(HookPoint.SUBAGENT_START, "failed", 0), (HookPoint.SUBAGENT_STOP, "completed", 3)]
)
async def test_a_denied_start_stays_denied_and_a_run_is_sent_back_three_times_in_all(
    tmp_path: Path, point: HookPoint, status: str, back: int
) -> None:
    heard = Heard(lambda told: Verdict(block="more") if told.point is point and not told.is_error else None)
    story = hooked(
        task(
            {
                "calls": [
                    ask(
                        task({"calls": [call("touch", key="a")]}, "mid"),
                    )
                ]
            },
            "The end.",
        ),
        heard,
    )
    whole = await story.whole(tmp_path)
    for life in lives_of(whole)[:: times(5, 1)]:
        folder = tmp_path / str(life)
        await story.after(folder, life)
        async with story.ends(folder) as w:
            assert await row_problems(w) == [], life
            rows = await w.rows("runs", depth=1)
            assert [row["status"] for row in rows] == [status], life
            sent = [e for e in await all_events(w) if e["data"].get("decision") == "send_back"]
            assert len(sent) == back, life


@pytest.mark.spec("6.2", "4.6")
async def test_a_delegation_that_a_hook_has_changed_goes_on_as_it_was_changed(tmp_path: Path) -> None:
    changed = task({"calls": [call("touch", key="b")]}, "as it was changed")

    def answer(told: HookCall) -> Verdict | None:
        if told.point is not HookPoint.PRE_TOOL_USE or not isinstance(told.arguments, dict):
            return None
        if told.tool == "dispatch_subagent":
            return Verdict(arguments={**told.arguments, "agent_type": "other", "task": changed})
        return Verdict(arguments={"key": "c"}) if told.tool == "touch" else None

    heard = Heard(answer)

    async def begin(w: World) -> None:
        await w.run(task({"calls": [ask("what nobody does")]}, "The end."), agents=[w.node(), w.node("other")])

    everywhere = frozenset(HookPoint)
    story = Story(begin, hooks=HookRegistry([FunctionHook(name="g", points=everywhere, function=heard)]))
    whole = await story.whole(tmp_path)
    for life in lives_of(whole):
        folder = tmp_path / str(life)
        await story.after(folder, life)
        async with story.ends(folder) as w:
            assert await row_problems(w) == []
            (child,) = await w.rows("runs", depth=1)
            assert (child["agent"], child["output"]) == ("other", "as it was changed"), life
            assert set(story.done) <= {"c"}
