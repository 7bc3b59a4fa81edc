"""MCP servers in definitions: names of configured ones grant, whether or not they are up; nothing starts one."""

import pytest

from app.agent.definition import AgentDefinition, Source
from app.agent.errors import InvalidRequest, Unsupported
from app.definitions import Parsed, parse
from app.definitions.mapping import from_mapping
from app.definitions.toolnames import BUILT_IN

KNOWN = BUILT_IN | {"mcp__files", "mcp__time"}  # two servers are configured

INLINE = Source(kind="inline")


def read(lines: str) -> Parsed:
    return parse(f"---\nname: a\ndescription: d\n{lines}\n---\nbody", path="f.md", known_tools=KNOWN)


def loaded(lines: str) -> AgentDefinition:
    parsed = read(lines)
    assert parsed.definition is not None
    assert parsed.problems == ()
    return parsed.definition


@pytest.mark.spec("7.7", "10.2")
@pytest.mark.parametrize("name", ["mcp__files__read", "mcp__files", "mcp__files__*", "mcp__*"])
def test_a_tool_of_a_configured_server_is_known_before_the_server_is(name: str) -> None:
    assert loaded(f"tools: Read, {name}").tools == ("read_file", name)
    assert loaded(f"disallowedTools: {name}").disallowed_tools == (name,)


@pytest.mark.spec("7.7", "10.2")
@pytest.mark.parametrize("name", ["mcp__file__read", "mcp__files2__read", "mcp__other", "mcp__"])
def test_a_server_that_nobody_has_configured_is_named_and_left_out(name: str) -> None:
    parsed = read(f"tools: Read, {name}")
    assert parsed.definition is not None
    assert parsed.definition.tools == ("read_file",)
    (problem,) = parsed.problems
    assert f"no MCP server of this name is configured: {name}" in problem.message


@pytest.mark.spec("7.2")
def test_everything_means_the_tools_of_servers_too() -> None:
    assert set(loaded("tools: '*'").tools or ()) == KNOWN


@pytest.mark.spec("7.7", "10.1")
@pytest.mark.parametrize(
    "lines",
    [
        "mcpServers: [files, time]",
        "mcpServers: files, time",
        "mcp_servers:\n  - files\n  - time",
        "mcpServers: {files: {}, time: }",
    ],
)
def test_named_servers_are_granted_besides_what_is_inherited(lines: str) -> None:
    definition = loaded(lines)
    assert (definition.tools, definition.mcp_servers) == (None, ("files", "time"))


@pytest.mark.spec("7.7", "10.1")
def test_a_server_of_which_single_tools_are_listed_is_not_granted_as_a_whole() -> None:
    definition = loaded("tools: Read, mcp__files__read\nmcpServers: [files, time]")
    assert (definition.tools, definition.mcp_servers) == (("read_file", "mcp__files__read"), ("time",))


@pytest.mark.spec("10.5")
def test_nothing_that_a_definition_says_starts_a_server() -> None:
    parsed = read("mcpServers:\n  files:\n    command: evil\n  own: {command: evil}")
    assert parsed.definition is not None
    assert parsed.definition.mcp_servers == ("files",)
    assert [problem.message.partition(":")[0] for problem in parsed.problems] == [
        "mcpServers",
        "no MCP server of this name is configured",
    ]
    given = {"name": "a", "description": "d", "prompt": "p"}
    with pytest.raises(Unsupported):
        from_mapping({**given, "mcpServers": {"files": {"command": "evil"}}}, source=INLINE, known_tools=KNOWN)
    with pytest.raises(InvalidRequest):
        from_mapping({**given, "mcpServers": ["own"]}, source=INLINE, known_tools=KNOWN)
