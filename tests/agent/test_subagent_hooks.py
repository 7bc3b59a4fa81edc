"""Hooks around a subagent's run: they deny or add to its start, do not accept its end, and are always told of both."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.agent.hooks import FunctionHook, HookCall, HookPoint, HookRegistry, OnFailure, Verdict
from app.agent.subagent_hooks import RESULT_HEAD, SENT_BACK
from app.agent.texts import DEFAULT
from app.sessions.follow_ups import FollowUps
from tests.agent.probes import PATH, Probe, Stage, echo, raising
from tests.plan import CANCEL, ask, call, task
from tests.world import WAIT_S, World, agent, world

BOTH = frozenset({HookPoint.SUBAGENT_START, HookPoint.SUBAGENT_STOP})
START = frozenset({HookPoint.SUBAGENT_START})
STOP = frozenset({HookPoint.SUBAGENT_STOP})
BUSY = {"code": "model_overloaded", "message": "too many people", "retryable": False}
Says = Callable[[HookCall], Verdict | None]


class Diary:
    """What hooks were told, in order; `says` is what they answer."""

    def __init__(self, says: Says = lambda told: None) -> None:
        self.told: list[HookCall] = []
        self._says = says

    def ask(self, told: HookCall) -> Verdict | None:
        """The hook."""
        self.told.append(told)
        return self._says(told)

    def at(self, point: HookPoint) -> list[HookCall]:
        """What was told there."""
        return [told for told in self.told if told.point is point]

    def pairs(self) -> tuple[Counter[tuple[str, str, str | None]], Counter[tuple[str, str, str | None]]]:
        """How often each run started and stopped, with its agent and its name."""
        started, stopped = (
            Counter((told.run_id, told.agent, told.name) for told in self.at(point))
            for point in (HookPoint.SUBAGENT_START, HookPoint.SUBAGENT_STOP)
        )
        return started, stopped


def hooks(*each: tuple[str, frozenset[HookPoint], Any], **more: Any) -> HookRegistry:
    """Function hooks by name."""
    return HookRegistry(
        [FunctionHook(name=name, points=points, function=asked, **more) for name, points, asked in each]
    )


def lead(*plans: str, **more: Any) -> str:
    """A task that hands these to `node`, side by side."""
    return task({"calls": [ask(plan, **more) for plan in plans]}, "The end.")


async def said(w: World, run_id: str) -> list[tuple[str, str]]:
    """Role and text of a run's messages."""
    found = await w.rows("messages", run_id=run_id)
    ordered = sorted(found, key=lambda row: (row["turn"], row["step"], row["sub"]))
    return [(row["role"], row["content"]) for row in ordered]


async def child_of(w: World, session_id: str) -> dict[str, Any]:
    """The only run of depth 1."""
    (child,) = await w.rows("runs", session_id=session_id, depth=1)
    return child


# ── the start ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("6.1", "6.4", "6.6")
@pytest.mark.seed("004", 163)
async def test_a_start_that_a_hook_denies_fails_the_run_before_it_has_said_anything(tmp_path: Path) -> None:
    diary = Diary(lambda told: Verdict(block="not on Sundays") if told.point is HookPoint.SUBAGENT_START else None)
    async with world(tmp_path, hooks=hooks(("calendar", BOTH, diary.ask))) as w:
        row = await w.finished(await w.run(lead("work")))
        child = await child_of(w, row["session_id"])
        assert (row["status"], row["output"]) == ("completed", "The end.")
        assert (child["status"], child["error"]["code"], child["steps"]) == ("failed", "hook_denied", 0)
        assert child["error"]["message"] == "hook calendar does not let this subagent start: not on Sundays"
        assert await said(w, child["id"]) == []
        of_child = [e for e in await w.events(row["session_id"]) if e.get("run_id") == child["id"]]
        assert [e["type"] for e in of_child] == ["run.queued", "run.started", "hook.decision", "run.failed"]
        decision = of_child[2]["data"]
        assert (decision["hook"], decision["point"], decision["decision"], decision["reason"]) == (
            "calendar", "OnSubagentStart", "block", "not on Sundays",
        )  # fmt: skip
        assert [told.point for told in diary.told] == [HookPoint.SUBAGENT_START]
        (result,) = await w.events(row["session_id"], "tool.result")
        assert result["data"]["is_error"] is True
        assert "not on Sundays" in result["data"]["content"]


