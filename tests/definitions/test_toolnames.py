"""Which tools a file grants: every form of the list, names of other services, and no list that grants too much."""

import pytest

from app.agent.definition import AgentDefinition
from app.definitions import Parsed, Severity, parse
from app.definitions.toolnames import BUILT_IN, OPTIONAL, mapped, pieces_of


def read(lines: str, known_tools: frozenset[str] = BUILT_IN) -> Parsed:
    return parse(f"---\nname: a\ndescription: d\n{lines}\n---\nbody", path="f.md", known_tools=known_tools)


def loaded(lines: str, known_tools: frozenset[str] = BUILT_IN) -> AgentDefinition:
    definition = read(lines, known_tools).definition
    assert definition is not None
    return definition


@pytest.mark.spec("10.2")
@pytest.mark.parametrize(
    "lines",
    [
        "tools: Read, Grep",
        "tools: Read Grep",
        "tools: [Read, Grep]",
        "tools: '[Read, Grep]'",
        'tools: ["Read", `Grep`',
        "tools: [Read, Grep",
        "tools:\n  - Read\n  - Grep",
        "tools:\n- Read\n- Grep",
        "tools: Read，Grep",
        "tools: Read; Grep,,",
        "tools: |\n  Read\n  Grep",
        "tools: |\n  - Read\n  - Grep",
        "tools: {read: true, grep: yes}",
        "tools: {'*': false, read: true, grep: on, bash: false}",
        "tools: read_file, grep",
        "tools: READ, grep, Read",
    ],
)
def test_every_form_of_the_list_is_the_same_whitelist(lines: str) -> None:
    assert loaded(lines).tools == ("read_file", "grep")


@pytest.mark.spec("10.2")
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("Read", "read_file"),
        ("Write", "write_file"),
        ("Edit", "edit_file"),
        ("MultiEdit", "edit_file"),
        ("Glob", "glob"),
        ("LS", "glob"),
        ("list", "glob"),
        ("Grep", "grep"),
        ("Bash", "run_command"),
        ("WebFetch", "web_fetch"),
        ("webfetch", "web_fetch"),
        ("Skill", "load_skill"),
        ("Task", "Agent"),
        ("Agent", "Agent"),
        ("dispatch_subagent", "dispatch_subagent"),
        ("subagent_scout", "subagent_scout"),
        ("weather", "weather"),
    ],
)
def test_names_of_other_services_are_mapped_and_ours_stay(theirs: str, ours: str) -> None:
    assert mapped(theirs) == ours
    assert mapped(ours) == ours


def test_a_tool_that_exists_under_a_name_keeps_it() -> None:
    assert loaded("tools: Bash, Read", BUILT_IN | {"Bash"}).tools == ("Bash", "read_file")


@pytest.mark.spec("7.2")
def test_a_missing_key_inherits_and_an_empty_list_grants_nothing() -> None:
    assert loaded("color: red").tools is None
    assert loaded("tools: []").tools == ()
    assert loaded("tools: '[]'").tools == ()


@pytest.mark.spec("7.2", "10.2")
@pytest.mark.parametrize(
    "lines",
    [
        "tools:",
        "tools: ''",
        "tools: null",
        "tools: Nonsense",
        "tools: mcp__a__b, TodoWrite",
        "tools: TodoWrite(x)",
        "tools: {}",
        "tools: {'*': false}",
        "tools: ', ,'",
        "tools: [[Read]]",
        "tools: [{name: Read}]",
        "tools: [null]",
        "tools: none",
    ],
)
def test_a_list_that_comes_to_nothing_keeps_the_agent_out(lines: str) -> None:
    parsed = read(lines)
    assert parsed.definition is None
    errors = [problem for problem in parsed.problems if problem.severity is Severity.ERROR]
    assert [(problem.line, problem.key) for problem in errors] == [(4, "tools")]


@pytest.mark.spec("10.2")
def test_what_does_not_exist_is_left_out_and_named() -> None:
    parsed = read("tools: Read, TodoWrite, mcp__time__now, WebSearch(x)")
    assert parsed.definition is not None
    assert parsed.definition.tools == ("read_file",)
    assert [problem.message for problem in parsed.problems] == [
        "no MCP server of this name is configured: mcp__time__now; they are left out",
        "unknown tools: TodoWrite, WebSearch; they are left out",
    ]
    assert {problem.line for problem in parsed.problems} == {4}


@pytest.mark.spec("3.1", "7.2")
def test_a_name_that_an_agent_could_have_as_its_tool_stays_in_the_list_with_a_remark() -> None:
    parsed = read("tools: Read, delegate_code_review, Delegate-Review, 7up")
    assert parsed.definition is not None
    assert parsed.definition.tools == ("read_file", "delegate_code_review")
    assert [problem.message for problem in parsed.problems] == [
        "there is no tool of the name delegate_code_review; it is granted if an agent has it as its tool_name",
        "unknown tools: Delegate-Review, 7up; they are left out",
    ]
    only = read("tools: delegate_code_review")
    assert only.definition is not None
    assert only.definition.tools == ("delegate_code_review",)


