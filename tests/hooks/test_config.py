"""From settings to hooks: every kind, what is refused at the start, and that no secret is shown."""

import base64
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.agent.hooks import HookPoint, OnFailure
from app.masking import MASK, ValueMasker
from app.settings import TOML_FILE, load, sources
from app.wiring_hooks import foreign_names, hooks_of
from app.wiring_models import secrets_of
from tests.hooks.calls import told
from tests.net.loopback import loopback, says

SECRET = "whsec_" + base64.b64encode(b"a key for tests of hooks").decode()
FUNCTION = {"name": "own", "kind": "function", "points": ["PreToolUse"], "path": "own_config_hooks:guard"}
WEBHOOK = {
    "name": "web",
    "kind": "webhook",
    "points": ["OnSubagentStop"],
    "secret_env": "OWN_SIGNATURE",
    "url": "https://hooks.example.org/x?token=url-secret-1234",
}
COMMAND = {"name": "cmd", "kind": "command", "points": ["PostToolUse"], "command": ["/bin/sh", "-c", "exit 2"]}


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.upper().startswith("SUBAGENTD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OWN_SIGNATURE", SECRET)
    (tmp_path / "own_config_hooks.py").write_text("def guard(call):\n    return {'block': 'by own'}\n")
    monkeypatch.syspath_prepend(tmp_path)


def hooks(*entries: Mapping[str, Any], hosts: tuple[str, ...] = ("hooks.example.org",)) -> dict[str, Any]:
    return {"hooks": {"hosts": list(hosts), "entries": [dict(entry) for entry in entries]}}


async def blocks(registry: Any, point: HookPoint = HookPoint.PRE_TOOL_USE, **fields: Any) -> str | None:
    outcome = await registry.fire(told(point, **fields), lambda decision: None)
    return None if outcome.block is None else str(outcome.block)


@pytest.mark.spec("6.3", "16.5")
async def test_a_file_of_settings_makes_hooks_of_every_kind_in_its_order() -> None:
    async with loopback(says({"block": "by web"})) as server:
        Path(TOML_FILE).write_text(
            f"""
            [hooks]
            hosts = ["{server.host}"]

            [[hooks.entries]]
            name = "own"
            kind = "function"
            points = ["PreToolUse"]
            matcher = "Edit|Write"
            path = "own_config_hooks:guard"

            [[hooks.entries]]
            name = "web"
            kind = "webhook"
            points = ["PreToolUse", "OnSubagentStart"]
            matcher = "Bash"
            url = "{server.url}"
            secret_env = "OWN_SIGNATURE"

            [[hooks.entries]]
            name = "cmd"
            kind = "command"
            points = ["PreToolUse", "PostToolUse"]
            timeout_s = 10
            on_failure = "block"
            command = "echo by cmd >&2; exit 2"
            """
        )
        registry = hooks_of(load())
        assert await blocks(registry, tool="write_file") == "by own"
        assert await blocks(registry, tool="run_command") == "by web"
        assert await blocks(registry, tool="grep") == "by cmd"
        assert await blocks(registry, HookPoint.SUBAGENT_START) == "by web"
        assert await blocks(registry, HookPoint.POST_TOOL_USE) == "by cmd"
        assert not registry.has(HookPoint.SUBAGENT_STOP)


@pytest.mark.spec("6.3", "16.5")
def test_without_entries_nobody_is_asked_and_with_one_the_limits_are_set() -> None:
    assert not any(hooks_of(load()).has(point) for point in HookPoint)
    (entry,) = load(**hooks(FUNCTION)).hooks.entries
    assert (entry.timeout_s, entry.on_failure, entry.matcher) == (30.0, None, None)
    (entry,) = load(**hooks({**FUNCTION, "on_failure": "allow"})).hooks.entries
    assert entry.on_failure is OnFailure.ALLOW


@pytest.mark.spec("16.5")
async def test_hooks_can_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = '[{"name": "own", "kind": "function", "points": ["PreToolUse"], "path": "own_config_hooks:guard"}]'
    monkeypatch.setenv("SUBAGENTD_HOOKS__ENTRIES", entry)
    assert await blocks(hooks_of(load())) == "by own"