@pytest.mark.spec("6.1", "6.4")
@pytest.mark.seed("004", 163)
async def test_what_hooks_add_stands_inside_of_the_task_in_their_order(tmp_path: Path) -> None:
    one = Diary(lambda told: Verdict(context="It is Monday."))
    two = Diary(lambda told: Verdict(context="It rains."))
    async with world(tmp_path, hooks=hooks(("one", START, one.ask), ("two", START, two.ask))) as w:
        row = await w.finished(await w.run(lead("What to wear?")))
        child = await child_of(w, row["session_id"])
        asked = "What to wear?\n\nContext:\nIt is Monday.\n\nIt rains."
        assert await said(w, child["id"]) == [
            ("system", "You are node."), ("user", asked), ("assistant", f"echo: {asked}"),
        ]  # fmt: skip
        (start,) = await w.events(row["session_id"], "subagent.start")
        assert start["data"]["prompt"] == "What to wear?"
        assert [told.prompt for told in (*one.told, *two.told)] == ["What to wear?"] * 2
        decisions = await w.events(row["session_id"], "hook.decision")
        assert [(e["data"]["hook"], e["data"]["decision"]) for e in decisions] == [
            ("one", "add_context"), ("two", "add_context"),
        ]  # fmt: skip


@pytest.mark.spec("6.3", "6.4")
@pytest.mark.parametrize(
    ("on_failure", "status"), [(None, "failed"), (OnFailure.BLOCK, "failed"), (OnFailure.ALLOW, "completed")]
)
async def test_a_start_hook_that_fails_keeps_the_subagent_from_starting_unless_it_says_otherwise(
    tmp_path: Path, on_failure: OnFailure | None, status: str
) -> None:
    def broken(_told: HookCall) -> Verdict:
        raise ValueError("no calendar")

    async with world(tmp_path, hooks=hooks(("calendar", START, broken), on_failure=on_failure)) as w:
        row = await w.finished(await w.run(lead("work")))
        child = await child_of(w, row["session_id"])
        assert (row["status"], child["status"]) == ("completed", status)
        (decision,) = await w.events(row["session_id"], "hook.decision")
        effect = "allow" if status == "completed" else "block"
        assert (decision["data"]["decision"], decision["data"]["effect"]) == ("failed", effect)
        assert decision["data"]["reason"] == "ValueError: no calendar"


@pytest.mark.spec("6.4", "5.7")
@pytest.mark.case("B103")
async def test_a_run_that_is_cancelled_while_its_start_is_asked_about_never_starts(tmp_path: Path) -> None:
    is_asked, never = asyncio.Event(), asyncio.Event()
    diary = Diary()

    async def slow(told: HookCall) -> Verdict | None:
        is_asked.set()
        await never.wait()
        return None

    async with world(tmp_path, hooks=hooks(("slow", START, slow), ("diary", STOP, diary.ask))) as w:
        run = await w.run(lead("work"))
        async with asyncio.timeout(WAIT_S):
            await is_asked.wait()
        await w.sessions.cancel(w.tenant, run.id)
        assert (await w.finished(run))["status"] == "cancelled"
        child = await child_of(w, run.session_id)
        assert (child["status"], await said(w, child["id"]), diary.told) == ("cancelled", [], [])
        assert await w.events(run.session_id, "subagent.start", "subagent.stop") == []


# ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("6.1", "6.4", "6.6")
@pytest.mark.seed("004", 163, 164)
@pytest.mark.parametrize(("max_steps", "back"), [(9, SENT_BACK), (4, 3), (3, 2), (2, 1), (1, 0)])
async def test_an_answer_is_sent_back_at_most_three_times_and_only_while_steps_are_left(
    tmp_path: Path, max_steps: int, back: int
) -> None:
    diary = Diary(lambda told: Verdict(block="too short"))
    async with world(tmp_path, hooks=hooks(("critic", STOP, diary.ask))) as w:
        agents = [w.node(), agent("worker", max_steps=max_steps)]
        row = await w.finished(await w.run(lead(task("first"), agent="worker"), agents=agents))
        child = await child_of(w, row["session_id"])
        reproach = DEFAULT.sent_back.replace("{reason}", "too short")
        expected = [("assistant", "first"), *[("user", reproach), ("assistant", f"echo: {reproach}")] * back]
        assert (await said(w, child["id"]))[2:] == expected
        assert (child["status"], child["stop_reason"], child["steps"]) == ("completed", "answer", 1 + back)
        assert child["output"] == expected[-1][1]
        assert [told.steps for told in diary.told] == list(range(1, 2 + back))
        assert [told.stop_hook_active for told in diary.told] == [False, *[True] * back]
        assert {told.is_error for told in diary.told} == {False}
        assert len(await w.events(row["session_id"], "subagent.stop")) == 1
        decisions = await w.events(row["session_id"], "hook.decision")
        said_of_each = [(e["data"]["decision"], e["data"]["reason"]) for e in decisions]
        assert said_of_each == [*[("send_back", "too short")] * back, ("block", "too short")]


@pytest.mark.spec("6.4")
async def test_a_subagent_that_is_sent_back_may_work_and_its_better_answer_is_taken(tmp_path: Path) -> None:
    diary = Diary(lambda told: Verdict(block="look again") if told.result == "no idea" else None)
    look = Probe("look", echo, PATH, read_only=True)
    script = """
agents:
  - when: {system_contains: "You are lead"}
    turns: [{calls: [{tool: dispatch_subagent, arguments: {agent_type: node, task: "find it"}}]}, {text: "The end."}]
  - when: {task_contains: "look again"}
    turns: [{calls: [{tool: look, arguments: {path: a}}]}, {text: "found"}]
  - turns: [{text: "no idea"}]
"""
    async with world(tmp_path, tools=[look], script=script, hooks=hooks(("critic", STOP, diary.ask))) as w:
        row = await w.finished(await w.run("go", agent="lead", agents=[agent("lead", mode="primary"), w.node()]))
        child = await child_of(w, row["session_id"])
        assert (child["status"], child["output"], child["steps"]) == ("completed", "found", 3)
        assert [told.result for told in diary.told] == ["no idea", "found"]
        assert len(look.arguments) == 1


@pytest.mark.spec("6.4")
@pytest.mark.parametrize(("max_steps", "answers"), [(9, ["first", "echo: and this?"]), (1, ["first"])])
async def test_what_a_subagent_is_told_while_its_answer_is_judged_it_reads_before_it_ends_if_it_has_a_step_left(
    tmp_path: Path, max_steps: int, answers: list[str]
) -> None:
    judged: list[str] = []

    async def tell(told: HookCall) -> None:
        judged.append(told.result or "")
        if len(judged) == 1:
            parts = {"sessions": w.sessions, "delegations": w.delegations, "supervisor": w.supervisor}
            await FollowUps(**parts, journal=w.journal).tell(w.tenant, told.run_id, "and this?")

    async with world(tmp_path, hooks=hooks(("critic", STOP, tell))) as w:
        agents = [w.node(), agent("worker", max_steps=max_steps)]
        row = await w.finished(await w.run(lead(task("first"), agent="worker"), agents=agents))
        child = await child_of(w, row["session_id"])
        assert (child["status"], child["output"], child["steps"]) == ("completed", answers[-1], len(answers))
        assert judged == answers, "each answer is judged"
        assert [text for role, text in await said(w, child["id"]) if role == "assistant"] == answers
        (told,) = await w.rows("notices", session_id=row["session_id"])
        assert told["status"] != "pending", "it is in the memory in any case"


