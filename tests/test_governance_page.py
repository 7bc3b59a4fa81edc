"""The examples of docs/governance.md: its settings, its hooks and its rules at work in one run."""

import asyncio
import base64
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pydantic import BaseModel

from app import settings
from app.agent.hooks import DEFAULT_ON_FAILURE, HookPoint, OnFailure, Verdict
from app.agent.permission_rules import Verdict as Effect
from app.api.schemas.requests import PermissionAnswer
from app.client import Client
from app.definitions.rules import read_rule
from app.definitions.toolnames import BUILT_IN
from app.hooks.verdict import read_verdict
from app.settings_rules import Hooks, Permissions
from tests.net.loopback import Loopback, loopback, says
from tests.pages import GOVERNANCE, Block, lasting, of, requests
from tests.service import ROOT, WAIT_S, finished, script, serving

SECRET = "whsec_" + base64.b64encode(b"a key that only tests have").decode()
PLAY = """
agents:
  - when: {task_contains: "Ask a scout"}
    turns:
      - {calls: [{tool: execute_task, arguments: {name: scout, description: read, prompt: "Read the plan."}}]}
      - {text: "{{ result[0] }}"}
  - when: {task_contains: "Nothing is released this week."}
    turns:
      - {calls: [{tool: read_file, arguments: {path: ca.key}}]}
      - {calls: [{tool: read_file, arguments: {path: drafts/plan.md}}]}
      - {text: "{{ result[1] }}"}
"""


def section(title: str) -> str:
    """What stands under a heading, up to the next one."""
    text = (ROOT / GOVERNANCE).read_text().split(f"# {title}\n")[1]
    return re.split(r"^#", text, flags=re.MULTILINE)[0]


def cells(title: str) -> list[tuple[str, str]]:
    """The rows of the table under a heading: what is code in the first column, and the second one."""
    rows = [line.strip("| ").split(" | ") for line in section(title).splitlines() if line.startswith("| `")]
    return [(code, row[1]) for row in rows for code in re.findall(r"`([^`]+)`", row[0])]


def page_block(kind: str, having: str = "") -> Block:
    """The one block of the page of that language that holds a text."""
    (block,) = of(kind, having, GOVERNANCE)
    return block


def json_of(title: str) -> Any:
    """The JSON under a heading."""
    (text,) = re.findall(r"^```json\n(.*?)^```$", section(title), re.MULTILINE | re.DOTALL)
    return json.loads(text)


def prepared(folder: Path, port: int) -> dict[str, str]:
    """What an operator has who follows the page: its settings, its functions, its command; and something to read."""
    (folder / settings.TOML_FILE).write_text(page_block("toml").text.replace(":9000", f":{port}"))
    (folder / "my_hooks.py").write_text(page_block("python", "def house_rules").text)
    (folder / "guard.py").write_text(page_block("python", "sys.stdin").text)
    (folder / "workspace" / "drafts").mkdir(parents=True)
    (folder / "workspace" / "drafts" / "plan.md").write_text("Ask mei@example.org first.\n")
    (folder / "workspace" / "ca.key").write_text("secret\n")
    return {**script(folder, PLAY), "PYTHONPATH": f"{ROOT}:{folder}", "WATCH_SECRET": SECRET}


def as_shown(value: Any, workspace: Path) -> Any:
    """JSON as the page shows it."""
    text = lasting(json.dumps(value).replace(str(workspace), "/srv/workspace"))
    return json.loads(re.sub(r"\b[0-9a-f]{64}\b", "…", text))


async def asked(client: Client, session_id: str) -> dict[str, Any]:
    """The first question of a session, as its event."""
    async with asyncio.timeout(WAIT_S):
        async for frame in client.events(f"/v1/sessions/{session_id}/events"):
            if frame.type == "permission.requested":
                return dict(frame.data)
    raise AssertionError("the stream ended before anybody was asked")


