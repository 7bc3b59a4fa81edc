"""`tools.inherit = "intersect"` over HTTP: agents are shown with the tools that they really have below others."""

from pathlib import Path

import pytest

from tests.api.conftest import in_process

LEAD = {"description": "Leads.", "prompt": "You lead.", "mode": "primary", "tools": ["Agent", "Read(./docs/**)"]}
WORKER = {"description": "Works.", "prompt": "You work.", "tools": ["read_file", "grep"]}


@pytest.mark.spec("7.2", "8.5", "14.14", "16.5")
@pytest.mark.parametrize("setting", ["own", "intersect"])
async def test_an_agent_below_another_is_shown_with_the_tools_that_it_has_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("SUBAGENTD_TOOLS__INHERIT", setting)
    below = ["read_file"] if setting == "intersect" else ["read_file", "grep"]
    async with in_process(tmp_path) as running, running.client() as http:
        for name, body in (("chief", LEAD), ("worker", WORKER)):
            assert (await http.put(f"/v1/agents/{name}", json=body)).status_code == 201
        assert (await http.get("/v1/agents/worker")).json()["effective_tools"] == ["read_file", "grep"]
        shown = (await http.get("/v1/agents/worker", params={"parent": "chief"})).json()
        assert shown["effective_tools"] == below
        unknown = await http.get("/v1/agents/worker", params={"parent": ["chief", "nobody"]})
        assert (unknown.status_code, unknown.json()["code"]) == (422, "unknown_agent")
        question = {"explain": "Read(src/a.py)", "agent": ["chief", "worker"]}
        verdict = (await http.get("/v1/permissions", params=question)).json()["verdict"]
        assert verdict == ("deny" if setting == "intersect" else "allow")


@pytest.mark.spec("8.1", "8.5", "16.5")
async def test_rules_of_a_tenant_are_named_where_a_call_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "SUBAGENTD_PERMISSIONS__TENANTS", '{"default": {"deny": ["Read(./secrets/**)"]}, "b": {"deny": ["*"]}}'
    )
    async with in_process(tmp_path) as running, running.client() as http:
        asked = {"explain": "Read(secrets/a)", "agent": ["lead", "scout"]}
        found = (await http.get("/v1/permissions", params=asked)).json()
        assert (found["verdict"], found["scope"], found["rule"]) == ("deny", "tenant", "Read(./secrets/**)")
        open_one = (await http.get("/v1/permissions", params={**asked, "explain": "Read(a)"})).json()
        assert open_one["verdict"] == "allow"
