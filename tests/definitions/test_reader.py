"""The agent parts of requests: names that are tools of agents, schemas, and texts, each refused with its place."""

from typing import Any

import pytest

from app.agent.errors import InvalidRequest, Unsupported
from app.agent.texts import CHINESE, DEFAULT, ENGLISH, TEXT_NAMES
from app.definitions.reader import DefinitionReader
from app.definitions.toolnames import BUILT_IN

OF_TENANTS = {"t": frozenset({"ask_clerk"})}
READER = DefinitionReader(BUILT_IN, lambda tenant: OF_TENANTS.get(tenant, frozenset()))


@pytest.mark.spec("7.2", "17.1")
def test_tools_that_agents_are_come_from_the_request_and_from_the_tenant() -> None:
    entries: list[Any] = [
        "scout",
        {"name": "a", "tool_name": " delegate_code_review "},
        {"name": "b", "toolName": "ask_b"},
        {"name": "c", "tool_name": 5},
        {"name": "d"},
        7,
    ]
    assert READER.tool_names(entries, "t") == {"ask_clerk", "delegate_code_review", "ask_b"}
    assert READER.tool_names([], "other") == frozenset()
    assert DefinitionReader(BUILT_IN).tool_names([], "t") == frozenset()


@pytest.mark.spec("7.2", "14.9")
def test_a_whitelist_may_name_the_tools_that_agents_are_and_no_others() -> None:
    names = ["Read", "ask_clerk", "execute_task", "subagent_scout", "ask_clerk"]
    allowed = READER.tools(names, "tools", READER.tool_names((), "t"))
    assert allowed == ("read_file", "ask_clerk", "execute_task", "subagent_scout")
    with pytest.raises(InvalidRequest, match=r"tools\[1\]: there is no tool 'ask_clerk'"):
        READER.tools(names, "tools", READER.tool_names((), "other"))
    with pytest.raises(Unsupported, match=r"tools\[0\]"):
        READER.tools(["Bash"], "tools", frozenset({"ask_clerk"}))


@pytest.mark.spec("7.2", "14.9")
def test_a_whitelist_of_a_call_is_bounded() -> None:
    assert READER.tools(["Read"] * 10_000, "tools") == ("read_file",)
    with pytest.raises(InvalidRequest, match=r"tools has 10,001 names, at most 10,000 are accepted"):
        READER.tools(["Read"] * 10_001, "tools")


@pytest.mark.spec("7.2", "10.2")
def test_an_inline_agent_may_name_the_tools_that_agents_are_and_no_others() -> None:
    data = {"name": "lead", "description": "d", "tools": ["Read", "ask_clerk"]}
    assert READER.definition(data, "agents[0]", agent_tools=frozenset({"ask_clerk"})).tools == (
        "read_file",
        "ask_clerk",
    )
    assert READER.definition(data, "agents[0]", stored=True).tools == ("read_file", "ask_clerk")
    with pytest.raises(InvalidRequest) as caught:
        READER.definition(data, "agents[0]")
    assert [error["at"] for error in caught.value.errors] == ["agents[0].tools"]


@pytest.mark.spec("5.6", "14.3")
def test_the_schema_of_an_answer_is_checked_before_a_run() -> None:
    schema = {"type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "number"}}}
    assert READER.schema(schema, "output_schema") == schema
    for wrong, word in (
        ({"type": "nonsense"}, "nonsense"),
        ({"$ref": "https://example.org/x"}, "points outside"),
        ({"pattern": "("}, "regex"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"description": "x" * 65_536}, "at most 65536"),
    ):
        with pytest.raises(InvalidRequest, match=word) as caught:
            READER.schema(wrong, "output_schema")
        assert [error["at"] for error in caught.value.errors] == ["output_schema"]


@pytest.mark.spec("5.9", "14.1")
def test_texts_are_a_language_or_single_texts_or_both() -> None:
    base = DEFAULT.replaced({"digest": "What there is:"})
    assert READER.texts("zh", "texts", base) == CHINESE
    assert READER.texts("en", "texts", base) == ENGLISH
    assert READER.texts({}, "texts", base) == base
    own = READER.texts({"heading": "", "forced_answer": "Answer.\nNow."}, "texts", base)
    assert own == base.replaced({"heading": "", "forced_answer": "Answer.\nNow."})
    assert READER.texts({"heading": "H", "language": "en"}, "texts", base) == ENGLISH.replaced({"heading": "H"})
    every = READER.texts(dict.fromkeys(TEXT_NAMES, "x"), "texts", base)
    assert {getattr(every, name) for name in TEXT_NAMES} == {"x"}


@pytest.mark.spec("5.9", "14.1")
@pytest.mark.parametrize(
    ("data", "at", "word"),
    [
        ("fr", "texts", "default, en, zh"),
        ({"language": "fr"}, "texts.language", "default, en, zh"),
        ({"language": None}, "texts.language", "default, en, zh"),
        ({"headings": "x"}, "texts.headings", "heading"),
        ({"heading": None}, "texts.heading", "must be text"),
        ({"heading": ["x"]}, "texts.heading", "must be text"),
        ({"heading": "x\ud800"}, "texts.heading", "control characters"),
    ],
)
def test_wrong_texts_are_refused_with_their_place(data: Any, at: str, word: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        READER.texts(data, "texts", DEFAULT)
    assert [error["at"] for error in caught.value.errors] == [at]
    assert word in caught.value.message
