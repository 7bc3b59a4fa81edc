"""Requests in Anthropic's dialect: what the strict provider is sent for every history that the service can have."""

from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from app.agent.errors import ModelError
from app.agent.messages import Message, ToolCall
from app.wire import parse_arguments
from tests.llm.anthropic_world import NAME, AnthropicWorld, anthropic_world, spoken
from tests.llm.asking import GLOB, KEY, READ, TASK, ask, assistant, result, system, user
from tests.stubs.anthropic_stub import message, tool, words

MARK = {"type": "ephemeral"}


@pytest.fixture
async def world() -> AsyncIterator[AnthropicWorld]:
    async with anthropic_world() as made:
        yield made


def call(number: int, raw: str = "{}", theirs: str = "", **fields: Any) -> ToolCall:
    arguments, problem = parse_arguments(raw)
    fields = {"name": "glob", "raw": raw, "arguments": arguments, "problem": problem} | fields
    return ToolCall(call_id=f"call_{number}", provider_call_id=theirs, **fields)


def used(number: int, raw: str = "{}", output: str = "x", **fields: Any) -> tuple[Message, ...]:
    """A turn of one call, and its result."""
    one = call(number, raw, **fields)
    return assistant("", one, provider=NAME), result(one, output)


# ── parameters ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("13.1")
async def test_a_plain_request_says_only_what_was_asked_for_and_the_bound_that_is_required(
    world: AnthropicWorld,
) -> None:
    request = await world.sent()
    assert request.body == {
        "model": "stub-1",
        "max_tokens": 8192,
        "system": [words("You are a helper.")],
        "messages": [{"role": "user", "content": [words("Do it.")]}],
        "stream": True,
    }
    assert request.headers["x-api-key"] == KEY
    assert request.headers["anthropic-version"] == "2023-06-01"


@pytest.mark.spec("13.3")
async def test_everything_that_was_asked_for_is_sent(world: AnthropicWorld) -> None:
    wanted: dict[str, Any] = {
        "tool_choice": "read_file",
        "parallel_tool_calls": False,
        "temperature": 0.0,
        "max_tokens": 77,
    }
    body = (await world.sent(tools=(READ,), **wanted)).body
    assert body["tools"] == [
        {"name": "read_file", "description": "Does read_file.", "input_schema": READ.parameters},
    ]
    assert body["tool_choice"] == {"type": "tool", "name": "read_file", "disable_parallel_tool_use": True}
    assert (body["temperature"], body["max_tokens"]) == (0.0, 77)


@pytest.mark.spec("13.3")
async def test_a_profiles_own_values_hold_where_the_request_sets_none(world: AnthropicWorld) -> None:
    profile = {"max_tokens": 9, "temperature": 0.5}
    body = (await world.sent(profile=profile)).body
    assert (body["max_tokens"], body["temperature"]) == (9, 0.5)
    body = (await world.sent(profile=profile, max_tokens=3, temperature=1.7)).body
    assert (body["max_tokens"], body["temperature"]) == (3, 1.0)
    assert "temperature" not in (await world.sent(profile={"send_temperature": False}, temperature=0.2)).body


@pytest.mark.parametrize(
    ("choice", "parallel", "sent"),
    [
        (None, None, None),
        (None, True, None),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("auto", None, {"type": "auto"}),
        ("none", False, {"type": "none"}),
        ("required", None, {"type": "any"}),
        ("required", False, {"type": "any", "disable_parallel_tool_use": True}),
        ("glob", True, {"type": "tool", "name": "glob"}),
    ],
)
async def test_the_choice_of_tools_is_said_in_the_words_of_the_dialect(
    world: AnthropicWorld, choice: str | None, parallel: bool | None, sent: dict[str, Any] | None
) -> None:
    request = await world.sent(tools=(READ, GLOB), tool_choice=choice, parallel_tool_calls=parallel)
    assert request.body.get("tool_choice") == sent


async def test_a_tool_choice_that_is_not_offered_is_refused_before_anything_is_sent(world: AnthropicWorld) -> None:
    with pytest.raises(ModelError, match="names 'glob', but the tools offered are: read_file"):
        await world.sent(tools=(READ,), tool_choice="glob")
    assert world.stub.requests == []


