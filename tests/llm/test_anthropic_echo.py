"""Signed blocks of reasoning: they go back to their provider exactly as they came, or not at all."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from app.agent.messages import Message
from app.masking import ValueMasker
from tests.llm.anthropic_world import AnthropicWorld, anthropic_world, spoken
from tests.llm.asking import GLOB, READ, TASK, Asked, World, ask, assistant, user
from tests.stubs.anthropic_stub import (
    SIGNED,
    STOP,
    ending,
    events,
    message,
    redacted,
    start,
    stream,
    thinking,
    tool,
    words,
)
from tests.stubs.openai_stub import OpenAIStub, text

pytestmark = pytest.mark.spec("13.4")


@pytest.fixture
async def world() -> AsyncIterator[AnthropicWorld]:
    async with anthropic_world() as made:
        yield made


async def turn(world: AnthropicWorld, history: tuple[Message, ...], *blocks: dict[str, Any]) -> Asked:
    """A reply of these blocks, with reasoning switched on."""
    world.stub.script(message(*blocks))
    return await ask(world.model(), history, (READ, GLOB), thinking=True)


def signed(world: AnthropicWorld) -> list[list[dict[str, Any]]]:
    """The signed blocks of each assistant message of the newest request."""
    messages = world.stub.requests[-1].messages
    return [
        [block for block in entry["content"] if block["type"] in SIGNED]
        for entry in messages
        if entry["role"] == "assistant"
    ]


@pytest.mark.spec("13.1")
@pytest.mark.case("B034")
async def test_reasoning_with_tools_goes_round_over_three_turns_unchanged(world: AnthropicWorld) -> None:
    sent = [
        [thinking("First, 中文 \u2028 «x»", "EqQB/+=="), tool("glob", '{"pattern": "*"}')],
        [
            redacted("EvAB+/=="),
            thinking("Second.\n"),
            words("I read."),
            tool("read_file", '{"path": "a"}'),
            tool("glob"),
        ],
        [thinking(""), words("Done.")],  # some models sign reasoning that they do not show
    ]
    history: tuple[Message, ...] = TASK
    for blocks, outputs in zip(sent, (["a"], ["text", "a"], []), strict=True):
        history = (*history, *spoken(await turn(world, history, *blocks), *outputs))
    assert (await turn(world, (*history, user("And?")), words("ok"))).reply.text == "ok"
    assert signed(world) == [[block for block in blocks if block["type"] in SIGNED] for blocks in sent]
    assert all(request.body["thinking"]["type"] == "enabled" for request in world.stub.requests)


@pytest.mark.case("B026")
async def test_text_after_a_call_comes_before_it_and_signed_blocks_keep_their_order(world: AnthropicWorld) -> None:
    first, second = thinking("One."), thinking("Two.")
    blocks = first, words("I look."), second, tool("glob"), words(" Then I read."), tool("read_file")
    asked = await turn(world, TASK, *blocks)
    assert asked.reply.text == "I look. Then I read."
    await turn(world, (*TASK, *spoken(asked, "a", "b")), words("ok"))
    content = world.stub.requests[-1].messages[1]["content"]
    assert content[:4] == [first, words("I look."), second, words(" Then I read.")]
    assert [block["type"] for block in content[4:]] == ["tool_use", "tool_use"]


async def test_unknown_keys_of_a_call_go_back_to_their_provider(world: AnthropicWorld) -> None:
    asked = await turn(world, TASK, thinking("Hm."), tool("glob", caller={"type": "direct"}))
    await turn(world, (*TASK, *spoken(asked, "a")), words("ok"))
    assert world.stub.requests[-1].messages[1]["content"][1]["caller"] == {"type": "direct"}


@pytest.mark.case("B034", "B035")
@pytest.mark.spec("12.6")
@pytest.mark.parametrize(
    "change",
    ["block", "signature", "order", "block gone", "call gone", "text", "masked", "stored elsewhere"],
)
async def test_signed_blocks_of_a_turn_that_was_changed_since_are_dropped_whole(
    world: AnthropicWorld, change: str
) -> None:
    asked = await turn(
        world, TASK, thinking("key-0123456789"), redacted("abc"), words("I look."), tool("glob"), tool("glob")
    )
    said, *results = spoken(asked, "a", "b")
    opaque = json.loads(json.dumps(said.opaque))  # as a store gives it back
    match change:
        case "block":
            opaque["blocks"][0]["thinking"] = ""
        case "signature":
            opaque["blocks"][0].pop("signature")
        case "order":
            opaque["blocks"].reverse()
        case "block gone":
            opaque["blocks"].pop()
        case "call gone":
            said, results = replace(said, tool_calls=said.tool_calls[:1]), results[:1]
        case "text":
            said = replace(said, content="I look.\n\n[cut off]")
        case "masked":
            opaque = ValueMasker(["key-0123456789"]).value(opaque)
        case _:
            opaque = {"extra_content": 1}
    history = (*TASK, replace(said, opaque=opaque), *results)
    assert (await turn(world, history, words("ok"))).reply.text == "ok"
    assert signed(world) == [[]]
    assert "thinking" not in world.stub.requests[-1].body  # the turn of calls goes on without


async def test_signed_blocks_survive_a_store_that_orders_keys_in_its_own_way(world: AnthropicWorld) -> None:
    block = thinking("Hm. 中文")
    asked = await turn(world, TASK, block, tool("glob"))
    said, done = spoken(asked, "a")
    stored = json.loads(json.dumps(said.opaque, sort_keys=True))
    await turn(world, (*TASK, replace(said, opaque=stored), done), words("ok"))
    assert signed(world) == [[block]]


@pytest.mark.case("B034")
async def test_reasoning_that_nobody_signed_is_shown_but_never_sent(world: AnthropicWorld) -> None:
    half = [event for event in events(thinking("Hm."), tool("glob")) if "signature_delta" not in str(event)]
    world.stub.script(stream(*half))
    asked = await ask(world.model(), TASK, (GLOB,), thinking=True)
    assert (asked.reply.reasoning, asked.reply.opaque) == ("Hm.", None)
    await turn(world, (*TASK, *spoken(asked, "a")), words("ok"))
    assert signed(world) == [[]]


async def test_of_a_turn_with_one_unsigned_block_no_block_is_kept(world: AnthropicWorld) -> None:
    whole = events(thinking("One."), thinking("Two."), words("x"))
    cut = [event for event in whole if event.get("index") != 1 or "signature_delta" not in str(event)]
    assert (await world.answered(stream(*cut))).reply.opaque is None
    assert (await world.answered(stream(*whole))).reply.opaque is not None


@pytest.mark.case("B037")
async def test_another_provider_or_profile_gets_no_signed_block(world: AnthropicWorld) -> None:
    asked = await turn(world, TASK, thinking("Hm."), words("I look."), tool("glob"))
    history = (*TASK, *spoken(asked, "a"))
    request = await world.sent(history, {"name": "other"}, tools=(GLOB,), thinking=True)
    assert signed(world) == [[]] and "thinking" not in request.body
    async with OpenAIStub() as stub:
        stub.script(text("ok"))
        await ask(World(stub, world.transport).model(), history, (GLOB,))
        call_id = asked.reply.tool_calls[0].call_id
        assert stub.requests[0].messages[2] == {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": call_id, "type": "function", "function": {"name": "glob", "arguments": "{}"}}],
        }


async def test_a_signed_turn_that_is_joined_to_one_before_it_goes_without_its_signed_blocks(
    world: AnthropicWorld,
) -> None:
    asked = await turn(world, TASK, thinking("Hm."), words("two"))
    await turn(world, (*TASK, assistant("one"), *spoken(asked), user("go on")), words("ok"))
    assert world.stub.requests[-1].messages[1]["content"] == [words("one"), words("two")]


async def test_reasoning_stays_in_the_history_when_it_is_switched_off(world: AnthropicWorld) -> None:
    block = thinking("Hm.")
    asked = await turn(world, TASK, block, tool("glob"))
    request = await world.sent((*TASK, *spoken(asked, "a"), user("Answer now.")), temperature=0.2)
    assert signed(world) == [[block]]
    assert (request.body["tool_choice"], request.body["temperature"]) == ({"type": "none"}, 0.2)


async def test_a_block_of_pure_reasoning_is_no_turn_of_its_own(world: AnthropicWorld) -> None:
    world.stub.script(stream(start(), *events(thinking("Hm."))[2:-2], ending(), STOP))
    asked = await ask(world.model(), TASK)
    assert (asked.reply.text, asked.reply.reasoning) == ("", "Hm.")
    assert len((await world.sent((*TASK, *spoken(asked), user("go on")))).messages) == 1
