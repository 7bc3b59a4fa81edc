"""Who holds a place under `max_concurrent`: whoever works, and nobody who waits for children or for a person."""

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.agent.approvals import Answer, AnswerKind
from app.agent.tools import ToolContext
from tests.agent.guarded import COMMAND, commands, give, questions, ruled
from tests.agent.probes import Probe, Stage
from tests.agent.test_spending import most_at_work
from tests.plan import ask, call, task
from tests.world import WAIT_S, World, world

ASK_ALL = ruled(ask=["Bash"])


@pytest.mark.spec("4.8", "5.5", "9.8")
async def test_a_child_that_is_to_answer_while_it_waits_for_its_own_needs_a_place_for_that(tmp_path: Path) -> None:
    stage = Stage()
    leaf = task({"calls": [call("hold", key="leaf")]}, "leaf")
    short = task({"calls": [ask(leaf)]}, "never", final="forced")
    sibling = task({"calls": [call("hold", key="sibling")]}, "sibling")
    async with world(tmp_path, tools=stage.tools) as w:
        agents = [w.node(), w.node("short", budget={"wall_ms": 1500})]
        run = await w.run(
            task({"calls": [ask(short, "short"), ask(sibling)]}, "end"), agents=agents, budget={"max_concurrent": 1}
        )
        await stage.reached("+sibling")
        stage.open("sibling")
        row = await w.finished(run)
        assert row["output"] == "end"
        assert await most_at_work(w, run.session_id) == 1


@pytest.mark.spec("4.8", "5.2", "9.8")
async def test_an_ordinary_tool_beside_a_delegation_runs_with_a_place(tmp_path: Path) -> None:
    """`solo` is a barrier, so it runs before or after the delegation of its turn, never beside it."""
    stage = Stage()
    first = task({"calls": [call("solo", key="a"), ask(task("leaf"))]}, "one")
    second = task({"calls": [call("solo", key="b"), ask(task("leaf"))]}, "two")
    async with world(tmp_path, tools=stage.tools) as w:
        run = await w.run(task({"calls": [ask(first), ask(second)]}, "end"), budget={"max_concurrent": 1})
        await stage.reached("+a")
        assert "+b" not in stage.diary
        stage.open("a", "b")
        row = await w.finished(run)
        assert row["output"] == "end"
        assert stage.diary == ["+a", "-a", "+b", "-b"]