@pytest.mark.spec("7.2")
@pytest.mark.parametrize("name", ["dispatch_subagent", "execute_task", "get_task_output", "list_tasks", "subagent"])
def test_the_tools_of_every_surface_may_be_listed(name: str) -> None:
    parsed = read(f"tools: {name}, Read")
    assert parsed.definition is not None
    assert parsed.definition.tools == (name, "read_file")
    assert parsed.problems == ()


@pytest.mark.spec("10.2")
def test_tools_that_are_switched_off_stay_in_the_list_and_are_named() -> None:
    parsed = read("tools: Read, Bash, load_skill")
    assert parsed.definition is not None
    assert parsed.definition.tools == ("read_file", "run_command", "load_skill")
    assert [problem.message for problem in parsed.problems] == [
        "tools that are switched off on this server: run_command, load_skill"
    ]
    assert read("tools: Read, Bash", BUILT_IN | {"run_command"}).problems == ()


@pytest.mark.parametrize("lines", ["tools: *", 'tools: "*"', "tools: All tools", "tools: ['*']", "tools: {'*': true}"])
@pytest.mark.spec("7.2", "10.2")
def test_a_star_is_every_tool_there_is_but_no_delegation(lines: str) -> None:
    assert loaded(lines, BUILT_IN | {"weather"}).tools == tuple(sorted(BUILT_IN | {"weather"}))


def test_a_star_among_names_grants_only_the_names() -> None:
    assert loaded("tools: |\n  * Read\n  * Grep").tools == ("read_file", "grep")


@pytest.mark.spec("10.2")
def test_a_map_with_nothing_but_false_grants_the_rest() -> None:
    definition = loaded("tools: {grep: false, write: 0}")
    assert definition.tools == ("edit_file", "glob", "note", "read_artifact", "read_file")
    assert definition.disallowed_tools == ("grep", "write_file")


@pytest.mark.spec("7.2")
@pytest.mark.parametrize(
    ("lines", "tools", "agents"),
    [
        ("tools: Agent", ("Agent",), None),
        ("tools: Agent(*)", ("Agent",), None),
        ("tools: Read, Agent(a, b), Grep", ("read_file", "Agent", "grep"), ("a", "b")),
        ("tools: Agent (a, Code Reviewer)", ("Agent",), ("a", "Code Reviewer")),
        ("tools: [Agent(a, b), Task(c)]", ("Agent",), ("a", "b", "c")),
        ("tools: Agent, Agent(a)", ("Agent",), ("a",)),
        ("tools: Agent()", ("Agent",), ()),
        ("tools: Agent(a, b", ("Agent",), ("a", "b")),
        ("tools: Agent(a, b)\nagents: [b, c]", ("Agent",), ("b",)),
        ("tools: Agent\nagents: b, Code Reviewer", ("Agent",), ("b", "Code Reviewer")),
        ("tools: Agent\nagents: '*'", ("Agent",), None),
        ("tools: Agent\nagents: []", ("Agent",), ()),
        ("tools: dispatch_subagent(a)", ("dispatch_subagent",), ("a",)),
        ("tools: subagent_scout, Read", ("subagent_scout", "read_file"), None),
    ],
)
def test_delegation_is_listed_with_those_whom_it_may_reach(
    lines: str, tools: tuple[str, ...], agents: tuple[str, ...] | None
) -> None:
    definition = loaded(lines)
    assert (definition.tools, definition.agents) == (tools, agents)


@pytest.mark.spec("10.1")
@pytest.mark.parametrize(
    ("lines", "denied"),
    [
        ("disallowedTools: Bash, Write", ("run_command", "write_file")),
        ("disallowedTools: [Bash, Write]", ("run_command", "write_file")),
        ("denied-tools: Bash", ("run_command",)),
        ("disallowedTools: Bash(rm *), Agent(x), Write", ("write_file",)),
        ("disallowedTools: mcp__time, mcp__*, Nonsense", ("mcp__time", "mcp__*", "Nonsense")),
        ("disallowedTools:", ()),
    ],
)
def test_what_is_taken_away_is_at_most_too_much(lines: str, denied: tuple[str, ...]) -> None:
    assert loaded(lines).disallowed_tools == denied


def test_a_star_takes_everything_away() -> None:
    denied = loaded("disallowedTools: '*'", BUILT_IN | {"weather"}).disallowed_tools
    assert {*BUILT_IN, *OPTIONAL, "Agent", "dispatch_subagent", "weather"} <= set(denied)


def test_a_denied_list_that_cannot_be_read_keeps_the_agent_out() -> None:
    assert read("disallowedTools: {Bash: {deep: true}, Read: [x]}").definition is None


def test_pieces_keep_what_stands_in_parentheses() -> None:
    assert pieces_of('Read, Agent(a, b) "Grep"\n- Bash(echo (x), y) Glob') == [
        "Read",
        "Agent(a, b)",
        "Grep",
        "Bash(echo(x), y)",
        "Glob",
    ]
