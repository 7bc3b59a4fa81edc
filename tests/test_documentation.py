"""Every example of the documentation is carried out, so that none of them can go stale."""

import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import click
import pytest
import yaml

from app.agent.messages import Message
from app.agent.tools import ToolContext
from app.cli import main
from app.definitions.markdown import parse
from app.llm import scripted
from app.llm.script_format import read_script
from app.llm.scripted import ScriptedChat
from app.tools import function
from app.tools.function import FunctionTool, tool
from tests.llm.asking import READ, ask, assistant, result, system, user
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
        found += [Block(page, m[1], m[2]) for m in FENCED.finditer((ROOT / page).read_text())]
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


def indented(docstring: str | None) -> str:
    """The first indented example of a docstring."""
    assert docstring is not None
    lines = docstring.split("\n")
    first = next(number for number, line in enumerate(lines) if line.startswith("    "))
    end = next((n for n in range(first, len(lines)) if lines[n] and not lines[n].startswith(" ")), len(lines))
    return textwrap.dedent("\n".join(lines[first:end])).strip()


@pytest.mark.spec("13.1")
async def test_the_script_in_the_description_of_the_format_can_be_played() -> None:
    model = ScriptedChat("example", read_script(yaml.safe_load(indented(scripted.__doc__)), "example"))
    history: tuple[Message, ...] = (system("You lead."), user("report diary.txt"))
    first = (await ask(model, history, (READ,))).reply
    (call,) = first.tool_calls
    assert (first.text, call.arguments) == ("I will look.", {"path": "notes/diary.txt"})
    history = (*history, assistant(first.text, *first.tool_calls), result(call, "Dear diary\nmore"))
    last = (await ask(model, history, (READ,))).reply
    assert last.text == "The first line is: Dear diary"
    assert last.usage is not None
    assert (last.usage.input_tokens, last.usage.output_tokens) == (120, 9)
    assert (await ask(model, history)).reply.text == "So far: Dear diary\nmore"  # no tools are offered


@pytest.mark.spec("13.1", "7.8")
def test_the_function_in_the_description_of_own_tools_becomes_a_tool() -> None:
    names: dict[str, object] = {"tool": tool, "ToolContext": ToolContext}
    exec(indented(function.__doc__), names)
    made = names["lookup"]
    assert isinstance(made, FunctionTool)
    assert (made.spec.name, made.spec.read_only) == ("lookup", True)
    assert made.spec.parameters["required"] == ["order_id"]  # the context is no argument
    assert "invoice" in made.spec.parameters["properties"]["order_id"]["description"]


@pytest.mark.spec("13.1", "16.1", "16.2", "16.3")
def test_every_command_and_option_that_the_pages_name_exists() -> None:
    text = "\n".join((ROOT / page).read_text() for page in PAGES)
    named = re.findall(r"subagentd ([a-z]+(?: [a-z]+(?:\\?\|[a-z]+)*)?)((?: --[a-z]+| [A-Z]+|[^`\n])*)", text)
    commands = set()
    for words, rest in named:
        group, _, parts = words.partition(" ")
        commands |= {(group, part) for part in re.split(r"\\?\|", parts)}
        commands |= {(group, option) for option in re.findall(r"--[a-z]+", rest)}
    assert {group for group, _ in commands} >= {"serve", "run", "demo", "agents", "keys", "db", "settings"}
    for group, part in sorted(commands):
        command = main.commands.get(group)
        assert command is not None, group
        if part.startswith("--"):
            assert part in {name for option in command.params for name in option.opts}, (group, part)
        elif part:
            assert isinstance(command, click.Group), (group, part)
            assert part in command.commands, (group, part)
