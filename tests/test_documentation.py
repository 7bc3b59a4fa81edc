"""Every example of the documentation is carried out, so that none of them can go stale."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from app.definitions.markdown import parse
from tests.service import ROOT, agent, finished, script, serving

PAGES = ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANY = 'agents:\n  - turns: [{text: "An answer."}]\n'
# Blocks that are no examples to be carried out here, by their first line, and why.
ELSEWHERE = {
    "make demo   # a parent and two subagents work on this repository, with a small model that runs on this machine": (
        "sets up a machine; the demo is a test of its own"
    ),
    "make install": "installs; the commands after it are those of tests/cli",
    "id: 14": "what a stream looks like, shortened",
    "SUBAGENTD_KEY=$(openssl rand -hex 32) docker compose up": "needs a container engine",
    "make install   # .venv with everything for development: hash-checked wheels, then this checkout": "installs",
    "record(run, payload)            synchronous, never blocks, never fails a run": "a picture",
}


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    kind: str
    text: str

    @property
    def first(self) -> str:
        """Its first line."""
        return self.text.splitlines()[0]


def blocks() -> list[Block]:
    """All fenced blocks of the pages."""
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        found += [
            Block(page, m[1], m[2]) for m in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        ]
    return found


def of(kind: str, having: str = "") -> list[Block]:
    """The blocks of one language that hold a text."""
    return [block for block in blocks() if block.kind == kind and having in block.text]


@pytest.mark.spec("13.1")
def test_every_block_is_carried_out_by_a_test_or_says_why_not() -> None:
    here = [*of("sh", "curl"), *of("markdown"), *of("python"), *of("yaml")]
    left = [block for block in blocks() if block not in here]
    assert {block.first for block in left} == set(ELSEWHERE)


@pytest.mark.spec("13.1", "14.7", "14.9", "14.12")
async def test_every_http_example_answers_well(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, env=script(tmp_path, ANY)) as service,
        service.client() as client,
        aiohttp.ClientSession() as http,
    ):
        body = {"agent": "solo", "agents": [agent("solo", mode="all", tools=[])], "input": "x"}
        started = await client.request("POST", "/v1/runs", body)
        await finished(client, started["id"])
        done = 0
        for block in of("sh", "curl"):
            for line in block.text.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] != ["curl"]:
                    continue
                url = next(word for word in words if word.startswith("http"))
                url = url.replace("http://127.0.0.1:8080", service.url).replace("ses_…", started["session_id"])
                data = words[words.index("-d") + 1] if "-d" in words else None
                headers = dict(word.split(": ", 1) for word in words if ": " in word and not word.startswith("{"))
                async with http.request("POST" if data else "GET", url, data=data, headers=headers) as answer:
                    assert answer.status in (200, 202), (line, await answer.text())
                done += 1
        assert done >= 5


@pytest.mark.spec("13.1", "10.1")
def test_every_agent_file_example_loads_without_a_remark() -> None:
    examples = of("markdown")
    assert examples
    for block in examples:
        parsed = parse(block.text, path=block.page)
        assert parsed.definition is not None
        assert parsed.problems == ()


@pytest.mark.spec("13.1", "7.8")
async def test_the_tool_and_the_script_of_the_contributors_page_work_together(tmp_path: Path) -> None:
    (python,), (yaml,) = of("python"), of("yaml")
    (tmp_path / "my_tools.py").write_text(python.text)
    env = {
        **script(tmp_path, yaml.text),
        "SUBAGENTD_TOOLS__FUNCTIONS": '["my_tools:order_status"]',
        "PYTHONPATH": f"{ROOT}:{tmp_path}",
    }
    async with serving(tmp_path, env=env) as service, service.client() as client:
        body = {"agent": "desk", "agents": [agent("desk", mode="all", tools=["order_status"])]}
        started = await client.request("POST", "/v1/runs", {**body, "input": "Where is my order?"})
        run = await finished(client, started["id"])
        assert run["output"] == "I was told: order 7 is on its way"
