"""Requests: what a strict provider is sent for every history that the service can have."""

import json
from itertools import pairwise
from typing import Any

import pytest

from app.agent.messages import Message, ToolCall
from app.llm import chat_wire
from app.wire import parse_arguments
from tests.llm.asking import GLOB, READ, TASK, World, ask, assistant, result, system, user
from tests.stubs.openai_stub import Request, call_chunk, calls, chunk, stream, text

NAME = "openai:stub-1"


def call(number: int, raw: str = "{}", theirs: str = "", **fields: Any) -> ToolCall:
    arguments, problem = parse_arguments(raw)
    fields = {"name": "glob", "raw": raw, "arguments": arguments, "problem": problem} | fields
    return ToolCall(call_id=f"call_{number}", provider_call_id=theirs, **fields)


async def sent(
    world: World, messages: tuple[Message, ...] = TASK, profile: dict[str, Any] | None = None, **fields: Any
) -> Request:
    """The request for a history; the strict stub accepted it."""
    world.stub.script(text("ok"))
    await ask(world.model(**(profile or {})), messages, **fields)
    return world.stub.requests[-1]


async def test_a_plain_request_says_only_what_was_asked_for(world: World) -> None:
    assert (await sent(world)).body == {
        "model": "stub-1",
        "messages": [{"role": "system", "content": "You are a helper."}, {"role": "user", "content": "Do it."}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.spec("13.3")
async def test_everything_that_was_asked_for_is_sent(world: World) -> None:
    body = (
        await sent(
            world,
            tools=(READ,),
            tool_choice="read_file",
            parallel_tool_calls=False,
            temperature=0.0,
            max_tokens=77,
            effort="low",
        )
    ).body
    assert body["tools"] == [
        {
            "type": "function",
            "function": {"name": "read_file", "description": "Does read_file.", "parameters": READ.parameters},
        }
    ]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "read_file"}}
    assert (body["parallel_tool_calls"], body["temperature"], body["max_tokens"]) == (False, 0.0, 77)
    assert body["reasoning_effort"] == "low"


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
async def test_general_tool_choices_are_sent_as_words(world: World, choice: str) -> None:
    assert (await sent(world, tools=(READ,), tool_choice=choice)).body["tool_choice"] == choice


async def test_a_tool_choice_that_is_not_offered_is_refused_before_anything_is_sent(world: World) -> None:
    with pytest.raises(Exception, match="names 'glob', but the tools offered are: read_file"):
        await sent(world, tools=(READ,), tool_choice="glob")
    assert world.stub.requests == []


async def test_without_tools_nothing_about_tools_is_sent(world: World) -> None:
    body = (await sent(world, tool_choice="auto", parallel_tool_calls=True)).body
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(body)


@pytest.mark.spec("13.3")
async def test_a_profile_adapts_the_request_to_its_endpoint(world: World) -> None:
    profile = {"max_tokens_key": "max_completion_tokens", "include_usage": False, "send_temperature": False}
    body = (await sent(world, profile=profile, max_tokens=5, temperature=0.2)).body
    assert body["max_completion_tokens"] == 5
    assert not {"max_tokens", "temperature", "stream_options"} & set(body)


async def test_a_profiles_own_values_hold_where_the_request_sets_none(world: World) -> None:
    profile = {"max_tokens": 9, "temperature": 0.5}
    body = (await sent(world, profile=profile)).body
    assert (body["max_tokens"], body["temperature"]) == (9, 0.5)
    body = (await sent(world, profile=profile, max_tokens=3, temperature=0.0)).body
    assert (body["max_tokens"], body["temperature"]) == (3, 0.0)


@pytest.mark.spec("5.5")
async def test_a_history_with_tools_can_be_sent_where_a_request_without_tools_is_refused(world: World) -> None:
    history = (*TASK, assistant("", call(1)), result(call(1), "a.py"), user("Answer now."))
    body = (await sent(world, history, {"tools_for_history": True})).body
    assert body["tool_choice"] == "none"
    assert [tool["function"]["name"] for tool in body["tools"]] == ["glob"]
    assert "tools" not in (await sent(world, history)).body


