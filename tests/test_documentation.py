"""Every example of the documentation is carried out, so that none of them can go stale."""

import json
import re
import textwrap
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import click
import pytest
import yaml
from pydantic import TypeAdapter

from app import settings
from app.agent.definition import SurfaceKind
from app.agent.messages import Message
from app.agent.tools import ToolContext
from app.api.schemas.fields import Budget, Policy
from app.cli import main
from app.client import Client
from app.definitions.markdown import parse
from app.llm import scripted
from app.llm.script_format import read_script
from app.llm.scripted import ScriptedChat
from app.tools import function
from app.tools.function import FunctionTool, tool
from tests.llm.asking import READ, ask, assistant, result, system, user
from tests.pages import DELEGATION, FENCED, PAGES, TASKS, blocks, lasting, of, requests
from tests.service import ROOT, agent, finished, script, serving

LAYER_NOTE = re.compile(r"\([^)]*\)")
ANY = """
agents:
  - when: {task_contains: JSON Schema}
    turns: [{text: '{"file": "app/agent/attempts.py", "line": 96}'}]
  - turns: [{text: An answer.}]
"""
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
    "whitelist, schema ─▶ duplicates ─▶ PreToolUse hooks ─▶ rules ─▶ a person, if a rule asks ─▶ budget": "a picture",
    "a tool of a surface ── HandoffOrder ──▶ Handoffs.delegate            handoff.start": "a picture",
}


@pytest.mark.spec("13.1")
def test_every_block_is_carried_out_by_a_test_or_says_why_not() -> None:
    here = [*of("sh", "curl"), *of("markdown"), *of("python"), *of("yaml"), *of("toml"), *of("json")]
    here += [*of("text", page=DELEGATION), *of("text", page=TASKS)]
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
        session = (await client.request("POST", "/v1/runs", body))["session_id"]
        done = 0
        for block in of("sh", "curl"):
            if "apr_…" in block.text or block.page == TASKS:
                continue  # they need what there is at the time: tests/test_governance_page.py, test_tasks_page.py
            for path, data, headers in requests(block):
                url = service.url + path.replace("ses_…", session)
                async with http.request("POST" if data else "GET", url, data=data, headers=headers) as answer:
                    assert answer.status in (200, 202), (path, data, await answer.text())
                    given = await answer.json() if data else {}
                if answer.status == 202:
                    given = await finished(client, given["id"])
                assert given.get("status", "completed") == "completed", given
                done += 1
        assert done >= 16


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
    (python,), (yaml,) = of("python", page="CONTRIBUTING.md"), of("yaml")
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


# ── delegation ──────────────────────────────────────────────────────────────────────────────────────────────────


def delegating(call: dict[str, Any], scout: Sequence[dict[str, Any]]) -> str:
    """A script: the lead makes this call and answers with its result; the scout plays these turns."""
    lead = [{"calls": [call]}, {"text": "{{ result[0] }}"}]
    return json.dumps({"agents": [{"when": {"task_contains": "Ask a scout"}, "turns": lead}, {"turns": list(scout)}]})


@pytest.mark.spec("13.1", "3.1", "3.2", "3.3", "3.4")
@pytest.mark.parametrize("kind", [kind.value for kind in SurfaceKind])
async def test_each_surface_takes_the_call_and_gives_the_result_of_its_page(tmp_path: Path, kind: str) -> None:
    section = (ROOT / DELEGATION).read_text().split(f"### `{kind}`\n")[1].split("\n### ")[0]
    (_, call), (_, result) = FENCED.findall(section)
    look = {"calls": [{"tool": "grep", "arguments": {"pattern": "retry"}}]}
    scout: list[dict[str, Any]] = [look, {"text": "app/agent/attempts.py:96"}]
    env = script(tmp_path, delegating(json.loads(call), scout=scout))
    body = {
        "input": "Ask a scout.",
        "agents": ["scout"],
        "surfaces": [kind],
        "texts": "en",
        "default_subagent": "scout",
    }
    async with serving(tmp_path, env=env) as service, service.client() as client:
        started = await client.request("POST", "/v1/runs", body)
        run = await finished(client, started["id"])
        assert lasting(run["output"]) == result.strip()


@pytest.mark.spec("13.1", "4.1", "4.7", "14.4")
async def test_the_policy_of_the_page_leads_to_the_tree_of_the_page(tmp_path: Path) -> None:
    (policy,), (tree,) = of("sh", 'max_retries": 2', DELEGATION), of("json", "fallback", DELEGATION)
    ((path, data, _),) = requests(policy)
    shown = json.loads(tree.text)
    (call, *_) = [json.loads(block.text) for block in of("json", "execute_task", DELEGATION)]
    scout = [{"text": "", "error": {**shown["error"], "retryable": True}}]
    quick = {"SUBAGENTD_HANDOFF__BACKOFF_MS": "1", "SUBAGENTD_LOOP__RETRIES": "0"}
    env = {**script(tmp_path, delegating(call, scout=scout)), **quick}
    async with serving(tmp_path, env=env) as service, service.client() as client:
        assert data is not None
        body = json.loads(data)
        started = await client.request("POST", path, body)
        run = await finished(client, started["id"])
        assert run["output"] == body["policy"]["on_error"]["answer"]
        seen = await client.request("GET", f"/v1/sessions/{run['session_id']}/tree")
        (handoff,) = seen["runs"][0]["handoffs"]
        assert json.loads(lasting(json.dumps(handoff))) == shown


