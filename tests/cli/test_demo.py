"""The demonstration with the scripted model: the service, the tools and the files are real."""

from pathlib import Path

import pytest

from tests.cli.test_commands import run
from tests.service import ROOT, finished, serving


@pytest.mark.spec("16.2", "16.6")
async def test_the_demo_ends_with_an_answer_of_two_subagents_and_the_first_rows_of_the_log(tmp_path: Path) -> None:
    command = ("demo", "--model", "scripted:demo", "--workspace", str(ROOT))
    shown = await run(*command, folder=tmp_path)
    assert shown.code == 0, shown.out + shown.err
    assert "Both subagents have answered." in shown.out
    assert "README.md" in shown.out
    assert "audit log" in shown.out
    machine = await run(*command, "--json", folder=tmp_path)
    assert machine.code == 0
    kinds = [line.get("type") for line in machine.lines]
    assert kinds.count("handoff.end") == 2
    assert {"system", "user", "assistant"} <= {line.get("role") for line in machine.lines}


@pytest.mark.spec("13.1", "10.4", "14.7")
async def test_the_shipped_lead_delegates_with_the_shipped_script_and_nothing_else_set_up(tmp_path: Path) -> None:
    async with serving(tmp_path, "--model", "scripted:demo") as service, service.client() as client:
        (service.workspace / "README.md").write_text("# A project\n")
        started = await client.request("POST", "/v1/runs", {"input": "What is this project?"})
        run_ = await finished(client, started["id"])
        assert run_["status"] == "completed"
        tree = await client.request("GET", f"/v1/sessions/{started['session_id']}/tree")
        children = tree["runs"][0]["children"]
        assert {(child["agent"], child["status"]) for child in children} == {
            ("scout", "completed"),
            ("reviewer", "completed"),
        }
        assert "# A project" in run_["output"]
