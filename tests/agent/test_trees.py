"""Random trees of agents: whatever nests in whatever, the log tells the truth about it and the sums are right."""

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.agent.chat import Prices
from app.agent.messages import Usage
from app.llm.profile import Profile
from tests.longer import examples, times
from tests.plan import ask, call, raw_call, task
from tests.stubs.openai_stub import OpenAIStub, Request, calls, refusal, text
from tests.world import World, world

pytestmark = pytest.mark.slow

TOKENS = st.integers(0, 10_000)
USAGE = st.none() | st.fixed_dictionaries(
    {"input_tokens": TOKENS, "output_tokens": TOKENS, "cached_tokens": TOKENS, "reasoning_tokens": TOKENS}
)
LEAVES = st.sampled_from([call("glob", pattern="*"), call("nothing"), raw_call("read_file", "{bad"), ask("", "nobody")])


@st.composite
def plans(draw: st.DrawFn, depth: int) -> str:
    """The task of an agent with up to `depth` levels below it."""
    parts = st.one_of(LEAVES, plans(depth - 1).map(ask)) if depth else LEAVES
    turns: list[dict[str, Any]] = [
        {"calls": draw(st.lists(parts, max_size=3)), "usage": draw(USAGE), "text": "t"}
        for _ in range(draw(st.integers(1, 2)))
    ]
    turns[-1]["calls"] = draw(st.lists(parts, max_size=1)) if draw(st.booleans()) else []
    last: dict[str, Any] = {"text": "end", "usage": draw(USAGE)}
    if draw(st.integers(0, 5)) == 0:
        last["error"] = {"code": "quota", "message": "no quota"}
    return task(*turns, last)


async def total(w: World, session_id: str) -> Usage:
    """What the runs of a session used, each counted once."""
    rows = await w.rows("runs", session_id=session_id)
    return sum((Usage.from_dict(row["usage"]) for row in rows), Usage())


@given(plans(3), st.sampled_from(["dispatch", "per_agent"]), st.sampled_from(["report", "fail", None]), st.booleans())
@settings(max_examples=examples(40), deadline=None)
@pytest.mark.spec("13.4", "4.5", "4.6", "6.6", "11.6", "14.4")
@pytest.mark.case("B192")
async def test_the_usage_of_a_tree_is_the_sum_of_its_runs(
    tmp_path_factory: pytest.TempPathFactory, plan: str, surface: str, on_error: str | None, parallel: bool
) -> None:
    if surface == "per_agent":
        plan = plan.replace('\\"dispatch_subagent\\"', '\\"subagent_node\\"').replace(
            '"dispatch_subagent"', '"subagent_node"'
        )
    async with world(tmp_path_factory.mktemp("tree")) as w:
        policy = {"max_depth": 3, **({"on_error": on_error} if on_error else {})}
        run = await w.run(plan, surfaces=[surface], policy=policy, parallel_tool_calls=parallel)
        row = await w.finished(run)
        assert row["usage_total"] == (await total(w, row["session_id"])).as_dict()
        tree = await w.sessions.tree(w.tenant, row["session_id"])
        assert tree["usage_total"] == row["usage_total"]
        assert tree["runs"][0]["usage_total"] == row["usage_total"]
        depths = [r["depth"] for r in await w.rows("runs", session_id=row["session_id"])]
        paths = [tuple(r["path"]) for r in await w.rows("runs", session_id=row["session_id"])]
        assert depths == [len(path) - 1 for path in paths]
        assert max(depths) <= 3


# ── money, retries, failures and cancellations ──────────────────────────────────────────────────────────────────────

PRICES = {
    "dollar": Prices(input=1_234_567, output=7_654_321, cached=123_457),
    "euro": Prices(input=3, output=999_999, currency="EUR"),  # parts of a micro-unit: rounding shows
    "free": Prices(input=0, output=0, currency="CNY"),
}
PROFILES = {
    name: Profile(
        name=name, provider="scripted", model="plan", input_price=prices.input, output_price=prices.output,
        cached_price=prices.cached, currency=prices.currency,
    )
    for name, prices in PRICES.items()
}  # fmt: skip
MODELS = {"node": "dollar", "euro": "euro", "free": "free", "bare": "scripted:plan"}
PASSING = {"code": "overloaded", "message": "too busy", "retryable": True}


@st.composite
def costly_plans(draw: st.DrawFn, depth: int) -> str:
    """The task of an agent with up to `depth` levels below it, which may fail for good or for once at every turn."""

    def turn(**given: Any) -> dict[str, Any]:
        found = {"text": "some words", "chunks": draw(st.integers(1, 5)), "usage": draw(USAGE), **given}
        fault = draw(st.sampled_from([None] * 6 + ["once", "always", "quota"]))
        if fault is not None:
            found["error"] = {"code": "quota", "message": "no quota"} if fault == "quota" else PASSING
            found["times"] = 1 if fault == "once" else 0
        return found

    parts = st.just(call("glob", pattern="*"))
    if depth:
        child = st.tuples(costly_plans(depth - 1), st.sampled_from(list(MODELS)))
        parts = st.one_of(parts, child.map(lambda pair: ask(*pair)))
    turns = [turn(calls=draw(st.lists(parts, min_size=1, max_size=3))) for _ in range(draw(st.integers(1, 2)))]
    return task(*turns, turn(text="end"))


