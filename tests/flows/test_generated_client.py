"""A client that a program makes from /openapi.json works: start a run, wait for it, read its events and messages."""

import asyncio
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from tests.service import WAIT_S, script, serving

PLAY = """
agents:
  - turns: [{text: "Answer to {{ task }}."}]
"""


async def generated(folder: Path, url: str) -> str:
    """Generate the client; the name of its package."""
    async with httpx.AsyncClient(base_url=url) as http:
        (folder / "openapi.json").write_text((await http.get("/openapi.json")).text)
    (folder / "config.yaml").write_text("post_hooks: []\n")
    command = ["-m", "openapi_python_client", "generate", "--path", "openapi.json", "--config", "config.yaml"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, "--meta", "none", "--output-path", "made_client", "--fail-on-warning",
        cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(WAIT_S):
        out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return "made_client"


@pytest.mark.spec("14.7", "14.8", "11.3")
async def test_a_generated_client_starts_a_run_and_reads_its_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, env=script(tmp_path, PLAY)) as service:
        package = await generated(tmp_path, service.url)
        monkeypatch.syspath_prepend(str(tmp_path))

        def part(name: str) -> ModuleType:
            return importlib.import_module(f"{package}.{name}")

        models = part("models")
        client = part("client").Client(base_url=service.url, headers={"Accept": "application/json"})
        async with client:
            started = await part("api.runs.start_run").asyncio(client=client, body=models.OneShotBody(input_="life"))
            run = await part("api.runs.get_run").asyncio(started.id, client=client, wait_ms=10_000)
            assert (str(run.status), run.output) == ("completed", "Answer to life.")
            page = await part("api.runs.get_run_events").asyncio(started.id, client=client, after="0")
            types = [event.type_ for event in page.items]
            assert (types[0], types[-1], page.next_) == ("run.queued", "run.completed", None)
            assert page.items[-1].data["output"] == "Answer to life."
            said = await part("api.runs.get_run_messages").asyncio(started.id, client=client)
            assert said.items[-1].content == "Answer to life."
            problem = await part("api.runs.get_run").asyncio("run_nobody", client=client)
            assert isinstance(problem, models.Problem)
            assert (problem.status, problem.code) == (404, "not_found")
            refused = await part("api.runs.start_run").asyncio(
                client=client, body=models.OneShotBody.from_dict({"input": "x", "policy": {"max_retries": -1}})
            )
            assert refused.code == "invalid_request"
            tree = await part("api.sessions.get_tree").asyncio(started.session_id, client=client)
            assert json.dumps(tree.runs[0].usage_total.to_dict()) == json.dumps(run.usage_total.to_dict())
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