@pytest.mark.spec("6.4", "5.5")
async def test_a_forced_answer_is_not_sent_back(tmp_path: Path) -> None:
    diary = Diary(lambda told: Verdict(block="more"))
    look = {"calls": [call("glob", pattern="*")]}
    async with world(tmp_path, hooks=hooks(("critic", STOP, diary.ask))) as w:
        agents = [w.node(), agent("worker", max_steps=2)]
        plan = lead(task(look, final="all I know"), agent="worker")
        row = await w.finished(await w.run(plan, agents=agents))
        child = await child_of(w, row["session_id"])
        assert (child["status"], child["output"], child["forced"]) == ("completed", "all I know", True)
        assert [(told.result, told.is_error) for told in diary.told] == [("all I know", False)]


@pytest.mark.spec("6.1", "6.3")
@pytest.mark.seed("004", 164)
async def test_a_stop_is_told_the_first_two_hundred_characters_and_its_failure_changes_nothing(tmp_path: Path) -> None:
    diary = Diary(lambda told: 1 / 0)  # type: ignore[arg-type, return-value]
    long = "ä🙂" * RESULT_HEAD
    async with world(tmp_path, hooks=hooks(("clerk", STOP, diary.ask))) as w:
        row = await w.finished(await w.run(lead(task(long))))
        child = await child_of(w, row["session_id"])
        assert (child["status"], child["output"]) == ("completed", long)
        assert [told.result for told in diary.told] == [long[:200]]
        (stop,) = await w.events(row["session_id"], "subagent.stop")
        assert stop["data"]["result"] == long[:200]
        (decision,) = await w.events(row["session_id"], "hook.decision")
        assert (decision["data"]["decision"], decision["data"]["effect"]) == ("failed", "allow")


# ── both, always ────────────────────────────────────────────────────────────────────────────────────────────────────

ENDINGS: Mapping[str, tuple[str, str, bool]] = {
    "answer": (task("done"), "completed", False),
    "a tool that raises": (task({"calls": [call("crash")]}, "done"), "completed", False),
    "an error of the provider": (task({"error": BUSY}), "failed", True),
    "the limit of steps": (task(*[{"calls": [call("glob", pattern="*")]}] * 9, final="so far"), "completed", False),
    "a cancellation inside of the model": (task(CANCEL), "failed", True),
    "its timeout": (task({"calls": [call("hold", key="never")]}, "x"), "timed_out", True),
    "a cancellation": (task({"calls": [call("hold", key="never")]}, "x"), "cancelled", True),
    "the end of the service": (task({"calls": [call("hold", key="never")]}, "x"), "interrupted", True),
}


@pytest.mark.spec("6.1", "6.4", "5.7")
@pytest.mark.seed("004", 163)
@pytest.mark.case("B103", "B105")
@pytest.mark.parametrize("ending", ENDINGS)
async def test_whatever_ends_a_subagent_its_start_has_one_stop_with_the_same_ids(tmp_path: Path, ending: str) -> None:
    plan, status, is_error = ENDINGS[ending]
    diary, stage = Diary(), Stage()
    tools = [*stage.tools, Probe("crash", raising(ValueError("broken")))]
    async with world(tmp_path, tools=tools, hooks=hooks(("diary", BOTH, diary.ask))) as w:
        policy = {"max_depth": 3, **({"timeout_ms": 300} if ending == "its timeout" else {})}
        run = await w.run(lead(plan), policy=policy)
        if status in ("cancelled", "interrupted"):
            await stage.reached("+never")
            await (w.sessions.close(0) if status == "interrupted" else w.sessions.cancel(w.tenant, run.id))
        await w.finished(run)
        child = await child_of(w, run.session_id)
        started, stopped = diary.pairs()
        assert (child["status"], started) == (status, stopped)
        assert list(stopped.items()) == [((child["id"], "node", child["name"]), 1)]
        assert child["name"]
        (stop,) = diary.at(HookPoint.SUBAGENT_STOP)
        assert (stop.is_error, stop.steps) == (is_error, child["steps"])
        (start,) = diary.at(HookPoint.SUBAGENT_START)
        (asked,) = await w.rows("tool_calls", run_id=run.id)
        assert (start.call_id, stop.call_id) == (asked["id"], asked["id"])
        assert stop.duration_ms is not None
        pair = await w.events(run.session_id, "subagent.start", "subagent.stop")
        assert [(e["type"], e["run_id"]) for e in pair] == [
            ("subagent.start", child["id"]), ("subagent.stop", child["id"]),
        ]  # fmt: skip
        assert pair[1]["data"]["status"] == status


