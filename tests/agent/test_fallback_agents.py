"""Another agent or another model in place of a denied or failed child: admission, budget, filters, and no end of it."""

from pathlib import Path
from typing import Any

import pytest

from app.agent.filters import CUT_NOTE
from tests.agent.handoff_events import kinds, told
from tests.agent.test_fallbacks import FAILING, SURFACES, TWO_WAYS, call_of, end_of, policy_of
from tests.plan import ask, task
from tests.world import world

# ── another agent ───────────────────────────────────────────────────────────────────────────────────────────────


@TWO_WAYS
@SURFACES
@pytest.mark.spec("4.1", "4.6")
@pytest.mark.seed("000", 41)
async def test_another_agent_gets_the_same_task_under_the_same_handoff_and_name(
    tmp_path: Path, surface: str, way: str
) -> None:
    async with world(tmp_path, script=HELPER) as w:
        agents = [w.node(), w.node("helper", max_steps=2)]
        policy = policy_of(way, {"agent": "helper"}, max_retries=1)
        row = await w.finished(await w.run("go " + surface, agents=agents, surfaces=[surface], policy=policy))
        assert row["output"] == "end", row
        end = await end_of(w, row)
        attempts = 0 if way == "denied" else 1
        assert (end["status"], end["output"], end["attempts"]) == ("fallback", "helped with: the work", attempts)
        assert (end["fallback"], end["subagent"]) == ({"kind": "agent", "target": "helper"}, "node")
        assert end["error"]["code"] == ("handoff_denied" if way == "denied" else "quota")
        runs = sorted(await w.rows("runs", session_id=row["session_id"], depth=1), key=lambda r: int(r["ordinal"]))
        assert [(r["agent"], r["status"]) for r in runs] == [("node", "failed")] * attempts + [("helper", "completed")]
        assert end["run_ids"] == [r["id"] for r in runs]
        assert {(r["handoff_id"], r["name"]) for r in runs} == {(end["handoff_id"], end["name"])}
        assert row["usage_total"]["model_calls"] == 2 + len(runs)


CALLS = {
    "dispatch": "{tool: dispatch_subagent, arguments: {agent_type: node, task: the work}}",
    "per_agent": "{tool: subagent_node, arguments: {task: the work}}",
    "task": "{tool: execute_task, arguments: {name: node, description: three short words, prompt: the work}}",
    "subagent": "{tool: subagent, arguments: {research_prompt: the work}}",
}
HELPER = (
    "agents:\n"
    + "".join(
        f"""  - when: {{task_contains: "go {surface}"}}
    turns: [{{calls: [{made}]}}, {{text: end}}]
"""
        for surface, made in CALLS.items()
    )
    + """  - when: {system_contains: "You are helper"}
    turns: [{text: "helped with: {{ task }}"}]
  - when: {system_contains: "You are node"}
    turns: [{error: {code: quota, message: no quota left}}]
"""
)


@TWO_WAYS
@pytest.mark.spec("4.1", "4.2")
@pytest.mark.parametrize(
    ("surface", "fields", "why"),
    [
        ("dispatch", {"denied_tools": ["dispatch_subagent(node)", "dispatch_subagent(helper)"]}, "denied_tools"),
        ("dispatch", {"allowed_tools": ["dispatch_subagent(node)"]}, "allowed_tools"),
        ("per_agent", {"denied_tools": ["subagent_node", "subagent_helper"]}, "denied_tools"),
        ("per_agent", {"allowed_tools": ["subagent_node"]}, "allowed_tools"),
        ("dispatch", {"max_depth": 0}, "max_depth 0"),
    ],
)
async def test_admission_holds_for_the_agent_that_stands_in(
    tmp_path: Path, surface: str, fields: dict[str, Any], why: str, way: str
) -> None:
    if way == "failed":
        fields = {**fields, "max_depth": 1}
        fields["denied_tools"] = [name for name in fields.get("denied_tools", []) if "node" not in name]
        if why == "max_depth 0":
            fields["denied_tools"], why = ["dispatch_subagent(helper)"], "denied_tools"
    else:
        fields = (
            {**fields, "allowed_tools": [e for e in fields["allowed_tools"] if "node" not in e]}
            if "allowed_tools" in fields
            else fields
        )
    async with world(tmp_path) as w:
        reaction = {"agent": "helper"}
        policy = {"on_denied": reaction, "on_error": reaction, **fields}
        agents = [w.node(), w.node("helper")]
        plan = task({"calls": [call_of(surface)]}, "end")
        row = await w.finished(await w.run(plan, agents=agents, surfaces=[surface], policy=policy))
        end = await end_of(w, row)
        assert (end["status"], end.get("fallback")) == (way, None)
        assert "the fallback agent 'helper' is not allowed: " in end["error"]["message"]
        assert why in end["error"]["message"].partition("helper")[2]
        assert await w.rows("runs", agent="helper") == []


