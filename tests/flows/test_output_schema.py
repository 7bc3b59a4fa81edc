"""Answers that must be JSON of a given form: valid, fenced, corrected once, or a clear failure; on every way in."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app.agent.messages import Role
from app.agent.texts import DEFAULT
from app.client import ServiceError
from tests.agent.handoff_events import told
from tests.plan import ask, task
from tests.service import WAIT_S, agent, finished, serving
from tests.world import World, world

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
WRITTEN = '{"properties":{"n":{"type":"integer"}},"required":["n"],"type":"object"}'
INVALID = DEFAULT.output_invalid.partition("{")[0]
# An agent is named after what it answers first and what it answers when that comes back; `looping…` ones call tools
# as long as they can, so that their answers are forced.
SCRIPT = """
from app.agent.texts import DEFAULT
from tests import plan

FENCE = "`" * 3
SAYS = {
    "right": '{"n": 1}', "fenced": FENCE + 'json\\n{"n": 1}\\n' + FENCE, "wrong": '{"n": "one"}', "prose": "It is 1.",
    "list": "[1, 2]", "text": '"one"', "empty": "",
}
INVALID = DEFAULT.output_invalid.partition("{")[0]

def reply(request):
    system = request.messages[0].content.removeprefix("You are ").rstrip(".")
    kinds = [kind for kind in system.split("-") if kind in SAYS]
    if not kinds:
        return plan.reply(request)
    if system.startswith("looping") and request.tools:
        return {"calls": [{"tool": "glob", "arguments": {"pattern": f"{len(request.messages)}"}}]}
    plan.SEEN.append(request)
    back = sum(message.content.startswith(INVALID) for message in request.messages)
    return {"text": SAYS[kinds[min(back, len(kinds) - 1)]]}
