"""MCP servers in definitions: names of configured ones grant, up or not; trusted files bring some along."""

from pathlib import Path

import pytest

from app.agent.definition import AgentDefinition, Source
from app.agent.errors import InvalidRequest
from app.definitions import Catalog, Parsed, parse
from app.definitions.mapping import from_mapping, to_mapping
from app.definitions.reading import NO_CHECKS, Checks
from app.definitions.toolnames import BUILT_IN

KNOWN = BUILT_IN | {"mcp__files", "mcp__time"}  # two servers are configured

INLINE = Source(kind="inline")


def read(lines: str, trusted: bool = True, checks: Checks = NO_CHECKS) -> Parsed:
    text = f"---\nname: a\ndescription: d\n{lines}\n---\nbody"
    return parse(text, path="f.md", known_tools=KNOWN, trusted=trusted, checks=checks)


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
def test_a_server_of_a_file_that_is_not_trusted_is_told_and_left_out_and_one_over_the_api_is_refused() -> None:
    parsed = read("tools: Read, mcp__own__x\nmcpServers:\n  files:\n    command: evil\n  own: {command: evil}", False)
    assert parsed.definition is not None
    assert (parsed.definition.mcp_servers, parsed.definition.own_servers) == (("files",), ())
    assert parsed.definition.tools == ("read_file",)
    configured, refused, tool = parsed.problems
    assert "that one is used" in configured.message
    assert ("trusted_agents" in refused.message, refused.line, refused.key) == (True, 5, "mcpServers")
    assert "no MCP server of this name is configured: mcp__own__x" in tool.message
    given = {"name": "a", "description": "d", "prompt": "p"}
    for value in ({"files": {"command": "evil"}}, [{"own": {"command": "evil"}}], ["own"]):
        with pytest.raises(InvalidRequest):
            from_mapping({**given, "mcpServers": value}, source=INLINE, known_tools=KNOWN)


@pytest.mark.spec("7.7", "10.1")
def test_a_file_brings_servers_along_and_may_name_their_tools_before_or_after() -> None:
    own = "mcpServers:\n  - files\n  - own: {command: sh, env: {PORT: 80, OFF: }, timeout_ms: 300}"
    for lines in (f"tools: Read, mcp__own__x\n{own}", f"{own}\ntools: [Read, mcp__own__x]"):
        definition = loaded(lines)
        assert definition.tools == ("read_file", "mcp__own__x")
        assert definition.mcp_servers == ("files",), "of the other single tools are listed"
        (server,) = definition.own_servers
        assert (server.name, dict(server.entry)) == (
            "own", {"command": "sh", "env": {"PORT": "80"}, "timeout_ms": "300"},
        )  # fmt: skip
    whole = loaded(own)
    assert (whole.tools, whole.mcp_servers) == (None, ("files", "own"))
    assert "mcp__own" in (loaded(f"tools: '*'\n{own}").tools or ())


@pytest.mark.spec("7.7")
def test_a_server_that_cannot_be_begun_is_told_with_its_line_and_left_out() -> None:
    checks = Checks(server=lambda server: f"{server.name} needs a command")
    parsed = read("color: red\nmcp_config: {own: {comand: sh}, odd: 5}", checks=checks)
    assert parsed.definition is not None
    assert (parsed.definition.mcp_servers, parsed.definition.own_servers) == ((), ())
    assert [(p.line, p.message) for p in parsed.problems] == [
        (5, "mcp_config.own: own needs a command; it is left out"),
        (5, "mcp_config.odd must be a map with a command or a url, not '5'; it is left out"),
    ]


@pytest.mark.spec("10.1")
@pytest.mark.parametrize("value", ["[[files]]", "[{own: {command: a}}, {own: {command: b}}]"])
def test_what_names_no_server_or_two_of_one_name_is_an_error(value: str) -> None:
    assert read(f"mcpServers: {value}").definition is None


@pytest.mark.spec("10.1")
def test_the_names_of_servers_come_back_from_what_was_stored() -> None:
    given = {"name": "a", "description": "d", "mcpServers": ["files"]}
    definition = from_mapping(given, source=INLINE, known_tools=KNOWN)
    assert definition.mcp_servers == ("files",)
    assert from_mapping(to_mapping(definition), source=INLINE) == definition


@pytest.mark.spec("7.7", "10.3")
def test_of_two_files_that_bring_different_servers_of_one_name_the_later_one_has_none(tmp_path: Path) -> None:
    for place, name, command in (("x", "first", "one"), ("x", "same", "one"), ("y", "later", "two")):
        (tmp_path / place).mkdir(exist_ok=True)
        head = f"name: {name}\ndescription: d\ntools: mcp__own__t, Read\nmcpServers: {{own: {{command: {command}}}}}"
        (tmp_path / place / f"{name}.md").write_text(f"---\n{head}\n---\nbody")
    catalog = Catalog([tmp_path / "x", tmp_path / "y"], library=None, trusted=True)
    catalog.reload()
    assert [(own.name, dict(own.entry)) for own in catalog.own_servers] == [("own", {"command": "one"})]
    found = {agent.name: [own.name for own in agent.own_servers] for agent in catalog.report("t").agents}
    assert found == {"first": ["own"], "same": ["own"], "later": []}
    (told,) = catalog.report("t").problems
    assert (Path(told.path).name, told.line, "agent 'first'" in told.message) == ("later.md", 5, True)
    (tmp_path / "x" / "first.md").unlink()
    (tmp_path / "x" / "same.md").unlink()
    catalog.reload()
    assert [dict(own.entry) for own in catalog.own_servers] == [{"command": "two"}]
    assert catalog.report("t").problems == ()