@pytest.mark.spec("4.1", "14.1")
@pytest.mark.parametrize(
    ("name", "why"),
    [("nobody", "does not exist"), ("boss", "the session may delegate to"), ("scout", "the session may delegate to")],
)
@pytest.mark.parametrize(("surface", "status"), [("dispatch", "completed"), ("per_agent", "failed")])
async def test_an_agent_that_is_unknown_or_outside_the_session_does_not_stand_in(
    tmp_path: Path, name: str, why: str, surface: str, status: str
) -> None:
    async with world(tmp_path) as w:
        lead = w.node("lead", handoff={"on_error": {"agent": name}})
        agents = [lead, w.node(), w.node("boss", mode="primary")]
        plan = task({"calls": [call_of(surface)]}, "end")
        row = await w.finished(await w.run(plan, agent="lead", agents=agents, surfaces=[surface], policy={}))
        assert row["status"] == status, "as the surface does by default"
        end = await end_of(w, row)
        assert (end["status"], end.get("fallback")) == ("failed", None)
        assert end["error"]["code"] == "quota"
        assert "no quota left" in end["error"]["message"]
        assert f"the fallback agent '{name}'" in end["error"]["message"]
        assert why in end["error"]["message"]
        assert [r["agent"] for r in await w.rows("runs", depth=1)] == ["node"]


@pytest.mark.spec("4.1", "14.1")
async def test_an_agent_that_only_the_policy_of_the_session_names_may_stand_in(tmp_path: Path) -> None:
    async with world(tmp_path, script=HELPER) as w:
        row = await w.finished(await w.run("go dispatch", policy={"on_error": {"agent": "scout"}}))
        end = await end_of(w, row)
        assert [r["agent"] for r in await w.rows("runs", depth=1)] == ["node", "scout"]
        assert end["fallback"] == {"kind": "agent", "target": "scout"}


@pytest.mark.spec("4.1")
@pytest.mark.parametrize(("surface", "status"), [("dispatch", "completed"), ("per_agent", "failed")])
async def test_a_fallback_has_no_fallback_and_both_causes_are_told(tmp_path: Path, surface: str, status: str) -> None:
    async with world(tmp_path, script=BOTH_FAIL) as w:
        agents = [w.node(), w.node("helper", handoff={"on_error": {"agent": "node"}})]
        policy = {"on_error": {"agent": "helper"}, "max_retries": 1}
        row = await w.finished(await w.run(f"go {surface}", agents=agents, surfaces=[surface], policy=policy))
        assert row["status"] == status
        end = await end_of(w, row)
        assert (end["status"], end["attempts"]) == ("failed", 2)
        assert end["fallback"] == {"kind": "agent", "target": "helper"}
        runs = sorted(await w.rows("runs", depth=1), key=lambda r: int(r["ordinal"]))
        assert [r["agent"] for r in runs] == ["node", "node", "helper"], "and it is tried once"
        (result,) = await told(w, row["session_id"])
        for text in ("node is busy", "helper", "helper is busy"):
            assert text in result["content"]
        assert await kinds(w, row["session_id"]) == ["start", "failed"]


BOTH_FAIL = (
    HELPER.split('  - when: {system_contains: "You are helper"}')[0]
    + """
  - when: {system_contains: "You are helper"}
    turns: [{error: {code: model_overloaded, message: helper is busy, retryable: true}}]
  - when: {system_contains: "You are node"}
    turns: [{error: {code: model_overloaded, message: node is busy, retryable: true}}]
"""
)


@pytest.mark.spec("4.1", "4.8")
@TWO_WAYS
async def test_a_handoff_with_a_fallback_is_one_delegation_of_the_budget(tmp_path: Path, way: str) -> None:
    async with world(tmp_path, script=HELPER) as w:
        agents = [w.node(), w.node("helper")]
        policy = policy_of(way, {"agent": "helper"})
        session = await w.session(agents=agents, surfaces=["dispatch"], policy=policy, budget={"delegations": 1})
        row = await w.finished(await w.turn(session, "go dispatch"))
        assert (await end_of(w, row))["status"] == "fallback"
        row = await w.finished(await w.turn(session, "go dispatch"))
        (end,) = [e["data"] for e in (await w.events(session, "handoff.end"))[1:]]
        assert end["status"] == way
        assert "delegations 1" in end["error"]["message"]
        assert len(await w.rows("runs", agent="helper")) == 1


