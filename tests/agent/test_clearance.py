"""What a call goes through before and after it runs: hooks, rules, persons, in the order of spec 6.5, at each depth."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.agent.approvals import AnswerKind, digest_of
from app.agent.hooks import FunctionHook, HookCall, HookPoint, HookRegistry, Verdict
from app.agent.tools import OutputLimit, ToolContext
from tests.agent.guarded import COMMAND, commands, give, questions, results, ruled, settlements
from tests.agent.probes import PATH, Probe, Stage, echo
from tests.plan import ask, call, task
from tests.world import WAIT_S, World, agent, world

SECRET = "sk-very-secret-value-0123456789"
POINTS = frozenset({HookPoint.PRE_TOOL_USE, HookPoint.POST_TOOL_USE})


class Trace:
    """What happened to the calls of one tool, in order: events as the log has them, and between them what is no event.

    Each note keeps how many events its session had by then."""

    def __init__(self, tool: str) -> None:
        self.tool = tool
        self.world: World
        self.notes: list[tuple[int, str]] = []

    def note(self, session_id: str, what: str) -> None:
        """Something happened now."""
        self.notes.append((self.world.journal.recorded(session_id), what))

    async def told(self, session_id: str, depth: int) -> list[str]:
        """Everything, in order."""
        events = [
            (event["id"], event["type"])
            for event in await self.world.events(session_id)
            if event.get("depth") == depth and event["data"].get("tool") == self.tool
        ]
        return [what for _, what in sorted([*events, *self.notes], key=lambda each: each[0])]


def nested(depth: int, innermost: dict[str, Any]) -> str:
    """A task that makes a call that deep."""
    plan = task({"calls": [innermost]}, "done")
    for _ in range(depth):
        plan = task({"calls": [ask(plan)]}, "end")
    return plan


@pytest.mark.spec("6.5", "6.1", "8.2", "8.3", "7.5", "12.6")
@pytest.mark.seed("004", 135, 170)
@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_a_call_passes_hook_rule_person_start_tool_hook_mask_and_cut_in_this_order(
    tmp_path: Path, depth: int
) -> None:
    trace = Trace("run_command")
    hooked: list[tuple[HookPoint, Any, int]] = []

    def guard(told: HookCall) -> Verdict | None:
        if told.tool != trace.tool:
            return None
        trace.note(told.session_id, told.point.value)
        hooked.append((told.point, told.arguments, told.depth))
        if told.point is HookPoint.PRE_TOOL_USE:
            return Verdict(arguments={"command": "make hooked"})
        return Verdict(output=f"{SECRET} {'x' * 500} the end")

    async def body(arguments: Mapping[str, Any], context: ToolContext) -> str:
        trace.note(context.session.id, f"runs {arguments['command']}")
        return "made"

    tool = Probe("run_command", body, COMMAND)
    limit = OutputLimit(max_chars=100, head_chars=40, tail_chars=10)
    hooks = HookRegistry([FunctionHook(name="guard", function=guard, points=POINTS)])
    async with world(
        tmp_path, tools=[tool], hooks=hooks, secrets=[SECRET], output_limit=limit, permissions=ruled(ask=["Bash"])
    ) as w:
        trace.world = w
        run = await w.run(nested(depth, call("run_command", command="make")))
        (question,) = await questions(w, run.session_id, 1)
        assert question["arguments"] == {"command": "make hooked"}
        await give(w, question["approval_id"], arguments={"command": f"make edited {SECRET}"})
        await w.finished(run)
        assert await trace.told(run.session_id, depth) == [
            "tool.call",
            "PreToolUse",
            "hook.decision",
            "permission.requested",
            "permission.resolved",
            "tool.start",
            f"runs make edited {SECRET}",
            "PostToolUse",
            "hook.decision",
            "tool.result",
        ]
        edited = {"command": f"make edited {SECRET}"}
        assert hooked == [
            (HookPoint.PRE_TOOL_USE, {"command": "make"}, depth),
            (HookPoint.POST_TOOL_USE, edited, depth),
        ]
        content = (await results(w, run.session_id))[0][1] if depth == 0 else await result_of(w, run.session_id)
        assert content.startswith("[masked] xxx")
        assert "characters left out" in content
        assert content.endswith("x the end")
        assert SECRET not in str(await w.events(run.session_id))


async def result_of(w: World, session_id: str) -> str:
    """What the result of the one command says."""
    found = [e["data"] for e in await w.events(session_id, "tool.result") if e["data"]["tool"] == "run_command"]
    return str(found[0]["content"])


@pytest.mark.spec("6.5", "8.3")
@pytest.mark.seed("004", 137)
async def test_a_call_that_a_hook_blocks_reaches_no_rule_and_one_that_a_rule_denies_reaches_no_person(
    tmp_path: Path,
) -> None:
    def guard(told: HookCall) -> Verdict | None:
        blocked = told.point is HookPoint.PRE_TOOL_USE and told.arguments == {"command": "curl x"}
        return Verdict(block="no network") if blocked else None

    tool = commands()
    hooks = HookRegistry([FunctionHook(name="guard", function=guard, points=POINTS)])
    rules = ruled(ask=["Bash(curl *)"], deny=["Bash(rm *)"])
    async with world(tmp_path, tools=[tool], hooks=hooks, permissions=rules) as w:
        lines = ("curl x", "rm x", "ls")
        run = await w.run(task({"calls": [call("run_command", command=line) for line in lines]}, "end"))
        await w.finished(run)
        blocked, denied, done = await results(w, run.session_id)
        assert blocked == ("denied", "Blocked by hook guard: no network")
        assert denied[0] == "denied"
        assert "Bash(rm *)" in denied[1]
        assert done == ("ok", "ran ls")
        assert await settlements(w, run.session_id) == {}
        starts = await w.events(run.session_id, "tool.start")
        assert [e["data"]["call_id"] for e in starts] == [
            e["data"]["call_id"]
            for e in await w.events(run.session_id, "tool.call")
            if e["data"]["arguments"] == {"command": "ls"}
        ]


@pytest.mark.spec("8.3", "12.4")
async def test_every_decision_is_in_the_log_with_who_or_what_decided_over_which_arguments(tmp_path: Path) -> None:
    rules = ruled(ask=["Bash(make *)"], deny=["Bash(rm *)"], allow=["Bash(ls *)"])
    async with world(tmp_path, tools=[commands()], permissions=rules) as w:
        lines = ("rm x", "ls", "make all")
        run = await w.run(task({"calls": [call("run_command", command=line) for line in lines]}, "end"))
        (question,) = await questions(w, run.session_id, 1)
        await give(w, question["approval_id"], AnswerKind.DENY, message="not today")
        await w.finished(run)
        rows = await w.rows("decisions", session_id=run.session_id)
        told = [(r["decision"], r["kind"], r["rule"], r["scope"], r["owner"], r["decided_by"]) for r in rows]
        assert told == [
            ("deny", "rule", "Bash(rm *)", "server", "node", None),
            ("allow", "rule", "Bash(ls *)", "server", "node", None),
            ("deny", "person", None, None, None, "key_1"),
        ]
        assert [r["digest"] for r in rows] == [digest_of("run_command", {"command": line}) for line in lines]
        assert rows[2]["reason"] == "not today"
        assert all((r["run_id"], r["agent"], r["depth"], r["step"]) == (run.id, "node", 0, 1) for r in rows)


@pytest.mark.spec("8.1", "8.4", "7.2")
@pytest.mark.case("B117")
async def test_a_childs_own_rules_hold_whoever_calls_it(tmp_path: Path) -> None:
    strict = agent("strict", tools=["run_command", "write_file"], permissions={"deny": ["Bash", "Write"]})
    write = Probe("write_file", echo, PATH)
    plan = task({"calls": [call("run_command", command="ls"), call("write_file", path="a")]}, "done")
    async with world(tmp_path, tools=[commands(), write]) as w:
        seen = []
        for lead in (w.node("free"), w.node("asked", permissions={"ask": ["Read"]})):
            session = await w.session(agent=lead["name"], agents=[lead, strict])
            run = await w.turn(session, task({"calls": [ask(plan, "strict")]}, "end"))
            await w.finished(run)
            seen.append(await child_results(w, session))
        delegated = await w.delegate(plan, agent=strict)
        await w.delegations.result("default", delegated)
        seen.append(await child_results(w, delegated.session.id))
        assert seen[0] == seen[1] == seen[2]
        assert [status for status, _ in seen[0][1]] == ["denied", "denied"]
        assert seen[0][0] == [], "what is denied as a whole is not shown either"


async def child_results(w: World, session_id: str) -> tuple[list[str], list[tuple[str, str]]]:
    """The tools that the subagent was shown, and what its calls gave."""
    started = [e["data"] for e in await w.events(session_id, "run.started") if e["depth"] == 1]
    found = [e["data"] for e in await w.events(session_id, "tool.result") if e["depth"] == 1]
    return started[0].get("tools") or [], [(data["status"], data["content"]) for data in found]


@pytest.mark.spec("8.1", "7.2")
@pytest.mark.case("B116")
async def test_a_coordinator_that_may_only_delegate_has_children_that_may_read(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        (tmp_path / "workspace" / "a.txt").write_text("A line.")
        reader = agent("reader", tools=["read_file", "grep"])
        boss = agent("boss", tools=["Agent"])
        session = await w.session(agent="boss", agents=[boss, reader])
        plan = task({"calls": [call("read_file", path="a.txt")]}, "read")
        run = await w.turn(session, task({"calls": [ask(plan, "reader")]}, "end"))
        await w.finished(run)
        assert (await child_results(w, session))[1] == [("ok", "A line.")]


@pytest.mark.spec("7.2", "8.4")
async def test_a_whitelist_with_a_pattern_grants_those_calls_alone_also_to_who_takes_it_over(tmp_path: Path) -> None:
    tool = commands()
    git = agent("git", tools=["Agent", "Bash(git *)"])
    heir = {k: v for k, v in agent("heir").items() if k != "tools"}
    plan = task({"calls": [call("run_command", command=line) for line in ("git log", "ls")]}, "done")
    async with world(tmp_path, tools=[tool]) as w:
        session = await w.session(agent="git", agents=[git, heir])
        for text in (plan, task({"calls": [ask(plan, "heir")]}, "end")):
            await w.finished(await w.turn(session, text))
        found = [e for e in await w.events(session, "tool.result") if e["data"]["tool"] == "run_command"]
        found.sort(key=lambda e: (e["run"], e["data"]["memory_seq"]))
        assert [e["data"]["status"] for e in found] == ["ok", "denied"] * 2
        assert tool.arguments == [{"command": "git log"}] * 2


@pytest.mark.spec("8.4")
@pytest.mark.case("B112")
@pytest.mark.parametrize("there", [True, False], ids=["with the file", "without it"])
async def test_a_denied_file_is_left_out_of_searches_and_nothing_else_is(tmp_path: Path, there: bool) -> None:
    async with world(tmp_path, permissions=ruled(deny=["Read(.env)", "Read(./vault/**)"])) as w:
        root = tmp_path / "workspace"
        (root / "vault").mkdir()
        (root / "app.py").write_text("x = 1\n")
        if there:
            (root / ".env").write_text("x = secret\n")
            (root / "vault" / "key").write_text("x = secret\n")
            (root / "link").symlink_to(".env")
            (root / "door").symlink_to("vault")
        calls = [call("grep", pattern="x"), call("glob", pattern="**/*"), call("read_file", path=".env")]
        calls += [call("grep", pattern="x", path="door"), call("grep", pattern="x", path="link")]
        run = await w.run(task({"calls": calls}, "end"))
        await w.finished(run)
        grep, glob, read, *through = await results(w, run.session_id)
        assert grep == ("ok", "app.py:1:x = 1")
        assert glob == ("ok", "app.py")
        assert read[0] == "denied"
        assert all(status == ("denied" if there else "error") for status, _ in through)
        assert "secret" not in str([grep, glob, read, *through])
        assert await settlements(w, run.session_id) == {}


@pytest.mark.spec("10.5", "8.1")
@pytest.mark.parametrize(
    ("server", "verdict"),
    [(ruled(deny=["Bash(make *)"]), "denied"), (ruled(ask=["Bash"]), "asked"), (ruled(default="ask"), "asked")],
    ids=["deny", "ask", "default"],
)
async def test_what_comes_over_the_api_allows_nothing_that_the_server_does_not(
    tmp_path: Path, server: Any, verdict: str
) -> None:
    allows = {"allow": ["Bash", "Bash(make *)"], "default": "allow"}
    make = task({"calls": [call("run_command", command="make all")]}, "done")
    tool = commands()
    async with world(tmp_path, tools=[tool], permissions=server) as w:
        node = w.node(permissions=allows)
        child = w.node("child", permissions=allows)
        session = await w.session(agents=[node, child], permissions={**allows, "allow": ["*", "Bash"]})
        over_http = {"agent": child, "permissions": allows}
        for number, text in enumerate((make, task({"calls": [ask(make, "child")]}, "end")), 1):
            run = await w.turn(session, text)
            await settled_as(w, session, verdict, number)
            await w.finished(run)
        delegated = await w.delegate(make, **over_http)
        await settled_as(w, delegated.session.id, verdict, 1)
        await w.delegations.result("default", delegated)
        assert tool.arguments == []


async def settled_as(w: World, session_id: str, verdict: str, number: int) -> None:
    """Wait until the nth command of a session is denied, or asked about; then it is denied by a person."""
    if verdict == "denied":
        await w.until(session_id, "permission.resolved", number, lambda e: e["data"]["decision"] == "deny")
        return
    asked = (await questions_about(w, session_id, number))[-1]
    await give(w, asked["approval_id"], AnswerKind.DENY)


async def questions_about(w: World, session_id: str, count: int) -> list[dict[str, Any]]:
    """The questions about commands; whatever else is asked meanwhile is allowed."""
    while True:
        events = [e["data"] for e in await w.events(session_id, "permission.requested")]
        found = [data for data in events if data["tool"] == "run_command"]
        if len(found) >= count:
            return found
        for other in w.asking.approvals.pending("default", session_id):
            if other.tool != "run_command":
                await give(w, other.id)
        await w.until(session_id, "permission.requested", len(events) + 1)


class Afterwards:
    """A `PostToolUse` hook that is slow, and what it was told once it was through."""

    def __init__(self) -> None:
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.told: list[tuple[str | None, bool]] = []

    async def ask(self, told: HookCall) -> None:
        """The hook."""
        self.asked.set()
        await self.may_answer.wait()
        self.told.append((told.call_id, told.is_error))

    def registry(self) -> HookRegistry:
        """With this hook alone."""
        points = frozenset({HookPoint.POST_TOOL_USE})
        return HookRegistry([FunctionHook(name="after", points=points, function=self.ask)])


@pytest.mark.spec("6.4", "5.7")
async def test_a_cancellation_does_not_break_off_what_is_told_of_a_call_that_is_done(tmp_path: Path) -> None:
    hook, look = Afterwards(), Probe("look", echo, PATH, read_only=True)
    async with world(tmp_path, tools=[look], hooks=hook.registry()) as w, asyncio.timeout(WAIT_S):
        run = await w.run(task({"calls": [call("look", path="a")]}, "end"))
        await hook.asked.wait()
        cancelling = asyncio.create_task(w.sessions.cancel(w.tenant, run.id))
        await w.until(run.session_id, "tool.start")
        assert not cancelling.done()
        hook.may_answer.set()
        await cancelling
        (start,) = await w.events(run.session_id, "tool.start")
        assert hook.told == [(start["data"]["call_id"], False)]
        assert [status for status, _ in await results(w, run.session_id)] == ["ok"]
        assert (await w.finished(run))["status"] == "cancelled"


@pytest.mark.spec("6.4", "5.7")
async def test_what_is_told_of_a_call_that_was_cancelled_is_not_broken_off_by_another_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.agent.control.RESERVE_SHARE", 0.97)  # what is told may take half of what is left
    hook, stage = Afterwards(), Stage()
    async with world(tmp_path, tools=stage.tools, hooks=hook.registry()) as w, asyncio.timeout(WAIT_S):
        run = await w.run(task({"calls": [call("hold", key="never")]}, "end"), limits={"deadline_ms": 10_000})
        await hook.asked.wait()  # the deadline has ended the call
        assert stage.diary == ["+never", "!never"]
        cancelling = asyncio.create_task(w.sessions.cancel(w.tenant, run.id))
        await w.until(run.session_id, "tool.start")
        hook.may_answer.set()
        await cancelling
        (start,) = await w.events(run.session_id, "tool.start")
        assert hook.told == [(start["data"]["call_id"], True)]
        assert [status for status, _ in await results(w, run.session_id)] == ["cancelled"]
        assert (await w.finished(run))["status"] == "cancelled"


@pytest.mark.spec("6.4", "5.7")
async def test_a_dead_hook_keeps_no_other_from_being_told_of_a_cancelled_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.agent.supervisor.LAST_WORD_S", 0.2)
    stage, told, points = Stage(), list[bool](), frozenset({HookPoint.POST_TOOL_USE})

    async def mute(_told: HookCall) -> None:
        await asyncio.Event().wait()

    hooks = HookRegistry(
        [
            FunctionHook(name="mute", points=points, function=mute),
            FunctionHook(name="diary", points=points, function=lambda call: told.append(call.is_error)),
        ]
    )
    async with world(tmp_path, tools=stage.tools, hooks=hooks) as w:
        run = await w.run(task({"calls": [call("hold", key="never")]}, "end"))
        await stage.reached("+never")
        await w.sessions.cancel(w.tenant, run.id)
        assert told == [True]


@pytest.mark.spec("5.7", "6.5")
async def test_a_hook_that_swallows_the_cancellation_of_its_run_lets_no_tool_start(tmp_path: Path) -> None:
    is_asked = asyncio.Event()

    async def guard(_told: HookCall) -> None:
        is_asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    work = Probe("work", echo)
    hooks = HookRegistry([FunctionHook(name="guard", function=guard, points=frozenset({HookPoint.PRE_TOOL_USE}))])
    async with world(tmp_path, tools=[work], hooks=hooks) as w, asyncio.timeout(WAIT_S):
        run = await w.run(task({"calls": [call("work")]}, "end"))
        await is_asked.wait()
        await w.sessions.cancel(w.tenant, run.id)
        assert (await w.finished(run))["status"] == "cancelled"
        assert work.arguments == []
        assert await w.events(run.session_id, "tool.start") == []


@pytest.mark.spec("8.3", "6.2", "12.4")
async def test_what_a_hook_decided_is_in_the_log_with_the_digest_of_what_it_saw_and_what_it_made_of_that(
    tmp_path: Path,
) -> None:
    def guard(told: HookCall) -> Verdict | None:
        assert isinstance(told.arguments, Mapping)
        if told.point is HookPoint.POST_TOOL_USE:
            return Verdict(output="gone")
        return Verdict(arguments={"path": "other"}) if told.arguments["path"] == "a" else Verdict(block="no")

    hooks = HookRegistry([FunctionHook(name="guard", function=guard, points=POINTS)])
    async with world(tmp_path, tools=[Probe("work", echo, PATH)], hooks=hooks) as w:
        run = await w.run(task({"calls": [call("work", path="a"), call("work", path="b")]}, "end"))
        await w.finished(run)
        decided = [
            (e["data"]["decision"], e["data"]["digest"], e["data"].get("arguments"))
            for e in await w.events(run.session_id, "hook.decision")
        ]
        of_a, of_other, of_b = (digest_of("work", {"path": path}) for path in ("a", "other", "b"))
        assert decided == [
            ("mutate_input", of_a, {"path": "other"}), ("mutate_output", of_other, None), ("block", of_b, None),
        ]  # fmt: skip
        assert [row["digest"] for row in await w.rows("decisions")] == [of_a, of_other, of_b]


@pytest.mark.spec("6.3", "8.2")
@pytest.mark.parametrize("kind", [AnswerKind.ALLOW_ONCE, AnswerKind.DENY])
async def test_a_hook_may_want_a_person_to_be_asked_about_what_no_rule_asks_about(
    tmp_path: Path, kind: AnswerKind
) -> None:
    def guard(_told: HookCall) -> Verdict:
        return Verdict(ask="it costs money")

    work = Probe("work", echo, PATH)
    hooks = HookRegistry([FunctionHook(name="guard", function=guard, points=POINTS)])
    async with world(tmp_path, tools=[work], hooks=hooks) as w:
        run = await w.run(task({"calls": [call("work", path="a")]}, "end"))
        (question,) = await questions(w, run.session_id, 1)
        assert question["reason"] == "hook guard wants a person to decide: it costs money"
        assert "suggested_rule" not in question
        await give(w, question["approval_id"], kind)
        await w.finished(run)
        assert len(work.arguments) == (kind is AnswerKind.ALLOW_ONCE)
        decided = [e["data"]["decision"] for e in await w.events(run.session_id, "hook.decision")]
        assert decided == ["ask"], "after the call there is nothing to ask"


@pytest.mark.spec("6.3", "8.1")
async def test_what_a_rule_denies_is_not_asked_about_because_a_hook_wants_that(tmp_path: Path) -> None:
    guard = FunctionHook(name="guard", function=lambda told: Verdict(ask="sure?"), points=POINTS)
    async with world(
        tmp_path, tools=[commands()], hooks=HookRegistry([guard]), permissions=ruled(deny=["Bash(rm *)"])
    ) as w:
        run = await w.run(task({"calls": [call("run_command", command="rm x")]}, "end"))
        await w.finished(run)
        assert [status for status, _ in await results(w, run.session_id)] == ["denied"]
        assert await w.events(run.session_id, "permission.requested") == []
