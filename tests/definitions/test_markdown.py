"""One agent file at a time: what it comes to, what is said about it, and that nothing in it can hurt."""

import codecs
import json
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.agent.definition import (
    AgentDefinition,
    AgentMode,
    Inherit,
    InheritKind,
    SessionMode,
    SessionScope,
    Source,
    Surface,
    SurfaceKind,
)
from app.agent.policy import REPORT, BudgetLimits, FilterRef, PolicyFields
from app.definitions import Parsed, Severity, from_mapping, parse, to_mapping
from tests.definitions.world import NAMED, loaded, read, said
from tests.longer import examples

# ── the file ────────────────────────────────────────────────────────────────────────────────────────────────────


COMPLETE = """\
name: clerk
description: Keeps the books.
mode: all
tools: Read, Grep, Agent(scout, reviewer)
disallowedTools: Bash
model: openai:gpt-4o
temperature: 0.3
effort: high
thinking: off
maxTokens: 2000
tool_choice: Read
maxTurns: 12
parallel_tool_calls: no
tool_name: ask_clerk
input_schema: {type: object, properties: {year: {type: integer, minimum: 1900}}}
outputSchema: {type: array}
session_mode: {mode: reuse_session, scope: user}
inherit_context: last:3
runner: books.run:keep
budget: {tokens: 9000}
surfaces: [dispatch, {kind: per_agent, agents: [scout]}]
handoff:
  max_depth: 2
  max_retries: 1
  input_filter: mask_secrets
  timeout_ms: 60000
  denied_tools: [subagent_builder]
  on_denied: report
emoji: 📒
version: 3
"""


@pytest.mark.spec("10.1")
def test_a_complete_file_gives_a_complete_definition() -> None:
    parsed = parse(f"---\n{COMPLETE}---\n\nKeep them.\n", path="agents/clerk.md", source="library")
    assert parsed.definition == AgentDefinition(
        name="clerk",
        description="Keeps the books.",
        prompt="Keep them.",
        mode=AgentMode.ALL,
        tools=("read_file", "grep", "Agent"),
        disallowed_tools=("run_command",),
        model="openai:gpt-4o",
        temperature=0.3,
        effort="high",
        thinking=False,
        max_tokens=2000,
        tool_choice="read_file",
        max_steps=12,
        parallel_tool_calls=False,
        tool_name="ask_clerk",
        input_schema={"type": "object", "properties": {"year": {"type": "integer", "minimum": 1900}}},
        output_schema={"type": "array"},
        session_mode=SessionMode.REUSE,
        session_scope=SessionScope.USER,
        inherit_context=Inherit(kind=InheritKind.LAST, count=3),
        runner="books.run:keep",
        budget=BudgetLimits(tokens=9000),
        surfaces=(Surface(kind=SurfaceKind.DISPATCH), Surface(kind=SurfaceKind.PER_AGENT, agents=("scout",))),
        agents=("scout", "reviewer"),
        policy=PolicyFields(
            max_depth=(2,),
            max_retries=1,
            input_filters=(FilterRef(name="mask_secrets"),),
            timeout_ms=60_000,
            denied_tools=(("subagent_builder",),),
            on_denied=REPORT,
        ),
        metadata={"emoji": "📒", "version": 3},
        source=Source(kind="library", path="agents/clerk.md"),
    )
    assert parsed.problems == ()


@pytest.mark.spec("10.1")
@pytest.mark.case("B196")
def test_line_ends_and_a_byte_order_mark_make_no_difference() -> None:
    text = f"---\n{NAMED}tools: Read\n---\n\nFirst.\n\n---\n\nname: not a head\n---\nLast.\n"
    variants = [
        text.encode(),
        text.replace("\n", "\r\n").encode(),
        text.replace("\n", "\r\n", 3).encode(),
        codecs.BOM_UTF8 + text.replace("\n", "\r\n").encode(),
        text.replace("---\n", "---  \t\n")
        .replace("\n\n---  \t\n", "\n\n---\n")
        .replace("head\n---  \t", "head\n---")
        .encode(),
        f"\n\n{text}".encode(),
    ]
    results = [parse(variant, path="agents/clerk.md") for variant in variants]
    assert len(set(variants)) == 6
    assert results[0].definition is not None
    assert results[0].definition.prompt == "First.\n\n---\n\nname: not a head\n---\nLast."
    assert all(result == results[0] for result in results)
    assert results[0].problems == ()