async def test_without_tools_nothing_about_tools_is_sent(world: AnthropicWorld) -> None:
    body = (await world.sent(tool_choice="auto", parallel_tool_calls=False)).body
    assert not {"tools", "tool_choice"} & set(body)


@pytest.mark.spec("5.5")
async def test_a_forced_answer_declares_the_tools_of_its_history_and_forbids_them(world: AnthropicWorld) -> None:
    history = (*TASK, *used(1), *used(2, name="read_file"), *used(3), user("Answer now."))
    body = (await world.sent(history, temperature=0.2)).body
    assert [entry["name"] for entry in body["tools"]] == ["glob", "read_file"]
    assert body["tool_choice"] == {"type": "none"}
    assert [block["type"] for block in body["messages"][-1]["content"]] == ["tool_result", "text"]


# ── history ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_results_of_one_turn_stand_in_one_message_before_what_the_user_says(world: AnthropicWorld) -> None:
    first, second = call(1), call(2)
    results = result(first, "1"), result(second, "2", is_error=True)
    turn = assistant("I look.", first, second, provider=NAME)
    messages = (await world.sent((*TASK, turn, *results, user("And?"), user("Well?")))).messages
    assert messages[1]["content"][0] == words("I look.")
    assert messages[2] == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "call_1", "content": "1"},
            {"type": "tool_result", "tool_use_id": "call_2", "content": "2", "is_error": True},
            words("And?"),
            words("Well?"),
        ],
    }


async def test_system_texts_at_the_beginning_are_system_blocks_and_later_ones_speak_as_the_user(
    world: AnthropicWorld,
) -> None:
    body = (await world.sent((system("a"), system("b"), user("u"), assistant("t"), system("note")))).body
    assert body["system"] == [words("a"), words("b")]
    assert [(entry["role"], entry["content"]) for entry in body["messages"]] == [
        ("user", [words("u")]),
        ("assistant", [words("t")]),
        ("user", [words("note")]),
    ]


@pytest.mark.parametrize(
    "history", [(system("s"),), (assistant("t"), user("u")), (user(" "), assistant("t"), user("u"))]
)
async def test_the_user_begins_whatever_the_history_holds(world: AnthropicWorld, history: tuple[Message, ...]) -> None:
    assert (await world.sent(history)).messages[0] == {"role": "user", "content": [words("(empty message)")]}


