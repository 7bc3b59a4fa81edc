"""Built-in tools that an operator takes away."""

import json
from pathlib import Path

import pytest

from app.settings import Settings
from app.wiring_tools import tool_names
from tests.service import serving


@pytest.mark.spec("7.2", "7.3", "16.5")
async def test_a_tool_that_is_taken_away_is_there_for_no_agent_and_its_name_is_free(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        'def grep(pattern: str) -> str:\n    """Search in another way."""\n    return pattern\n'
    )
    env = {
        "SUBAGENTD_TOOLS__WITHOUT": json.dumps(["grep", "note", "glob"]),
        "SUBAGENTD_TOOLS__FUNCTIONS": json.dumps(["mine:grep"]),
        "PYTHONPATH": f"{Path(__file__).parents[1]}:{tmp_path}",
    }
    async with serving(tmp_path, env=env) as service, service.client() as client:
        there = {tool["name"]: tool for tool in (await client.request("GET", "/v1/tools"))["items"]}
        assert not {"note", "glob"} & set(there)
        assert "Search in another way" in there["grep"]["description"]
        scout = await client.request("GET", "/v1/agents/scout")
        assert (scout["effective_tools"], scout["missing_tools"]) == (["read_file", "grep"], ["glob"])


@pytest.mark.spec("16.5")
def test_a_name_that_no_built_in_tool_has_is_refused_with_a_word_about_it() -> None:
    with pytest.raises(ValueError, match=r"tools\.without: there are no built-in tools named gerp"):
        tool_names(Settings(tools={"without": ["gerp", "grep"]}))


@pytest.mark.spec("7.8")
def test_an_own_tool_with_a_built_in_name_is_refused_with_the_way_to_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_too.py").write_text(
        'def glob(pattern: str) -> str:\n    """Find in another way."""\n    return pattern\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=r"two tools are named 'glob'.*tools\.without"):
        tool_names(Settings(tools={"functions": ["mine_too:glob"]}))
    assert "glob" in tool_names(Settings(tools={"functions": ["mine_too:glob"], "without": ["glob"]}))
