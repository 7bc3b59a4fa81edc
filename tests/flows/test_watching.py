"""Files of agents and skills that change under a running service: seen without a request, and never half."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from app.client import Client
from tests.service import WAIT_S, finished, serving
from tests.stubs.openai_stub import Answer, OpenAIStub, Request, calls, text


def write(path: Path, name: str, description: str, prompt: str = "You work.") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\nname: {name}\ndescription: {description}\n---\n{prompt}\n")


async def until(look: Callable[[], Awaitable[Any]], holds: Callable[[Any], bool]) -> Any:
    """Ask until it is so."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await look()
            if holds(found):
                return found


def lists(client: Client, path: str) -> Callable[[], Awaitable[dict[str, str]]]:
    """Descriptions by name, of those that come from the directories of the test."""

    async def look() -> dict[str, str]:
        listed = await client.request("GET", path, limit=500)
        return {
            item["name"]: item["description"]
            for item in listed["items"]
            if item.get("source", {"kind": "directory"})["kind"] == "directory"
        }

    return look


@pytest.mark.spec("10.3", "7.9")
@pytest.mark.parametrize("watch", ["auto", "poll"])
async def test_what_is_changed_added_removed_and_renamed_is_seen(tmp_path: Path, watch: str) -> None:
    agents, skills = tmp_path / "agents", tmp_path / "skills"
    write(agents / "a.md", "a", "First.")
    settings = f'agents = ["{agents}"]\nskills = ["{skills}"]\nwatch = "{watch}"\n'  # the second is made later
    (tmp_path / "subagentd.toml").write_text(settings)
    async with serving(tmp_path) as service, service.client() as client:
        look = lists(client, "/v1/agents")
        assert await look() == {"a": "First."}
        write(agents / "a.md", "a", "Second.")
        await until(look, lambda found: found == {"a": "Second."})
        write(agents / "deep" / "b.md", "b", "New.")
        await until(look, lambda found: found == {"a": "Second.", "b": "New."})
        (agents / "deep").rename(agents / "deeper.2")
        named = await until(
            lambda: client.request("GET", "/v1/agents/b"), lambda found: "deeper.2" in found["source"]["path"]
        )
        assert named["description"] == "New."
        (agents / "a.md").unlink()
        await until(look, lambda found: found == {"b": "New."})
        write(skills / "pdf" / "SKILL.md", "pdf", "Reads.")
        await until(lists(client, "/v1/skills"), lambda found: found == {"pdf": "Reads."})
        shutil.rmtree(agents)
        await until(look, lambda found: found == {})
        write(agents / "c.md", "c", "Back.")
        await until(look, lambda found: found == {"c": "Back."})


@pytest.mark.spec("10.3")
@pytest.mark.case("B195")
async def test_an_agent_whose_file_breaks_stays_as_it_was_and_is_reported_until_it_is_mended(tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    write(agents / "a.md", "a", "First.")
    write(agents / "b.md", "b", "Other.")
    (tmp_path / "subagentd.toml").write_text(f'agents = ["{agents}"]\n')
    async with serving(tmp_path) as service, service.client() as client:
        (agents / "a.md").write_text("---\nname: a\ndescription: Second.\nhandoff: nonsense\n---\nYou work.\n")
        listed = await until(lambda: client.request("GET", "/v1/agents"), lambda found: bool(found["broken"]))
        assert [(Path(p["path"]).name, p["line"]) for p in listed["broken"]] == [("a.md", 4)]
        assert any("stays as it was" in problem["message"] for problem in listed["warnings"])
        assert await lists(client, "/v1/agents")() == {"a": "First.", "b": "Other."}
        (agents / "a.md").write_text("")
        await until(
            lambda: client.request("GET", "/v1/agents"),
            lambda found: any("no front matter" in problem["message"] for problem in found["broken"]),
        )
        assert (await client.request("GET", "/v1/agents/a"))["description"] == "First."
        write(agents / "a.md", "a", "Third.")
        listed = await until(lambda: client.request("GET", "/v1/agents"), lambda found: not found["broken"])
        assert await lists(client, "/v1/agents")() == {"a": "Third.", "b": "Other."}
    assert "a.md:4: error" in service.log
    async with serving(tmp_path) as service, service.client() as client:
        assert (await client.request("GET", "/v1/agents/a"))["description"] == "Third."


@pytest.mark.spec("10.3")
async def test_a_run_under_way_keeps_its_definition_and_the_next_one_has_the_new(tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    write(agents / "a.md", "a", "First.", "You are old.")
    (tmp_path / "subagentd.toml").write_text(f'agents = ["{agents}"]\n')
    asked, go_on = asyncio.Event(), asyncio.Event()
    async with OpenAIStub() as stub:

        def decide(request: Request) -> Answer:
            if len(request.messages) > 2:
                return text("Done.")
            asked.set()
            first = calls(("glob", '{"pattern": "*"}'))
            return Answer(writes=(first.writes[0], go_on, *first.writes[1:]))

        stub.decide(decide)
        env = {"OPENAI_BASE_URL": stub.base_url, "OPENAI_API_KEY": "k", "SUBAGENTD_MODEL": "openai:m"}
        async with serving(tmp_path, env=env) as service, service.client() as client:
            session = await client.request("POST", "/v1/sessions", {"agent": "a"})
            run = await client.request("POST", f"/v1/sessions/{session['id']}/runs", {"input": "Go."})
            async with asyncio.timeout(WAIT_S):
                await asked.wait()
            write(agents / "a.md", "a", "Second.", "You are new.")
            await until(lists(client, "/v1/agents"), lambda found: found == {"a": "Second."})
            go_on.set()
            await finished(client, run["id"])
            assert [r.messages[0]["content"].strip() for r in stub.requests] == ["You are old."] * 2
            other = await client.request("POST", "/v1/runs", {"agent": "a", "input": "Go."})
            await finished(client, other["id"])
            assert stub.requests[-1].messages[0]["content"].strip() == "You are new."


@pytest.mark.spec("10.3")
async def test_with_watching_off_files_are_read_on_demand_only(tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    write(agents / "a.md", "a", "First.")
    (tmp_path / "subagentd.toml").write_text(f'agents = ["{agents}"]\nwatch = "off"\n')
    async with serving(tmp_path) as service, service.client() as client:
        write(agents / "a.md", "a", "Second.")
        assert await lists(client, "/v1/agents")() == {"a": "First."}
        await client.request("POST", "/v1/agents/reload")
        assert await lists(client, "/v1/agents")() == {"a": "Second."}
