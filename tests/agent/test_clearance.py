"""What a call goes through before and after it runs: hooks, rules, persons, in the order of spec 6.5, at each depth."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.agent.approvals import AnswerKind, digest_of
from app.agent.hooks import FunctionHook, HookCall, HookPoint, HookRegistry, Verdict
from app.agent.tools import OutputLimit, ToolContext
from tests.agent.guarded import COMMAND, commands, give, questions, results, ruled, settlements
from tests.agent.probes import PATH, Probe, echo
from tests.plan import ask, call, task
from tests.world import World, agent, world

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