"""
ENDINGS = pytest.mark.parametrize(
    ("name", "output", "answers"),
    [
        ("right", '{"n": 1}', 1),
        ("fenced", '{"n": 1}', 1),
        ("wrong-right", '{"n": 1}', 2),
        ("prose-fenced", '{"n": 1}', 2),
        ("empty-right", '{"n": 1}', 2),
        ("wrong-prose", None, 2),
        ("prose", None, 2),
        ("looping-right", '{"n": 1}', 1),
        ("looping-fenced", '{"n": 1}', 1),
        ("looping-wrong-right", '{"n": 1}', 2),
        ("looping-prose", None, 2),
        ("looping-empty", None, 2),
    ],
)


def scripted(folder: Path) -> None:
    (folder / "scripts").mkdir(exist_ok=True)
    (folder / "scripts" / "forms.py").write_text(SCRIPT)


def roles(w: World) -> list[str]:
    return [message.role.value for message in w.requests[-1].messages]


@ENDINGS
@pytest.mark.spec("5.5", "5.6")
async def test_a_run_s_answer_is_checked_and_goes_back_to_the_model_once(
    tmp_path: Path, name: str, output: str | None, answers: int
) -> None:
    async with world(tmp_path, model="scripted:forms") as w:
        scripted(tmp_path)
        run = await w.run("Do.", agent=name, agents=[w.node(name)], limits={"output_schema": SCHEMA, "max_steps": 4})
        row = await w.finished(run)
        assert len(w.requests) == answers
        if output is None:
            assert (row["status"], row["error"]["code"]) == ("failed", "output_invalid")
            assert row["stop_reason"] == "error"
        else:
            assert (row["status"], row["output"]) == ("completed", output)
        assert row["forced"] == (name.startswith("looping") and output is not None)
        assert row["input"] == "Do."
        rows = await w.rows("messages", memory_id=row["memory_id"])
        kept = [r["content"] for r in rows if r["role"] == "user"]
        assert kept[0] == f"Do.\n\n{DEFAULT.output_schema.replace('{schema}', WRITTEN)}"
        assert sum(text.startswith(INVALID) for text in kept) == answers - 1
        assert len({(r["turn"], r["step"], r["sub"]) for r in rows}) == len(rows)
        following = await w.finished(await w.turn(run.session_id, "And now?"))
        assert following["status"] == "completed", "a turn without a schema answers as it likes"


@ENDINGS
@pytest.mark.spec("3.6", "5.6", "14.9")
async def test_a_direct_delegation_takes_a_schema_as_well(
    tmp_path: Path, name: str, output: str | None, answers: int
) -> None:
    async with world(tmp_path, model="scripted:forms") as w:
        scripted(tmp_path)
        delegated = await w.delegate("Do.", agent=w.node(name), output_schema=SCHEMA, max_steps=3)
        result = await w.delegations.result(w.tenant, delegated)
        assert len(w.requests) == answers
        if output is None:
            assert (result["status"], result["error"]["code"]) == ("failed", "output_invalid")
        else:
            assert (result["status"], result["output"]) == ("completed", output)


@ENDINGS
@pytest.mark.spec("5.6")
async def test_a_child_whose_definition_has_a_schema_answers_its_parent_in_that_form_or_fails_clearly(
    tmp_path: Path, name: str, output: str | None, answers: int
) -> None:
    async with world(tmp_path, model="scripted:forms") as w:
        scripted(tmp_path)
        agents = [w.node(), w.node(name, output_schema=SCHEMA, max_steps=3)]
        row = await w.finished(await w.run(task({"calls": [ask("Do.", agent=name)]}, "end"), agents=agents))
        assert (row["output"], len(w.requests)) == ("end", answers + 2)
        (result,) = await told(w, row["session_id"])
        if output is None:
            assert result["is_error"]
            assert "does not satisfy the output schema" in result["content"]
        else:
            assert result["content"].startswith(output)
        (end,) = await w.events(row["session_id"], "handoff.end")
        assert (end["data"].get("error") or {}).get("code") == (None if output else "output_invalid")
        (start,) = await w.events(row["session_id"], "handoff.start")
        assert start["data"]["input"] == "Do."


@pytest.mark.spec("5.6")
@pytest.mark.parametrize(
    ("name", "schema", "fits"),
    [
        ("list", {"type": "array", "items": {"type": "integer"}}, True),
        ("list", {"type": "object"}, False),
        ("text", {"type": "string"}, True),
        ("text", {"enum": ["one", "two"]}, True),
        ("text", {"enum": ["two"]}, False),
        ("right", {}, True),
        ("prose", {}, False),
    ],
)
async def test_the_top_may_be_of_any_type_and_an_empty_schema_still_asks_for_json(
    tmp_path: Path, name: str, schema: dict[str, Any], fits: bool
) -> None:
    async with world(tmp_path, model="scripted:forms") as w:
        scripted(tmp_path)
        row = await w.finished(await w.run("Do.", agent=name, agents=[w.node(name)], limits={"output_schema": schema}))
        assert row["status"] == ("completed" if fits else "failed")
        assert not fits or json.loads(row["output"]) is not None


@pytest.mark.spec("5.6")
async def test_the_schema_of_a_turn_stands_in_for_that_of_the_definition(tmp_path: Path) -> None:
    async with world(tmp_path, model="scripted:forms") as w:
        scripted(tmp_path)
        lead = w.node("list", output_schema={"type": "array"})
        session = await w.session(agent="list", agents=[lead])
        assert (await w.finished(await w.turn(session, "Do.")))["output"] == "[1, 2]"
        other = await w.finished(await w.turn(session, "Do.", output_schema={"type": "object"}))
        assert (other["status"], other["error"]["code"]) == ("failed", "output_invalid")
        assert (await w.finished(await w.turn(session, "Again.")))["output"] == "[1, 2]"


@pytest.mark.spec("4.9", "5.6")
async def test_an_agent_that_remembers_is_told_the_form_with_each_task(tmp_path: Path) -> None:
    async with world(tmp_path, model="scripted:forms") as w:
        scripted(tmp_path)
        agents = [w.node(), w.node("right", output_schema=SCHEMA, session_mode="reuse_session")]
        plan = task({"calls": [ask("One.", agent="right"), ask("Two.", agent="right")]}, "end")
        assert (await w.finished(await w.run(plan, agents=agents)))["output"] == "end"
        tasks = [m.content for m in w.requests[-2].messages if m.role is Role.USER]
        assert [text.split("\n")[0] for text in tasks] == ["One.", "Two."]
        assert all(WRITTEN in text for text in tasks)


@pytest.mark.spec("4.8", "5.6")
async def test_an_answer_that_comes_back_costs_of_the_budget_and_ends_clearly_without(tmp_path: Path) -> None:
    for limit in (1, 2, 3):
        folder = tmp_path / str(limit)
        folder.mkdir()
        async with world(folder, model="scripted:forms") as w:
            scripted(folder)
            given = {"output_schema": SCHEMA, "budget": {"model_calls": limit}}
            row = await w.finished(await w.run("Do.", agent="prose", agents=[w.node("prose")], limits=given))
            assert row["status"] == "failed"
            assert row["error"]["code"] in ("output_invalid", "budget_exhausted")
            assert row["usage"]["model_calls"] == len(w.requests) <= limit


@pytest.mark.spec("5.5", "5.6")
async def test_tools_may_be_used_again_before_the_answer_is_corrected(tmp_path: Path) -> None:
    script = SCRIPT.replace(
        "    plan.SEEN.append(request)\n",
        "    plan.SEEN.append(request)\n"
        "    if request.messages[-1].content.startswith(INVALID):\n"
        '        return {"calls": [{"tool": "glob", "arguments": {"pattern": "*"}}]}\n',
    )
    async with world(tmp_path, model="scripted:forms") as w:
        (tmp_path / "scripts" / "forms.py").write_text(script)
        row = await w.finished(
            await w.run("Do.", agent="wrong-right", agents=[w.node("wrong-right")], limits={"output_schema": SCHEMA})
        )
        assert (row["output"], row["steps"], row["partial"]) == ('{"n": 1}', 3, False)
        assert roles(w) == ["system", "user", "assistant", "user", "assistant", "tool"]


# ── over HTTP ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("5.6", "14.3", "14.7", "14.9", "14.14")
async def test_over_http_every_way_in_takes_a_schema_and_refuses_one_that_is_none(tmp_path: Path) -> None:
    scripted(tmp_path)
    env = {"SUBAGENTD_MODELS__SCRIPTS": str(tmp_path / "scripts"), "SUBAGENTD_MODEL": "scripted:forms"}
    async with serving(tmp_path, env=env) as service, service.client() as client:
        late = agent("wrong-right", mode="all", tools=[])
        lead = {"agent": "wrong-right", "agents": [late]}
        one = await client.request("POST", "/v1/runs", {**lead, "input": "Do.", "output_schema": SCHEMA})
        row = await finished(client, one["id"])
        assert (row["output"], row["input"], row["steps"]) == ('{"n": 1}', "Do.", 2)
        session = await client.request("POST", "/v1/sessions", lead)
        path = f"/v1/sessions/{session['id']}/runs"
        turn = await client.request("POST", path, {"input": "Do.", "output_schema": SCHEMA})
        assert (await finished(client, turn["id"]))["output"] == '{"n": 1}'
        body = {"agent": late, "task": "Do.", "output_schema": SCHEMA}
        assert (await client.request("POST", "/v1/delegations", body))["output"] == '{"n": 1}'
        stored = {**{k: v for k, v in agent("prose").items() if k != "name"}, "output_schema": SCHEMA}
        await client.request("PUT", "/v1/agents/prose", stored)
        failed = await client.request("POST", "/v1/delegations", {"agent": "prose", "task": "Do."})
        assert (failed["status"], failed["error"]["code"]) == ("failed", "output_invalid")
        none = {"type": "no such type"}
        for where, wrong in (
            ("/v1/runs", {**lead, "input": "Do.", "output_schema": none}),
            (path, {"input": "Do.", "output_schema": none}),
            ("/v1/delegations", {**body, "output_schema": none}),
            ("/v1/delegations", {"agent": {**late, "output_schema": none}, "task": "Do."}),
        ):
            with pytest.raises(ServiceError) as refused:
                await client.request("POST", where, wrong)
            assert refused.value.status == 422
            assert "output_schema" in str(refused.value)


# ── the same result on every way out ────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("5.6", "11.4", "12.4")
@pytest.mark.case("B054", "B179")
async def test_the_text_is_the_same_streamed_and_plain_and_what_the_parent_saw_is_what_the_audit_has(
    tmp_path: Path,
) -> None:
    scripted(tmp_path)
    env = {"SUBAGENTD_MODELS__SCRIPTS": str(tmp_path / "scripts"), "SUBAGENTD_MODEL": "scripted:forms"}
    async with serving(tmp_path, env=env) as service, service.client() as client:
        child = task({"text": "child says", "chunks": 5, "delay_ms": 1})
        plan = task(
            {"text": "I ask.", "calls": [ask(child)]}, {"text": "The parent's sum.", "chunks": 4, "delay_ms": 1}
        )
        body = {
            "agent": "node",
            "agents": [agent("node", mode="all", tools=["Agent"])],
            "surfaces": ["dispatch"],
            "input": plan,
        }
        plain = await finished(client, (await client.request("POST", "/v1/runs", body))["id"])
        async with (
            aiohttp.ClientSession(headers={"Accept": "text/event-stream"}) as http,
            http.post(f"{service.url}/v1/runs", json=body) as answer,
            asyncio.timeout(WAIT_S),
        ):
            frames = [json.loads(line[6:]) for line in (await answer.text()).split("\n") if line.startswith("data: ")]
        streamed = frames[-1]
        assert (streamed["type"], streamed["data"]["output"]) == ("run.completed", "The parent's sum.")
        assert plain["output"] == "The parent's sum."
        said = []
        for session_id in (plain["session_id"], streamed["session_id"]):
            items = (await client.page(f"/v1/sessions/{session_id}/messages", limit=100))["items"]
            said.append(sorted((row["depth"], row["step"], row["sub"], row["role"], row["content"]) for row in items))
        assert said[0] == said[1]
        assert [row[4] for row in said[0] if row[3] == "tool"] == ["child says"]
        own = [f["text"] for f in frames if "at" in f and f["run"] == streamed["run"] and f["step"] == 2]
        assert "".join(own) == "The parent's sum."