@pytest.mark.spec("6.4")
@pytest.mark.case("B104")
async def test_a_burst_of_provider_errors_loses_no_stop(tmp_path: Path) -> None:
    diary = Diary()
    async with world(tmp_path, hooks=hooks(("diary", BOTH, diary.ask))) as w:
        failing = {**BUSY, "status": 500}
        await w.finished(await w.run(lead(*[task({"error": failing})] * 8)))
        started, stopped = diary.pairs()
        assert started == stopped
        assert sorted(stopped.values()) == [1] * 8
        assert {(told.is_error, told.result) for told in diary.at(HookPoint.SUBAGENT_STOP)} == {
            (True, "too many people")
        }


@pytest.mark.spec("6.4", "5.7")
@pytest.mark.case("B103")
async def test_a_stop_hook_that_never_answers_does_not_keep_a_cancelled_run_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.agent.supervisor.LAST_WORD_S", 0.05)
    never, stage = asyncio.Event(), Stage()

    async def mute(_told: HookCall) -> Verdict | None:
        await never.wait()
        return None

    async with world(tmp_path, tools=stage.tools, hooks=hooks(("mute", STOP, mute))) as w:
        run = await w.run(lead(task({"calls": [call("hold", key="never")]}, "x")))
        await stage.reached("+never")
        await w.sessions.cancel(w.tenant, run.id)
        assert (await w.finished(run))["status"] == "cancelled"
        assert len(await w.events(run.session_id, "subagent.stop")) == 1


@pytest.mark.spec("6.4", "5.7")
@pytest.mark.case("B103")
async def test_children_cancelled_together_have_a_whole_stop_each_also_one_that_has_not_started(tmp_path: Path) -> None:
    names = ("late asked", "late stops", "late may end", "other stops", "other may end")
    moments = {name: asyncio.Event() for name in names}
    late: list[str] = []
    ended: list[str] = []

    async def ask(told: HookCall) -> Verdict | None:
        if told.point is HookPoint.SUBAGENT_START:
            if told.prompt == "late":
                late.append(told.run_id)
                moments["late asked"].set()
                await asyncio.Event().wait()
            return None
        who = "late" if told.run_id in late else "other"
        moments[f"{who} stops"].set()
        await moments[f"{who} may end"].wait()
        ended.append(who)
        return None

    stage = Stage()
    async with world(tmp_path, tools=stage.tools, hooks=hooks(("both", BOTH, ask))) as w, asyncio.timeout(WAIT_S):
        other = task({"calls": [call("hold", key="never")]}, "x")
        run = await w.run(lead("late", other))
        await stage.reached("+never")
        await moments["late asked"].wait()
        cancelling = asyncio.create_task(w.sessions.cancel(w.tenant, run.id))
        await moments["other stops"].wait()
        await moments["late stops"].wait()
        moments["other may end"].set()
        await w.until(run.session_id, "subagent.stop")
        moments["late may end"].set()
        await cancelling
        assert ended == ["other", "late"]
        assert [row["status"] for row in await w.rows("runs", depth=1)] == ["cancelled"] * 2


