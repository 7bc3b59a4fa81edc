"""Who holds a place under `max_concurrent` and the limits of session and process: whoever works, and nobody who waits
for children, for a person or for another try."""

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.agent.approvals import Answer, AnswerKind
from app.agent.patience import ModelGates, Patience
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
        if not waiting:
            await asyncio.sleep(0.001)
        else:
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


# ── another try ─────────────────────────────────────────────────────────────────────────────────────────────────────

BUSY = {"code": "model_overloaded", "message": "too many people", "retryable": True}
HOUR_MS = 3_600_000


@pytest.mark.spec("9.8", "5.8")
async def test_a_run_that_waits_for_another_try_leaves_its_places_to_others_and_ends_when_it_is_cancelled(
    tmp_path: Path,
) -> None:
    hours = Patience(retries=4, backoff_ms=HOUR_MS, max_backoff_ms=HOUR_MS)
    async with world(tmp_path, patience=hours, concurrent_runs=1) as w:
        busy = await w.run(task({"calls": [ask(task({"error": BUSY})), ask(task("leaf"))]}, "end"))
        waits = await w.until(busy.session_id, "run.waiting", where=lambda e: e["data"]["reason"] == "retry")
        assert (await w.finished(await w.run(task("another"))))["output"] == "another"
        (trying,) = await w.rows("runs", id=waits["run_id"])
        assert (trying["status"], trying["wait_reason"], w.supervisor.slots.in_use) == ("waiting", "retry", 0)
        await w.sessions.cancel(w.tenant, busy.id)
        assert (await w.row(busy))["status"] == "cancelled"


@pytest.mark.spec("9.8", "5.8")
async def test_a_run_goes_on_with_its_next_try_when_it_has_its_place_again(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools, patience=Patience(backoff_ms=1), concurrent_runs=1) as w:
        first = {"calls": [call("hold", key="mine")]}
        gone = await w.run(task(first, {"error": BUSY, "times": 1, "text": "at last"}))
        await stage.reached("+mine")
        other = await w.run(task({"calls": [call("hold", key="other")]}, "other"))
        stage.open("mine")
        await stage.reached("+other")
        await w.until(gone.session_id, "step.retried")
        assert (await w.row(gone))["status"] == "waiting", "the other one has the place"
        stage.open("other")
        assert [(await w.finished(run))["output"] for run in (gone, other)] == ["at last", "other"]
        kinds = [e["type"] for e in await w.events(gone.session_id, "step.retried", "run.waiting", "run.resumed")]
        assert kinds == ["step.retried", "run.waiting", "run.resumed"]


@pytest.mark.spec("9.8", "5.8", "4.8")
async def test_who_waits_at_the_gate_of_a_model_reserves_nothing_that_who_has_its_place_would_wait_for(
    tmp_path: Path,
) -> None:
    """Each child wants all the tokens that there are, so the second one waits for what the first one gives back."""
    gates = ModelGates()

    async def shut(_arguments: Mapping[str, Any], _context: ToolContext) -> str:
        gates.close("scripted:plan", 50)
        return "shut"

    async with world(tmp_path, tools=[Probe("shut", shut)], gates=gates) as w:
        agents = [w.node(), w.node("greedy", max_tokens=1_000_000)]
        calls = [call("shut"), *(ask(task("leaf"), "greedy") for _ in range(3))]
        run = await w.run(task({"calls": calls}, "end"), agents=agents, budget={"max_concurrent": 1, "tokens": 50_000})
        assert (await w.finished(run))["output"] == "end"
        assert [r["output"] for r in await w.rows("runs", session_id=run.session_id, depth=1)] == ["leaf"] * 3


# ── the limits of the service ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("9.8")
async def test_children_of_one_session_share_its_limit_at_every_depth_and_those_of_another_have_their_own(
    tmp_path: Path,
) -> None:
    stage = Stage()
    holding = [task({"calls": [call("hold", key=key)]}, key) for key in "abc"]
    async with world(tmp_path, tools=stage.tools, concurrent_children=1) as w:
        middle = task({"calls": [ask(child) for child in holding[:2]]}, "middle")
        one = await w.run(task({"calls": [ask(middle)]}, "one"))
        await stage.reached("+a")
        other = await w.run(task({"calls": [ask(holding[2])]}, "other"))
        await stage.reached("+c")
        assert ("+b" in stage.diary, w.supervisor.queued, w.supervisor.slots.in_use) == (False, 1, 2)
        stage.open("a", "b", "c")
        assert [(await w.finished(run))["output"] for run in (one, other)] == ["one", "other"]
        assert await most_at_work(w, one.session_id) == 1


@pytest.mark.spec("9.8", "5.7")
@pytest.mark.parametrize("limits", [{"concurrent_runs": 1}, {"concurrent_children": 1}], ids=["runs", "children"])
async def test_a_tree_with_queued_children_is_cancelled_at_once_and_no_place_is_lost(
    tmp_path: Path, limits: dict[str, int]
) -> None:
    stage = Stage()
    children = [ask(task({"calls": [call("hold", key=f"{at}")]}, "x")) for at in range(3)]
    async with world(tmp_path, tools=stage.tools, **limits) as w:
        session = await w.session()
        run = await w.turn(session, task({"calls": children}, "end"))
        await stage.reached("+0")
        await w.sessions.cancel(w.tenant, run.id)
        rows = await w.rows("runs", session_id=session)
        assert [(r["status"], r["started_at"] is None) for r in sorted(rows, key=lambda r: int(r["ordinal"]))] == [
            ("cancelled", False), ("cancelled", False), ("cancelled", True), ("cancelled", True),
        ]  # fmt: skip
        again = await w.finished(await w.turn(session, task({"calls": [ask(task("leaf"))]}, "again")))
        assert again["output"] == "again"


@pytest.mark.spec("9.8", "4.4")
async def test_the_clocks_of_a_run_begin_when_it_has_its_place(tmp_path: Path) -> None:
    stage = Stage()
    async with world(tmp_path, tools=stage.tools, concurrent_runs=1) as w:
        first = await w.run(task({"calls": [call("hold", key="first")]}, "first"))
        await stage.reached("+first")
        second = await w.run(task("second"), limits={"deadline_ms": 1000})
        assert (await w.row(second, 1.1))["status"] == "queued", "it is asked for longer than its deadline"
        stage.open("first")
        row = await w.finished(second)
        assert (row["output"], row["stop_reason"]) == ("second", "answer")
        assert (await w.finished(first))["output"] == "first"
