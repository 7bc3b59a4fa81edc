"""A secret that an MCP server repeats in what it says of its tools, looked for wherever tools are shown."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.flows.test_mcp import running, tools_of
from tests.service import WAIT_S
from tests.tools.test_mcp_listing import RAW, SECRET, listed


@pytest.mark.spec("7.7", "12.6")
async def test_what_a_server_repeats_of_its_token_is_masked_in_the_list_of_tools_and_in_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "ours"
    folder.mkdir()
    schema = {"type": "object", "properties": {"key": {"description": "such as TOKEN"}}}
    tools = [listed("said", description="use TOKEN", inputSchema=schema), listed("named_TOKEN"), listed("plain")]
    (folder / "tools").write_text(json.dumps(tools))
    environment = {"MCP_TEST": str(folder), "TOKEN": "${SOMETHING_ELSE}"}
    ours = {"command": sys.executable, "args": [RAW], "env": environment}
    async with running(tmp_path, {"ours": ours}, SOMETHING_ELSE=SECRET) as (service, client):
        async with asyncio.timeout(WAIT_S):
            while (await client.request("GET", "/v1/tools"))["mcp"]["ours"] != "up":
                await asyncio.sleep(0.02)
        shown = await tools_of(client)
        assert set(shown) == {"mcp__ours__said", "mcp__ours__plain"}
        assert shown["mcp__ours__said"]["description"] == "use [masked]"
        assert SECRET not in json.dumps(await client.page("/v1/tools", limit=100))
        log = service.log
        assert "its name holds a secret" in log
        assert SECRET not in log
