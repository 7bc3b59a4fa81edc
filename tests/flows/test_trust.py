"""What a file of a directory that nobody vouches for allows: nothing beyond what is allowed without it."""

from pathlib import Path
from typing import Any

import pytest

from app.client import ServiceError
from tests.service import agent, serving

FILE = """---
name: {0}
description: d
mode: all
tools: Read, Grep
permissions: {{allow: [Read], deny: [Grep]}}
---
body
"""


@pytest.mark.spec("10.5", "8.1", "8.5")
async def test_an_allow_rule_of_a_file_counts_only_where_the_directory_is_trusted_and_a_deny_rule_always(
    tmp_path: Path,
) -> None:
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.md").write_text(FILE.format(name))
    (tmp_path / "subagentd.toml").write_text(
        'agents = ["ours", "theirs"]\ntrusted_agents = ["ours"]\n[permissions]\ndefault = "ask"\n'
    )
    async with serving(tmp_path) as service, service.client() as client:
        found = {
            (name, call, depth): (
                await client.request("GET", "/v1/permissions", explain=call, agent=name, depth=depth)
            )["verdict"]
            for name in ("ours", "theirs")
            for call in ("Read(notes.md)", "Grep(notes.md)")
            for depth in (0, 1)
        }
        allowed = {key for key, verdict in found.items() if verdict == "allow"}
        assert allowed == {("ours", "Read(notes.md)", 0)}, "below a parent its ceiling asks"
        assert (found["theirs", "Read(notes.md)", 0], found["theirs", "Read(notes.md)", 1]) == ("ask", "ask")
        assert {verdict for (_, call, _), verdict in found.items() if "Grep" in call} == {"deny"}


@pytest.mark.spec("10.5")
@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({"runner": "math:sin"}, "runner"),
        ({"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "touch ran"}]}]}}, "hooks"),
        ({"mcpServers": [{"own": {"command": "touch"}}]}, "mcpServers"),
        ({"handoff": {"input_filter": ["math:sin"]}}, "handoff.input_filter[0]"),
        ({"permissionMode": "bypassPermissions"}, "permissionMode"),
    ],
)
async def test_agents_of_a_request_carry_no_code_whatever_directories_are_trusted(
    tmp_path: Path, fields: dict[str, Any], at: str
) -> None:
    env = {"SUBAGENTD_TRUSTED_AGENTS": "true"}
    async with serving(tmp_path, env=env) as service, service.client() as client:
        inline = agent("own", mode="all", **fields)
        bodies = [("POST", "/v1/runs", {"input": "x", "agent": "own", "agents": [inline]}, f"agents[0].{at}")]
        bodies += [("PUT", "/v1/agents/own", inline, at)]
        for method, path, body, place in bodies:
            with pytest.raises(ServiceError) as caught:
                await client.request(method, path, body)
            assert caught.value.status == 422
            assert [error["at"] for error in caught.value.problem["errors"]] == [place]
