"""The keys that agent files of other services have: carried out, kept as metadata, or told to do nothing."""

from pathlib import Path
from typing import Any

import pytest

from app.agent.definition import AgentMode, OwnHook, OwnServer
from app.agent.errors import InvalidRequest, Unsupported
from app.agent.permission_rules import Verdict
from app.agent.policy import BudgetLimits
from app.definitions import Catalog, from_mapping, parse, to_mapping
from app.definitions.toolnames import BUILT_IN
from tests.definitions.world import NAMED, loaded, read, said

CARRIED_OUT: list[tuple[str, str, Any]] = [
    ("name: other", "name", "clerk"),  # given twice: the first holds
    ("mode: primary", "mode", AgentMode.PRIMARY),
    ("model: anthropic:x", "model", "anthropic:x"),
    ("tools: Read, Grep", "tools", ("read_file", "grep")),
    ("disallowedTools: Write", "disallowed_tools", ("write_file",)),
    ("maxTurns: 4", "max_steps", 4),
    ("steps: 4", "max_steps", 4),
    ("max_iteration_per_run: 4", "max_steps", 4),
    ("max_budget_usd: 0.5", "budget", BudgetLimits(cost_micros=500_000)),
    ("max_budget_per_run: 0.5", "budget", BudgetLimits(cost_micros=500_000)),
    ("effort: high", "effort", "high"),
    ("temperature: 0.5", "temperature", 0.5),
    ("skills: pdf, tables", "skills", ("pdf", "tables")),
    ("skills: [pdf, tables]", "skills", ("pdf", "tables")),
    (
        "hooks: {PreToolUse: [{matcher: Bash, hooks: [{type: command, command: ./look.sh, timeout: 5}]}]}",
        "hooks",
        (OwnHook(label="PreToolUse/1", point="PreToolUse", matcher="Bash", command="./look.sh", timeout_s=5.0),),
    ),
    *(
        (f"{key}: {form}", "own_servers", (OwnServer(name="a", entry={"command": "sh", "args": ["-c", "1"]}),))
        for key in ("mcpServers", "mcp_config")
        for form in (
            "{a: {command: sh, args: [-c, 1]}}",
            "[{a: {command: sh, args: [-c, 1]}}]",
            "{mcpServers: {a: {command: sh, args: [-c, 1]}}}",
        )
    ),
]
METADATA = ["color: red", "hidden: true", "emoji: x", "vibe: calm", "author: me", "version: 2", "category: a"]
NOT_CARRIED_OUT = {
    "initialPrompt: Begin.": "the input of its session",
    "top_p: 0.9": "temperature is what an agent can set",
    "condenser: default": "as the settings of compaction say",
    "isolation: worktree": "share its workspace",
    "memory: project": "session_mode: reuse_session",
    "permissionMode: acceptEdits": "grants nothing here",
    "permissionMode: auto": "grants nothing here",
    "permissionMode: bypassPermissions": "grants nothing here",
    "permissionMode: dontAsk": "grants nothing here",
    "permission_mode: never_confirm": "grants nothing here",
    "permissionMode: sudo": "no mode that is known; it changes nothing",
}


@pytest.mark.spec("10.1")
@pytest.mark.parametrize(("head", "attribute", "value"), CARRIED_OUT)
def test_a_key_of_another_service_is_carried_out(head: str, attribute: str, value: Any) -> None:
    assert getattr(loaded(NAMED + head), attribute) == value


@pytest.mark.spec("10.1")
@pytest.mark.parametrize("head", METADATA)
def test_a_label_is_kept_as_metadata_without_a_word(head: str) -> None:
    parsed = read(NAMED + head)
    assert parsed.definition is not None
    assert list(parsed.definition.metadata) == [head.partition(":")[0]]
    assert parsed.problems == ()


@pytest.mark.spec("10.1")
@pytest.mark.parametrize(("head", "says"), NOT_CARRIED_OUT.items())
def test_a_key_that_is_not_carried_out_says_what_holds_instead_and_changes_nothing(head: str, says: str) -> None:
    parsed = read(NAMED + head)
    assert parsed.definition == loaded(NAMED)
    assert [says in text for text in said(parsed)] == [True]
    assert [problem.line for problem in parsed.problems] == [4]


@pytest.mark.spec("8.1", "10.1")
@pytest.mark.parametrize("head", ["permissionMode: plan", "readonly: true"])
def test_a_plan_takes_away_all_that_is_not_known_to_only_read(head: str) -> None:
    text = f"---\n{NAMED}tools: Read, Write, weather, mcp__a__b\n{head}\n---\nbody"
    known = BUILT_IN | {"weather", "mcp__a__b", "web_fetch"}
    definition = parse(text, path="f.md", known_tools=known).definition
    assert definition is not None
    gone = set(definition.disallowed_tools)
    assert {"write_file", "edit_file", "run_command", "weather", "mcp__a__b", "mcp__*"} <= gone
    assert gone.isdisjoint({"read_file", "glob", "grep", "web_fetch"})