@pytest.mark.case("B023", "B024", "B025")
async def test_repeated_and_missing_ids_of_a_provider_become_unique_on_the_wire(world: World) -> None:
    same = "functions.glob:0"
    first, second, third, fourth = call(1, theirs=same), call(2, theirs=same), call(3, theirs=same), call(4)
    history = (
        *TASK,
        assistant("", first, second, provider=NAME),
        result(first, "1"),
        result(second, "2"),
        assistant("", third, fourth, provider=NAME),
        result(third, "3"),
        result(fourth, "4"),
    )
    messages = (await sent(world, history)).messages
    wanted = [entry["id"] for message in messages for entry in message.get("tool_calls", ())]
    assert wanted == [same, "call_2", "call_3", "call_4"]
    answered = [(message["tool_call_id"], message["content"]) for message in messages if message["role"] == "tool"]
    assert answered == list(zip(wanted, "1234", strict=True))


@pytest.mark.case("B023", "B024")
@pytest.mark.parametrize("theirs", ["functions.glob:0", ""])
async def test_calls_with_one_id_go_round_as_separate_calls(world: World, theirs: str) -> None:
    chunks = [call_chunk(n, id=theirs, name="glob", arguments=f'{{"pattern":"{n}"}}') for n in range(2)]
    asked = await world.answered(stream(*chunks, chunk({}, "tool_calls")))
    wanted = asked.reply.tool_calls
    assert [one.arguments for one in wanted] == [{"pattern": "0"}, {"pattern": "1"}]
    assert [one.provider_call_id for one in wanted] == [theirs, theirs]
    history = (*TASK, assistant("", *wanted, provider=asked.reply.provider), *(result(one, "x") for one in wanted))
    assert len((await sent(world, history)).messages) == 5


@pytest.mark.spec("13.4")
async def test_the_beginning_of_a_growing_history_never_changes(world: World) -> None:
    history: tuple[Message, ...] = TASK
    bodies: list[list[dict[str, Any]]] = []
    for number in range(4):
        bodies.append((await sent(world, history, tools=(READ, GLOB))).messages)
        one = call(number, theirs="same")
        history = (*history, assistant("", one, provider=NAME), result(one, str(number)))
    for shorter, longer in pairwise(bodies):
        assert longer[: len(shorter)] == shorter


@pytest.mark.case("B037")
async def test_nothing_of_one_provider_goes_to_another(world: World) -> None:
    foreign = call(1, theirs="toolu_1", opaque={"extra_content": {"x": 1}})
    message = assistant("", foreign, provider="other:model", opaque={"extra_content": 1}, reasoning="secret")
    wire = (await sent(world, (*TASK, message, result(foreign, "r")), {"reasoning_key": "reasoning_content"})).messages
    assert wire[2] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "glob", "arguments": "{}"}}],
    }


@pytest.mark.case("B033")
@pytest.mark.spec("13.4")
async def test_unknown_fields_of_a_call_go_back_to_their_provider_unchanged(world: World) -> None:
    extra = {"google": {"thought_signature": "abc/+="}}
    piece = call_chunk(0, id="c", name="glob", arguments="{}", extra_content=extra)
    piece["choices"][0]["delta"]["tool_calls"][0]["function"]["note"] = "n"
    asked = await world.answered(stream(piece, call_chunk(0, arguments=""), chunk({}, "tool_calls")))
    (one,) = asked.reply.tool_calls
    history = (*TASK, assistant("", one, provider=asked.reply.provider), result(one, "x"))
    (wire,) = (await sent(world, history)).messages[2]["tool_calls"]
    assert wire["extra_content"] == extra
    assert wire["function"] == {"name": "glob", "arguments": "{}", "note": "n"}


@pytest.mark.case("B033")
async def test_the_opaque_part_of_a_message_goes_back_to_its_provider(world: World) -> None:
    asked = await world.answered(stream(chunk({"content": "t", "extra_content": {"sig": "s"}}), chunk({}, "stop")))
    message = assistant("t", provider=asked.reply.provider, opaque=asked.reply.opaque)
    assert (await sent(world, (*TASK, message, user("go on")))).messages[2]["extra_content"] == {"sig": "s"}


async def test_reasoning_goes_back_only_where_the_profile_says_so(world: World) -> None:
    history = (*TASK, assistant("t", provider=NAME, reasoning="r"), user("go on"))
    assert (await sent(world, history)).messages[2] == {"role": "assistant", "content": "t"}
    wire = (await sent(world, history, {"reasoning_key": "reasoning_content"})).messages[2]
    assert wire == {"role": "assistant", "content": "t", "reasoning_content": "r"}