@pytest.mark.spec("4.8", "2.5")
async def test_a_delegation_that_the_budget_refuses_pays_for_no_summary(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        heir = w.node("heir", inherit_context="summary")
        plan = task({"calls": [ask(task("first"), "heir")]}, {"calls": [ask(task("second"), "heir")]}, "end")
        row = await w.finished(await w.run(plan, agents=[w.node(), heir], budget={"delegations": 1}))
        assert (row["status"], row["output"]) == ("completed", "end")
        assert len(w.requests) == 3 + 1 + 1, "three steps, one summary, one child"


# ── persons ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def run_command(*lines: str) -> dict[str, Any]:
    """A turn with these calls."""
    return {"calls": [call("run_command", command=line) for line in lines]}


@pytest.mark.spec("9.8", "8.2", "4.8")
async def test_a_run_that_waits_for_a_person_leaves_its_place_to_others_and_goes_on_when_it_has_it_again(
    tmp_path: Path,
) -> None:
    stage, tool = Stage(), commands()
    other = task({"calls": [call("hold", key="other")]}, "other")
    async with world(tmp_path, tools=[*stage.tools, tool], permissions=ASK_ALL) as w:
        plan = task({"calls": [ask(task(run_command("ls"), "asked")), ask(other)]}, "end")
        run = await w.run(plan, budget={"max_concurrent": 1})
        (question,) = await questions(w, run.session_id, 1)
        await stage.reached("+other")
        await give(w, question["approval_id"])
        (asking,) = [row for row in await w.rows("runs", depth=1) if row["wait_reason"] == "approval"]
        assert (asking["status"], tool.arguments) == ("waiting", []), "the other one has the place"
        stage.open("other")
        assert (await w.finished(run))["output"] == "end"
        assert tool.arguments == [{"command": "ls"}]
        order = [e["type"] for e in await w.events(run.session_id) if e.get("run_id") == asking["id"]]
        assert order.count("run.waiting") == order.count("run.resumed") == 1
        assert order.index("permission.resolved") < order.index("run.resumed") < order.index("tool.start")


@pytest.mark.spec("9.8", "8.2", "4.8")
async def test_a_run_some_of_whose_calls_work_keeps_its_place_while_others_of_them_are_asked_about(
    tmp_path: Path,
) -> None:
    stage = Stage()
    both = {"calls": [call("hold", key="mine"), call("run_command", command="ls")]}
    other = task({"calls": [call("hold", key="other")]}, "other")
    async with world(tmp_path, tools=[*stage.tools, commands()], permissions=ASK_ALL) as w:
        run = await w.run(task({"calls": [ask(task(both, "one")), ask(other)]}, "end"), budget={"max_concurrent": 1})
        (question,) = await questions(w, run.session_id, 1)
        await stage.reached("+mine")
        assert "+other" not in stage.diary
        stage.open("mine")
        await stage.reached("+other")
        stage.open("other")
        await give(w, question["approval_id"])
        assert (await w.finished(run))["output"] == "end"


@pytest.mark.spec("9.8", "8.2", "4.8")
@pytest.mark.parametrize("kind", [AnswerKind.ALLOW_ONCE, AnswerKind.DENY])
async def test_whether_to_delegate_may_be_asked_under_a_limit_of_one_at_every_depth(
    tmp_path: Path, kind: AnswerKind
) -> None:
    plan = task("leaf")
    for _ in range(3):
        plan = task({"calls": [ask(plan)]}, "up")
    async with world(tmp_path, permissions=ruled(ask=["Agent"])) as w:
        run = await w.run(plan, budget={"max_concurrent": 1})
        for count in range(1, 4 if kind is AnswerKind.ALLOW_ONCE else 2):
            await give(w, (await questions(w, run.session_id, count))[-1]["approval_id"], kind)
        assert (await w.finished(run))["output"] == "up"


@pytest.mark.spec("9.8", "8.2", "5.7")
async def test_cancelling_a_run_that_waits_for_its_place_after_an_answer_frees_what_it_had(tmp_path: Path) -> None:
    stage, tool = Stage(), commands()
    other = task({"calls": [call("hold", key="other")]}, "other")
    async with world(tmp_path, tools=[*stage.tools, tool], permissions=ASK_ALL) as w:
        session = await w.session(budget={"max_concurrent": 1})
        run = await w.turn(session, task({"calls": [ask(task(run_command("ls"), "asked")), ask(other)]}, "end"))
        (question,) = await questions(w, session, 1)
        await stage.reached("+other")
        await give(w, question["approval_id"])
        (asking,) = [row for row in await w.rows("runs", depth=1) if row["wait_reason"] == "approval"]
        await w.sessions.cancel(w.tenant, asking["id"])
        assert (await w.row(asking["id"]))["status"] == "cancelled"
        stage.open("other")
        assert ((await w.finished(run))["output"], tool.arguments) == ("end", [])
        again = await w.finished(await w.turn(session, task({"calls": [ask(task("leaf"))]}, "again")))
        assert again["output"] == "again"


class AtWork:
    """A `run_command` that takes some turns of the event loop, and how many runs were inside of it at a time."""

    def __init__(self) -> None:
        self.tool = Probe("run_command", self._body, COMMAND, concurrency_safe=True)
        self.most = 0
        self._inside: list[str] = []

    async def _body(self, arguments: Mapping[str, Any], context: ToolContext) -> str:
        if context.run.depth:
            self._inside.append(context.run.id)
        self.most = max(self.most, len(set(self._inside)))
        for _ in range(len(arguments["command"])):
            await asyncio.sleep(0)
        if context.run.depth:
            self._inside.remove(context.run.id)
        return "ran"


def forest(chance: random.Random, depth: int) -> str:
    """A tree of that depth in which everybody asks several things at once, delegates, and asks again."""

    def own() -> dict[str, Any]:
        return run_command(*("x" * chance.randrange(1, 6) + str(at) for at in range(chance.randrange(1, 4))))

    if not depth:
        return task(own(), "leaf")
    below = {"calls": [ask(forest(chance, depth - 1)) for _ in range(chance.randrange(1, 3))]}
    return task(own(), below, own(), "up")


async def answered(w: World, session_id: str, chance: random.Random) -> None:
    """A person who answers everything, in any order and at any time."""
    while True:
        for _ in range(chance.randrange(12)):
            await asyncio.sleep(0)
        waiting = w.asking.approvals.pending(w.tenant, session_id)
        if waiting:
            kind = chance.choice([AnswerKind.ALLOW_ONCE, AnswerKind.ALLOW_ONCE, AnswerKind.DENY])
            w.asking.approvals.answer(w.tenant, chance.choice(waiting).id, Answer(kind=kind))


@pytest.mark.spec("9.8", "8.2", "4.8")
@pytest.mark.parametrize("limit", [1, 2])
async def test_trees_whose_runs_ask_side_by_side_at_every_depth_stay_under_the_limit_and_get_to_their_end(
    tmp_path: Path, limit: int
) -> None:
    at_work = AtWork()
    async with world(tmp_path, tools=[at_work.tool], permissions=ASK_ALL) as w:
        for seed in range(12):
            chance = random.Random(seed)
            session = await w.session(budget={"max_concurrent": limit}, policy={"max_depth": 3})
            run = await w.turn(session, forest(chance, 3))
            person = asyncio.create_task(answered(w, session, chance))
            try:
                async with asyncio.timeout(3 * WAIT_S):
                    assert (await w.supervisor.wait(run.id)).output == "up", f"seed {seed}"
            finally:
                person.cancel()
        assert at_work.most == limit
