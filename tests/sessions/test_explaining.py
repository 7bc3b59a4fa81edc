"""What is explained is what happens: the same policies, tools, agents and answers, at every depth, on every surface."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.agent.approvals import AnswerKind
from app.boxes.workspaces import Workspaces
from app.definitions.reader import DefinitionReader
from app.sessions.explaining import CallQuestion, Explaining
from app.sessions.feed import View
from app.sessions.opening import Opening
from tests.agent.guarded import commands, give, questions, results, ruled
from tests.agent.test_fallbacks import call_of
from tests.plan import call, task
from tests.world import World, agent, frames, world

MAKE = ruled(ask=["Bash(make *)"])


def explaining(w: World) -> Explaining:
    """The questions to a world."""
    parts = w.supervisor.equipment._parts
    reader = DefinitionReader(frozenset(parts.tools), lambda tenant: frozenset())
    return Explaining(
        sessions=w.sessions, inbox=w.inbox, roster=parts.roster,
        opening=Opening(reader, Workspaces(w.folder / "workspace")), hides=lambda: False,
        reader=reader, tools=parts.tools, parser=w.asking.parser, resolver=w.asking.resolver, agent="lead",
    )  # fmt: skip


async def explained(w: World, session: str, text: str, *agents: str) -> dict[str, Any]:
    return await explaining(w).explain(w.tenant, CallQuestion(call=text, agents=agents, session_id=session))


# ── whom a call starts ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("8.5", "8.4")
@pytest.mark.parametrize(
    ("surface", "tool", "texts"),
    [
        ("per_agent", "subagent_node", ["subagent_node", "Agent(node)", "Task(node)"]),
        ("dispatch", "dispatch_subagent", ["dispatch_subagent(node)", "Agent(node)"]),
        ("task", "execute_task", ["execute_task(node)", "Task(node)"]),
        ("subagent", "subagent", ["subagent", "Agent(node)"]),
    ],
)
async def test_a_delegation_is_explained_by_whom_it_would_start(
    tmp_path: Path, surface: str, tool: str, texts: list[str]
) -> None:
    for rule in ("Agent(node)", tool):
        folder = tmp_path / rule
        folder.mkdir()
        async with world(folder, permissions=ruled(deny=[rule])) as w:
            session = await w.session(surfaces=[surface])
            await w.finished(await w.turn(session, task({"calls": [call_of(surface, task("x"))]}, "end")))
            assert [status for status, _ in await results(w, session)] == ["denied"]
            for text in texts:
                found = await explained(w, session, text)
                assert (found["verdict"], found["rule"], found["tool"]) == ("deny", rule, tool), text


@pytest.mark.spec("8.5", "8.4")
async def test_a_tool_name_of_an_agents_own_is_explained_by_whose_it_is(tmp_path: Path) -> None:
    async with world(tmp_path, permissions=ruled(deny=["Agent(node)"])) as w:
        session = await w.session(agents=[w.node(tool_name="ask_node")], surfaces=["per_agent"])
        await w.finished(await w.turn(session, task({"calls": [call("ask_node", task="x")]}, "end")))
        assert [status for status, _ in await results(w, session)] == ["denied"]
        for text in ("ask_node", "Agent(node)"):
            found = await explained(w, session, text)
            assert (found["verdict"], found["tool"]) == ("deny", "ask_node")


# ── answers of persons ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("8.5", "8.2")
async def test_what_a_person_allowed_is_explained_after_a_restart_before_anything_is_done(tmp_path: Path) -> None:
    async with world(tmp_path, tools=[commands()], permissions=MAKE) as w:
        session = await w.session()
        run = await w.turn(session, task({"calls": [call("run_command", command="make a")]}, "end"))
        (asked,) = await questions(w, session, 1)
        assert (await explained(w, session, "Bash(make a)"))["verdict"] == "ask"
        await give(w, asked["approval_id"], AnswerKind.ALLOW_SESSION)
        await w.finished(run)
    async with world(tmp_path, tools=[commands()], permissions=MAKE) as w:
        found = await explained(w, session, "Bash(make a)")
        assert (found["verdict"], found["kind"], found["rule"]) == ("allow", "answer", "Bash(make a)")
        assert w.asking.approvals.rules(session) == (), "whoever asks puts nothing in force"


@pytest.mark.spec("8.2")
async def test_what_was_allowed_in_a_session_is_kept_in_memory_only_while_the_session_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.agent.supervisor.IDLE_SESSIONS", 1)
    async with world(tmp_path, tools=[commands()], permissions=MAKE) as w:
        session, make = await w.session(), task({"calls": [call("run_command", command="make a")]}, "end")
        run = await w.turn(session, make)
        (asked,) = await questions(w, session, 1)
        await give(w, asked["approval_id"], AnswerKind.ALLOW_SESSION)
        await w.finished(run)
        await w.finished(await w.run(task("another session")))
        assert w.asking.approvals.rules(session) == ()
        await w.finished(await w.turn(session, make))
        assert [status for status, _ in await results(w, session)] == ["ok", "ok"], "it holds all the same"


# ── anything ────────────────────────────────────────────────────────────────────────────────────────────────────

RULES = (
    "Bash", "Bash(git *)", "Bash(rm *)", "Read", "Read(./docs/**)", "Read(./vault/**)", "Grep", "Glob(./docs/**)",
    "Agent", "Agent(leaf)", "Agent(leaf, other)", "dispatch_subagent", "execute_task", "subagent_leaf", "*",
)  # fmt: skip
PATHS = ("docs/a.md", "vault/k", "door/k", "docs/../vault/k", "none.txt", "../x", "docs", "vault", ".")
LINES = ("git status", "rm x", "ls", "git log && rm y", "cat vault/k", "git $X", 'sh -c "rm y"')
KEPT = ("run_command", "Grep", "Glob", "Agent")


@dataclass(frozen=True)
class Case:
    """One call of the last of some agents, each of which has started the next by one surface."""

    depth: int
    surface: str
    tool: str
    given: Mapping[str, Any]
    text: str


def rules_of(rng: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {effect: rng.sample(RULES, rng.choice([0, 0, 1, 2])) for effect in ("allow", "ask", "deny")}
    if rng.random() < 0.2:
        found["default"] = rng.choice(["allow", "ask", "deny"])
    return {key: value for key, value in found.items() if value}


def case_of(rng: random.Random) -> Case:
    surface, depth = rng.choice(["dispatch", "per_agent", "task"]), rng.choice([0, 1, 2])
    kind = rng.choice(["line", "read", "search", "agent"])
    if kind == "line":
        line = rng.choice(LINES)
        return Case(depth, surface, "run_command", {"command": line}, f"Bash({line})")
    path = rng.choice(PATHS)
    if kind == "read":
        return Case(depth, surface, "read_file", {"path": path}, f"Read({path})")
    if kind == "search":
        tool = rng.choice(["grep", "glob"])
        return Case(depth, surface, tool, {"path": path, "pattern": "x"}, f"{tool}({path})")
    made = start(surface, rng.choice(["leaf", "other"]), task("x"))
    name = next(name for name in ("leaf", "other") if name in str(made))
    return Case(depth, surface, made["tool"], made["arguments"], f"Agent({name})")


def start(surface: str, name: str, plan: str) -> dict[str, Any]:
    """A call that starts an agent."""
    if surface == "dispatch":
        return call("dispatch_subagent", agent_type=name, task=plan)
    if surface == "task":
        return call("execute_task", name=name, description="three short words", prompt=plan)
    return call(f"subagent_{name}", task=plan)


def agents_of(rng: random.Random, depth: int) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for name in ("top", "middle", "low")[: depth + 1]:
        fields: dict[str, Any] = {"mode": "all", "tools": [*KEPT, rng.choice(["Read", "Read(./docs/**)"])]}
        if made and rng.random() < 0.3 and name != "middle":
            del fields["tools"]  # it takes over its parent's, which are not its to delegate with
        if rng.random() < 0.5:
            fields["permissions"] = rules_of(rng)
        if rng.random() < 0.15:
            fields["disallowed_tools"] = ["Read(./docs/**)"]
        made.append(agent(name, **fields))
    return [*made, agent("leaf"), agent("other")]


@contextlib.asynccontextmanager
async def persons(w: World, session: str, depth: int) -> AsyncIterator[None]:
    """They allow whatever leads to the last agent, and deny what that one asks for."""

    async def answer() -> None:
        async with contextlib.aclosing(frames(w.feed, View(tenant=w.tenant, session_id=session))) as seen:
            async for frame in seen:
                if frame["event"] == "permission.requested":
                    last = frame["data"]["depth"] == depth
                    kind = AnswerKind.DENY if last else AnswerKind.ALLOW_ONCE
                    await give(w, frame["data"]["data"]["approval_id"], kind)

    answering = asyncio.create_task(answer())
    try:
        yield
    finally:
        answering.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await answering


async def really(w: World, session: str, case: Case) -> str | None:
    """What came of the call; None when nobody got as far as making it."""
    plan = task({"calls": [call(case.tool, **case.given)]}, "end")
    for name in ("low", "middle")[2 - case.depth :]:
        plan = task({"calls": [start(case.surface, name, plan)]}, "end")
    async with persons(w, session, case.depth):
        await w.finished(await w.turn(session, plan))
    mine = [
        event
        for event in await w.events(session, "tool.result", "permission.requested")
        if event["depth"] == case.depth
    ]
    statuses = [event["data"]["status"] for event in mine if event["type"] == "tool.result"]
    if not statuses or statuses == ["unknown_tool"]:
        return None
    if len(statuses) != len(mine):
        return "ask"
    return "deny" if statuses == ["denied"] else "allow"


@pytest.mark.spec("8.5", "8.1", "8.4", "7.2")
@pytest.mark.parametrize("seed", range(8))
async def test_what_is_explained_is_what_happens(tmp_path: Path, seed: int) -> None:
    rng, looked_at = random.Random(seed), 0
    server = rules_of(rng) if seed else {}
    default = {"default": server.pop("default")} if "default" in server else {}
    async with world(tmp_path, tools=[commands()], permissions=ruled(**server, **default)) as w:
        root = tmp_path / "workspace"
        for name in ("docs/a.md", "vault/k"):
            (root / name).parent.mkdir()
            (root / name).write_text("x")
        (root / "door").symlink_to("vault")
        for _ in range(12):
            case = case_of(rng)
            made, own = agents_of(rng, case.depth), rules_of(rng) if rng.random() < 0.5 else None
            session = await w.session(agent="top", agents=made, surfaces=[case.surface], permissions=own)
            found = await explained(w, session, case.text, *("top", "middle", "low")[: case.depth + 1])
            real = await really(w, session, case)
            looked_at += real is not None
            assert real in (None, found["verdict"]), (seed, case, made, server, default, own, found)
    assert looked_at >= 2