@pytest.mark.spec("4.1", "4.8")
async def test_a_fixed_answer_also_stands_in_when_the_budget_has_no_room(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        plan = task({"calls": [ask(task("one"))]}, {"calls": [ask(task("two"))]}, "end")
        policy = {"on_error": {"answer": "later"}}
        row = await w.finished(await w.run(plan, policy=policy, budget={"delegations": 1}))
        assert [result["content"] for result in await told(w, row["session_id"])] == ["one", "later"]
        assert await kinds(w, row["session_id"]) == ["start", "completed", "start", "fallback"]


@pytest.mark.spec("2.5", "4.1", "4.2")
@TWO_WAYS
async def test_the_agent_that_stands_in_gets_the_filtered_input_and_inherits_what_its_own_definition_says(
    tmp_path: Path, way: str
) -> None:
    async with world(tmp_path, script=INHERITING) as w:
        agents = [w.node(inherit_context="last:9"), w.node("helper")]
        filters = [{"cut_context": 3}, {"inject": {"region": "EU"}}]
        policy = policy_of(way, {"agent": "helper"}, input_filter=filters)
        row = await w.finished(await w.run("go inherit", agents=agents, surfaces=["per_agent"], policy=policy))
        assert row["output"] == "end"
        asked = await w.rows("messages", role="user", depth=1)
        texts = {message["agent"]: message["content"] for message in asked}
        assert texts["helper"] == f"the work\n\nContext:\nlon{CUT_NOTE}\n\nregion: EU"
        assert "node" not in texts if way == "denied" else texts["node"].endswith(f"region: EU\n\nCon{CUT_NOTE}")


INHERITING = """agents:
  - when: {task_contains: "go inherit"}
    turns:
      - text: what the caller said
        calls: [{tool: subagent_node, arguments: {task: the work, context: long and longer}}]
      - {text: end}
""" + HELPER.removeprefix("agents:\n")


# ── another model ───────────────────────────────────────────────────────────────────────────────────────────────


@SURFACES
@pytest.mark.spec("4.1", "13.3")
@pytest.mark.case("B194")
async def test_another_model_answers_for_the_same_agent_only_when_the_policy_names_one_and_that_is_in_the_log(
    tmp_path: Path, surface: str
) -> None:
    async with world(tmp_path, script=HELPER) as w:
        (w.folder / "scripts" / "spare.yaml").write_text('agents: [{turns: [{text: "spare: {{ task }}"}]}]\n')
        for policy, status in (({}, "failed"), ({"on_error": {"model": "scripted:spare"}}, "fallback")):
            row = await w.finished(
                await w.run(f"go {surface}", surfaces=[surface], policy={"on_error": "report", **policy})
            )
            assert row["output"] == "end"
            end = await end_of(w, row)
            assert end["status"] == status
            runs = sorted(await w.rows("runs", session_id=row["session_id"], depth=1), key=lambda r: int(r["ordinal"]))
            started = await w.events(row["session_id"], "run.started")
            models = [e["data"]["model"] for e in started if e["depth"] == 1]
            if status == "failed":
                assert models == ["scripted:play"], "the same model, and nobody else's"
                continue
            assert models == ["scripted:play", "scripted:spare"]
            assert [r["agent"] for r in runs] == ["node", "node"]
            assert (end["output"], end["attempts"]) == ("spare: the work", 1)
            assert end["fallback"] == {"kind": "model", "target": "scripted:spare"}


@pytest.mark.spec("4.1", "13.3")
async def test_a_model_that_does_not_exist_is_told_and_not_a_fault(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        # one that only a subagent's own policy names; any other is refused when the session is made
        agents = [w.node(), w.node("middle", handoff={"on_error": {"model": "nowhere:x"}})]
        plan = task({"calls": [ask(task({"calls": [ask(FAILING)]}, "middle"), "middle")]}, "end")
        row = await w.finished(await w.run(plan, agents=agents))
        assert row["output"] == "end"
        end = next(e["data"] for e in await w.events(row["session_id"], "handoff.end") if e["data"]["depth"] == 2)
        assert end["status"] == "failed"
        assert "no quota left" in end["error"]["message"]
        assert "nowhere" in end["error"]["message"]
        assert end["error"]["code"] != "internal_error"
