"""Skills over HTTP: listed to whoever can load them, at every depth, and read by a child with the files beside them."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.surface_world import World, boss, surface_world
from tests.service import agent, events_of
from tests.stubs.openai_stub import Answer, Request, calls, text

PDF = "---\nname: pdf\ndescription: Reads PDF files.\n---\nSee reference.md. Write nothing.\n"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """One service with two skills, and one model server."""
    (tmp_path / "subagentd.toml").write_text('skills = ["skills"]\nagents = ["agents"]\n')
    for name, content in {"pdf/SKILL.md": PDF, "pdf/reference.md": "Page one.\n", "odd/SKILL.md": "no head"}.items():
        (tmp_path / "skills" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "skills" / name).write_text(content)
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "clerk.md").write_text(
        "---\nname: clerk\ndescription: d\ntools: [read_file]\nskills: [pdf, gone]\n---\nYou are clerk.\n"
    )
    async with surface_world(tmp_path) as made:
        yield made


def results(request: Request) -> list[str]:
    return [m["content"] for m in request.messages if m["role"] == "tool"]


def dispatch(name: str) -> tuple[str, str]:
    return "dispatch_subagent", json.dumps({"agent_type": name, "task": "Work."})


@pytest.mark.spec("7.9", "2.1", "13.4")
@pytest.mark.case("B199")
async def test_a_child_and_a_grandchild_see_and_load_a_skill_and_the_file_beside_it(world: World) -> None:
    def decide(request: Request) -> Answer:
        prompt, told = request.messages[0]["content"], results(request)
        if prompt.startswith("You are grandchild.") or told:
            loads = [("load_skill", '{"name": "pdf"}'), ("load_skill", '{"name": "pdf", "file": "reference.md"}')]
            return calls(loads[len(told)]) if len(told) < len(loads) and "grandchild" in prompt else text("Done.")
        return calls(dispatch("child" if prompt.startswith("You are boss.") else "grandchild"))

    agents = [
        boss(surfaces=["dispatch"]),
        agent("child", tools=["load_skill", "Agent"]),
        agent("grandchild", tools=["load_skill"]),
    ]
    run = await world.run(decide, agents, policy={"max_depth": 3}, surfaces=["dispatch"])
    assert run["status"] == "completed"
    assert world.of("You are boss."), "who cannot load skills is not told of them"
    of_child = [r for r in world.stub.requests if r.messages[0]["content"].startswith("You are child.")]
    steps = [r for r in world.stub.requests if r.messages[0]["content"].startswith("You are grandchild.")]
    for request in (*of_child, *steps):
        assert request.messages[0]["content"].endswith("- pdf: Reads PDF files.")
    assert len({request.messages[0]["content"] for request in steps}) == 1, "the prefix stays as it is"
    assert [request.messages[1]["content"] for request in steps[:1]] == ["Work."]
    body, file = results(steps[-1])
    assert body.startswith("See reference.md. Write nothing.\n\n[Files of this skill")
    assert body.endswith("\nreference.md")
    assert file == "Page one."


@pytest.mark.spec("7.9", "10.1")
async def test_a_skill_of_a_definition_is_there_from_the_start_also_without_the_tool(world: World) -> None:
    def decide(request: Request) -> Answer:
        return (
            text("Done.") if results(request) or "clerk" in request.messages[0]["content"] else calls(dispatch("clerk"))
        )

    await world.run(decide, [boss(surfaces=["dispatch"]), "clerk"])  # type: ignore[list-item]  # a name
    (request,) = [r for r in world.stub.requests if r.messages[0]["content"].startswith("You are clerk.")]
    assert "See reference.md. Write nothing." in request.messages[0]["content"]
    assert "load_skill" not in json.dumps(request.body["tools"])
    warnings = (await world.client.request("GET", "/v1/agents"))["warnings"]
    assert any(w["key"] == "skills" and "gone" in w["message"] for w in warnings)


@pytest.mark.spec("7.9", "14.15", "7.2")
async def test_skills_are_listed_with_what_is_wrong_and_an_agent_without_tools_can_load_them(world: World) -> None:
    listed = await world.client.request("GET", "/v1/skills")
    folder = "skills/pdf"
    assert listed["items"] == [{"name": "pdf", "description": "Reads PDF files.", "folder": folder}]
    assert [(problem["path"], problem["line"]) for problem in listed["broken"]] == [("skills/odd/SKILL.md", 1)]
    tools = {tool["name"]: tool for tool in (await world.client.request("GET", "/v1/tools"))["items"]}
    assert tools["load_skill"]["read_only"] is True
    shipped: dict[str, Any] = await world.client.request("GET", "/v1/agents/builder")
    assert "load_skill" in shipped["effective_tools"]

    def decide(request: Request) -> Answer:
        return text("Done.") if results(request) else calls(("load_skill", '{"name": "nothing"}'))

    run = await world.run(decide, [agent("boss", mode="primary")])
    (result,) = await events_of(world.client, f"/v1/runs/{run['id']}/events", types="tool.result")
    assert (result["data"]["is_error"], "there are: pdf" in result["data"]["content"]) == (True, True)