@pytest.mark.spec("6.4", "5.7")
@pytest.mark.case("B103")
async def test_a_run_that_is_cancelled_while_its_answer_is_judged_tells_each_hook_of_one_end(tmp_path: Path) -> None:
    is_asked, may_answer, diary = asyncio.Event(), asyncio.Event(), Diary()
    slowly: list[bool] = []

    async def slow(told: HookCall) -> Verdict | None:
        if told.point is HookPoint.SUBAGENT_STOP:
            is_asked.set()
            await may_answer.wait()
            slowly.append(told.is_error)
        return Verdict(block="not good enough") if told.point is HookPoint.SUBAGENT_STOP else None

    async with world(tmp_path, hooks=hooks(("slow", BOTH, slow), ("diary", BOTH, diary.ask))) as w:
        run = await w.run(lead("work"))
        async with asyncio.timeout(WAIT_S):
            await is_asked.wait()
        cancelling = asyncio.create_task(w.sessions.cancel(w.tenant, run.id))
        async with asyncio.timeout(WAIT_S):
            while not diary.at(HookPoint.SUBAGENT_STOP):
                await asyncio.sleep(0.001)
        assert slowly == [], "who is slow keeps nobody from being told"
        may_answer.set()
        await cancelling
        child = await child_of(w, run.session_id)
        assert (child["status"], slowly) == ("cancelled", [False])
        assert [(told.is_error, told.run_id) for told in diary.at(HookPoint.SUBAGENT_STOP)] == [(True, child["id"])]
        ends = [e["type"] for e in await w.events(run.session_id) if e.get("run_id") == child["id"]]
        assert ends[-3:] == ["hook.decision", "subagent.stop", "run.cancelled"]


@pytest.mark.spec("6.4", "5.7")
@pytest.mark.case("B103")
async def test_a_hook_that_is_dead_keeps_no_other_from_being_told_of_a_cancelled_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.agent.supervisor.LAST_WORD_S", 0.2)
    never, stage, diary = asyncio.Event(), Stage(), Diary()

    async def mute(_told: HookCall) -> None:
        await never.wait()

    given = hooks(("mute", STOP, mute), ("diary", BOTH, diary.ask))
    async with world(tmp_path, tools=stage.tools, hooks=given) as w:
        run = await w.run(lead(task({"calls": [call("hold", key="never")]}, "x")))
        await stage.reached("+never")
        await w.sessions.cancel(w.tenant, run.id)
        started, stopped = diary.pairs()
        assert (started, sum(stopped.values())) == (stopped, 1)


@pytest.mark.spec("6.4")
@pytest.mark.case("B103")
@pytest.mark.parametrize("max_steps", [1, 9])
async def test_an_objection_that_changes_nothing_any_more_keeps_no_other_hook_from_being_told(
    tmp_path: Path, max_steps: int
) -> None:
    critic, diary = Diary(lambda told: Verdict(block="too short")), Diary()
    async with world(tmp_path, hooks=hooks(("critic", STOP, critic.ask), ("diary", BOTH, diary.ask))) as w:
        agents = [w.node(), agent("worker", max_steps=max_steps)]
        await w.finished(await w.run(lead(task("first"), agent="worker"), agents=agents))
        started, stopped = diary.pairs()
        assert (started, sum(stopped.values())) == (stopped, 1)
        assert len(critic.told) == min(max_steps, 1 + SENT_BACK)


@pytest.mark.spec("6.4", "6.6", "5.7")
@pytest.mark.case("B103")
@pytest.mark.parametrize("how", ["cancelled", "denied"])
async def test_who_has_seen_a_start_that_came_to_nothing_is_told_of_its_end(tmp_path: Path, how: str) -> None:
    is_asked, never = asyncio.Event(), asyncio.Event()
    first, last = Diary(), Diary()

    async def second(told: HookCall) -> Verdict | None:
        if told.point is HookPoint.SUBAGENT_STOP:
            return last.ask(told)
        is_asked.set()
        if how == "cancelled":
            await never.wait()
        return Verdict(block="no")

    given = hooks(("first", BOTH, first.ask), ("second", BOTH, second), ("third", BOTH, last.ask))
    async with world(tmp_path, hooks=given) as w:
        run = await w.run(lead("work"))
        async with asyncio.timeout(WAIT_S):
            await is_asked.wait()
        if how == "cancelled":
            await w.sessions.cancel(w.tenant, run.id)
        await w.finished(run)
        started, stopped = first.pairs()
        assert (started, sum(stopped.values())) == (stopped, 1)
        (stop,) = first.at(HookPoint.SUBAGENT_STOP)
        assert (stop.is_error, stop.steps) == (True, 0)
        told = [each.point for each in last.told]  # the second itself was asked, unless it is the one that denies
        assert told == ([HookPoint.SUBAGENT_STOP] if how == "cancelled" else [])
        assert await w.events(run.session_id, "subagent.start", "subagent.stop") == []