@pytest.mark.spec("10.3")
@pytest.mark.case("B195")
@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (b"", 1, "no front matter"),
        (b"# Just a page\n", 1, "no front matter"),
        (b"---\nname: a\ndescription: b\n", 1, "not closed"),
        (b"---\n---\nbody", 2, "front matter is empty"),
        (b"---\n# nothing but a comment\n---\nbody", 2, "front matter is empty"),
        (b"---\n- name\n- description\n---\nbody", 2, "a list, not a map"),
        (b"---\njust words\n---\nbody", 2, "no map of keys"),
        (b"---\nname: a\n---\nbody", 2, "description is missing"),
        (b"---\nname: a\ndescription: \xff\n---\n", 3, "not UTF-8: byte 0xff"),
        ("---\nname: a\n---\n".encode("utf-16"), 1, "UTF-16"),
        (b"---\nname: " + b"a" * 129 + b"\ndescription: b\n---\n", 2, "1 to 128 characters"),
        (b'---\nname: "a\\tb"\ndescription: b\n---\n', 2, "control characters"),
        (b"---\ndescription: b\n" + b"# c\n" * 20_000 + b"---\n", 2, "at most 65536"),
        (b"---\ndescription: b\n---\n" + b"x" * 300_000, 1, "larger than"),
    ],
)
def test_a_file_that_gives_no_agent_is_reported_with_its_line(data: bytes, line: int, reason: str) -> None:
    parsed = parse(data, path="agents/file.md")
    errors = [problem for problem in parsed.problems if problem.severity is Severity.ERROR]
    assert parsed.definition is None
    assert [(problem.path, problem.line) for problem in errors] == [("agents/file.md", line)]
    assert reason in errors[0].message
    assert parsed.has_front_matter == ("no front matter" not in reason)


def test_text_with_a_lone_surrogate_is_reported() -> None:
    assert said(parse("---\nname: \ud800\n---\n", path="f.md")) == ["f.md:2: error: not Unicode: a lone surrogate"]


@pytest.mark.spec("10.1")
def test_a_missing_name_is_taken_from_the_file() -> None:
    parsed = parse("---\ndescription: Keeps.\n---\nKeep.", path="deep/down/book-keeper.md")
    assert parsed.definition is not None
    assert parsed.definition.name == "book-keeper"
    assert said(parsed) == ["deep/down/book-keeper.md:2: warning: no name is given, the file's is used: book-keeper"]


def test_an_empty_body_is_a_warning() -> None:
    parsed = read(NAMED, body="\n \n")
    assert parsed.definition is not None
    assert parsed.definition.prompt == ""
    assert "no prompt" in said(parsed)[0]


def test_the_prompt_keeps_its_inner_form_and_loses_control_characters() -> None:
    definition = loaded(NAMED, body="\n\n    indented\n\nlast\x00\x1b  \n\n")
    assert definition.prompt == "    indented\n\nlast"


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ("name: on", "on"),
        ("name: 007", "007"),
        ("name: 1.10", "1.10"),
        ("name: 2026-11-30", "2026-11-30"),
        ("name: 'yes'", "yes"),
        ("name: Code Reviewer", "Code Reviewer"),
        ("name: 审查员", "审查员"),
        ("name: team/reviewer", "team/reviewer"),
        ("name: @home", "@home"),
        ("name: 50% done: yes", "50% done: yes"),
    ],
)
@pytest.mark.spec("10.1")
def test_a_name_is_the_text_as_it_stands(head: str, name: str) -> None:
    assert loaded(f"{head}\ndescription: d").name == name


def test_what_a_comment_cuts_off_is_pointed_out() -> None:
    parsed = read("name: clerk\ndescription: Knows C # and Python\n")
    assert parsed.definition is not None
    assert parsed.definition.description == "Knows C"
    assert said(parsed) == [
        "agents/file.md:3: warning: what follows ' #' is a comment; quote the description to keep it"
    ]


# ── heads that are no YAML ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("10.1", "10.3")
@pytest.mark.parametrize(
    ("head", "description"),
    [
        ('description: Use when: user: "x"', 'Use when: user: "x"'),
        ("description: one\ntwo <example>\nuser: three", "one\ntwo <example>\nuser: three"),
        ('description: "A "deep" look\\nand more"', 'A "deep" look\nand more'),
        ("description: 'It''s a 'deep' look'", "It's a 'deep' look"),
        ('description: "never closed', "never closed"),
        ("description: |\n\ttabbed\n\tlines", "tabbed\nlines"),
        ("description: `ticks` first", "`ticks` first"),
        ("description: %percent", "%percent"),
        ("description: !!python/object:os.system ls", "!!python/object:os.system ls"),
        ("description: &anchor text", "&anchor text"),
        ("description: {unclosed", "{unclosed"),
        ("description: bell\x07 rings", "bell rings"),
    ],
)
def test_a_bad_value_costs_only_itself(head: str, description: str) -> None:
    parsed = read(f"name: clerk\n{head}\ntools:\n  - Read\nmodel: opus\ncolor: red")
    assert parsed.definition is not None
    definition = parsed.definition
    assert (definition.name, definition.description) == ("clerk", description)
    assert (definition.tools, definition.model, definition.metadata) == (("read_file",), "opus", {"color": "red"})
    assert any("not valid YAML" in message for message in said(parsed))


