"""What a call may do: which rule wins, what a child may, paths, hosts, agents, and what a decision says of itself."""

import itertools
import posixpath
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.agent.permissions import (
    CommandPart,
    Decision,
    DecisionKind,
    Means,
    ParsedCommand,
    PermissionPolicy,
    PermissionRule,
    PermissionRules,
    Scope,
    Verdict,
)
from app.agent.tools import ToolSpec
from tests.longer import examples

ALLOW, ASK, DENY = Verdict.ALLOW, Verdict.ASK, Verdict.DENY


class Words:
    """A parser for lines with nothing but `;` between commands; counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def parse(self, command: str) -> ParsedCommand:
        """One part for each command; a line with a quote is a problem."""
        self.asked += 1
        if "'" in command:
            return ParsedCommand(problem="a quote")
        texts = [text.strip() for text in command.split(";")]
        return ParsedCommand(parts=tuple(CommandPart(exact=(text,), loose=(text,)) for text in texts))


def resolved(path: str) -> str | None:
    """A workspace in which `link` leads to `secrets` and `out` leads outside."""
    names = ["secrets" if name == "link" else name for name in path.split("/")]
    full = posixpath.normpath("/".join(["ws", *names]))
    if "out" in names or not (full == "ws" or full.startswith("ws/")):
        return None
    return posixpath.relpath(full, "ws")


def means(**changes: Any) -> Means:
    return Means(**{"parser": Words(), "resolve_path": resolved, **changes})


def tool(name: str, delegation: bool = False) -> ToolSpec:
    return ToolSpec(name=name, description="", parameters={"type": "object"}, delegation=delegation)


def rule(effect: Verdict, name: str, pattern: str | None = None) -> PermissionRule:
    return PermissionRule(effect=effect, tool=name, pattern=pattern)


def rules(*some: PermissionRule, scope: Scope = Scope.SERVER, default: Verdict | None = None) -> PermissionRules:
    return PermissionRules(scope=scope, rules=some, default=default)


def policy(*some: PermissionRule, default: Verdict | None = None) -> PermissionPolicy:
    return PermissionPolicy("lead", [rules(*some, default=default)])


def decide(by: PermissionPolicy, name: str, delegation: bool = False, /, **arguments: Any) -> Decision:
    return by.decide(tool(name, delegation), arguments, means())


def verdict(by: PermissionPolicy, name: str, delegation: bool = False, /, **arguments: Any) -> Verdict:
    return decide(by, name, delegation, **arguments).verdict


# ── who wins ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("8.1")
def test_without_a_rule_the_whitelist_is_the_grant() -> None:
    assert verdict(PermissionPolicy("lead"), "read_file", path="a") is ALLOW
    assert verdict(policy(rule(DENY, "grep")), "read_file", path="a") is ALLOW


@pytest.mark.spec("8.1")
@pytest.mark.parametrize("default", [ASK, DENY])
def test_the_default_holds_where_no_rule_speaks(default: Verdict) -> None:
    by = policy(rule(ALLOW, "grep"), default=default)
    assert verdict(by, "read_file", path="a") is default
    assert verdict(by, "grep", path="a") is ALLOW
    assert decide(by, "read_file", path="a").kind is DecisionKind.DEFAULT


@pytest.mark.spec("8.1")
@pytest.mark.parametrize("order", list(itertools.permutations((ALLOW, ASK, DENY))))
@pytest.mark.parametrize("scopes", list(itertools.permutations((Scope.SERVER, Scope.DEFINITION, Scope.SESSION))))
def test_the_strictest_rule_wins_in_any_order_and_scope(order: Sequence[Verdict], scopes: Sequence[Scope]) -> None:
    given_rules = [rules(rule(effect, "grep"), scope=scope) for effect, scope in zip(order, scopes, strict=True)]
    found = PermissionPolicy("lead", given_rules).decide(tool("grep"), {}, means())
    assert found.verdict is DENY
    assert found.scope is scopes[order.index(DENY)]
    without = [one for one in given_rules if one.rules[0].effect is not DENY]
    assert PermissionPolicy("lead", without).decide(tool("grep"), {}, means()).verdict is ASK


@pytest.mark.spec("8.1")
def test_of_several_defaults_the_strictest_holds() -> None:
    scopes = [rules(default=ASK), rules(scope=Scope.SESSION, default=ALLOW), rules(scope=Scope.TENANT, default=DENY)]
    found = PermissionPolicy("lead", scopes).decide(tool("grep"), {}, means())
    assert (found.verdict, found.scope) == (DENY, Scope.TENANT)


@pytest.mark.spec("8.4")
def test_an_allow_pattern_closes_its_tool_for_all_else() -> None:
    by = policy(rule(ALLOW, "run_command", "git *"))
    assert verdict(by, "run_command", command="git status") is ALLOW
    assert verdict(by, "run_command", command="git") is ALLOW
    assert verdict(by, "run_command", command="git-evil") is ASK
    assert verdict(by, "run_command", command="git status; touch x") is ASK
    assert verdict(by, "run_command", command="git 'x") is ASK
    assert verdict(by, "read_file", path="a") is ALLOW


@pytest.mark.spec("8.4")
def test_one_denied_part_denies_the_whole_line() -> None:
    by = policy(rule(ALLOW, "run_command"), rule(DENY, "run_command", "rm *"))
    assert verdict(by, "run_command", command="git x; rm y") is DENY
    assert verdict(by, "run_command", command="git x; git y") is ALLOW
    assert verdict(by, "run_command", command="git 'x") is ASK


# ── paths, hosts, agents, servers ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("8.4")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("docs/a.md", ALLOW),
        ("docs/x/y/a.md", ALLOW),
        ("./docs//a.md", ALLOW),
        ("src/../docs/a.md", ALLOW),
        ("docs/../src/a.md", ASK),
        ("docs/../../etc/passwd", ASK),
        ("docs/link/../../src/a", ASK),
        ("docs/out/a", ASK),
        ("docsx/a.md", ASK),
        ("/etc/passwd", ASK),
        (None, ASK),
        (7, ASK),
    ],
)
def test_a_path_pattern_is_about_the_place_that_a_path_really_names(path: Any, expected: Verdict) -> None:
    assert verdict(policy(rule(ALLOW, "read_file", "docs/**")), "read_file", path=path) is expected


@pytest.mark.spec("8.4")
@pytest.mark.parametrize(
    ("path", "expected"),
    [("secrets/key", DENY), ("link/key", DENY), ("a/../secrets/x/key", DENY), ("secrets", DENY), ("secret", ALLOW),
     ("out/key", ASK), ("..", ASK)],
)  # fmt: skip
def test_links_and_dots_do_not_lead_past_a_denied_path(path: str, expected: Verdict) -> None:
    assert verdict(policy(rule(DENY, "read_file", "secrets/**")), "read_file", path=path) is expected
    assert verdict(policy(rule(DENY, "read_file", "secrets")), "read_file", path=path) is expected


@pytest.mark.spec("8.4")
@pytest.mark.case("B112")
def test_a_denied_file_is_left_out_of_a_search_and_does_not_stop_it() -> None:
    by = policy(rule(DENY, "read_file", "**/.env"), rule(ASK, "read_file", "secrets/**"))
    assert verdict(by, "grep", path=".") is ALLOW
    assert verdict(by, "grep") is ALLOW
    assert verdict(by, "glob", path="secrets") is ASK
    assert by.conceals(tool("grep"), "sub/.env")
    assert by.conceals(tool("glob"), "secrets/x/y")
    assert not by.conceals(tool("grep"), "sub/a.env")
    assert not PermissionPolicy("lead").conceals(tool("grep"), ".env")


@pytest.mark.spec("8.4")
def test_a_search_is_allowed_where_all_below_its_directory_is() -> None:
    by = policy(rule(ALLOW, "read_file", "docs/**"), rule(ALLOW, "read_file", "src/*.py"))
    assert verdict(by, "grep", path="docs") is ALLOW
    assert verdict(by, "grep", path="docs/sub") is ALLOW
    assert verdict(by, "grep", path=".") is ASK
    assert verdict(by, "grep", path="src") is ASK
    assert verdict(by, "read_file", path="src/a.py") is ALLOW
    assert verdict(by, "read_file", path="src/x/a.py") is ASK


@pytest.mark.spec("8.4")
@pytest.mark.case("B113")
@pytest.mark.parametrize("name", ["write_file", "edit_file"])
def test_a_pattern_on_writing_is_about_every_tool_that_writes(name: str) -> None:
    assert verdict(policy(rule(DENY, name, "conf/**")), "write_file", path="conf/a") is DENY
    assert verdict(policy(rule(DENY, name, "conf/**")), "edit_file", path="conf/a") is DENY
    assert verdict(policy(rule(DENY, name, "conf/**")), "read_file", path="conf/a") is ALLOW


@pytest.mark.spec("8.4")
@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://example.org/a", True),
        ("http://EXAMPLE.org.:8080/a?b", True),
        ("https://docs.example.org", True),
        ("https://user:pw@example.org/", True),
        ("https://example.org@evil.net/", False),
        ("https://evil.net/example.org", False),
        ("https://evilexample.org/", False),
        ("https://example.org.evil.net/", False),
        ("https://example.org\\@evil.net/", False),
        ("https://evil.net\\.example.org/", False),
        ("https://evil.net #.example.org/", False),
        ("https://ex%61mple.org/", False),
        ("//example.org/", False),
        ("file://example.org/etc/passwd", False),
        ("https://[::1]/", False),
        ("", False),
        (None, False),
    ],
)
def test_a_domain_holds_for_the_host_and_all_below_it(url: Any, allowed: bool) -> None:
    wanted = ALLOW if allowed else ASK
    assert verdict(policy(rule(ALLOW, "web_fetch", "example.org")), "web_fetch", url=url) is wanted
    if allowed:
        assert verdict(policy(rule(DENY, "web_fetch", "example.org")), "web_fetch", url=url) is DENY


@pytest.mark.spec("8.4")
def test_a_domain_with_a_star_is_not_the_host_itself() -> None:
    by = policy(rule(ALLOW, "web_fetch", "*.example.org"))
    assert verdict(by, "web_fetch", url="https://a.example.org") is ALLOW
    assert verdict(by, "web_fetch", url="https://example.org") is ASK


@pytest.mark.spec("8.4")
@pytest.mark.parametrize(("name", "argument"), [("execute_task", "name"), ("dispatch_subagent", "agent_type")])
def test_a_rule_on_an_agent_holds_for_every_surface(name: str, argument: str) -> None:
    denied, allowed = policy(rule(DENY, "Agent", "deployer")), policy(rule(ALLOW, "Agent", "clerk"))
    for spelled in ("deployer", " Deployer ", "`deployer`", "[DEPLOYER]"):
        assert verdict(denied, name, True, **{argument: spelled}) is DENY
        assert verdict(allowed, name, True, **{argument: spelled}) is ASK
    assert verdict(denied, name, True, **{argument: "clerk"}) is ALLOW
    assert verdict(allowed, name, True, **{argument: "clerk"}) is ALLOW
    assert verdict(denied, name, True) is ASK


@pytest.mark.spec("8.4")
def test_a_tool_of_one_agent_is_judged_by_whom_it_starts() -> None:
    by = policy(rule(DENY, "Agent", "deployer"))
    for name in ("subagent", "subagent_deployer"):
        assert by.decide(tool(name, True), "{}", means(agent="deployer")).verdict is DENY
        assert by.decide(tool(name, True), "{}", means(agent="clerk")).verdict is ALLOW
        assert by.decide(tool(name, True), "{}", means()).verdict is ASK


@pytest.mark.spec("8.4")
def test_a_server_stands_for_all_its_tools_and_no_others() -> None:
    by = policy(rule(DENY, "mcp__files"), rule(ASK, "mcp__web__get_*"))
    assert verdict(by, "mcp__files__read", path="a") is DENY
    assert verdict(by, "mcp__files2__read", path="a") is ALLOW
    assert verdict(by, "mcp__web__get_page") is ASK
    assert verdict(by, "mcp__web__put_page") is ALLOW
    assert verdict(policy(rule(DENY, "mcp__files__read")), "mcp__files__read_all") is ALLOW


@pytest.mark.spec("8.4")
def test_only_a_deny_without_a_pattern_hides_a_tool() -> None:
    by = policy(rule(DENY, "grep"), rule(DENY, "run_command", "rm *"), rule(ASK, "glob"), rule(DENY, "mcp__files"))
    assert [name for name in ("grep", "glob", "run_command", "mcp__files__a") if by.hides(tool(name))] == [
        "grep", "mcp__files__a",
    ]  # fmt: skip
    assert policy(rule(DENY, "Agent")).hides(tool("execute_task", delegation=True))
    assert policy(rule(DENY, "*")).hides(tool("anything"))
    assert policy(rule(DENY, "grep")).inherit("child").hides(tool("grep"))


@pytest.mark.spec("8.4")
def test_a_rule_on_reading_is_about_searching_in_files_and_not_about_their_names() -> None:
    denied, asked = policy(rule(DENY, "read_file")), policy(rule(ASK, "read_file"))
    assert [name for name in ("read_file", "grep", "glob") if denied.hides(tool(name))] == ["read_file", "grep"]
    searched = {"pattern": "x"}
    assert asked.decide(tool("grep"), searched, means()).verdict is ASK
    assert asked.decide(tool("glob"), searched, means()).verdict is ALLOW
    closed = PermissionPolicy("lead", [rules(rule(ALLOW, "read_file"), default=DENY)])
    assert closed.decide(tool("grep"), searched, means()).verdict is DENY, "an allowance is for its own tool"


# ── children ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("8.1")
@pytest.mark.case("B117")
def test_a_child_has_its_own_rules_under_those_of_its_ancestors() -> None:
    lead = PermissionPolicy("lead", [rules(rule(DENY, "grep"), scope=Scope.DEFINITION)])
    child = lead.inherit("clerk", rules(rule(DENY, "glob"), scope=Scope.DEFINITION))
    grandchild = child.inherit("writer", rules(rule(ALLOW, "grep"), rule(ALLOW, "glob"), scope=Scope.DEFINITION))
    own = decide(child, "glob")
    assert (own.verdict, own.kind, own.owner) == (DENY, DecisionKind.RULE, "clerk")
    for by, name, owner in ((child, "grep", "lead"), (grandchild, "grep", "lead"), (grandchild, "glob", "clerk")):
        found = decide(by, name)
        assert (found.verdict, found.kind, found.owner) == (DENY, DecisionKind.CEILING, owner)
        assert found.rule == name
    assert verdict(lead, "glob") is ALLOW


@pytest.mark.spec("8.1")
def test_what_a_parent_was_allowed_is_no_allowance_for_its_child() -> None:
    lead = PermissionPolicy("lead", [rules(default=ASK), rules(rule(ALLOW, "grep"), scope=Scope.DEFINITION)])
    assert verdict(lead, "grep") is ALLOW
    assert verdict(lead.inherit("clerk"), "grep") is ASK
    both = lead.inherit("clerk", rules(rule(ALLOW, "grep"), rule(ALLOW, "glob"), scope=Scope.DEFINITION))
    assert verdict(both, "grep") is ALLOW
    assert verdict(both, "glob") is ASK


@pytest.mark.spec("7.2", "8.1")
@pytest.mark.case("B116")
def test_a_whitelist_of_patterns_binds_its_agent_and_not_the_children() -> None:
    only_git = rules(rule(ALLOW, "run_command", "git *"), scope=Scope.DEFINITION, default=DENY)
    lead = policy(rule(ALLOW, "run_command", "ls *")).limited(only_git)
    assert verdict(lead, "run_command", command="ls") is DENY
    assert verdict(lead, "run_command", command="git status") is ASK
    assert decide(lead, "run_command", command="ls").kind is not DecisionKind.CEILING
    assert verdict(lead.inherit("clerk"), "run_command", command="ls") is ALLOW


@pytest.mark.spec("8.1")
def test_agents_that_call_each_other_do_not_pile_up_their_rules() -> None:
    one, two = rules(rule(DENY, "a"), scope=Scope.DEFINITION), rules(rule(DENY, "b"), scope=Scope.DEFINITION)
    by = PermissionPolicy("one", [rules(default=ASK), one])
    for _ in range(20):
        by = by.inherit("two", two).inherit("one", one)
    assert len(by.explain(tool("c"), {}, means()).findings) == 2


# ── questions and answers ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("8.2")
@pytest.mark.parametrize(
    ("name", "arguments", "suggested"),
    [
        ("run_command", {"command": "git status"}, "Bash(git status)"),
        ("read_file", {"path": "./docs/a.md"}, "Read(./docs/a.md)"),
        ("grep", {"path": "docs"}, "Grep(./docs/**)"),
        ("web_fetch", {"url": "https://Example.org/x"}, "WebFetch(domain:example.org)"),
        ("mcp__files__read", {"path": "a"}, "mcp__files__read"),
        ("run_command", {"command": "git status; git log"}, None),
        ("run_command", {"command": "git add *"}, None),
        ("run_command", {"command": "git 'x"}, None),
        ("read_file", {"path": "out/a"}, None),
        ("read_file", {"path": "a*b"}, None),
        ("read_file", {"path": "{a}"}, None),
        ("read_file", {"path": "docs/.."}, None),
        ("grep", {"path": "."}, "Grep(./**)"),
        ("run_command", {"command": "x" * 2_000}, None),
    ],
)
def test_a_question_suggests_the_rule_that_would_settle_it(
    name: str, arguments: dict[str, Any], suggested: str | None
) -> None:
    by, spec = policy(default=ASK), tool(name)
    asked = by.decide(spec, arguments, means())
    assert asked.verdict is ASK
    assert (None if asked.suggested_rule is None else str(asked.suggested_rule)) == suggested
    if asked.suggested_rule is not None:
        answered = by.decide(spec, arguments, means(answers=[asked.suggested_rule]))
        assert (answered.verdict, answered.kind, answered.rule) == (ALLOW, DecisionKind.ANSWER, suggested)


@pytest.mark.spec("8.2")
def test_an_answer_settles_a_question_of_any_ancestor_but_no_denial() -> None:
    answers = means(answers=[rule(ALLOW, "run_command", "git push"), rule(ALLOW, "run_command", "rm x")])
    lead = policy(rule(ASK, "run_command", "git push *"), rule(DENY, "run_command", "rm *"))
    child = lead.inherit("clerk", rules(rule(ASK, "run_command"), scope=Scope.DEFINITION))
    run = tool("run_command")
    assert child.decide(run, {"command": "git push"}, answers).verdict is ALLOW
    assert child.decide(run, {"command": "git push --force"}, answers).verdict is ASK
    assert child.decide(run, {"command": "git push; touch x"}, answers).verdict is ASK
    assert child.decide(run, {"command": "rm x"}, answers).verdict is DENY


@pytest.mark.spec("8.3", "8.5")
def test_an_explanation_names_every_rule_that_was_looked_at() -> None:
    lead = PermissionPolicy("lead", [rules(rule(DENY, "run_command", "rm *"), scope=Scope.TENANT)])
    child = lead.inherit("clerk", rules(rule(ALLOW, "run_command", "git *"), scope=Scope.DEFINITION))
    explained = child.explain(tool("run_command"), {"command": "git log; rm x"}, means())
    told = [(one.owner, one.verdict, one.rule, one.scope) for one in explained.findings]
    assert told == [
        ("clerk", ALLOW, "run_command(git *)", Scope.DEFINITION),
        ("clerk", DENY, "run_command(rm *)", Scope.TENANT),
        ("lead", ALLOW, "", None),
        ("lead", DENY, "run_command(rm *)", Scope.TENANT),
    ]
    assert explained.decision == child.decide(tool("run_command"), {"command": "git log; rm x"}, means())
    assert "rm x" in explained.decision.reason
    assert "run_command(rm *)" in explained.decision.reason


@pytest.mark.spec("8.3")
def test_nothing_is_parsed_or_resolved_where_no_rule_needs_it() -> None:
    def untouchable(path: str) -> str | None:
        raise AssertionError(path)

    words = Words()
    spared = means(parser=words, resolve_path=untouchable)
    by = policy(rule(DENY, "web_fetch"), rule(ALLOW, "run_command"))
    assert by.decide(tool("run_command"), {"command": "rm x"}, spared).verdict is ALLOW
    assert by.decide(tool("read_file"), {"path": "a"}, spared).verdict is ALLOW
    assert words.asked == 0


@pytest.mark.spec("8.4")
def test_a_path_that_cannot_be_resolved_is_asked_for() -> None:
    def broken(path: str) -> str | None:
        raise OSError(path)

    by = policy(rule(DENY, "read_file", "a"))
    assert by.decide(tool("read_file"), {"path": "b"}, means(resolve_path=broken)).verdict is ASK


# ── properties ──────────────────────────────────────────────────────────────────────────────────────────────────

NAMES = ["grep", "run_command", "read_file", "*"]
RULE = st.builds(
    rule,
    st.sampled_from(list(Verdict)),
    st.sampled_from(NAMES),
    st.sampled_from([None, "a", "a *", "*", "b*"]),
)
CALLS = st.sampled_from(
    [("grep", {"path": "a"}), ("read_file", {"path": "a/b"}), ("run_command", {"command": "a x; b"}),
     ("run_command", {"command": "a"}), ("run_command", {"command": "'"}), ("other", {})]
)  # fmt: skip
DEFAULT = st.sampled_from([None, *Verdict])


@pytest.mark.spec("8.1")
@settings(max_examples=examples(200), deadline=None)
@given(st.lists(RULE, max_size=6), DEFAULT, CALLS, st.randoms(use_true_random=False))
def test_the_order_of_rules_never_matters(
    some: list[PermissionRule], default: Verdict | None, call: tuple[str, dict[str, Any]], random: Any
) -> None:
    shuffled = random.sample(some, len(some))
    name, arguments = call
    first = policy(*some, default=default).decide(tool(name), arguments, means())
    assert policy(*shuffled, default=default).decide(tool(name), arguments, means()).verdict is first.verdict


@pytest.mark.spec("8.1")
@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.lists(RULE, max_size=4), DEFAULT), min_size=2, max_size=4), CALLS)
def test_a_child_is_never_allowed_more_than_any_ancestor(
    levels: list[tuple[list[PermissionRule], Verdict | None]], call: tuple[str, dict[str, Any]]
) -> None:
    name, arguments = call
    strictness = [ALLOW, ASK, DENY]
    by, before = None, 0
    for at, (some, default) in enumerate(levels):
        own = rules(*some, scope=Scope.DEFINITION, default=default)
        by = PermissionPolicy("lead", [own]) if by is None else by.inherit(f"child{at}", own)
        now = strictness.index(by.decide(tool(name), arguments, means()).verdict)
        assert now >= before
        before = now


@pytest.mark.spec("8.2", "8.4")
def test_who_may_be_started_is_suggested_for_every_surface() -> None:
    by, spec = policy(default=ASK), tool("execute_task", True)
    asked = by.decide(spec, {"name": "scout"}, means()).suggested_rule
    assert str(asked) == "Agent(scout)"
    answers = means(answers=[asked])
    assert by.decide(tool("dispatch_subagent", True), {"agent_type": "scout"}, answers).verdict is ALLOW
    assert by.decide(spec, {"name": "scout2"}, answers).verdict is ASK
    assert by.decide(tool("run_command"), {"command": "scout"}, answers).verdict is ASK
