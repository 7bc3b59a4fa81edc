"""Anthropic's events: what a reply is made of, in whatever order and pieces it comes, and what is no reply at all."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.agent.chat import ChatRequest, Delta, DeltaKind, Finish
from app.agent.errors import IncompleteReply, ModelError
from app.agent.messages import Usage
from app.llm.anthropic_assembly import MessageAssembler
from tests.llm.anthropic_world import AnthropicWorld, anthropic_world
from tests.llm.asking import TASK
from tests.stubs.anthropic_stub import (
    PING,
    STOP,
    closed,
    delta,
    ending,
    error_event,
    events,
    message,
    opened,
    refusal,
    sse,
    start,
    stream,
    thinking,
    tool,
    words,
)
from tests.stubs.openai_stub import Answer, End

pytestmark = pytest.mark.spec("13.2")


@pytest.fixture
async def world() -> AsyncIterator[AnthropicWorld]:
    async with anthropic_world() as made:
        yield made


async def failure(world: AnthropicWorld, answer: Answer, **profile: Any) -> tuple[ModelError, str]:
    """The error that an answer leads to, and the text that was shown before it."""
    world.stub.script(answer)
    deltas: list[Delta] = []
    with pytest.raises(ModelError) as caught:
        await world.model(**profile).stream(ChatRequest(messages=TASK), deltas.append)
    return caught.value, "".join(piece.text for piece in deltas if piece.kind is DeltaKind.TEXT)


# ── replies ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("13.1")
async def test_a_turn_of_every_kind_of_block_is_read_and_shown(world: AnthropicWorld) -> None:
    blocks = thinking("Hm, two."), words("I look."), tool("glob", '{"pattern": "*"}'), tool("read_file", '{"path":"a"}')
    asked = await world.answered(message(*blocks))
    reply = asked.reply
    assert (reply.text, reply.reasoning, reply.finish) == ("I look.", "Hm, two.", Finish.TOOL_CALLS)
    assert (reply.model, reply.provider) == ("stub-1", "anthropic:stub-1")
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [
        ("glob", {"pattern": "*"}),
        ("read_file", {"path": "a"}),
    ]
    assert [call.provider_call_id for call in reply.tool_calls] == [blocks[2]["id"], blocks[3]["id"]]
    assert (asked.said(DeltaKind.TEXT), asked.said(DeltaKind.REASONING)) == ("I look.", "Hm, two.")
    for call in reply.tool_calls:
        assert asked.said(DeltaKind.ARGUMENTS, call.call_id) == call.raw


@pytest.mark.case("B041")
@pytest.mark.parametrize("arguments", ["", "{}", " "])
async def test_a_call_without_arguments_has_an_empty_object(world: AnthropicWorld, arguments: str) -> None:
    (call,) = (await world.answered(message(tool("glob", arguments)))).reply.tool_calls
    assert (call.arguments, call.problem) == ({}, None)


@pytest.mark.case("B041")
async def test_a_call_without_any_piece_of_input_has_an_empty_object(world: AnthropicWorld) -> None:
    block = opened(0, {**tool("glob"), "input": {}})
    (call,) = (await world.answered(stream(start(), block, closed(0), ending("tool_use"), STOP))).reply.tool_calls
    assert (call.name, call.arguments) == ("glob", {})


@pytest.mark.case("B030")
@pytest.mark.parametrize("arguments", ['{"pattern": "*', '{"pattern": }', "[1]", "words"])
async def test_broken_arguments_are_no_guess_but_a_problem_that_the_model_can_read(
    world: AnthropicWorld, arguments: str
) -> None:
    (call,) = (await world.answered(message(tool("glob", arguments)))).reply.tool_calls
    assert (call.raw, call.arguments) == (arguments, None)
    assert call.problem is not None and "JSON" in call.problem


async def test_input_that_comes_whole_at_the_start_of_its_block_is_taken(world: AnthropicWorld) -> None:
    block = opened(0, {**tool("glob"), "input": {"pattern": "*"}})
    for tail in ([closed(0)], []):
        asked = await world.answered(stream(start(), block, *tail, ending("tool_use"), STOP))
        (call,) = asked.reply.tool_calls
        assert call.arguments == {"pattern": "*"}
        assert asked.said(DeltaKind.ARGUMENTS, call.call_id) == call.raw
    pieces = [delta(0, "input_json_delta", partial_json='{"pattern": "x"}'), closed(0)]
    asked = await world.answered(stream(start(), block, *pieces, ending("tool_use"), STOP))
    assert asked.reply.tool_calls[0].arguments == {"pattern": "x"}


async def test_pings_and_unknown_events_blocks_and_deltas_are_passed_over(world: AnthropicWorld) -> None:
    events = [
        start(),
        PING,
        {"type": "message_note", "delta": "?"},
        opened(0, {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"q": 1}}),
        delta(0, "input_json_delta", partial_json='{"query": "x"}'),
        PING,
        opened(1, words("")),
        delta(1, "text_delta", text="So "),
        delta(1, "citations_delta"),
        PING,
        delta(0, "text_delta", text="not this "),
        delta(1, "text_delta", text="it is."),
        closed(0),
        closed(1),
        ending(),
        STOP,
    ]
    asked = await world.answered(stream(*events))
    assert (asked.reply.text, asked.reply.tool_calls) == ("So it is.", ())
    assert (asked.said(DeltaKind.TEXT), asked.said(DeltaKind.REASONING)) == ("So it is.", "")


@pytest.mark.case("B183")
async def test_half_a_character_at_the_end_of_a_text_is_replaced(world: AnthropicWorld) -> None:
    half = rb'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x \ud83c"}}' + b"\n\n"
    asked = await world.answered(stream(start(), opened(0, words("")), half, closed(0), ending(), STOP))
    assert (asked.reply.text, asked.said(DeltaKind.TEXT)) == ("x \ufffd", "x \ufffd")


async def test_blocks_whose_pieces_are_mixed_or_carry_no_index_keep_together(world: AnthropicWorld) -> None:
    first, second = {**tool("glob"), "input": {}}, {**tool("read_file"), "input": {}}
    halves = [
        opened(0, first),
        opened(1, second),
        delta(1, "input_json_delta", partial_json='{"path"'),
        delta(0, "input_json_delta", partial_json='{"pattern": '),
        delta(1, "input_json_delta", partial_json=': "a"}'),
        delta(0, "input_json_delta", partial_json='"*"}'),
    ]
    reply = (await world.answered(stream(start(), *halves, ending("tool_use"), STOP))).reply
    assert [call.arguments for call in reply.tool_calls] == [{"pattern": "*"}, {"path": "a"}]
    plain = [
        {key: value for key, value in event.items() if key != "index"} for event in events(words("a"), tool("glob"))
    ]
    reply = (await world.answered(stream(*plain))).reply
    assert (reply.text, [call.name for call in reply.tool_calls]) == ("a", ["glob"])


async def test_a_text_whose_start_was_left_out_is_not_lost(world: AnthropicWorld) -> None:
    reply = (await world.answered(stream(start(), delta(0, "text_delta", text="hello"), ending(), STOP))).reply
    assert reply.text == "hello"


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", Finish.STOP),
        ("stop_sequence", Finish.STOP),
        ("tool_use", Finish.STOP),  # without a call it is none
        ("max_tokens", Finish.LENGTH),
        ("model_context_window_exceeded", Finish.LENGTH),
        ("refusal", Finish.FILTERED),
        ("pause_turn", Finish.UNKNOWN),
        ("something_new", Finish.UNKNOWN),
    ],
)
async def test_the_stop_reason_is_told_in_our_own_words(world: AnthropicWorld, reason: str, finish: Finish) -> None:
    reply = (await world.answered(message(words("x"), reason=reason))).reply
    assert (reply.text, reply.finish) == ("x", finish)


async def test_calls_run_whatever_the_stop_reason_says(world: AnthropicWorld) -> None:
    reply = (await world.answered(message(tool("glob"), reason="end_turn"))).reply
    assert (reply.finish, len(reply.tool_calls)) == (Finish.TOOL_CALLS, 1)


@pytest.mark.case("B015")
@pytest.mark.parametrize(("reason", "finish"), [("max_tokens", Finish.LENGTH), ("refusal", Finish.FILTERED)])
async def test_a_turn_cut_by_length_or_refused_runs_nothing_and_keeps_no_signed_block(
    world: AnthropicWorld, reason: str, finish: Finish
) -> None:
    blocks = thinking("Hm."), words("I will"), tool("glob", '{"pattern":"*"}'), tool("glob", '{"pat')
    reply = (await world.answered(message(*blocks, reason=reason))).reply
    assert (reply.finish, reply.tool_calls, reply.text, reply.opaque) == (finish, (), "I will", None)


# ── usage ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("13.4")
@pytest.mark.parametrize(
    ("first", "last", "usage"),
    [
        ({"input_tokens": 20}, {"output_tokens": 9}, Usage(input_tokens=20, output_tokens=9)),
        (
            {"input_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 30},
            {"output_tokens": 7},
            Usage(input_tokens=135, output_tokens=7, cached_tokens=100),
        ),
        # some servers count the input only at the end, others say zero there
        ({"input_tokens": 0}, {"input_tokens": 40, "output_tokens": 2}, Usage(input_tokens=40, output_tokens=2)),
        ({"input_tokens": 40}, {"input_tokens": 0, "output_tokens": 2}, Usage(input_tokens=40, output_tokens=2)),
        ({"input_tokens": 0, "output_tokens": 0}, {"output_tokens": 0}, None),
    ],
)
async def test_tokens_are_totals_of_which_cached_ones_are_a_part(
    world: AnthropicWorld, first: dict[str, int], last: dict[str, int], usage: Usage | None
) -> None:
    body = [start(**first), *events(words("x"))[2:-2], ending("end_turn", **last), STOP]
    reply = (await world.answered(stream(*body))).reply
    assert reply.usage == usage


@pytest.mark.spec("13.4")
async def test_a_reply_says_what_it_costs_with_what_the_cache_took_in_and_gave(world: AnthropicWorld) -> None:
    body = [
        start(input_tokens=1_000, cache_read_input_tokens=10_000, cache_creation_input_tokens=2_000),
        *events(words("x"))[2:-2],
        ending("end_turn", output_tokens=100),
        STOP,
    ]
    prices = {"input_price": 3_000_000, "cached_price": 300_000, "output_price": 15_000_000}
    usage = (await world.answered(stream(*body), **prices)).reply.usage
    assert usage is not None
    assert (usage.input_tokens, usage.cached_tokens, usage.cost) == (
        13_000,
        10_000,
        {"USD": 3_000 + 3_000 + 7_500 + 1_500},
    )
    dearer = (await world.answered(stream(*body), **prices, cache_write_price=6_000_000)).reply.usage
    assert dearer is not None
    assert dearer.cost == {"USD": 3_000 + 3_000 + 12_000 + 1_500}


# ── what is no reply ────────────────────────────────────────────────────────────────────────────────────────────

HALF = [start(), opened(0, words("")), delta(0, "text_delta", text="Half a "), delta(0, "text_delta", text="sent")]


@pytest.mark.case("B015")
@pytest.mark.spec("5.8")
@pytest.mark.parametrize("tail", [[], [closed(0), ending()]])
@pytest.mark.parametrize(("end", "framed"), [("complete", True), ("close", False), ("close", True), ("reset", True)])
async def test_a_stream_without_message_stop_is_incomplete_and_may_be_tried_again(
    world: AnthropicWorld, tail: list[dict[str, Any]], end: End, framed: bool
) -> None:
    error, _ = await failure(world, stream(*HALF, *tail, end=end, framed=framed))
    assert isinstance(error, IncompleteReply) and error.retryable


async def test_what_came_before_a_stream_broke_was_shown(world: AnthropicWorld) -> None:
    assert (await failure(world, stream(*HALF)))[1] == "Half a sent"


@pytest.mark.parametrize("answer", [stream(), stream(STOP), stream(PING, ending(), STOP), Answer()])
async def test_an_answer_with_nothing_in_it_is_incomplete(world: AnthropicWorld, answer: Answer) -> None:
    error, _ = await failure(world, answer)
    assert isinstance(error, IncompleteReply)


async def test_after_message_stop_nothing_is_waited_for(world: AnthropicWorld) -> None:
    assert (await world.answered(stream(*events(words("done")), end="hang"))).reply.text == "done"
    await world.stub.client_left()


async def test_a_stream_that_falls_silent_ends_with_a_timeout(world: AnthropicWorld) -> None:
    error, shown = await failure(world, stream(*HALF, end="hang"), idle_s=0.05)
    assert (error.code, error.retryable, shown) == ("model_timeout", True, "Half a sent")


def test_a_ping_is_no_content_and_everything_else_is() -> None:
    assembler = MessageAssembler(provider="p")
    assert not assembler.feed([json.dumps(PING).encode(), b'{"type": "message_note"}', b"[DONE]"])
    assert all(assembler.feed([json.dumps(event).encode()]) for event in events(words("x")) if event != PING)


@pytest.mark.case("B014")
@pytest.mark.spec("5.8")
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("kind", "code", "retryable"),
    [
        ("overloaded_error", "model_overloaded", True),
        ("rate_limit_error", "model_rate_limited", True),
        ("api_error", "model_error", True),
        ("invalid_request_error", "model_error", False),
        ("authentication_error", "model_auth", False),
    ],
)
async def test_an_error_event_inside_a_stream_is_an_error_however_much_came_before(
    world: AnthropicWorld, named: bool, kind: str, code: str, retryable: bool
) -> None:
    event = error_event(kind, "Something happened")
    written = sse(event)[0] if named else f"data: {json.dumps(event)}\n\n".encode()
    error, shown = await failure(world, stream(*HALF, written))
    assert not isinstance(error, IncompleteReply)
    assert (error.code, error.retryable, shown) == (code, retryable, "Half a sent")
    assert "Something happened" in error.message


@pytest.mark.spec("5.8")
@pytest.mark.parametrize(
    ("status", "kind", "code", "retryable"),
    [
        (400, "invalid_request_error", "model_error", False),
        (401, "authentication_error", "model_auth", False),
        (403, "permission_error", "model_auth", False),
        (404, "not_found_error", "model_not_found", False),
        (413, "request_too_large", "model_error", False),
        (429, "rate_limit_error", "model_rate_limited", True),
        (500, "api_error", "model_error", True),
        (529, "overloaded_error", "model_overloaded", True),
    ],
)
async def test_a_refused_request_says_why_and_whether_it_may_be_tried_again(
    world: AnthropicWorld, status: int, kind: str, code: str, retryable: bool
) -> None:
    error, _ = await failure(world, refusal(status, kind, "no", retry_after="7"))
    assert (error.status, error.code, error.retryable) == (status, code, retryable)
    assert error.retry_after_ms == 7000


async def test_an_event_that_cannot_be_read_fails_the_turn(world: AnthropicWorld) -> None:
    error, shown = await failure(world, stream(*HALF, b'data: {"type": "content_block_de\n\n'))
    assert (error.code, error.retryable, shown) == ("model_malformed", True, "Half a sent")


async def test_a_server_that_answers_in_one_piece_is_accepted(world: AnthropicWorld) -> None:
    call = {**tool("glob"), "input": {"pattern": "*"}}
    whole = {
        "type": "message",
        "model": "stub-1",
        "content": [thinking("Hm."), words("I look."), call],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }
    answer = Answer(writes=(json.dumps(whole).encode(),), content_type="application/json")
    asked = await world.answered(answer)
    reply = asked.reply
    assert (reply.text, reply.reasoning, asked.said(DeltaKind.TEXT)) == ("I look.", "Hm.", "I look.")
    assert [call.arguments for call in reply.tool_calls] == [{"pattern": "*"}]
    assert reply.usage == Usage(input_tokens=3, output_tokens=4) and reply.opaque is not None
    body = json.dumps(error_event("overloaded_error", "Overloaded")).encode()
    error, _ = await failure(world, Answer(writes=(body,), content_type="application/json"))
    assert error.code == "model_overloaded"