@pytest.mark.spec("8.1", "10.1")
def test_modes_that_ask_become_rules_and_never_loosen_one() -> None:
    asking = loaded(f"{NAMED}permission_mode: always_confirm").permissions
    assert asking is not None
    assert asking.default is Verdict.ASK
    strict = loaded(f"{NAMED}permission_mode: always_confirm\npermissions: {{default: deny}}").permissions
    assert strict is not None
    assert strict.default is Verdict.DENY
    risky = loaded(f"{NAMED}permission_mode: confirm_risky\npermissions: {{deny: [Bash]}}").permissions
    assert risky is not None
    assert {(rule.effect, rule.tool) for rule in risky.rules} == {
        (Verdict.DENY, "run_command"), (Verdict.ASK, "run_command"), (Verdict.ASK, "write_file"),
        (Verdict.ASK, "edit_file"),
    }  # fmt: skip


@pytest.mark.spec("10.1", "10.3")
def test_a_disabled_agent_is_told_and_not_used(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_text("---\nname: a\ndescription: d\ndisable: true\n---\nbody")
    catalog = Catalog([tmp_path], library=None)
    catalog.reload()
    assert catalog.get("t", "a") is None
    assert [(str(p.severity), p.message) for p in catalog.report("t").problems] == [
        ("warning", "the agent is disabled")
    ]
    file.write_text("---\nname: a\ndescription: d\n---\nbody")
    catalog.reload()
    assert catalog.get("t", "a") is not None
    file.write_text("---\nname: a\ndescription: d\ndisable: yes\n---\nbody")
    catalog.reload()
    assert catalog.get("t", "a") is None, "not what was there before: nothing is broken"


@pytest.mark.spec("10.5")
def test_over_the_api_what_grants_nothing_is_refused_and_what_narrows_is_taken() -> None:
    base = {"name": "a", "description": "d"}
    source = loaded(NAMED).source
    plan = from_mapping({**base, "permissionMode": "plan"}, source=source)
    assert {"write_file", "run_command"} <= set(plan.disallowed_tools)
    assert from_mapping(to_mapping(plan), source=source) == plan
    skilled = from_mapping({**base, "skills": ["pdf"]}, source=source)
    assert from_mapping(to_mapping(skilled), source=source) == skilled
    for key, value in {"permissionMode": "bypassPermissions", "top_p": 0.5}.items():
        with pytest.raises(Unsupported):
            from_mapping({**base, key: value}, source=source)
    with pytest.raises(InvalidRequest, match="disable"):
        from_mapping({**base, "disable": True}, source=source)


# ── trust ───────────────────────────────────────────────────────────────────────────────────────────────────────

ALLOWING = "---\nname: {0}\ndescription: d\npermissions: {{allow: [Read], deny: [Bash], ask: [Grep]}}\n---\nbody"
CODE = "---\nname: {0}\ndescription: d\n{1}\n---\nbody"


@pytest.mark.spec("10.5", "8.1")
def test_only_a_trusted_directory_may_name_code_and_widen_and_the_others_say_what_to_set(tmp_path: Path) -> None:
    for place in ("ours", "theirs"):
        (tmp_path / place / "deep").mkdir(parents=True)
        (tmp_path / place / "allow.md").write_text(ALLOWING.format(f"{place}-allow"))
        (tmp_path / place / "deep" / "run.md").write_text(CODE.format(f"{place}-run", "runner: math:sin"))
        filtered = CODE.format(f"{place}-filter", "handoff: {input_filter: 'math:sin'}")
        (tmp_path / place / "deep" / "filter.md").write_text(filtered)
    catalog = Catalog([tmp_path / "ours", tmp_path / "theirs"], library=None, trusted=[tmp_path / "ours"])
    catalog.reload()
    report = catalog.report("t")
    trusted = {agent.name: agent.source.trusted for agent in report.agents}
    assert trusted == {"ours-allow": True, "ours-run": True, "ours-filter": True, "theirs-allow": False}
    told = {Path(problem.path).name: (problem.line, problem.key) for problem in report.problems}
    assert set(told) == {"allow.md", "run.md", "filter.md"}
    assert told["run.md"] == (4, "runner")
    assert all("theirs" in problem.path and "trusted_agents" in problem.message for problem in report.problems)
    theirs = catalog.get("t", "theirs-allow")
    assert theirs is not None
    assert theirs.permissions is not None
    effects = {rule.effect for rule in theirs.permissions.rules}
    assert {Verdict.DENY, Verdict.ASK} <= effects, "what restricts holds always"


@pytest.mark.spec("10.5")
def test_the_shipped_library_is_trusted_and_any_directory_only_if_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(CODE.format("a", "color: red"))
    for trusted, expected in ((True, True), (False, False), ((), False), ([tmp_path.parent], True)):
        catalog = Catalog([tmp_path], trusted=trusted)
        catalog.reload()
        found = {name: catalog.get("t", name) for name in ("a", "scout")}
        assert {name: agent is not None and agent.source.trusted for name, agent in found.items()} == {
            "a": expected, "scout": True,
        }  # fmt: skip