@pytest.mark.case("B036")
async def test_empty_texts_are_never_sent(world: World) -> None:
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
    assert [(message["role"], message["content"]) for message in (await sent(world, history)).messages] == [
        ("user", "(empty message)"),
        ("assistant", None),
        ("tool", "(no output)"),
        ("user", "go on"),
    ]


@pytest.mark.case("B030", "B038", "B040", "B042")
@pytest.mark.parametrize(
    ("raw", "wire"),
    [
        ('{"path": "a', {"invalid_json": '{"path": "a'}),
        ("[1]", {"invalid_json": "[1]"}),
        ("plain words", {"invalid_json": "plain words"}),
        ("", {}),
        (" ", {}),
        ("null", {}),
        ('{"a": 1, "b": [true]}', {"a": 1, "b": [True]}),
    ],
)
async def test_stored_arguments_of_any_kind_are_sent_as_an_object(world: World, raw: str, wire: Any) -> None:
    one = call(1, raw)
    messages = (await sent(world, (*TASK, assistant("", one), result(one, "r")))).messages
    assert json.loads(messages[2]["tool_calls"][0]["function"]["arguments"]) == wire


async def test_valid_arguments_are_sent_as_they_came(world: World) -> None:
    one = call(1, '{ "b":1,\n"a" : 2 }')
    messages = (await sent(world, (*TASK, assistant("", one), result(one, "r")))).messages
    assert messages[2]["tool_calls"][0]["function"]["arguments"] == '{ "b":1,\n"a" : 2 }'


@pytest.mark.parametrize(("name", "wire"), [("", "unnamed"), ("a b.c/d", "a_b_c_d"), ("x" * 90, "x" * 64)])
async def test_a_name_that_no_tool_can_have_does_not_spoil_the_history(world: World, name: str, wire: str) -> None:
    one = call(1, name=name)
    messages = (await sent(world, (*TASK, assistant("", one), result(one, "unknown tool")))).messages
    assert messages[2]["tool_calls"][0]["function"]["name"] == wire


async def test_system_texts_are_first_and_later_ones_speak_as_the_user(world: World) -> None:
    messages = (await sent(world, (system("a"), system("b"), user("u"), assistant("t"), system("note")))).messages
    assert [(message["role"], message["content"]) for message in messages] == [
        ("system", "a\n\nb"),
        ("user", "u"),
        ("assistant", "t"),
        ("user", "note"),
    ]


@pytest.mark.case("B183")
async def test_lone_halves_of_characters_do_not_break_a_request(world: World) -> None:
    one = call(1, '{"pattern": "\ud83c"}')
    messages = (await sent(world, (*TASK, assistant("a\ud83c", one), result(one, "\udf78 b")))).messages
    assert (messages[2]["content"], messages[3]["content"]) == ("a\ufffd", "\ufffd b")


async def test_the_tools_of_one_registry_are_encoded_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tools, count = world.model(), (READ, GLOB), 0
    encode = chat_wire.encode

    def counting(value: Any) -> bytes:
        nonlocal count
        count += isinstance(value, list)
        return encode(value)

    monkeypatch.setattr(chat_wire, "encode", counting)
    for _ in range(3):
        world.stub.script(text("ok"))
        await ask(model, tools=tools)
    assert count == 1
    assert [len(request.body["tools"]) for request in world.stub.requests] == [2, 2, 2]


@pytest.mark.spec("13.1")
async def test_a_turn_with_tools_goes_round_through_a_strict_provider(world: World) -> None:
    world.stub.script(calls(("glob", '{"pattern":"*.py"}'), ("read_file", '{"path":"a"}')), text("done"))
    first = await ask(world.model(), tools=(READ, GLOB))
    reply = first.reply
    turn = assistant(reply.text, *reply.tool_calls, provider=reply.provider, opaque=reply.opaque)
    results = [result(one, f"result of {one.name}") for one in reply.tool_calls]
    second = await ask(world.model(), (*TASK, turn, *results), (READ, GLOB))
    assert second.reply.text == "done"
    assert [message["role"] for message in world.stub.requests[1].messages] == [
        "system", "user", "assistant", "tool", "tool",
    ]  # fmt: skip