@pytest.mark.spec("6.3", "16.5")
@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({**FUNCTION, "points": []}, "points"),
        ({**FUNCTION, "points": ["BeforeTool"]}, "points"),
        ({**FUNCTION, "kind": "script"}, "kind"),
        ({**FUNCTION, "on_failure": "ignore"}, "on_failure"),
        ({**FUNCTION, "timeout_s": 0}, "timeout_s"),
        ({**FUNCTION, "name": "two words"}, "name"),
        ({**FUNCTION, "match": "Bash"}, "match"),
        ({**FUNCTION, "path": None}, "'function' needs path"),
        ({**FUNCTION, "url": "https://hooks.example.org"}, "'function' has no url"),
        ({**WEBHOOK, "secret_env": None}, "'webhook' needs secret_env"),
        ({**COMMAND, "command": []}, "'command' needs command"),
        ({**COMMAND, "path": "a:b"}, "'command' has no path"),
    ],
)
def test_an_entry_that_cannot_be_meant_is_refused(entry: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        load(**hooks(entry))


@pytest.mark.spec("16.5")
def test_two_hooks_of_one_name_are_refused() -> None:
    with pytest.raises(ValidationError, match="two hooks are named own"):
        load(**hooks(FUNCTION, FUNCTION))


REFUSED = [
    ({**FUNCTION, "matcher": "("}, r"own: matcher '\(' is no pattern"),
    ({**FUNCTION, "matcher": r"(a)\1"}, "own: matcher .* is no pattern"),
    ({**FUNCTION, "path": "own_config_hooks:gard"}, "own: 'own_config_hooks:gard' cannot be imported"),
    ({**WEBHOOK, "matcher": "Bash"}, "web: matcher is for the names of tools"),
    ({**WEBHOOK, "url": "https://other.example.org/x"}, "web: the host other.example.org is not among those"),
    ({**WEBHOOK, "url": "hooks.example.org/x"}, "web: the URL must begin with https://"),
    ({**WEBHOOK, "secret_env": "OWN_SIGNATUR"}, "web: the environment variable OWN_SIGNATUR is not set"),
    ({**COMMAND, "command": ["no-such-program-here"]}, "cmd: the program 'no-such-program-here' is not found"),
]


@pytest.mark.spec("6.3")
@pytest.mark.parametrize(("entry", "reason"), REFUSED)
def test_a_hook_that_could_never_work_is_refused_at_the_start(entry: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f"hooks.entries, {reason}"):
        hooks_of(load(**hooks(entry)))


@pytest.mark.spec("6.3")
def test_a_secret_that_is_none_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_SIGNATURE", "whsec_hunter2")
    with pytest.raises(ValueError, match="web: the environment variable OWN_SIGNATURE") as caught:
        hooks_of(load(**hooks(WEBHOOK)))
    assert "hunter2" not in str(caught.value)


@pytest.mark.spec("6.3", "16.3")
def test_secrets_of_hooks_are_not_shown_by_the_settings_and_masked_in_every_sink() -> None:
    settings = load(**hooks(WEBHOOK))
    shown = {row["name"]: row["value"] for row in sources(settings, {})}
    (entry,) = shown["hooks.entries"]
    assert entry["url"] == "https://hooks.example.org/x?token=***"
    assert (entry["name"], entry["secret_env"]) == ("web", "OWN_SIGNATURE")
    masker = ValueMasker(secrets_of(settings))
    for secret in (SECRET, SECRET.removeprefix("whsec_"), "url-secret-1234"):
        assert masker.text(f"it is {secret}.") == f"it is {MASK}."


@pytest.mark.spec("6.3", "8.4", "10.2")
@pytest.mark.case("B100")
@pytest.mark.parametrize(
    ("pattern", "ours", "others"),
    [
        ("Read", ["read_file"], ["write_file", "grep"]),
        ("Edit|MultiEdit", ["edit_file"], ["write_file"]),
        ("Bash", ["run_command"], ["read_file"]),
        ("bash", ["run_command"], ["read_file"]),
        ("LS|Grep", ["glob", "grep"], ["read_file"]),
        ("WebFetch", ["web_fetch"], ["read_file"]),
        ("Task", ["dispatch_subagent", "execute_task", "subagent", "subagent_scout"], ["read_file"]),
        ("Agent", ["dispatch_subagent", "execute_task"], ["grep"]),
        ("execute_task", ["execute_task"], ["dispatch_subagent"]),
        ("mcp__memory__.*", ["mcp__memory__store"], ["mcp__other__store"]),
        ("Rea|ead", [], ["read_file"]),
        ("*", ["read_file", "own_tool"], []),
        ("", ["read_file", "own_tool"], []),
    ],
)
async def test_a_matcher_knows_our_names_and_those_of_claude_code(
    pattern: str, ours: list[str], others: list[str]
) -> None:
    registry = hooks_of(load(**hooks({**FUNCTION, "matcher": pattern})))
    for tool in ours:
        assert await blocks(registry, tool=tool) == "by own", tool
    for tool in others:
        assert await blocks(registry, tool=tool) is None, tool


@pytest.mark.spec("8.4")
def test_an_own_tool_with_a_foreign_name_is_not_taken_for_ours() -> None:
    assert foreign_names("Read") == []
    assert foreign_names("own_tool") == []


@pytest.mark.spec("6.3")
async def test_a_matcher_that_would_take_for_ever_elsewhere_ends_at_once() -> None:
    registry = hooks_of(load(**hooks({**FUNCTION, "matcher": "(a|a)*b"})))
    assert await blocks(registry, tool="a" * 5000) is None


@pytest.mark.spec("6.3")
async def test_a_command_is_found_as_the_service_finds_it() -> None:
    registry = hooks_of(load(**hooks({**COMMAND, "command": [sys.executable, "-c", "exit(2)"]})))
    assert await blocks(registry, HookPoint.POST_TOOL_USE) is not None
