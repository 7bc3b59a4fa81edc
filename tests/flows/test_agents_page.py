"""The examples of docs/agents.md are carried out."""

import json
from pathlib import Path

import pytest

from tests.pages import FENCED
from tests.service import ROOT, serving

PAGE = (ROOT / "docs" / "agents.md").read_text()


@pytest.mark.spec("13.1", "7.9", "10.5")
async def test_the_settings_and_the_skill_of_the_page_work(tmp_path: Path) -> None:
    found = {match[1]: match[2] for match in FENCED.finditer(PAGE)}
    assert set(found) == {"toml", "markdown"}, "every block of the page is carried out here"
    (tmp_path / "subagentd.toml").write_text(found["toml"].replace("/srv", str(tmp_path)))
    skill = tmp_path / "skills" / "release-notes"
    for folder in (skill, tmp_path / "agents", tmp_path / "checkout" / ".claude" / "agents"):
        folder.mkdir(parents=True)
    (skill / "SKILL.md").write_text(found["markdown"])
    allowing = "---\nname: {0}\ndescription: d\npermissions: {{allow: [Read]}}\n---\nbody\n"
    (tmp_path / "agents" / "ours.md").write_text(allowing.format("ours"))
    (tmp_path / "checkout" / ".claude" / "agents" / "theirs.md").write_text(allowing.format("theirs"))
    async with serving(tmp_path) as service, service.client() as client:
        skills = await client.request("GET", "/v1/skills")
        assert [item["name"] for item in skills["items"]] == ["release-notes"]
        assert (skills["broken"], skills["warnings"]) == ([], [])
        agents = await client.request("GET", "/v1/agents")
        assert agents["broken"] == []
        told = [Path(warning["path"]).stem for warning in agents["warnings"] if "trusted_agents" in warning["message"]]
        assert told == ["theirs"]
        assert skills["items"][0]["folder"] == "…/skills/release-notes"
        assert [item["source"]["path"] for item in agents["items"] if item["name"] == "ours"] == ["…/agents/ours.md"]
        assert str(tmp_path) not in json.dumps([skills, agents]), "how the disk is laid out is shown to nobody"
