"""Agents over HTTP: the tenant's own, those of files, and everything that is wrong with them."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import in_process

OWN = {"description": "Mine.", "prompt": "You are mine.", "tools": ["grep", "Agent", "read_file"], "max_steps": 3}


async def listed(http: httpx.AsyncClient) -> dict[str, Any]:
    answer = await http.get("/v1/agents")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def named(found: dict[str, Any], name: str) -> dict[str, Any]:
    agent: dict[str, Any] = next(item for item in found["items"] if item["name"] == name)
    return agent


@pytest.mark.spec("14.14", "10.1")
async def test_an_agent_put_over_the_api_is_in_force_at_once_and_after_a_restart(tmp_path: Path) -> None:
    async with in_process(tmp_path) as running, running.client() as http:
        answer = await http.put("/v1/agents/mine", json=OWN)
        assert answer.status_code == 201, answer.text
        shown = answer.json()
        assert (shown["source"], shown["version"]) == ({"kind": "tenant", "path": None}, 1)
        assert shown["effective_tools"] == ["grep", "read_file"]
        assert shown["delegation_tools"] == ["Agent"]
        changed = await http.put("/v1/agents/mine", json={**OWN, "mode": "all", "max_steps": 4})
        assert (changed.status_code, changed.json()["version"]) == (200, 2)
        run = await http.post("/v1/delegations", json={"agent": "mine", "task": "hello"})
        assert run.json()["output"] == "hello"
    async with in_process(tmp_path) as running, running.client() as http:
        again = (await http.get("/v1/agents/mine")).json()
        assert (again["version"], again["max_steps"], again["mode"]) == (2, 4, "all")
        assert (await http.delete("/v1/agents/mine")).status_code == 204
        assert (await http.get("/v1/agents/mine")).status_code == 404
        assert (await http.delete("/v1/agents/mine")).status_code == 404
    async with in_process(tmp_path) as running, running.client() as http:
        assert (await http.get("/v1/agents/mine")).status_code == 404
        third = await http.put("/v1/agents/mine", json=OWN)
        assert (third.status_code, third.json()["version"]) == (201, 4)


@pytest.mark.spec("14.14")
async def test_a_change_of_a_version_that_is_not_there_any_more_is_refused_and_runs_say_which_they_ran(
    tmp_path: Path,
) -> None:
    async with in_process(tmp_path) as running, running.client() as http:

        async def put(steps: int, match: str | None) -> httpx.Response:
            headers = {} if match is None else {"If-Match": match}
            return await http.put("/v1/agents/mine", json={**OWN, "mode": "all", "max_steps": steps}, headers=headers)

        assert (await put(1, '"1"')).status_code == 412
        assert (await put(1, "*")).status_code == 412
        assert (await put(1, None)).headers["etag"] == '"1"'
        second = await put(2, '"1"')
        assert (second.status_code, second.headers["etag"], second.json()["version"]) == (200, '"2"', 2)
        stale = await put(3, '"1"')
        assert (stale.status_code, stale.json()["code"]) == (412, "outdated")
        assert "version 2" in stale.json()["detail"]
        assert (await put(3, 'W/"2"')).status_code == 412
        assert (await put(3, '"1", "2"')).json()["version"] == 3
        shown = await http.get("/v1/agents/mine")
        assert (shown.headers["etag"], shown.json()["max_steps"]) == ('"3"', 3)
        assert "etag" not in (await http.get("/v1/agents/scout")).headers
        assert (await http.delete("/v1/agents/mine", headers={"If-Match": '"2"'})).status_code == 412
        run = (await http.post("/v1/delegations", json={"agent": "mine", "task": "hello"})).json()
        wanted = {"params": {"types": "run.queued"}, "headers": {"Accept": "application/json"}}
        page = await http.get(f"/v1/runs/{run['run_id']}/events", **wanted)  # type: ignore[arg-type]
        assert [event["data"]["agent_version"] for event in page.json()["items"]] == [3]
        assert (await http.delete("/v1/agents/mine", headers={"If-Match": '"3"'})).status_code == 204


@pytest.mark.spec("14.14", "10.3")
async def test_a_tenants_agent_hides_that_of_a_file_until_it_is_deleted(tmp_path: Path) -> None:
    async with in_process(tmp_path) as running, running.client() as http:
        shipped = (await http.get("/v1/agents/scout")).json()
        assert shipped["source"]["kind"] == "library"
        refused = await http.delete("/v1/agents/scout")
        assert (refused.status_code, refused.json()["code"]) == (409, "agent_of_a_file")
        await http.put("/v1/agents/scout", json={**OWN, "name": "scout"})
        found = await listed(http)
        assert named(found, "scout")["description"] == "Mine."
        shadowed = next(item for item in found["shadowed"] if item["name"] == "scout")
        assert (shadowed["source"]["kind"], shadowed["by"]["kind"]) == ("library", "tenant")
        await http.delete("/v1/agents/scout")
        assert (await http.get("/v1/agents/scout")).json()["description"] == shipped["description"]
        assert (await listed(http))["shadowed"] == []


@pytest.mark.spec("14.14", "10.3", "10.2")
async def test_broken_files_are_listed_with_file_line_and_reason_and_reload_reads_them_anew(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "good.md").write_text("---\nname: good\ndescription: Good.\ntools: [read_file]\n---\nYou are good.\n")
    broken = folder / "broken.md"
    broken.write_text("---\nname: broken\ndescription: Broken.\nhandoff: nonsense\n---\nYou are broken.\n")
    (folder / "odd.md").write_text(
        "---\nname: odd\ndescription: Odd.\ntools: [read_file, teleport]\n---\nYou are odd.\n"
    )
    async with in_process(tmp_path, agents=[folder]) as running, running.client() as http:
        found = await listed(http)
        assert named(found, "good")["source"] == {"kind": "directory", "path": "…/agents/good.md"}
        assert named(found, "odd")["missing_tools"] == ["teleport"] or "teleport" in str(found["warnings"])
        assert "broken" not in [item["name"] for item in found["items"]]
        (problem,) = found["broken"]
        assert problem["path"] == "…/agents/broken.md"
        assert problem["line"] == 4
        assert problem["message"]
        broken.write_text("---\nname: broken\ndescription: Mended.\n---\nYou are mended.\n")
        assert "broken" not in [item["name"] for item in (await listed(http))["items"]]
        after = (await http.post("/v1/agents/reload")).json()
        assert named(after, "broken")["description"] == "Mended."
        assert after["broken"] == []


@pytest.mark.spec("14.14", "10.5")
@pytest.mark.parametrize(
    ("fields", "at", "code"),
    [
        ({"name": "other"}, "name", "invalid_request"),
        ({"description": None}, "description", "invalid_request"),
        ({"tools": ["read_file", "teleport"]}, "tools", "invalid_request"),
        ({"tools": ["read_file", "run_command"]}, "tools", "unsupported"),
        ({"max_steps": 0}, "max_steps", "invalid_request"),
        ({"runner": "os:system"}, "runner", "invalid_request"),
        ({"hooks": {"PreToolUse": []}}, "hooks", "invalid_request"),
        ({"mcpServers": {"x": {"command": "sh"}}}, "mcpServers", "invalid_request"),
        ({"handoff": {"max_retries": -3}}, "handoff.max_retries", "invalid_request"),
        ({"markdown": "---\nname: x\n---\n"}, "markdown", "unsupported"),
    ],
)
async def test_a_definition_that_cannot_be_is_refused_with_its_places_and_changes_nothing(
    tmp_path: Path, fields: dict[str, Any], at: str, code: str
) -> None:
    async with in_process(tmp_path) as running, running.client() as http:
        answer = await http.put("/v1/agents/mine", json={**OWN, **fields})
        assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
        assert [error["at"] for error in answer.json()["errors"]] == [at]
        assert (await http.get("/v1/agents/mine")).status_code == 404


@pytest.mark.spec("14.14", "10.5")
async def test_a_name_has_at_most_128_characters_and_no_blanks_at_its_ends(tmp_path: Path) -> None:
    async with in_process(tmp_path) as running, running.client() as http:
        assert (await http.put(f"/v1/agents/{'n' * 128}", json=OWN)).status_code == 201
        for name in ("n" * 129, "%20mine", "%20"):
            answer = await http.put(f"/v1/agents/{name}", json=OWN)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), answer.text
            assert [error["at"] for error in answer.json()["errors"]] == ["name"]


@pytest.mark.spec("14.14")
async def test_an_agent_with_text_that_no_store_takes_is_cleaned_the_same_in_force_and_in_its_row(
    tmp_path: Path,
) -> None:
    odd = b'{"description": "d\\u0000", "prompt": "p", "extra\\ud800": [{"\\udfff": "\\ud83d"}, NaN]}'
    async with in_process(tmp_path) as running, running.client() as http:
        answer = await http.put("/v1/agents/mine", content=odd, headers={"content-type": "application/json"})
        assert answer.status_code == 201, answer.text
        shown = answer.json()
    assert shown["metadata"] == {"extra\ufffd": [{"\ufffd": "\ufffd"}, None]}
    async with in_process(tmp_path) as running, running.client() as http:
        assert (await http.get("/v1/agents/mine")).json() == shown


@pytest.mark.spec("14.15")
async def test_what_there_is_can_be_asked_for(tmp_path: Path) -> None:
    async with in_process(tmp_path) as running, running.client() as http:
        tools = {tool["name"]: tool for tool in (await http.get("/v1/tools")).json()["items"]}
        assert {"read_file", "glob", "grep"} <= tools.keys()
        assert tools["read_file"]["read_only"] is True
        assert tools["read_file"]["parameters"]["type"] == "object"
        models = {model["name"] for model in (await http.get("/v1/models")).json()["items"]}
        assert "scripted:echo" in models
        assert (await http.get("/v1/skills")).json() == {
            "items": [], "next": None, "shadowed": [], "broken": [], "warnings": [],
        }  # fmt: skip
        assert "load_skill" not in tools, "without skills there is nothing that it could load"
        assert (await http.get("/v1/artifacts/art_x")).status_code == 404


@pytest.mark.spec("12.6", "14.14")
async def test_a_secret_in_an_agent_or_a_key_name_is_masked_before_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sk-test-0123456789abcdef"
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    async with in_process(tmp_path) as running, running.client() as http:
        body = {"description": f"Uses {secret}.", "prompt": f"The key is {secret}."}
        shown = await http.put("/v1/agents/mine", json=body)
        assert (shown.status_code, shown.json()["prompt"]) == (201, "The key is [masked].")
        made = await http.post("/v1/keys", json={"name": secret, "scopes": ["admin", "read"]})
        assert made.status_code == 201, made.text
        kept = await http.get("/v1/keys", headers={"authorization": f"Bearer {made.json()['key']}"})
        assert [key["name"] for key in kept.json()["items"]] == ["[masked]"]
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("*.db*"))
    assert b"The key is [masked]." in stored
    assert secret.encode() not in stored