@pytest.mark.spec("7.2", "10.2")
@pytest.mark.parametrize(
    ("head", "line"),
    [
        (f"{NAMED}\ttools: Read", 4),
        ("name: clerk\n tools: Read\ndescription: d", 3),
        ("* tools: Read\ndescription: d: e", 2),
        ("**allowed-tools**: Read\ndescription: d: e", 2),
        (f"{NAMED}x: y: z\n- disallowedTools: Bash", 5),
    ],
)
def test_a_whitelist_that_cannot_be_told_apart_keeps_the_agent_out(head: str, line: int) -> None:
    parsed = read(head)
    assert parsed.definition is None
    errors = [problem for problem in parsed.problems if problem.severity is Severity.ERROR]
    assert [problem.line for problem in errors] == [line]
    assert "must begin at column 0" in errors[0].message


@pytest.mark.spec("7.2")
@pytest.mark.parametrize("head", ["tools：Read", "tools:Read", "Tools: Read", "allowed-tools: Read", '"tools" : Read'])
def test_other_spellings_of_the_key_are_the_same_whitelist(head: str) -> None:
    assert loaded(f"{NAMED}{head}").tools == ("read_file",)


@pytest.mark.parametrize(
    "head",
    [
        "tools: Read\ntools: Bash",
        "tools: Read\nallowed-tools: Bash",
        "handoff: {max_depth: 1}\nhandoff: {max_depth: 9}",
    ],
)
def test_a_limit_that_is_given_twice_keeps_the_agent_out(head: str) -> None:
    parsed = read(NAMED + head)
    assert parsed.definition is None
    assert "given twice" in parsed.problems[0].message
    assert parsed.problems[0].line == 5


def test_of_a_label_that_is_given_twice_the_first_holds() -> None:
    parsed = read(f"{NAMED}description: Other.\nmaxTurns: 3\nmax_steps: 4\ncolor: red\ncolor: blue")
    assert parsed.definition is not None
    assert (parsed.definition.description, parsed.definition.max_steps) == ("Keeps the books.", 3)
    assert parsed.definition.metadata == {"color": "red"}
    assert [problem.line for problem in parsed.problems] == [4, 6, 8]


# ── robustness ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "head",
    [
        "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*a, *a]\n" for n in range(1, 900)),
        "a: " + "[" * 20_000,
        "a: " + "{a: " * 10_000,
        "- " * 30_000,
        "? " * 30_000,
        "".join(f"k{n}: v\n" for n in range(7_000)),
        "".join(f" tools: {n}\n" for n in range(5_000)),
        "description: x: y\n" + "tools: Read\n" * 4_000,
        "tools: " + " " * 60_000 + "(",
        "tools: " + "(" * 60_000,
        "tools: " + "a-" * 30_000,
        "handoff:\n" + "".join(f"  k{n}: v\n" for n in range(4_000)),
        'description: "' + "\\" * 60_000,
        "name" * 15_000,
        "a" + " " * 60_000 + ": b",
    ],
)
@pytest.mark.spec("10.3")
def test_a_hostile_head_is_refused_or_read_in_little_time(head: str) -> None:
    begin = time.process_time()
    parsed = read(f"description: d\n{head}")
    assert time.process_time() - begin < 2  # all take below 0.2 s; what grows with the square takes minutes
    assert len(parsed.problems) <= 60
    assert parsed.definition is None or parsed.definition.description.startswith(("d", "x"))


@settings(max_examples=examples(300), deadline=2_000)
@given(st.one_of(st.binary(max_size=400), st.text(max_size=400)))
def test_no_file_makes_the_reader_fail(data: bytes | str) -> None:
    check(parse(data, path="f.md"))


LINES = [
    "tools: Read", "tools: *", "name: a", "description: b: c", "description: |", "handoff:", "  max_depth: 1", "---",
    "surfaces: [task, dispatch]", "agents: a", "- x", "  - y", '"', 'b: "', "input_schema: {type: object}", "a: &a *a",
    "budget:", "  tokens: 5", "session_mode: {mode: reuse_session}", "runner: a.b:c", "  on_error: {agent: a}",
]  # fmt: skip
LINE = st.one_of(st.sampled_from(LINES), st.text(alphabet="ab:#-|>{}[]&*!%@`'\"\\ \t,0", max_size=12))


@settings(max_examples=examples(500), deadline=2_000)
@given(st.lists(LINE, max_size=8), st.text(max_size=20))
def test_no_head_makes_the_reader_fail_or_widens_tools(lines: list[str], body: str) -> None:
    parsed = parse("---\n" + "\n".join(lines) + f"\n---\n{body}", path="f.md")
    check(parsed)
    head = lines[: lines.index("---")] if "---" in lines else lines
    if parsed.definition is not None and any(line.startswith("tools:") for line in head):
        assert parsed.definition.tools is not None


def check(parsed: Parsed) -> None:
    """What holds for every file: an agent or an error, lines that exist, and a definition that can be stored."""
    errors = [problem for problem in parsed.problems if problem.severity is Severity.ERROR]
    assert (parsed.definition is None) == bool(errors)
    assert all(problem.line >= 1 and problem.message for problem in parsed.problems)
    if parsed.definition is not None:
        # code of the server is what only a file may name: a mapping that does is refused
        plain = replace(parsed.definition, runner=None)
        stored = json.loads(json.dumps(to_mapping(plain), allow_nan=False))
        assert from_mapping(stored, source=plain.source) == plain