@pytest.mark.spec("13.1", "16.5")
async def test_the_settings_hooks_and_rules_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    async with loopback(says({})) as receiver:
        async with (
            serving(tmp_path, env=prepared(tmp_path, receiver.port)) as service,
            service.client() as client,
            aiohttp.ClientSession() as http,
        ):
            run = await client.request("POST", "/v1/runs", {"input": "Ask a scout."})
            question = await asked(client, run["session_id"])
            found = [
                await asked_for(http, service.url, block, session=run["session_id"])
                for block in (page_block("sh", "status=pending"), page_block("sh", "explain="))
            ]
            shown = [as_shown(one, service.workspace) for one in found]
            assert shown == [json_of("Asking a person"), json_of("Which rule would decide")]
            await asked_for(http, service.url, page_block("sh", "apr_…"), apr=question["data"]["approval_id"])
            done = await finished(client, run["id"])
            assert "Ask [address] first." in done["output"], done
            decided = await asked_for(http, service.url, page_block("sh", "decision=any"), session=run["session_id"])
        made = {(item["hook"], item["rule"], item["decision"]) for item in decided["items"]}
        assert made == {
            ("house-rules", None, "add_context"),
            ("no-keys", None, "block"),
            (None, None, "allow_once"),
            ("no-addresses", None, "mutate_output"),
        }
        told_as_shown(receiver, service.workspace)


async def asked_for(
    http: aiohttp.ClientSession, url: str, block: Block, *, session: str = "", apr: str = ""
) -> dict[str, Any]:
    """What the one request of a block gets."""
    ((path, data, headers),) = requests(block)
    path = path.replace("ses_…", session).replace("apr_…", apr)
    async with http.request("POST" if data else "GET", url + path, data=data, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        found: dict[str, Any] = await answer.json()
        return found


def told_as_shown(receiver: Loopback, workspace: Path) -> None:
    """The webhook was told what the page shows, and its check of the signature holds."""
    names: dict[str, Any] = {}
    exec(page_block("python", "def genuine").text, names)
    assert [request.json["hook_event_name"] for request in receiver.requests] == ["PreToolUse", "OnSubagentStop"]
    for request in receiver.requests:
        assert names["genuine"](SECRET, request.headers, request.body)
        assert not names["genuine"](SECRET, request.headers, request.body + b" ")
    assert as_shown(receiver.requests[0].json, workspace) == json_of("What a hook is told")


@pytest.mark.spec("13.1")
def test_each_answer_of_a_hook_is_read_as_the_page_says() -> None:
    wanted = {
        "it goes on": Verdict(),
        "a block": Verdict(block="not on Fridays"),
        "other arguments": Verdict(arguments={"path": "docs/plan.md"}),
        "another output": Verdict(output="nothing to see"),
        "a question": Verdict(ask="is it wise?"),
        "added to the task": Verdict(context="Nothing is released this week."),
    }
    rows = cells("What a hook answers")
    assert {effect for _, effect in rows} == set(wanted)
    for answer, effect in rows:
        assert read_verdict(json.loads(answer)) == wanted[effect], answer


@pytest.mark.spec("13.1")
def test_the_page_names_every_point_and_what_a_failure_counts_as_there() -> None:
    assert [point for point, _ in cells("Hooks")] == [point.value for point in HookPoint]
    text = " ".join(section("When a hook fails").split())
    blocking, allowing = (
        [point.value for point, effect in DEFAULT_ON_FAILURE.items() if effect is one] for one in OnFailure
    )
    assert "`{}` and `{}` block, `{}` and `{}` allow".format(*blocking, *allowing) in text


@pytest.mark.spec("13.1")
def test_each_rule_and_each_answer_of_a_person_on_the_page_can_be_read() -> None:
    rules = [rule for rule, _ in cells("Rules")]
    assert len(rules) >= 9
    for rule in rules:
        assert read_rule(rule, Effect.DENY, BUILT_IN), rule
    answers = [PermissionAnswer.model_validate_json(answer) for answer, _ in cells("Asking a person")]
    assert {answer.decision for answer in answers} == {"allow_once", "allow_session", "deny"}


@pytest.mark.spec("13.1", "16.5")
def test_the_settings_of_the_page_are_all_there_are_in_these_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / settings.TOML_FILE).write_text(page_block("toml").text)
    monkeypatch.chdir(tmp_path)
    rows = settings.sources(settings.load(), {})
    named = {row["name"] for row in rows if row["source"] == settings.TOML_FILE}
    groups: dict[str, type[BaseModel]] = {"loop": settings.Loop, "compaction": settings.Compaction, "hooks": Hooks}
    wanted = {f"{group}.{name}" for group, kind in groups.items() for name in kind.model_fields}
    assert named >= wanted
    plain = [name for name in Permissions.model_fields if name not in ("rules", "tenants")]
    assert all(f"{name} =" in page_block("toml").text for name in plain)
    assert settings.load().permissions.tenants["acme"].deny == ["WebFetch"]