async def test_turns_that_follow_each_other_are_joined(world: AnthropicWorld) -> None:
    messages = (await world.sent((*TASK, assistant("one"), assistant("two"), user("go on")))).messages
    assert [entry["role"] for entry in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"] == [words("one"), words("two")]


@pytest.mark.case("B036")
async def test_empty_texts_are_never_sent(world: AnthropicWorld) -> None:
    silent = call(1)
    history = (
        system("  "),
        user("   "),
        assistant("", silent),
        result(silent, " \n"),
        assistant("   "),
        user("go on"),
        assistant(""),
    )
    body = (await world.sent(history)).body
    assert "system" not in body
    assert [block for entry in body["messages"] for block in entry["content"]] == [
        words("(empty message)"),
        {"type": "tool_use", "id": "call_1", "name": "glob", "input": {}},
        {"type": "tool_result", "tool_use_id": "call_1", "content": "(no output)"},
        words("go on"),
    ]


@pytest.mark.case("B023", "B024", "B025")
async def test_repeated_and_missing_ids_of_a_provider_become_unique_on_the_wire(world: AnthropicWorld) -> None:
    calls = call(1, theirs="toolu_x"), call(2, theirs="toolu_x"), call(3)
    turn = assistant("", *calls, provider=NAME)
    again = used(4, theirs="toolu_x")
    messages = (await world.sent((*TASK, turn, *(result(one, "r") for one in calls), *again))).messages
    ids = [block["id"] for entry in messages for block in entry["content"] if block["type"] == "tool_use"]
    assert ids == ["toolu_x", "call_2", "call_3", "call_4"]


@pytest.mark.case("B037")
async def test_nothing_of_another_provider_is_sent(world: AnthropicWorld) -> None:
    foreign = call(1, theirs="functions.glob:0", opaque={"extra_content": {"x": 1}})
    turn = assistant("", foreign, provider="openai:other", opaque={"extra_content": 1}, reasoning="secret")
    messages = (await world.sent((*TASK, turn, result(foreign, "r")))).messages
    assert messages[1]["content"] == [{"type": "tool_use", "id": "call_1", "name": "glob", "input": {}}]


@pytest.mark.case("B030", "B038", "B040", "B041", "B042")
@pytest.mark.parametrize(
    ("raw", "wire"),
    [
        ('{"path": "a', {"invalid_json": '{"path": "a'}),
        ("[1]", {"invalid_json": "[1]"}),
        ("", {}),
        ("null", {}),
        ('{"a": 1, "b": [true]}', {"a": 1, "b": [True]}),
    ],
)
async def test_stored_arguments_of_any_kind_are_sent_as_an_object(world: AnthropicWorld, raw: str, wire: Any) -> None:
    messages = (await world.sent((*TASK, *used(1, raw)))).messages
    assert messages[1]["content"][0]["input"] == wire


async def test_valid_arguments_are_sent_as_they_came(world: AnthropicWorld) -> None:
    raw = '{ "b":1,\n"a" : 2.0 }'
    assert f'"input":{raw}'.encode() in (await world.sent((*TASK, *used(1, raw)))).raw


@pytest.mark.case("B183")
async def test_lone_halves_of_characters_do_not_break_a_request(world: AnthropicWorld) -> None:
    turn = used(1, '{"pattern": "\ud83c"}', "\udf78 b", arguments={"pattern": "\ud83c"}, problem=None)
    messages = (await world.sent((*TASK, *turn, user("a\ud83c")))).messages
    assert messages[1]["content"][0]["input"] == {"pattern": "\ufffd"}
    assert messages[2]["content"][0]["content"] == "\ufffd b"
    assert messages[2]["content"][1] == words("a\ufffd")


# ── cache ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("13.4")
async def test_the_beginning_of_a_growing_history_never_changes(world: AnthropicWorld) -> None:
    history: tuple[Message, ...] = TASK
    bodies: list[list[dict[str, Any]]] = []
    for number in range(4):
        bodies.append((await world.sent(history, tools=(READ, GLOB))).messages)
        history = (*history, *used(number, theirs="same"))
    for shorter, longer in pairwise(bodies):
        assert longer[: len(shorter)] == shorter


@pytest.mark.spec("13.4")
async def test_tools_system_and_the_last_two_turns_of_the_user_are_marked_for_the_cache(world: AnthropicWorld) -> None:
    history = (*TASK, *used(1), *used(2), *used(3), user("Go on."))
    body = (await world.sent(history, {"cache": True}, tools=(READ, GLOB))).body
    assert [entry.get("cache_control") for entry in body["tools"]] == [None, MARK]
    assert body["system"][-1]["cache_control"] == MARK
    marked = [[block.get("cache_control") for block in entry["content"]] for entry in body["messages"]]
    assert marked == [[None], [None], [None], [None], [MARK], [None], [None, MARK]]
    assert b"cache_control" not in (await world.sent(history, tools=(READ, GLOB))).raw
    assert b"cache_control" not in (await world.sent(history, {"cache": False}, tools=(READ, GLOB))).raw


@pytest.mark.spec("13.1")
async def test_a_turn_with_tools_goes_round_through_a_strict_provider(world: AnthropicWorld) -> None:
    asked = await world.answered(message(words("I look."), tool("glob", '{"pattern":"*.py"}'), tool("read_file", "")))
    history = (*TASK, *spoken(asked, "a.py", "text"))
    world.stub.script(message(words("done")))
    assert (await ask(world.model(), history, (READ, GLOB))).reply.text == "done"
    sent = world.stub.requests[-1].messages[1]["content"]
    assert [block["input"] for block in sent[1:]] == [{"pattern": "*.py"}, {}]