@pytest.mark.spec("13.1", "10.5")
async def test_the_runner_of_the_page_answers_in_place_of_a_model(tmp_path: Path) -> None:
    (file,), (python,) = of("markdown", "runner:"), of("python", page=DELEGATION)
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "classifier.md").write_text(file.text)
    (tmp_path / "my_runners.py").write_text(python.text)
    env = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "SUBAGENTD_TRUSTED_AGENTS": str([str(tmp_path)]).replace("'", '"')}
    async with serving(tmp_path, "--agents", str(tmp_path / "agents"), env=env) as service, service.client() as client:
        said = [await classified(client, letter) for letter in ("An invoice is wrong.", "It does not start.")]
        assert said == ["billing", "support"]


async def classified(client: Client, letter: str) -> str:
    """What the agent of the page says of a letter."""
    answer = await client.request("POST", "/v1/delegations", {"agent": "classifier", "task": letter})
    return str(answer["output"])


@pytest.mark.spec("13.1", "16.5")
def test_the_settings_of_the_page_are_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = of("toml", page=DELEGATION)
    (tmp_path / settings.TOML_FILE).write_text(block.text)
    monkeypatch.chdir(tmp_path)
    rows = settings.sources(settings.load(), {})
    named = {row["name"] for row in rows if row["source"] == settings.TOML_FILE}
    wanted = {"default_subagent", "handoff.backoff_ms", "handoff.deadline_ms", "texts.language"}
    assert named >= {*wanted, "handoff.max_backoff_ms", "texts.replace.work_order", "models.profiles.house.input_price"}


@pytest.mark.spec("13.1")
def test_the_page_names_every_field_of_a_policy_and_of_a_budget() -> None:
    page = (ROOT / DELEGATION).read_text()
    budget = TypeAdapter(Budget).json_schema()["properties"]
    names = [*TypeAdapter(Policy).json_schema()["properties"], *budget]
    assert [name for name in names if f"`{name}`" not in page] == []


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


def titles(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    return {title.lower().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    dead = []
    for link in links:
        name, _, title = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        if not target.exists() or (title and title not in titles(target)):
            dead.append(link)
    assert dead == []


def test_the_architecture_page_names_every_module_of_the_kernel_and_every_layer() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    kernel = page.split("The kernel, ")[1].split("Imports point downward")[0]
    named = set(re.findall(r"`(\w+)`", "\n".join(line.split(" | ")[0] for line in kernel.splitlines())))
    modules = {path.stem for path in (ROOT / "app" / "agent").glob("*.py")} - {"__init__"}
    assert named - {"app"} == modules
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["id"] == "layers"]
    there = {path.stem for path in (ROOT / "app").iterdir()}
    wanted = [[n for n in re.findall(r"\w+", layer) if n in there and n != "__main__"] for layer in layers]
    (said,) = re.findall(r"exhaustive\): (.*?agent)`", page, re.DOTALL)
    assert [re.findall(r"\w+", layer) for layer in LAYER_NOTE.sub("", said).split("→")] == [w for w in wanted if w]


@pytest.mark.parametrize("place", ["hooks/*", "net/*", "sessions/*", "definitions/*", "settings_*", "wiring_*"])
def test_the_architecture_page_names_every_module_of_a_place(place: str) -> None:
    tree = (ROOT / "ARCHITECTURE.md").read_text().split("The kernel, ")[0]
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", tree))))
    modules = {path.stem for path in (ROOT / "app").glob(f"{place}.py")} - {"__init__"}
    assert modules
    assert modules - named == set()


@pytest.mark.spec("13.1", "16.1", "16.2", "16.3", "16.4")
def test_every_command_and_option_that_the_pages_name_exists() -> None:
    text = "\n".join((ROOT / page).read_text() for page in PAGES)
    named = re.findall(r"subagentd ([a-z]+(?: [a-z]+(?:\\?\|[a-z]+)*)?)((?: --[a-z]+| [A-Z]+|[^`\n])*)", text)
    commands = set()
    for words, rest in named:
        group, _, parts = words.partition(" ")
        commands |= {(group, part) for part in re.split(r"\\?\|", parts)}
        commands |= {(group, option) for option in re.findall(r"--[a-z]+", rest)}
    assert {group for group, _ in commands} >= {"serve", "run", "demo", "audit", "agents", "keys", "db", "settings"}
    for group, part in sorted(commands):
        command = main.commands.get(group)
        assert command is not None, group
        if part.startswith("--"):
            of = command.commands.values() if isinstance(command, click.Group) else [command]
            assert part in {name for each in of for option in each.params for name in option.opts}, (group, part)
        elif part:
            assert isinstance(command, click.Group), (group, part)
            assert part in command.commands, (group, part)