def paid(cost: Mapping[str, int]) -> dict[str, int]:
    """The currencies in which something was paid."""
    return {currency: money for currency, money in cost.items() if money}


async def cost_of_steps(w: World, row: dict[str, Any]) -> dict[str, int]:
    """What a run's steps cost by the prices of its model, one by one."""
    prices, cost = PRICES.get(row["model"]), dict[str, int]()
    for event in await w.events(row["session_id"], "step.completed"):
        if event["run_id"] == row["id"] and prices is not None:
            used = event["data"]["usage"]
            money = prices.cost(used["input_tokens"], used["output_tokens"], used["cached_tokens"])
            cost[prices.currency] = cost.get(prices.currency, 0) + money
    return paid(cost)


async def check_sums(w: World, session_id: str, requests: int) -> None:
    """Own and inclusive usage of every run, of the tree and of the requests agree to the last token and micro-unit."""
    rows = await w.rows("runs", session_id=session_id)
    inclusive = {row["id"]: Usage.from_dict(row["usage_total"]) for row in rows}
    for row in rows:
        own, known = Usage.from_dict(row["usage"]), await cost_of_steps(w, row)
        below = [inclusive[child["id"]] for child in rows if child["parent_id"] == row["id"]]
        assert inclusive[row["id"]].as_dict() == sum(below, own).as_dict(), row["path"]
        if row["status"] == "completed":
            assert paid(own.cost) == known, row["path"]
        else:  # a step that was broken off while its tools ran is paid as well
            assert all(own.cost[currency] >= money for currency, money in known.items()), row["path"]
    everything = await total(w, session_id)
    assert inclusive[rows[0]["id"]].as_dict() == everything.as_dict()
    assert everything.model_calls == requests, "every request was counted, also those that failed"
    tree = await w.sessions.tree(w.tenant, session_id)
    assert tree["usage_total"] == tree["runs"][0]["usage_total"] == everything.as_dict()


@given(plan=costly_plans(2), retries=st.integers(0, 2), seed=st.integers(0, 2**32), cancels=st.integers(0, 3))
@settings(max_examples=times(10, 60), deadline=None)
@pytest.mark.spec("13.4", "4.7", "5.7", "14.4")
@pytest.mark.case("B192")
async def test_cost_and_tokens_add_up_whatever_is_tried_again_fails_or_is_cancelled(
    tmp_path_factory: pytest.TempPathFactory, plan: str, retries: int, seed: int, cancels: int
) -> None:
    chance = random.Random(seed)
    async with world(tmp_path_factory.mktemp("tree"), profiles=PROFILES, model="dollar") as w:
        agents = [w.node(name, **({} if name == "node" else {"model": model})) for name, model in MODELS.items()]
        policy = {"max_depth": 2, "max_retries": retries, "on_error": chance.choice(["report", "fail"])}
        session = await w.session(agents=agents, policy=policy)
        run = await w.turn(session, plan)
        for _ in range(cancels):
            for _ in range(chance.randrange(40)):
                await asyncio.sleep(0)
            rows = await w.rows("runs", session_id=session)
            await w.supervisor.cancel(chance.choice(rows)["id"])
        row = await w.finished(run)
        assert row["status"] in ("completed", "failed", "cancelled"), row
        await check_sums(w, session, len(w.requests))


@pytest.mark.spec("13.4", "5.7")
@pytest.mark.case("B192")
async def test_what_failed_and_cancelled_children_used_is_counted(tmp_path: Path) -> None:
    def decide(request: Request) -> Any:
        said = request.messages
        if said[1]["content"] == "go":
            order = '{"agent_type": "node", "task": "%s"}'
            both = (("dispatch_subagent", order % "fails"), ("dispatch_subagent", order % "works"))
            return calls(*both, usage=(100, 1)) if said[-1]["role"] == "user" else text("end", usage=(200, 2))
        if said[-1]["role"] == "user":
            return calls(("glob", '{"pattern": "*"}'), usage=(1000, 10))
        return refusal(400, {"message": "no"}) if said[1]["content"] == "fails" else text("ok", usage=(5000, 50))

    async with OpenAIStub() as stub, world(tmp_path, base_url=stub.base_url) as w:
        stub.decide(decide)
        row = await w.finished(await w.run("go"))
        assert row["status"] == "completed"
        assert (row["usage"]["input_tokens"], row["usage_total"]["input_tokens"]) == (300, 300 + 1000 + 1000 + 5000)
        assert row["usage_total"]["output_tokens"] == 3 + 10 + 10 + 50


@pytest.mark.spec("2.1", "2.2")
async def test_nothing_of_the_parent_reaches_a_child_and_only_the_result_comes_back(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        child = task({"text": "my secret thought", "calls": [call("glob", pattern="*")]}, "only this")
        await w.finished(await w.run(task({"text": "parent talk", "calls": [ask(child)]}, "end")))
        parent_first, child_first, child_second, parent_last = w.requests
        assert [m.content for m in child_first.messages] == ["You are node.", child]
        assert "parent talk" not in str([m.content for m in child_second.messages])
        assert [m.content for m in parent_last.messages[len(parent_first.messages) :]] == ["parent talk", "only this"]
        assert "secret thought" not in str(parent_last.messages[-1])
