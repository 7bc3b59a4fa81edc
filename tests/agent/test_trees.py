"""Random trees of agents: whatever nests in whatever, the log tells the truth about it and the sums are right."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.agent.messages import Usage
from tests.plan import ask, call, raw_call, task
from tests.stubs.openai_stub import OpenAIStub, Request, calls, refusal, text
from tests.world import World, world

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
@settings(max_examples=40, deadline=None)
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