# ── who is told what ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("6.1", "6.6")
@pytest.mark.seed("004", 163, 166, 167)
@pytest.mark.case("B105")
async def test_the_same_hooks_are_asked_at_every_depth_with_real_ids_and_never_about_a_root(tmp_path: Path) -> None:
    diary = Diary()
    look = Probe("look", echo, PATH, read_only=True)
    every = frozenset(HookPoint)
    async with world(tmp_path, tools=[look], hooks=hooks(("diary", every, diary.ask))) as w:
        looks = call("look", path="a")
        plan = task({"calls": [looks, ask(task({"calls": [looks, ask(task({"calls": [looks]}, "c"))]}, "b"))]}, "a")
        row = await w.finished(await w.run(plan))
        runs = {run["depth"]: run for run in await w.rows("runs", session_id=row["session_id"])}
        ids = [runs[depth]["id"] for depth in range(3)]
        for point in BOTH:
            assert sorted(told.depth for told in diary.at(point)) == [1, 2]
        for point in (HookPoint.PRE_TOOL_USE, HookPoint.POST_TOOL_USE):
            assert sorted(told.depth for told in diary.at(point) if told.tool == "look") == [0, 1, 2]
        for told in diary.told:
            run = runs[told.depth]
            assert (told.session_id, told.run_id, told.agent) == (row["session_id"], run["id"], "node")
            assert (told.name, told.parent_run_id) == (run["name"], run["parent_id"])
            assert told.lineage == tuple(ids[: told.depth])
            assert len(told.path) == told.depth + 1
            assert told.workspace == str(tmp_path / "workspace")
            assert (told.handoff_id is None) is (told.depth == 0)
        stops = {told.depth: (told.result, told.steps) for told in diary.at(HookPoint.SUBAGENT_STOP)}
        assert stops == {1: ("b", 2), 2: ("c", 2)}


@pytest.mark.spec("6.6")
@pytest.mark.seed("004", 142)
async def test_the_parts_of_a_subagents_run_come_in_the_order_of_the_contract(tmp_path: Path) -> None:
    made: list[World] = []
    order: list[tuple[int, str]] = []

    def note(told: HookCall) -> None:
        order.append((made[0].journal.recorded(told.session_id), told.point.value))

    async with world(tmp_path, hooks=hooks(("clock", BOTH, note))) as w:
        made.append(w)
        row = await w.finished(await w.run(lead(task("done"))))
        child = await child_of(w, row["session_id"])
        events = [(e["id"], e["type"]) for e in await w.events(row["session_id"]) if e.get("run_id") == child["id"]]
        assert [what for _, what in sorted([*events, *order], key=lambda each: each[0])] == [
            "run.queued", "run.started", "OnSubagentStart", "subagent.start", "message", "message", "step.started",
            "message", "step.completed", "OnSubagentStop", "subagent.stop", "run.completed",
        ]  # fmt: skip


@pytest.mark.spec("6.5", "6.1")
@pytest.mark.case("B100")
async def test_a_delegation_that_a_hook_blocks_asks_no_start_hook(tmp_path: Path) -> None:
    diary = Diary()

    def guard(told: HookCall) -> Verdict | None:
        return Verdict(block="work yourself") if told.tool == "dispatch_subagent" else None

    given = hooks(("guard", frozenset({HookPoint.PRE_TOOL_USE}), guard), ("diary", BOTH, diary.ask))
    async with world(tmp_path, hooks=given) as w:
        row = await w.finished(await w.run(lead("work")))
        assert (row["status"], diary.told, await w.rows("runs", depth=1)) == ("completed", [], [])
        (result,) = await w.events(row["session_id"], "tool.result")
        assert (result["data"]["status"], "work yourself" in result["data"]["content"]) == ("denied", True)
