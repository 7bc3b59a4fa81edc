"""Names of MCP tools: safe, unique, the same whatever else a server offers."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tools.mcp_config import McpServer
from app.tools.mcp_names import cleaned, tool_name

SAFE = re.compile(r"mcp__[a-zA-Z0-9_-]+")
ODD = [
    "a.b/c",
    "a_b",
    "a.b",
    "a b",
    "搜索",
    "x" * 90,
    "x" * 91,
    "",
    "read_file",
    "search",
    "Search",
    "a__b",
    "-",
    "\ud800",
]


@pytest.mark.case("B204")
@pytest.mark.spec("7.7")
def test_odd_long_and_similar_names_become_safe_ones_that_differ() -> None:
    names = [tool_name(server, tool) for server in ("one", "two", "n" * 32) for tool in ODD]
    assert all(SAFE.fullmatch(name) and len(name) <= 64 for name in names)
    assert len(set(names)) == len(names)
    assert tool_name("one", "read_file") == "mcp__one__read_file"
    assert tool_name("one", "a.b").startswith("mcp__one__a_b_")


@given(st.text(max_size=120), st.text(max_size=120))
def test_two_tools_share_no_name(one: str, other: str) -> None:
    first, second = tool_name("server", one), tool_name("server", other)
    assert SAFE.fullmatch(first)
    assert len(first) <= 64
    assert (first == second) == (one == other)


@pytest.mark.parametrize("name", ["", "a__b", "_a", "a_", "a b", "a.b", "ä", "n" * 33])
def test_a_server_name_that_could_be_mistaken_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="server name"):
        McpServer(name=name, command="x")


def test_names_of_two_servers_are_told_apart_by_their_groups() -> None:
    names = sorted(tool_name(server, tool) for server in ("a", "a_b", "a-b") for tool in ("_c", "b__c", "c"))
    assert all(one != other for one, other in pairwise(names))
    assert not tool_name("a_b", "c").startswith("mcp__a__")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "either a command or a url"),
        ({"command": "x", "url": "http://x"}, "either a command or a url"),
        ({"url": "file:///etc/passwd"}, "must begin with http"),
        ({"url": "http://x", "args": ("y",)}, "belong to a command"),
        ({"command": "x", "headers": {"A": "b"}}, "belong to a url"),
    ],
)
def test_a_server_that_cannot_be_reached_as_configured_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        McpServer(name="x", **fields)  # type: ignore[arg-type]


def test_a_strangers_text_loses_what_cannot_be_seen_and_what_is_too_much() -> None:
    assert cleaned("Reads\u202e files\x1b[2J\u200b.\n\tYes", 100) == "Reads files[2J.\n\tYes"
    assert cleaned("x" * 5000, 10) == "x" * 10 + "…"
